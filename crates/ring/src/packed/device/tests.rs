//! Tests of errors that only the packed layout can have.

use super::*;
use crate::model::{BORDER, BUFFERS, Layout, Model, Packed, Piece, memory, put_desc};
use crate::{Body, DeviceRing, Gather, GrantCopyBatch, Put};

const AVAILABLE: u16 = 1 << 7;

/// A ring of `size` in its first pass whose first descriptors are these: address, length, flags.
fn broken(size: u16, descs: &[(u64, u32, u16)]) -> Option<Violation> {
    let mem = memory();
    let model = Packed::new(mem.clone(), size, Packed::origin());
    for (i, &(addr, len, flags)) in descs.iter().enumerate() {
        put_desc(&mem, model.desc(i as u64), addr, len, [7, flags]);
    }
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    let mut device = model.device(&mem);
    let result = device.fetch(&mut gather, &mut chains, 1).err();
    assert_eq!(chains.len(), usize::from(result.is_none()));
    assert_eq!(device.position(), Packed::origin());
    result
}

#[test]
fn broken_chains_are_refused() {
    let next = AVAILABLE | 1;
    assert_eq!(broken(8, &[(BUFFERS, 8, AVAILABLE)]), None);
    assert_eq!(broken(8, &[(BUFFERS, 8, next), (BUFFERS, 8, AVAILABLE)]), None);
    // The second was never made available.
    assert_eq!(broken(8, &[(BUFFERS, 8, next), (BUFFERS, 8, 0)]), Some(Violation::ChainTorn));
    assert_eq!(
        broken(8, &[(BUFFERS, 8, next), (BUFFERS, 8, AVAILABLE | 1 << 15)]),
        Some(Violation::ChainTorn)
    );
    // The chain goes all the way around: the wrap counter flips, and the first descriptor belongs
    // to the pass before.
    assert_eq!(broken(4, &[(BUFFERS, 8, next); 4]), Some(Violation::ChainTorn));
    assert_eq!(broken(2048, &[(BUFFERS, 8, next); 1100]), Some(Violation::ChainTooLong(1024)));
}

#[test]
fn indirect_tables_are_checked() {
    let indirect = AVAILABLE | 4;
    let table = (BUFFERS, 16, indirect | 1);
    assert_eq!(broken(8, &[table, (BUFFERS, 16, AVAILABLE)]), Some(Violation::IndirectNext));
    for len in [0, 8, 17, 16 * 1025] {
        assert_eq!(broken(8, &[(BUFFERS, len, indirect)]), Some(Violation::IndirectLength(len)));
    }
    assert_eq!(
        broken(8, &[(u64::MAX - 20, 32, indirect)]),
        Some(Violation::Outside { addr: u64::MAX - 20, len: 32 })
    );
    let mem = memory();
    let model = Packed::new(mem.clone(), 8, Packed::origin());
    put_desc(&mem, BORDER - 24, BUFFERS, 8, [0, 0]);
    put_desc(&mem, BORDER - 8, BUFFERS, 8, [0, 4]);
    put_desc(&mem, model.desc(0), BORDER - 24, 32, [0, indirect]);
    let error = model.device(&mem).fetch(&mut Gather::new(0), &mut Vec::new(), 1).err();
    assert_eq!(error, Some(Violation::IndirectNested));
}

#[test]
fn a_chain_may_not_run_into_what_is_in_flight() {
    let mem = memory();
    let mut model = Packed::new(mem.clone(), 4, Packed::origin());
    let mut device = model.device(&mem);
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    for _ in 0..3 {
        model.add(&[Piece { addr: BUFFERS, len: 8, write: false }], Layout::Direct).unwrap();
    }
    model.publish();
    assert_eq!(device.fetch(&mut gather, &mut chains, 9), Ok(3));
    // A chain of two in the one descriptor that is left; the second is still the device's.
    let next_pass = 1 << 15;
    put_desc(&mem, model.desc(0), BUFFERS, 8, [0, next_pass]);
    put_desc(&mem, model.desc(3), BUFFERS, 8, [0, AVAILABLE | 1]);
    assert_eq!(device.fetch(&mut gather, &mut chains, 9), Err(Violation::Overrun));
    // A single descriptor is fine, but then no descriptor is left to be taken, whatever the driver
    // writes.
    put_desc(&mem, model.desc(3), BUFFERS, 8, [0, AVAILABLE]);
    assert_eq!(device.fetch(&mut gather, &mut chains, 9), Ok(1));
    assert_eq!(device.available(), Ok(false));
    assert_eq!(device.fetch(&mut gather, &mut chains, 9), Ok(0));
    // Completion alone does not free descriptors: it must be published.
    device.complete(4);
    assert_eq!(device.available(), Ok(false));
    device.publish();
    put_desc(&mem, model.desc(0), BUFFERS, 8, [0, next_pass]);
    assert_eq!(device.available(), Ok(true));
}

/// The driver looks only at the next descriptor that it expects back, where nothing may appear
/// before the publication.
#[test]
fn a_burst_appears_at_once() {
    let mem = memory();
    let mut model = Packed::new(mem.clone(), 8, Packed::origin());
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
    assert_eq!(model.used(), []);
    device.publish();
    let lens: Vec<_> = model.used().into_iter().map(|(_, len)| len).collect();
    assert_eq!(lens, [100, 100, 100, 12]);
}

#[test]
fn starts_where_it_is_told() {
    let mem = memory();
    let config = Packed::new(mem.clone(), 8, Packed::origin()).config();
    let position =
        |start| PackedDevice::new(mem.clone(), &RingConfig { start, ..config }).unwrap().position();
    assert_eq!(position(0x8003_8003), 0x8003_8003);
    // Only the available half.
    assert_eq!(position(0x8003), 0x8003_8003);
    // Chains were in flight when another device stopped; they are processed again.
    assert_eq!(position(0x8001_8003), 0x8001_8001);
    assert_eq!(position(0x0000_0000), 0);
}
