//! Records: captured frames on their way from a worker to a reader.
//!
//! Both ends are in this process, so integers are as the machine has them.

use frame::{GsoKind, Offload};

use crate::count::DropReason;

/// Bytes of a record before those of its frame.
pub(crate) const HEADER: usize = 32;

/// The side of a port's guest that a frame was on its way to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// To the guest.
    Inbound,
    /// From the guest.
    Outbound,
}

/// A captured frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
    /// The place of its port in the capture's list.
    pub interface: u16,
    /// Which way the frame went.
    pub direction: Direction,
    /// Length of the frame in bytes.
    pub len: u32,
    /// The reason why the frame was dropped at this port, if it was.
    pub dropped: Option<DropReason>,
    /// The frame's transport checksum is partial, and must still be completed.
    pub partial_checksum: bool,
    /// For a frame that stands for several segments: their kind, and the most payload bytes of
    /// each.
    pub segments: Option<(GsoKind, u16)>,
    /// The number of segments that the receiver was given in place of this frame, if not one.
    pub cut_into: u32,
    /// Its first bytes.
    pub bytes: &'a [u8],
}

/// What a record says besides the bytes of its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    pub time: u64,
    pub interface: u16,
    pub direction: Direction,
    pub len: u32,
    pub dropped: Option<DropReason>,
    pub offload: Offload,
    pub cut_into: u32,
}

const NOT_DROPPED: u8 = u8::MAX;
const OUTBOUND: u8 = 1;
const PARTIAL: u8 = 2;

const KINDS: [GsoKind; 4] = [GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::UdpV4, GsoKind::UdpV6];

// Every reason has a number that is not `NOT_DROPPED`.
const _: () = assert!(DropReason::ALL.len() < NOT_DROPPED as usize);

impl Note {
    /// The header of a record with `bytes` bytes of the frame.
    pub fn encode(&self, bytes: usize) -> [u8; HEADER] {
        let outbound = if self.direction == Direction::Outbound { OUTBOUND } else { 0 };
        let partial = if self.offload.csum.is_some() { PARTIAL } else { 0 };
        let dropped = self.dropped.map_or(NOT_DROPPED, |reason| reason as u8);
        let kind =
            |kind| KINDS.iter().position(|other| *other == kind).map_or(0, |at| at as u8 + 1);
        let (kind, size) = self.offload.gso.map_or((0, 0), |gso| (kind(gso.kind), gso.size));
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&((HEADER + bytes) as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&self.len.to_ne_bytes());
        header[8..16].copy_from_slice(&self.time.to_ne_bytes());
        header[16..20].copy_from_slice(&self.cut_into.to_ne_bytes());
        header[20..22].copy_from_slice(&self.interface.to_ne_bytes());
        header[22..24].copy_from_slice(&size.to_ne_bytes());
        header[24..27].copy_from_slice(&[outbound | partial, dropped, kind]);
        header
    }
}

/// The time of a record, and its length with the header.
pub(crate) fn time_and_len(header: &[u8; HEADER]) -> (u64, usize) {
    let len = u32::from_ne_bytes(field(header, 0)) as usize;
    (u64::from_ne_bytes(field(header, 8)), len.max(HEADER))
}

fn field<const N: usize>(bytes: &[u8; HEADER], at: usize) -> [u8; N] {
    bytes[at..].first_chunk().copied().unwrap_or([0; N])
}

impl<'a> Record<'a> {
    /// The record at the start of `bytes`.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Record<'a>> {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let (time, whole) = time_and_len(header);
        let [flags, dropped, kind] = field(header, 24);
        let kind = usize::from(kind).checked_sub(1).and_then(|kind| KINDS.get(kind));
        let size = u16::from_ne_bytes(field(header, 22));
        Some(Record {
            time,
            interface: u16::from_ne_bytes(field(header, 20)),
            direction: match flags & OUTBOUND {
                0 => Direction::Inbound,
                _ => Direction::Outbound,
            },
            len: u32::from_ne_bytes(field(header, 4)),
            dropped: DropReason::ALL.get(usize::from(dropped)).copied(),
            partial_checksum: flags & PARTIAL != 0,
            segments: kind.map(|kind| (*kind, size)),
            cut_into: u32::from_ne_bytes(field(header, 16)),
            bytes: bytes.get(HEADER..whole)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use frame::{Gso, PartialCsum};

    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let reasons = DropReason::ALL.iter().copied().map(Some).chain([None]);
        for (at, dropped) in reasons.enumerate() {
            let kind = KINDS.get(at % 5).copied();
            let gso = kind.map(|kind| Gso { kind, size: 1000 + at as u16, ecn: false });
            let csum = (at % 2 == 0).then_some(PartialCsum { start: 34, offset: 16 });
            let direction = if at % 3 == 0 { Direction::Inbound } else { Direction::Outbound };
            let note = Note {
                time: u64::MAX - at as u64,
                interface: at as u16,
                direction,
                len: 70_000,
                dropped,
                offload: Offload { csum, gso, valid: false },
                cut_into: 40,
            };
            let bytes = vec![at as u8; at];
            let whole = [&note.encode(at)[..], &bytes, &[0xff; 50]].concat();
            let want = Record {
                time: note.time,
                interface: note.interface,
                direction,
                len: 70_000,
                dropped,
                partial_checksum: csum.is_some(),
                segments: gso.map(|gso| (gso.kind, gso.size)),
                cut_into: 40,
                bytes: &bytes,
            };
            assert_eq!(Record::decode(&whole), Some(want));
        }
        assert_eq!(Record::decode(&[0; HEADER - 1]), None);
    }
}
