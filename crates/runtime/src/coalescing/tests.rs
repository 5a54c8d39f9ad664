use fastrand::Rng;

use super::*;

const TIME: Duration = Duration::from_micros(100);

/// A coalescer of a receiver to which many frames, `delivered`, have come just before `now`.
fn loaded(frames: Option<u32>, delivered: u64, now: Instant) -> InterruptCoalescer {
    let mut coalescer =
        InterruptCoalescer::new(coalescing(frames), came(delivered - u64::from(WORTH)));
    coalescer.publish(Notified::Suppressed, came(delivered), now);
    coalescer
}

/// Nothing but frames that come.
fn came(received: u64) -> Traffic {
    Traffic { received, sent: 0 }
}

fn coalescing(frames: Option<u32>) -> CoalescingLimits {
    CoalescingLimits::new(frames, TIME).unwrap()
}

#[test]
fn no_wait_is_without_end() {
    assert_eq!(CoalescingLimits::new(Some(64), Duration::ZERO), None);
    assert_eq!(
        CoalescingLimits::new(None, CoalescingLimits::MAX_TIME + Duration::from_nanos(1)),
        None
    );
    assert!(CoalescingLimits::new(None, CoalescingLimits::MAX_TIME).is_some());
}

#[test]
fn frames_or_time_end_a_wait() {
    let start = Instant::now();
    let mut coalescer = loaded(Some(6), 100, start);
    coalescer.publish(Notified::Deferred, came(101), start);
    assert_eq!((coalescer.is_due(start), coalescer.until()), (false, Some(start + TIME)));
    // The first publication passed the peer's event index. This one does not find it again, but the
    // interrupt must not be forgotten.
    coalescer.publish(Notified::Suppressed, came(105), start + TIME / 2);
    assert_eq!(
        (coalescer.is_due(start + TIME / 2), coalescer.until()),
        (false, Some(start + TIME))
    );
    assert!(coalescer.is_due(start + TIME));
    coalescer.publish(Notified::Suppressed, came(106), start + TIME / 2);
    assert!(coalescer.is_due(start + TIME / 2), "six frames");
    assert!(coalescer.take() && !coalescer.take());
    assert_eq!(coalescer.until(), None);
    coalescer.publish(Notified::Deferred, came(112), start);
    assert!(coalescer.is_due(start), "a burst that is long enough does not wait");
}

#[test]
fn a_full_receiver_is_told_at_once() {
    let start = Instant::now();
    let mut coalescer = loaded(None, 10, start);
    coalescer.full();
    coalescer.publish(Notified::Suppressed, came(13), start);
    coalescer.publish(Notified::Deferred, came(14), start);
    assert!(!coalescer.is_due(start), "it was awake when it was full");
    coalescer.full();
    assert!(coalescer.is_due(start));
}

#[test]
fn a_signal_for_both_rings_ends_the_wait() {
    let start = Instant::now();
    let mut coalescer = loaded(Some(6), 10, start);
    coalescer.publish(Notified::Deferred, came(11), start);
    coalescer.publish(Notified::Sent, came(12), start);
    assert_eq!((coalescer.until(), coalescer.is_due(start + TIME)), (None, false));
}

#[test]
fn a_few_frames_are_told_of_at_once() {
    let start = Instant::now();
    let mut coalescer = InterruptCoalescer::new(coalescing(None), came(0));
    // One at a time, each answered: a quarter of the time apart.
    for n in 1..=20 {
        let now = start + TIME / 4 * n;
        coalescer.publish(Notified::Deferred, came(n.into()), now);
        assert!(coalescer.is_due(now) && coalescer.take(), "frame {n}");
    }
    // Now they come thick and fast, and after a silence one at a time again.
    let now = start + TIME * 10;
    for n in 21..40 {
        coalescer.publish(Notified::Deferred, came(n), now);
        let worth = n < 20 + u64::from(WORTH);
        assert_eq!((coalescer.is_due(now), worth && coalescer.take()), (worth, worth), "frame {n}");
    }
    let later = now + TIME + TIME / 2;
    assert!(coalescer.is_due(later) && coalescer.take());
    coalescer.publish(Notified::Deferred, came(40), later);
    assert!(!coalescer.is_due(later), "there were many just before");
    assert!(coalescer.is_due(later + TIME) && coalescer.take());
    let silence = later + TIME * 3;
    coalescer.publish(Notified::Deferred, came(41), silence);
    assert!(coalescer.is_due(silence));
}

#[test]
fn a_guest_that_answers_is_told_at_once() {
    let start = Instant::now();
    let mut coalescer = InterruptCoalescer::new(coalescing(None), came(0));
    for n in 1..200 {
        // As fast as it answers.
        let now = start + TIME / 50 * n as u32;
        coalescer.publish(Notified::Deferred, Traffic { received: n, sent: n - 1 }, now);
        assert!(coalescer.is_due(now) && coalescer.take(), "frame {n}");
    }
    // It acknowledges every third one only.
    let waits = (200..400).any(|n| {
        let now = start + TIME * 10 + TIME / 50 * n as u32;
        coalescer.publish(
            Notified::Deferred,
            Traffic { received: n, sent: 200 + (n - 200) / 3 },
            now,
        );
        let due = coalescer.is_due(now);
        assert!(!due || coalescer.take());
        !due
    });
    assert!(waits);
}

#[test]
fn fewer_frames_that_are_enough_are_many() {
    let start = Instant::now();
    let mut coalescer = InterruptCoalescer::new(coalescing(Some(2)), came(0));
    coalescer.publish(Notified::Deferred, came(1), start);
    assert!(coalescer.is_due(start) && coalescer.take());
    coalescer.publish(Notified::Deferred, came(2), start);
    assert!(!coalescer.is_due(start), "one more, and it is worth it");
}

/// A peer that works like a Linux guest: asleep until interrupted, then awake until it finds
/// nothing.
struct Peer {
    /// The frame count at which the peer has asked to be interrupted.
    event: u64,
    seen: u64,
    awake: bool,
    woken: u32,
}

impl Peer {
    fn interrupt(&mut self) {
        self.woken += u32::from(!self.awake);
        self.awake = true;
    }

    /// Takes all frames, and asks to be interrupted for more; sleeps if there are still none.
    fn work(&mut self, published: u64) {
        if self.awake {
            self.awake = self.seen != published;
            (self.seen, self.event) = (published, published + 1);
        }
    }
}

/// In any order of publications, sleeps and interrupts, a sleeping peer has no frame older than the
/// time limit, and fewer frames than the number limit. Each interrupt that it got was worthwhile.
#[test]
fn no_peer_sleeps_longer_than_it_may() {
    let start = Instant::now();
    for seed in 0..200 {
        let mut random = Rng::with_seed(seed);
        let enough = [None, Some(1), Some(6), Some(64)][random.usize(..4)];
        let mut coalescer = InterruptCoalescer::new(coalescing(enough), came(0));
        let mut peer = Peer { event: 1, seen: 0, awake: false, woken: 0 };
        let (mut now, mut published, mut oldest, mut worth) = (start, 0u64, start, 0);
        for _ in 0..2000 {
            match random.u64(..4) {
                0 => now += Duration::from_micros(random.u64(..80)),
                1 => {
                    let frames = 1 + random.u64(..9);
                    oldest = if peer.seen == published { now } else { oldest };
                    let wants = peer.event.wrapping_sub(published + 1) < frames;
                    published += frames;
                    coalescer.publish(
                        if wants { Notified::Deferred } else { Notified::Suppressed },
                        came(published),
                        now,
                    );
                }
                2 => peer.work(published),
                _ => coalescer.full(),
            }
            if coalescer.is_due(now) {
                worth += u32::from(coalescer.take());
                peer.interrupt();
            }
            if !peer.awake && peer.seen < published {
                let until = coalescer.until().expect("asleep, and nobody will tell it");
                assert!(until <= oldest + TIME && now < until, "seed {seed}");
                assert!(
                    enough.is_none_or(|enough| published - peer.seen < enough.into()),
                    "seed {seed}"
                );
            }
        }
        assert!(peer.woken <= worth && peer.woken > 0, "seed {seed}");
    }
}
