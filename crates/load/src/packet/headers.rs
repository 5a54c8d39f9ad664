//! The headers of generated frames: addresses, ports, checksums, and announcements.

use frame::checksum::Sum;

use super::{CSUM_AT, HEAD_MAX, L4_AT, VNET_LEN};

const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The EtherType of ARP.
pub const ARP: [u8; 2] = [0x08, 0x06];

/// The sender and the receiver of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The sender's number.
    pub from: u16,
    /// The receiver's number.
    pub to: u16,
}

/// The MAC address of guest `number`.
pub fn mac(number: u16) -> [u8; 6] {
    let [high, low] = number.to_be_bytes();
    [0x52, 0x54, 0x00, 0x4c, high, low]
}

/// The IPv4 address of guest `number`.
pub fn ip(number: u16) -> [u8; 4] {
    let [high, low] = number.wrapping_add(1).to_be_bytes();
    [10, 76, high, low]
}

/// The virtio-net header of each frame.
pub fn vnet(tcp: bool, gso: Option<u16>) -> [u8; VNET_LEN] {
    let mut vnet = [0; VNET_LEN];
    if tcp {
        vnet[0] = NEEDS_CSUM;
        vnet[6..8].copy_from_slice(&(L4_AT as u16).to_le_bytes());
        vnet[8..10].copy_from_slice(&16u16.to_le_bytes());
    }
    if let Some(size) = gso {
        vnet[1] = GSO_TCPV4;
        vnet[2..4].copy_from_slice(&(L4_AT as u16 + 20).to_le_bytes());
        vnet[4..6].copy_from_slice(&size.to_le_bytes());
    }
    vnet
}

/// Source and destination port of a flow.
#[inline]
pub fn ports(flow: u32) -> [u8; 4] {
    let [a, b] = (1024 + (flow & 0x3fff) as u16).to_be_bytes();
    let [c, d] = (5001 + (flow >> 14) as u16).to_be_bytes();
    [a, b, c, d]
}

/// All headers, with zero ports and TCP sequence number.
pub fn headers(ends: Ends, len: u32, tcp: bool) -> [u8; HEAD_MAX] {
    let mut bytes = [0; HEAD_MAX];
    bytes[..6].copy_from_slice(&mac(ends.to));
    bytes[6..12].copy_from_slice(&mac(ends.from));
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    let ip_len = len - 14;
    let (proto, (src, dst)) = (if tcp { TCP } else { UDP }, (ip(ends.from), ip(ends.to)));
    bytes[14..24].copy_from_slice(&[
        0x45,
        0,
        (ip_len >> 8) as u8,
        ip_len as u8,
        0,
        0,
        0x40,
        0,
        64,
        proto,
    ]);
    bytes[26..30].copy_from_slice(&src);
    bytes[30..34].copy_from_slice(&dst);
    let checksum = Sum::of(&bytes[14..34]).checksum();
    bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    let l4_len = ip_len - 20;
    if tcp {
        // Data offset 5, ACK; the partial checksum's field holds the pseudo header's sum.
        bytes[46..50].copy_from_slice(&[0x50, 0x10, 0xff, 0xff]);
        bytes[CSUM_AT..CSUM_AT + 2].copy_from_slice(&pseudo_sum([&src, &dst], l4_len));
    } else {
        bytes[38..40].copy_from_slice(&(l4_len as u16).to_be_bytes());
    }
    bytes
}

/// The content of a partial TCP checksum's field.
pub fn pseudo_sum([src, dst]: [&[u8]; 2], len: u32) -> [u8; 2] {
    let mut sum = Sum::of(src);
    sum.add(dst);
    sum.add(&[0, TCP]);
    sum.add(&len.to_be_bytes());
    sum.fold().to_be_bytes()
}

/// A gratuitous ARP of guest `number`: switches learn where it is.
pub fn announcement(number: u16) -> [u8; 60] {
    let mut bytes = [0; 60];
    bytes[..6].fill(0xff);
    bytes[6..12].copy_from_slice(&mac(number));
    bytes[12..22].copy_from_slice(&[ARP[0], ARP[1], 0, 1, 0x08, 0x00, 6, 4, 0, 1]);
    bytes[22..28].copy_from_slice(&mac(number));
    bytes[28..32].copy_from_slice(&ip(number));
    bytes[38..42].copy_from_slice(&ip(number));
    bytes
}

/// Whether these are the first bytes of a multicast frame, which the generator does not check.
pub fn is_multicast(head: &[u8]) -> bool {
    head.first().is_some_and(|byte| byte & 1 != 0)
}
