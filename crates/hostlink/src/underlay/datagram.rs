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
use ring::violation::Violation;

/// Bytes in which outer headers are: the longest are those of IPv6 with extension headers.
const HEAD: usize = 192;
/// Bytes that are read at a time for a checksum.
const PIECE: usize = 2048;

/// Reads the outer headers of the frame of `len` bytes at `place`, which must be for `local`.
pub(super) fn outer_headers(
    memory: &Memory,
    place: u64,
    len: usize,
    local: SocketAddr,
) -> Result<Encapsulated, Refusal> {
    let mut head = [0; HEAD];
    let head = &mut head[..len.min(HEAD)];
    memory.read(place, head).map_err(|_| Refusal::Malformed)?;
    let outer = decapsulate(head, len, local.port())?;
    if outer.destination == local.ip() { Ok(outer) } else { Err(Refusal::NotVxlan) }
}

/// Where the outer UDP header begins, from the start of the outer frame.
pub(super) fn udp_at(outer: &Encapsulated) -> usize {
    outer.inner_at - VXLAN_LEN - UDP_LEN
}

/// Verifies the checksum of the UDP datagram in the outer frame at `place`, if it has one.
pub(super) fn verify(memory: &Memory, place: u64, outer: &Encapsulated) -> Result<(), Refusal> {
    match is_intact(memory, place + udp_at(outer) as u64, outer) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Refusal::Checksum),
        Err(_) => Err(Refusal::Malformed),
    }
}

fn is_intact(memory: &Memory, place: u64, outer: &Encapsulated) -> Result<bool, Violation> {
    let len = UDP_LEN + VXLAN_LEN + outer.inner_len;
    let (mut sum, mut piece, mut at) = (Sum::new(), [0; PIECE], 0);
    while at < len {
        let bytes = &mut piece[..PIECE.min(len - at)];
        memory.read(place + at as u64, bytes)?;
        if at == 0 && bytes.get(6..8) == Some(&[0; 2]) {
            return Ok(true);
        }
        sum.append(Sum::of(bytes));
        at += bytes.len();
    }
    let mut all = Sum::new();
    match (outer.source, outer.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            all.add_pseudo_v4(source.octets(), destination.octets(), UDP, len as u32);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            all.add_pseudo_v6(source.octets(), destination.octets(), UDP, len as u32);
        }
        _ => return Ok(false),
    }
    all.append(sum);
    Ok(all.fold() == 0xffff)
}
