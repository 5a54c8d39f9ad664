//! Loom models of a worker that goes through its states while a peer publishes and another thread
//! leaves mail. The worker never sleeps for good on either without a signal, in any interleaving.
//!
//! The worker is the real [`Poll`] and the real [`Sleeping`]; its ring is an index and a flag that
//! asks for a signal, with the barriers of the rings' own crate, which has its own models.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
use loom::thread;

use super::*;
use crate::doorbell::Sleeping;

const NAP: u64 = 10_000;

#[derive(Default)]
struct World {
    /// What the peer has published, and whether it is to signal that; whether it did.
    index: AtomicU16,
    armed: AtomicBool,
    kicked: AtomicBool,
    /// What another thread has left, whether the worker sleeps, and whether that thread rang.
    mail: AtomicU16,
    sleeping: Sleeping,
    rung: AtomicBool,
}

impl World {
    fn publish(&self) {
        self.index.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) {
            self.kicked.store(true, Ordering::Release);
        }
    }

    fn leave_mail(&self) {
        self.mail.store(1, Ordering::Release);
        if self.sleeping.must_signal() {
            self.rung.store(true, Ordering::Release);
        }
    }

    /// Asks to be signalled. True: something is there already.
    fn arm(&self, taken: u16) -> bool {
        self.armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.index.load(Ordering::Acquire) != taken
    }
}

/// How a worker may be made.
#[derive(Clone, Copy)]
struct Make {
    /// A nap has an end; otherwise it lasts until a signal comes.
    naps_end: bool,
    /// The worker looks for mail after it has said that it sleeps.
    looks_for_mail: bool,
    /// The worker arms before it sleeps for good.
    arms: bool,
}

const RIGHT: Make = Make { naps_end: true, looks_for_mail: true, arms: true };

/// Works until it sleeps for good. Returns what it has taken of ring and mail by then.
fn work(world: &World, make: Make) -> (u16, u16) {
    let mut now = Instant::now();
    let mut poll = Poll::new(PollingPolicy::Eco, Cost::default(), now);
    poll.plan = Plan { nap: NAP, until: NAP };
    let (mut taken, mut read) = (0, 0);
    loop {
        let there = (world.index.load(Ordering::Acquire), world.mail.load(Ordering::Acquire));
        if there != (taken, read) {
            (taken, read) = there;
            world.armed.store(false, Ordering::Relaxed);
            poll.found(now, 1);
            continue;
        }
        let next = poll.idle(now);
        now += Duration::from_nanos(NAP);
        if next == Next::Poll || next == Next::Arm && make.arms && world.arm(taken) {
            continue;
        }
        world.sleeping.announce();
        if make.looks_for_mail && world.mail.load(Ordering::Acquire) != read {
            world.sleeping.awake();
            continue;
        }
        if next == Next::Arm || !make.naps_end {
            poll.sleeps(State::Armed);
            return (taken, read);
        }
        poll.sleeps(State::Nap);
        world.sleeping.awake();
    }
}

fn model(make: Make) {
    // A worker that naps and looks again has too many interleavings, so all those with up to two
    // preemptions are tried.
    let mut all = loom::model::Builder::new();
    all.preemption_bound = Some(2);
    all.check(move || {
        let world = Arc::new(World::default());
        let [peer, other] = [world.clone(), world.clone()];
        let peer = thread::spawn(move || peer.publish());
        let other = thread::spawn(move || other.leave_mail());
        let (taken, read) = work(&world, make);
        peer.join().unwrap();
        other.join().unwrap();
        assert!(taken == 1 || world.kicked.load(Ordering::Acquire), "sleeps on published work");
        assert!(read == 1 || world.rung.load(Ordering::Acquire), "sleeps on mail");
    });
}

#[test]
fn loom_a_worker_that_looks_naps_and_arms_misses_nothing() {
    model(RIGHT);
}

#[test]
#[should_panic(expected = "sleeps on published work")]
fn loom_a_nap_needs_an_end() {
    model(Make { naps_end: false, ..RIGHT });
}

#[test]
#[should_panic(expected = "sleeps on published work")]
fn loom_a_long_sleep_needs_armed_queues() {
    model(Make { arms: false, ..RIGHT });
}

#[test]
#[should_panic(expected = "sleeps on mail")]
fn loom_mail_is_looked_for_once_more() {
    model(Make { looks_for_mail: false, ..RIGHT });
}
