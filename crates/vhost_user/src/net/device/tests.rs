mod memory;
mod messages;
mod negotiation;
mod rings;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use network::action::Action;
use network::burst::Burst;
use network::count::DropReason as Reason;
use proptest::prelude::*;
use ring::driver::{Direction, DriverRing, Piece, Used};
use ring::packed::driver::PackedDriver;
use ring::split::driver::SplitDriver;
use ring::{MemoryAccount, RingConfig};

use super::*;
use crate::transport::feature::protocol;
use crate::transport::message::{HEADER_LEN, Header, Reply};
use crate::transport::session::{Answer, MAX_REGIONS, Session};

const NEED_REPLY: u32 = 1 << 3;
const SIZE: u64 = 1 << 20;
/// Where the front-end has the guest's memory.
const USER: u64 = 0x7000_0000_0000;

#[derive(Default)]
struct Attached {
    next: u64,
    /// How often pairs were handed over.
    puts: u64,
    pairs: BTreeMap<QueueId, (u16, Box<dyn QueuePair>, bool)>,
}

/// A dock whose pairs the test can work on.
#[derive(Clone, Default)]
struct TestHost(Rc<RefCell<Attached>>);

impl QueueHost for TestHost {
    fn take_out(&self, queues: &[QueueId]) -> Vec<Option<Box<dyn QueuePair>>> {
        let take = |queue| {
            let (_, mut pair, _) = self.0.borrow_mut().pairs.remove(queue)?;
            let _ = pair.flush();
            Some(pair)
        };
        queues.iter().map(take).collect()
    }

    fn put_back(&self, changes: Vec<PairChange>) -> Vec<Option<QueueId>> {
        let mut attached = self.0.borrow_mut();
        attached.puts += 1;
        let mut put = |PairChange { index, queue, pair }| {
            let (pair, receives) = pair?;
            attached.next += 1;
            let id = queue.unwrap_or(QueueId(attached.next));
            attached.pairs.insert(id, (index, pair, receives));
            Some(id)
        };
        changes.into_iter().map(&mut put).collect()
    }
}

impl TestHost {
    /// Indices of the attached pairs, and whether they receive.
    fn pairs(&self) -> Vec<(u16, bool)> {
        self.0.borrow().pairs.values().map(|(index, _, receives)| (*index, *receives)).collect()
    }

    fn with<T>(&self, index: u16, work: impl FnOnce(&mut dyn QueuePair) -> T) -> T {
        let mut attached = self.0.borrow_mut();
        let (_, pair, _) =
            attached.pairs.values_mut().find(|(i, ..)| *i == index).expect("attached");
        work(&mut **pair)
    }
}

struct Bench {
    session: Session<NetDevice<TestHost>>,
    host: TestHost,
    memory: Arc<Memory>,
    file: OwnedFd,
}

impl Bench {
    fn new() -> Bench {
        let host = TestHost::default();
        let (memory, file) = Memory::shared(SIZE as usize).unwrap();
        let device = NetDevice::new(host.clone(), Offer { queues: 2, mtu: Some(9000) });
        let session = Session::new(device, Arc::new(MemoryAccount::new(u64::MAX)));
        Bench { session, host, memory: Arc::new(memory), file }
    }
}

fn state(ring: u32, value: u32) -> Vec<u8> {
    [ring.to_le_bytes(), value.to_le_bytes()].concat()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()
}

fn signals(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(fd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

impl Bench {
    fn active(&self) -> ActiveVrings {
        ActiveVrings::count(&self.session.active_vrings())
    }

    fn send(&mut self, code: u32, flags: u32, payload: &[u8], fds: Vec<OwnedFd>) -> Answer {
        let mut header = [0; HEADER_LEN];
        for (at, field) in [code, 1 | flags, payload.len() as u32].into_iter().enumerate() {
            header[4 * at..4 * at + 4].copy_from_slice(&field.to_le_bytes());
        }
        self.session.answer(&Header::parse(&header).unwrap(), payload, fds)
    }

    fn ask(&mut self, code: u32, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Option<u64>, String> {
        let answer = self.send(code, 0, payload, fds);
        match answer.error {
            Some(error) => Err(error.to_string()),
            None => {
                Ok(answer.reply.map(|bytes| u64::from_le_bytes(bytes[12..].try_into().unwrap())))
            }
        }
    }

    fn do_it(&mut self, code: u32, payload: &[u8], fds: Vec<OwnedFd>) {
        assert_eq!(self.ask(code, payload, fds), Ok(None), "request {code}");
    }

    fn refusal(&mut self, code: u32, payload: &[u8], fds: Vec<OwnedFd>) -> String {
        self.ask(code, payload, fds).unwrap_err()
    }

    fn file(&self) -> OwnedFd {
        self.file.try_clone().unwrap()
    }

    fn share(&mut self) {
        let table = [state(1, 0), words(&[0, SIZE, USER, 0])].concat();
        let file = self.file();
        self.do_it(5, &table, vec![file]);
    }

    fn features(&mut self, features: u64) {
        self.do_it(2, &features.to_le_bytes(), vec![]);
    }

    /// Tells all about a ring whose parts lie at `at`, but does not start it.
    fn describe(&mut self, ring: u32, at: u64) {
        self.do_it(8, &state(ring, 16), vec![]);
        self.do_it(10, &state(ring, 0), vec![]);
        self.do_it(9, &address(ring, at), vec![]);
    }

    fn kick(&mut self, ring: u64) {
        self.do_it(12, &words(&[ring]), vec![eventfd()]);
    }

    fn call(&mut self, ring: u64) -> OwnedFd {
        let call = eventfd();
        let copy = call.try_clone().unwrap();
        self.do_it(13, &words(&[ring]), vec![copy]);
        call
    }

    fn enable(&mut self, ring: u32, on: bool) {
        self.do_it(18, &state(ring, on.into()), vec![]);
    }

    /// A started and enabled Tx ring 1 at 0x1000, and its driver.
    fn transmitter<R: DriverRing>(&mut self, features: u64) -> R {
        self.share();
        self.features(features);
        let start = if features & bit::RING_PACKED != 0 { 0x8000_8000 } else { 0 };
        let config = RingConfig {
            size: 16,
            desc: 0x1000,
            driver: 0x2000,
            device: 0x3000,
            event_idx: features & bit::EVENT_IDX != 0,
            indirect: false,
            start,
        };
        let driver = R::new(Arc::clone(&self.memory), &config, None).unwrap();
        self.describe(1, 0x1000);
        self.do_it(10, &state(1, start), vec![]);
        self.enable(1, true);
        self.kick(1);
        driver
    }

    /// Fetches from pair 0 and completes all. Returns the actions of the frames.
    fn fetch(&mut self) -> Vec<Action> {
        self.host.with(0, |pair| {
            let mut burst = Burst::new();
            burst.reset();
            pair.fetch(&mut burst).unwrap();
            let fates: Vec<_> = burst.frames().iter().map(|frame| frame.action.clone()).collect();
            pair.complete(fates.len());
            pair.flush().unwrap();
            fates
        })
    }
}

/// A ring's parts a page apart from `at` on.
fn address(ring: u32, at: u64) -> Vec<u8> {
    [state(ring, 0), words(&[USER + at, USER + at + 0x2000, USER + at + 0x1000, 0])].concat()
}

/// Publishes `count` frames of 60 bytes behind an offload header of 12.
fn transmit<R: DriverRing>(driver: &mut R, count: usize) {
    for _ in 0..count {
        driver.add(&[Piece { addr: 0x8000, len: 72 }], Direction::Out).unwrap();
    }
    driver.arm();
    driver.publish();
}

const MODERN: u64 = bit::VERSION_1 | bit::PROTOCOL_FEATURES;

#[test]
fn what_runs_does_not_change_its_ground() {
    let mut bench = Bench::new();
    let _driver: SplitDriver = bench.transmitter(MODERN);
    assert_eq!(
        bench.refusal(8, &state(1, 32), vec![]),
        "SET_VRING_NUM for ring 1, which is started"
    );
    assert_eq!(
        bench.refusal(10, &state(1, 5), vec![]),
        "SET_VRING_BASE for ring 1, which is started"
    );
    assert_eq!(
        bench.refusal(9, &address(1, 0x4000), vec![]),
        "SET_VRING_ADDR for ring 1, which is started"
    );
    assert_eq!(
        bench.refusal(2, &words(&[bit::VERSION_1]), vec![]),
        "SET_FEATURES changes features while rings are started"
    );
    // Repeated messages, as QEMU sends them for every queue pair, change nothing.
    bench.features(MODERN);
    bench.do_it(9, &address(1, 0x1000), vec![]);
    assert_eq!(bench.host.pairs(), [(0, false)]);
}

#[test]
fn rings_that_the_port_does_not_have_are_refused() {
    let mut bench = Bench::new();
    for (code, payload, name) in [
        (8, state(4, 16), "SET_VRING_NUM"),
        (9, address(4, 0x1000), "SET_VRING_ADDR"),
        (10, state(4, 0), "SET_VRING_BASE"),
        (11, state(255, 0), "GET_VRING_BASE"),
        (12, words(&[0x104]), "SET_VRING_KICK"),
        (13, words(&[0x104]), "SET_VRING_CALL"),
        (14, words(&[0x104]), "SET_VRING_ERR"),
        (18, state(4, 1), "SET_VRING_ENABLE"),
    ] {
        let ring = payload[0];
        assert_eq!(
            bench.refusal(code, &payload, vec![]),
            format!("{name} for ring {ring}, the port has 4")
        );
    }
}

#[test]
fn impossible_rings_are_refused() {
    for (size, base, why) in [
        (0, 0, "ring 1: queue size 0 is not allowed"),
        (24, 0, "ring 1: queue size 24 is not allowed"),
        (16, 0x1_0000, "ring 1: start position 0x10000 is outside the ring"),
    ] {
        let mut bench = Bench::new();
        bench.share();
        bench.features(MODERN);
        bench.do_it(9, &address(1, 0x1000), vec![]);
        bench.do_it(8, &state(1, size), vec![]);
        bench.do_it(10, &state(1, base), vec![]);
        assert_eq!(bench.refusal(12, &words(&[1]), vec![eventfd()]), why);
    }
}

/// The messages come in the order of QEMU: the log, then the feature, then the rings. Nothing else
/// changes under a ring that runs.
#[test]
fn a_log_is_switched_while_a_ring_runs() {
    let mut bench = Bench::new();
    let _driver: SplitDriver = bench.transmitter(MODERN);
    let (_, log) = Memory::shared(4096).unwrap();
    let share = |bench: &mut Bench, len| {
        let copy = log.try_clone().unwrap();
        bench.send(6, 0, &words(&[len, 0]), vec![copy])
    };
    assert!(share(&mut bench, 4096).closes, "without LOG_SHMFD");
    bench.do_it(16, &words(&[protocol::LOG_SHMFD]), vec![]);
    for _ in 0..2 {
        assert_eq!(share(&mut bench, 4096).reply, Some(Reply::Empty.encode(6)));
    }
    bench.do_it(7, &[], vec![eventfd()]);
    let mut place = address(1, 0x1000);
    for (flag, feature) in [(1, bit::LOG_ALL), (0, 0), (1, bit::LOG_ALL)] {
        bench.features(MODERN | feature);
        place[4] = flag;
        bench.do_it(9, &place, vec![]);
        assert_eq!(bench.active(), ActiveVrings { tx: 1, rx: 0 });
    }
    let short = share(&mut bench, 1).error.unwrap().to_string();
    assert_eq!(
        short,
        format!("the log of written pages ends at guest address 0x8000, the memory at {SIZE:#x}")
    );
    let moved = [&place[..8], &address(1, 0x4000)[8..]].concat();
    assert_eq!(bench.refusal(9, &moved, vec![]), "SET_VRING_ADDR for ring 1, which is started");
}

#[test]
fn a_reset_stops_and_forgets_rings() {
    for code in [4, 34] {
        let mut bench = Bench::new();
        let _driver: SplitDriver = bench.transmitter(MODERN);
        bench.do_it(code, &[], vec![]);
        assert!(bench.host.pairs().is_empty());
        bench.features(bit::VERSION_1 | bit::PROTOCOL_FEATURES | bit::EVENT_IDX);
        bench.describe(1, 0x1000);
        bench.kick(1);
        assert_eq!(bench.active(), ActiveVrings::default());
    }
}

#[test]
fn an_ended_session_leaves_no_pair_behind_and_tells_of_errors() {
    let mut bench = Bench::new();
    let _driver: SplitDriver = bench.transmitter(MODERN);
    let err = eventfd();
    let copy = err.try_clone().unwrap();
    bench.do_it(14, &words(&[1]), vec![copy]);
    bench.session.close(true);
    assert!(bench.host.pairs().is_empty());
    assert_eq!(signals(&err), 1);
    let mut other = Bench::new();
    let _driver: SplitDriver = other.transmitter(MODERN);
    drop(other.session);
    assert!(other.host.pairs().is_empty());
}
