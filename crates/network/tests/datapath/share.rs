//! Guests that send as much as they can beside others: what each gets of the worker.
//!
//! The worker is driven by the test, so that all guests have published what they send before it
//! serves the first of them, however the host schedules threads.

use std::time::{Duration, Instant};

use crate::peer::{Peer, port};
use frame::Accepts;
use network::fabric::{Fabric, Workers};
use network::manual::ManualWorker;
use switch::{PortId, PortRule};

/// A frame from station `src` to station `dst`.
fn frame(dst: u8, src: u8, len: usize) -> Vec<u8> {
    let mut frame = [&[2, 0, 0, 0, 0, dst][..], &[2, 0, 0, 0, 0, src], &[0x88, 0xb5]].concat();
    frame.resize(len, src);
    frame
}

/// A worker and some ports.
struct Host {
    fabric: Fabric,
    worker: ManualWorker,
    ports: Vec<PortId>,
}

impl Host {
    fn new(ports: usize) -> Host {
        let workers = Workers { count: 1, ..Workers::default() };
        let (fabric, workers) = Fabric::manual(&workers).unwrap();
        let ports = (0..ports).map(|_| port(&fabric, PortRule::default()).0).collect();
        Host { fabric, worker: workers.into_iter().next().unwrap(), ports }
    }

    fn queue(&mut self, port: usize, index: u16) -> Peer {
        let (fabric, port) = (&self.fabric, self.ports[port]);
        self.worker.run_while(|| Peer::attach(fabric, port, index, Accepts::ALL, usize::MAX))
    }

    /// Shows the switch where station 0 is.
    fn introduce(&mut self, sink: &Peer) {
        sink.send([frame(9, 0, 60)]);
        self.run();
        assert_eq!(sink.completed(), 1);
    }

    /// Lets the worker work until all guests' frames are with their receivers.
    fn run(&mut self) {
        while self.worker.run_once(Instant::now()) || self.worker.run_once(later()) {}
    }
}

/// A time at which signals of armed queues are polled again.
fn later() -> Instant {
    std::thread::sleep(Duration::from_micros(50));
    Instant::now()
}

/// The number of frames of each station among those that arrived at `sink` from station 2's first
/// frame to its last.
fn while_second_sends(received: &[Vec<u8>]) -> [usize; 2] {
    let from = |src| move |frame: &&Vec<u8>| frame[11] == src;
    let first = received.iter().position(|f| from(2)(&f)).unwrap();
    let last = received.iter().rposition(|f| from(2)(&f)).unwrap();
    [1, 2].map(|src| received[first..=last].iter().filter(from(src)).count())
}

#[test]
fn long_frames_do_not_crowd_out_short_ones() {
    let mut host = Host::new(3);
    let [sink, loud, quiet] = [0, 1, 2].map(|at| host.queue(at, 0));
    host.introduce(&sink);
    let long = vec![frame(0, 1, 30_000); 1200];
    let short = vec![frame(0, 2, 60); 4000];
    loud.send(long);
    quiet.send(short);
    host.run();
    let [long, short] = while_second_sends(&sink.expect(5200));
    // An equal share of the cost would be 263 of them; with equal numbers of frames it would be
    // all.
    assert_eq!(short, 4000);
    assert!((150..400).contains(&long), "{long} long frames");
}

#[test]
fn many_queues_do_not_crowd_out_one() {
    let mut host = Host::new(3);
    let sink = host.queue(0, 0);
    let loud: Vec<Peer> = (0..4).map(|index| host.queue(1, index)).collect();
    let quiet = host.queue(2, 0);
    host.introduce(&sink);
    let many = vec![vec![frame(0, 1, 60); 8000]; 4];
    let few = vec![frame(0, 2, 60); 8000];
    loud.iter().zip(many).for_each(|(queue, frames)| queue.send(frames));
    quiet.send(few);
    host.run();
    let [loud, quiet] = while_second_sends(&sink.expect(40_000));
    assert_eq!(quiet, 8000);
    // Four times as many without shares for ports.
    assert!((4000..12_000).contains(&loud), "{loud} frames of the port with four queues");
}

#[test]
fn flows_of_one_frame_do_not_crowd_out_one_flow() {
    let mut host = Host::new(3);
    let [sink, loud, quiet] = [0, 1, 2].map(|at| host.queue(at, 0));
    host.introduce(&sink);
    let new = |number: u32| {
        let mut frame = frame(0, 1, 60);
        frame[7..11].copy_from_slice(&number.to_be_bytes());
        frame
    };
    let flood: Vec<_> = (0..12_000).map(new).collect();
    let one = vec![frame(0, 2, 60); 12_000];
    loud.send(flood);
    quiet.send(one);
    host.run();
    let [flood, one] = while_second_sends(&sink.expect(24_000));
    // A third of them; all, if asking the switch cost nothing.
    assert_eq!(one, 12_000);
    assert!((2000..8000).contains(&flood), "{flood} frames of new flows");
}

#[test]
fn broadcasts_do_not_crowd_out_frames_for_one_port() {
    let mut host = Host::new(3);
    let [sink, loud, quiet] = [0, 1, 2].map(|at| host.queue(at, 0));
    host.introduce(&sink);
    let mut broadcast = frame(0, 1, 60);
    broadcast[..6].fill(0xff);
    loud.send(vec![broadcast; 4000]);
    quiet.send(vec![frame(0, 2, 60); 12_000]);
    host.run();
    let [broadcasts, one] = while_second_sends(&sink.expect(16_000));
    // Each reaches two ports: an eighth of them. Half, if only the copies were charged.
    assert_eq!(one, 12_000);
    assert!((750..3000).contains(&broadcasts), "{broadcasts} broadcasts");
}
