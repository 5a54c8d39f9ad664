//! The source guard of a port: the IP addresses that its frames may claim.
//!
//! The guard also refuses frames that claim to be from a router or a DHCP server.
//!
//! A port's MAC lock says which Ethernet source it may use; the guard checks all that is above it
//! ([`frame::claim`]). A claim that cannot be verified is refused, and so is every protocol other
//! than IPv4, IPv6 and ARP: other protocols can carry packets that the guard would not recognise.
//!
//! In addition to the addresses in its list, a port may claim
//!
//! - the link-local IPv6 address that is made of its frame's MAC address (RFC 4291, appendix A);
//! - no address, where a station that does not have one yet must speak: a DHCP client's requests
//!   from 0.0.0.0, ARP probes, duplicate address detection, router solicitations and multicast
//!   listener reports from `::`. Probes and detection may ask only for addresses that the port may
//!   claim, because the question alone keeps another station from taking the address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use frame::claim::{Arp, LinkAddress, Message, Neighbour, NeighbourKind};
use frame::{Claim, Headers, Mac, Prefix, claim};

use crate::reason::DropReason;

/// Most entries of a list: each frame is compared with all of them.
pub const MAX_PREFIXES: usize = 64;

/// UDP ports.
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
const DHCPV6_CLIENT: u16 = 546;
const DHCPV6_SERVER: u16 = 547;

/// The addresses that a port may claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceGuard {
    prefixes: Vec<Prefix>,
    v4: Vec<Masked<u32>>,
    v6: Vec<Masked<u128>>,
}

/// A prefix, as addresses are compared with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Masked<T> {
    bits: T,
    mask: T,
}

impl SourceGuard {
    /// A guard that allows the addresses in `prefixes`, of which only the first [`MAX_PREFIXES`]
    /// count.
    pub fn new(mut prefixes: Vec<Prefix>) -> Self {
        prefixes.truncate(MAX_PREFIXES);
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for prefix in &prefixes {
            let len = u32::from(prefix.len());
            match prefix.address() {
                IpAddr::V4(address) => {
                    let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
                    v4.push(Masked { bits: address.to_bits(), mask });
                }
                IpAddr::V6(address) => {
                    let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
                    v6.push(Masked { bits: address.to_bits(), mask });
                }
            }
        }
        SourceGuard { prefixes, v4, v6 }
    }

    /// The entries that are a single address.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let single = |prefix: &&Prefix| match prefix.address() {
            IpAddr::V4(_) => prefix.len() == 32,
            IpAddr::V6(_) => prefix.len() == 128,
        };
        self.prefixes.iter().filter(single).map(Prefix::address)
    }

    /// The list.
    pub fn prefixes(&self) -> &[Prefix] {
        &self.prefixes
    }

    /// Whether the port may send the frame that starts with `head`, whose parsed headers are these.
    ///
    /// # Errors
    /// The reason for which the frame is dropped.
    #[inline]
    pub fn check(&self, head: &[u8], headers: &Headers) -> Result<(), DropReason> {
        match claim(head, headers).map_err(|_| DropReason::Unverifiable)? {
            Claim::V4 { source, destination, message } => self.v4(source, destination, message),
            Claim::V6 { source, destination, message } => {
                self.v6(source, destination, message, headers)
            }
            Claim::Arp(arp) => self.arp(arp, headers.src),
            Claim::Other => Err(DropReason::OtherProtocol),
        }
    }

    #[inline]
    fn has_v4(&self, address: Ipv4Addr) -> bool {
        let bits = address.to_bits();
        self.v4.iter().any(|prefix| bits & prefix.mask == prefix.bits)
    }

    /// Whether the address is in the list, or is the link-local one of the MAC address.
    #[inline]
    fn has_v6(&self, address: Ipv6Addr, mac: Mac) -> bool {
        let bits = address.to_bits();
        self.v6.iter().any(|prefix| bits & prefix.mask == prefix.bits) || address == link_local(mac)
    }

    #[inline]
    fn v4(
        &self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        message: Message,
    ) -> Result<(), DropReason> {
        if let Message::Udp { source, destination } = message
            && (source == DHCP_SERVER || destination == DHCP_CLIENT)
        {
            return Err(DropReason::DhcpServer);
        }
        let asks_for_address = || {
            let request = Message::Udp { source: DHCP_CLIENT, destination: DHCP_SERVER };
            (source, destination, message) == (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, request)
        };
        match self.has_v4(source) || asks_for_address() {
            true => Ok(()),
            false => Err(DropReason::IpSpoofed),
        }
    }

    #[inline]
    fn v6(
        &self,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        message: Message,
        headers: &Headers,
    ) -> Result<(), DropReason> {
        match message {
            Message::Udp { source, destination }
                if source == DHCPV6_SERVER || destination == DHCPV6_CLIENT =>
            {
                return Err(DropReason::DhcpServer);
            }
            Message::Neighbour(message) => self.neighbour(source, message, headers.src)?,
            _ => {}
        }
        let has_source = self.has_v6(source, headers.src)
            || (source.is_unspecified() && speaks_without_address(destination, message));
        if has_source { Ok(()) } else { Err(DropReason::IpSpoofed) }
    }

    fn neighbour(&self, source: Ipv6Addr, message: Neighbour, mac: Mac) -> Result<(), DropReason> {
        let Neighbour { kind, target, link, fragment } = message;
        let own_target = target.is_some_and(|target| self.has_v6(target, mac));
        let is_honest = match kind {
            NeighbourKind::RouterAdvertisement | NeighbourKind::Redirect => {
                return Err(DropReason::RouterAdvertisement);
            }
            NeighbourKind::NeighbourAdvertisement => own_target,
            // Duplicate address detection.
            NeighbourKind::NeighbourSolicitation if source.is_unspecified() => {
                own_target && link == LinkAddress::None
            }
            NeighbourKind::RouterSolicitation if source.is_unspecified() => {
                link == LinkAddress::None
            }
            NeighbourKind::NeighbourSolicitation | NeighbourKind::RouterSolicitation => true,
        };
        if is_honest && link != LinkAddress::Foreign && !fragment {
            Ok(())
        } else {
            Err(DropReason::NdSpoofed)
        }
    }

    fn arp(&self, arp: Arp, mac: Mac) -> Result<(), DropReason> {
        let Arp { operation, sender, sender_ip, target_ip } = arp;
        let is_honest = match operation {
            // A probe (RFC 5227).
            1 if sender_ip.is_unspecified() => self.has_v4(target_ip),
            1 | 2 => self.has_v4(sender_ip),
            _ => false,
        };
        if is_honest && sender == mac { Ok(()) } else { Err(DropReason::ArpSpoofed) }
    }
}

/// The link-local address that is made of a MAC address.
fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Types of ICMPv6 messages: reports of multicast listeners (RFC 2710, RFC 3810).
const LISTENER_REPORT: u8 = 131;
const LISTENER_DONE: u8 = 132;
const LISTENER_REPORT_V2: u8 = 143;

/// Whether a station without an address may send such a message (RFC 3590, RFC 4861).
fn speaks_without_address(destination: Ipv6Addr, message: Message) -> bool {
    destination.is_multicast()
        && match message {
            Message::Neighbour(message) => matches!(
                message.kind,
                NeighbourKind::NeighbourSolicitation | NeighbourKind::RouterSolicitation
            ),
            Message::Icmpv6(kind) => {
                matches!(kind, LISTENER_REPORT | LISTENER_DONE | LISTENER_REPORT_V2)
            }
            _ => false,
        }
}

#[cfg(test)]
mod tests;
