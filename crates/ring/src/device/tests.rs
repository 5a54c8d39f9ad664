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

mod garbage;
mod hostile;
mod notify;
mod receive;
mod transmit;

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

fn starts() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0u16), Just(0xfff0), any::<u16>()]
}

fn packed_start(start: u16, size: u16) -> u32 {
    let word = u32::from((start & 0x8000) | ((start & 0x7fff) % size));
    word | word << 16
}

/// Fetched chains stay valid in their gather when the ring and the memory are dropped.
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

/// Good chains before a broken one are taken, and the next call reports the violation, also when
/// buffers are taken ahead.
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
