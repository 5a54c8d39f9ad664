//! Answers to requests for the owner of an IP address (ARP, RFC 826; neighbour discovery, RFC
//! 4861), in the owner's name.
//!
//! A station that asks trusts the answer. So the caller supplies the station and the address,
//! whatever the request says; the request only determines who gets the answer.

use std::net::Ipv6Addr;

use crate::bytes::{chunk, put};
use crate::checksum::Sum;
use crate::claim::{Arp, Claim, claim};
use crate::head::{HEAD_LEN, Head};
use crate::mac::Mac;
use crate::view::{Headers, proto};

/// The station that has an IP address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner {
    /// Its MAC address.
    pub mac: Mac,
    /// Whether it forwards packets of others. A host removes a router that reports in neighbour
    /// discovery not to be one (RFC 4861, 7.2.5).
    pub is_router: bool,
}

impl Owner {
    /// A station that forwards nothing.
    pub const fn host(mac: Mac) -> Owner {
        Owner { mac, is_router: false }
    }
}

/// `struct arphdr` with the addresses of Ethernet and IPv4, in bytes.
const ARP: usize = 28;
/// An IPv6 header, in bytes.
const IPV6: usize = 40;
/// A neighbour advertisement with the owner's link-layer address (RFC 4861, 4.4), in bytes.
const ADVERTISEMENT: usize = 32;

/// Whether the frame that starts with `head` may be answered on the owner's behalf: a request of a
/// station that has an address itself.
///
/// A station without an address probes whether an address is free (RFC 5227; RFC 4862, 5.4). Such
/// probes are left to the owner, if there is one, which defends its address.
pub fn may_answer(head: &[u8], headers: &Headers) -> bool {
    asked(head, headers).is_some()
}

/// Turns the head of a request into the whole answer of the address's `owner`. False: only the
/// owner [may answer](may_answer); the head is unchanged. `headers` are those of the request.
pub fn answer(head: &mut Head, headers: &Headers, owner: Owner) -> bool {
    let Some(request) = asked(head.as_slice(), headers) else { return false };
    let mut bytes = [0; HEAD_LEN];
    let Some(len) = write(&mut bytes, head.as_slice(), headers, request, owner) else {
        return false;
    };
    head.fill(|room| {
        if let (Some(room), Some(bytes)) = (room.get_mut(..len), bytes.get(..len)) {
            room.copy_from_slice(bytes);
        }
        len
    });
    true
}

/// A request that may be answered.
enum Request {
    Arp(Arp),
    Solicitation { source: Ipv6Addr, target: Ipv6Addr },
}

fn asked(head: &[u8], headers: &Headers) -> Option<Request> {
    let claim = claim(head, headers).ok()?;
    let address = claim.requested()?;
    match (claim, address) {
        (Claim::Arp(arp), _) => (!arp.sender_ip.is_unspecified()).then_some(Request::Arp(arp)),
        (Claim::V6 { source, .. }, std::net::IpAddr::V6(target)) => {
            (!source.is_unspecified()).then_some(Request::Solicitation { source, target })
        }
        _ => None,
    }
}

/// Writes the answer. Returns its length.
fn write(
    bytes: &mut [u8; HEAD_LEN],
    head: &[u8],
    headers: &Headers,
    request: Request,
    owner: Owner,
) -> Option<usize> {
    let at = usize::from(headers.l3_at);
    // Tags and protocol stay.
    bytes.get_mut(..at)?.copy_from_slice(head.get(..at)?);
    put(bytes, 0, headers.src.0)?;
    put(bytes, 6, owner.mac.0)?;
    match request {
        Request::Arp(arp) => {
            put(bytes, at, *chunk::<6>(head, at)?)?;
            put(bytes, at + 6, 2u16.to_be_bytes())?;
            put(bytes, at + 8, owner.mac.0)?;
            put(bytes, at + 14, arp.target_ip.octets())?;
            put(bytes, at + 18, arp.sender.0)?;
            put(bytes, at + 24, arp.sender_ip.octets())?;
            Some(at + ARP)
        }
        Request::Solicitation { source, target } => {
            let message = advertisement(target, source, owner)?;
            put(bytes, at, [0x60, 0, 0, 0, 0, ADVERTISEMENT as u8, proto::ICMPV6, 255])?;
            put(bytes, at + 8, target.octets())?;
            put(bytes, at + 24, source.octets())?;
            put(bytes, at + IPV6, message)?;
            Some(at + IPV6 + ADVERTISEMENT)
        }
    }
}

/// The advertisement that `target` sends to `to`, who has asked for it.
fn advertisement(target: Ipv6Addr, to: Ipv6Addr, owner: Owner) -> Option<[u8; ADVERTISEMENT]> {
    /// Flags: the sender is a router, the advertisement was solicited, and it overrides cached
    /// entries.
    const ROUTER: u8 = 0x80;
    const SOLICITED: u8 = 0x40;
    const OVERRIDE: u8 = 0x20;
    let router = if owner.is_router { ROUTER } else { 0 };
    let mut message = [0; ADVERTISEMENT];
    put(&mut message, 0, [136, 0, 0, 0, router | SOLICITED | OVERRIDE])?;
    put(&mut message, 8, target.octets())?;
    // The option with the link-layer address of the target, in one unit of 8 bytes.
    put(&mut message, 24, [2, 1])?;
    put(&mut message, 26, owner.mac.0)?;
    let mut sum = Sum::of(&message);
    sum.add_pseudo_v6(target.octets(), to.octets(), proto::ICMPV6, ADVERTISEMENT as u32);
    put(&mut message, 2, sum.checksum().to_be_bytes())?;
    Some(message)
}

#[cfg(test)]
mod tests;
