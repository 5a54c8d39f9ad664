//! The table of a comparison.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Args, Run, Tally};
use crate::statistics::{Summary, digits};

/// The least share of the rate beside a fair neighbour that the innocents must have beside a
/// hostile one.
const LEFT: f64 = 0.9;

/// Longest time of the innocents' frames, as a multiple of the time beside a fair neighbour.
const SLOWER: f64 = 2.0;

/// Delays below this, in microseconds, are not judged: a shared machine is no more precise.
const NOISE: f64 = 100.0;

/// One case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub case: &'static str,
    /// The hostile neighbour's load.
    pub title: &'static str,
    /// The fair neighbour's load.
    pub fair: &'static str,
    /// Medians without a neighbour, beside the fair one and beside the hostile one.
    pub medians: [Medians; 3],
    /// Paced frames that arrived beside the hostile neighbour, divided by those beside the fair
    /// one.
    pub arrived: Option<f64>,
    /// The same ratio of frames a second at full speed.
    pub rate: Option<f64>,
    /// The same ratio of the 99th percentile of delays.
    pub p99: Option<f64>,
    /// Whether the innocents keep their rate and delays beside the hostile neighbour.
    pub isolated: Option<bool>,
    /// The number of hostile neighbours that could not continue, and the reason of the last one.
    pub stopped: Option<String>,
    /// Runs that failed.
    pub failures: Vec<String>,
    /// All runs.
    pub rounds: Vec<[Run; 3]>,
}

/// Medians of all runs beside the same neighbour.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Medians {
    /// The part of the paced frames that arrived.
    pub arrived: f64,
    /// Median delay of the paced frames, in microseconds.
    pub p50: f64,
    /// 99th percentile of the delay of the paced frames, in microseconds.
    pub p99: f64,
    /// Frames a second at full speed.
    pub rate: f64,
}

/// A whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Seconds since 1970 when it began.
    pub began: u64,
    /// Version of Ringmain.
    pub ringmain: &'static str,
    /// Rounds.
    pub runs: u32,
    /// Seconds measured in each run, at either pace.
    pub seconds: f64,
    /// Frames a second while paced.
    pub paced_rate: u64,
    /// One for each case.
    pub rows: Vec<Row>,
}

impl Comparison {
    /// Medians of all that was measured.
    pub fn new(began: u64, args: &Args, tallies: &[Tally]) -> Comparison {
        Comparison {
            began,
            ringmain: env!("CARGO_PKG_VERSION"),
            runs: args.runs,
            seconds: args.seconds,
            paced_rate: args.rate,
            rows: tallies.iter().map(Row::new).collect(),
        }
    }

    /// For people, in Markdown.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "| case | the hostile neighbour | paced: arrived, p50/p99 us beside the fair one | \
             beside the hostile one | full speed, 1000/s: fair | hostile | ratio | p99 ratio | |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for row in &self.rows {
            let _ = writeln!(text, "{}", row.line());
        }
        for row in &self.rows {
            for failure in &row.failures {
                let _ = writeln!(text, "{}: {failure}", row.case);
            }
        }
        text
    }
}

impl Row {
    fn new(tally: &Tally) -> Row {
        let rounds = &tally.rounds;
        let ratio = |of: fn(&Run) -> f64| {
            median(rounds.iter().map(|[_, fair, hostile]| of(hostile) / of(fair)))
        };
        let medians = [0, 1, 2].map(|beside| {
            let of = |figure: fn(&Run) -> f64| {
                median(rounds.iter().map(|round| figure(&round[beside]))).unwrap_or_default()
            };
            Medians {
                arrived: of(arrived),
                p50: of(|run| run.paced.p50),
                p99: of(|run| run.paced.p99),
                rate: of(|run| run.full.rate),
            }
        });
        let [arrived, rate, p99] =
            [ratio(arrived), ratio(|run| run.full.rate), ratio(|run| run.paced.p99)];
        let stopped: Vec<&String> =
            rounds.iter().filter_map(|[_, _, hostile]| hostile.neighbour_ended.as_ref()).collect();
        let fast = medians[2].p99 < NOISE;
        let isolated = arrived.zip(rate).zip(p99).map(|((arrived, rate), p99)| {
            arrived >= LEFT && rate >= LEFT && (p99 <= SLOWER || fast)
        });
        Row {
            case: tally.case.name,
            title: tally.case.title,
            fair: tally.case.fair,
            medians,
            arrived,
            rate,
            p99,
            isolated,
            stopped: stopped
                .last()
                .map(|why| format!("{} of {}: {why}", stopped.len(), rounds.len())),
            failures: tally.failures.clone(),
            rounds: rounds.clone(),
        }
    }

    fn line(&self) -> String {
        let paced = |medians: &Medians| {
            format!(
                "{:.1} %, {}/{}",
                medians.arrived * 100.0,
                digits(medians.p50),
                digits(medians.p99)
            )
        };
        let [_, fair, hostile] = &self.medians;
        let show = |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        let verdict = match self.isolated {
            Some(true) => "",
            Some(false) => "**missed**",
            None => "failed",
        };
        let stopped = self.stopped.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        format!(
            "| {} | {} instead of: {} | {} | {} | {} | {} | {} | {} | {verdict}{stopped} |",
            self.case,
            self.title,
            self.fair,
            paced(fair),
            paced(hostile),
            digits(fair.rate / 1e3),
            digits(hostile.rate / 1e3),
            show(self.rate),
            show(self.p99),
        )
    }
}

fn arrived(run: &Run) -> f64 {
    run.paced.arrived as f64 / run.paced.due.max(1) as f64
}

fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let figures: Vec<f64> = figures.filter(|figure| figure.is_finite()).collect();
    Summary::of(figures).map(|summary| summary.median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::isolation::Beside;
    use crate::isolation::case::CASES;
    use crate::isolation::innocents::Figures;

    fn run(beside: Beside, arrived: u64, p99: f64, rate: f64) -> Run {
        let paced = Figures { due: 1000, arrived, p99, p50: 1.0, rate: 1.0 };
        let full = Figures { rate, ..paced };
        Run { beside, paced, full, neighbour_ended: None }
    }

    fn verdict(hostile: Run) -> Option<bool> {
        let [nobody, fair] =
            [Beside::Nobody, Beside::Fair].map(|beside| run(beside, 1000, 200.0, 1e6));
        let tally =
            Tally { case: &CASES[0], rounds: vec![[nobody, fair, hostile]], failures: Vec::new() };
        Row::new(&tally).isolated
    }

    #[test]
    fn a_case_is_missed_for_losses_delays_and_throughput() {
        let hostile = |arrived, p99, rate| run(Beside::Hostile, arrived, p99, rate);
        assert_eq!(verdict(hostile(1000, 399.0, 0.91e6)), Some(true));
        assert_eq!(verdict(hostile(890, 200.0, 1e6)), Some(false));
        assert_eq!(verdict(hostile(1000, 401.0, 1e6)), Some(false));
        assert_eq!(verdict(hostile(1000, 200.0, 0.89e6)), Some(false));
    }

    #[test]
    fn nothing_is_said_without_a_round() {
        let tally = Tally { case: &CASES[0], rounds: Vec::new(), failures: vec!["x".into()] };
        assert_eq!(Row::new(&tally).isolated, None);
    }
}
