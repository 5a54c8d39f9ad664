//! The claims of a frame about its sender above Ethernet: addresses and roles.
//!
//! A receiver trusts the source address of a packet, the sender in ARP, the addresses in neighbour
//! discovery, and any station that answers as a DHCP server or a router. [`claim`] finds all of
//! these in the private head of a frame, or reports that they cannot be found there. The source
//! guard of the switch decides what a port may claim.
//!
//! A hostile sender may try to hide claims. These ways end in [`Unverifiable`]:
//!
//! - extension headers, options or tags that push the claim out of the head;
//! - a first fragment that ends before the header that matters, or a later fragment that begins so
//!   early that it could overwrite what was found in the first one (RFC 7112, RFC 5722);
//! - a second fragment header (RFC 8200, 4.5: there is one at most);
//! - options of neighbour discovery whose lengths are zero, or reach beyond the packet;
//! - LLC headers, and more than two tags: what follows those is of no protocol known here
//!   ([`Claim::Other`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{chunk, get_u16};
use crate::head::HEAD_LEN;
use crate::mac::Mac;
use crate::view::{Headers, L3, ethertype, proto};

/// The claim of a frame about its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// An IPv4 packet.
    V4 {
        /// The source address.
        source: Ipv4Addr,
        /// The destination address.
        destination: Ipv4Addr,
        /// The content of the packet.
        message: Message,
    },
    /// An IPv6 packet.
    V6 {
        /// The source address.
        source: Ipv6Addr,
        /// The destination address.
        destination: Ipv6Addr,
        /// The content of the packet.
        message: Message,
    },
    /// An ARP message.
    Arp(Arp),
    /// Another protocol.
    Other,
}

/// The content of an IP packet, as far as it says something about the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// UDP; the first fragment, if it is fragmented.
    Udp {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
    },
    /// ICMPv6 of this type, other than [`Neighbour`]; the first fragment, if it is fragmented.
    Icmpv6(u8),
    /// Neighbour discovery (RFC 4861).
    Neighbour(Neighbour),
    /// Anything else, later fragments included.
    Other,
}

/// An ARP message for IPv4 over Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    /// 1: a request; 2: a reply.
    pub operation: u16,
    /// The sender's hardware address.
    pub sender: Mac,
    /// The sender's protocol address.
    pub sender_ip: Ipv4Addr,
    /// The target's protocol address.
    pub target_ip: Ipv4Addr,
}

/// A message of neighbour discovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// The kind of message.
    pub kind: NeighbourKind,
    /// The target address, of solicitations and advertisements of a neighbour.
    pub target: Option<Ipv6Addr>,
    /// Link-layer addresses in its options.
    pub link: LinkAddress,
    /// The message is in a fragmented packet, which no node may send (RFC 6980), so target and
    /// options are not read.
    pub fragment: bool,
}

impl Claim {
    /// The address whose owner the frame asks for: the target of an ARP request or of a neighbour
    /// solicitation. `None`: the frame asks for no address, or announces the sender's own one.
    pub fn requested(&self) -> Option<IpAddr> {
        match *self {
            Claim::Arp(Arp { operation: 1, sender_ip, target_ip, .. }) => {
                (sender_ip != target_ip).then_some(IpAddr::V4(target_ip))
            }
            Claim::V6 { message: Message::Neighbour(message), .. } => {
                let asks = message.kind == NeighbourKind::NeighbourSolicitation;
                message.target.filter(|_| asks).map(IpAddr::V6)
            }
            _ => None,
        }
    }
}

/// The kinds of messages of neighbour discovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NeighbourKind {
    /// Asks for routers.
    RouterSolicitation,
    /// Says that the sender is a router.
    RouterAdvertisement,
    /// Asks for the owner of an address; from `::`, claims the address for the sender.
    NeighbourSolicitation,
    /// Says that the sender owns an address.
    NeighbourAdvertisement,
    /// Names a better first hop.
    Redirect,
}

/// The source and target link-layer addresses in the options of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkAddress {
    /// There is none.
    None,
    /// All of them are the frame's source address.
    Own,
    /// At least one of them is another.
    Foreign,
}

/// A frame whose claims cannot be found in its first [`HEAD_LEN`] bytes, or are malformed there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("what the frame claims cannot be found in its first {HEAD_LEN} bytes")]
pub struct Unverifiable;

/// A later fragment that begins earlier could overwrite headers that were found in the first one:
/// all of those lie within the head.
const EARLIEST_FRAGMENT: u16 = HEAD_LEN as u16;

/// Finds what the frame that starts with `head` claims. `headers` are those of [`parse`] for that
/// head. No more than [`HEAD_LEN`] bytes are looked at.
///
/// [`parse`]: crate::parse
///
/// # Errors
/// When claims cannot be found.
// The source guard calls it for each frame. A second caller must not make it a call of its own: 25
// instructions.
#[inline(always)]
pub fn claim(head: &[u8], headers: &Headers) -> Result<Claim, Unverifiable> {
    let head = head.get(..HEAD_LEN).unwrap_or(head);
    match (headers.ethertype, headers.l3) {
        (ethertype::IPV4, L3::V4) => ipv4(head, headers),
        (ethertype::IPV6, L3::V6) => ipv6(head, headers),
        (ethertype::IPV4 | ethertype::IPV6, _) => Err(Unverifiable),
        (ethertype::ARP, _) => arp(head, headers),
        _ => Ok(Claim::Other),
    }
}

/// The address whose owner the frame that starts with `head` asks for, if it asks for any.
#[inline(never)]
pub fn requested(head: &[u8], headers: &Headers) -> Option<IpAddr> {
    claim(head, headers).ok()?.requested()
}

impl Headers {
    /// Whether bytes behind [`end`](Self::end) may claim something, so that all of the head has to
    /// be fetched for [`claim`] and for filters. ICMP errors are included, since they quote the
    /// packet that they are about.
    pub fn claims_follow(&self) -> bool {
        self.ethertype == ethertype::ARP
            || self.fragment
            || matches!((self.l3, self.proto), (L3::V4, proto::ICMP) | (L3::V6, proto::ICMPV6))
    }
}

#[inline]
fn ipv4(head: &[u8], headers: &Headers) -> Result<Claim, Unverifiable> {
    let ip = chunk::<20>(head, usize::from(headers.l3_at)).ok_or(Unverifiable)?;
    let address = |at: usize| Ipv4Addr::from([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
    let message = match headers.fragment {
        false => message_v4(head, headers)?,
        true => match (u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff) * 8 {
            0 => message_v4(head, headers)?,
            at if at < EARLIEST_FRAGMENT => return Err(Unverifiable),
            _ => Message::Other,
        },
    };
    Ok(Claim::V4 { source: address(12), destination: address(16), message })
}

#[inline]
fn message_v4(head: &[u8], headers: &Headers) -> Result<Message, Unverifiable> {
    match headers.proto {
        proto::UDP => udp(head, usize::from(headers.l4_at)),
        _ => Ok(Message::Other),
    }
}

#[inline]
fn udp(head: &[u8], at: usize) -> Result<Message, Unverifiable> {
    let source = get_u16(head, at).ok_or(Unverifiable)?;
    let destination = get_u16(head, at + 2).ok_or(Unverifiable)?;
    Ok(Message::Udp { source, destination })
}

#[inline]
fn ipv6(head: &[u8], headers: &Headers) -> Result<Claim, Unverifiable> {
    let at = usize::from(headers.l3_at);
    let address = |at| chunk::<16>(head, at).copied().map(Ipv6Addr::from).ok_or(Unverifiable);
    let (source, destination) = (address(at + 8)?, address(at + 24)?);
    let message = match headers.proto {
        proto::TCP if !headers.fragment => Message::Other,
        _ => message_v6(head, headers)?,
    };
    Ok(Claim::V6 { source, destination, message })
}

fn message_v6(head: &[u8], headers: &Headers) -> Result<Message, Unverifiable> {
    let l4_at = usize::from(headers.l4_at);
    let (protocol, at) = match headers.fragment {
        false => upper_layer(head, headers.proto, l4_at)?,
        // The fragment header is the last that was parsed.
        true => match get_u16(head, l4_at - 6).ok_or(Unverifiable)? & 0xfff8 {
            0 => upper_layer(head, headers.proto, l4_at)?,
            offset if offset < EARLIEST_FRAGMENT => return Err(Unverifiable),
            _ => return Ok(Message::Other),
        },
    };
    match protocol {
        proto::UDP => udp(head, at),
        proto::ICMPV6 => icmpv6(head, headers, at),
        _ => Ok(Message::Other),
    }
}

/// Steps over extension headers from `at` on, where one of type `protocol` begins. Each step moves
/// forward by at least 8 bytes.
fn upper_layer(head: &[u8], mut protocol: u8, mut at: usize) -> Result<(u8, usize), Unverifiable> {
    loop {
        let unit = match protocol {
            proto::HOP_BY_HOP | proto::ROUTING | proto::DESTINATION => 8,
            proto::AUTHENTICATION => 4,
            proto::FRAGMENT => return Err(Unverifiable),
            _ => return Ok((protocol, at)),
        };
        let &[next, len] = chunk::<2>(head, at).ok_or(Unverifiable)?;
        at += 8 + usize::from(len) * unit;
        if at > head.len() {
            return Err(Unverifiable);
        }
        protocol = next;
    }
}

/// Types of ICMPv6 messages (RFC 4861).
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

fn icmpv6(head: &[u8], headers: &Headers, at: usize) -> Result<Message, Unverifiable> {
    let (kind, fixed) = match *head.get(at).ok_or(Unverifiable)? {
        ROUTER_SOLICITATION => (NeighbourKind::RouterSolicitation, 8),
        ROUTER_ADVERTISEMENT => (NeighbourKind::RouterAdvertisement, 16),
        NEIGHBOUR_SOLICITATION => (NeighbourKind::NeighbourSolicitation, 24),
        NEIGHBOUR_ADVERTISEMENT => (NeighbourKind::NeighbourAdvertisement, 24),
        REDIRECT => (NeighbourKind::Redirect, 40),
        other => return Ok(Message::Icmpv6(other)),
    };
    let mut message =
        Neighbour { kind, target: None, link: LinkAddress::None, fragment: headers.fragment };
    // The kind of these messages is enough to refuse them.
    let refused_by_kind =
        matches!(kind, NeighbourKind::RouterAdvertisement | NeighbourKind::Redirect);
    if message.fragment || refused_by_kind {
        return Ok(Message::Neighbour(message));
    }
    if fixed == 24 {
        let target = chunk::<16>(head, at + 8).ok_or(Unverifiable)?;
        message.target = Some(Ipv6Addr::from(*target));
    }
    let l3_at = usize::from(headers.l3_at);
    let payload = usize::from(get_u16(head, l3_at + 4).ok_or(Unverifiable)?);
    let end = l3_at + 40 + payload;
    let options = head.get(at + fixed..end).ok_or(Unverifiable)?;
    message.link = link_address(options, headers.src)?;
    Ok(Message::Neighbour(message))
}

/// The link-layer addresses in options. All options have to be there, so that none is overlooked.
fn link_address(mut options: &[u8], own: Mac) -> Result<LinkAddress, Unverifiable> {
    let mut found = LinkAddress::None;
    while !options.is_empty() {
        let &[kind, len] = chunk::<2>(options, 0).ok_or(Unverifiable)?;
        let (option, rest) = options.split_at_checked(8 * usize::from(len)).ok_or(Unverifiable)?;
        if option.is_empty() {
            return Err(Unverifiable);
        }
        // Source and target link-layer address; of an Ethernet, in one unit of 8 bytes.
        if matches!(kind, 1 | 2) {
            let is_own = len == 1 && option.get(2..) == Some(&own.0[..]);
            match (is_own, found) {
                (true, LinkAddress::None) => found = LinkAddress::Own,
                (true, _) => {}
                (false, _) => found = LinkAddress::Foreign,
            }
        }
        options = rest;
    }
    Ok(found)
}

fn arp(head: &[u8], headers: &Headers) -> Result<Claim, Unverifiable> {
    let message = chunk::<28>(head, usize::from(headers.l3_at)).ok_or(Unverifiable)?;
    let address = |at| chunk::<4>(message, at).copied().map(Ipv4Addr::from).ok_or(Unverifiable);
    // Ethernet and IPv4, with addresses of 6 and 4 bytes.
    if message[..6] != [0, 1, 8, 0, 6, 4] {
        return Err(Unverifiable);
    }
    Ok(Claim::Arp(Arp {
        operation: get_u16(message, 6).ok_or(Unverifiable)?,
        sender: Mac(*chunk(message, 8).ok_or(Unverifiable)?),
        sender_ip: address(14)?,
        target_ip: address(24)?,
    }))
}

#[cfg(test)]
mod tests;
