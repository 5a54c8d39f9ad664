//! Where workers' time goes, and to whom it is charged.

use std::sync::Arc;

use crate::peer::{Peer, port, wait};
use frame::Accepts;
use network::count::WorkerCounters;
use network::fabric::{Fabric, Workers};
use network::step::{Step, Ticks};
use switch::{PortId, PortRule};

const COUNT: usize = 500;

fn frame(to: u8, from: u8) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, to][..], &[2, 0, 0, 0, 0, from], &[0x88, 0xb5], &[0; 86]].concat()
}

/// The counts charged to a port: frames, bytes, ticks.
fn charged(fabric: &Fabric, port: PortId) -> (u64, u64, Ticks) {
    let mut sum = (0, 0, Ticks::default());
    for queue in fabric.counters(port) {
        let charged = &queue.charged;
        sum = (sum.0 + charged.frames.get(), sum.1 + charged.bytes.get(), sum.2);
        sum.2.iter_mut().zip(charged.spent.get()).for_each(|(sum, ticks)| *sum += ticks);
    }
    sum
}

fn spent(fabric: &Fabric) -> Vec<Ticks> {
    fabric.worker_counters().iter().map(|worker| worker.spent.get()).collect()
}

/// Two ports, `b` of which is known; with two workers, each has one.
fn pair(fabric: &Fabric) -> ([PortId; 2], [Peer; 2]) {
    let ports = [0, 1].map(|_| port(fabric, PortRule::default()).0);
    let peers = ports.map(|port| Peer::attach(fabric, port, 0, Accepts::ALL, usize::MAX));
    peers[1].send([frame(9, 1)]);
    wait(|| peers[1].completed() == 1);
    peers[0].expect(1);
    (ports, peers)
}

#[test]
fn each_frame_is_charged_to_its_receiver_on_whatever_worker() {
    for workers in [1, 2] {
        let fabric = Fabric::start(&Workers { count: workers, ..Workers::default() }).unwrap();
        let (ports, [a, b]) = pair(&fabric);
        fabric.sample(1);
        a.send((0..COUNT).map(|_| frame(1, 0)));
        b.expect(COUNT);
        wait(|| a.completed() == COUNT);
        fabric.sample(2);
        let (frames, bytes, ticks) = charged(&fabric, ports[1]);
        assert_eq!((frames, bytes), (COUNT as u64, COUNT as u64 * 100), "{workers} workers");
        for step in [Step::Fetch, Step::Classify, Step::Deliver, Step::Publish] {
            assert!(ticks[step as usize] > 0, "{workers} workers: {step:?} in {ticks:?}");
        }
        assert_eq!(
            (ticks[Step::Poll as usize], ticks[Step::Sleep as usize]),
            (0, 0),
            "nobody's frames"
        );
        assert_eq!(charged(&fabric, ports[0]).0, 0);
        // Nothing is charged that was not spent.
        for step in Step::ALL {
            let whole: u64 = spent(&fabric).iter().map(|worker| worker[step as usize]).sum();
            assert!(ticks[step as usize] <= whole, "{step:?}");
        }
    }
}

#[test]
fn a_workers_steps_are_its_whole_time() {
    let fabric = Fabric::start(&Workers { count: 2, ..Workers::default() }).unwrap();
    let (_, [a, b]) = pair(&fabric);
    let outer = ring::ticks::now();
    fabric.sample(1);
    // Those that sleep now are woken by the frames.
    let sleeps = |worker: &Arc<WorkerCounters>| worker.run.sleeps.get();
    let before: Vec<u64> = fabric.worker_counters().iter().map(sleeps).collect();
    let inner = ring::ticks::now();
    a.send((0..COUNT).map(|_| frame(1, 0)));
    b.expect(COUNT);
    // Both fall asleep after a while, and are woken for the last stamp.
    wait(|| fabric.worker_counters().iter().map(sleeps).zip(&before).all(|(now, old)| now > *old));
    let inner = ring::ticks::now() - inner;
    fabric.sample(2);
    let outer = ring::ticks::now() - outer;
    for worker in spent(&fabric) {
        let sum: u64 = worker.iter().sum();
        // CPUs need not agree to the tick.
        assert!(
            sum >= inner - inner / 10 && sum <= outer + outer / 10,
            "{sum} in {inner} to {outer}"
        );
        assert!(worker[Step::Sleep as usize] > 0, "{worker:?}");
    }
}

#[test]
fn nothing_is_stamped_while_nobody_profiles() {
    let fabric = Fabric::start(&Workers { count: 2, ..Workers::default() }).unwrap();
    let (ports, [a, b]) = pair(&fabric);
    fabric.sample(1);
    fabric.sample(0);
    let before = spent(&fabric);
    a.send((0..COUNT).map(|_| frame(1, 0)));
    b.expect(COUNT);
    wait(|| a.completed() == COUNT);
    assert_eq!(spent(&fabric), before);
    assert_eq!(charged(&fabric, ports[1]).0, 0);
}

#[test]
fn the_flows_of_each_queue_are_told_apart() {
    /// UDP over IPv4 from this port.
    fn datagram(to: u8, from: u8, port: u8) -> Vec<u8> {
        let ip = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to];
        let udp = [0x10, port, 0, 9, 0, 26, 0, 0];
        [&[2, 0, 0, 0, 0, to][..], &[2, 0, 0, 0, 0, from], &[8, 0], &ip, &udp, &[0; 18]].concat()
    }
    for workers in [1, 2] {
        let fabric = Fabric::start(&Workers { count: workers, ..Workers::default() }).unwrap();
        let (ports, [a, b]) = pair(&fabric);
        let flows = |port, since| -> Vec<[usize; 2]> {
            let queues = fabric.counters(port);
            let of = |flows: &network::flows::Flows| flows.count(since);
            queues
                .iter()
                .map(|queue| [of(&queue.charged.received), of(&queue.charged.sent)])
                .collect()
        };
        fabric.sample(1);
        // Frames of no flow among them, and each flow several times.
        a.send(
            (0..COUNT)
                .map(|n| if n % 8 == 7 { frame(1, 0) } else { datagram(1, 0, (n % 8) as u8) }),
        );
        b.expect(COUNT);
        wait(|| a.completed() == COUNT);
        fabric.sample(2);
        assert_eq!(
            (flows(ports[0], 1), flows(ports[1], 1)),
            (vec![[0, 7]], vec![[7, 0]]),
            "{workers} workers"
        );
        fabric.sample(0);
        fabric.sample(3);
        assert_eq!(
            (flows(ports[0], 3), flows(ports[1], 3)),
            (vec![[0, 0]], vec![[0, 0]]),
            "of another profile"
        );
    }
}
