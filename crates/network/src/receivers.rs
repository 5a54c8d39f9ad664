//! State that the receivers of a burst share.

use ring::GrantCopyBatch;

use crate::partition::Partition;
use crate::passed_grants::Origin;

/// State that the receivers of the present burst share.
pub struct Receivers {
    /// The frames by egress, where they go to several queues.
    pub partition: Partition,
    /// Slots that have something to publish.
    pub dirty: Vec<usize>,
    /// Copies that are made together before anything is published.
    pub grant_copies: GrantCopyBatch,
    /// The burst that is being delivered, as passed frames name it.
    pub origin: Origin,
    /// How many of its frames were passed.
    pub passed: usize,
    /// Slots that have passed frames outstanding.
    pub outstanding: Vec<usize>,
}

impl Receivers {
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
