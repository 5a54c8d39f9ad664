//! Tests of both drivers against both devices of this crate, and against hostile devices.

use crate::grant_copy_batch::GrantCopyBatch;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::device::{DeviceRing, Put};
use crate::gather::Gather;
use crate::packed::device::PackedDevice;
use crate::packed::driver::PackedDriver;
use crate::split::device::SplitDevice;
use crate::split::driver::SplitDriver;

const SIZE: u16 = 8;
const DATA: u64 = 0x8000;

/// A ring at fixed places in fresh memory; `tables` of four descriptors if wanted.
fn setup<D: DriverRing>(
    event_idx: bool,
    indirect: bool,
    start: u32,
) -> (Arc<Memory>, RingConfig, D) {
    let (mem, _) = Memory::shared(1 << 20).unwrap();
    let mem = Arc::new(mem);
    let config = RingConfig {
        size: SIZE,
        desc: 0x1000,
        driver: 0x2000,
        device: 0x3000,
        event_idx,
        indirect,
        start,
    };
    let tables = indirect.then_some(Tables { addr: 0x4000, entries: 4 });
    let driver = D::new(mem.clone(), &config, tables).unwrap();
    (mem, config, driver)
}

fn both<D: DriverRing, B: DeviceRing>(
    event_idx: bool,
    indirect: bool,
    start: u32,
) -> (Arc<Memory>, D, B) {
    let (mem, config, driver) = setup::<D>(event_idx, indirect, start);
    let device = B::new(mem.clone(), &config).unwrap();
    (mem, driver, device)
}

/// `count` pieces of 16 bytes each, a cache line apart, filled with `byte`.
fn pieces(mem: &Memory, slot: u64, count: usize, byte: u8) -> Vec<Piece> {
    let piece = |i| Piece { addr: DATA + slot * 512 + i as u64 * 64, len: 16 };
    let pieces: Vec<Piece> = (0..count).map(piece).collect();
    for piece in &pieces {
        mem.write(piece.addr, &[byte; 16]).unwrap();
    }
    pieces
}

fn collect<D: DriverRing>(driver: &mut D) -> Vec<Used> {
    let mut used = [Used::default(); 64];
    let count = driver.collect(&mut used).unwrap();
    used[..count].to_vec()
}

/// Sends chains of these lengths in bursts, and gives what the device completes back at once.
fn exchange<D: DriverRing, B: DeviceRing>(
    bursts: &[Vec<usize>],
    event_idx: bool,
    indirect: bool,
    start: u32,
) {
    let (mem, mut driver, mut device) = both::<D, B>(event_idx, indirect, start);
    let (mut gather, mut chains, mut byte) = (Gather::new(64), Vec::new(), 0u8);
    for burst in bursts {
        let mut ids = Vec::new();
        for (slot, count) in burst.iter().enumerate() {
            byte = byte.wrapping_add(1);
            let id = driver.add(&pieces(&mem, slot as u64, *count, byte), Direction::Out);
            ids.extend(id.map(|id| (id, *count, byte)));
        }
        chains.clear();
        gather.clear();
        assert_eq!(
            device.fetch(&mut gather, &mut chains, 64).unwrap(),
            0,
            "nothing is visible before publication"
        );
        driver.publish();
        assert_eq!(device.fetch(&mut gather, &mut chains, 64).unwrap(), ids.len());
        for (chain, (_, count, byte)) in chains.iter().zip(&ids) {
            let mut bytes = vec![0; chain.len() as usize];
            gather.body(*chain).read(&mut bytes);
            assert_eq!(bytes, vec![*byte; 16 * count]);
        }
        device.complete(ids.len());
        assert!(!driver.pending());
        device.publish();
        let used = collect(&mut driver);
        assert_eq!(used, ids.iter().map(|(id, ..)| Used { id: *id, len: 0 }).collect::<Vec<_>>());
    }
    assert_eq!(driver.room(1), usize::from(SIZE), "all descriptors came back");
}

proptest! {
    #[test]
    fn what_is_added_arrives_and_comes_back(
        bursts in prop::collection::vec(prop::collection::vec(1usize..5, 0..9), 1..40),
        event_idx: bool,
        indirect: bool,
    ) {
        exchange::<SplitDriver, SplitDevice>(&bursts, event_idx, indirect, 0xfffd);
        exchange::<PackedDriver, PackedDevice>(&bursts, event_idx, indirect, 0x8000_8000);
        exchange::<PackedDriver, PackedDevice>(&bursts, event_idx, indirect, 0x0005_0005);
    }
}

fn room<D: DriverRing>() {
    let (mem, _, mut driver) = setup::<D>(false, false, 0);
    assert_eq!((driver.room(1), driver.room(3)), (8, 2));
    assert_eq!(driver.add(&[], Direction::Out), None);
    assert_eq!(driver.add(&pieces(&mem, 0, 9, 0), Direction::Out), None);
    for slot in 0..2 {
        assert!(driver.add(&pieces(&mem, slot, 3, 0), Direction::Out).is_some());
    }
    assert_eq!(driver.add(&pieces(&mem, 2, 3, 0), Direction::Out), None, "2 descriptors are left");
    assert!(driver.add(&pieces(&mem, 2, 2, 0), Direction::Out).is_some());
    assert_eq!(driver.room(1), 0);
    let (mem, _, mut driver) = setup::<D>(false, true, 0);
    assert_eq!(driver.room(3), 8, "one descriptor for a table");
    assert_eq!(
        driver.add(&pieces(&mem, 0, 5, 0), Direction::Out),
        None,
        "tables have four entries"
    );
}

#[test]
fn a_ring_takes_what_it_has_room_for() {
    room::<SplitDriver>();
    room::<PackedDriver>();
}

fn receives<D: DriverRing, B: DeviceRing>(start: u32) {
    let (mem, mut driver, mut device) = both::<D, B>(true, false, start);
    let mut ids = Vec::new();
    for slot in 0..8 {
        ids.extend(driver.add(&pieces(&mem, slot, 1, 0), Direction::In));
    }
    driver.publish();
    device.prepare(8).unwrap();
    let gather = Gather::new(1);
    let empty = gather.body(Default::default());
    let mut net = [0; 12];
    assert_eq!(
        device.put(&mut net, &[7; 25], empty, true, &mut GrantCopyBatch::new()).unwrap(),
        Put::Done
    );
    assert_eq!(collect(&mut driver), [], "a frame appears as a whole");
    device.publish();
    let used = collect(&mut driver);
    assert_eq!(
        used.iter().map(|u| (u.id, u.len)).collect::<Vec<_>>(),
        [(ids[0], 16), (ids[1], 16), (ids[2], 5)]
    );
    let mut first = [0; 16];
    mem.read(DATA, &mut first).unwrap();
    assert_eq!(first[10..], [3, 0, 7, 7, 7, 7], "three buffers, then the frame");
}

#[test]
fn frames_come_in_several_buffers() {
    receives::<SplitDriver, SplitDevice>(0);
    receives::<PackedDriver, PackedDevice>(0x8000_8000);
}

/// A driver that asks for interrupts gets them, and another one gets none.
fn doorbells<D: DriverRing, B: DeviceRing>(event_idx: bool, start: u32) {
    let (mem, mut driver, mut device) = both::<D, B>(event_idx, false, start);
    let (mut gather, mut chains) = (Gather::new(64), Vec::new());
    for (kick, interrupt) in
        [(true, true), (false, true), (true, false), (false, false), (true, true), (true, true)]
    {
        if kick {
            assert!(!device.arm().unwrap(), "nothing there yet");
        } else {
            device.disarm();
        }
        driver.add(&pieces(&mem, 0, 1, 1), Direction::Out);
        assert_eq!(driver.publish(), kick);
        assert!(!driver.publish(), "nothing was added since");
        chains.clear();
        gather.clear();
        assert_eq!(device.fetch(&mut gather, &mut chains, 8).unwrap(), 1);
        if interrupt {
            assert!(!driver.arm(), "nothing there yet");
        } else {
            driver.disarm();
        }
        device.complete(1);
        assert_eq!(device.publish(), interrupt);
        assert!(driver.pending());
        assert!(driver.arm(), "too late to sleep");
        driver.disarm();
        assert_eq!(collect(&mut driver).len(), 1);
    }
}

#[test]
fn doorbells_ring_when_they_are_wanted() {
    for event_idx in [false, true] {
        doorbells::<SplitDriver, SplitDevice>(event_idx, 0xfffe);
        doorbells::<PackedDriver, PackedDevice>(event_idx, 0x8000_8000);
    }
}

/// A device that writes whatever it is told to a split driver's used ring.
struct FaultyDevice {
    mem: Arc<Memory>,
    used: u64,
    index: u16,
}

impl FaultyDevice {
    fn write(&mut self, entries: &[(u32, u32)]) {
        for (id, len) in entries {
            let entry = [id.to_le_bytes(), len.to_le_bytes()].concat();
            self.mem.write(self.used + 4 + 8 * u64::from(self.index % SIZE), &entry).unwrap();
            self.index = self.index.wrapping_add(1);
        }
        self.mem.write(self.used + 2, &self.index.to_le_bytes()).unwrap();
    }
}

/// A split driver with chains of 1, 2 and 3 receive buffers in flight.
fn split_in_flight() -> (SplitDriver, Vec<u16>, FaultyDevice) {
    let (mem, config, mut driver) = setup::<SplitDriver>(false, false, 0);
    let add = |n| driver.add(&pieces(&mem, n as u64, n, 0), Direction::In).unwrap();
    let ids = (1..4).map(add).collect();
    driver.publish();
    (driver, ids, FaultyDevice { mem, used: config.device, index: 0 })
}

#[test]
fn split_chains_may_come_back_in_any_order() {
    let (mut driver, ids, mut device) = split_in_flight();
    device.write(&[(ids[2].into(), 48), (ids[0].into(), 0), (ids[1].into(), 1)]);
    let used: Vec<u16> = collect(&mut driver).iter().map(|u| u.id).collect();
    assert_eq!(used, [ids[2], ids[0], ids[1]]);
    assert_eq!(driver.room(1), 8);
    let all: Vec<u16> =
        (0..8).filter_map(|i| driver.add(&[Piece { addr: i, len: 1 }], Direction::In)).collect();
    let mut sorted = all.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..8).collect::<Vec<u16>>(), "every descriptor is free once");
}

#[test]
fn split_devices_that_lie_are_found_out() {
    let mut used = [Used::default(); 8];
    type Lie = fn(&[u16]) -> (Vec<(u32, u32)>, BadUsed);
    let lies: [Lie; 5] = [
        |_| (vec![(0, 0); 4], BadUsed::Index { moved: 4, in_flight: 3 }),
        |_| (vec![(8, 0)], BadUsed::Id(8)),
        |_| (vec![(0x1_0000, 0)], BadUsed::Id(0x1_0000)),
        |ids| (vec![(ids[0].into(), 0), (ids[0].into(), 0)], BadUsed::Id(ids[0].into())),
        |ids| (vec![(ids[1].into(), 33)], BadUsed::Length { len: 33, capacity: 32 }),
    ];
    for lie in lies {
        let (mut driver, ids, mut device) = split_in_flight();
        let (entries, expected) = lie(&ids);
        device.write(&entries);
        assert_eq!(driver.collect(&mut used), Err(expected));
    }
    // The middle of a chain is not its head.
    let (mut driver, ids, mut device) = split_in_flight();
    device.write(&[(u32::from(ids[1]) + 1, 0)]);
    assert!(matches!(driver.collect(&mut used), Err(BadUsed::Id(_))));
}

#[test]
fn packed_devices_that_lie_are_found_out() {
    let mut used = [Used::default(); 8];
    for (id, len, expected) in [
        (8u16, 0u32, BadUsed::Id(8)),
        (0xffff, 0, BadUsed::Id(0xffff)),
        (0, 17, BadUsed::Length { len: 17, capacity: 16 }),
    ] {
        let (mem, config, mut driver) = setup::<PackedDriver>(false, false, 0x8000_8000);
        assert_eq!(driver.add(&pieces(&mem, 0, 1, 0), Direction::In), Some(0));
        driver.publish();
        let entry = [&len.to_le_bytes()[..], &id.to_le_bytes(), &0x8080u16.to_le_bytes()].concat();
        mem.write(config.desc + 8, &entry).unwrap();
        assert_eq!(driver.collect(&mut used), Err(expected));
    }
}

#[test]
fn a_device_that_scribbles_over_descriptors_does_not_confuse_the_driver() {
    let (mem, config, mut driver) = setup::<SplitDriver>(false, false, 0);
    for round in 0..20u16 {
        let id = driver.add(&pieces(&mem, 0, 3, 0), Direction::Out).unwrap();
        driver.publish();
        mem.write(config.desc, &[0xff; 16 * SIZE as usize]).unwrap();
        let entry = [u32::from(id).to_le_bytes(), [0; 4]].concat();
        mem.write(config.device + 4 + 8 * u64::from(round % SIZE), &entry).unwrap();
        mem.write(config.device + 2, &(round + 1).to_le_bytes()).unwrap();
        assert_eq!(collect(&mut driver), [Used { id, len: 0 }]);
        assert_eq!(driver.room(1), 8);
    }
}

#[test]
fn rings_that_cannot_be_are_refused() {
    let (mem, config, _) = setup::<SplitDriver>(false, false, 0);
    let new = |change: fn(&mut RingConfig)| {
        let mut config = config;
        change(&mut config);
        (
            SplitDriver::new(mem.clone(), &config, None).err(),
            PackedDriver::new(mem.clone(), &config, None).err(),
        )
    };
    assert_eq!(new(|c| c.size = 0), (Some(Violation::QueueSize(0)), Some(Violation::QueueSize(0))));
    assert_eq!(new(|c| c.size = 7), (Some(Violation::QueueSize(7)), None));
    assert!(matches!(
        new(|c| c.desc += 8),
        (Some(Violation::Misaligned { .. }), Some(Violation::Misaligned { .. }))
    ));
    assert!(matches!(new(|c| c.desc = 1 << 20), (Some(Violation::RingOutside { .. }), Some(_))));
    assert_eq!(new(|c| c.start = 0x8008).1, Some(Violation::Start(0x8008)));
}

#[test]
fn a_window_copies_both_ways_within_its_bounds() {
    let (mem, _) = Memory::shared(0x3000).unwrap();
    let mem = Arc::new(mem);
    let window = Window::new(&mem, 0x1000, 0x1000, 64).unwrap();
    window.write(0xffd, &[1, 2, 3]);
    let mut bytes = [0; 3];
    mem.read(0x1ffd, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3]);
    window.read(0xffd, &mut bytes);
    assert_eq!(bytes, [1, 2, 3]);
    let beyond =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| window.write(0xffe, &[1, 2, 3])));
    assert!(beyond.is_err());
    assert!(Window::new(&mem, 0x2000, 0x1001, 64).is_err());
}
