//! Rates between two replies with counters, for `ringmain stats --watch`.

use control::api::{Counts, PortReport, Stats};

use crate::table::Table;
use crate::units;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Characters in a line.
    pub columns: usize,
    /// Lines.
    pub rows: usize,
}

impl Screen {
    /// No terminal: everything fits.
    pub const UNLIMITED: Screen = Screen { columns: usize::MAX, rows: usize::MAX };
}

/// Lines of the screen that are not ports: the one with the time, an empty one, the headings, the
/// total, the number of ports that do not fit, and the cursor's.
const OTHER_ROWS: usize = 6;
/// Columns of the table that are not names, with the spaces before them.
const OTHER_COLUMNS: usize = 67;
/// Shortest name that is not cut.
const SHORTEST_NAME: usize = 8;

/// A line about the daemon, and a table of rates. The total comes first, so that it stays on the
/// screen. Ports that were added in between are counted from zero.
pub fn rates(before: &Stats, after: &Stats, screen: Screen) -> String {
    let seconds = (after.uptime_seconds - before.uptime_seconds).max(1e-3);
    let headings = ["PORT", "STATE", ">TX/s", ">TX b/s", ">RX/s", ">RX b/s", ">INT/s", ">F/INT"];
    let mut table = Table::new(&[&headings[..], &[">DROP/s"]].concat());
    let old = |port: &PortReport| before.ports.iter().find(|old| old.name == port.name);
    let counts: Vec<Counts> = after
        .ports
        .iter()
        .map(|port| since(&port.total, old(port).map(|old| &old.total)))
        .collect();
    let mut total = Counts::default();
    counts.iter().for_each(|counts| total.add(counts));
    table.row(["total".to_owned(), String::new()].into_iter().chain(cells(&total, seconds)));
    let room = screen.rows.saturating_sub(OTHER_ROWS).max(1);
    let longest_name = screen.columns.saturating_sub(OTHER_COLUMNS).max(SHORTEST_NAME);
    for (port, counts) in after.ports.iter().zip(&counts).take(room) {
        let name = [shortened(&port.name, longest_name), port.state.name().to_owned()];
        table.row(name.into_iter().chain(cells(counts, seconds)));
    }
    let hidden = after.ports.len().saturating_sub(room);
    let more = if hidden > 0 {
        format!("{} more; --port NAME shows one\n", units::count(hidden as u64, "port"))
    } else {
        String::new()
    };
    let cpu = (after.cpu_seconds - before.cpu_seconds) / seconds * 100.0;
    format!(
        "up {}  CPU {cpu:.0} % of one  {}\n\n{}{more}",
        units::duration(after.uptime_seconds),
        units::count(after.ports.len() as u64, "port"),
        table.render()
    )
}

/// A name, shortened from its start: guests of one port share the start, so the end tells more.
fn shortened(name: &str, longest: usize) -> String {
    let length = name.chars().count();
    if length <= longest {
        return name.to_owned();
    }
    let tail: String = name.chars().skip(length - (longest - 1)).collect();
    format!("~{tail}")
}

/// The cells of a row. Frames that a device put on an Rx ring count as received.
fn cells(counts: &Counts, seconds: f64) -> [String; 7] {
    let rate = |number: u64| units::scaled(number as f64 / seconds);
    let bits = |bytes: u64| units::scaled(bytes as f64 * 8.0 / seconds);
    let interrupts = counts.tx_interrupts + counts.rx_interrupts;
    let received = counts.rx_frames + counts.direct_frames;
    let frames = (counts.tx_frames + received) as f64;
    [
        rate(counts.tx_frames),
        bits(counts.tx_bytes),
        rate(received),
        bits(counts.rx_bytes + counts.direct_bytes),
        rate(interrupts),
        if interrupts == 0 { String::new() } else { units::scaled(frames / interrupts as f64) },
        rate(counts.dropped()),
    ]
}

/// The increase of the counters that the table needs. Counters that fell belong to another port of
/// the same name, which counts from zero.
fn since(now: &Counts, then: Option<&Counts>) -> Counts {
    let none = Counts::default();
    let then = then.unwrap_or(&none);
    let less = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
    Counts {
        tx_frames: less(now.tx_frames, then.tx_frames),
        tx_bytes: less(now.tx_bytes, then.tx_bytes),
        rx_frames: less(now.rx_frames, then.rx_frames),
        rx_bytes: less(now.rx_bytes, then.rx_bytes),
        tx_interrupts: less(now.tx_interrupts, then.tx_interrupts),
        rx_interrupts: less(now.rx_interrupts, then.rx_interrupts),
        direct_frames: less(now.direct_frames, then.direct_frames),
        direct_bytes: less(now.direct_bytes, then.direct_bytes),
        drops: [("all".to_owned(), less(now.dropped(), then.dropped()))].into(),
        ..Counts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::sample;

    fn stats(uptime_seconds: f64, cpu_seconds: f64, total: Counts) -> Stats {
        let ports = vec![PortReport { total, ..sample() }];
        Stats { pid: 1, uptime_seconds, cpu_seconds, ports, ..Stats::default() }
    }

    #[test]
    fn rates_are_per_second_and_the_total_comes_first() {
        let before = stats(10.0, 1.0, Counts { tx_frames: 1000, ..Counts::default() });
        let after = Counts {
            tx_frames: 3_001_000,
            tx_bytes: 500_000_000,
            rx_frames: 100,
            rx_interrupts: 21,
            drops: [("runt".to_owned(), 8), ("rx_full".to_owned(), 2)].into(),
            ..Counts::default()
        };
        let want = "\
up 12 s  CPU 75 % of one  1 port

PORT   STATE       TX/s  TX b/s  RX/s  RX b/s  INT/s  F/INT  DROP/s
total  -          1.50M   2.00G    50       0     10   143k       5
vm-a   connected  1.50M   2.00G    50       0     10   143k       5
";
        assert_eq!(rates(&before, &stats(12.0, 2.5, after), Screen::UNLIMITED), want);
    }

    #[test]
    fn a_screen_of_80_columns_and_24_rows_is_enough() {
        let frames = |n: u64| Counts {
            tx_frames: n * 987_654_321,
            tx_bytes: n * 98_765_432_100,
            rx_frames: n * 987_654_321,
            rx_bytes: n * 98_765_432_100,
            rx_interrupts: n * 1_234_567,
            drops: [("rx_full".to_owned(), n * 123_456)].into(),
            ..Counts::default()
        };
        let ports = |n| {
            let name = |number: u64| format!("guests/a-guest-with-a-long-name-{number}");
            let port = |number| PortReport { name: name(number), total: frames(n), ..sample() };
            (0..40).map(port).collect::<Vec<_>>()
        };
        let before = Stats { ports: ports(1), uptime_seconds: 1.0, ..Stats::default() };
        let after = Stats { ports: ports(2), uptime_seconds: 2.0, ..Stats::default() };
        let text = rates(&before, &after, Screen { columns: 80, rows: 24 });
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(text.lines().count(), 23, "{text}");
        assert!(text.contains("~long-name-17 ") && text.contains("\n22 ports more;"), "{text}");
    }
}
