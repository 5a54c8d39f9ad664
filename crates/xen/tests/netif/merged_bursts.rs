//! Small bursts of several queues, whose copies the hypervisor makes together.

use std::sync::Arc;

use crate::front::netfront::Netfront;
use crate::front::{Front, FrontSpec, Host, MORE_DATA, frame, introduce, wait, what};
use crate::neighbours::peer::{self, Peer};
use frame::Accepts;
use hypervisor::DomId;
use network::count::DropReason;
use network::fabric::{Fabric, Workers};
use switch::PortRule;

/// A host with so many workers, and a port that can stall one of them.
fn host(workers: usize) -> (Host, Peer) {
    let workers = Workers { count: workers, ..Workers::default() };
    let fabric = Arc::new(Fabric::start(&workers).unwrap());
    let host = Host::over(fabric);
    let (port, _) = peer::port(&host.fabric, PortRule::default());
    let local = Peer::attach(&host.fabric, port, 0, Accepts::ALL, 10_000);
    (host, local)
}

/// The numbers of the next `n` frames, in the order in which they came.
fn numbers(front: &Netfront, n: usize) -> Vec<u32> {
    front.expect(n).iter().map(|got| what(&got.frame)).collect()
}

/// The queues of a vif are served one after the other, so each copies the heads of its frames by
/// itself. All payloads are copied in one batch, or in two if some queue was served in the round
/// before. Without merging, there are eight batches.
#[test]
fn the_queues_of_a_worker_copy_together() {
    let (host, local) = host(1);
    let a = Netfront::connected(&host, 1, FrontSpec { queues: 4, ..FrontSpec::default() });
    let b = Netfront::connected(&host, 2, FrontSpec::default());
    introduce((&a, 1), (&b, 2));
    wait(|| a.queues.iter().all(|queue| queue.is_idle()));
    let before = host.machine.counts();
    local.stall(&host.fabric, || {
        for (n, queue) in (0..).zip(&a.queues) {
            queue.send(&frame(1, 2, 400, n), 0, None);
        }
    });
    let mut got = numbers(&b, 4);
    got.sort();
    assert_eq!(got, [0, 1, 2, 3]);
    let batches = host.machine.counts().batches - before.batches;
    assert!((5..=6).contains(&batches), "{batches} batches");
    wait(|| a.queues.iter().all(|queue| queue.is_idle()));
    assert_eq!(host.machine.refusals(), []);
}

/// Two queues of another worker, which hands their frames over: two batches for the heads, and one
/// for all payloads. Without merging, there are four.
#[test]
fn batches_of_another_worker_are_copied_together() {
    let (host, local) = host(2);
    let a = Netfront::connected(&host, 1, FrontSpec { queues: 4, ..FrontSpec::default() });
    let b = Netfront::connected(&host, 2, FrontSpec::default());
    let placement = |front| host.fabric.placement(host.vif(front).unwrap().port.unwrap());
    let own = placement(&b)[0].1;
    host.fabric.move_queue(local.id, own);
    introduce((&a, 1), (&b, 2));
    wait(|| a.queues.iter().all(|queue| queue.is_idle()));
    let placed = placement(&a).into_iter().filter(|(_, worker)| *worker != own);
    let elsewhere: Vec<u16> = placed.map(|(index, _)| index).collect();
    assert_eq!(elsewhere.len(), 2, "two queues of each worker");
    let handed_off = || host.fabric.worker_counters()[1 - own].handoff_batches.get();
    let (before, batches) = (host.machine.counts(), handed_off());
    local.stall(&host.fabric, || {
        for (n, index) in (0..).zip(elsewhere) {
            a.queues[usize::from(index)].send(&frame(1, 2, 400, n), 0, None);
        }
        wait(|| handed_off() == batches + 2);
    });
    let mut got = numbers(&b, 2);
    got.sort();
    assert_eq!(got, [0, 1]);
    assert_eq!(host.machine.counts().batches - before.batches, 3);
    wait(|| a.queues.iter().all(|queue| queue.is_idle()));
    assert_eq!(host.machine.refusals(), []);
}

/// A long burst does not wait for others, and a short one is not held back by it.
#[test]
fn long_bursts_are_copied_at_once() {
    let (host, local) = host(1);
    let a = Netfront::connected(&host, 1, FrontSpec { queues: 2, ..FrontSpec::default() });
    let b = Netfront::connected(&host, 2, FrontSpec::default());
    introduce((&a, 1), (&b, 2));
    local.stall(&host.fabric, || {
        a.queues[0].send(&frame(1, 2, 400, 1000), 0, None);
        (0..60).for_each(|n| a.queues[1].send(&frame(1, 2, 400, n), 0, None));
    });
    let got = numbers(&b, 61);
    let long: Vec<u32> = got.iter().copied().filter(|n| *n != 1000).collect();
    assert_eq!(long, (0..60).collect::<Vec<_>>(), "in order");
    wait(|| a.queues.iter().all(|queue| queue.is_idle()));
}

/// The grants of one sender fail, and those of one receiver. Both are stopped, and nobody else
/// loses a frame.
#[test]
fn a_failed_copy_harms_no_other_queue() {
    let (host, local) = host(1);
    let good = [1, 2].map(|n| Netfront::connected(&host, n, FrontSpec::default()));
    let sender = Front::connected(&host, 3, FrontSpec::default());
    let receiver = Front::connected(&host, 4, FrontSpec { post: 0, ..FrontSpec::default() });
    let [a, b] = &good;
    introduce((a, 1), (b, 2));
    introduce((a, 1), (&sender, 3));
    receiver.send(&frame(4, 1, 60, 1));
    wait(|| a.received().iter().any(|got| what(&got.frame) == 1));
    let page = receiver.page();
    let revoked = receiver.guest.grant(DomId(0), page, true);
    receiver.guest.revoke(revoked);
    (0..20).for_each(|_| receiver.queues[0].post((page, revoked)));
    receiver.queues[0].push_rx();

    let queue = &sender.queues[0];
    let (head, rest) = (queue.take_page(), queue.take_page());
    queue.write(head, 0, &frame(3, 2, 1000, 7));
    queue.data(head, 0, MORE_DATA, 1018 + 500);
    queue.data(rest, 0, 0, 500);
    assert!(sender.guest.revoke(rest.1));
    local.stall(&host.fabric, || {
        a.send(&frame(1, 2, 400, 5));
        a.send(&frame(1, 4, 400, 6));
        b.send(&frame(2, 1, 400, 8));
        queue.push_tx();
    });
    let why = "queue 0: a page is not granted for what it is used for (refused)";
    assert_eq!(host.stopped(&sender), why);
    assert_eq!(host.stopped(&receiver), why);
    assert_eq!((what(&b.expect(1)[0].frame), what(&a.expect(1)[0].frame)), (5, 8));
    let port = host.vif(b).unwrap().port.unwrap();
    assert_eq!(host.fabric.counters(port)[0].dropped(DropReason::NotGranted), 1);
    // Both still exchange frames.
    a.send(&frame(1, 2, 400, 9));
    b.send(&frame(2, 1, 400, 10));
    assert_eq!((what(&b.expect(1)[0].frame), what(&a.expect(1)[0].frame)), (9, 10));
}
