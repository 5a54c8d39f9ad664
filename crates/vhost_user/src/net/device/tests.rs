use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use network::burst::Burst;
use network::count::DropReason as Reason;
use network::flowcache::Action;
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

    /// Fetches from pair 0 and completes all: what was to become of the frames.
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
fn what_is_offered_is_told() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask(1, &[], vec![]), Ok(Some(feature::all_offered().0)));
    assert_eq!(bench.ask(15, &[], vec![]), Ok(Some(feature::ALL_PROTOCOL)));
    assert_eq!(bench.ask(17, &[], vec![]), Ok(Some(2)));
    assert_eq!(bench.ask(36, &[], vec![]), Ok(Some(MAX_REGIONS as u64)));
}

#[test]
fn only_what_is_offered_can_be_used() {
    let mut bench = Bench::new();
    let in_order = 1u64 << 35;
    assert_eq!(
        bench.refusal(2, &(MODERN | in_order).to_le_bytes(), vec![]),
        "SET_FEATURES with 0x800000000, which is not offered"
    );
    assert_eq!(
        bench.refusal(16, &words(&[1 << 9]), vec![]),
        "SET_PROTOCOL_FEATURES with 0x200, which is not offered"
    );
}

#[test]
fn a_ring_starts_when_everything_is_known_in_whatever_order() {
    let steps: [fn(&mut Bench); 6] = [
        |b| b.share(),
        |b| b.features(MODERN),
        |b| b.do_it(8, &state(0, 16), vec![]),
        |b| b.do_it(9, &address(0, 0x1000), vec![]),
        |b| b.kick(0),
        |b| b.enable(0, true),
    ];
    // Features cannot come after a ring runs, so they keep their place before at least one step
    // that it needs.
    for order in [
        [0, 1, 2, 3, 4, 5],
        [5, 1, 2, 3, 0, 4],
        [4, 3, 2, 1, 5, 0],
        [5, 4, 1, 0, 3, 2],
        [1, 4, 2, 0, 5, 3],
    ] {
        let mut bench = Bench::new();
        for (done, step) in order.into_iter().enumerate() {
            let started = !bench.host.pairs().is_empty();
            assert!(!started || done == 5, "{order:?} after {done}");
            steps[step](&mut bench);
        }
        assert_eq!(bench.host.pairs(), [(0, true)], "{order:?}");
        assert_eq!(bench.active(), ActiveVrings { tx: 0, rx: 1 });
    }
}

#[test]
fn rings_start_enabled_only_without_protocol_features() {
    for (features, enabled) in [(bit::VERSION_1, true), (MODERN, false)] {
        let mut bench = Bench::new();
        bench.share();
        bench.features(features);
        bench.describe(0, 0x1000);
        bench.kick(0);
        assert_eq!(bench.host.pairs(), [(0, enabled)]);
        bench.enable(0, !enabled);
        assert_eq!(bench.host.pairs(), [(0, !enabled)]);
    }
}

#[test]
fn frames_come_out_of_a_started_ring() {
    let mut bench = Bench::new();
    let mut driver: SplitDriver = bench.transmitter(MODERN);
    let call = bench.call(1);
    signals(&call);
    transmit(&mut driver, 3);
    assert!(matches!(
        bench.fetch()[..],
        [Action::Unclassified, Action::Unclassified, Action::Unclassified]
    ));
    assert_eq!(driver.collect(&mut [Used::default(); 8]), Ok(3));
    assert_eq!(signals(&call), 1);
}

#[test]
fn a_disabled_ring_is_drained_and_its_frames_are_discarded() {
    let mut bench = Bench::new();
    let mut driver: SplitDriver = bench.transmitter(MODERN);
    bench.enable(1, false);
    transmit(&mut driver, 2);
    assert!(matches!(
        bench.fetch()[..],
        [Action::Drop(Reason::TxDisabled), Action::Drop(Reason::TxDisabled)]
    ));
    assert_eq!(driver.collect(&mut [Used::default(); 8]), Ok(2));
    bench.enable(1, true);
    transmit(&mut driver, 1);
    assert!(matches!(bench.fetch()[..], [Action::Unclassified]));
}

fn stops_and_goes_on<R: DriverRing>(features: u64, positions: [u32; 2]) {
    let mut bench = Bench::new();
    let mut driver: R = bench.transmitter(features);
    transmit(&mut driver, 5);
    assert_eq!(bench.fetch().len(), 5);
    transmit(&mut driver, 3);
    assert_eq!(bench.ask(11, &state(1, 0), vec![]), Ok(Some(u64::from(positions[0]) << 32 | 1)));
    assert!(bench.host.pairs().is_empty());
    assert_eq!(bench.active(), ActiveVrings::default());
    bench.do_it(10, &state(1, positions[0]), vec![]);
    bench.kick(1);
    assert_eq!(bench.fetch().len(), 3);
    assert_eq!(driver.collect(&mut [Used::default(); 16]), Ok(8));
    assert_eq!(bench.ask(11, &state(1, 0), vec![]), Ok(Some(u64::from(positions[1]) << 32 | 1)));
}

#[test]
fn a_split_ring_stops_where_it_stands_and_goes_on_from_there() {
    stops_and_goes_on::<SplitDriver>(MODERN, [5, 8]);
}

#[test]
fn a_packed_ring_stops_where_it_stands_and_goes_on_from_there() {
    stops_and_goes_on::<PackedDriver>(MODERN | bit::RING_PACKED, [0x8005_8005, 0x8008_8008]);
}

#[test]
fn a_new_call_descriptor_is_used_at_once_and_signalled_once() {
    let mut bench = Bench::new();
    let mut driver: SplitDriver = bench.transmitter(MODERN);
    let first = bench.call(1);
    let second = bench.call(1);
    assert_eq!((signals(&first), signals(&second)), (1, 1));
    transmit(&mut driver, 1);
    bench.fetch();
    assert_eq!((signals(&first), signals(&second)), (0, 1));
    bench.do_it(13, &words(&[0x101]), vec![]);
    transmit(&mut driver, 1);
    bench.fetch();
    assert_eq!((signals(&first), signals(&second)), (0, 0));
}

#[test]
fn a_message_hands_queues_over_at_most_once() {
    let mut bench = Bench::new();
    bench.share();
    bench.features(MODERN);
    for ring in 0..4 {
        bench.describe(ring, 0x1000 * (u64::from(ring) + 1));
        bench.kick(ring.into());
    }
    let puts = |bench: &Bench| bench.host.0.borrow().puts;
    let mut message = |name, send: fn(&mut Bench)| {
        let before = puts(&bench);
        send(&mut bench);
        assert_eq!(puts(&bench), before + 1, "{name}");
    };
    message("memory of all rings", |bench| bench.share());
    message("enable", |bench| _ = bench.ask(18, &state(1, 1), vec![]).unwrap());
    message("call", |bench| _ = bench.call(1));
    message("stop", |bench| _ = bench.ask(11, &state(0, 0), vec![]).unwrap());
    message("reset", |bench| bench.do_it(34, &[], vec![]));
    assert!(bench.host.pairs().is_empty());
}

#[test]
fn a_transmit_ring_without_kick_is_unsignalled() {
    let mut bench = Bench::new();
    bench.share();
    bench.features(MODERN);
    bench.describe(1, 0x1000);
    bench.do_it(12, &words(&[0x101]), vec![]);
    bench.host.with(0, |pair| {
        assert!(pair.wakers().iter().all(Option::is_none));
        assert!(pair.is_unsignalled());
    });
    bench.kick(1);
    bench.host.with(0, |pair| {
        assert!(pair.wakers()[0].is_some());
        assert!(!pair.is_unsignalled());
        assert_eq!(pair.arm(false), Ok(false));
    });
}

#[test]
fn only_eventfds_signal() {
    let mut bench = Bench::new();
    for (code, name) in [(12, "SET_VRING_KICK"), (13, "SET_VRING_CALL"), (14, "SET_VRING_ERR")] {
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        let expected = format!("{name} for ring 3 brings a descriptor that is no eventfd");
        assert_eq!(bench.refusal(code, &words(&[3]), vec![pipe]), expected);
    }
}

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
    // What says the same again, as QEMU does for every queue pair, changes nothing.
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
fn memory_regions_that_lie_are_refused() {
    let mut bench = Bench::new();
    for (regions, why) in [
        (vec![[0, 2 * SIZE, USER, 0]], "needs a file of"),
        (vec![[0, SIZE, USER, 4096]], "needs a file of"),
        (vec![[0, SIZE, USER, u64::MAX - 100]], "wraps around"),
        (vec![[u64::MAX - 5, SIZE, USER, 0]], "wraps around"),
        (vec![[0, SIZE, u64::MAX - 5, 0]], "wraps around"),
        (vec![[0, 0, USER, 0]], "is empty"),
        (vec![[0, SIZE, USER, 0], [SIZE - 1, 4096, 2 * USER, 0]], "overlap"),
        (vec![[0, SIZE, USER, 0], [SIZE, 4096, USER, 0]], "overlap"),
    ] {
        let table = [state(regions.len() as u32, 0), words(&regions.concat())].concat();
        let fds = regions.iter().map(|_| bench.file()).collect();
        let refusal = bench.refusal(5, &table, fds);
        assert!(refusal.starts_with("memory table: ") && refusal.contains(why), "{refusal}");
    }
}

#[test]
fn rings_that_are_not_in_memory_are_refused() {
    for (mut payload, why) in [
        (
            address(1, SIZE),
            "ring 1: its descriptors at user address 0x700000100000 is in no memory region",
        ),
        (
            address(1, SIZE - 0x1000),
            "ring 1: its available ring at user address 0x700000100000 is in no memory region",
        ),
        (address(1, 0x1008), "ring 1: ring area at 0x1008 is not aligned to 16 bytes"),
        (
            address(1, SIZE - 0x2000 - 0x80),
            "ring 1: its used ring at user address 0x7000000fff80 is in no memory region",
        ),
    ] {
        let mut bench = Bench::new();
        bench.share();
        bench.features(MODERN);
        bench.do_it(8, &state(1, 16), vec![]);
        if why.contains("used ring") {
            // Its first byte is inside, its last one is not.
            payload[16..24].copy_from_slice(&(USER + SIZE - 8).to_le_bytes());
        }
        bench.do_it(9, &payload, vec![]);
        let refusal = bench.refusal(12, &words(&[1]), vec![eventfd()]);
        match why.contains("used ring") {
            true => assert!(refusal.contains("outside the peer's memory"), "{refusal}"),
            false => assert_eq!(refusal, why),
        }
        assert!(bench.host.pairs().is_empty());
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

#[test]
fn memory_changes_under_running_rings() {
    let mut bench = Bench::new();
    let mut driver: SplitDriver = bench.transmitter(MODERN);
    transmit(&mut driver, 2);
    bench.share();
    assert_eq!(bench.fetch().len(), 2);
    transmit(&mut driver, 2);
    let half = [state(1, 0), words(&[0, SIZE / 2, USER, 0])].concat();
    let file = bench.file();
    bench.do_it(5, &half, vec![file]);
    assert_eq!(bench.fetch().len(), 2);
    let elsewhere = [state(1, 0), words(&[SIZE, SIZE, USER, 0])].concat();
    let file = bench.file();
    let refusal = bench.refusal(5, &elsewhere, vec![file]);
    assert!(refusal.starts_with("ring 1: ") && refusal.contains("outside"), "{refusal}");
}

#[test]
fn rings_rest_while_their_region_is_gone() {
    let mut bench = Bench::new();
    let mut driver: SplitDriver = bench.transmitter(MODERN);
    transmit(&mut driver, 2);
    assert_eq!(bench.fetch().len(), 2);
    transmit(&mut driver, 1);
    let whole = [words(&[0]), words(&[0, SIZE, USER, 0])].concat();
    bench.do_it(38, &whole, vec![]);
    assert!(bench.host.pairs().is_empty());
    for part in [[SIZE / 2, SIZE / 2, USER + SIZE / 2, SIZE / 2], [0, SIZE / 2, USER, 0]] {
        assert!(bench.host.pairs().is_empty());
        let file = bench.file();
        bench.do_it(37, &[words(&[0]), words(&part)].concat(), vec![file]);
    }
    assert_eq!(bench.fetch().len(), 1);
    assert_eq!(driver.collect(&mut [Used::default(); 8]), Ok(3));
}

#[test]
fn regions_come_and_go_within_bounds() {
    let mut bench = Bench::new();
    let region =
        |i: u64| [words(&[0]), words(&[i * 4096, 4096, USER + i * 4096, i * 4096])].concat();
    for i in 0..MAX_REGIONS as u64 {
        let file = bench.file();
        bench.do_it(37, &region(i), vec![file]);
    }
    let file = bench.file();
    assert_eq!(bench.refusal(37, &region(40), vec![file]), "ADD_MEM_REG beyond 32 regions");
    bench.do_it(38, &region(7), vec![]);
    let file = bench.file();
    bench.do_it(37, &region(7), vec![file]);
    let file = bench.file();
    let twice = [words(&[0]), words(&[0, 4096, 2 * USER, 0])].concat();
    bench.do_it(38, &region(9), vec![]);
    assert!(bench.refusal(37, &twice, vec![file]).contains("overlap"));
}

#[test]
fn a_front_end_may_tell_of_its_memory_once_for_each_queue_pair() {
    let mut bench = Bench::new();
    let part = |at, len| [words(&[0]), words(&[at, len, USER + at, at])].concat();
    let (low, high, whole) = (part(0, SIZE / 2), part(SIZE / 2, SIZE / 2), part(0, SIZE));
    for _pair in 0..2 {
        let (one, other) = (bench.file(), bench.file());
        bench.do_it(37, &low, vec![one]);
        bench.do_it(37, &high, vec![other]);
    }
    for _pair in 0..2 {
        bench.do_it(38, &high, vec![]);
        bench.do_it(38, &low, vec![]);
        let file = bench.file();
        bench.do_it(37, &whole, vec![file]);
    }
    assert_eq!(bench.session.region_count(), 1);
    // The same place in another file is something else.
    let (_, file) = Memory::shared(SIZE as usize).unwrap();
    assert!(bench.refusal(37, &whole, vec![file]).contains("overlap"));
}

#[test]
fn acknowledgements_are_sent_when_they_were_agreed_on() {
    let mut bench = Bench::new();
    assert!(bench.send(3, NEED_REPLY, &[], vec![]).reply.is_none());
    bench.do_it(16, &words(&[protocol::REPLY_ACK]), vec![]);
    assert!(bench.send(3, 0, &[], vec![]).reply.is_none());
    assert_eq!(bench.send(3, NEED_REPLY, &[], vec![]).reply, Some(Reply::Number(0).encode(3)));
    // A question is answered once.
    assert_eq!(bench.send(17, NEED_REPLY, &[], vec![]).reply, Some(Reply::Number(2).encode(17)));
}

#[test]
fn what_can_be_declined_is_declined_and_the_rest_ends_the_connection() {
    let mut bench = Bench::new();
    assert!(bench.send(6, NEED_REPLY, &words(&[0, 0]), vec![]).closes);
    bench.do_it(16, &words(&[protocol::REPLY_ACK]), vec![]);
    for (code, payload) in [
        (28, words(&[0, 0])),
        (99, vec![]),
        (19, words(&[1])),
        (20, words(&[9001])),
        (20, words(&[60])),
    ] {
        let answer = bench.send(code, NEED_REPLY, &payload, vec![]);
        assert_eq!(answer.reply, Some(Reply::Number(1).encode(code)), "{code}");
        assert!(answer.error.is_some() && !answer.closes, "{code}");
        assert!(bench.send(code, 0, &payload, vec![]).closes, "{code}");
    }
    let answer = bench.send(8, NEED_REPLY, &state(9, 16), vec![]);
    assert_eq!(answer.reply, Some(Reply::Number(1).encode(8)));
    assert!(answer.closes);
}

#[test]
fn an_mtu_is_held_against_the_ports() {
    let mut bench = Bench::new();
    bench.do_it(20, &words(&[9000]), vec![]);
    assert_eq!(
        bench.refusal(20, &words(&[9001]), vec![]),
        "MTU 9001, the port is configured for at most 9000"
    );
}

/// In the order of QEMU: the log, then the feature, then the rings. Nothing else changes under a
/// ring that runs.
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

/// Requests that are sound, if not always sensible, on two pairs and little memory.
fn request() -> impl Strategy<Value = (u32, Vec<u8>, usize)> {
    let ring = || 0u32..5;
    let at =
        prop_oneof![Just(0x1000u64), Just(0x4000), Just(0x8001), Just(SIZE - 64), any::<u64>()];
    let len = prop_oneof![Just(SIZE), Just(SIZE / 2), Just(4096), any::<u64>()];
    let region = (prop_oneof![Just(0), Just(SIZE / 2), any::<u64>()], len)
        .prop_map(|(guest, len)| [guest, len, USER.wrapping_add(guest), guest]);
    prop_oneof![
        Just((1, vec![], 0)),
        Just((34, vec![], 0)),
        prop_oneof![Just(8u64), Just(4096), any::<u64>()].prop_map(|len| (6, words(&[len, 0]), 1)),
        any::<u64>().prop_map(|mac| (19, words(&[mac]), 0)),
        any::<u64>().prop_map(|bits| (2, words(&[bits & feature::all_offered().0]), 0)),
        prop::collection::vec(region.clone(), 1..4).prop_map(|regions| {
            (5, [state(regions.len() as u32, 0), words(&regions.concat())].concat(), regions.len())
        }),
        (region.clone(), any::<bool>()).prop_map(|(region, add)| {
            (if add { 37 } else { 38 }, [words(&[0]), words(&region)].concat(), usize::from(add))
        }),
        (ring(), prop_oneof![Just(16u32), Just(256), 0u32..70000]).prop_map(|(ring, size)| (
            8,
            state(ring, size),
            0
        )),
        (ring(), at, 0u32..2, any::<u64>()).prop_map(|(ring, at, flags, log)| {
            let [desc, used, avail] = [at, at.wrapping_add(0x2000), at.wrapping_add(0x1000)]
                .map(|part| part.wrapping_add(USER));
            (9, [state(ring, flags), words(&[desc, used, avail, log])].concat(), 0)
        }),
        (ring(), any::<u32>()).prop_map(|(ring, base)| (10, state(ring, base & 0x8fff), 0)),
        ring().prop_map(|ring| (11, state(ring, 0), 0)),
        (12u32..15, ring(), any::<bool>()).prop_map(|(code, ring, fd)| {
            (code, words(&[u64::from(ring) | if fd { 0 } else { 0x100 }]), usize::from(fd))
        }),
        (ring(), 0u32..2).prop_map(|(ring, on)| (18, state(ring, on), 0)),
    ]
}

proptest! {
    /// Whatever the order of requests: no panic, and what the session believes to run is what is attached.
    #[test]
    fn any_order_of_requests_is_survived(requests in prop::collection::vec(request(), 0..60)) {
        let mut bench = Bench::new();
        // A start that makes it likely that rings run.
        bench.do_it(16, &words(&[protocol::LOG_SHMFD]), vec![]);
        bench.share();
        bench.describe(0, 0x1000);
        bench.describe(1, 0x8000);
        for (code, payload, fds) in requests {
            let events = (12..15).contains(&code);
            let fds = (0..fds).map(|_| if events { eventfd() } else { bench.file() }).collect();
            bench.send(code, NEED_REPLY, &payload, fds);
            let running: Vec<bool> = bench.session.running();
            let expected: Vec<u16> = (0..2).filter(|i| running[2 * i] || running[2 * i + 1]).map(|i| i as u16).collect();
            let mut attached: Vec<u16> = bench.host.pairs().iter().map(|(index, _)| *index).collect();
            attached.sort_unstable();
            prop_assert_eq!(attached, expected);
            for index in 0..2u16 {
                if running[2 * index as usize] || running[2 * index as usize + 1] {
                    bench.host.with(index, |pair| {
                        let mut burst = Burst::new();
                        burst.reset();
                        // Rings in this memory hold nothing, or nonsense; both are fine.
                        if pair.fetch(&mut burst).is_ok() {
                            pair.rewind(burst.frames().len());
                        }
                    });
                }
            }
        }
        let file = bench.file.as_fd();
        prop_assert!(rustix::fs::fstat(file).is_ok());
    }
}
