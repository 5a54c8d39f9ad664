//! Interrupts that wait, in the whole datapath.

use std::time::{Duration, Instant};

use crate::peer::{Peer, coalescing_port, port, wait};
use frame::Accepts;
use network::coalescing::CoalescingLimits;
use network::fabric::{Fabric, Workers};
use switch::{PortId, PortRule};

const TIME: Duration = CoalescingLimits::MAX_TIME;

fn frame(number: u8) -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 0x88, 0xb5], &[number; 50]].concat()
}

/// A sender, and a receiver whose interrupts wait for so many frames.
fn pair(workers: usize, frames: u32, room: usize) -> (Fabric, Peer, Peer, PortId) {
    let fabric = Fabric::start(&Workers { count: workers, ..Workers::default() }).unwrap();
    let coalescing = CoalescingLimits::new(Some(frames), TIME);
    let sender = port(&fabric, PortRule::default()).0;
    let receiver = coalescing_port(&fabric, PortRule::default(), coalescing).0;
    let a = Peer::attach(&fabric, sender, 0, Accepts::ALL, usize::MAX);
    let b = Peer::attach(&fabric, receiver, 0, Accepts::ALL, room);
    (fabric, a, b, receiver)
}

/// Nothing else happens on the worker, which has no reason to wake but that.
#[test]
fn a_lonely_frame_is_published_at_once_and_told_of_in_time() {
    for workers in [1, 2] {
        let (fabric, a, b, port) = pair(workers, 64, usize::MAX);
        for n in 1..=3 {
            a.send([frame(n)]);
            wait(|| b.told().len() == usize::from(n));
        }
        assert_eq!((b.told(), b.received().len()), (vec![1, 2, 3], 3));
        let counters = &fabric.counters(port)[0];
        // An interrupt is counted after it was sent.
        wait(|| (counters.rx.deferred.get(), counters.rx.interrupts.get()) == (3, 3));
    }
}

#[test]
fn interrupts_come_for_many_frames_or_when_the_time_is_over() {
    let start = Instant::now();
    let (fabric, a, b, port) = pair(1, 64, usize::MAX);
    for n in 0..100 {
        a.send((0..32).map(|_| frame(n)));
    }
    wait(|| b.told().last() == Some(&3200));
    let most = 3200 / 64 + start.elapsed().as_micros() / TIME.as_micros() + 1;
    let told = b.told().len();
    assert!(told as u128 <= most, "{told} interrupts, {most} at most");
    // An interrupt is counted after it was sent.
    wait(|| fabric.counters(port)[0].rx.interrupts.get() == told as u64);
}

/// A receiver whose buffers are used up is interrupted at once: it posts more only then.
#[test]
fn a_full_receiver_is_told() {
    let (_fabric, a, b, _) = pair(1, 1000, 10);
    a.send((0..11).map(frame));
    wait(|| b.told().last() == Some(&10));
    b.post(10);
    a.send((11..22).map(frame));
    wait(|| b.told().last() == Some(&20));
}

/// Whoever has the pair afterwards knows nothing of it.
#[test]
fn what_waits_is_told_when_the_queue_goes() {
    for _ in 0..20 {
        let (fabric, a, b, _) = pair(1, 1000, usize::MAX);
        a.send([frame(0)]);
        wait(|| a.completed() == 1);
        drop(fabric.detach(b.id));
        assert_eq!(b.told(), [1]);
    }
}
