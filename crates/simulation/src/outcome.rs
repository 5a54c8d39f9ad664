//! The outcome of a simulation.

use crate::actor::Actor;
use crate::event::{Time, seconds};
use crate::lock::Lock;

/// The result of a simulation, without the first tenth of its frames.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// How long that was.
    pub seconds: f64,
    /// Frames that arrived.
    pub frames: u64,
    /// How long a frame was under way, in the mean, in seconds.
    pub delay: f64,
    /// The part of the time for which each worker worked, or waited for a lock.
    pub busy: Vec<f64>,
    /// The part of the time for which the busiest lock was held.
    pub held: f64,
    /// The part of all lock requests that had to wait.
    pub contended: f64,
    /// Frames that arrived, by link.
    pub links: Vec<u64>,
    /// Frames that went from worker to worker.
    pub crossed: u64,
    /// Frames that were made, from the beginning on.
    pub made: u64,
    /// Frames that arrived, from the beginning on.
    pub arrived: u64,
    /// Frames that were under way at the end.
    pub under_way: u64,
    /// Whether all frames arrived; otherwise the simulation was cut off at its bound of events.
    pub whole: bool,
}

impl Outcome {
    /// Frames that arrived in a second; 0 if the simulation was cut off.
    pub fn rate(&self) -> f64 {
        self.in_a_second(self.frames)
    }

    /// The rate of the slowest link.
    pub fn least(&self) -> f64 {
        self.in_a_second(self.links.iter().min().copied().unwrap_or(0))
    }

    fn in_a_second(&self, frames: u64) -> f64 {
        if self.whole && self.seconds > 0.0 { frames as f64 / self.seconds } else { 0.0 }
    }
}

/// The counters at a moment.
#[derive(Clone, Debug)]
pub struct Mark {
    at: Time,
    arrived: u64,
    workers: Vec<Time>,
    locks: Vec<(Time, u64, u64)>,
}

impl Mark {
    /// A sample at time `at`, when `arrived` frames have arrived.
    pub fn new(at: Time, arrived: u64, workers: &[Actor], locks: &[Lock]) -> Mark {
        let busy =
            |actor: &Actor| actor.busy + if actor.burst.is_empty() { 0 } else { at - actor.began };
        let locks = locks.iter().map(|lock| (lock.busy, lock.holds, lock.contended));
        Mark { at, arrived, workers: workers.iter().map(busy).collect(), locks: locks.collect() }
    }

    /// The difference to now, as an [`Outcome`].
    pub fn since(&self, then: &Mark) -> Outcome {
        let time = self.at - then.at;
        let part = |of: Time| if time == 0 { 0.0 } else { of as f64 / time as f64 };
        let locks = self.locks.iter().zip(&then.locks);
        let locks: Vec<_> =
            locks.map(|(now, then)| (now.0 - then.0, now.1 - then.1, now.2 - then.2)).collect();
        let holds: u64 = locks.iter().map(|lock| lock.1).sum();
        let contended: u64 = locks.iter().map(|lock| lock.2).sum();
        Outcome {
            seconds: seconds(time),
            frames: self.arrived - then.arrived,
            busy: self
                .workers
                .iter()
                .zip(&then.workers)
                .map(|(now, then)| part(now - then))
                .collect(),
            held: locks.iter().map(|lock| part(lock.0)).fold(0.0, f64::max),
            contended: contended as f64 / holds.max(1) as f64,
            ..Outcome::default()
        }
    }
}
