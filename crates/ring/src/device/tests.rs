//! Tests that both layouts must pass, each against its model.

use crate::gather::MAX_SPANS;
use crate::grant_copy_batch::GrantCopyBatch;
use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::model::{
    BORDER, BUFFERS, END, HIGH, Interrupts, Layout, Model, Packed, Piece, Split, memory,
    memory_file, remap,
};

/// Hands out buffer addresses, some of them across the border of two regions, some in the high
/// region.
struct Places {
    next: u64,
}

impl Places {
    fn new() -> Self {
        Self { next: BORDER - 3000 }
    }

    fn take(&mut self, len: u64) -> u64 {
        if self.next + len > END {
            self.next = BUFFERS;
        }
        let at = self.next;
        self.next += len;
        if at.is_multiple_of(5) && at + len < 2 * BUFFERS { HIGH + at - BUFFERS } else { at }
    }

    fn table(&mut self, entries: usize) -> u64 {
        self.next = self.next.next_multiple_of(4);
        self.take(16 * entries as u64)
    }
}

fn noise(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| ((i + 1).wrapping_mul(seed | 1).wrapping_mul(2654435761) >> 17) as u8)
        .collect()
}

#[derive(Clone, Debug)]
enum Op {
    Add { lens: Vec<u16>, indirect: Option<usize> },
    Publish,
    Fetch(usize),
    Complete(usize),
    Rewind(usize),
    Tell,
    Remap,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let add = (prop::collection::vec(0u16..400, 1..6), prop::option::of(0usize..4))
        .prop_map(|(lens, indirect)| Op::Add { lens, indirect });
    prop_oneof![
        6 => add,
        3 => Just(Op::Publish),
        3 => (0usize..20).prop_map(Op::Fetch),
        2 => (0usize..20).prop_map(Op::Complete),
        1 => (0usize..20).prop_map(Op::Rewind),
        2 => Just(Op::Tell),
        1 => Just(Op::Remap),
        1 => Just(Op::Restart),
    ]
}

struct Sent {
    id: u16,
    bytes: Vec<u8>,
}

/// Any driver that keeps to the rules gets all its chains read exactly, in order, and back.
fn transmits<M: Model>(size: u16, start: u32, split: bool, ops: Vec<Op>) {
    let fd = memory_file();
    let mem = remap(&fd);
    let mut model = M::new(mem.clone(), size, start);
    let mut device = model.device(&mem);
    let (mut gather, mut chains, mut places) = (Gather::new(0), Vec::new(), Places::new());
    // Added, published, in flight, completed, told: in this order.
    let (mut added, mut waiting, mut flying, mut complete) =
        (VecDeque::new(), VecDeque::new(), VecDeque::new(), VecDeque::new());
    for (n, op) in ops.into_iter().enumerate() {
        match op {
            Op::Add { lens, indirect } => {
                let mut bytes = noise(n as u32, lens.iter().map(|&len| usize::from(len)).sum());
                let mut at = 0;
                let mut pieces = Vec::new();
                for &len in &lens {
                    let addr = places.take(len.into());
                    mem.write(addr, &bytes[at..at + usize::from(len)]).unwrap();
                    at += usize::from(len);
                    pieces.push(Piece { addr, len: len.into(), write: false });
                }
                let layout = match indirect {
                    Some(direct) if split => {
                        Layout::Indirect(direct.min(lens.len() - 1), places.table(lens.len()))
                    }
                    Some(_) => Layout::Indirect(0, places.table(lens.len())),
                    None => Layout::Direct,
                };
                if let Some(id) = model.add(&pieces, layout) {
                    added.push_back(Sent { id, bytes: std::mem::take(&mut bytes) });
                }
            }
            Op::Publish => {
                model.publish();
                waiting.append(&mut added);
            }
            Op::Fetch(max) => {
                gather.clear();
                chains.clear();
                let n = device.fetch(&mut gather, &mut chains, max).unwrap();
                assert_eq!(n, max.min(waiting.len()));
                assert_eq!(chains.len(), n);
                for chain in &chains {
                    let sent: Sent = waiting.pop_front().unwrap();
                    let mut bytes = vec![0; chain.len() as usize];
                    assert_eq!(gather.body(*chain).read(&mut bytes), bytes.len());
                    assert_eq!(bytes, sent.bytes);
                    flying.push_back(sent);
                }
            }
            Op::Complete(n) => {
                let n = n.min(device.in_flight());
                device.complete(n);
                complete.extend(flying.drain(..n));
            }
            Op::Rewind(n) => {
                let n = n.min(device.in_flight());
                device.rewind(n);
                for sent in flying.drain(flying.len() - n..).rev() {
                    waiting.push_front(sent);
                }
            }
            Op::Tell => {
                device.publish();
                let expected: Vec<_> = complete.drain(..).map(|sent: Sent| (sent.id, 0)).collect();
                assert_eq!(model.used(), expected);
                assert_eq!(device.position(), model.position());
            }
            Op::Remap => device.set_memory(remap(&fd)).unwrap(),
            Op::Restart => {
                device.publish();
                let expected: Vec<_> = complete.drain(..).map(|sent: Sent| (sent.id, 0)).collect();
                assert_eq!(model.used(), expected);
                let config = RingConfig { start: device.position(), ..model.config() };
                device = M::Device::new(mem.clone(), &config).unwrap();
                for sent in flying.drain(..).rev() {
                    waiting.push_front(sent);
                }
            }
        }
        assert_eq!(device.in_flight(), flying.len());
        assert_eq!(device.available().unwrap(), !waiting.is_empty());
        // Before it is told, the driver sees nothing.
        assert_eq!(model.used(), []);
    }
}

#[derive(Clone, Debug)]
enum RxOp {
    Add { lens: Vec<u16>, indirect: bool },
    Publish,
    Prepare(usize),
    Put { head: usize, body: usize },
    Tell,
    Remap,
}

fn rx_op() -> impl Strategy<Value = RxOp> {
    let add = (prop::collection::vec(0u16..600, 1..4), any::<bool>())
        .prop_map(|(lens, indirect)| RxOp::Add { lens, indirect });
    prop_oneof![
        6 => add,
        3 => Just(RxOp::Publish),
        2 => (0usize..40).prop_map(RxOp::Prepare),
        4 => (0usize..200, prop_oneof![0usize..100, 0usize..3000]).prop_map(|(head, body)| RxOp::Put { head, body }),
        2 => Just(RxOp::Tell),
        1 => Just(RxOp::Remap),
    ]
}

struct Buffer {
    id: u16,
    pieces: Vec<Piece>,
    len: u64,
}

/// Any driver that keeps to the rules finds each frame whole, in the buffers it gave, in their
/// order.
fn receives<M: Model>(size: u16, start: u32, mergeable: bool, net: usize, ops: Vec<RxOp>) {
    let fd = memory_file();
    let mem = remap(&fd);
    let mut model = M::new(mem.clone(), size, start);
    let mut device = model.device(&mem);
    let mut places = Places::new();
    let source = memory();
    let (mut added, mut free) = (VecDeque::new(), VecDeque::new());
    // What the driver should find: id, length and content of each buffer.
    let mut filled: Vec<(u16, u32, Vec<Piece>, Vec<u8>)> = Vec::new();
    for (n, op) in ops.into_iter().enumerate() {
        match op {
            RxOp::Add { lens, indirect } => {
                let pieces: Vec<_> = lens
                    .iter()
                    .map(|&len| Piece {
                        addr: places.take(len.into()),
                        len: len.into(),
                        write: true,
                    })
                    .collect();
                let layout = if indirect {
                    Layout::Indirect(0, places.table(lens.len()))
                } else {
                    Layout::Direct
                };
                if let Some(id) = model.add(&pieces, layout) {
                    added.push_back(Buffer {
                        id,
                        pieces,
                        len: lens.iter().map(|&len| u64::from(len)).sum(),
                    });
                }
            }
            RxOp::Publish => {
                model.publish();
                free.append(&mut added);
            }
            RxOp::Prepare(n) => {
                let ready = device.prepare(n).unwrap();
                assert!(ready >= n.min(free.len()) && ready <= free.len());
            }
            RxOp::Put { head, body } => {
                let mut header = noise(n as u32, net);
                let (head, body) = (noise(n as u32 + 1, head), noise(n as u32 + 2, body));
                let mut gather = Gather::new(0);
                source.write(BORDER - 50, &body).unwrap();
                let chain = gather.push_range(&source, BORDER - 50, body.len() as u32).unwrap();
                let total = (net + head.len() + body.len()) as u64;
                let mut room = 0;
                let count = free.iter().position(|buffer: &Buffer| {
                    room += buffer.len;
                    room >= total
                });
                let result = device
                    .put(
                        &mut header,
                        &head,
                        gather.body(chain),
                        mergeable,
                        &mut GrantCopyBatch::new(),
                    )
                    .unwrap();
                let expected = match (free.front(), count) {
                    (Some(_), Some(0)) => Put::Done,
                    (Some(_), Some(_)) if mergeable => Put::Done,
                    (Some(_), _) if !mergeable => Put::TooBig,
                    _ => Put::Full,
                };
                assert_eq!(result, expected);
                if result != Put::Done {
                    continue;
                }
                let taken: Vec<_> = free.drain(..=count.unwrap()).collect();
                if net == 12 {
                    header[10..12].copy_from_slice(&(taken.len() as u16).to_le_bytes());
                }
                let frame = [header, head, body].concat();
                let mut rest = &frame[..];
                for buffer in taken {
                    let (now, grant_copies) = rest.split_at(rest.len().min(buffer.len as usize));
                    filled.push((buffer.id, now.len() as u32, buffer.pieces, now.to_vec()));
                    rest = grant_copies;
                }
            }
            RxOp::Tell => {
                device.publish();
                let expected: Vec<_> = filled.iter().map(|(id, len, ..)| (*id, *len)).collect();
                assert_eq!(model.used(), expected);
                for (_, len, pieces, content) in filled.drain(..) {
                    let mut bytes = Vec::new();
                    for piece in pieces {
                        let mut part = vec![0; piece.len as usize];
                        mem.read(piece.addr, &mut part).unwrap();
                        bytes.extend(part);
                    }
                    assert_eq!(bytes[..len as usize], content);
                }
                assert_eq!(device.position(), model.position());
            }
            RxOp::Remap => device.set_memory(remap(&fd)).unwrap(),
        }
        assert_eq!(device.in_flight(), 0);
        assert_eq!(model.used(), []);
    }
}

/// Whatever bytes are in the ring, nothing is worse than a violation.
fn survives<M: Model>(size: u16, mergeable: bool, bytes: &[u8], seed: u32) {
    let mem = memory();
    let model = M::new(mem.clone(), size, M::origin());
    // Descriptors and indices at random, but often enough plausible.
    let mut ring = noise(seed, 40 * usize::from(size));
    for chunk in ring.chunks_mut(16) {
        if chunk[0] % 4 != 0 {
            chunk[2..].fill(0);
            chunk[8] = chunk[0];
            chunk[12] = chunk[1] & 7;
            chunk[14] = (chunk[0] >> 2) & 3 | 0x80;
        }
    }
    mem.write(crate::model::RING, &ring).unwrap();
    for (i, &byte) in bytes.iter().enumerate() {
        mem.write(crate::model::RING + (i as u64 * 61) % (28 * u64::from(size)), &[byte]).unwrap();
    }
    let config = model.config();
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    for receive in [false, true] {
        let mut device = M::Device::new(mem.clone(), &config).unwrap();
        for round in 0..20u16 {
            let index = config.driver + 2;
            mem.write(index, &(round * (size / 4)).to_le_bytes()).unwrap();
            let result = if receive {
                let mut net = [0; 12];
                device
                    .prepare(40)
                    .and_then(|_| {
                        device.put(
                            &mut net,
                            &[1; 300],
                            Body::empty(),
                            mergeable,
                            &mut GrantCopyBatch::new(),
                        )
                    })
                    .map(|_| ())
            } else {
                gather.clear();
                chains.clear();
                device.fetch(&mut gather, &mut chains, 40).map(|n| {
                    for chain in &chains {
                        gather.body(*chain).read(&mut [0; 2000]);
                    }
                    device.complete(n / 2);
                    device.rewind(n / 4);
                })
            };
            device.publish();
            let _ = (device.arm(), device.available());
            device.disarm();
            if result.is_err() {
                break;
            }
        }
    }
}

/// The device asks for interrupts exactly as the driver wants them, whatever the positions.
fn interrupts_as_wanted<M: Model>(size: u16, event_idx: bool, rounds: &[(u16, u16)]) {
    let mem = memory();
    let mut model = M::new(mem.clone(), size, M::origin());
    model.negotiate(event_idx, true);
    let mut device = model.device(&mem);
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    let mut first = true;
    for &(n, after) in rounds {
        let n = n % (size + 1);
        let wanted = match after % 4 {
            0 if event_idx => Interrupts::After(after % size),
            1 if event_idx => Interrupts::After(n.saturating_sub(1)),
            2 => Interrupts::Never,
            _ => Interrupts::Always,
        };
        for _ in 0..n {
            model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).unwrap();
        }
        model.publish();
        gather.clear();
        chains.clear();
        assert_eq!(device.fetch(&mut gather, &mut chains, size.into()).unwrap(), usize::from(n));
        model.interrupts(wanted);
        device.complete(usize::from(n));
        let asked = device.publish();
        let expected = n > 0
            && match wanted {
                Interrupts::Always => true,
                Interrupts::Never => false,
                Interrupts::After(after) => after < n,
            };
        // The very first may come unasked: the split layout cannot know yet what the driver has
        // seen.
        if !first {
            assert_eq!(asked, expected, "{n} used, {wanted:?}");
        }
        first &= n == 0;
        assert_eq!(model.used().len(), usize::from(n));
    }
}

/// The driver kicks when the device has armed, and finds out about what it did before.
fn kicks_when_armed<M: Model>(size: u16, event_idx: bool) {
    let mem = memory();
    let mut model = M::new(mem.clone(), size, M::origin());
    model.negotiate(event_idx, true);
    let mut device = model.device(&mem);
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    let add = |model: &mut M| {
        model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).unwrap()
    };
    for _ in 0..3 * size {
        assert!(!device.arm().unwrap());
        add(&mut model);
        assert!(model.publish(), "asked for");
        device.disarm();
        assert!(device.available().unwrap());
        assert_eq!(device.fetch(&mut gather, &mut chains, 9).unwrap(), 1);
        add(&mut model);
        assert!(!model.publish(), "not asked for");
        assert!(device.arm().unwrap(), "something is there already");
        assert_eq!(device.fetch(&mut gather, &mut chains, 9).unwrap(), 1);
        device.complete(2);
        device.publish();
        model.used();
        gather.clear();
        chains.clear();
    }
}

fn starts() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0u16), Just(0xfff0), any::<u16>()]
}

fn packed_start(start: u16, size: u16) -> u32 {
    let word = u32::from((start & 0x8000) | ((start & 0x7fff) % size));
    word | word << 16
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn split_transmits(size in 1u32..7, start in starts(), ops in prop::collection::vec(op(), 0..80)) {
        transmits::<Split>(1 << size, start.into(), true, ops);
    }

    #[test]
    fn packed_transmits(size in 1u16..70, start in any::<u16>(), ops in prop::collection::vec(op(), 0..80)) {
        transmits::<Packed>(size, packed_start(start, size), false, ops);
    }

    #[test]
    fn split_receives(
        size in 1u32..7,
        start in starts(),
        mergeable in any::<bool>(),
        net in prop_oneof![Just(10usize), Just(12)],
        ops in prop::collection::vec(rx_op(), 0..80),
    ) {
        receives::<Split>(1 << size, start.into(), mergeable, net, ops);
    }

    #[test]
    fn packed_receives(
        size in 1u16..70,
        start in any::<u16>(),
        mergeable in any::<bool>(),
        net in prop_oneof![Just(10usize), Just(12)],
        ops in prop::collection::vec(rx_op(), 0..80),
    ) {
        receives::<Packed>(size, packed_start(start, size), mergeable, net, ops);
    }

    #[test]
    fn garbage_is_survived(
        size in 1u32..7,
        mergeable in any::<bool>(),
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        seed in any::<u32>(),
    ) {
        survives::<Split>(1 << size, mergeable, &bytes, seed);
        survives::<Packed>(1 << size, mergeable, &bytes, seed);
    }

    #[test]
    fn interrupts_come_as_wanted(
        size in 1u32..7,
        event_idx in any::<bool>(),
        rounds in prop::collection::vec((0u16..100, any::<u16>()), 1..40),
    ) {
        interrupts_as_wanted::<Split>(1 << size, event_idx, &rounds);
        interrupts_as_wanted::<Packed>((1 << size) - 1, event_idx, &rounds);
    }
}

#[test]
fn kicks_come_when_armed() {
    for event_idx in [false, true] {
        for size in [2, 8, 64] {
            kicks_when_armed::<Split>(size, event_idx);
        }
        for size in [2, 7, 64] {
            kicks_when_armed::<Packed>(size, event_idx);
        }
    }
}

/// A gather that is full leaves the rest in the ring; it comes with the next one.
fn leaves_what_does_not_fit<M: Model>() {
    let mem = memory();
    let mut model = M::new(mem.clone(), 256, M::origin());
    let mut device = model.device(&mem);
    let table = |n: u64| BORDER + 0x4000 * n;
    for n in 0..3u64 {
        let pieces = vec![Piece { addr: BUFFERS + n, len: 1, write: false }; 1000];
        mem.write(BUFFERS + n, &[n as u8]).unwrap();
        model.add(&pieces, Layout::Indirect(0, table(n))).unwrap();
    }
    model.publish();
    let (mut gather, mut chains) = (Gather::new(MAX_SPANS), Vec::new());
    assert_eq!(device.fetch(&mut gather, &mut chains, 9).unwrap(), 2);
    assert_eq!(device.fetch(&mut gather, &mut chains, 9).unwrap(), 0);
    gather.clear();
    assert_eq!(device.fetch(&mut gather, &mut chains, 9).unwrap(), 1);
    assert_eq!(device.in_flight(), 3);
    let mut bytes = [0; 1000];
    assert_eq!(gather.body(chains[2]).read(&mut bytes), 1000);
    assert_eq!(bytes, [2; 1000]);
}

#[test]
fn a_full_gather_leaves_the_rest() {
    leaves_what_does_not_fit::<Split>();
    leaves_what_does_not_fit::<Packed>();
}

/// A frame that no number of buffers will hold is refused for good, so that nobody waits for it.
fn refuses_for_good<M: Model>() {
    let mem = memory();
    let mut model = M::new(mem.clone(), 512, M::origin());
    let mut device = model.device(&mem);
    for _ in 0..512 {
        model.add(&[Piece { addr: BUFFERS, len: 16, write: true }], Layout::Direct).unwrap();
    }
    model.publish();
    let mut net = [0; 12];
    assert_eq!(
        device
            .put(&mut net, &[0; 16 * 256], Body::empty(), true, &mut GrantCopyBatch::new())
            .unwrap(),
        Put::TooBig
    );
    assert_eq!(
        device
            .put(&mut net, &[0; 16 * 256 - 12], Body::empty(), true, &mut GrantCopyBatch::new())
            .unwrap(),
        Put::Done
    );
    assert_eq!(net[10..], 256u16.to_le_bytes());
    assert_eq!(device.take_extra_pieces(), 255 + 256 / 8, "all buffers but one, and a look at all");
    assert_eq!(device.take_extra_pieces(), 0);
    device.publish();
    assert_eq!(model.used().len(), 256);

    // The same when spans, not buffers, run out.
    let mut model = M::new(mem.clone(), 512, M::origin());
    let mut device = model.device(&mem);
    for n in 0..5u64 {
        let pieces = vec![Piece { addr: BUFFERS, len: 1, write: true }; 1000];
        model.add(&pieces, Layout::Indirect(0, BORDER + 0x4000 * n)).unwrap();
    }
    model.publish();
    assert_eq!(
        device.put(&mut net, &[0; 4000], Body::empty(), true, &mut GrantCopyBatch::new()).unwrap(),
        Put::TooBig
    );
    assert_eq!(
        device.put(&mut net, &[0; 1500], Body::empty(), true, &mut GrantCopyBatch::new()).unwrap(),
        Put::Done
    );
    device.take_extra_pieces();
    assert_eq!(
        device.put(&mut net, &[0; 1500], Body::empty(), true, &mut GrantCopyBatch::new()).unwrap(),
        Put::Done
    );
    assert_eq!(
        device.put(&mut net, &[0; 1500], Body::empty(), true, &mut GrantCopyBatch::new()).unwrap(),
        Put::Full
    );
}

#[test]
fn a_frame_for_which_there_is_never_room_is_too_big() {
    refuses_for_good::<Split>();
    refuses_for_good::<Packed>();
}

/// A driver that empties its frame's memory afterwards changes nothing for whoever has the gather.
#[test]
fn fetched_chains_outlive_ring_and_memory() {
    let mem = memory();
    let mut model = Split::new(mem.clone(), 8, 0);
    let mut device = model.device(&mem);
    mem.write(HIGH, b"still here").unwrap();
    model.add(&[Piece { addr: HIGH, len: 10, write: false }], Layout::Direct).unwrap();
    model.publish();
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    device.fetch(&mut gather, &mut chains, 1).unwrap();
    drop((mem, model, device));
    let mut bytes = [0; 10];
    gather.body(chains[0]).read(&mut bytes);
    assert_eq!(&bytes, b"still here");
}

/// Broken areas are found when the ring is attached, in both layouts.
fn checks_areas<M: Model>(size: u16) {
    let mem = memory();
    let config = M::new(mem.clone(), size, M::origin()).config();
    let new = |config: RingConfig| M::Device::new(mem.clone(), &config).err();
    assert_eq!(new(config), None);
    assert_eq!(new(RingConfig { size: 0, ..config }), Some(Violation::QueueSize(0)));
    assert_eq!(new(RingConfig { size: 32769, ..config }), Some(Violation::QueueSize(32769)));
    let desc = config.desc + 8;
    assert_eq!(
        new(RingConfig { desc, ..config }),
        Some(Violation::Misaligned { addr: desc, align: 16 })
    );
    let device = config.device + 2;
    assert_eq!(
        new(RingConfig { device, ..config }),
        Some(Violation::Misaligned { addr: device, align: 4 })
    );
    let across = BORDER - 16;
    let error = Violation::RingOutside { addr: across, len: 16 * u64::from(size) };
    assert_eq!(new(RingConfig { desc: across, ..config }), Some(error));
    assert!(matches!(
        new(RingConfig { driver: END, ..config }),
        Some(Violation::RingOutside { addr: END, .. })
    ));
    assert!(matches!(
        new(RingConfig { device: u64::MAX - 3, ..config }),
        Some(Violation::RingOutside { .. })
    ));
}

#[test]
fn ring_areas_are_checked() {
    checks_areas::<Split>(8);
    checks_areas::<Packed>(7);
    let mem = memory();
    let config = Split::new(mem.clone(), 8, 0).config();
    let new = |config: RingConfig| crate::SplitDevice::new(mem.clone(), &config).err();
    assert_eq!(new(RingConfig { size: 6, ..config }), Some(Violation::QueueSize(6)));
    assert_eq!(new(RingConfig { start: 0x1_0000, ..config }), Some(Violation::Start(0x1_0000)));
    let driver = config.driver + 1;
    assert_eq!(
        new(RingConfig { driver, ..config }),
        Some(Violation::Misaligned { addr: driver, align: 2 })
    );
    let config = Packed::new(mem.clone(), 7, 0x8000_8000).config();
    let new = |config: RingConfig| crate::PackedDevice::new(mem.clone(), &config).err();
    assert_eq!(
        new(RingConfig { start: 0x8007_8007, ..config }),
        Some(Violation::Start(0x8007_8007))
    );
    let driver = config.driver + 2;
    assert_eq!(
        new(RingConfig { driver, ..config }),
        Some(Violation::Misaligned { addr: driver, align: 4 })
    );
}

/// An earlier frame is taken, and the violation behind it told by the next call, also when buffers
/// are taken ahead.
fn tells_after_what_was_good<M: Model>() {
    let mem = memory();
    let mut model = M::new(mem.clone(), 16, M::origin());
    let mut device = model.device(&mem);
    let bad = Violation::Outside { addr: END - 1, len: 60 };
    model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).unwrap();
    model.add(&[Piece { addr: END - 1, len: 60, write: false }], Layout::Direct).unwrap();
    model.publish();
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    assert_eq!(device.fetch(&mut gather, &mut chains, 9), Ok(1));
    assert_eq!(device.fetch(&mut gather, &mut chains, 9), Err(bad));
    assert_eq!((device.in_flight(), chains.len()), (1, 1));

    let mut model = M::new(mem.clone(), 16, M::origin());
    let mut device = model.device(&mem);
    model.add(&[Piece { addr: BUFFERS, len: 60, write: true }], Layout::Direct).unwrap();
    model.add(&[Piece { addr: END - 1, len: 60, write: true }], Layout::Direct).unwrap();
    model.publish();
    assert_eq!(device.prepare(9), Ok(1));
    assert_eq!(
        device.put(&mut [0; 12], &[0; 48], Body::empty(), true, &mut GrantCopyBatch::new()),
        Ok(Put::Done)
    );
    assert_eq!(
        device.put(&mut [0; 12], &[0; 48], Body::empty(), true, &mut GrantCopyBatch::new()),
        Err(bad)
    );
}

#[test]
fn good_chains_before_a_broken_one_are_taken() {
    tells_after_what_was_good::<Split>();
    tells_after_what_was_good::<Packed>();
}

fn refuses_chains<M: Model>() {
    let read = |addr, len| Piece { addr, len, write: false };
    let write = |addr, len| Piece { addr, len, write: true };
    let table = BUFFERS + 0x1000;
    let fetch = |pieces: &[Piece], layout| {
        let mem = memory();
        let mut model = M::new(mem.clone(), 2048, M::origin());
        let mut device = model.device(&mem);
        model.add(pieces, layout).unwrap();
        model.publish();
        device.fetch(&mut Gather::new(0), &mut Vec::new(), 1).err()
    };
    let prepare = |pieces: &[Piece]| {
        let mem = memory();
        let mut model = M::new(mem.clone(), 16, M::origin());
        let mut device = model.device(&mem);
        model.add(pieces, Layout::Direct).unwrap();
        model.publish();
        device.prepare(1).err()
    };
    assert_eq!(fetch(&[read(BUFFERS, 0), read(BUFFERS, 10)], Layout::Direct), None);
    assert_eq!(fetch(&[read(u64::MAX, 0)], Layout::Direct), None);
    let outside = |addr, len| Some(Violation::Outside { addr, len });
    for (addr, len) in
        [(END, 1), (END - 9, 10), (u64::MAX - 4, 5), (u64::MAX - 4, 4), (HIGH - 1, 2)]
    {
        assert_eq!(fetch(&[read(addr, len)], Layout::Direct), outside(addr, len.into()));
        assert_eq!(
            fetch(&[read(BUFFERS, 1), read(addr, len)], Layout::Direct),
            outside(addr, len.into())
        );
        assert_eq!(
            fetch(&[read(addr, len)], Layout::Indirect(0, table)),
            outside(addr, len.into())
        );
    }
    assert_eq!(fetch(&[write(BUFFERS, 1)], Layout::Direct), Some(Violation::WritableInTransmit));
    assert_eq!(
        fetch(&[read(BUFFERS, 1), write(BUFFERS, 1)], Layout::Direct),
        Some(Violation::WritableInTransmit)
    );
    assert_eq!(prepare(&[read(BUFFERS, 1)]), Some(Violation::ReadableInReceive));
    assert_eq!(prepare(&[write(BUFFERS, 1), read(BUFFERS, 1)]), Some(Violation::ReadableInReceive));
    assert_eq!(fetch(&[read(BUFFERS, 1); 1024], Layout::Direct), None);
    assert_eq!(
        fetch(&[read(BUFFERS, 1); 1025], Layout::Direct),
        Some(Violation::ChainTooLong(1024))
    );
    assert_eq!(fetch(&[read(BUFFERS, 1); 1024], Layout::Indirect(0, table)), None);
    let too_long = Some(Violation::IndirectLength(1025 * 16));
    assert_eq!(fetch(&[read(BUFFERS, 1); 1025], Layout::Indirect(0, table)), too_long);
    let mem = memory();
    let mut model = M::new(mem.clone(), 16, M::origin());
    model.negotiate(true, false);
    let mut device = model.device(&mem);
    model.add(&[read(BUFFERS, 1)], Layout::Indirect(0, table)).unwrap();
    model.publish();
    let refused = device.fetch(&mut Gather::new(0), &mut Vec::new(), 1).err();
    assert_eq!(refused, Some(Violation::IndirectNotNegotiated));
    // Every piece across a border: as many spans as a chain may have.
    assert_eq!(fetch(&[read(BORDER - 1, 2); 1024], Layout::Indirect(0, table)), None);
}

#[test]
fn broken_chains_are_refused() {
    refuses_chains::<Split>();
    refuses_chains::<Packed>();
}

/// Guests with little memory can still describe 4 GiB with one chain, by naming the same bytes
/// again and again.
#[test]
fn a_chain_of_four_gigabytes_is_refused() {
    let (mem, _fd) = Memory::shared(64 << 20).unwrap();
    let mem = Arc::new(mem);
    let piece = |len| Piece { addr: 1 << 20, len, write: false };
    let mut pieces = vec![piece(32 << 20); 127];
    pieces.push(piece((32 << 20) - 1));
    for (more, error) in [(0, None), (1, Some(Violation::ChainTooBig))] {
        if more == 1 {
            pieces.push(piece(1));
        }
        let mut model = Split::new(mem.clone(), 256, 0);
        let mut device = model.device(&mem);
        model.add(&pieces, Layout::Direct).unwrap();
        model.publish();
        assert_eq!(device.fetch(&mut Gather::new(0), &mut Vec::new(), 1).err(), error);
    }
}

/// A driver that takes its memory away is found out, at the latest before the worker sleeps, and
/// harms nobody.
fn names_truncation<M: Model>() {
    let fd = memory_file();
    let mem = remap(&fd);
    let mut model = M::new(mem.clone(), 16, M::origin());
    let mut device = model.device(&mem);
    for _ in 0..3 {
        model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).unwrap();
    }
    model.publish();
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    assert_eq!(device.fetch(&mut gather, &mut chains, 2).unwrap(), 2);
    rustix::fs::ftruncate(&fd, 0).unwrap();
    let mut bytes = [1; 60];
    assert_eq!(gather.body(chains[0]).read(&mut bytes), 60);
    assert_eq!(bytes, [0; 60]);
    device.complete(2);
    device.publish();
    let _ = device.fetch(&mut gather, &mut chains, 2);
    assert_eq!(device.arm(), Err(Violation::MemoryTruncated));
}

#[test]
fn truncated_memory_is_named() {
    names_truncation::<Split>();
    names_truncation::<Packed>();
}

/// A chain just below 4 GiB can be sent; with its header it cannot be put anywhere.
#[test]
fn a_frame_of_four_gigabytes_is_too_big() {
    let (mem, _fd) = Memory::shared(64 << 20).unwrap();
    let mem = Arc::new(mem);
    let piece = |write| Piece { addr: 1 << 20, len: 32 << 20, write };
    let mut gather = Gather::new(0);
    let mark = gather.mark();
    for _ in 0..127 {
        gather.push_range(&mem, 1 << 20, 32 << 20).unwrap();
    }
    gather.push_range(&mem, 1 << 20, (32 << 20) - 1).unwrap();
    let chain = gather.chain_from(mark, u32::MAX);
    let mut model = Split::new(mem.clone(), 256, 0);
    let mut device = model.device(&mem);
    for _ in 0..200 {
        model.add(&[piece(true)], Layout::Direct).unwrap();
    }
    model.publish();
    assert_eq!(
        device
            .put(&mut [0; 12], &[], gather.body(chain), true, &mut GrantCopyBatch::new())
            .unwrap(),
        Put::TooBig
    );
}

/// While another thread scribbles all over ring and descriptors, the worst is a violation.
fn survives_a_scribbler<M: Model>() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let mem = memory();
    let model = M::new(mem.clone(), 64, M::origin());
    let config = model.config();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 1;
            while !stop.load(Ordering::Relaxed) {
                for at in (0..0x700).step_by(2) {
                    seed = u32::wrapping_mul(seed, 1664525).wrapping_add(1013904223);
                    // Small numbers, and the flags of both layouts.
                    let word = [(seed >> 24) as u16 & 63, (seed >> 24) as u16 & 0x8087, 0]
                        [(seed >> 20) as usize % 3];
                    mem.write(crate::model::RING + at, &word.to_le_bytes()).unwrap();
                }
            }
        });
        let (mut gather, mut chains) = (Gather::new(0), Vec::new());
        let mut device = M::Device::new(mem.clone(), &config).unwrap();
        for round in 0..20_000 {
            gather.clear();
            chains.clear();
            let result = if round / 100 % 2 == 0 {
                device.fetch(&mut gather, &mut chains, 40).map(|n| device.complete(n))
            } else {
                device
                    .prepare(40)
                    .and_then(|_| {
                        device.put(
                            &mut [0; 12],
                            &[1; 300],
                            Body::empty(),
                            true,
                            &mut GrantCopyBatch::new(),
                        )
                    })
                    .map(drop)
            };
            for chain in &chains {
                gather.body(*chain).read(&mut [0; 2000]);
            }
            device.publish();
            if result.is_err() || round % 100 == 99 {
                device = M::Device::new(mem.clone(), &config).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_scribbling_peer_is_survived() {
    survives_a_scribbler::<Split>();
    survives_a_scribbler::<Packed>();
}

/// The device sees that a driver has taken all once the driver has filled its ring again, wherever
/// the ring stands.
fn shows_what_was_taken<M: Model>(size: u16, event_idx: bool) {
    let mem = memory();
    let mut model = M::new(mem.clone(), size, M::origin());
    model.negotiate(event_idx, false);
    let mut device = model.device(&mem);
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    let fill = |model: &mut M| {
        while model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).is_some()
        {
        }
        model.publish();
    };
    fill(&mut model);
    model.interrupts(Interrupts::Never);
    for round in 0..100 {
        let n = 1 + round % usize::from(size);
        gather.clear();
        chains.clear();
        assert_eq!(device.fetch(&mut gather, &mut chains, n).unwrap(), n);
        device.complete(n);
        let mark = device.mark();
        assert!(!device.has_consumed(mark), "round {round}: nobody knows of it");
        device.publish();
        assert!(!device.has_consumed(mark), "round {round}: it lies there");
        assert_eq!(model.used().len(), n);
        assert!(!device.has_consumed(mark), "round {round}: nobody shows it");
        fill(&mut model);
        assert!(device.has_consumed(mark), "round {round}");
    }
}

#[test]
fn what_was_taken_is_seen_by_what_is_posted() {
    for event_idx in [false, true] {
        shows_what_was_taken::<Split>(8, event_idx);
        shows_what_was_taken::<Packed>(8, event_idx);
        shows_what_was_taken::<Packed>(7, event_idx);
    }
}

#[test]
fn a_driver_that_goes_to_sleep_shows_what_it_has_taken() {
    let mem = memory();
    let mut model = Split::new(mem.clone(), 8, Split::origin());
    model.negotiate(true, false);
    let mut device = model.device(&mem);
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    for _ in 0..8 {
        model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).unwrap();
    }
    model.publish();
    let mut carry = |device: &mut <Split as Model>::Device, n| {
        gather.clear();
        chains.clear();
        device.fetch(&mut gather, &mut chains, n).unwrap();
        device.complete(n);
        device.publish();
        device.mark()
    };
    let before = carry(&mut device, 3);
    let mark = carry(&mut device, 2);
    assert!(!device.has_consumed(before) && !device.has_consumed(mark));
    model.used();
    model.interrupts(Interrupts::After(0));
    assert!(device.has_consumed(before) && device.has_consumed(mark));
    let asleep = device.mark();
    assert!(device.has_consumed(asleep), "nothing has come since it went to sleep");
    let next = carry(&mut device, 1);
    assert!(!device.has_consumed(next));
}

#[test]
fn a_driver_that_only_wants_no_interrupts_does_not_say_what_it_has_taken() {
    // Just before positions pass zero, which is what Linux writes then.
    for (origin, more) in [(0xfffe, 3), (0xffff, 1)] {
        let mem = memory();
        let mut model = Split::new(mem.clone(), 8, origin);
        model.negotiate(true, false);
        let mut device = model.device(&mem);
        let (mut gather, mut chains) = (Gather::new(0), Vec::new());
        while model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).is_some()
        {
        }
        model.publish();
        model.interrupts(Interrupts::After(0x4000));
        let mut carry = |n| {
            device.fetch(&mut gather, &mut chains, n).unwrap();
            device.complete(n);
            device.publish();
            device.mark()
        };
        let mark = carry(1);
        carry(more);
        let config = model.config();
        let event = config.driver + 4 + 2 * u64::from(config.size);
        mem.write(event, &[0; 2]).unwrap();
        assert!(!device.has_consumed(mark), "from {origin:#x}");
        model.used();
        while model.add(&[Piece { addr: BUFFERS, len: 60, write: false }], Layout::Direct).is_some()
        {
        }
        model.publish();
        assert!(device.has_consumed(mark), "from {origin:#x}: by what it posts");
    }
}
