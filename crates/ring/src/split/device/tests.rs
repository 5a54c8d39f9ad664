//! Tests of errors that only the split layout can have, and a comparison with rust-vmm's
//! `virtio-queue`.

use proptest::prelude::*;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::*;
use crate::model::{
    BORDER, BUFFERS, END, HIGH, Interrupts, Layout, Model, Piece, RING, Split, memory, put_desc,
};
use crate::split::used_len;
use crate::{Body, DeviceRing, Gather, GrantCopyBatch, Put};

/// A ring of `size` whose first available entry is descriptor `head`; `descs` are address, length,
/// flags, next.
fn broken(size: u16, head: u16, descs: &[(u64, u32, u16, u16)]) -> Option<Violation> {
    let mem = memory();
    let model = Split::new(mem.clone(), size, 0);
    for (i, &(addr, len, flags, next)) in descs.iter().enumerate() {
        put_desc(&mem, model.desc(i as u16), addr, len, [flags, next]);
    }
    mem.write(model.avail() + 4, &head.to_le_bytes()).unwrap();
    mem.write(model.avail() + 2, &1u16.to_le_bytes()).unwrap();
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    let mut device = model.device(&mem);
    let result = device.fetch(&mut gather, &mut chains, 1).err();
    assert_eq!(chains.len(), usize::from(result.is_none()));
    assert_eq!(device.position(), 0);
    result
}

/// The same with an indirect table of these entries, named by descriptor 0.
fn broken_table(entries: &[(u64, u32, u16, u16)]) -> Option<Violation> {
    let mem = memory();
    let model = Split::new(mem.clone(), 8, 0);
    // Across the border of two regions, and not aligned.
    let table = BORDER - 24;
    for (i, &(addr, len, flags, next)) in entries.iter().enumerate() {
        put_desc(&mem, table + 16 * i as u64, addr, len, [flags, next]);
    }
    put_desc(&mem, model.desc(0), table, 16 * entries.len() as u32, [4, 0]);
    mem.write(model.avail() + 2, &1u16.to_le_bytes()).unwrap();
    model.device(&mem).fetch(&mut Gather::new(0), &mut Vec::new(), 1).err()
}

const GOOD: (u64, u32, u16, u16) = (BUFFERS, 8, 0, 0);

#[test]
fn indices_beyond_the_table_are_refused() {
    assert_eq!(broken(8, 0, &[GOOD]), None);
    assert_eq!(broken(8, 8, &[GOOD]), Some(Violation::DescriptorIndex { index: 8, table: 8 }));
    assert_eq!(
        broken(8, 0xffff, &[GOOD]),
        Some(Violation::DescriptorIndex { index: 0xffff, table: 8 })
    );
    let link = |next| (BUFFERS, 8, 1, next);
    assert_eq!(broken(8, 0, &[link(8)]), Some(Violation::DescriptorIndex { index: 8, table: 8 }));
    assert_eq!(
        broken_table(&[link(2), GOOD]),
        Some(Violation::DescriptorIndex { index: 2, table: 2 })
    );
    assert_eq!(broken_table(&[link(1), GOOD]), None);
}

#[test]
fn loops_end() {
    assert_eq!(broken(8, 0, &[(BUFFERS, 8, 1, 0)]), Some(Violation::ChainTooLong(8)));
    assert_eq!(
        broken(2048, 0, &[(BUFFERS, 8, 1, 1), (BUFFERS, 0, 1, 0)]),
        Some(Violation::ChainTooLong(1024))
    );
    assert_eq!(
        broken_table(&[(BUFFERS, 8, 1, 1), (BUFFERS, 8, 1, 0)]),
        Some(Violation::ChainTooLong(2))
    );
}

#[test]
fn indirect_tables_are_checked() {
    assert_eq!(broken(8, 0, &[(BUFFERS, 16, 5, 1), GOOD]), Some(Violation::IndirectNext));
    for len in [0, 8, 17, 16 * 1025] {
        assert_eq!(broken(8, 0, &[(BUFFERS, len, 4, 0)]), Some(Violation::IndirectLength(len)));
    }
    for addr in [END - 16, END, HIGH - 8, u64::MAX - 20] {
        let error = Some(Violation::Outside { addr, len: 32 });
        let inside = addr == END - 16;
        // A table that begins inside is read as far as its chain goes.
        assert_eq!(broken(8, 0, &[(addr, 32, 4, 0)]), if inside { None } else { error });
    }
    assert_eq!(broken_table(&[(BUFFERS, 16, 4, 0)]), Some(Violation::IndirectNested));
    // A write flag on the descriptor of the table means nothing (virtio 1.2, 2.7.5.3.2).
    assert_eq!(broken(8, 0, &[(BUFFERS, 16, 6, 0)]), None);
}

#[test]
fn a_table_that_ends_outside_is_refused_when_it_gets_there() {
    let mem = memory();
    let model = Split::new(mem.clone(), 8, 0);
    put_desc(&mem, END - 16, BUFFERS, 8, [1, 1]);
    put_desc(&mem, model.desc(0), END - 16, 32, [4, 0]);
    mem.write(model.avail() + 2, &1u16.to_le_bytes()).unwrap();
    let error = model.device(&mem).fetch(&mut Gather::new(0), &mut Vec::new(), 1).err();
    assert_eq!(error, Some(Violation::Outside { addr: END, len: 16 }));
}

#[test]
fn more_spans_than_any_chain_needs_are_refused() {
    let mem = memory();
    let mut model = Split::new(mem.clone(), 1024, 0);
    let mut device = model.device(&mem);
    // 1023 descriptors and a table of 2, all across a border.
    let pieces = [Piece { addr: BORDER - 1, len: 2, write: false }; 1025];
    model.add(&pieces, Layout::Indirect(1023, BUFFERS)).unwrap();
    model.publish();
    let error = device.fetch(&mut Gather::new(10_000), &mut Vec::new(), 1).err();
    assert_eq!(error, Some(Violation::ChainScattered(2048)));
}

#[test]
fn the_available_index_may_not_jump() {
    let mem = memory();
    let mut model = Split::new(mem.clone(), 8, 0);
    let index = |value: u16| mem.write(model_avail() + 2, &value.to_le_bytes()).unwrap();
    let mut device = model.device(&mem);
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    index(9);
    let jump = |index, ahead| Err(Violation::AvailableJump { index, ahead, size: 8 });
    assert_eq!(device.fetch(&mut gather, &mut chains, 1), jump(9, 9));
    assert_eq!(device.available(), jump(9, 9).map(|_: usize| true));
    assert_eq!(device.arm(), jump(9, 9).map(|_: usize| true));
    assert_eq!(device.prepare(1), jump(9, 9));
    index(0xffff);
    assert_eq!(device.available(), jump(0xffff, 0xffff).map(|_: usize| true));
    index(0);
    for _ in 0..8 {
        model.add(&[Piece { addr: BUFFERS, len: 1, write: false }], Layout::Direct).unwrap();
    }
    model.publish();
    assert_eq!(device.fetch(&mut gather, &mut chains, 3), Ok(3));
    // The index goes back behind the entries taken.
    index(2);
    assert_eq!(device.fetch(&mut gather, &mut chains, 8), jump(2, 2));
    index(8);
    assert_eq!(device.fetch(&mut gather, &mut chains, 8), Ok(5));
    // The chains are complete, but that is not published, so the driver has no more to give.
    device.complete(8);
    index(9);
    assert_eq!(device.available(), jump(9, 9).map(|_: usize| true));
    device.publish();
    assert_eq!(device.available(), Ok(true));
}

fn model_avail() -> u64 {
    RING + 16 * 8
}

/// The used index of the driver's ring.
fn used_index(mem: &Memory, model: &Split) -> u16 {
    let mut bytes = [0; 2];
    mem.read(model.used_ring() + 2, &mut bytes).unwrap();
    u16::from_le_bytes(bytes)
}

#[test]
fn a_group_of_mergeable_buffers_appears_at_once() {
    let mem = memory();
    let mut model = Split::new(mem.clone(), 8, 0);
    let mut device = model.device(&mem);
    for n in 0..4 {
        model
            .add(&[Piece { addr: BUFFERS + 100 * n, len: 100, write: true }], Layout::Direct)
            .unwrap();
    }
    model.publish();
    assert_eq!(
        device
            .put(&mut [0; 12], &[7; 300], Body::empty(), true, &mut GrantCopyBatch::new())
            .unwrap(),
        Put::Done
    );
    assert_eq!(used_index(&mem, &model), 0);
    device.publish();
    assert_eq!(used_index(&mem, &model), 4);
    let lens: Vec<_> = model.used().into_iter().map(|(_, len)| len).collect();
    assert_eq!(lens, [100, 100, 100, 12]);
}

#[derive(Clone, Debug)]
enum Op {
    Add { pieces: usize, indirect: Option<usize> },
    Publish,
    Fetch(usize),
    Use(usize),
    Arm,
    Disarm,
    Interrupts(u16),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1usize..6, prop::option::of(0usize..5)).prop_map(|(pieces, indirect)| Op::Add { pieces, indirect }),
        3 => Just(Op::Publish),
        3 => (0usize..20).prop_map(Op::Fetch),
        3 => (0usize..20).prop_map(Op::Use),
        1 => Just(Op::Arm),
        1 => Just(Op::Disarm),
        1 => (0u16..20).prop_map(Op::Interrupts),
    ]
}

/// A twin of the guest's memory for the other implementation: the driver's writes are copied to it,
/// the device's not.
struct Twin {
    mem: GuestMemoryMmap<()>,
    queue: Queue,
    used: std::ops::Range<u64>,
}

impl Twin {
    fn new(model: &Split) -> Self {
        let config = model.config();
        let mem = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), END as usize)]).unwrap();
        let mut queue = Queue::new(config.size).unwrap();
        queue.set_size(config.size);
        queue.set_desc_table_address(Some(config.desc as u32), None);
        queue.set_avail_ring_address(Some(config.driver as u32), None);
        queue.set_used_ring_address(Some(config.device as u32), None);
        queue.set_event_idx(config.event_idx);
        queue.set_next_avail(config.start as u16);
        queue.set_next_used(config.start as u16);
        queue.set_ready(true);
        assert!(queue.is_valid(&mem));
        Self { mem, queue, used: config.device..config.device + used_len(config.size) }
    }

    /// Copies what the driver wrote: the rings but for the used ring, and the tables.
    fn sync(&self, mem: &Memory) {
        for (from, to) in
            [(RING, self.used.start), (self.used.end, 0x3000), (BUFFERS, BUFFERS + 0x8000)]
        {
            let mut bytes = vec![0; (to - from) as usize];
            mem.read(from, &mut bytes).unwrap();
            self.mem.write_slice(&bytes, GuestAddress(from)).unwrap();
        }
    }

    /// The used ring as each has written it.
    fn used_rings(&self, mem: &Memory) -> [Vec<u8>; 2] {
        let mut both = [(); 2].map(|()| vec![0; (self.used.end - self.used.start) as usize]);
        mem.read(self.used.start, &mut both[0]).unwrap();
        self.mem.read_slice(&mut both[1], GuestAddress(self.used.start)).unwrap();
        both
    }
}

/// Both devices get the same driver: they must see the same chains, write the same used ring, and
/// make the same interrupt decisions.
fn agrees(size: u16, start: u16, event_idx: bool, ops: Vec<Op>) {
    let mem = memory();
    let mut model = Split::new(mem.clone(), size, start.into());
    model.negotiate(event_idx, true);
    let mut device = model.device(&mem);
    let mut twin = Twin::new(&model);
    // Entry by entry, the twin's used ring starts as the driver has initialised it.
    let mut initial = vec![0; used_len(size) as usize];
    mem.read(twin.used.start, &mut initial).unwrap();
    twin.mem.write_slice(&initial, GuestAddress(twin.used.start)).unwrap();
    twin.sync(&mem);
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    let (mut heads, mut buffer, mut decided) = (Vec::new(), 0, false);
    for op in ops {
        match op {
            Op::Add { pieces, indirect } => {
                let list: Vec<_> = (0..pieces)
                    .map(|_| {
                        buffer = (buffer + 1) % 200;
                        let addr = BUFFERS + 0x8000 + 512 * buffer;
                        Piece { addr, len: 4 + (buffer % 60) as u32, write: false }
                    })
                    .collect();
                let table = BUFFERS + 0x100 * (buffer % 100);
                let layout = indirect.map_or(Layout::Direct, |direct| {
                    Layout::Indirect(direct.min(pieces - 1), table)
                });
                model.add(&list, layout);
            }
            Op::Publish => {
                model.publish();
                twin.sync(&mem);
            }
            Op::Fetch(max) => {
                gather.clear();
                chains.clear();
                device.fetch(&mut gather, &mut chains, max).unwrap();
                let mut theirs = Vec::new();
                for chain in (0..max).map_while(|_| twin.queue.pop_descriptor_chain(&twin.mem)) {
                    heads.push(chain.head_index());
                    theirs.push(chain.map(|desc| (desc.addr().0, desc.len())).collect::<Vec<_>>());
                }
                assert_eq!(chains.len(), theirs.len());
                for (ours, theirs) in chains.iter().zip(theirs) {
                    let mut spans = Vec::new();
                    gather.body(*ours).pieces(u32::MAX, |at, len| spans.push((at as usize, len)));
                    let translated: Vec<_> = theirs
                        .into_iter()
                        .map(|(addr, len)| {
                            (mem.host(addr, len.into(), 1).unwrap().as_ptr() as usize, len as usize)
                        })
                        .collect();
                    assert_eq!(spans, translated);
                }
            }
            Op::Use(n) => {
                let n = n.min(device.in_flight());
                device.complete(n);
                for head in heads.drain(..n) {
                    twin.queue.add_used(&twin.mem, head, 0).unwrap();
                }
                let asked = device.publish();
                let twin_asked = n > 0 && twin.queue.needs_notification(&twin.mem).unwrap();
                // Without event index, the other device ignores the flag; and our very first
                // decision is always to interrupt.
                if event_idx && decided {
                    assert_eq!(asked, twin_asked);
                }
                decided |= n > 0;
                let [ours, theirs] = twin.used_rings(&mem);
                assert_eq!(ours, theirs);
                assert_eq!(model.used().len(), n);
            }
            Op::Arm => {
                assert_eq!(
                    device.arm().unwrap(),
                    twin.queue.enable_notification(&twin.mem).unwrap()
                );
                let [ours, theirs] = twin.used_rings(&mem);
                assert_eq!(ours, theirs);
            }
            Op::Disarm => {
                device.disarm();
                twin.queue.disable_notification(&twin.mem).unwrap();
                let [ours, theirs] = twin.used_rings(&mem);
                assert_eq!(ours, theirs);
            }
            Op::Interrupts(after) => {
                model.interrupts(Interrupts::After(after));
                twin.sync(&mem);
            }
        }
        assert_eq!(device.position(), u32::from(twin.queue.next_used()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn agrees_with_virtio_queue(
        size in 1u32..8,
        start in prop_oneof![Just(0u16), Just(0xfffa), any::<u16>()],
        event_idx in any::<bool>(),
        ops in prop::collection::vec(op(), 0..60),
    ) {
        agrees(1 << size, start, event_idx, ops);
    }
}
