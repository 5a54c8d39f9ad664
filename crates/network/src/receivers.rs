//! State that the receivers of one or more bursts share.

use ring::GrantCopyBatch;

use crate::handoff::HandoffBatch;
use crate::partition::Partition;
use crate::passed_grants::Origin;

/// A burst that is complete except for its copies.
#[derive(Clone, Copy, Debug)]
pub struct MergedBurst {
    /// The slot of its queue.
    pub slot: usize,
    /// Its number among the queue's [bursts in flight](crate::in_flight).
    pub number: u64,
}

/// State that the receivers of the present burst share, and those of the bursts that are [merged
/// with it](crate::merged_burst).
pub struct Receivers {
    /// The frames by egress, where they go to several queues.
    pub partition: Partition,
    /// Slots that have something to publish.
    pub dirty: Vec<usize>,
    /// Copies that are made together before anything is published.
    pub grant_copies: GrantCopyBatch,
    /// How many of these are of earlier bursts.
    pub earlier_copies: usize,
    /// Bursts that are complete except for their copies.
    pub merged: Vec<MergedBurst>,
    /// Batches of other workers that are, and the worker of each.
    pub merged_batches: Vec<(usize, Box<HandoffBatch>)>,
    /// The burst that is being delivered, as passed frames name it.
    pub origin: Origin,
    /// How many of its frames were passed.
    pub passed: usize,
    /// Slots that have passed frames outstanding.
    pub outstanding: Vec<usize>,
}

/// Added to the numbers of batches where slots and batches are named alike: there are fewer slots.
const BATCH: u32 = 1 << 31;

/// The sender of a frame.
pub enum Sender {
    /// The queue in a slot.
    Slot(usize),
    /// A queue of another worker: the index of its batch among those that are merged.
    Batch(usize),
}

impl Sender {
    /// The sender that [`GrantCopyBatch::set_ends`] was told.
    pub fn of(number: u32) -> Self {
        match number.checked_sub(BATCH) {
            None => Sender::Slot(number as usize),
            Some(index) => Sender::Batch(index as usize),
        }
    }
}

impl Receivers {
    /// Begins a burst or a batch.
    #[inline]
    pub fn begin(&mut self) {
        self.earlier_copies = self.grant_copies.waiting();
    }

    /// The present batch, as a sender of copies.
    #[inline]
    pub fn next_batch(&self) -> u32 {
        BATCH + self.merged_batches.len() as u32
    }

    /// Notes that `frames` more frames of the present burst were passed to the queue in slot `at`.
    #[inline]
    pub fn note_passed(&mut self, at: usize, frames: usize) {
        if frames > 0 {
            self.passed += frames;
            self.note_outstanding(at);
        }
    }

    /// Notes that passed frames of the queue in slot `at` are outstanding.
    #[cold]
    pub fn note_outstanding(&mut self, at: usize) {
        if !self.outstanding.contains(&at) {
            self.outstanding.push(at);
        }
    }
}
