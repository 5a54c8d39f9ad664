//! A bucket, or several, that change queues.

use std::time::{Duration, Instant};

/// The least time for which a flow's frames wait before the flow changes queues: a guest may still
/// be processing frames that it has taken.
pub const MIN_QUIET: Duration = Duration::from_millis(1);

/// The longest time for which frames wait until earlier ones have been delivered, and again until
/// these have been taken.
pub const MAX_QUIET: Duration = Duration::from_millis(10);

/// Buckets that change queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moving {
    /// This one.
    One(usize),
    /// All that are marked as [`REBALANCING`](super::REBALANCING).
    All,
}

/// The progress of buckets that change queues.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// No frame of them has come yet.
    Chosen,
    /// Their senders have waited since this time. All batches sent up to this number must arrive.
    Draining(Instant, u64),
    /// All batches have arrived. The buckets are quiet since this time, at which the old queue's
    /// ring stood at this position.
    Quiet(Instant, u32),
}

/// The progress of a hand-off or of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Progress<P, F> {
    /// The position up to which frames were added.
    pub position: P,
    /// Whether everything before a position is through.
    pub is_past: F,
}

/// What becomes of frames whose buckets change queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// They wait.
    Waits,
    /// They go to the new queue.
    Moves,
    /// They go to the old queue, because earlier ones may still be on their way.
    Stays,
}

/// A bucket, or several, that change queues.
#[derive(Clone, Copy, Debug)]
pub struct Rebalance {
    pub buckets: Moving,
    pub from: u8,
    pub to: u8,
    pub stage: Stage,
}

impl Rebalance {
    /// Handles a frame of these buckets at `now`. `handoff` is the progress of frames in flight to
    /// the old queue, and `ring` that of the old queue's ring; `None`: it is unknown.
    pub fn poll(
        &mut self,
        now: Instant,
        handoff: Progress<u64, impl FnOnce(u64) -> bool>,
        ring: Option<Progress<u32, impl FnOnce(u32) -> bool>>,
    ) -> Outcome {
        if let Stage::Chosen = self.stage {
            self.stage = Stage::Draining(now, handoff.position);
        }
        if let Stage::Draining(since, sent) = self.stage {
            if (handoff.is_past)(sent) {
                let position = ring.as_ref().map_or(0, |ring| ring.position);
                self.stage = Stage::Quiet(now, position);
            } else if now.saturating_duration_since(since) >= MAX_QUIET {
                return Outcome::Stays;
            }
        }
        let Stage::Quiet(since, mark) = self.stage else { return Outcome::Waits };
        let waited = now.saturating_duration_since(since);
        let Some(ring) = ring else {
            return if waited >= MAX_QUIET { Outcome::Moves } else { Outcome::Waits };
        };
        if waited >= MIN_QUIET && (ring.is_past)(mark) {
            Outcome::Moves
        } else if waited >= MAX_QUIET {
            // The guest may have been without a CPU all the time.
            Outcome::Stays
        } else {
            Outcome::Waits
        }
    }
}
