//! `struct virtio_net_hdr_v1_hash_tunnel` (linux/virtio_net.h, since Linux 6.17): the offload
//! metadata of a frame that a UDP tunnel carries, outer headers included.
//!
//! Little endian, 24 bytes: those of [`encode`](super::encode), whose offsets count from the start
//! of the outer frame; eight bytes for a hash, which are zero here; and the offsets of the outer
//! UDP header and of the inner IP header.

use super::{
    FLAG_DATA_VALID, FLAG_NEEDS_CSUM, GSO_ECN, GSO_UDP_L4, VNET_LEN, encode as encode_plain,
};
use crate::offload::Offload;

/// Length of the header.
pub const TUNNEL_LEN: usize = 24;

/// Bytes of the inner Ethernet header.
const ETHERNET: u16 = 14;

/// The outer UDP checksum is to be completed, too.
const FLAG_TUNNEL_CSUM: u8 = 8;
/// The inner frame is to be segmented; the outer one is IPv4.
const GSO_TUNNEL_V4: u8 = 0x20;
/// The same for IPv6.
const GSO_TUNNEL_V6: u8 = 0x40;

/// What is still to be done to a datagram that the kernel has handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outstanding {
    /// Nothing. `verified`: somebody has verified the outer checksum, or it never was on a wire.
    Nothing {
        /// Whether the outer checksum need not be verified.
        verified: bool,
    },
    /// The payload is that of several datagrams with these headers: so many bytes each, the last
    /// one perhaps fewer. Not zero.
    Datagrams(u16),
    /// Offloads of the inner frame, as in front of the frame of a guest. The outer checksum was
    /// never on a wire.
    Inner([u8; VNET_LEN]),
}

/// Reads the header in front of a frame whose outer UDP header and inner frame begin at these
/// offsets. `None`: the metadata is not that of a tunnel with those offsets.
#[inline]
pub fn decode(bytes: &[u8; TUNNEL_LEN], udp_at: u16, inner_at: u16) -> Option<Outstanding> {
    let [flags, gso_type, _, _, s0, s1, c0, c1, o0, o1, ..] = *bytes;
    let size = u16::from_le_bytes([s0, s1]);
    let start = u16::from_le_bytes([c0, c1]);
    let is_partial = flags & FLAG_NEEDS_CSUM != 0;
    let inner_type = gso_type & !(GSO_TUNNEL_V4 | GSO_TUNNEL_V6);
    if is_partial && start >= inner_at && (gso_type == 0 || inner_type != gso_type) {
        let [c0, c1] = (start - inner_at).to_le_bytes();
        let inner = [FLAG_NEEDS_CSUM, inner_type, 0, 0, s0, s1, c0, c1, o0, o1, 0, 0];
        return Some(Outstanding::Inner(inner));
    }
    let is_outer = !is_partial || start == udp_at;
    match gso_type & !GSO_ECN {
        0 if is_outer => {
            let verified = is_partial || flags & FLAG_DATA_VALID != 0;
            Some(Outstanding::Nothing { verified })
        }
        GSO_UDP_L4 if is_outer && size > 0 => Some(Outstanding::Datagrams(size)),
        _ => None,
    }
}

/// Writes the header of a frame to be segmented behind outer headers of `outer_len` bytes, of which
/// the outer UDP header begins at `udp_at`. The outer checksum's field holds the pseudo header's
/// sum. `headers_len` counts from the start of the inner frame.
#[inline]
pub fn encode(
    offload: &Offload,
    headers_len: u16,
    outer_len: u16,
    udp_at: u16,
    is_v6: bool,
) -> [u8; TUNNEL_LEN] {
    let plain = encode_plain(offload, headers_len.saturating_add(outer_len));
    let [flags, gso_type, h0, h1, s0, s1, c0, c1, o0, o1, ..] = plain;
    let [c0, c1] = u16::from_le_bytes([c0, c1]).saturating_add(outer_len).to_le_bytes();
    let tunnel = if is_v6 { GSO_TUNNEL_V6 } else { GSO_TUNNEL_V4 };
    let [u0, u1] = udp_at.to_le_bytes();
    let [i0, i1] = (outer_len + ETHERNET).to_le_bytes();
    let (flags, gso_type) = (flags | FLAG_TUNNEL_CSUM, gso_type | tunnel);
    let fields = [flags, gso_type, h0, h1, s0, s1, c0, c1, o0, o1, 0, 0];
    let mut bytes = [0; TUNNEL_LEN];
    bytes[..VNET_LEN].copy_from_slice(&fields);
    bytes[20..].copy_from_slice(&[u0, u1, i0, i1]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::{Gso, GsoKind, PartialCsum};

    /// Offsets over IPv4: the UDP header, and the inner frame.
    const UDP_AT: u16 = 34;
    const INNER_AT: u16 = 50;

    /// The header that Linux 6.18 put in front of a TCP frame of 40 000 bytes in segments of 1346
    /// bytes, when a VXLAN datagram with the frame was routed to a TAP device.
    const FROM_LINUX: [u8; TUNNEL_LEN] =
        [9, 33, 104, 0, 66, 5, 84, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 34, 0, 64, 0];

    fn segmented() -> Offload {
        let gso = Gso { kind: GsoKind::TcpV4, size: 1346, ecn: false };
        let csum = PartialCsum { start: 34, offset: 16 };
        Offload { csum: Some(csum), gso: Some(gso), valid: false }
    }

    #[test]
    fn a_header_is_read_and_written_as_linux_does() {
        assert_eq!(encode(&segmented(), 54, INNER_AT, UDP_AT, false), FROM_LINUX);
        let inner = [1, 1, 0, 0, 66, 5, 34, 0, 16, 0, 0, 0];
        assert_eq!(decode(&FROM_LINUX, UDP_AT, INNER_AT), Some(Outstanding::Inner(inner)));
        let v6 = encode(&segmented(), 54, 70, 54, true);
        assert_eq!((v6[1], &v6[20..]), (1 | GSO_TUNNEL_V6, &[54, 0, 84, 0][..]));
        assert_eq!(decode(&v6, 54, 70), Some(Outstanding::Inner(inner)));
    }

    #[test]
    fn checksums_and_datagrams_are_recognised() {
        let header = |flags, gso_type, size: u16, start: u16| {
            let mut bytes = [0; TUNNEL_LEN];
            (bytes[0], bytes[1]) = (flags, gso_type);
            bytes[4..6].copy_from_slice(&size.to_le_bytes());
            bytes[6..8].copy_from_slice(&start.to_le_bytes());
            decode(&bytes, UDP_AT, INNER_AT)
        };
        let nothing = |verified| Some(Outstanding::Nothing { verified });
        assert_eq!(header(0, 0, 0, 0), nothing(false));
        assert_eq!(header(FLAG_DATA_VALID, 0, 0, 0), nothing(true));
        assert_eq!(header(FLAG_NEEDS_CSUM, 0, 0, UDP_AT), nothing(true));
        let udp = header(FLAG_NEEDS_CSUM, GSO_UDP_L4, 1400, UDP_AT);
        assert_eq!(udp, Some(Outstanding::Datagrams(1400)));
        let inner = header(FLAG_NEEDS_CSUM, 0, 0, INNER_AT + 34);
        assert_eq!(inner, Some(Outstanding::Inner([1, 0, 0, 0, 0, 0, 34, 0, 0, 0, 0, 0])));
        // Neither of an outer nor of an inner protocol, datagrams of no length, TCP without tunnel.
        assert_eq!(header(FLAG_NEEDS_CSUM, 0, 0, UDP_AT + 2), None);
        assert_eq!(header(FLAG_NEEDS_CSUM, GSO_UDP_L4, 0, UDP_AT), None);
        assert_eq!(header(FLAG_NEEDS_CSUM, 1, 1400, INNER_AT + 34), None);
    }
}
