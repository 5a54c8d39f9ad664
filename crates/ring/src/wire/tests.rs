//! A wire between our own drivers.

use super::*;
use crate::driver::{Direction, DriverRing, Piece, Used};
use crate::split::driver::SplitDriver;

const SIZE: u16 = 8;
const DATA: u64 = 0x8000;

struct Guest {
    mem: Arc<Memory>,
    config: RingConfig,
    driver: SplitDriver,
}

impl Guest {
    fn new() -> Self {
        let mem = Arc::new(Memory::shared(1 << 20).unwrap().0);
        let config = RingConfig {
            size: SIZE,
            desc: 0x1000,
            driver: 0x2000,
            device: 0x3000,
            event_idx: false,
            indirect: false,
            start: 0,
        };
        let driver = SplitDriver::new(mem.clone(), &config, None).unwrap();
        Self { mem, config, driver }
    }

    fn give(&mut self, slot: u64, len: u32, direction: Direction) {
        let piece = Piece { addr: DATA + slot * 0x1000, len };
        self.driver.add(&[piece], direction).unwrap();
        self.driver.publish();
    }

    fn taken(&mut self) -> Vec<u32> {
        let mut used = [Used::default(); 64];
        let count = self.driver.collect(&mut used).unwrap();
        used[..count].iter().map(|used| used.len).collect()
    }

    fn bytes(&self, slot: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mem.read(DATA + slot * 0x1000, &mut bytes).unwrap();
        bytes
    }
}

fn pair() -> (Guest, Guest, Wire) {
    let (from, to) = (Guest::new(), Guest::new());
    let wire = Wire::new((from.mem.clone(), &from.config), (to.mem.clone(), &to.config)).unwrap();
    (from, to, wire)
}

fn frame(len: usize) -> Vec<u8> {
    (0..len).map(|at| if at < 12 { 0 } else { at as u8 }).collect()
}

#[test]
fn frames_arrive_and_both_sides_learn_it() {
    let (mut from, mut to, mut wire) = pair();
    for round in 0..20 {
        from.mem.write(DATA, &frame(76)).unwrap();
        from.give(0, 76, Direction::Out);
        assert_eq!(wire.carry(64), Ok(0), "round {round}: there is no buffer yet");
        to.give(1, 200, Direction::In);
        assert_eq!(wire.carry(64), Ok(1));
        assert_eq!((from.taken(), to.taken()), (vec![0], vec![76]));
        let mut expected = frame(76);
        expected[10] = 1;
        assert_eq!(to.bytes(1, 76), expected);
    }
}

#[test]
fn a_frame_spreads_over_buffers_when_there_are_enough() {
    let (mut from, mut to, mut wire) = pair();
    from.mem.write(DATA, &frame(250)).unwrap();
    from.give(0, 250, Direction::Out);
    to.give(0, 100, Direction::In);
    to.give(1, 100, Direction::In);
    assert_eq!(wire.carry(64), Ok(0), "two buffers are too few");
    assert!(to.taken().is_empty());
    to.give(2, 100, Direction::In);
    assert_eq!(wire.carry(64), Ok(1));
    assert_eq!(to.taken(), [100, 100, 50]);
    let bytes = [to.bytes(0, 100), to.bytes(1, 100), to.bytes(2, 50)].concat();
    let mut expected = frame(250);
    expected[10] = 3;
    assert_eq!(bytes, expected);
}

#[test]
fn no_more_is_carried_than_is_asked_for_and_nothing_from_outside() {
    let (mut from, mut to, mut wire) = pair();
    for slot in 0..3 {
        from.give(slot, 64, Direction::Out);
        to.give(slot, 64, Direction::In);
    }
    assert_eq!(wire.carry(2), Ok(2));
    assert_eq!(wire.carry(2), Ok(1));
    let outside = Piece { addr: (1 << 20) - 32, len: 64 };
    from.driver.add(&[outside], Direction::Out).unwrap();
    from.driver.publish();
    to.give(0, 64, Direction::In);
    assert_eq!(wire.carry(2), Err(Violation::Outside { addr: outside.addr, len: 64 }));
}

#[test]
fn guests_notify_while_the_wire_sleeps_and_are_interrupted_while_they_do() {
    let (mut from, mut to, mut wire) = pair();
    let piece = Piece { addr: DATA, len: 64 };
    let add = |guest: &mut Guest, direction| {
        guest.driver.add(&[piece], direction).unwrap();
        guest.driver.publish()
    };
    assert!(!add(&mut to, Direction::In), "nobody sleeps");
    assert!(!wire.want_notifications(true), "there is no frame yet");
    assert!(add(&mut from, Direction::Out));
    assert!(wire.want_notifications(false), "there is a frame");
    assert!(!add(&mut from, Direction::Out));
    assert_eq!((wire.carry(64), wire.interrupts()), (Ok(1), [false, false]));
    assert!(to.driver.arm(), "a frame is there");
    assert_eq!(to.taken().len(), 1);
    assert!(!to.driver.arm());
    assert_eq!(wire.interrupts(), [false, true]);
    assert!(!wire.want_notifications(true), "there is no buffer");
    assert!(add(&mut to, Direction::In));
}
