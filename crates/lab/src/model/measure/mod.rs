//! The cost of single operations here: measured in this process where that is possible, and for
//! frames with a daemon.

mod carry;
mod generator;
pub mod line;
mod profiled;
mod read;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::costs::Era;
use super::fit::FITTED;
use super::inputs::{Copies, Generation, Handovers, Inputs, Machine, Mapped, Maps, Reads, Times};
use crate::bench::BenchError;
use crate::bench::embedded::grants::{Plan, Task, work};
use crate::bench::embedded::load::Size;
use crate::bench::embedded::site::failed;
pub use crate::fixture::Placement;
use crate::interrupt;
use crate::progress::Progress;
use crate::statistics::Summary;
pub use carry::Carrying;
pub use generator::Generating;
use hypervisor::embedded::Design;
use load::cpu::cpu_name;
pub use read::{GUESTS, Reading};

/// How long each measurement is.
const TIME: Duration = Duration::from_millis(120);
/// Undisturbed measurements of each cost in a round.
const RUNS: usize = 2;
/// How often it is tried at most.
const MOST_RUNS: usize = 8;
/// How much longer than ever before a fixed piece of work may take for a measurement to count as
/// undisturbed.
const STEADY: f64 = 1.1;
/// Length of a long copy.
const LONG: u16 = 4000;

/// Measures, and checks the speed of the machine meanwhile.
pub struct Meter {
    /// The shortest time that a fixed piece of work ever took, in ms.
    best: f64,
    /// The longest time that it took beside a measurement that counted.
    worst: f64,
    /// Measurements that counted although the machine was slower than at other times.
    pub disturbed: usize,
}

/// Several measurements of the same cost.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Measured {
    /// The middle value.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Measured {
    /// The summary of at least one value.
    pub fn of(all: Vec<f64>) -> Measured {
        let [median, least, most] =
            Summary::of(all).map_or([f64::NAN; 3], |it| [it.median, it.least, it.most]);
        Measured { median, least, most }
    }
}

/// The design of that name.
fn design(era: Era) -> Design {
    match era {
        Era::Old => Design::OLD,
        Era::New => Design::default(),
    }
}

impl Meter {
    /// A meter that has measured nothing yet.
    #[expect(clippy::new_without_default, reason = "it measures")]
    pub fn new() -> Self {
        Meter { best: line::pace() / 1e6, worst: 0.0, disturbed: 0 }
    }

    /// The shortest and the longest time of a fixed piece of work beside measurements that counted,
    /// in ms.
    pub fn pace(&self) -> [f64; 2] {
        [self.best, self.worst.max(self.best)]
    }

    /// Makes a measurement several times. Those during which the machine is slower than it can be,
    /// since others work or it is throttled, are made again; if that is so for too long, the
    /// least disturbed ones count.
    ///
    /// # Errors
    /// When one fails, or the user interrupts.
    pub fn repeat<T>(
        &mut self,
        mut once: impl FnMut() -> Result<T, BenchError>,
    ) -> Result<Vec<T>, BenchError> {
        let mut all = Vec::new();
        for _ in 0..MOST_RUNS {
            if interrupt::asked() {
                return Err(BenchError::Interrupted);
            }
            let before = line::pace();
            let seen = once()?;
            let after = line::pace();
            self.best = self.best.min(before.min(after) / 1e6);
            all.push((before.max(after) / 1e6, seen));
            if all.iter().filter(|(pace, _)| *pace <= self.best * STEADY).count() >= RUNS {
                break;
            }
        }
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
        all.truncate(RUNS);
        self.worst = all.iter().map(|(pace, _)| *pace).fold(self.worst, f64::max);
        self.disturbed += all.iter().filter(|(pace, _)| *pace > self.best * STEADY).count();
        Ok(all.into_iter().map(|(_, seen)| seen).collect())
    }

    /// The least time, which other programs cannot shorten. Two threads that lose a CPU to others
    /// wait long for each other.
    fn least(&mut self, mut once: impl FnMut() -> std::io::Result<f64>) -> Result<f64, BenchError> {
        let all = self.repeat(|| once().map_err(failed("measure")))?;
        Ok(Measured::of(all).least)
    }

    fn median(
        &mut self,
        mut once: impl FnMut() -> std::io::Result<f64>,
    ) -> Result<f64, BenchError> {
        let all = self.repeat(|| once().map_err(failed("measure")))?;
        Ok(Measured::of(all).median)
    }

    /// Threads that use grants, and do nothing else: copies or pages in a second, of all of them.
    ///
    /// # Errors
    /// See [`Meter::repeat`].
    pub fn grants(
        &mut self,
        era: Era,
        threads: usize,
        task: Task,
        apart: bool,
    ) -> Result<Vec<f64>, BenchError> {
        let plan = Plan { design: design(era), threads, task, apart };
        let rate = || work(&plan, TIME).map(|(count, seconds)| count as f64 / seconds);
        self.repeat(|| rate().map_err(failed("use grants")))
    }

    /// The same as [`Meter::grants`], for copies from page to page: nanoseconds for each, of each
    /// thread.
    fn copies(
        &mut self,
        era: Era,
        threads: usize,
        (pieces, len): (u16, u16),
        apart: bool,
    ) -> Result<f64, BenchError> {
        let rates = self.grants(era, threads, Task::Copy { pieces, len, offset: 0 }, apart)?;
        Ok(threads as f64 * 1e9 / Measured::of(rates).median)
    }

    fn maps(&mut self, era: Era) -> Result<Maps, BenchError> {
        let plan = Plan { design: design(era), threads: 1, task: Task::Map, apart: false };
        let alone = 1e9 / Measured::of(self.grants(era, 1, Task::Map, false)?).median;
        let undisturbed = self.median(|| line::beside(None, TIME).map(|seen| seen.passes))?;
        let seen = self.repeat(|| line::beside(Some(&plan), TIME).map_err(failed("measure")))?;
        let beside = Measured::of(seen.iter().map(|seen| 1e9 / seen.pages).collect()).median;
        let lost =
            |seen: &line::Beside| (1.0 - seen.passes / undisturbed).max(0.0) * 1e9 / seen.pages;
        let stolen = Measured::of(seen.iter().map(lost).collect()).median;
        Ok(Maps { alone, beside: beside.max(alone), stolen })
    }

    fn reads(&mut self, era: Era) -> Result<Reads, BenchError> {
        let all = self.repeat(|| Reading { era, workers: 1 }.cost())?;
        let of = |cost: fn(&Reads) -> f64| Measured::of(all.iter().map(cost).collect()).median;
        Ok(Reads {
            worker: of(|it| it.worker),
            guest: of(|it| it.guest),
            together: of(|it| it.together),
        })
    }

    fn generation(&mut self, era: Era) -> Result<Generation, BenchError> {
        let claimed = self.copies(era, 1, (1, 1), false)?;
        let long = self.copies(era, 1, (1, LONG), false)?;
        let copies = Copies {
            claimed,
            kept: self.copies(era, 1, (4, 1), false)?,
            byte: ((long - claimed) / f64::from(LONG - 1)).max(0.0),
            apart: self.copies(era, 2, (1, FITTED as u16), true)?,
            together: self.copies(era, 2, (1, FITTED as u16), false)?,
        };
        let maps = self.maps(era)?;
        let mut carried = |size| {
            let all = self.repeat(|| Carrying { era, size, workers: 1 }.profile())?;
            Ok::<_, BenchError>(carry::median(&all))
        };
        let (small, large) = (carried(Size::Small)?, carried(Size::Large)?);
        let reads = self.reads(era)?;
        Ok(Generation { copies, maps, small, large, reads, handovers: Handovers::default() })
    }

    /// Frames between vhost-user guests.
    fn mapped(&mut self) -> Result<Mapped, BenchError> {
        let mut carried = |size| {
            let all = self.repeat(|| Generating { size, workers: 1 }.profile())?;
            Ok::<_, BenchError>(carry::median(&all))
        };
        Ok(Mapped { small: carried(Size::Small)?, large: carried(Size::Large)? })
    }

    fn times(&mut self) -> Result<Times, BenchError> {
        Ok(Times {
            touch: self.least(|| Ok(line::touch()))?,
            line: self.least(|| line::transfer(TIME))?,
            wake: self.median(|| line::wake(TIME))?,
            notify: self.median(|| line::notify(TIME))?,
            address_space: self.median(|| line::address_space(TIME))?,
        })
    }

    /// All costs. How long locks take from CPU to CPU is to be fitted.
    ///
    /// # Errors
    /// See [`Meter::repeat`].
    pub fn inputs(&mut self, progress: &Progress) -> Result<Inputs, BenchError> {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let stage = progress.stage("measuring costs");
        stage.at("cache lines and wake-ups");
        let times = self.times()?;
        stage.at("the oldest design");
        let old = self.generation(Era::Old)?;
        stage.at("the newest design");
        let new = self.generation(Era::New)?;
        stage.at("vhost-user");
        let vhost_user = self.mapped()?;
        stage.done("");
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let machine = Machine { cpu: cpu_name(), cpus, pace: self.pace(), times };
        Ok(Inputs::new(began, machine, [old, new], vhost_user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_several() {
        assert_eq!(
            Measured::of(vec![3.0, 1.0, 2.0]),
            Measured { median: 2.0, least: 1.0, most: 3.0 }
        );
        assert!(Measured::of(Vec::new()).median.is_nan());
    }
}
