//! Loom models: the consumer never sleeps on published work, in any interleaving and with any
//! memory reordering.
//!
//! A publisher publishes twice, and notifies when it is asked to. A consumer takes all work, and
//! sleeps if there is none after it has armed. In the end, either everything was taken or a
//! notification is pending. Both directions of a ring use the same functions, so each model stands
//! for kicks and for interrupts; the packed ones differ in the flags, and are run with both.

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;

use super::*;
use crate::packed::{DESC_AVAIL, DESC_USED, available_flags, used_flags};

/// State that both sides share: a publisher's index or descriptors, a consumer's event_index, and
/// the eventfd between them.
struct Split {
    index: AtomicU16,
    /// Flags or event index.
    event_index: AtomicU16,
    eventfd: AtomicBool,
}

/// Runs publisher and consumer; `publish(shared, new, old)` says whether to notify, `arm(shared,
/// next)` gives the index.
fn split(
    event_index: u16,
    publish: impl Fn(&Split, u16, u16) -> bool + Copy + Send + Sync + 'static,
    arm: impl Fn(&Split, u16) -> u16 + Copy + Send + Sync + 'static,
) {
    let publisher = move |shared: &Split| {
        for n in 0..2 {
            if publish(shared, n + 1, n) {
                shared.eventfd.store(true, Ordering::Release);
            }
        }
    };
    split_by(event_index, publisher, arm);
}

fn split_by(
    event_index: u16,
    publisher: impl Fn(&Split) + Copy + Send + Sync + 'static,
    arm: impl Fn(&Split, u16) -> u16 + Copy + Send + Sync + 'static,
) {
    loom::model(move || {
        let index = AtomicU16::new(0);
        let shared = Arc::new(Split {
            index,
            event_index: AtomicU16::new(event_index),
            eventfd: AtomicBool::new(false),
        });
        let publisher = {
            let shared = shared.clone();
            thread::spawn(move || publisher(&shared))
        };
        let mut taken = 0;
        loop {
            shared.eventfd.swap(false, Ordering::AcqRel);
            let index = arm(&shared, taken);
            if index == taken {
                break;
            }
            taken = index;
        }
        publisher.join().unwrap();
        assert!(taken == 2 || shared.eventfd.load(Ordering::Acquire), "sleeps on published work");
    });
}

#[test]
fn loom_split_flags() {
    split(
        1,
        |s, new, _| publish_with_flags(&s.index, new, &s.event_index),
        |s, _| arm_flags(&s.event_index, &s.index),
    );
}

#[test]
fn loom_split_event() {
    split(
        0xff00,
        |s, new, old| publish_with_event(&s.index, new, old, &s.event_index),
        |s, next| arm_event(&s.event_index, next, &s.index),
    );
}

#[test]
#[should_panic(expected = "sleeps on published work")]
fn loom_split_publisher_needs_the_barrier() {
    let publish = |s: &Split, new, _| {
        s.index.store(new, Ordering::Release);
        s.event_index.load(Ordering::Relaxed) & NO_NOTIFY == 0
    };
    split(1, publish, |s, _| arm_flags(&s.event_index, &s.index));
}

#[test]
#[should_panic(expected = "sleeps on published work")]
fn loom_split_consumer_needs_the_barrier() {
    let arm = |s: &Split, next| {
        s.event_index.store(next, Ordering::Relaxed);
        s.index.load(Ordering::Acquire)
    };
    split(0xff00, |s, new, old| publish_with_event(&s.index, new, old, &s.event_index), arm);
}

/// A publisher that defers its notifications: one is sent after both publications, if `wanted`
/// decides so from their results.
fn held(wanted: impl Fn(bool, bool) -> bool + Copy + Send + Sync + 'static) {
    let publisher = move |shared: &Split| {
        let said = [0, 1].map(|n| publish_with_event(&shared.index, n + 1, n, &shared.event_index));
        if wanted(said[0], said[1]) {
            shared.eventfd.store(true, Ordering::Release);
        }
    };
    split_by(0xff00, publisher, |s, next| arm_event(&s.event_index, next, &s.index));
}

#[test]
fn loom_held_notifications_are_remembered() {
    held(|first, second| first || second);
}

/// The consumer's event is passed only once, so a check at the time of sending misses a deferred
/// notification.
#[test]
#[should_panic(expected = "sleeps on published work")]
fn loom_held_notifications_are_not_found_again() {
    held(|_, second| second);
}

/// A ring of two descriptors.
struct Packed {
    flags: [AtomicU16; 2],
    event_index: AtomicU32,
    eventfd: AtomicBool,
}

const SIZE: u16 = 2;
const START: Place = Place { index: 0, wrap: true };

/// Flags of published descriptors: available ones, or used ones.
#[derive(Clone, Copy)]
struct Direction {
    initial: u16,
    published: fn(bool) -> u16,
}

const KICKS: Direction =
    Direction { initial: used_flags(false), published: |wrap| available_flags(wrap) };
const INTERRUPTS: Direction =
    Direction { initial: available_flags(true), published: |wrap| used_flags(wrap) };

/// Runs publisher and consumer; `bursts` are numbers of descriptors published at once.
fn packed(
    direction: Direction,
    bursts: &'static [u16],
    event_idx: bool,
    arm: impl Fn(&Packed, Place) -> u16 + Copy + Send + Sync + 'static,
) {
    let is_published = move |flags: u16, at: Place| {
        flags & (DESC_AVAIL | DESC_USED) == (direction.published)(at.wrap)
    };
    loom::model(move || {
        let flags = [(); 2].map(|()| AtomicU16::new(direction.initial));
        let event_index = AtomicU32::new(u32::from(EVENT_DISABLE) << 16);
        let shared = Arc::new(Packed { flags, event_index, eventfd: AtomicBool::new(false) });
        let publisher = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut next = START;
                for &count in bursts {
                    let (first, flags) = (next, (direction.published)(next.wrap));
                    for n in 1..count {
                        let at = first.forward(n, SIZE);
                        shared.flags[at.index as usize]
                            .store((direction.published)(at.wrap), Ordering::Relaxed);
                    }
                    next = first.forward(count, SIZE);
                    let first = &shared.flags[first.index as usize];
                    if publish_packed(
                        || first.store(flags, Ordering::Release),
                        &shared.event_index,
                        next,
                        count,
                        SIZE,
                        event_idx,
                    ) {
                        shared.eventfd.store(true, Ordering::Release);
                    }
                }
            })
        };
        let (mut next, mut taken) = (START, 0);
        while taken < 2 {
            shared.eventfd.swap(false, Ordering::AcqRel);
            if !is_published(arm(&shared, next), next) {
                break;
            }
            (next, taken) = (next.forward(1, SIZE), taken + 1);
            if bursts == [2] && taken == 1 {
                let second = shared.flags[next.index as usize].load(Ordering::Acquire);
                assert!(is_published(second, next), "a burst appears at once");
            }
        }
        publisher.join().unwrap();
        assert!(taken == 2 || shared.eventfd.load(Ordering::Acquire), "sleeps on published work");
    });
}

#[test]
fn loom_packed() {
    for direction in [KICKS, INTERRUPTS] {
        for bursts in [&[1, 1][..], &[2]] {
            for event_idx in [false, true] {
                let arm = move |p: &Packed, next: Place| {
                    arm_packed(&p.event_index, next, event_idx, &p.flags[next.index as usize])
                };
                packed(direction, bursts, event_idx, arm);
            }
        }
    }
}

#[test]
#[should_panic(expected = "sleeps on published work")]
fn loom_packed_consumer_needs_the_barrier() {
    let arm = |p: &Packed, next: Place| {
        p.event_index.store(0, Ordering::Relaxed);
        p.flags[next.index as usize].load(Ordering::Acquire)
    };
    packed(KICKS, &[1, 1], false, arm);
}

/// A Xen ring: indices of 32 bits, no flags.
struct Ring {
    index: AtomicU32,
    event: AtomicU32,
    channel: AtomicBool,
}

/// Runs publisher and consumer of a Xen ring from index `start` on.
fn ring(start: u32, arm: impl Fn(&Ring, u32) -> u32 + Copy + Send + Sync + 'static) {
    loom::model(move || {
        let index = AtomicU32::new(start);
        let shared =
            Arc::new(Ring { index, event: AtomicU32::new(start), channel: AtomicBool::new(false) });
        let publisher = {
            let shared = shared.clone();
            thread::spawn(move || {
                for n in 0..2 {
                    let old = start.wrapping_add(n);
                    if publish_ring(&shared.index, old.wrapping_add(1), old, &shared.event) {
                        shared.channel.store(true, Ordering::Release);
                    }
                }
            })
        };
        let mut taken = start;
        loop {
            shared.channel.swap(false, Ordering::AcqRel);
            let index = arm(&shared, taken);
            if index == taken {
                break;
            }
            taken = index;
        }
        publisher.join().unwrap();
        let all = taken == start.wrapping_add(2);
        assert!(all || shared.channel.load(Ordering::Acquire), "sleeps on published work");
    });
}

#[test]
fn loom_ring() {
    for start in [0, u32::MAX] {
        ring(start, |s, next| arm_ring(&s.event, next, &s.index));
    }
}

#[test]
#[should_panic(expected = "sleeps on published work")]
fn loom_ring_consumer_needs_the_barrier() {
    ring(0, |s, next| {
        s.event.store(next.wrapping_add(1), Ordering::Relaxed);
        s.index.load(Ordering::Acquire)
    });
}

#[test]
#[should_panic(expected = "sleeps on published work")]
fn loom_ring_event_is_the_index_to_reach() {
    ring(0, |s, next| arm_ring(&s.event, next.wrapping_add(1), &s.index));
}
