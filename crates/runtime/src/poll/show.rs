//! How a worker has polled: written by its thread, readable by all.

use std::time::Duration;

use parking_lot::Mutex;

use super::{Decision, State};
use crate::counter::Counter;

/// Counters of one worker.
#[derive(Default, Debug)]
pub struct PollCounters {
    /// Time in each state, in ns.
    times: [Counter; State::ALL.len()],
    /// Short sleeps with queues that were not armed. They count as sleeps, too.
    pub naps: Counter,
    /// The decision that was shown last. A worker never waits for the lock: if it is taken, the old
    /// value stays.
    decision: Mutex<Option<Decision>>,
}

impl PollCounters {
    /// Adds time that has passed in a state.
    #[inline]
    pub fn passed(&self, state: State, time: Duration) {
        self.times[state as usize]
            .add(time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos()));
    }

    /// Shows the worker's present decision.
    pub fn publish(&self, decision: &Decision) {
        if let Some(mut shown) = self.decision.try_lock() {
            *shown = Some(*decision);
        }
    }

    /// Time spent in a state so far, up to the last change of it, in ns.
    pub fn time(&self, state: State) -> u64 {
        self.times[state as usize].get()
    }

    /// The worker's present decision. `None`: it has just begun.
    pub fn decision(&self) -> Option<Decision> {
        *self.decision.lock()
    }
}
