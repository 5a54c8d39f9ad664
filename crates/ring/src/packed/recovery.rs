//! The position of a packed ring, recovered from its descriptors.
//!
//! A packed ring has no used index, and a front-end that lost its back-end may not know where it
//! left off (QEMU then names the ring's start). The descriptors show the position, since each has
//! the wrap counters of the sides that wrote it last:
//!
//! - Going through the ring, the driver sets AVAIL to its wrap counter, and the device leaves AVAIL
//!   alone. Below the driver's position all AVAIL bits have one value, from there on the other.
//! - A descriptor whose USED differs from AVAIL is available; one whose bits are equal is used, or
//!   was never available. The device marks all descriptors of a chain used (see
//!   [`used`](super::used)).
//!
//! So a walk once around the ring from the driver's position finds used descriptors first, and
//! then, in the order in which they were made available, all those that the driver has not got
//! back. Of the latter, the chains of an unpublished burst are marked used except for its first
//! chain, which the driver looks at next.
//!
//! Recovery publishes such a burst, because its frames were carried. On a receive ring its buffers
//! go back empty, because payloads may be missing that were to be copied before the publication.
//! These writes are idempotent, so this process may be killed during recovery as well.
//!
//! The driver runs meanwhile. It only writes descriptors from its position on, which can only make
//! a snapshot inconsistent; then another one is taken. A hostile driver can show any flags: the
//! result is some position within its own ring, and only its own descriptors are written.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::areas::Areas;
use super::{
    DESC_AVAIL, DESC_INDIRECT, DESC_NEXT, DESC_USED, available_flags, marked_available,
    marked_used, used_word,
};
use crate::inflight::RingRecord;
use crate::notify::Place;

/// Snapshots that are taken until one is consistent.
const ATTEMPTS: usize = 100;

/// Pause between them, while the driver goes on: 0.1 s in all.
const PAUSE: Duration = Duration::from_millis(1);

/// Finds the position of a ring that is reported to be at `told`, and completes a burst that
/// another back-end left half published. `None`: the descriptors contradict each other.
pub(super) fn recover(areas: &Areas, size: u16, told: Place) -> Option<Place> {
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        let flags: Vec<_> = (0..size).map(|i| areas.flags(i).load(Ordering::Acquire)).collect();
        if flags.iter().all(|flags| *flags == 0) {
            // A ring that was never used: nothing contradicts any position.
            return Some(told);
        }
        let snapshot = Snapshot { flags: &flags };
        if let Some(found) = snapshot.survey() {
            return Some(found.complete(areas, size));
        }
    }
    None
}

/// The position in a front-end's record, for a ring that does not show where another back-end left
/// it. Of two recorded positions, the new one is valid if the first descriptor behind the old one
/// is used. `None`: there is no such position in the ring.
pub(super) fn recorded(areas: &Areas, size: u16, record: &RingRecord) -> Option<Place> {
    let [old, new] = record.positions()?;
    if old.index >= size || new.index >= size {
        return None;
    }
    let flags = areas.flags(old.index).load(Ordering::Acquire);
    let is_available = flags & (DESC_AVAIL | DESC_USED) == available_flags(old.wrap);
    Some(if is_available { old } else { new })
}

/// The findings of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Survey {
    /// The oldest descriptor that the driver has not got back.
    first: Place,
    /// Descriptors of the unpublished burst that begins there.
    unpublished: u16,
    /// Descriptors of that burst's first chain.
    first_chain: u16,
    /// Descriptors behind the burst among which some are marked used, because their chain was about
    /// to be given back.
    marked: u16,
}

/// The flags of all descriptors.
struct Snapshot<'a> {
    flags: &'a [u16],
}

impl Snapshot<'_> {
    /// The driver's position. `None`: the driver was writing.
    fn driver(&self) -> Option<Place> {
        let avail = |flags: &u16| flags & DESC_AVAIL != 0;
        let first = self.flags.first().map(avail)?;
        let index = self.flags.iter().position(|flags| avail(flags) != first);
        let Some(index) = index else { return Some(Place { index: 0, wrap: !first }) };
        let is_consistent = self.flags[index..].iter().all(|flags| avail(flags) != first);
        is_consistent.then_some(Place { index: index as u16, wrap: first })
    }

    /// Whether the descriptor at `place` is available.
    fn is_available(&self, place: Place) -> bool {
        let flags = self.flags[usize::from(place.index)];
        (flags & DESC_AVAIL != 0) != (flags & DESC_USED != 0)
    }

    /// Descriptors of the chain at `head`, at most `most`.
    fn chain(&self, head: Place, most: u16) -> u16 {
        let size = self.flags.len() as u16;
        let is_last = |i: &u16| {
            let flags = self.flags[usize::from(head.forward(*i, size).index)];
            flags & DESC_NEXT == 0 || flags & DESC_INDIRECT != 0
        };
        (0..most).find(is_last).map_or(most, |i| i + 1)
    }

    fn survey(&self) -> Option<Survey> {
        let size = self.flags.len() as u16;
        let driver = self.driver()?;
        let back = driver.back(size, size);
        let free = (0..size).find(|i| self.is_available(back.forward(*i, size))).unwrap_or(size);
        let (first, outstanding) = (back.forward(free, size), size - free);
        let first_chain = self.chain(first, outstanding);
        let is_used = |i: u16| !self.is_available(first.forward(i, size));
        let end = (first_chain..outstanding).find(|i| !is_used(*i)).unwrap_or(outstanding);
        let unpublished = if end == first_chain { 0 } else { end };
        // The first descriptor of a burst is written last, so without any used one behind it, the
        // second chain may be the one that is marked.
        let whole = if unpublished == 0 { first_chain } else { unpublished };
        let next = self.chain(first.forward(whole, size), outstanding - whole);
        let marked = whole + next - unpublished;
        let is_consistent = !(whole + next..outstanding).any(is_used);
        is_consistent.then_some(Survey { first, unpublished, first_chain, marked })
    }
}

impl Survey {
    /// Publishes the burst, and removes the marks behind it. Returns the position from which the
    /// ring continues.
    fn complete(self, areas: &Areas, size: u16) -> Place {
        let place = |i| self.first.forward(i, size);
        let id = |i| areas.desc(place(i).index, 0).id;
        let mark = |i, marked: fn(u16, bool) -> u16| {
            let flags = areas.flags(place(i).index);
            areas.store_flags(place(i).index, marked(flags.load(Ordering::Relaxed), place(i).wrap));
        };
        let used = |i, id| {
            let word = used_word(0, id, place(i).wrap);
            areas.store_word(place(i).index, word);
        };
        if self.unpublished > 0 {
            (self.first_chain..self.unpublished).for_each(|i| used(i, id(i)));
            (1..self.first_chain).for_each(|i| mark(i, marked_used));
            used(0, id(self.first_chain - 1));
        }
        (0..self.marked).for_each(|i| mark(self.unpublished + i, marked_available));
        place(self.unpublished)
    }
}

#[cfg(test)]
mod tests;
