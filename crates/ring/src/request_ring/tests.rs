//! Rings of requests against their driver, with a device that completes in any order and is killed
//! between any two of its stores.

use proptest::prelude::*;

use crate::driver::{DriverRing, Piece, Tables, Used};
use crate::kill;
use crate::packed::driver::PackedDriver;
use crate::split::driver::SplitDriver;
use crate::{PackedRequests, SplitRequests};

use super::*;

/// Requests are known by a number of eight bytes, which the device copies into its answer.
const TAG: u32 = 8;
const SIZE: u16 = 16;
const ENTRIES: u16 = 4;
/// The address of the requests' buffers, by the driver's numbers.
const BUFFERS: u64 = 1 << 14;

/// A driver, its memory, and the record that its front-end keeps.
struct Guest<D> {
    memory: Arc<Memory>,
    config: RingConfig,
    records: Arc<Memory>,
    packed: bool,
    driver: D,
    /// Requests by id: their numbers.
    waiting: Vec<Option<u64>>,
    sent: u64,
    answered: Vec<u64>,
}

impl<D: DriverRing> Guest<D> {
    fn new(packed: bool, event_idx: bool, indirect: bool) -> Guest<D> {
        let memory = Arc::new(Memory::anonymous(1 << 16).unwrap());
        let start = if packed { 0x8000_8000 } else { 0 };
        let ring = D::footprint(SIZE).at_zero(SIZE);
        let config = RingConfig { event_idx, indirect, start, ..ring };
        let tables = indirect.then_some(Tables { addr: 1 << 13, entries: ENTRIES });
        let driver = D::new(memory.clone(), &config, tables).unwrap();
        let records = Arc::new(Memory::anonymous(1 << 12).unwrap());
        RingRecord::create(records.clone(), 0, packed, SIZE).unwrap();
        let waiting = vec![None; usize::from(SIZE)];
        Guest { memory, config, records, packed, driver, waiting, sent: 0, answered: Vec::new() }
    }

    /// Adds a request of `pieces` + 1 descriptors. False: the ring is full.
    fn send(&mut self, pieces: usize) -> bool {
        // The id is known only afterwards, so buffers go by number.
        let at = BUFFERS + self.sent % 512 * 64;
        let readable = [Piece { addr: at, len: 4 }, Piece { addr: at + 4, len: 4 }];
        let readable = if pieces == 1 { &[Piece { addr: at, len: TAG }][..] } else { &readable };
        let writable = [Piece { addr: at + 16, len: TAG }];
        let Some(id) = self.driver.add_request(readable, &writable) else { return false };
        self.memory.write(at, &self.sent.to_le_bytes()).unwrap();
        self.memory.write(at + 16, &u64::MAX.to_le_bytes()).unwrap();
        assert_eq!(self.waiting[usize::from(id)].replace(self.sent), None, "an id in use");
        self.sent += 1;
        true
    }

    /// Takes answers, each of which has to be that to its request, and the only one.
    fn collect(&mut self) {
        let mut used = [Used::default(); SIZE as usize];
        let count = self.driver.collect(&mut used).unwrap();
        for Used { id, len } in &used[..count] {
            let number = self.waiting[usize::from(*id)].take().expect("answered twice");
            let mut answer = [0; TAG as usize];
            self.memory.read(BUFFERS + number % 512 * 64 + 16, &mut answer).unwrap();
            assert_eq!((u64::from_le_bytes(answer), *len), (number, TAG));
            self.answered.push(number);
        }
    }

    fn device<R: RequestRing>(&self) -> R {
        let record = RingRecord::open(self.records.clone(), 0, SIZE);
        assert!(record.is_some());
        // A front-end that lost its back-end knows the used index of a split ring, but not the
        // position of a packed one.
        let mut used = [0; 2];
        self.memory.read(self.config.device + 2, &mut used).unwrap();
        let start = if self.packed { 0x8000_8000 } else { u16::from_le_bytes(used).into() };
        let config = RingConfig { start, ..self.config };
        R::start(self.memory.clone(), &config, record).unwrap().0
    }
}

/// The requests that the device has taken: tokens, and the answers that they get.
struct Work<R> {
    ring: R,
    chain: IoChain,
    taken: Vec<(u16, [u8; TAG as usize])>,
}

impl<R: RequestRing> Work<R> {
    fn new(ring: R) -> Work<R> {
        Work { ring, chain: IoChain::default(), taken: Vec::new() }
    }

    /// Takes a request. False: there is none.
    fn take(&mut self) -> bool {
        let Some(token) = self.ring.take(&mut self.chain).unwrap() else { return false };
        assert!(self.taken.iter().all(|(other, _)| *other != token), "a token in use");
        let mut tag = [0; TAG as usize];
        assert!(self.chain.read(&mut tag) && self.chain.readable_len() == 0);
        assert_eq!(self.chain.write(&tag), TAG);
        self.taken.push((token, tag));
        true
    }

    fn complete(&mut self, which: usize) {
        if !self.taken.is_empty() {
            let (token, _) = self.taken.remove(which % self.taken.len());
            self.ring.complete(token, TAG);
        }
    }
}

/// One step of a test.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize),
    Take,
    Complete(usize),
    Publish,
    Collect,
    /// The device is killed after so many more of its stores.
    Kill(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1usize..3).prop_map(Step::Send),
        4 => Just(Step::Take),
        4 => (0usize..SIZE.into()).prop_map(Step::Complete),
        3 => Just(Step::Publish),
        2 => Just(Step::Collect),
        1 => (0u64..12).prop_map(Step::Kill),
    ];
    proptest::collection::vec(step, 1..300)
}

/// Carries out the steps, with a new device after each kill. In the end, each request is answered
/// once.
fn play<R: RequestRing, D: DriverRing>(guest: &mut Guest<D>, steps: &[Step]) {
    let mut device = Work::<R>::new(guest.device());
    let mut killed = false;
    for step in steps {
        match *step {
            Step::Send(pieces) => {
                guest.send(pieces);
                guest.driver.publish();
            }
            Step::Take => {
                device.take();
            }
            Step::Complete(which) => device.complete(which),
            Step::Publish => drop(device.ring.publish()),
            Step::Collect => guest.collect(),
            Step::Kill(stores) if !killed => {
                kill::after(stores);
                killed = true;
                continue;
            }
            Step::Kill(_) => {}
        }
        if killed && !kill::survives_now() {
            kill::after(u64::MAX);
            killed = false;
            device = Work::new(guest.device());
        }
    }
    kill::after(u64::MAX);
    drop(device);
    let mut device = Work::<R>::new(guest.device());
    while device.take() {}
    while !device.taken.is_empty() {
        device.complete(0);
    }
    device.ring.publish();
    guest.collect();
    let mut answered = std::mem::take(&mut guest.answered);
    answered.sort_unstable();
    assert_eq!(answered, (0..guest.sent).collect::<Vec<_>>());
    assert_eq!(device.ring.in_flight(), 0);
}

proptest! {
    #[test]
    fn split_requests_are_answered_once_whatever_is_killed(
        steps in steps(), event_idx: bool, indirect: bool,
    ) {
        play::<SplitRequests, SplitDriver>(&mut Guest::new(false, event_idx, indirect), &steps);
    }

    #[test]
    fn packed_requests_are_answered_once_whatever_is_killed(
        steps in steps(), event_idx: bool, indirect: bool,
    ) {
        play::<PackedRequests, PackedDriver>(&mut Guest::new(true, event_idx, indirect), &steps);
    }

    #[test]
    fn no_record_whatever_panics(
        bytes in proptest::collection::vec(any::<u8>(), 544), packed: bool, sent in 0usize..10,
    ) {
        fn attempt<R: RequestRing, D: DriverRing>(mut guest: Guest<D>, bytes: &[u8], sent: usize) {
            (0..sent).for_each(|_| _ = guest.send(1));
            guest.driver.publish();
            guest.records.write(16, &bytes[16..]).unwrap();
            let record = RingRecord::open(guest.records.clone(), 0, SIZE);
            let started = R::start(guest.memory.clone(), &guest.config, record);
            let Ok((mut ring, _)) = started else { return };
            let mut chain = IoChain::default();
            for _ in 0..2 * SIZE {
                if let Ok(Some(token)) = ring.take(&mut chain) {
                    ring.complete(token, 0);
                }
                ring.publish();
            }
        }
        match packed {
            true => attempt::<PackedRequests, PackedDriver>(Guest::new(true, true, false), &bytes, sent),
            false => attempt::<SplitRequests, SplitDriver>(Guest::new(false, true, false), &bytes, sent),
        }
    }
}

/// Requests that were in flight come in the order in which they were taken at first, and before
/// others.
fn order<R: RequestRing, D: DriverRing>(mut guest: Guest<D>) {
    let mut device = Work::<R>::new(guest.device());
    for _ in 0..3 {
        (0..4).for_each(|_| assert!(guest.send(1)));
        guest.driver.publish();
        while device.take() {}
        device.complete(1);
        device.complete(2);
        device.ring.publish();
        guest.collect();
    }
    assert!(guest.send(1));
    guest.driver.publish();
    let mut numbers: Vec<u64> =
        device.taken.iter().map(|(_, tag)| u64::from_le_bytes(*tag)).collect();
    let mut device = Work::<R>::new(guest.device());
    while device.take() {}
    numbers.push(12);
    let again: Vec<u64> = device.taken.iter().map(|(_, tag)| u64::from_le_bytes(*tag)).collect();
    assert_eq!(again, numbers);
}

#[test]
fn requests_in_flight_are_taken_again_in_order() {
    order::<SplitRequests, SplitDriver>(Guest::new(false, true, true));
    order::<PackedRequests, PackedDriver>(Guest::new(true, true, true));
    order::<SplitRequests, SplitDriver>(Guest::new(false, false, false));
    order::<PackedRequests, PackedDriver>(Guest::new(true, false, false));
}

#[test]
fn a_request_that_is_to_be_taken_again_is_not_in_flight_before() {
    fn check<R: RequestRing, D: DriverRing>(mut guest: Guest<D>) {
        let mut device = Work::<R>::new(guest.device());
        assert!(guest.send(1));
        guest.driver.publish();
        assert!(device.take());
        let (token, _) = device.taken[0];
        let mut device = Work::<R>::new(guest.device());
        device.ring.complete(token, TAG);
        assert_eq!((device.ring.in_flight(), device.ring.publish()), (0, None));
        assert!(device.take());
        device.complete(0);
        device.ring.publish();
        guest.collect();
        assert_eq!(guest.answered, [0]);
    }
    check::<SplitRequests, SplitDriver>(Guest::new(false, true, true));
    check::<PackedRequests, PackedDriver>(Guest::new(true, true, true));
}

#[test]
fn a_request_that_begins_like_another_is_a_violation() {
    let mut guest = Guest::<SplitDriver>::new(false, false, false);
    guest.send(1);
    guest.driver.publish();
    // The second entry of the available ring, and its index.
    guest.memory.write(guest.config.driver + 6, &[0, 0]).unwrap();
    guest.memory.write(guest.config.driver + 2, &[2, 0]).unwrap();
    let mut ring: SplitRequests = guest.device();
    let mut chain = IoChain::default();
    assert_eq!(ring.take(&mut chain), Ok(Some(0)));
    assert_eq!(ring.take(&mut chain), Err(Violation::HeadInFlight(0)));
}

#[test]
fn a_loop_is_a_violation() {
    let mut guest = Guest::<SplitDriver>::new(false, false, false);
    guest.send(2);
    guest.driver.publish();
    // Both descriptors name the first one as the next, and are readable.
    for at in [0u64, 16] {
        guest.memory.write(guest.config.desc + at + 12, &[1, 0, 0, 0]).unwrap();
    }
    let mut ring: SplitRequests = guest.device();
    assert_eq!(ring.take(&mut IoChain::default()), Err(Violation::ChainTooLong(16)));
}

#[test]
fn the_driver_is_asked_to_kick_and_says_when_there_is_more() {
    fn check<R: RequestRing, D: DriverRing>(mut guest: Guest<D>) {
        let mut ring: R = guest.device();
        assert_eq!((ring.arm(), ring.publish()), (Ok(false), None));
        guest.send(1);
        assert!(guest.driver.publish(), "a kick is wanted");
        assert_eq!(ring.arm(), Ok(true));
        let token = ring.take(&mut IoChain::default()).unwrap().unwrap();
        assert_eq!((ring.in_flight(), ring.arm()), (1, Ok(false)));
        assert!(!guest.driver.arm());
        ring.complete(token, 0);
        assert_eq!((ring.publish(), ring.publish()), (Some(true), None));
        assert_eq!(ring.in_flight(), 0);
    }
    for event_idx in [false, true] {
        check::<SplitRequests, SplitDriver>(Guest::new(false, event_idx, false));
        check::<PackedRequests, PackedDriver>(Guest::new(true, event_idx, false));
    }
}
