//! A bucket, or several, that change queues.

use std::time::{Duration, Instant};

use crate::handoff::RingAnswer;

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

/// The Rx ring of the queue that buckets leave.
#[derive(Clone, Copy, Debug)]
pub enum OldRing<F> {
    /// This worker fills it, and sees its progress.
    Own(Progress<u32, F>),
    /// Another worker fills it, and is asked.
    Foreign,
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
    stage: Stage,
    foreign: ForeignRing,
}

/// What is known of a ring that another worker fills.
#[derive(Clone, Copy, Debug, Default)]
struct ForeignRing {
    /// The batch that asks, or asked last, and when it was sent.
    asked: Option<(u64, Instant)>,
    /// Its answer, when that is there.
    answer: Option<RingAnswer>,
}

impl Rebalance {
    /// Buckets of queue `from`, which go to queue `to` if they do not stay.
    pub fn new(buckets: Moving, from: u8, to: u8) -> Self {
        Rebalance { buckets, from, to, stage: Stage::Chosen, foreign: ForeignRing::default() }
    }

    /// Whether none of their frames has come since they were chosen.
    pub fn is_unused(&self) -> bool {
        matches!(self.stage, Stage::Chosen)
    }

    /// Handles a frame of these buckets at `now`. `handoff` is the progress of frames in flight to
    /// the old queue.
    pub fn poll(
        &mut self,
        now: Instant,
        handoff: Progress<u64, impl FnOnce(u64) -> bool>,
        ring: OldRing<impl FnOnce(u32) -> bool>,
    ) -> Outcome {
        if let Stage::Chosen = self.stage {
            self.stage = Stage::Draining(now, handoff.position);
        }
        if let Stage::Draining(since, sent) = self.stage {
            let position = match &ring {
                OldRing::Own(ring) => Some(ring.position),
                OldRing::Foreign => self.foreign.answer.map(|answer| answer.position),
            };
            match position.filter(|_| (handoff.is_past)(sent)) {
                Some(position) => self.stage = Stage::Quiet(now, position),
                None => return waits(now, since),
            }
        }
        let Stage::Quiet(since, mark) = self.stage else { return Outcome::Waits };
        let is_past = || match ring {
            OldRing::Own(ring) => (ring.is_past)(mark),
            OldRing::Foreign => self.foreign.answer.is_some_and(|answer| answer.is_past),
        };
        if now.saturating_duration_since(since) >= MIN_QUIET && is_past() {
            return Outcome::Moves;
        }
        waits(now, since)
    }

    /// What to ask the worker of a foreign ring at `now`: about this position, if any. `None`:
    /// nothing yet. There is one question at a time.
    pub fn question(&self, now: Instant) -> Option<Option<u32>> {
        let asked = self.foreign.asked.map(|(_, asked)| now.saturating_duration_since(asked));
        match self.stage {
            Stage::Draining(..) if asked.is_none() => Some(None),
            Stage::Quiet(_, mark) if asked >= Some(MIN_QUIET) => {
                self.foreign.answer.map(|_| Some(mark))
            }
            _ => None,
        }
    }

    /// Batch `number` asks, since `now`.
    pub fn asked(&mut self, number: u64, now: Instant) {
        self.foreign = ForeignRing { asked: Some((number, now)), answer: None };
    }

    /// The answer to batch `number`. Answers about an earlier change of queues are ignored.
    pub fn answered(&mut self, number: u64, answer: RingAnswer) {
        if self.foreign.asked.is_some_and(|(asked, _)| asked == number) {
            self.foreign.answer = Some(answer);
        }
    }
}

/// Frames have waited since `since`: longer only within the limit. A guest may have been without a
/// CPU all the time.
fn waits(now: Instant, since: Instant) -> Outcome {
    let is_late = now.saturating_duration_since(since) >= MAX_QUIET;
    if is_late { Outcome::Stays } else { Outcome::Waits }
}
