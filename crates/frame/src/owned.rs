//! The IP address that a frame's sender says it has, in its own ARP messages and neighbour
//! discovery.
//!
//! The address is only a claim, which any station can send. Claims that a receiver of the frame
//! would not accept are left out, and so are addresses that are not unique in the network:
//! multicast, link-local, loopback and unspecified ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::claim::{Arp, Claim, LinkAddress, Message, Neighbour, NeighbourKind, claim};
use crate::mac::Mac;
use crate::view::{Headers, L3, ethertype, proto};

/// The hop limit of neighbour discovery: no router has passed it on (RFC 4861, 7.1).
const NEVER_FORWARDED: u8 = 255;

impl Headers {
    /// Whether the frame may ask for the owner of an IP address, or announce one.
    #[inline]
    pub fn resolves_addresses(&self) -> bool {
        self.ethertype == ethertype::ARP || (self.l3 == L3::V6 && self.proto == proto::ICMPV6)
    }
}

/// The IP address that the sender of the frame that starts with `head` claims to have, if any.
///
/// The address is the sender of an ARP message, the source of a neighbour solicitation, or the
/// target of a neighbour advertisement.
#[inline(never)]
pub fn owned(head: &[u8], headers: &Headers) -> Option<IpAddr> {
    let address = match claim(head, headers).ok()? {
        Claim::Arp(arp) => IpAddr::V4(arp_sender(arp, headers.src)?),
        Claim::V6 { source, message: Message::Neighbour(message), .. } => {
            let hop_limit = head.get(usize::from(headers.l3_at) + 7)?;
            let address = neighbour(source, message).filter(|_| *hop_limit == NEVER_FORWARDED);
            IpAddr::V6(address?)
        }
        _ => return None,
    };
    is_station(address).then_some(address)
}

/// The sender's address in a request or a reply.
fn arp_sender(Arp { operation, sender, sender_ip, .. }: Arp, own: Mac) -> Option<Ipv4Addr> {
    (matches!(operation, 1 | 2) && sender == own).then_some(sender_ip)
}

fn neighbour(source: Ipv6Addr, message: Neighbour) -> Option<Ipv6Addr> {
    if message.fragment || message.link == LinkAddress::Foreign {
        return None;
    }
    match message.kind {
        NeighbourKind::NeighbourSolicitation => Some(source),
        NeighbourKind::NeighbourAdvertisement => message.target,
        _ => None,
    }
}

/// Whether the address can belong to a single station in the network.
fn is_station(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, ..] = v4.octets();
            (1..224).contains(&first) && !v4.is_loopback() && !v4.is_link_local()
        }
        IpAddr::V6(v6) => {
            let is_mapped = v6.to_ipv4_mapped().is_some();
            let is_special = v6.is_unspecified() || v6.is_loopback() || v6.is_multicast();
            !is_mapped && !is_special && !v6.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests;
