//! Drivers that write what no driver may.

use super::*;

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
