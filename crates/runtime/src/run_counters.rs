//! How a worker has spent its rounds, in numbers.

use crate::counter::Counter;
use crate::histogram::Histogram;
use crate::poll::show::PollCounters;

/// How a worker has spent its rounds.
#[derive(Default, Debug)]
pub struct RunCounters {
    /// Rounds that moved something.
    pub busy_passes: Counter,
    /// Rounds that moved nothing.
    pub idle_passes: Counter,
    /// Times that the worker slept in the kernel.
    pub sleeps: Counter,
    /// Lengths of rounds that moved something.
    pub busy: Histogram,
    /// How the worker waited.
    pub polling: PollCounters,
}
