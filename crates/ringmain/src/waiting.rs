//! How workers wait for frames, for `ringmain stats`.

use control::api::{PollingReport, Stats};

use crate::table::Table;
use crate::units;

/// A line for each worker; nothing before their first pass.
pub fn waiting(stats: &Stats) -> String {
    let mut table = Table::new(&[
        "WORKER",
        "POLLING",
        ">BUSY %",
        ">SPIN %",
        ">NAP %",
        ">SLEEP %",
        ">WINDOW",
        ">NAP",
        ">NAPS",
        ">GAPS (50, 90, 99 %)",
        ">SLEEP COST",
        ">WAKE LATENCY",
        ">SUSPENDED",
    ]);
    for worker in &stats.workers {
        let Some(polling) = &worker.polling else { continue };
        table.row(std::iter::once(worker.index.to_string()).chain(cells(polling)));
    }
    if table.is_empty() { String::new() } else { format!("\n{}", table.render()) }
}

fn cells(polling: &PollingReport) -> [String; 12] {
    let all = polling.state_ns.values().sum::<u64>().max(1) as f64;
    let share = |state: &str| {
        let time = polling.state_ns.get(state).copied().unwrap_or(0);
        format!("{:.1}", time as f64 / all * 100.0)
    };
    let gaps = polling.gaps_ns.map(|gap| gap.map_or_else(|| "over 1 s".to_owned(), units::time));
    [
        polling.policy.clone(),
        share("busy"),
        share("spin"),
        share("nap"),
        share("sleep"),
        polling.window_ns.map_or_else(|| "no end".to_owned(), units::time),
        if polling.nap_ns == 0 { String::new() } else { units::time(polling.nap_ns) },
        polling.naps.to_string(),
        gaps.join(", "),
        units::time(polling.sleep_cost_ns),
        units::time(polling.wake_latency_ns),
        format!("{}{}", polling.suspensions, if polling.suspended { " (now)" } else { "" }),
    ]
}

#[cfg(test)]
mod tests {
    use control::api::WorkerReport;

    use super::*;

    #[test]
    fn each_worker_has_a_line() {
        let state_ns = [("busy", 100), ("spin", 200), ("nap", 0), ("sleep", 700)];
        let polling = PollingReport {
            policy: "balanced".into(),
            state_ns: state_ns.map(|(state, time)| (state.to_owned(), time)).into(),
            window_ns: Some(8_000),
            gaps_ns: [Some(512), Some(4_096), None],
            sleep_cost_ns: 4_000,
            wake_latency_ns: 9_500,
            suspensions: 2,
            suspended: true,
            ..PollingReport::default()
        };
        let worker = |index, polling| WorkerReport { index, polling, ..WorkerReport::default() };
        let workers = vec![worker(0, Some(polling)), worker(1, None)];
        let stats = Stats { workers, ..Stats::default() };
        let text = waiting(&stats);
        let lines: Vec<Vec<&str>> =
            text.trim().lines().map(|line| line.split_whitespace().collect()).collect();
        let want = "0 balanced 10.0 20.0 0.0 70.0 8.0 us - 0 512 ns, 4.1 us, over 1 s 4.0 us 9.5 us 2 (now)";
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1].join(" "), want);
        assert_eq!(waiting(&Stats { workers: vec![], ..stats }), "");
    }
}
