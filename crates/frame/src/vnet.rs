//! `struct virtio_net_hdr` (virtio 1.2, 5.1.6): the offload metadata in front of each frame on a
//! virtio ring.
//!
//! Little endian, 12 bytes; legacy devices without mergeable buffers leave out the last two
//! (`num_buffers`), which the ring handles and which are always zero here. A hostile guest may
//! write anything. [`decode`] accepts only metadata that fits the parsed frame, so its result can
//! be handed to a receiver, or done in software, without another check.

pub mod tunnel;

use crate::head::HEAD_LEN;
use crate::offload::{BadOffload, Gso, GsoKind, Offload, PartialCsum};
use crate::segment::{csum_offset, matches_kind};
use crate::view::{Headers, L3, L4};

/// Length of the header with `num_buffers`.
pub const VNET_LEN: usize = 12;

/// Length of the header of a legacy device without mergeable receive buffers.
pub const VNET_LEGACY_LEN: usize = 10;

const FLAG_NEEDS_CSUM: u8 = 1;
const FLAG_DATA_VALID: u8 = 2;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Whether the header requests no offload: [`decode`] then gives a plain frame for any frame.
#[inline(always)]
pub fn asks_for_nothing(bytes: &[u8; VNET_LEN]) -> bool {
    is_plain(bytes[0], bytes[1])
}

/// [`asks_for_nothing`], by the first two fields. One comparison of both.
#[inline(always)]
fn is_plain(flags: u8, gso_type: u8) -> bool {
    const ASKS: u16 = u16::from_le_bytes([FLAG_NEEDS_CSUM, !GSO_ECN]);
    u16::from_le_bytes([flags, gso_type]) & ASKS == 0
}

/// Reads the header in front of a frame of `len` bytes whose view is `headers`.
///
/// `hdr_len` and the claim that the checksum is good are ignored. Segmentation of a frame that fits
/// into one segment is dropped.
#[inline]
pub fn decode(bytes: &[u8; VNET_LEN], headers: &Headers, len: u32) -> Result<Offload, BadOffload> {
    let [fields @ .., _, _] = bytes;
    decode_legacy(fields, headers, len)
}

/// [`decode`] for a header without `num_buffers`.
#[inline]
pub fn decode_legacy(
    bytes: &[u8; VNET_LEGACY_LEN],
    headers: &Headers,
    len: u32,
) -> Result<Offload, BadOffload> {
    let [flags, gso_type, _, _, s0, s1, c0, c1, o0, o1] = *bytes;
    if is_plain(flags, gso_type) {
        return Ok(Offload::default());
    }
    let mut offload = Offload::default();
    if flags & FLAG_NEEDS_CSUM != 0 {
        let csum = PartialCsum {
            start: u16::from_le_bytes([c0, c1]),
            offset: u16::from_le_bytes([o0, o1]),
        };
        check_csum(csum, headers, len)?;
        offload.csum = Some(csum);
    }
    if gso_type & !GSO_ECN != 0 {
        let gso = decode_gso(gso_type, u16::from_le_bytes([s0, s1]), headers)?;
        if offload.csum.is_none() {
            return Err(BadOffload::GsoWithoutCsum);
        }
        let payload = len.checked_sub(u32::from(headers.end)).ok_or(BadOffload::Truncated)?;
        offload.gso = (payload > u32::from(gso.size)).then_some(gso);
    }
    Ok(offload)
}

/// A checksum may be anywhere behind the network header for protocols that are not known here
/// (tunnels, SCTP), but that of a TCP or UDP frame must be at its usual place. A hostile guest must
/// not make the switch overwrite addresses on which it has based its decision.
#[inline]
fn check_csum(csum: PartialCsum, h: &Headers, len: u32) -> Result<(), BadOffload> {
    let end = u32::from(csum.start) + u32::from(csum.offset) + 2;
    if end > len.min(HEAD_LEN as u32) || csum.start < u16::from(h.l4_at) {
        return Err(BadOffload::CsumRange);
    }
    if h.fragment {
        return Err(BadOffload::Fragment);
    }
    match csum_offset(h.l4) {
        Some(offset) if csum.start != u16::from(h.l4_at) || csum.offset != offset => {
            Err(BadOffload::CsumPlace)
        }
        _ => Ok(()),
    }
}

fn decode_gso(gso_type: u8, size: u16, h: &Headers) -> Result<Gso, BadOffload> {
    let kind = match (gso_type & !GSO_ECN, h.l3) {
        (GSO_TCPV4, _) => GsoKind::TcpV4,
        (GSO_TCPV6, _) => GsoKind::TcpV6,
        (GSO_UDP_L4, L3::V6) => GsoKind::UdpV6,
        (GSO_UDP_L4, _) => GsoKind::UdpV4,
        _ => return Err(BadOffload::GsoType),
    };
    let ecn = gso_type & GSO_ECN != 0;
    if h.fragment {
        return Err(BadOffload::Fragment);
    }
    if !matches_kind(h, kind) || (ecn && h.l4 != L4::Tcp) {
        return Err(BadOffload::GsoProtocol);
    }
    if size == 0 {
        return Err(BadOffload::GsoSize);
    }
    Ok(Gso { kind, size, ecn })
}

/// Writes the header for a receiver that takes this metadata. `headers_len` is [`Headers::end`],
/// recomputed by parsing; it is only written for frames to be segmented, as a hint. `num_buffers`
/// is zero.
///
/// A receiver that does not take checksums must not be told that one is good either: clear
/// [`Offload::valid`] for it.
#[inline]
pub fn encode(offload: &Offload, headers_len: u16) -> [u8; VNET_LEN] {
    let (mut flags, mut start, mut offset) = (0, 0, 0);
    if let Some(csum) = offload.csum {
        (flags, start, offset) = (FLAG_NEEDS_CSUM, csum.start, csum.offset);
    } else if offload.valid {
        flags = FLAG_DATA_VALID;
    }
    let (mut gso_type, mut hdr_len, mut size) = (0, 0, 0);
    if let Some(gso) = offload.gso {
        gso_type = match gso.kind {
            GsoKind::TcpV4 => GSO_TCPV4,
            GsoKind::TcpV6 => GSO_TCPV6,
            GsoKind::UdpV4 | GsoKind::UdpV6 => GSO_UDP_L4,
        };
        if gso.ecn {
            gso_type |= GSO_ECN;
        }
        (hdr_len, size) = (headers_len, gso.size);
    }
    // Written as two words and not as twelve bytes: the words are loaded soon, and a processor
    // cannot forward byte stores to word loads.
    let low = u64::from(flags)
        | u64::from(gso_type) << 8
        | u64::from(hdr_len) << 16
        | u64::from(size) << 32
        | u64::from(start) << 48;
    let mut bytes = [0; VNET_LEN];
    bytes[..8].copy_from_slice(&low.to_le_bytes());
    bytes[8..].copy_from_slice(&u32::from(offset).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests;
