//! The runs of one point, and the rows of the table for them.

use serde::Serialize;

use super::goal::Goal;
use super::point::{Point, Unit};
use super::series::{Series, ratio};
use super::state::State;
use crate::statistics::median_interval;

/// The upper end of a median's interval, as a multiple of the lower end, up to which a ratio counts
/// as known.
const STEADY: f64 = 1.1;

/// The name of a peer that is Ringmain of another commit.
const OTHER_COMMIT: &str = "another commit";

/// The back-end that carried the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// Ringmain.
    Ringmain,
    /// The peer of the point.
    Peer,
    /// The bare copy, or the bare disk.
    Ceiling,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Which back-end.
    pub who: Who,
    /// In which round.
    pub round: u32,
    /// The figures, in the order of the point's units.
    pub figures: Vec<f64>,
    /// The state of the machine before the run; and after it, unless `disturbed`.
    pub state: State,
    /// Others took CPU, or the machine changed meanwhile.
    pub disturbed: bool,
}

impl Run {
    /// Whether figures of both can be compared, at this point.
    fn is_beside(&self, other: &Run, point: &Point) -> bool {
        let alike = !point.follows_state() || self.state.is_like(&other.state);
        self.round == other.round && !self.disturbed && !other.disturbed && alike
    }
}

/// One figure of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Which back-end.
    pub who: Who,
    /// In which round.
    pub round: u32,
    /// The figure.
    pub figure: f64,
    /// The state of the machine.
    #[serde(flatten)]
    pub state: State,
    /// Whether the run was disturbed.
    pub disturbed: bool,
}

/// The figures of another back-end, and the comparison with it.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    /// The back-end.
    pub name: &'static str,
    /// The measured values.
    pub series: Series,
    /// How much better Ringmain is, round by round, of rounds that nothing disturbed and in which
    /// the machine was the same for both. Above 1 is better, whatever the unit.
    pub ratio: Series,
}

/// One figure of one point.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the point.
    pub point: &'static str,
    /// The kind of traffic, for people.
    pub title: &'static str,
    /// The generator's options.
    pub options: &'static str,
    /// The unit of the figure.
    pub unit: Unit,
    /// Ringmain's figures.
    pub ringmain: Series,
    /// The peer's, if it was measured.
    pub peer: Option<Beside>,
    /// The bare copy's or the bare disk's, if it was measured.
    pub ceiling: Option<Beside>,
    /// The value that the figure should reach.
    pub goal: Option<Goal>,
    /// Whether the goal was reached.
    pub reached: Option<bool>,
    /// Where the ratio to the peer lies with a probability of 95 %, if that is not known within
    /// 10 %.
    pub unsettled: Option<[f64; 2]>,
    /// All runs.
    pub samples: Vec<Sample>,
    /// Runs among these that were disturbed. They count only for those who have no others.
    pub disturbed: u32,
    /// Runs that were repeated because something disturbed them, and are not among these.
    pub repeated: u32,
    /// The failures of runs that are missing.
    pub failures: Vec<String>,
}

/// The runs of one point.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The point.
    pub point: Point,
    /// The name of the peer.
    pub peer: &'static str,
    /// Runs that succeeded.
    pub runs: Vec<Run>,
    /// Runs that were repeated.
    pub repeated: u32,
    /// The failure.
    pub failures: Vec<String>,
}

impl Tally {
    /// Nothing yet.
    pub fn new(point: Point) -> Self {
        Self { point, peer: point.peer(), runs: Vec::new(), repeated: 0, failures: Vec::new() }
    }

    /// Nothing yet, of a comparison with another commit.
    pub fn with_another_commit(point: Point) -> Self {
        Self { peer: OTHER_COMMIT, ..Tally::new(point) }
    }

    /// Whether more rounds of `backends` are needed, until `wanted` of them can be compared.
    /// Without a peer, rounds count that were not disturbed. A back-end that failed `wanted` times
    /// is not tried again.
    pub fn needs(&self, wanted: u32, backends: &[Who]) -> bool {
        let ours: Vec<_> = self.runs.iter().filter(|run| run.who == Who::Ringmain).collect();
        let has = |other: &Who| {
            let beside = |ours: &&&Run| {
                self.runs.iter().any(|run| run.who == *other && ours.is_beside(run, &self.point))
            };
            ours.iter().filter(beside).count() >= wanted as usize
        };
        // A round of one back-end alone counts when nothing disturbed it.
        !self.gave_up(wanted) && !backends.iter().all(has)
    }

    /// Whether a back-end failed so often that the point is not measured any more.
    pub fn gave_up(&self, wanted: u32) -> bool {
        self.failures.len() >= wanted as usize
    }

    /// Whether the same measurement would show the same ratio to the first other one of `backends`:
    /// the interval in which its median lies is narrow.
    pub fn is_steady(&self, backends: &[Who]) -> bool {
        let other = backends.iter().find(|who| **who != Who::Ringmain);
        let (Some(other), Some((unit, _))) = (other, self.point.figures.first()) else {
            return true;
        };
        let interval = median_interval(self.ratios(*unit, 0, *other).runs);
        interval.is_some_and(is_narrow)
    }

    /// One row for each unit.
    pub fn rows(&self) -> Vec<Row> {
        let figures = self.point.figures.iter().enumerate();
        figures.map(|(index, (unit, goal))| self.row(index, *unit, *goal)).collect()
    }

    fn row(&self, index: usize, unit: Unit, goal: Option<Goal>) -> Row {
        // Goals are beside the usual peer.
        let goal = goal.filter(|_| self.peer == self.point.peer());
        let samples: Vec<Sample> = self.runs.iter().filter_map(|run| run.sample(index)).collect();
        let ratios = |who| self.ratios(unit, index, who);
        let ringmain = series(&samples, Who::Ringmain);
        let beside = |who, name| {
            let series = series(&samples, who);
            (!series.runs.is_empty()).then(|| Beside { name, series, ratio: ratios(who) })
        };
        let (peer, ceiling) = (beside(Who::Peer, self.peer), beside(Who::Ceiling, "bare"));
        let ratio = |beside: &Option<Beside>| beside.as_ref().and_then(|it| it.ratio.median);
        let (to_peer, to_bare) = (ratio(&peer), ratio(&ceiling));
        let interval = |peer: &Beside| median_interval(peer.ratio.runs.clone());
        let unsettled = peer.as_ref().filter(|_| self.point.follows_state()).and_then(interval);
        Row {
            point: self.point.name,
            title: self.point.title,
            options: self.point.options(),
            unit,
            unsettled: unsettled.filter(|interval| !is_narrow(*interval)),
            reached: goal.and_then(|goal| goal.is_reached(ringmain.median, to_peer, to_bare)),
            ringmain,
            peer,
            ceiling,
            goal,
            disturbed: samples.iter().map(|sample| u32::from(sample.disturbed)).sum(),
            samples,
            repeated: self.repeated,
            failures: self.failures.clone(),
        }
    }

    /// The ratios of rounds in which both stood side by side.
    fn ratios(&self, unit: Unit, index: usize, other: Who) -> Series {
        let of = |who| self.runs.iter().filter(move |run| run.who == who);
        let pair = |ours: &Run| {
            let theirs = of(other).find(|theirs| ours.is_beside(theirs, &self.point))?;
            ratio(unit, *ours.figures.get(index)?, *theirs.figures.get(index)?)
        };
        Series::of(of(Who::Ringmain).filter_map(pair).collect())
    }
}

/// Whether a ratio within this interval counts as known.
fn is_narrow([low, high]: [f64; 2]) -> bool {
    high <= low * STEADY
}

impl Run {
    fn sample(&self, index: usize) -> Option<Sample> {
        let figure = *self.figures.get(index)?;
        let Run { who, round, state, disturbed, .. } = *self;
        figure.is_finite().then_some(Sample { who, round, figure, state, disturbed })
    }
}

/// Figures that nothing disturbed; or all, if there is no such.
fn series(samples: &[Sample], who: Who) -> Series {
    let of = |disturbed: bool| {
        let wanted =
            samples.iter().filter(|sample| sample.who == who && sample.disturbed == disturbed);
        wanted.map(|sample| sample.figure).collect::<Vec<_>>()
    };
    let quiet = of(false);
    Series::of(if quiet.is_empty() { of(true) } else { quiet })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::point::POINTS;

    fn run(who: Who, round: u32, figures: &[f64], round_trip_ns: f64) -> Run {
        let state = State { round_trip_ns, work_us: [20.0; 2] };
        Run { who, round, figures: figures.into(), state, disturbed: false }
    }

    #[test]
    fn ratios_are_of_rounds_that_both_have_in_the_same_state() {
        let point = POINTS.iter().find(|point| point.name == "latency").copied().unwrap();
        let mut tally = Tally::new(point);
        tally.runs = vec![
            run(Who::Ringmain, 0, &[1.0, 2.0], 100.0),
            run(Who::Ringmain, 1, &[3.0, 4.0], 100.0),
            run(Who::Peer, 1, &[6.0, 12.0], 110.0),
            run(Who::Ringmain, 2, &[3.0, 4.0], 100.0),
            run(Who::Peer, 2, &[60.0, 120.0], 420.0),
            run(Who::Ceiling, 2, &[1.5, 2.0], 100.0),
        ];
        let rows = tally.rows();
        assert_eq!(
            rows.iter().map(|r| r.ringmain.median).collect::<Vec<_>>(),
            [Some(3.0), Some(4.0)]
        );
        let ratios = |of: fn(&Row) -> &Option<Beside>| -> Vec<Vec<f64>> {
            rows.iter().map(|row| of(row).as_ref().unwrap().ratio.runs.clone()).collect()
        };
        assert_eq!(ratios(|row| &row.peer), [[2.0], [3.0]], "of round 1 only");
        assert_eq!(ratios(|row| &row.ceiling), [[0.5], [0.5]]);
        assert_eq!(rows[0].reached, Some(true));
    }

    #[test]
    fn rounds_are_repeated_until_enough_can_be_compared() {
        let all = [Who::Peer, Who::Ringmain, Who::Ceiling];
        let mut tally = Tally::new(POINTS[0]);
        assert!(tally.needs(1, &all));
        tally.runs = vec![run(Who::Ringmain, 0, &[1.0], 100.0), run(Who::Peer, 0, &[1.0], 100.0)];
        assert!(tally.needs(1, &all) && !tally.needs(1, &all[..2]) && tally.needs(2, &all[..2]));
        tally.runs.push(run(Who::Ceiling, 0, &[1.0], 300.0));
        assert!(tally.needs(1, &all), "the machine changed");
        tally
            .runs
            .extend([run(Who::Ringmain, 1, &[1.0], 300.0), run(Who::Ceiling, 1, &[1.0], 300.0)]);
        assert!(!tally.needs(1, &all));
        tally.runs.iter_mut().for_each(|run| run.disturbed = true);
        assert!(tally.needs(1, &all) && tally.needs(1, &[Who::Ringmain]));
        tally.failures.push("it does not start".into());
        assert!(!tally.needs(1, &all));
    }

    #[test]
    fn a_ratio_is_known_when_rounds_agree_or_are_many() {
        let all = [Who::Peer, Who::Ringmain];
        let mut tally = Tally::new(POINTS[0]);
        assert!(!tally.is_steady(&all), "there is none");
        assert!(tally.is_steady(&[Who::Ringmain]), "and none is wanted");
        let add = |tally: &mut Tally, rounds: std::ops::Range<u32>| {
            for round in rounds {
                // One round in five shows another ratio.
                let figure = if round % 5 == 0 { 1.5 } else { 1.0 };
                tally.runs.push(run(Who::Ringmain, round, &[figure], 100.0));
                tally.runs.push(run(Who::Peer, round, &[1.0], 100.0));
            }
        };
        add(&mut tally, 1..5);
        assert!(tally.is_steady(&all));
        assert_eq!(tally.rows()[0].unsettled, None);
        add(&mut tally, 5..6);
        assert!(!tally.is_steady(&all));
        assert_eq!(tally.rows()[0].unsettled, Some([1.0, 1.5]));
        add(&mut tally, 6..20);
        assert!(tally.is_steady(&all));
        assert_eq!(tally.rows()[0].unsettled, None);
    }

    #[test]
    fn disturbed_runs_count_only_without_others() {
        let mut tally = Tally::new(POINTS[0]);
        tally.runs =
            vec![run(Who::Ringmain, 0, &[1.0], 100.0), run(Who::Ringmain, 1, &[3.0], 100.0)];
        tally.runs[0].disturbed = true;
        assert_eq!(tally.rows()[0].ringmain.median, Some(3.0));
        tally.runs[1].disturbed = true;
        assert_eq!(tally.rows()[0].ringmain.median, Some(2.0));
        assert_eq!(tally.rows()[0].disturbed, 2);
    }

    #[test]
    fn the_distance_of_cpus_does_not_change_sleeping_workers() {
        let point = POINTS.iter().find(|point| point.name == "idle").copied().unwrap();
        let mut tally = Tally::new(point);
        tally.runs = vec![run(Who::Ringmain, 0, &[1.0], 100.0), run(Who::Peer, 0, &[100.0], 400.0)];
        assert!(!tally.needs(1, &[Who::Ringmain, Who::Peer]));
        assert_eq!(tally.rows()[0].peer.as_ref().unwrap().ratio.median, Some(100.0));
    }

    #[test]
    fn peers_without_runs_are_not_shown() {
        let mut tally = Tally::new(POINTS[0]);
        tally.runs =
            vec![run(Who::Ringmain, 0, &[1.0], 100.0), run(Who::Peer, 0, &[f64::NAN], 100.0)];
        let rows = tally.rows();
        assert!(rows[0].peer.is_none() && rows[0].ceiling.is_none() && rows[0].reached.is_none());
    }
}
