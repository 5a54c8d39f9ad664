//! What happened between two looks at the counters, for `ringmain stats --watch`.

use control::api::{Counts, Stats};

use crate::show::per;
use crate::table::Table;

/// A table of rates. Ports that came in between are counted from zero.
pub fn rates(before: &Stats, after: &Stats) -> String {
    let seconds = after.uptime_seconds - before.uptime_seconds;
    if after.pid != before.pid || seconds <= 0.0 {
        return "the daemon was started anew\n".to_owned();
    }
    let mut table = Table::new(&[
        "PORT",
        "STATE",
        ">TX FRAMES/s",
        ">TX Gb/s",
        ">RX FRAMES/s",
        ">RX Gb/s",
        ">INT/s",
        ">FRAMES/INT",
        ">DROPS/s",
    ]);
    for port in &after.ports {
        let old = before.ports.iter().find(|old| old.name == port.name).map(|old| &old.total);
        let cells = cells(&since(&port.total, old.unwrap_or(&Counts::default())), seconds);
        table.row([port.name.clone(), port.state.name().to_owned()].into_iter().chain(cells));
    }
    let cpu = (after.cpu_seconds - before.cpu_seconds) / seconds * 100.0;
    format!("CPU {cpu:.0} % of one\n\n{}", table.render())
}

fn cells(counts: &Counts, seconds: f64) -> [String; 7] {
    let rate = |frames: u64| format!("{:.0}", frames as f64 / seconds);
    let gigabits = |bytes: u64| format!("{:.2}", bytes as f64 * 8e-9 / seconds);
    let interrupts = counts.tx_interrupts + counts.rx_interrupts;
    [
        rate(counts.tx_frames),
        gigabits(counts.tx_bytes),
        rate(counts.rx_frames),
        gigabits(counts.rx_bytes),
        rate(interrupts),
        per(counts.tx_frames + counts.rx_frames, interrupts),
        rate(counts.dropped()),
    ]
}

/// The counters that the table needs, less what they were. A port that was removed and added again
/// starts below: it counts from zero.
fn since(now: &Counts, then: &Counts) -> Counts {
    let less = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
    Counts {
        tx_frames: less(now.tx_frames, then.tx_frames),
        tx_bytes: less(now.tx_bytes, then.tx_bytes),
        rx_frames: less(now.rx_frames, then.rx_frames),
        rx_bytes: less(now.rx_bytes, then.rx_bytes),
        tx_interrupts: less(now.tx_interrupts, then.tx_interrupts),
        rx_interrupts: less(now.rx_interrupts, then.rx_interrupts),
        drops: [("all".to_owned(), less(now.dropped(), then.dropped()))].into(),
        ..Counts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::sample;

    fn stats(uptime_seconds: f64, cpu_seconds: f64, total: Counts) -> Stats {
        let port = control::api::PortReport { total, ..sample() };
        let (release, workers, removed) = (String::new(), Vec::new(), Counts::default());
        Stats {
            pid: 1,
            release,
            uptime_seconds,
            cpu_seconds,
            workers,
            moves: 0,
            ports: vec![port],
            removed,
        }
    }

    #[test]
    fn rates_are_per_second() {
        let before = stats(10.0, 1.0, Counts { tx_frames: 1000, ..Counts::default() });
        let after = Counts {
            tx_frames: 3000,
            tx_bytes: 500_000_000,
            rx_frames: 100,
            rx_interrupts: 21,
            drops: [("runt".to_owned(), 8), ("rx_full".to_owned(), 2)].into(),
            ..Counts::default()
        };
        let want = "\
CPU 75 % of one

PORT  STATE      TX FRAMES/s  TX Gb/s  RX FRAMES/s  RX Gb/s  INT/s  FRAMES/INT  DROPS/s
vm-a  connected         1000     2.00           50     0.00     10       100.0        5
";
        assert_eq!(rates(&before, &stats(12.0, 2.5, after)), want);
    }

    #[test]
    fn a_new_daemon_is_noticed() {
        let first = stats(10.0, 1.0, Counts::default());
        let second = Stats { pid: 2, ..first.clone() };
        assert_eq!(rates(&first, &second), "the daemon was started anew\n");
    }
}
