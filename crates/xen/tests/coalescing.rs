//! Interrupts that wait, over real rings and event channels.

mod front;

use std::time::{Duration, Instant};

use front::{Front, Host, Nature, frame, introduce, wait, what};
use hypervisor::Channel;
use network::coalescing::CoalescingLimits;
use xen::netif::options::PortOptions;

/// A host whose vifs' interrupts wait, and two of them. Both signal Rx by the channel that `split`
/// says.
fn two(frames: u32, split: bool) -> (Host, Front, Front) {
    let host = Host::switched(PortOptions {
        coalescing: CoalescingLimits::new(Some(frames), CoalescingLimits::MAX_TIME),
        ..PortOptions::default()
    });
    let nature = Nature { split, ..Nature::default() };
    let (a, b) = (Front::connected(&host, 1, nature.clone()), Front::connected(&host, 2, nature));
    introduce((&a, 1), (&b, 2));
    (host, a, b)
}

fn interrupts(host: &Host, front: &Front) -> u64 {
    let port = host.vif(front).unwrap().port.unwrap();
    host.fabric.counters(port)[0].rx.interrupts.get()
}

/// Sleeps as a guest does that has asked for its next frame: until the channel of its Rx ring is
/// signalled.
fn sleep(front: &Front) {
    let queue = &front.queues[0];
    let port = queue.rx_port.as_ref().unwrap_or(&queue.tx_port);
    wait(|| port.take());
}

/// The event index of the ring is passed by the first frame, and nothing asks again before the
/// interrupt comes.
#[test]
fn a_guest_that_sleeps_is_woken_for_all_that_came() {
    for split in [true, false] {
        let (_host, a, b) = two(1000, split);
        let mut next = 0;
        for round in 1..=20u32 {
            // It is awake, and has taken all there was; then it asks, and looks again.
            wait(|| b.received().is_empty());
            (0..round).for_each(|n| a.send(&frame(1, 2, 100, next + n)));
            let mut came = Vec::new();
            while (came.len() as u32) < round {
                sleep(&b);
                came.extend(b.received().iter().map(|got| what(&got.frame)));
            }
            assert_eq!(came, (next..next + round).collect::<Vec<_>>());
            next += round;
        }
    }
}

#[test]
fn a_guest_that_polls_has_its_frames_before_it_is_told() {
    let start = Instant::now();
    let (host, a, b) = two(1000, true);
    let before = interrupts(&host, &b);
    // Frames are many from the eighth within that time on; fewer are interrupted for at once. So
    // the first seven are, and, when this thread did not get the CPU for an eighth of that time, as
    // many again.
    let (mut slow, mut last) = (1, start);
    for n in 0..500 {
        a.send(&frame(1, 2, 100, n));
        assert_eq!(what(&b.expect(1)[0].frame), n);
        // All of the time counts, also that between two frames.
        let now = Instant::now();
        slow += u128::from(now - last > CoalescingLimits::MAX_TIME / 8);
        last = now;
    }
    let most = start.elapsed().as_micros() / CoalescingLimits::MAX_TIME.as_micros() + 8 * slow;
    let sent = u128::from(interrupts(&host, &b) - before);
    assert!(sent <= most, "{sent} interrupts for 500 frames, {most} at most");
}

/// Nothing of it is lost with the connection, and nobody is told of what is not there.
#[test]
fn it_goes_and_comes_again_while_an_interrupt_waits() {
    let (host, a, mut b) = two(1000, true);
    for n in 0..5 {
        a.send(&frame(1, 2, 100, n));
        b.begin_anew();
        b.connect();
        wait(|| host.connected(&b));
        introduce((&a, 1), (&b, 2));
    }
    assert!(host.connected(&a));
    std::thread::sleep(Duration::from_millis(1));
    assert_eq!(host.machine.refusals(), []);
}
