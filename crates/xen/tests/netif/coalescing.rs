//! Interrupt coalescing, over real rings and event channels.

use std::time::{Duration, Instant};

use crate::front::{Front, FrontSpec, Host, frame, introduce, wait, what};
use hypervisor::Channel;
use network::coalescing::CoalescingLimits;
use xen::netif::options::PortOptions;

/// A host with interrupt coalescing, and two frontends. With `split`, they have separate event
/// channels for Rx.
fn two(frames: u32, split: bool) -> (Host, Front, Front) {
    let host = Host::switched(PortOptions {
        coalescing: CoalescingLimits::new(Some(frames), CoalescingLimits::MAX_TIME),
        ..PortOptions::default()
    });
    let spec = FrontSpec { split, ..FrontSpec::default() };
    let (a, b) = (Front::connected(&host, 1, spec.clone()), Front::connected(&host, 2, spec));
    introduce((&a, 1), (&b, 2));
    (host, a, b)
}

fn interrupts(host: &Host, front: &Front) -> u64 {
    let port = host.vif(front).unwrap().port.unwrap();
    host.fabric.counters(port)[0].rx.interrupts.get()
}

/// Sleeps as a guest does that has enabled the interrupt for its next frame: until the event
/// channel of its Rx ring is signalled.
fn sleep(front: &Front) {
    let queue = &front.queues[0];
    let port = queue.rx_port.as_ref().unwrap_or(&queue.tx_port);
    wait(|| port.take());
}

/// The first frame passes the ring's event index, and the guest sets no other before the interrupt.
#[test]
fn a_sleeping_guest_gets_an_interrupt_for_all_frames() {
    for split in [true, false] {
        let (_host, a, b) = two(1000, split);
        let mut next = 0;
        for round in 1..=20u32 {
            // The guest has taken all frames, enables the interrupt, and checks the ring again.
            wait(|| b.received().is_empty());
            (0..round).for_each(|n| a.send(&frame(1, 2, 100, next + n)));
            let mut came = Vec::new();
            while (came.len() as u32) < round {
                sleep(&b);
                // Frames may come while the interrupt is enabled: the guest checks the ring again.
                loop {
                    let got = b.received();
                    if got.is_empty() {
                        break;
                    }
                    came.extend(got.iter().map(|got| what(&got.frame)));
                }
            }
            assert_eq!(came, (next..next + round).collect::<Vec<_>>());
            next += round;
        }
    }
}

#[test]
fn a_polling_guest_has_its_frames_before_the_interrupt() {
    let start = Instant::now();
    let (host, a, b) = two(1000, true);
    let before = interrupts(&host, &b);
    // Interrupts are deferred from the eighth frame within that time on. The first seven frames
    // have an interrupt each. So have seven more whenever this thread did not get the CPU for an
    // eighth of that time.
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

/// The deferred interrupt ends with the connection, and no event channel is signalled after that.
#[test]
fn a_frontend_reconnects_while_an_interrupt_is_deferred() {
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
