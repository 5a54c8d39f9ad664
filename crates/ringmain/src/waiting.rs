//! How workers wait for frames, for `ringmain stats`.

use control::api::{PollingReport, Stats};

use crate::table::Table;

/// A line a worker; nothing if the daemon does not tell.
pub fn waiting(stats: &Stats) -> String {
    let mut table = Table::new(&[
        "WORKER",
        "POLLING",
        ">BUSY %",
        ">SPIN %",
        ">NAP %",
        ">SLEEP %",
        ">WINDOW us",
        ">NAP us",
        ">NAPS",
        ">GAPS us (50, 90, 99 %)",
        ">SLEEP COSTS us",
        ">WAKING TAKES us",
        ">GAVE WAY",
    ]);
    for worker in &stats.workers {
        let Some(polling) = &worker.polling else { continue };
        table.row(std::iter::once(worker.index.to_string()).chain(cells(polling)));
    }
    if table.is_empty() { String::new() } else { format!("\n{}", table.render()) }
}

fn cells(polling: &PollingReport) -> [String; 12] {
    let all = polling.nanoseconds.values().sum::<u64>().max(1) as f64;
    let share = |state: &str| {
        let time = polling.nanoseconds.get(state).copied().unwrap_or(0);
        format!("{:.1}", time as f64 / all * 100.0)
    };
    let [half, most, nearly_all] = polling.gaps.map(micros);
    [
        polling.policy.clone(),
        share("busy"),
        share("spin"),
        share("nap"),
        share("sleep"),
        polling.window.map_or("no end".to_owned(), micros),
        if polling.nap == 0 { String::new() } else { micros(polling.nap) },
        polling.naps.to_string(),
        format!("{half}, {most}, {nearly_all}"),
        micros(polling.sleep_cost),
        micros(polling.wake),
        format!("{}{}", polling.gave_way, if polling.gives_way { " (now)" } else { "" }),
    ]
}

/// Nanoseconds, in microseconds.
fn micros(nanoseconds: u64) -> String {
    let digits = if nanoseconds < 100_000 { 1 } else { 0 };
    format!("{:.digits$}", nanoseconds as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use control::api::{Counts, WorkerReport};

    use super::*;

    #[test]
    fn a_line_a_worker() {
        let nanoseconds = [("busy", 100), ("spin", 200), ("nap", 0), ("sleep", 700)];
        let polling = PollingReport {
            policy: "balanced".into(),
            nanoseconds: nanoseconds.map(|(state, time)| (state.to_owned(), time)).into(),
            window: Some(8_000),
            gaps: [512, 4_096, 131_072],
            sleep_cost: 4_000,
            wake: 9_500,
            gave_way: 2,
            gives_way: true,
            ..PollingReport::default()
        };
        let worker = |index, polling| WorkerReport { index, polling, ..WorkerReport::default() };
        let stats = Stats {
            pid: 7,
            release: "0.1.0".into(),
            uptime_seconds: 1.0,
            cpu_seconds: 0.0,
            workers: vec![worker(0, Some(polling)), worker(1, None)],
            moves: 0,
            ports: vec![],
            removed: Counts::default(),
        };
        let text = waiting(&stats);
        let lines: Vec<Vec<&str>> =
            text.trim().lines().map(|line| line.split_whitespace().collect()).collect();
        let want = "0 balanced 10.0 20.0 0.0 70.0 8.0 - 0 0.5, 4.1, 131 4.0 9.5 2 (now)";
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1].join(" "), want);
        assert_eq!(waiting(&Stats { workers: vec![], ..stats }), "");
    }
}
