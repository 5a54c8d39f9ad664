//! Costs of frames beyond their bytes, and the ports that are charged with them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::peer::{MEMORY, Peer, port, udp};
use frame::{Accepts, VNET_LEN};
use network::count::DropReason;
use network::fabric::{Fabric, Workers};
use network::manual::ManualWorker;
use ring::region::Memory;
use runtime::ThreadUsage;
use rustix::fs::{FallocateFlags, fallocate};
use switch::{PortId, PortRule};

/// A worker, and ports of one queue each: port `n` is station `n`.
struct Host {
    fabric: Fabric,
    worker: ManualWorker,
    ports: Vec<PortId>,
    peers: Vec<Peer>,
    now: Instant,
}

impl Host {
    /// Station 0 takes no offload and has room for so many frames; the others take all.
    fn new(stations: usize, room: usize) -> Host {
        Self::with_faults(stations, room, None)
    }

    /// The same, whose worker counts page faults like that.
    fn with_faults(stations: usize, room: usize, usage: Option<fn() -> ThreadUsage>) -> Host {
        let config = Workers { count: 1, usage, ..Workers::default() };
        let (fabric, workers) = Fabric::manual(&config).unwrap();
        let mut worker = workers.into_iter().next().unwrap();
        let ports: Vec<PortId> =
            (0..stations).map(|_| port(&fabric, PortRule::default()).0).collect();
        let attach = |(station, &port): (usize, &PortId)| {
            let (accepts, room) = match station {
                0 => (Accepts::default(), room),
                _ => (Accepts::ALL, usize::MAX),
            };
            worker.run_while(|| Peer::attach(&fabric, port, 0, accepts, room))
        };
        let peers: Vec<Peer> = ports.iter().enumerate().map(attach).collect();
        let mut host = Host { fabric, worker, ports, peers, now: Instant::now() };
        host.peers[0].send([udp(99, 0, 1, 0, 60)]);
        host.rounds(100);
        assert_eq!(host.peers[0].completed(), 1);
        host
    }

    /// One more port, whose frames lie in `memory`.
    fn add(&mut self, memory: Memory) -> Peer {
        let port = port(&self.fabric, PortRule::default()).0;
        self.ports.push(port);
        let fabric = &self.fabric;
        self.worker.run_while(|| Peer::attach_in(memory, fabric, port, 0, Accepts::ALL, usize::MAX))
    }

    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.now += Duration::from_micros(50);
            self.worker.run_once(self.now);
        }
    }

    /// Sends a datagram of `len` bytes to station 0, to be cut into segments with `size` bytes of
    /// payload.
    fn send_segmented(&self, from: usize, len: usize, size: u16) {
        let mut vnet = [1, 5, 42, 0, 0, 0, 34, 0, 6, 0, 0, 0];
        vnet[4..6].copy_from_slice(&size.to_le_bytes());
        assert_eq!(vnet.len(), VNET_LEN);
        self.peers[from].send_with(vnet, &udp(0, from as u8, 1, 0, len));
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.fabric.counters(self.ports[0])[0].dropped(reason)
    }

    /// Every frame is accounted for.
    fn assert_balanced(&self) {
        let queues = self.ports.iter().flat_map(|&port| self.fabric.counters(port));
        let [mut into, mut out] = [0, 0];
        for queue in queues {
            into += queue.tx.frames.get() + queue.copies.get();
            out += queue.rx.frames.get() + queue.dropped_total();
        }
        assert_eq!(into, out);
    }
}

#[test]
fn segments_in_software_take_no_more_than_a_share() {
    let mut host = Host::new(3, usize::MAX);
    for _ in 0..400 {
        host.send_segmented(1, 50_042, 1448);
    }
    host.peers[2].send((0..4000).map(|n| udp(0, 2, 1, n, 1514)));
    host.rounds(3000);
    let received = host.peers[0].received();
    let last = received.iter().rposition(|frame| frame[11] == 2).unwrap();
    let of = |station| received[..last].iter().filter(|frame| frame[11] == station).count();
    assert_eq!(of(2), 3999);
    // As many frames as cost as much: 48 of them, of 35 segments. Five times as many, were only
    // their bytes charged.
    let segments = of(1);
    assert!((1200..2300).contains(&segments), "{segments} segments");
    host.assert_balanced();
}

#[test]
fn tiny_segments_are_refused_under_a_name() {
    let mut host = Host::new(2, usize::MAX);
    host.send_segmented(1, 60_000, 255);
    host.send_segmented(1, 2602, 256);
    host.rounds(10);
    assert_eq!(host.dropped(DropReason::SegmentTooSmall), 1);
    assert_eq!(host.peers[0].received().len(), 10);
    host.assert_balanced();
}

#[test]
fn segmentation_ends_when_the_receiver_is_full() {
    let mut host = Host::new(2, 3);
    host.send_segmented(1, 50_042, 1448);
    host.rounds(10);
    assert_eq!(host.peers[0].received().len(), 3);
    assert_eq!(host.dropped(DropReason::RxFull), 35 - 3);
    host.assert_balanced();
}

#[test]
fn a_receiver_in_small_pieces_loses_frames_for_what_it_costs() {
    let mut host = Host::new(2, usize::MAX);
    host.peers[0].scatter(152);
    host.peers[1].send((0..6400).map(|n| udp(0, 1, 1, n, 60)));
    let start = Instant::now();
    host.rounds(200);
    let time = start.elapsed();
    let received = host.peers[0].received().len() as u64;
    assert_eq!(received + host.dropped(DropReason::RxCostly), 6400);
    // Of 152 pieces, 32 are free. The others cost as much as 29 frames of 60 bytes, of which one
    // is paid for. Frames are charged after their burst of 64. A fiftieth of the time pays, too: a
    // piece costs 512 bytes, and 16 are copied in a nanosecond.
    let paid_by_time = time.as_nanos() as u64 * 16 / 50 / (119 * 512);
    assert!((100..250 + 64 + paid_by_time).contains(&received), "{received} frames in {time:?}");
    host.assert_balanced();
}

#[test]
fn buffers_in_a_few_pieces_lose_nothing() {
    let mut host = Host::new(2, usize::MAX);
    host.peers[0].scatter(4);
    host.peers[1].send((0..6400).map(|n| udp(0, 1, 1, n, 60)));
    host.rounds(200);
    assert_eq!(host.peers[0].received().len(), 6400);
    host.assert_balanced();
}

/// The faults of this thread, which loses its processor again and again and never sleeps. A fault
/// then costs no more than a slow one: on a machine that stalls, each port would wait for as long
/// as its faults happened to take.
fn usage_of_busy_machine() -> ThreadUsage {
    static LOOKS: AtomicU64 = AtomicU64::new(0);
    let preemptions = LOOKS.fetch_add(1, Ordering::Relaxed);
    ThreadUsage { sleeps: 0, preemptions, ..ThreadUsage::now() }
}

#[test]
fn page_faults_are_charged_to_the_port_that_causes_them() {
    let mut host = Host::with_faults(2, usize::MAX, Some(usage_of_busy_machine));
    let (memory, file) = Memory::shared(MEMORY).unwrap();
    let loud = host.add(memory);
    let punch = || {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, flags, 0, MEMORY as u64).unwrap();
    };
    let frames = |from: u8, count: u32| (0..count).map(move |n| udp(0, from, 1, n, 30_000));
    // The first faults are found by samples.
    let faults = |host: &Host| host.fabric.counters(host.ports[2])[0].page_faults.get();
    for round in 0.. {
        punch();
        loud.send(frames(2, 1));
        host.rounds(1);
        if faults(&host) > 0 {
            break;
        }
        assert!(round < 10_000, "nothing is measured");
    }
    host.rounds(100);
    let (before, quiet) = (loud.completed(), host.peers[1].clone());
    loud.send(frames(2, 3000));
    quiet.send(frames(1, 3000));
    while quiet.completed() < 3000 {
        punch();
        host.rounds(1);
    }
    let meanwhile = loud.completed() - before;
    // Fewer still would be its share by cost: it also waits for what its faults take.
    assert!(meanwhile < 750, "{meanwhile} frames out of holes, and 3000 others");
    assert!(host.fabric.counters(host.ports[2])[0].fault_waits.get() > 0);
    // Its 64 slots of 8 pages were touched for the first time.
    let first = host.fabric.counters(host.ports[1])[0].page_faults.get();
    assert!(first <= 2 * 64 * 8, "{first} faults of the quiet one");
    // Its memory stays there from now on.
    while loud.completed() - before < 3000 {
        host.rounds(100);
    }
    host.assert_balanced();
}
