//! Software segmentation: one big TCP or UDP frame becomes the frames that it stands for.
//!
//! Only headers are made here. A [`Segment`] has its own complete headers and the range of the
//! original frame that is its payload. The caller copies the payload and either sums it meanwhile
//! ([`Segment::finish`]) or leaves that to a receiver that takes partial checksums
//! ([`Segment::leave_partial`]).

use crate::bytes::{get_u16, get_u32, put};
use crate::checksum::{Sum, TCP_CSUM_OFFSET, UDP_CSUM_OFFSET};
use crate::head::HEAD_LEN;
use crate::offload::{BadOffload, Gso, GsoKind, PartialCsum};
use crate::view::{Headers, L3, L4};

/// No frame is cut into more segments than this: 64 KiB at 32 bytes each. Without a limit, a sender
/// could turn one frame into 65 thousand.
pub const MAX_SEGMENTS: u32 = 2048;

/// TCP flag bits in byte 13 of the header.
mod tcp_flag {
    pub const FIN: u8 = 0x01;
    pub const PSH: u8 = 0x08;
    pub const CWR: u8 = 0x80;
}

/// Cuts one frame; an iterator over its [`Segment`]s, in order.
#[derive(Clone, Debug)]
pub struct Segmenter {
    /// The frame's headers, transport checksum zeroed.
    template: [u8; HEAD_LEN],
    headers: Headers,
    /// The checksum that the sender wrote into the field, without the length in it.
    pseudo: Sum,
    size: u32,
    frame_len: u32,
    /// Frame offset of the next segment's payload.
    next: u32,
    /// Segments made so far.
    made: u16,
}

/// One frame out of [`Segmenter`].
#[derive(Clone, Debug)]
pub struct Segment {
    /// Ethernet to transport header; the transport checksum is zero until finished.
    pub headers: [u8; HEAD_LEN],
    /// How many bytes of `headers` count.
    pub headers_len: u8,
    /// Where the payload starts: an offset in the original frame, which may lie in its head or
    /// behind it.
    pub from: u32,
    /// How long the payload is.
    pub len: u32,
    l4_at: u8,
    udp: bool,
    pseudo: Sum,
}

/// True when these headers are of this `kind`.
#[inline]
pub(crate) fn matches_kind(h: &Headers, kind: GsoKind) -> bool {
    let (l3, l4) = match kind {
        GsoKind::TcpV4 => (L3::V4, L4::Tcp),
        GsoKind::TcpV6 => (L3::V6, L4::Tcp),
        GsoKind::UdpV4 => (L3::V4, L4::Udp),
        GsoKind::UdpV6 => (L3::V6, L4::Udp),
    };
    h.l3 == l3 && h.l4 == l4
}

/// Where the checksum lies in the transport header.
#[inline]
pub(crate) fn csum_offset(l4: L4) -> Option<u16> {
    match l4 {
        L4::Tcp => Some(TCP_CSUM_OFFSET),
        L4::Udp => Some(UDP_CSUM_OFFSET),
        L4::None | L4::Other => None,
    }
}

impl Segmenter {
    /// Prepares to cut a frame of `frame_len` bytes that starts with `head`, of which `h` is the
    /// view.
    ///
    /// The transport checksum field holds the pseudo header's sum including the length of the
    /// whole, as everywhere in virtio and Linux. `gso` is checked again here. Every accepted frame
    /// gives at least one segment.
    pub fn new(
        head: &[u8],
        h: &Headers,
        gso: Gso,
        frame_len: u32,
    ) -> Result<Segmenter, BadOffload> {
        if h.fragment {
            return Err(BadOffload::Fragment);
        }
        let offset = csum_offset(h.l4)
            .filter(|_| matches_kind(h, gso.kind))
            .ok_or(BadOffload::GsoProtocol)?;
        let payload = frame_len
            .checked_sub(u32::from(h.end))
            .filter(|&len| len > 0)
            .ok_or(BadOffload::Truncated)?;
        let size = u32::from(gso.size);
        // The IP header counts itself in IPv4's total length, but not in IPv6's payload length.
        let ip_at = u32::from(h.l3_at) + if h.l3 == L3::V6 { 40 } else { 0 };
        if ip_at > u32::from(h.l4_at) || h.l4_at > h.end {
            return Err(BadOffload::Truncated);
        }
        if size == 0 || (u32::from(h.end) + size.min(payload)).saturating_sub(ip_at) > 0xffff {
            return Err(BadOffload::GsoSize);
        }
        if payload.div_ceil(size) > MAX_SEGMENTS {
            return Err(BadOffload::GsoCount);
        }
        let field = usize::from(h.l4_at) + usize::from(offset);
        let (template, pseudo) =
            template(head, h, field, frame_len).ok_or(BadOffload::Truncated)?;
        Ok(Segmenter {
            template,
            headers: *h,
            pseudo,
            size,
            frame_len,
            next: u32::from(h.end),
            made: 0,
        })
    }

    /// How many segments are still to come.
    pub fn remaining(&self) -> u32 {
        self.frame_len.saturating_sub(self.next).div_ceil(self.size)
    }
}

/// Copies the headers and takes the pseudo header's sum, without the length, out of the checksum
/// field.
fn template(
    head: &[u8],
    h: &Headers,
    field: usize,
    frame_len: u32,
) -> Option<([u8; HEAD_LEN], Sum)> {
    let mut template = [0; HEAD_LEN];
    let end = usize::from(h.end);
    template.get_mut(..end)?.copy_from_slice(head.get(..end)?);
    let mut pseudo = Sum::new();
    pseudo.add_u16(get_u16(&template, field)?);
    // One's complement: adding the inverse of both halves subtracts the length.
    let old_len = frame_len.checked_sub(u32::from(h.l4_at))?;
    pseudo.add_u16(!((old_len >> 16) as u16));
    pseudo.add_u16(!(old_len as u16));
    put(&mut template, field, [0, 0])?;
    Some((template, pseudo))
}

impl Iterator for Segmenter {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let left = self.frame_len.checked_sub(self.next).filter(|&left| left > 0)?;
        let len = left.min(self.size);
        let mut segment = Segment {
            headers: self.template,
            headers_len: self.headers.end,
            from: self.next,
            len,
            l4_at: self.headers.l4_at,
            udp: self.headers.l4 == L4::Udp,
            pseudo: self.pseudo,
        };
        self.write_ip(&mut segment)?;
        match self.headers.l4 {
            L4::Tcp => self.write_tcp(&mut segment, len == left)?,
            _ => write_udp(&mut segment)?,
        }
        segment.pseudo.add_u16(segment.l4_len() as u16);
        self.next += len;
        self.made = self.made.wrapping_add(1);
        Some(segment)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = self.remaining() as usize;
        (remaining, Some(remaining))
    }
}

impl Segmenter {
    /// Length, and for IPv4 identification and header checksum. `new` has checked that the length
    /// fits in 16 bits.
    fn write_ip(&self, segment: &mut Segment) -> Option<()> {
        let at = usize::from(self.headers.l3_at);
        let l4_at = usize::from(self.headers.l4_at);
        let ip_len = segment.l4_len() + l4_at as u32 - at as u32;
        if self.headers.l3 == L3::V6 {
            return put(&mut segment.headers, at + 4, ((ip_len - 40) as u16).to_be_bytes());
        }
        let id = get_u16(&segment.headers, at + 4)?.wrapping_add(self.made);
        put(&mut segment.headers, at + 2, (ip_len as u16).to_be_bytes())?;
        put(&mut segment.headers, at + 4, id.to_be_bytes())?;
        put(&mut segment.headers, at + 10, [0, 0])?;
        let sum = Sum::of(segment.headers.get(at..l4_at)?);
        put(&mut segment.headers, at + 10, sum.checksum().to_be_bytes())
    }

    /// Sequence number and flags: CWR belongs to the first segment only (RFC 3168, 6.1.2), FIN and
    /// PSH to the last.
    fn write_tcp(&self, segment: &mut Segment, last: bool) -> Option<()> {
        let at = usize::from(self.headers.l4_at);
        let done = self.next.wrapping_sub(u32::from(self.headers.end));
        let seq = get_u32(&segment.headers, at + 4)?.wrapping_add(done);
        put(&mut segment.headers, at + 4, seq.to_be_bytes())?;
        let flags = segment.headers.get_mut(at + 13)?;
        if done > 0 {
            *flags &= !tcp_flag::CWR;
        }
        if !last {
            *flags &= !(tcp_flag::FIN | tcp_flag::PSH);
        }
        Some(())
    }
}

fn write_udp(segment: &mut Segment) -> Option<()> {
    let len = segment.l4_len() as u16;
    put(&mut segment.headers, usize::from(segment.l4_at) + 4, len.to_be_bytes())
}

impl Segment {
    /// The headers that count.
    #[inline]
    pub fn header_bytes(&self) -> &[u8] {
        self.headers.get(..usize::from(self.headers_len)).unwrap_or_default()
    }

    /// Bytes of transport header and payload.
    #[inline]
    fn l4_len(&self) -> u32 {
        u32::from(self.headers_len) - u32::from(self.l4_at) + self.len
    }

    #[inline]
    fn csum(&self) -> PartialCsum {
        let offset = if self.udp { UDP_CSUM_OFFSET } else { TCP_CSUM_OFFSET };
        PartialCsum { start: u16::from(self.l4_at), offset }
    }

    #[inline]
    fn write_csum(&mut self, value: u16) {
        let csum = self.csum();
        // The field lies within the headers by construction.
        let _ = put(&mut self.headers, usize::from(csum.start + csum.offset), value.to_be_bytes());
    }

    /// Writes the transport checksum, given the sum over the payload (`len` bytes from `from`).
    pub fn finish(&mut self, payload: Sum) {
        let mut sum = self.pseudo;
        sum.add(self.header_bytes().get(usize::from(self.l4_at)..).unwrap_or_default());
        sum.append(payload);
        self.write_csum(if self.udp { sum.checksum_nonzero() } else { sum.checksum() });
    }

    /// Writes the pseudo header's sum instead, for a receiver that finishes checksums itself;
    /// returns the segment's [`crate::Offload::csum`].
    pub fn leave_partial(&mut self) -> PartialCsum {
        self.write_csum(self.pseudo.fold());
        self.csum()
    }
}

#[cfg(test)]
mod tests;
