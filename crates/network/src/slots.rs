//! The queues of one worker.

use std::collections::HashMap;

use runtime::QueueId;
use slab::Slab;

use crate::slot::Slot;

/// Slots by number (on the fast path) and by queue.
#[derive(Default)]
pub struct Slots {
    slots: Slab<Slot>,
    by_queue: HashMap<QueueId, usize>,
}

impl Slots {
    /// The slot `at`, if it is taken.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&Slot> {
        self.slots.get(at)
    }

    /// The slot `at`, if it is taken.
    #[inline]
    pub fn get_mut(&mut self, at: usize) -> Option<&mut Slot> {
        self.slots.get_mut(at)
    }

    /// The slot of `queue`.
    pub fn find(&self, queue: QueueId) -> Option<usize> {
        self.by_queue.get(&queue).copied()
    }

    /// Queues and their slots.
    pub fn by_queue(&self) -> &HashMap<QueueId, usize> {
        &self.by_queue
    }

    /// Puts `slot` into a free place.
    pub fn insert(&mut self, slot: Slot) -> usize {
        let id = slot.on.id;
        let at = self.slots.insert(slot);
        self.by_queue.insert(id, at);
        at
    }

    /// Takes the slot `at` out.
    pub fn remove(&mut self, at: usize) -> Option<Slot> {
        let slot = self.slots.try_remove(at)?;
        self.by_queue.remove(&slot.on.id);
        Some(slot)
    }

    /// All slots that are taken.
    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().map(|(_, slot)| slot)
    }

    /// All slots that are taken, and their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Slot)> {
        self.slots.iter_mut()
    }
}
