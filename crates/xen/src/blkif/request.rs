//! Slots of a ring as requests, and the responses to them. Nothing here touches a guest's memory.

use hypervisor::{GrantRef, PAGE};
use storage::command::{Refusal, SECTOR};

use super::layout::Layout;

/// Most segments in a slot (`BLKIF_MAX_SEGMENTS_PER_REQUEST`).
pub const MAX_SEGMENTS: u16 = 11;
/// Most segments of an indirect request, as offered: they fit one page.
pub const MAX_INDIRECT_SEGMENTS: u16 = 256;
/// Bytes of a segment: le32 grant reference, u8 first sector, u8 last sector, padding.
pub const SEGMENT: usize = 8;

/// Operations (`BLKIF_OP_`).
pub mod op {
    /// Read.
    pub const READ: u8 = 0;
    /// Write.
    pub const WRITE: u8 = 1;
    /// Make completed writes stable.
    pub const FLUSH_DISKCACHE: u8 = 3;
    /// Discard the contents of a range.
    pub const DISCARD: u8 = 5;
    /// Read or write, with the segments in a page of their own.
    pub const INDIRECT: u8 = 6;
}

/// Sectors of a page.
const SECTORS: u8 = (PAGE as u64 / SECTOR) as u8;

/// A mark in the place of a request's first sector, written with the response. No disk is that
/// long, and the response's own fields end before it. See [`is_response`].
const MARK: u64 = u64::from_le_bytes(*b"Ringmain");

/// A request as its slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlkRequest {
    /// The frontend's number for the request.
    pub id: u64,
    /// The operation that its response names.
    pub operation: u8,
    /// The first sector.
    pub sector: u64,
    /// The work to do.
    pub what: What,
}

/// The work that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Reads or writes.
    Data {
        /// From the guest to the disk.
        write: bool,
        /// How many segments, at least one.
        segments: u16,
        /// The page with the segments; `None`: they are in the slot.
        list: Option<GrantRef>,
    },
    /// Makes all completed writes stable.
    Flush,
    /// Discards this number of sectors.
    Discard(u64),
    /// Cannot be carried out.
    Refused(Refusal),
}

impl What {
    /// How many pages its data may lie in.
    pub fn pages(self) -> u32 {
        match self {
            What::Data { segments, .. } => segments.into(),
            _ => 0,
        }
    }
}

/// A part of a granted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The page.
    pub page: GrantRef,
    /// Where the part begins in the page, in bytes.
    pub offset: u16,
    /// Its length in bytes.
    pub len: u16,
}

fn u8_at(words: &[u32], at: usize) -> u8 {
    words.get(at / 4).map_or(0, |word| (word >> (8 * (at % 4))) as u8)
}

fn u16_at(words: &[u32], at: usize) -> u16 {
    u16::from_le_bytes([u8_at(words, at), u8_at(words, at + 1)])
}

/// The number at byte `at`, a multiple of four.
fn u32_at(words: &[u32], at: usize) -> u32 {
    words.get(at / 4).copied().unwrap_or_default()
}

fn u64_at(words: &[u32], at: usize) -> u64 {
    u64::from(u32_at(words, at)) | u64::from(u32_at(words, at + 4)) << 32
}

/// Reads a slot, which was copied out of the ring.
pub fn parse(layout: Layout, slot: &[u32]) -> BlkRequest {
    let (id, sector) = (u64_at(slot, layout.id()), u64_at(slot, layout.sector()));
    let (operation, second) = (u8_at(slot, 0), u8_at(slot, 1));
    let what = match operation {
        op::READ | op::WRITE => data(operation, second.into(), MAX_SEGMENTS, None),
        op::INDIRECT => {
            let list = GrantRef(u32_at(slot, layout.lists()));
            data(second, u16_at(slot, 2), MAX_INDIRECT_SEGMENTS, Some(list))
        }
        // A flush with data is not offered.
        op::FLUSH_DISKCACHE if second > 0 => What::Refused(Refusal::BadLength),
        op::FLUSH_DISKCACHE => What::Flush,
        // A secure discard is not offered.
        op::DISCARD if second & 1 != 0 => What::Refused(Refusal::Unsupported),
        op::DISCARD => What::Discard(u64_at(slot, layout.body())),
        _ => What::Refused(Refusal::Unsupported),
    };
    // A response to an indirect request names the operation that was carried out.
    let operation = if operation == op::INDIRECT { second } else { operation };
    BlkRequest { id, operation, sector, what }
}

fn data(operation: u8, segments: u16, most: u16, list: Option<GrantRef>) -> What {
    match operation {
        op::READ | op::WRITE if (1..=most).contains(&segments) => {
            What::Data { write: operation == op::WRITE, segments, list }
        }
        op::READ | op::WRITE => What::Refused(Refusal::BadLength),
        _ => What::Refused(Refusal::Unsupported),
    }
}

/// The first `count` segments in a slot, as bytes for [`read_segments`].
pub fn slot_segments(layout: Layout, slot: &[u32]) -> [u8; MAX_SEGMENTS as usize * SEGMENT] {
    let mut bytes = [0; MAX_SEGMENTS as usize * SEGMENT];
    let words = slot.get(layout.body() / 4..).unwrap_or_default();
    let (chunks, _) = bytes.as_chunks_mut::<4>();
    chunks.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
    bytes
}

/// Reads segments into `list`, and returns how many bytes they have together.
///
/// # Errors
/// When one does not lie within its page.
pub fn read_segments(bytes: &[u8], list: &mut Vec<Segment>) -> Result<u32, Refusal> {
    list.clear();
    let (segments, _) = bytes.as_chunks::<SEGMENT>();
    let mut sum = 0;
    for [a, b, c, d, first, last, ..] in segments {
        if first > last || *last >= SECTORS {
            return Err(Refusal::BadLength);
        }
        let page = GrantRef(u32::from_le_bytes([*a, *b, *c, *d]));
        let (offset, len) = (u16::from(*first), u16::from(last - first) + 1);
        let sector = SECTOR as u16;
        list.push(Segment { page, offset: offset * sector, len: len * sector });
        sum += u32::from(len * sector);
    }
    Ok(sum)
}

/// The response to a request, which fills its slot. Bytes that the response does not need are zero,
/// except for the mark.
pub fn response<const WORDS: usize>(
    layout: Layout,
    id: u64,
    operation: u8,
    status: i16,
) -> [u32; WORDS] {
    let mut slot = [0; WORDS];
    let status = u32::from(status as u16) << 16;
    let fields = [
        (0, id as u32),
        (4, (id >> 32) as u32),
        (8, u32::from(operation) | status),
        (layout.sector(), MARK as u32),
        (layout.sector() + 4, (MARK >> 32) as u32),
    ];
    for (at, value) in fields {
        if let Some(word) = slot.get_mut(at / 4) {
            *word = value;
        }
    }
    slot
}

/// Whether a slot behind the published responses holds a response, whose writer was stopped before
/// it was published.
pub fn is_response(layout: Layout, slot: &[u32]) -> bool {
    u64_at(slot, layout.sector()) == MARK
}

#[cfg(test)]
mod tests;
