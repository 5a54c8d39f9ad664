//! Outer frames, as they come from the kernel or from a card.
//!
//! All of them come from the wire, or from another program of this host: a frame that is not a
//! complete VXLAN datagram for this host's VTEP is refused by name.

use std::net::{IpAddr, SocketAddr};

use frame::Sum;
use frame::view::proto::UDP;
use frame::vxlan::outer::UDP_LEN;
use frame::vxlan::{Encapsulated, VXLAN_LEN, decapsulate};
use overlay::Refusal;
use ring::region::Memory;

/// Bytes in which outer headers are: the longest are those of IPv6 with extension headers.
pub(super) const HEAD: usize = 192;
/// Bytes that are read at a time for a checksum.
const PIECE: usize = 2048;

/// Reads the outer headers of a frame of `len` bytes that starts with `head`. The frame must be for
/// `local`.
pub(super) fn outer_headers(
    head: &[u8],
    len: usize,
    local: SocketAddr,
) -> Result<Encapsulated, Refusal> {
    let outer = decapsulate(head, len, local.port())?;
    if outer.destination == local.ip() { Ok(outer) } else { Err(Refusal::NotVxlan) }
}

/// Where the outer UDP header begins, from the start of the outer frame.
pub(super) fn udp_at(outer: &Encapsulated) -> usize {
    outer.inner_at - VXLAN_LEN - UDP_LEN
}

/// Verifies the checksum of the UDP datagram in the outer frame `frame`, if it has one.
pub(super) fn verify(frame: &[u8], outer: &Encapsulated) -> Result<(), Refusal> {
    let datagram = frame.get(udp_at(outer)..outer.inner_at + outer.inner_len);
    let datagram = datagram.ok_or(Refusal::Malformed)?;
    if !has_checksum(datagram) {
        return Ok(());
    }
    intact(outer, Sum::of(datagram))
}

/// The same, of the outer frame at `place`.
pub(super) fn verify_at(memory: &Memory, place: u64, outer: &Encapsulated) -> Result<(), Refusal> {
    let (place, len) = (place + udp_at(outer) as u64, datagram_len(outer));
    let (mut sum, mut piece, mut at) = (Sum::new(), [0; PIECE], 0);
    while at < len {
        let bytes = &mut piece[..PIECE.min(len - at)];
        memory.read(place + at as u64, bytes).map_err(|_| Refusal::Malformed)?;
        if at == 0 && !has_checksum(bytes) {
            return Ok(());
        }
        sum.append(Sum::of(bytes));
        at += bytes.len();
    }
    intact(outer, sum)
}

/// Bytes of the UDP datagram.
fn datagram_len(outer: &Encapsulated) -> usize {
    UDP_LEN + VXLAN_LEN + outer.inner_len
}

fn has_checksum(datagram: &[u8]) -> bool {
    datagram.get(6..8) != Some(&[0; 2])
}

/// Whether the checksum of a datagram with the sum `datagram` is right.
fn intact(outer: &Encapsulated, datagram: Sum) -> Result<(), Refusal> {
    let (mut all, len) = (Sum::new(), datagram_len(outer) as u32);
    match (outer.source, outer.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            all.add_pseudo_v4(source.octets(), destination.octets(), UDP, len);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            all.add_pseudo_v6(source.octets(), destination.octets(), UDP, len);
        }
        _ => return Err(Refusal::Checksum),
    }
    all.append(datagram);
    if all.fold() == 0xffff { Ok(()) } else { Err(Refusal::Checksum) }
}
