//! Receive coalescing: consecutive TCP segments of a flow become one frame, as if a network card
//! had received it. The inverse of [`segment`](crate::segment).
//!
//! Only headers are changed here. The caller keeps the segments' payloads where they are, and
//! delivers them behind the headers of the first segment.
//!
//! A segment is taken only if software segmentation of the result gives all segments back: headers
//! differ in nothing but sequence number, IPv4 identification, lengths, checksums and PSH. Both
//! checksums must be right: the frame tells its receiver not to look at them any more.

use crate::bytes::{get_u16, get_u32, put};
use crate::checksum::{Sum, TCP_CSUM_OFFSET};
use crate::head::HEAD_LEN;
use crate::offload::{Gso, GsoKind, Offload, PartialCsum};
use crate::view::{Headers, L3, L4, ethertype, parse_into, proto};

/// Longest IP packet, in bytes.
const LONGEST_PACKET: u32 = 65_535;
/// Bytes of an IPv4 header without options, and of an IPv6 header without extensions.
const IPV4_LEN: u8 = 20;
const IPV6_LEN: u8 = 40;
/// In the flags and the offset of an IPv4 header: the packet must not be fragmented, so its
/// identification says nothing.
const DONT_FRAGMENT: u16 = 0x4000;
/// TCP flags.
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// Where the sequence number and the flags lie in a TCP header.
const SEQUENCE: usize = 4;
const FLAGS: usize = 13;

/// Bytes of a frame that [`may_be_segment`] looks at.
pub const FIRST: usize = 24;

/// Whether a frame that starts with these bytes is TCP over IP, without tags, options and
/// extensions. A cheap look, before the whole frame is looked at.
pub fn may_be_segment(first: &[u8; FIRST]) -> bool {
    let ethertype = u16::from_be_bytes([first[12], first[13]]);
    match ethertype {
        ethertype::IPV4 => first[14] == 0x45 && first[23] == proto::TCP,
        ethertype::IPV6 => first[20] == proto::TCP,
        _ => false,
    }
}

/// A frame that is being put together.
#[derive(Clone, Debug)]
pub struct Coalescer {
    /// The headers of the first segment.
    head: [u8; HEAD_LEN],
    headers: Headers,
    /// Payload bytes of every segment but the last.
    size: u32,
    /// Payload bytes so far.
    payload: u32,
    segments: u16,
    /// Nothing may follow: a segment was shorter, or its sender asked to deliver at once.
    complete: bool,
}

impl Coalescer {
    /// Begins with a whole frame. `None`: the frame cannot be a segment of a longer one, or has a
    /// wrong checksum.
    pub fn begin(frame: &[u8]) -> Option<Coalescer> {
        let mut headers = Headers::default();
        if !parse_into(frame.get(..frame.len().min(HEAD_LEN))?, &mut headers) {
            return None;
        }
        let end = usize::from(headers.end);
        let payload = frame.len().checked_sub(end).filter(|len| *len > 0)? as u32;
        let flags = *frame.get(usize::from(headers.l4_at) + FLAGS)?;
        if headers.l4 != L4::Tcp || flags & !PSH != ACK || !is_right(frame, &headers) {
            return None;
        }
        let mut head = [0; HEAD_LEN];
        head.get_mut(..end)?.copy_from_slice(frame.get(..end)?);
        let complete = flags & PSH != 0;
        Some(Coalescer { head, headers, size: payload, payload, segments: 1, complete })
    }

    /// Takes the frame that came next, whose payload begins at [`headers_len`](Self::headers_len).
    /// False: the frame is not the next segment, and nothing has changed.
    pub fn append(&mut self, frame: &[u8]) -> bool {
        let len = frame.len().saturating_sub(self.headers_len()) as u32;
        if self.complete || len == 0 || len > self.size || !self.has_room(len) {
            return false;
        }
        let Some(flags) = self.next_flags(frame) else { return false };
        // Whether the headers are those of the first, in length and place, is known by now.
        if !is_right(frame, &self.headers) {
            return false;
        }
        self.payload += len;
        self.segments += 1;
        self.complete = len < self.size || flags & PSH != 0;
        if flags & PSH != 0
            && let Some(own) = self.head.get_mut(usize::from(self.headers.l4_at) + FLAGS)
        {
            *own |= PSH;
        }
        true
    }

    /// Segments so far.
    pub fn segments(&self) -> u16 {
        self.segments
    }

    /// Bytes from the start of each segment to its payload.
    pub fn headers_len(&self) -> usize {
        usize::from(self.headers.end)
    }

    /// Completes the headers of the whole, and returns them with the frame's offload. `None`: there
    /// is only one segment, which stays as it came.
    pub fn finish(&mut self) -> Option<(&[u8], Offload)> {
        let h = self.headers;
        if self.segments < 2 {
            return None;
        }
        let (l3_at, l4_at) = (usize::from(h.l3_at), usize::from(h.l4_at));
        let l4_len = u32::from(h.end - h.l4_at) + self.payload;
        let kind = if h.l3 == L3::V6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        if h.l3 == L3::V6 {
            put(&mut self.head, l3_at + 4, (l4_len as u16).to_be_bytes())?;
        } else {
            let len = l4_len + u32::from(IPV4_LEN);
            put(&mut self.head, l3_at + 2, (len as u16).to_be_bytes())?;
            put(&mut self.head, l3_at + 10, [0, 0])?;
            let sum = Sum::of(self.head.get(l3_at..l4_at)?).checksum();
            put(&mut self.head, l3_at + 10, sum.to_be_bytes())?;
        }
        let pseudo = pseudo_header(&self.head, &h, l4_len)?.fold();
        put(&mut self.head, l4_at + usize::from(TCP_CSUM_OFFSET), pseudo.to_be_bytes())?;
        let csum = PartialCsum { start: h.l4_at.into(), offset: TCP_CSUM_OFFSET };
        let gso = Gso { kind, size: self.size as u16, ecn: false };
        let offload = Offload { csum: Some(csum), gso: Some(gso), valid: false };
        Some((self.head.get(..usize::from(h.end))?, offload))
    }

    /// Whether the whole stays an IP packet with `len` more bytes.
    fn has_room(&self, len: u32) -> bool {
        u32::from(self.headers.end - self.headers.l3_at) + self.payload + len <= LONGEST_PACKET
    }

    /// The TCP flags of a frame whose headers are those of the next segment.
    fn next_flags(&self, frame: &[u8]) -> Option<u8> {
        let h = &self.headers;
        let (l3_at, l4_at, end) = (usize::from(h.l3_at), usize::from(h.l4_at), usize::from(h.end));
        let (own, next) = (self.head.get(..end)?, frame.get(..end)?);
        let same = |from: usize, to: usize| own.get(from..to) == next.get(from..to);
        let network = match h.l3 {
            // Version, traffic class and flow label; next header, hop limit and addresses.
            L3::V6 => same(l3_at, l3_at + 4) && same(l3_at + 6, l4_at),
            // Version, length and service; flags, lifetime and protocol; addresses.
            _ => {
                same(l3_at, l3_at + 2)
                    && same(l3_at + 6, l3_at + 10)
                    && same(l3_at + 12, l4_at)
                    && self.has_next_identification(own, next)
            }
        };
        let sequence = get_u32(own, l4_at + SEQUENCE)?.wrapping_add(self.payload);
        let (ports, acknowledgement) =
            (same(l4_at, l4_at + SEQUENCE), same(l4_at + SEQUENCE + 4, l4_at + FLAGS));
        // Behind the checksum: urgent pointer and options.
        let transport = ports
            && acknowledgement
            && get_u32(next, l4_at + SEQUENCE)? == sequence
            && same(l4_at + FLAGS + 1, l4_at + usize::from(TCP_CSUM_OFFSET))
            && same(l4_at + usize::from(TCP_CSUM_OFFSET) + 2, end);
        let flags = *next.get(l4_at + FLAGS)?;
        (same(0, l3_at) && network && transport && flags & !PSH == ACK).then_some(flags)
    }

    /// Whether the identification of an IPv4 packet is that of the next segment.
    fn has_next_identification(&self, own: &[u8], next: &[u8]) -> bool {
        let at = usize::from(self.headers.l3_at);
        let whole = |bytes| get_u16(bytes, at + 6).is_some_and(|word| word & DONT_FRAGMENT != 0);
        let id = |bytes| get_u16(bytes, at + 4);
        whole(own) || id(next) == id(own).map(|id| id.wrapping_add(self.segments))
    }
}

/// Whether a frame of TCP is no longer and no shorter than its IP header says, has neither options
/// nor extensions there, and has right checksums.
fn is_right(frame: &[u8], h: &Headers) -> bool {
    let right = || -> Option<bool> {
        let (l3_at, l4_at) = (usize::from(h.l3_at), usize::from(h.l4_at));
        let l4_len = frame.len().checked_sub(l4_at)? as u32;
        let network = match h.l3 {
            L3::V4 => {
                let packet = frame.get(l3_at..l4_at)?;
                h.l4_at - h.l3_at == IPV4_LEN
                    && u32::from(get_u16(frame, l3_at + 2)?) == l4_len + u32::from(IPV4_LEN)
                    && Sum::of(packet).fold() == 0xffff
            }
            L3::V6 => {
                h.l4_at - h.l3_at == IPV6_LEN && u32::from(get_u16(frame, l3_at + 4)?) == l4_len
            }
            L3::None => false,
        };
        let mut sum = pseudo_header(frame, h, l4_len)?;
        if network {
            sum.add(frame.get(l4_at..)?);
        }
        Some(network && !h.fragment && sum.fold() == 0xffff)
    };
    right().unwrap_or(false)
}

/// The sum over the pseudo header of `l4_len` bytes of TCP.
fn pseudo_header(frame: &[u8], h: &Headers, l4_len: u32) -> Option<Sum> {
    let at = usize::from(h.l3_at);
    let mut sum = Sum::new();
    if h.l3 == L3::V6 {
        let addresses: &[u8; 32] = frame.get(at + 8..)?.first_chunk()?;
        let (from, to) = addresses.split_at(16);
        sum.add_pseudo_v6(from.try_into().ok()?, to.try_into().ok()?, proto::TCP, l4_len);
    } else {
        let addresses: &[u8; 8] = frame.get(at + 12..)?.first_chunk()?;
        let (from, to) = addresses.split_at(4);
        sum.add_pseudo_v4(from.try_into().ok()?, to.try_into().ok()?, proto::TCP, l4_len);
    }
    Some(sum)
}

#[cfg(test)]
mod tests;
