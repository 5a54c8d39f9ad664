//! A device that is killed between any two of its stores, and the one that comes after it.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::kill;
use crate::model::{BUFFERS, Layout, Model, Packed, Piece, memory};
use crate::region::Memory;
use crate::{Body, DeviceRing, Gather, GrantCopyBatch, PackedDevice, Put, Recovery};

/// The operations of both sides of a ring.
#[derive(Clone, Debug)]
enum Op {
    /// The driver adds and publishes chains of these numbers of pieces, directly or through a
    /// table.
    Add(Vec<(u16, bool)>),
    /// The device gives this number of chains back, oldest first, and publishes them.
    Serve(usize),
    /// As before, but the device is killed after a number of stores.
    Kill { serve: usize, stores: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let chain = (1u16..4, any::<bool>());
    prop_oneof![
        4 => prop::collection::vec(chain, 1..6).prop_map(Op::Add),
        2 => (0usize..8).prop_map(Op::Serve),
        3 => (0usize..8, 0u64..20).prop_map(|(serve, stores)| Op::Kill { serve, stores }),
    ]
}

/// A ring, its driver, and a device that is killed now and then.
struct Station {
    mem: std::sync::Arc<Memory>,
    model: Packed,
    device: PackedDevice,
    /// Whether the device writes into the buffers.
    receives: bool,
    /// Buffer ids that the driver has not got back, oldest first.
    outstanding: VecDeque<u16>,
}

impl Station {
    fn new(size: u16, start: u32, receives: bool) -> Station {
        let mem = memory();
        let model = Packed::new(mem.clone(), size, start);
        let device = model.device(&mem);
        Station { mem, model, device, receives, outstanding: VecDeque::new() }
    }

    fn add(&mut self, pieces: u16, indirect: bool) {
        let piece = Piece { addr: BUFFERS, len: 64, write: self.receives };
        let layout = match indirect {
            true => Layout::Indirect(0, BUFFERS + 0x1000 * (1 + self.outstanding.len() as u64 % 8)),
            false => Layout::Direct,
        };
        self.outstanding.extend(self.model.add(&vec![piece; usize::from(pieces)], layout));
        self.model.publish();
    }

    /// Gives up to `n` chains back, without publishing them.
    fn give_back(&mut self, n: usize) {
        if self.receives {
            for _ in 0..n {
                let body = Body::empty();
                let grant_copies = &mut GrantCopyBatch::new();
                let put = self.device.put(&mut [0; 12], &[7; 20], body, true, grant_copies);
                assert!(matches!(put, Ok(Put::Done | Put::Full)), "{put:?}");
            }
        } else {
            let n = self.device.fetch(&mut Gather::new(0), &mut Vec::new(), n).unwrap();
            self.device.complete(n);
        }
    }

    /// The driver takes back the used chains: the oldest ones, each once. Returns their number.
    fn collect(&mut self) -> usize {
        let used = self.model.used();
        for (id, _) in &used {
            assert_eq!(Some(*id), self.outstanding.pop_front());
        }
        used.len()
    }

    fn serve(&mut self, n: usize) {
        self.give_back(n);
        self.device.publish();
        self.collect();
    }

    /// Starts a new device, which is told that the ring is at its start.
    fn replace(&mut self) -> Recovery {
        kill::after(u64::MAX);
        let mut config = self.model.config();
        config.start = Packed::origin();
        self.device = PackedDevice::new(self.mem.clone(), &config).unwrap();
        self.device.recover(None)
    }

    /// Kills the device after `stores` while it gives `n` chains back, and the next one after
    /// `again` while it recovers.
    fn kill(&mut self, n: usize, stores: u64, again: u64) -> Recovery {
        kill::after(stores);
        self.give_back(n);
        self.device.publish();
        kill::after(u64::MAX);
        // The driver goes on.
        self.collect();
        kill::after(again);
        let mut config = self.model.config();
        config.start = Packed::origin();
        PackedDevice::new(self.mem.clone(), &config).unwrap().recover(None);
        let recovery = self.replace();
        self.collect();
        assert_eq!(self.device.position(), self.model.position());
        recovery
    }

    /// All that the driver ever made available comes back.
    fn drain(&mut self) {
        while !self.outstanding.is_empty() {
            let before = self.outstanding.len();
            self.serve(8);
            assert!(self.outstanding.len() < before, "a chain is lost");
        }
    }
}

fn runs(size: u16, start: u32, receives: bool, again: u64, ops: Vec<Op>) {
    let mut station = Station::new(size, start, receives);
    for op in ops {
        match op {
            Op::Add(chains) => chains.into_iter().for_each(|(n, table)| station.add(n, table)),
            Op::Serve(n) => station.serve(n),
            Op::Kill { serve, stores } => drop(station.kill(serve, stores, again)),
        }
    }
    station.drain();
}

fn start_of(word: u16, size: u16) -> u32 {
    let word = u32::from((word % size) | word & 0x8000);
    word | word << 16
}

proptest! {
    #[test]
    fn a_killed_transmit_ring_loses_no_chain_and_repeats_none(
        size in 3u16..40,
        start in any::<u16>(),
        again in prop_oneof![Just(u64::MAX), 0u64..8],
        ops in prop::collection::vec(op(), 0..60),
    ) {
        runs(size, start_of(start, size), false, again, ops);
    }

    #[test]
    fn a_killed_receive_ring_loses_no_buffer_and_repeats_none(
        size in 3u16..40,
        start in any::<u16>(),
        again in prop_oneof![Just(u64::MAX), 0u64..8],
        ops in prop::collection::vec(op(), 0..60),
    ) {
        runs(size, start_of(start, size), true, again, ops);
    }

    #[test]
    fn no_flags_lead_out_of_the_ring(
        flags in prop::collection::vec(any::<u16>(), 1..20),
        told in any::<u16>(),
    ) {
        let mem = memory();
        let size = flags.len() as u16;
        let model = Packed::new(mem.clone(), size, Packed::origin());
        for (i, flags) in (0..).zip(&flags) {
            mem.write(model.desc(i) + 14, &flags.to_le_bytes()).unwrap();
        }
        if let Some(found) = (Snapshot { flags: &flags }).survey() {
            prop_assert!(found.first.index < size && found.unpublished <= size);
            prop_assert!(found.unpublished + found.marked <= size);
            let mut config = model.config();
            config.start = start_of(told, size);
            let mut device = PackedDevice::new(mem, &config).unwrap();
            device.recover(None);
            prop_assert!((device.position() as u16 & 0x7fff) < size);
            let _ = device.fetch(&mut Gather::new(0), &mut Vec::new(), 64);
        }
    }
}

/// Every burst of up to four chains of one to three descriptors, at every place of a small ring,
/// killed after every number of stores.
#[test]
fn every_kill_of_every_small_burst_is_survived() {
    const SIZE: u16 = 7;
    for (start, shape, receives) in (0..2 * SIZE)
        .flat_map(|start| (0..27u16).map(move |shape| (start, shape)))
        .flat_map(|(start, shape)| [(start, shape, false), (start, shape, true)])
    {
        let word = (start % SIZE) | if start < SIZE { 0x8000 } else { 0 };
        for stores in 0..8 {
            let mut station = Station::new(SIZE, start_of(word, SIZE), receives);
            for chain in [shape / 9, shape / 3 % 3, shape % 3] {
                station.add(chain + 1, false);
            }
            station.kill(3, stores, u64::MAX);
            station.drain();
        }
    }
}

#[test]
fn a_ring_that_stands_where_it_is_told_is_left_alone() {
    let mut station = Station::new(8, Packed::origin(), false);
    assert_eq!(station.replace(), Recovery::AsTold);
    station.add(1, false);
    assert_eq!(station.replace(), Recovery::AsTold);
    station.serve(1);
    assert_eq!(station.replace(), Recovery::Moved { told: 0x8000, found: 0x8001 });
}

#[test]
fn a_ring_without_a_mark_is_where_it_is_told() {
    let mem = memory();
    let mut config = Packed::new(mem.clone(), 8, Packed::origin()).config();
    mem.write(config.desc, &[0; 8 * 16]).unwrap();
    config.start = 0x0003_0003;
    let mut device = PackedDevice::new(mem, &config).unwrap();
    assert_eq!(device.recover(None), Recovery::AsTold);
    assert_eq!(device.position(), 0x0003_0003);
}

/// Another back-end marks only the first descriptor of a chain. Two such chains with others between
/// them are no state that this device produces.
#[test]
fn contradictions_are_reported() {
    const AVAILABLE: u16 = DESC_AVAIL;
    const USED: u16 = DESC_AVAIL | DESC_USED;
    let survey = |flags: [u16; 8]| Snapshot { flags: &flags }.survey();
    assert_eq!(survey([USED, AVAILABLE, USED, AVAILABLE, USED, USED, 0, 0]), None);
    // The driver was writing.
    assert_eq!(survey([USED, 0, AVAILABLE, 0, 0, 0, 0, 0]), None);
    // Position 6 is certain.
    let idle = survey([USED, USED, USED, USED, USED, USED, 0, 0]).unwrap();
    assert_eq!((idle.first, idle.unpublished), (Place { index: 6, wrap: true }, 0));
}

/// A ring with such contradictions, and a record of it.
fn recorded(old: Place, new: Place) -> (Recovery, u32) {
    let mem = memory();
    let config = Packed::new(mem.clone(), 8, Packed::origin()).config();
    let flags =
        [DESC_AVAIL | DESC_USED, DESC_AVAIL, DESC_AVAIL | DESC_USED, DESC_AVAIL, 0xffff, 0, 0, 0];
    for (i, flags) in (0..).zip(flags) {
        mem.write(config.desc + 16 * i + 14, &flags.to_le_bytes()).unwrap();
    }
    let record = RingRecord::create(mem.clone(), crate::model::HIGH, true, 8).unwrap();
    record.set_positions(old, new);
    let mut device = PackedDevice::new(mem, &config).unwrap();
    (device.recover(Some(record)), device.position())
}

#[test]
fn a_record_helps_where_the_ring_does_not() {
    let place = |index| Place { index, wrap: true };
    let moved = |found| (Recovery::Moved { told: 0x8000, found }, found << 16 | found);
    assert_eq!(recorded(place(3), place(3)), moved(0x8003));
    // The step to the new position was not published, or was.
    assert_eq!(recorded(place(3), place(5)), moved(0x8003));
    assert_eq!(recorded(place(2), place(5)), moved(0x8005));
    // No such position in the ring.
    assert_eq!(recorded(place(8), place(3)).0, Recovery::Unclear);
    assert_eq!(recorded(place(3), place(0x7fff)).0, Recovery::Unclear);
}
