//! The addresses and ports of a connection.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Protocol numbers of IP.
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;
pub const SCTP: u8 = 132;

/// UDP ports of DHCP (RFC 2131) and DHCPv6 (RFC 8415).
pub const DHCP_SERVER: u16 = 67;
pub const DHCP_CLIENT: u16 = 68;
pub const DHCPV6_CLIENT: u16 = 546;
pub const DHCPV6_SERVER: u16 = 547;

/// The ICMPv6 type of router advertisements (RFC 4861), which a tuple has in place of its ports.
pub const ROUTER_ADVERTISEMENT: u16 = 134;

/// Source and destination of a packet. All packets of a connection in one direction have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuple {
    /// Source address; one of IPv4 as an IPv4-mapped one (RFC 4291, 2.5.5.2).
    pub source: u128,
    /// Destination address, likewise.
    pub destination: u128,
    /// Port of TCP, UDP and SCTP; identifier of an echo request or reply of ICMP; 0 otherwise.
    pub source_port: u16,
    /// Likewise.
    pub destination_port: u16,
    /// Protocol number of IP.
    pub protocol: u8,
    /// The ports are the identification of a datagram that was fragmented.
    pub is_datagram: bool,
}

impl Tuple {
    /// A packet between these addresses and ports.
    ///
    /// `None`: one address is of IPv4, and the other one of IPv6.
    pub fn new(protocol: u8, source: SocketAddr, destination: SocketAddr) -> Option<Tuple> {
        (source.is_ipv4() == destination.is_ipv4()).then(|| Tuple {
            source: bits(source.ip()),
            destination: bits(destination.ip()),
            source_port: source.port(),
            destination_port: destination.port(),
            protocol,
            is_datagram: false,
        })
    }

    /// The tuple of packets in the other direction.
    #[must_use]
    pub fn reversed(self) -> Tuple {
        Tuple {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..self
        }
    }

    /// Whether the addresses are of IPv4.
    pub fn is_v4(&self) -> bool {
        Ipv6Addr::from_bits(self.source).to_ipv4_mapped().is_some()
    }

    /// Whether the packet is a router advertisement.
    pub fn is_router_advertisement(&self) -> bool {
        (self.source_port, self.destination_port) == (ROUTER_ADVERTISEMENT, 0)
            && self.protocol == ICMPV6
    }
}

impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = SocketAddr::new(address(self.source), self.source_port);
        let destination = SocketAddr::new(address(self.destination), self.destination_port);
        write!(f, "{source} > {destination}")
    }
}

/// An address as a number; one of IPv4 as an IPv4-mapped one.
pub fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => v4(address.octets()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The number of an IPv4 address.
#[inline]
pub fn v4(octets: [u8; 4]) -> u128 {
    Ipv4Addr::from(octets).to_ipv6_mapped().to_bits()
}

/// The address of a number.
fn address(bits: u128) -> IpAddr {
    Ipv6Addr::from_bits(bits).to_canonical()
}
