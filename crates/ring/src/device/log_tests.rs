//! Tests of the log of written pages against the memory itself: the pages that an operation of the
//! device changes are those that it marks.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::copies::{Copies, Engine};
use crate::driver::{Direction, DriverRing, Piece, Tables, Used};
use crate::grant::{DomId, GrantRef, Granted};
use crate::io_chain::IoChain;
use crate::packed::driver::PackedDriver;
use crate::packed::requests::PackedRequests;
use crate::region::{LOG_PAGE, WriteLog};
use crate::request_ring::RequestRing;
use crate::split::driver::SplitDriver;
use crate::split::requests::SplitRequests;
use crate::{PackedDevice, SplitDevice};

/// Descriptors: two pages, as the used ring of a split queue.
const SIZE: u16 = 512;
/// The addresses of the ring's parts: descriptors, the driver's part, the device's part.
const PLACES: [u64; 3] = [0x1000, 0x3000, 0x5000];
/// The pages of the device's part, where the device may write what was there before.
const DEVICE: [u64; 2] = [5, 6];
const TABLES: u64 = 0x8000;
const BUFFERS: u64 = 0x2_8000;
const END: u64 = 0x6_0000;
/// A byte that no frame has.
const POISON: u8 = 0xa5;

/// A guest and its log, and the pages that the device was seen to write since the last check.
struct Watched {
    memory: Arc<Memory>,
    marks: Arc<Memory>,
    config: RingConfig,
    changed: BTreeSet<u64>,
    next: u64,
}

impl Watched {
    fn new(event_idx: bool, indirect: bool, start: u32) -> Watched {
        let [desc, driver, device] = PLACES;
        let memory = Memory::shared(END as usize).unwrap().0;
        memory.write(BUFFERS, &vec![POISON; (END - BUFFERS) as usize]).unwrap();
        let (marks, _) = Memory::shared(4096).unwrap();
        let config = RingConfig { size: SIZE, desc, driver, device, event_idx, indirect, start };
        let (changed, next) = (BTreeSet::new(), BUFFERS);
        Watched { memory: Arc::new(memory), marks: Arc::new(marks), config, changed, next }
    }

    fn driver<D: DriverRing>(&self) -> D {
        let tables = self.config.indirect.then_some(Tables { addr: TABLES, entries: 4 });
        D::new(self.memory.clone(), &self.config, tables).unwrap()
    }

    /// The memory as a device gets it.
    fn logged(&mut self) -> Arc<Memory> {
        let (marks, file) = Memory::shared(4096).unwrap();
        self.marks = Arc::new(marks);
        let log = WriteLog::map(file, 0, END / LOG_PAGE / 8).unwrap();
        Arc::new(self.memory.with_log(Some(Arc::new(log))))
    }

    fn copy(&self) -> Vec<u8> {
        let mut bytes = vec![0; END as usize];
        self.memory.read(0, &mut bytes).unwrap();
        bytes
    }

    /// Lets a device do something.
    fn watch<T>(&mut self, act: impl FnOnce() -> T) -> T {
        let before = self.copy();
        let done = act();
        let pages = |bytes: &[u8]| -> Vec<Vec<u8>> {
            bytes.chunks(LOG_PAGE as usize).map(<[u8]>::to_vec).collect()
        };
        for (page, (old, new)) in (0..).zip(pages(&before).iter().zip(&pages(&self.copy()))) {
            if old != new {
                self.changed.insert(page);
            }
        }
        done
    }

    /// Takes the marks. Returns the pages that were written but not marked, and those that were
    /// marked but not written.
    fn differences(&mut self) -> (Vec<u64>, Vec<u64>) {
        let mut bytes = vec![0; (END / LOG_PAGE / 8) as usize];
        self.marks.read(0, &mut bytes).unwrap();
        self.marks.write(0, &vec![0; bytes.len()]).unwrap();
        let is_marked = |page: &u64| bytes[*page as usize / 8] >> (page % 8) & 1 != 0;
        let marked: BTreeSet<u64> = (0..END / LOG_PAGE).filter(is_marked).collect();
        let changed = std::mem::take(&mut self.changed);
        let surplus = marked.difference(&changed).filter(|page| !DEVICE.contains(page)).copied();
        (changed.difference(&marked).copied().collect(), surplus.collect())
    }

    fn check(&mut self) {
        assert_eq!(self.differences(), (vec![], vec![]), "pages forgotten, and marked in vain");
    }

    /// Unused room for `len` bytes.
    fn take(&mut self, len: u32) -> Option<Piece> {
        let addr = self.next;
        self.next += u64::from(len);
        (self.next <= END).then_some(Piece { addr, len })
    }
}

/// Where the bytes of a frame are.
#[derive(Clone, Copy, Debug)]
enum Source {
    Private,
    Mapped,
    Granted,
}

/// Grants all pages of a memory under their numbers.
#[derive(Debug)]
struct Granting(Arc<Memory>);

impl Engine for Granting {
    fn run(&self, copies: &mut Copies) {
        copies.emulate(|pin, at, _, _| {
            pin.hold(&self.0);
            Ok(u64::from(at.reference.0) * LOG_PAGE + u64::from(at.offset))
        });
    }
}

#[derive(Clone, Debug)]
enum Op {
    Post(Vec<u16>),
    Put(u16, Source),
    Publish,
    Arm,
    Disarm,
}

fn source() -> impl Strategy<Value = Source> {
    prop_oneof![Just(Source::Private), Just(Source::Mapped), Just(Source::Granted)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => prop::collection::vec(1u16..5000, 1..4).prop_map(Op::Post),
        4 => (1u16..6000, source()).prop_map(|(len, source)| Op::Put(len, source)),
        2 => Just(Op::Publish),
        1 => Just(Op::Arm),
        1 => Just(Op::Disarm),
    ]
}

/// A receive ring under a random driver.
fn receives<D: DriverRing, B: DeviceRing>(event_idx: bool, indirect: bool, start: u32, ops: &[Op]) {
    let mut guest = Watched::new(event_idx, indirect, start);
    let mut driver: D = guest.driver();
    let logged = guest.logged();
    let mut device = B::new(logged, &guest.config).unwrap();
    device.set_used_log(Some(guest.config.device));
    assert!(device.is_logged());
    let sender = Arc::new(Memory::anonymous(8192).unwrap());
    sender.write(0, &[7; 8192]).unwrap();
    let engine: Arc<dyn Engine> = Arc::new(Granting(sender.clone()));
    let mut grant_copies = GrantCopyBatch::new();
    for op in ops {
        match op {
            Op::Post(lens) => {
                let pieces = lens.iter().map_while(|len| guest.take((*len).into()));
                let pieces: Vec<_> = pieces.collect();
                driver.add(&pieces, Direction::In);
                driver.publish();
            }
            Op::Put(len, source) => {
                let (mut gather, len) = (Gather::new(0), u32::from(*len));
                let (bytes, mut net) = (vec![9; len as usize], [1; 12]);
                let page = |reference, len| {
                    (Granted { domain: DomId(1), reference: GrantRef(reference), offset: 0 }, len)
                };
                let chain = match source {
                    Source::Granted => {
                        let (first, rest) = (len.min(4096), len.saturating_sub(4096));
                        let pieces = [page(0, first as u16), page(1, rest as u16)];
                        gather.push_granted(&engine, pieces).unwrap()
                    }
                    _ => gather.push_range(&sender, 0, len).unwrap(),
                };
                let (head, body) = match source {
                    Source::Private => (&bytes[..], Body::empty()),
                    _ => (&bytes[..bytes.len().min(60)], gather.body(chain)),
                };
                guest.watch(|| device.put(&mut net, head, body, true, &mut grant_copies).unwrap());
            }
            Op::Publish => {
                guest.watch(|| assert_eq!(grant_copies.flush().count(), 0));
                guest.watch(|| device.publish());
                guest.check();
                driver.collect(&mut [Used::default(); SIZE as usize]).unwrap();
            }
            Op::Arm => drop(guest.watch(|| device.arm().unwrap())),
            Op::Disarm => guest.watch(|| device.disarm()),
        }
    }
    guest.watch(|| drop(grant_copies.flush()));
    guest.watch(|| device.publish());
    guest.check();
}

/// Where a packed ring starts.
fn packed(index: u16, wrap: bool) -> u32 {
    let word = u32::from(index % SIZE) | u32::from(wrap) << 15;
    word | word << 16
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_split_ring_marks_what_it_writes_and_nothing_more(
        (event_idx, indirect, start) in any::<(bool, bool, u16)>(),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        receives::<SplitDriver, SplitDevice>(event_idx, indirect, start.into(), &ops);
    }

    #[test]
    fn a_packed_ring_marks_what_it_writes_and_nothing_more(
        (event_idx, indirect, at, wrap) in any::<(bool, bool, u16, bool)>(),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        receives::<PackedDriver, PackedDevice>(event_idx, indirect, packed(at, wrap), &ops);
    }
}

/// Sends `count` frames, and lets the device take and complete them.
fn transmits<D: DriverRing, B: DeviceRing>(
    start: u32,
    used_log: impl Fn(&RingConfig) -> Option<u64>,
) -> (Vec<u64>, Vec<u64>) {
    let mut guest = Watched::new(true, false, start);
    let mut driver: D = guest.driver();
    let logged = guest.logged();
    let mut device = B::new(logged, &guest.config).unwrap();
    device.set_used_log(used_log(&guest.config));
    for _ in 0..SIZE {
        let piece = guest.take(16).unwrap();
        driver.add(&[piece], Direction::Out).unwrap();
    }
    driver.publish();
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    while guest.watch(|| device.fetch(&mut gather, &mut chains, 64).unwrap()) > 0 {
        guest.watch(|| device.complete(device.in_flight()));
        guest.watch(|| device.publish());
    }
    guest.differences()
}

#[test]
fn a_transmit_ring_marks_the_whole_ring_as_it_goes_round() {
    let device = |config: &RingConfig| Some(config.device);
    let exact = (vec![], vec![]);
    for start in [0, 100, 511] {
        assert_eq!(transmits::<SplitDriver, SplitDevice>(start, device), exact);
        let start = packed(start as u16, true);
        assert_eq!(transmits::<PackedDriver, PackedDevice>(start, device), exact);
    }
}

/// The check finds missing marks: of a device that marks nothing of its ring, and of one that marks
/// other pages.
#[test]
fn a_page_that_is_not_marked_is_found() {
    assert_eq!(transmits::<SplitDriver, SplitDevice>(0, |_| None), (vec![5], vec![]));
    assert_eq!(transmits::<PackedDriver, PackedDevice>(packed(0, true), |_| None).0, [1, 2]);
    let elsewhere = |config: &RingConfig| Some(config.device + 0x2000);
    assert_eq!(transmits::<SplitDriver, SplitDevice>(0, elsewhere), (vec![5], vec![7, 8]));
}

/// Requests of a disk: data, status, and the ring.
fn requests<D: DriverRing, R: RequestRing>(start: u32) {
    let mut guest = Watched::new(true, true, start);
    let mut driver: D = guest.driver();
    let logged = guest.logged();
    let (mut ring, _) = R::start(logged, &guest.config, None).unwrap();
    ring.set_used_log(Some(guest.config.device));
    let mut chain = IoChain::default();
    for round in 0..20 {
        let readable = guest.take(16).unwrap();
        let writable = [guest.take(6000).unwrap(), guest.take(1).unwrap()];
        driver.add_request(&[readable], &writable).unwrap();
        driver.publish();
        let token = ring.take(&mut chain).unwrap().unwrap();
        assert!(chain.split_status());
        match round % 3 {
            0 => drop(guest.watch(|| chain.write(&[round; 5000]))),
            // The kernel writes the buffers and reports that afterwards.
            1 => {
                let memory = guest.memory.clone();
                guest.watch(|| memory.write(writable[0].addr, &[round; 4500]).unwrap());
                chain.advance(4500);
            }
            // The kernel writes some bytes before it fails.
            _ => {
                let memory = guest.memory.clone();
                guest.watch(|| memory.write(writable[0].addr, &[round; 6000]).unwrap());
                chain.log_writable();
            }
        }
        guest.watch(|| chain.set_status(0));
        guest.watch(|| ring.complete(token, 1));
        guest.watch(|| ring.publish());
        guest.watch(|| ring.arm().unwrap());
        guest.watch(|| ring.disarm());
        guest.check();
        driver.collect(&mut [Used::default(); SIZE as usize]).unwrap();
    }
}

#[test]
fn requests_mark_what_is_written_for_them() {
    requests::<SplitDriver, SplitRequests>(0);
    requests::<PackedDriver, PackedRequests>(packed(505, false));
}
