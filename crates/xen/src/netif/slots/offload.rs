//! The offloads that a frontend requests for a frame, checked against the frame's headers.

use frame::{BadOffload, Gso, GsoKind, Head, Headers, L3, L4, Offload, PartialCsum, Sum};

use super::{GSO_TCPV4, GSO_TCPV6, Meta};

/// The offloads left to be done to a frame of `len` bytes that begins with `head`. Only requests
/// that fit the frame are accepted. Checksum offload is added to a segmentation without it, which
/// some frontends request.
///
/// # Errors
/// The reason for which the frame is dropped.
pub fn offload(
    meta: Meta,
    head: &mut Head,
    headers: &Headers,
    len: u32,
) -> Result<Offload, BadOffload> {
    let mut offload = Offload::default();
    if !meta.csum_blank && meta.gso.is_none() {
        return Ok(offload);
    }
    if headers.fragment {
        return Err(BadOffload::Fragment);
    }
    let offset = match headers.l4 {
        L4::Tcp => 16,
        L4::Udp => 6,
        L4::None | L4::Other => return Err(BadOffload::CsumPlace),
    };
    let start = u16::from(headers.l4_at);
    offload.csum = Some(PartialCsum { start, offset });
    let Some((kind, size)) = meta.gso else { return Ok(offload) };
    let kind = match (kind, headers.l3, headers.l4) {
        (GSO_TCPV4, L3::V4, L4::Tcp) => GsoKind::TcpV4,
        (GSO_TCPV6, L3::V6, L4::Tcp) => GsoKind::TcpV6,
        _ => return Err(BadOffload::GsoProtocol),
    };
    if !meta.csum_blank {
        let at = usize::from(start + offset);
        let sum = pseudo_sum(head.as_slice(), headers, len).ok_or(BadOffload::CsumRange)?;
        let field = head.as_mut_slice().get_mut(at..at + 2).ok_or(BadOffload::CsumRange)?;
        field.copy_from_slice(&sum.to_be_bytes());
    }
    let payload = len.checked_sub(u32::from(headers.end)).ok_or(BadOffload::Truncated)?;
    offload.gso = (payload > u32::from(size)).then_some(Gso { kind, size, ecn: false });
    Ok(offload)
}

/// The sum of the pseudo header, for a transport segment that begins at `l4_at` and ends with the
/// frame.
pub(super) fn pseudo_sum(head: &[u8], headers: &Headers, len: u32) -> Option<u16> {
    let l3 = usize::from(headers.l3_at);
    let transport = len.checked_sub(u32::from(headers.l4_at))?;
    let mut sum = Sum::new();
    match headers.l3 {
        L3::V4 => {
            let (src, dst) = (head.get(l3 + 12..l3 + 16)?, head.get(l3 + 16..l3 + 20)?);
            sum.add_pseudo_v4(src.try_into().ok()?, dst.try_into().ok()?, headers.proto, transport);
        }
        L3::V6 => {
            let (src, dst) = (head.get(l3 + 8..l3 + 24)?, head.get(l3 + 24..l3 + 40)?);
            sum.add_pseudo_v6(src.try_into().ok()?, dst.try_into().ok()?, headers.proto, transport);
        }
        L3::None => return None,
    }
    Some(sum.fold())
}
