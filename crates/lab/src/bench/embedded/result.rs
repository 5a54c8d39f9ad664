//! Figures with an option on and off, side by side, and the conclusions from them.

use std::fmt::Write as _;

use serde::Serialize;

use super::case::Case;
use super::figure::Figure;
use super::load::Load;
use crate::bench::series::Series;
use load::cpu::cpu_name;

/// The ratio from which an option counts as a gain or a loss. Smaller differences are within the
/// scatter of runs.
const MATTERS: f64 = 1.05;

/// The figures of the runs of one load.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The option.
    pub case: &'static Case,
    /// The load.
    pub load: Load,
    /// Each round's figures: off, on.
    pub rounds: Vec<[Figure; 2]>,
    /// The failures of rounds that are missing.
    pub failures: Vec<String>,
}

impl Tally {
    /// Nothing yet.
    pub fn new(case: &'static Case, load: Load) -> Self {
        Tally { case, load, rounds: Vec::new(), failures: Vec::new() }
    }

    fn row(&self) -> Row {
        let rate = |figure: &Figure| Some(figure.rate);
        let more = |off, on| on / off;
        let less = |off, on| off / on;
        Row {
            switch: self.case.name,
            load: self.load.to_string(),
            unit: self.load.unit().0,
            off: self.case.off.label,
            on: self.case.on.label,
            rate: self.pair(rate, more),
            backend_ns: self.pair(|figure| figure.backend_ns, less),
            guest_ns: self.pair(|figure| figure.guest_ns, less),
            frames_per_interrupt: self.pair(|figure| figure.frames_per_interrupt, more),
            failures: self.failures.clone(),
        }
    }

    fn pair(&self, of: impl Fn(&Figure) -> Option<f64>, better: impl Fn(f64, f64) -> f64) -> Pair {
        let side = |side: usize| {
            Series::of(self.rounds.iter().filter_map(|round| of(&round[side])).collect())
        };
        let ratio = |[off, on]: &[Figure; 2]| {
            Some(better(of(off)?, of(on)?)).filter(|ratio| ratio.is_finite())
        };
        Pair {
            off: side(0),
            on: side(1),
            ratio: Series::of(self.rounds.iter().filter_map(ratio).collect()),
        }
    }
}

/// One figure, off and on.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// Without the option.
    pub off: Series,
    /// With it.
    pub on: Series,
    /// How much better it is with it, round by round: above 1 is better.
    pub ratio: Series,
}

impl Pair {
    /// 1: better in the median and in three rounds of four, -1: worse, 0: neither.
    fn verdict(&self) -> i8 {
        let (Some(median), count) = (self.ratio.median, self.ratio.runs.len()) else { return 0 };
        let agree = |is: fn(f64) -> bool| {
            4 * self.ratio.runs.iter().filter(|ratio| is(**ratio)).count() >= 3 * count
        };
        if median >= MATTERS && agree(|ratio| ratio > 1.0) {
            1
        } else if median <= 1.0 / MATTERS && agree(|ratio| ratio < 1.0) {
            -1
        } else {
            0
        }
    }
}

/// One option with one load.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The option.
    pub switch: &'static str,
    /// The load.
    pub load: String,
    /// The unit of the rate.
    pub unit: &'static str,
    /// The option that the case is compared with.
    pub off: &'static str,
    /// How the option is set.
    pub on: &'static str,
    /// How much goes through.
    pub rate: Pair,
    /// CPU time of the backend for each frame, page or copy.
    pub backend_ns: Pair,
    /// CPU time of the receiving guest for each frame.
    pub guest_ns: Pair,
    /// Frames for each interrupt.
    pub frames_per_interrupt: Pair,
    /// The failures of rounds that are missing.
    pub failures: Vec<String>,
}

/// The effect of an option, over all its loads.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The option.
    pub switch: &'static str,
    /// The loads in which it gains, and how much.
    pub gains: Vec<String>,
    /// The loads in which it loses.
    pub loses: Vec<String>,
    /// The benefit of the option, and its cost.
    pub why: &'static str,
}

impl Verdict {
    fn of(case: &Case, rows: &[Row]) -> Self {
        let mut verdict =
            Verdict { switch: case.name, gains: vec![], loses: vec![], why: case.why };
        for row in rows.iter().filter(|row| row.switch == case.name) {
            for (name, pair) in
                [("rate", &row.rate), ("backend", &row.backend_ns), ("guest", &row.guest_ns)]
            {
                let said = format!("{} in {} ({name})", times(&pair.ratio), row.load);
                match pair.verdict() {
                    1 => verdict.gains.push(said),
                    -1 => verdict.loses.push(said),
                    _ => {}
                }
            }
        }
        verdict
    }

    fn show(&self) -> String {
        let list = |all: &[String], none: &str| {
            if all.is_empty() { none.to_owned() } else { all.join(", ") }
        };
        let gains = list(&self.gains, "nowhere: it never gains here");
        format!(
            "{}\n  gains: {gains}\n  loses: {}\n  why:   {}\n",
            self.switch,
            list(&self.loses, "nowhere"),
            self.why
        )
    }
}

/// A whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Seconds since 1970 when it began.
    pub began: u64,
    /// CPU of the machine, and how many of them.
    pub cpu: String,
    /// How many.
    pub cpus: usize,
    /// Version of Ringmain.
    pub ringmain: &'static str,
    /// Runs of each load, on and off.
    pub runs: u32,
    /// Seconds of each.
    pub seconds: f64,
    /// One for each option and load.
    pub rows: Vec<Row>,
    /// One for each option.
    pub verdicts: Vec<Verdict>,
}

impl Comparison {
    /// The result of these measurements.
    pub fn new(began: u64, runs: u32, seconds: f64, tallies: &[Tally]) -> Self {
        let rows: Vec<Row> = tallies.iter().map(Tally::row).collect();
        let mut cases: Vec<&Case> = tallies.iter().map(|tally| tally.case).collect();
        cases.dedup_by_key(|case| case.name);
        let verdicts = cases.into_iter().map(|case| Verdict::of(case, &rows)).collect();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Comparison {
            began,
            cpu: cpu_name(),
            cpus,
            ringmain: env!("CARGO_PKG_VERSION"),
            runs,
            seconds,
            rows,
            verdicts,
        }
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{:<21} {:<10} {:<12} {:<9} {:>22} {:>7} {:>15} {:>15} {:>13}",
            "switch",
            "unit",
            "load",
            "off -> on",
            "rate",
            "ratio",
            "backend ns",
            "guest ns",
            "frames/int"
        );
        for row in &self.rows {
            let arrow = format!("{} -> {}", row.off, row.on);
            let _ = writeln!(
                text,
                "{:<21} {:<10} {:<12} {arrow}\n{:>76} {:>7} {:>15} {:>15} {:>13}",
                row.switch,
                row.unit,
                row.load,
                both(&row.rate, 3),
                times(&row.rate.ratio),
                both(&row.backend_ns, 0),
                both(&row.guest_ns, 0),
                both(&row.frames_per_interrupt, 1),
            );
            for failure in &row.failures {
                let _ = writeln!(text, "  failed: {failure}");
            }
        }
        for verdict in &self.verdicts {
            let _ = write!(text, "\n{}", verdict.show());
        }
        text
    }
}

/// The medians of both.
fn both(pair: &Pair, digits: usize) -> String {
    match (pair.off.median, pair.on.median) {
        (Some(off), Some(on)) => format!("{off:.digits$} -> {on:.digits$}"),
        _ => "-".into(),
    }
}

fn times(ratio: &Series) -> String {
    ratio.median.map_or("-".into(), |ratio| format!("{ratio:.2}x"))
}

#[cfg(test)]
mod tests {
    use super::super::case::CASES;
    use super::*;

    fn tally(load: Load, rounds: &[[(f64, f64); 2]]) -> Tally {
        let figure =
            |(rate, backend)| Figure { rate, backend_ns: Some(backend), ..Figure::default() };
        Tally {
            rounds: rounds.iter().map(|round| round.map(figure)).collect(),
            ..Tally::new(&CASES[0], load)
        }
    }

    #[test]
    fn remarks_follow_from_the_figures() {
        let faster =
            tally(Load::Echo, &[[(1.0, 100.0), (2.0, 100.0)], [(1.0, 100.0), (1.5, 101.0)]]);
        let dearer = tally(Load::Paced, &[[(1.0, 100.0), (1.01, 200.0)]]);
        let comparison = Comparison::new(0, 2, 0.5, &[faster, dearer]);
        let [verdict] = &comparison.verdicts[..] else { panic!("{:?}", comparison.verdicts) };
        assert_eq!(verdict.gains, ["1.75x in echo (rate)"]);
        assert_eq!(verdict.loses, ["0.50x in paced (backend)"]);
        let table = comparison.table();
        assert!(table.contains("1.000 -> 1.750") && table.contains(CASES[0].why), "{table}");
    }

    #[test]
    fn an_option_that_never_gains_is_reported() {
        // In the median it does, but not in three rounds of four.
        let moods = tally(
            Load::Echo,
            &[[(1.0, 1.0), (1.2, 1.0)], [(1.0, 1.0), (1.2, 1.0)], [(1.0, 1.0), (0.5, 1.0)]],
        );
        let table = Comparison::new(0, 3, 0.5, &[moods]).table();
        assert!(
            table.contains("it never gains here") && table.contains("loses: nowhere"),
            "{table}"
        );
    }
}
