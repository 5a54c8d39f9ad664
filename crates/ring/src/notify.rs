//! Notifications between the two sides of a ring, without lost wake-ups.
//!
//! Each direction of a ring has one side that publishes and one that consumes. Kicks and interrupts
//! of split, packed and Xen rings all work alike:
//!
//! - the publisher makes its work visible, and then checks whether the consumer wants a
//!   notification;
//! - the consumer, before it sleeps, asks for a notification, and then looks for work once more.
//!
//! Each side stores one thing and then loads the other, so a full barrier has to stand between
//! store and load on both sides: with it, at least one of them sees the other. Without it, both can
//! miss, and the consumer sleeps on published work. The barriers are here and nowhere else; the
//! loom models in this module check that they are enough, and that they are needed.
//!
//! Both halves of the ring use these functions: the device publishes used entries and consumes
//! available ones, the driver the other way round.

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

/// Split ring flags, either direction: do not notify (virtio 1.2, 2.7.7 and 2.7.10).
const NO_NOTIFY: u16 = 1;

/// Whether moving an index from `old` to `new` passes `event` (virtio 1.2, 2.7.7.1).
#[inline]
pub const fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Split, without event index: publishes `value` in `index`. Returns whether the consumer's `flags`
/// ask for a notification.
#[inline]
pub fn publish_with_flags(index: &AtomicU16, value: u16, flags: &AtomicU16) -> bool {
    index.store(value, Ordering::Release);
    fence(Ordering::SeqCst);
    flags.load(Ordering::Relaxed) & NO_NOTIFY == 0
}

/// Split, with event index: publishes `value`, after `old`, in `index`. Returns whether that passes
/// the consumer's `event`.
#[inline]
pub fn publish_with_event(index: &AtomicU16, value: u16, old: u16, event: &AtomicU16) -> bool {
    index.store(value, Ordering::Release);
    fence(Ordering::SeqCst);
    passes(event.load(Ordering::Relaxed), value, old)
}

/// Split, without event index: asks for a notification. Returns the publisher's `index` afterwards.
#[inline]
pub fn arm_flags(flags: &AtomicU16, index: &AtomicU16) -> u16 {
    flags.store(0, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    index.load(Ordering::Acquire)
}

/// Split, without event index: asks for no notifications. The publisher may send them nevertheless.
#[inline]
pub fn disarm_flags(flags: &AtomicU16) {
    flags.store(NO_NOTIFY, Ordering::Relaxed);
}

/// Split, with event index: asks for a notification once entry `next` is published. Returns the
/// publisher's `index` afterwards.
#[inline]
pub fn arm_event(event: &AtomicU16, next: u16, index: &AtomicU16) -> u16 {
    event.store(next, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    index.load(Ordering::Acquire)
}

/// Xen ring: publishes `value`, after `old`, in `index`. Returns whether that reaches the
/// consumer's `event`. A Xen event is the index to reach, which is one more than virtio's event.
#[inline]
pub fn publish_ring(index: &AtomicU32, value: u32, old: u32, event: &AtomicU32) -> bool {
    index.store(value, Ordering::Release);
    fence(Ordering::SeqCst);
    value.wrapping_sub(event.load(Ordering::Relaxed)) < value.wrapping_sub(old)
}

/// Xen ring: asks for a notification once entry `next` is published. Returns the publisher's
/// `index` afterwards.
#[inline]
pub fn arm_ring(event: &AtomicU32, next: u32, index: &AtomicU32) -> u32 {
    event.store(next.wrapping_add(1), Ordering::Relaxed);
    fence(Ordering::SeqCst);
    index.load(Ordering::Acquire)
}

/// Event suppression flags: notify always (virtio 1.2, 2.8.10).
pub const EVENT_ENABLE: u16 = 0;
/// Event suppression flags: do not notify.
pub const EVENT_DISABLE: u16 = 1;
/// Event suppression flags: notify when the descriptor named by offset and wrap counter is reached;
/// only with `VIRTIO_F_EVENT_IDX`.
pub const EVENT_DESC: u16 = 2;
/// In the offset word of the event suppression structure, and in ring positions on the wire: the
/// wrap counter.
pub const WRAP: u16 = 1 << 15;

/// A place in a packed ring: a descriptor's number, and the wrap counter of the side whose position
/// it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of the descriptor, below the ring's size.
    pub index: u16,
    /// Starts as 1, and flips each time the index wraps around.
    pub wrap: bool,
}

impl Place {
    /// Index in bits 0..=14 and wrap counter in bit 15 (virtio 1.2, 2.8.10).
    #[inline]
    pub const fn to_word(self) -> u16 {
        self.index | if self.wrap { WRAP } else { 0 }
    }

    /// The reverse of [`to_word`](Self::to_word).
    #[inline]
    pub const fn from_word(word: u16) -> Self {
        Self { index: word & !WRAP, wrap: word & WRAP != 0 }
    }

    /// `n` descriptors later, at most `size`.
    #[inline]
    #[must_use]
    pub const fn forward(self, n: u16, size: u16) -> Self {
        let index = self.index as u32 + n as u32;
        let over = index >= size as u32;
        Self {
            index: if over { index - size as u32 } else { index } as u16,
            wrap: self.wrap != over,
        }
    }

    /// `n` descriptors earlier, at most `size`.
    #[inline]
    #[must_use]
    pub const fn back(self, n: u16, size: u16) -> Self {
        let under = n > self.index;
        let index = if under {
            self.index as u32 + size as u32 - n as u32
        } else {
            (self.index - n) as u32
        };
        Self { index: index as u16, wrap: self.wrap != under }
    }
}

/// Packed: publishes `count` descriptors that end before `next`. `store` writes the flags of the
/// first of them, after all earlier stores. Returns whether the consumer's `suppression` asks for a
/// notification. Without `event_idx` a descriptor event counts as always.
#[inline]
pub fn publish_packed(
    store: impl FnOnce(),
    suppression: &AtomicU32,
    next: Place,
    count: u16,
    size: u16,
    event_idx: bool,
) -> bool {
    store();
    fence(Ordering::SeqCst);
    wants_packed(suppression.load(Ordering::Relaxed), next, count, size, event_idx)
}

/// Whether `suppression`, as it was read, asks for a notification about `count` descriptors that
/// end before `next` (virtio 1.2, 2.8.10).
#[inline]
pub const fn wants_packed(
    suppression: u32,
    next: Place,
    count: u16,
    size: u16,
    event_idx: bool,
) -> bool {
    let (word, flags) = (suppression as u16, (suppression >> 16) as u16 & 3);
    if flags == EVENT_DISABLE {
        return false;
    }
    if flags != EVENT_DESC || !event_idx {
        return true;
    }
    let event = Place::from_word(word);
    // Relative to the pass of `next`, an event of the pass before is `size` earlier.
    let event_index =
        if event.wrap == next.wrap { event.index } else { event.index.wrapping_sub(size) };
    passes(event_index, next.index, next.index.wrapping_sub(count))
}

/// Packed: asks for a notification: with `event_idx`, once the descriptor at `next` is published;
/// otherwise always. Returns the `flags` of the descriptor at `next` afterwards.
#[inline]
pub fn arm_packed(suppression: &AtomicU32, next: Place, event_idx: bool, flags: &AtomicU16) -> u16 {
    let ask = if event_idx { next.to_word() as u32 | (EVENT_DESC as u32) << 16 } else { 0 };
    suppression.store(ask, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    flags.load(Ordering::Acquire)
}

/// Packed: asks for no notifications. The publisher may send them nevertheless.
#[inline]
pub fn disarm_packed(suppression: &AtomicU32) {
    suppression.store((EVENT_DISABLE as u32) << 16, Ordering::Relaxed);
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
