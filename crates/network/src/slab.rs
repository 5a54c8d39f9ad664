//! The slots of a worker.

use std::collections::HashMap;

use crate::slot::Slot;
use crate::topology::QueueId;

/// Slots by number (on the fast path) and by queue.
#[derive(Default)]
pub struct Slab {
    slots: Vec<Option<Slot>>,
    by_queue: HashMap<QueueId, usize>,
}

impl Slab {
    /// The slot `at`, if it is taken.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&Slot> {
        self.slots.get(at)?.as_ref()
    }

    /// The slot `at`, if it is taken.
    #[inline]
    pub fn get_mut(&mut self, at: usize) -> Option<&mut Slot> {
        self.slots.get_mut(at)?.as_mut()
    }

    /// The slot of `queue`.
    pub fn find(&self, queue: QueueId) -> Option<usize> {
        self.by_queue.get(&queue).copied()
    }

    /// Queues and their slots.
    pub fn by_queue(&self) -> &HashMap<QueueId, usize> {
        &self.by_queue
    }

    /// Puts `slot` into the first free place.
    pub fn insert(&mut self, slot: Slot) -> usize {
        let at = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if at == self.slots.len() {
            self.slots.push(None);
        }
        self.by_queue.insert(slot.on.id, at);
        self.slots[at] = Some(slot);
        at
    }

    /// Takes the slot `at` out.
    pub fn remove(&mut self, at: usize) -> Option<Slot> {
        let slot = self.slots.get_mut(at)?.take()?;
        self.by_queue.remove(&slot.on.id);
        Some(slot)
    }

    /// All slots that are taken.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Slot)> {
        self.slots.iter_mut().enumerate().filter_map(|(at, slot)| Some((at, slot.as_mut()?)))
    }
}
