//! A filter's view of a frame.

use std::net::Ipv6Addr;

use frame::{Headers, L3, L4};

use super::connections::Event;
use super::tuple::{self, ICMP, ICMPV6, SCTP, TCP, Tuple, UDP};
use crate::reason::DropReason;

/// EtherType of ARP.
const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// The least offset at which a later fragment may begin. All headers that are read lie within the
/// head, and a fragment that begins earlier could overwrite the ports of the first one.
const EARLIEST_FRAGMENT: u16 = frame::HEAD_LEN as u16;

/// Flags of TCP: FIN, SYN, RST.
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;

/// A frame, as a filter sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet {
    /// ARP, neighbour discovery, or a report of a multicast listener.
    Control,
    /// A packet of a connection.
    Flow {
        /// Its addresses and ports.
        tuple: Tuple,
        /// The effect of the packet on the connection.
        event: Event,
    },
    /// An error of ICMP.
    Error {
        /// The error's own addresses.
        tuple: Tuple,
        /// The packet that it is about, if that can be read.
        about: Option<Tuple>,
    },
    /// The first fragment of a datagram.
    FirstFragment {
        /// Its addresses and ports.
        tuple: Tuple,
        /// The datagram.
        datagram: Tuple,
    },
    /// Another fragment of a datagram.
    LaterFragment {
        /// The datagram.
        datagram: Tuple,
    },
    /// Neither IP nor ARP.
    Other,
}

impl Packet {
    /// Reads the frame that starts with `head`, whose parsed headers are these.
    ///
    /// # Errors
    /// When headers that matter are malformed, or lie beyond the head.
    pub fn parse(head: &[u8], headers: &Headers) -> Result<Packet, DropReason> {
        match (headers.ethertype, headers.l3) {
            (ARP, _) => Ok(Packet::Control),
            (IPV4 | IPV6, L3::V4 | L3::V6) => Reader { head, headers }.packet(),
            (IPV4 | IPV6, L3::None) => Err(DropReason::Untrackable),
            _ => Ok(Packet::Other),
        }
    }

    /// The tuple of a frame that changes nothing of its connection.
    pub fn is_plain(&self) -> Option<&Tuple> {
        match self {
            Packet::Flow { tuple, event: Event::Data } => Some(tuple),
            _ => None,
        }
    }
}

/// A packet of IP.
struct Reader<'a> {
    head: &'a [u8],
    headers: &'a Headers,
}

impl Reader<'_> {
    fn packet(&self) -> Result<Packet, DropReason> {
        if self.claims_v4_in_v6() {
            return Err(DropReason::Untrackable);
        }
        if self.headers.fragment {
            return self.fragment();
        }
        let proto = self.headers.proto;
        match self.headers.l4 {
            L4::Tcp => self.tcp(),
            L4::Udp => Ok(self.flow(self.port(0)?, self.port(2)?)),
            L4::Other if proto == SCTP => Ok(self.flow(self.port(0)?, self.port(2)?)),
            L4::Other if matches!(proto, ICMP | ICMPV6) => self.icmp(),
            L4::Other if !matches!(proto, TCP | UDP) => Ok(self.flow(0, 0)),
            L4::Other | L4::None => Err(DropReason::Untrackable),
        }
    }

    /// Whether an IPv6 packet has an IPv4-mapped address (RFC 4942, 2.2). Rules for IPv4 must not
    /// apply to such packets.
    fn claims_v4_in_v6(&self) -> bool {
        let Tuple { source, destination, .. } = self.tuple(0, 0);
        let is_mapped = |bits| Ipv6Addr::from_bits(bits).to_ipv4_mapped().is_some();
        self.headers.l3 == L3::V6 && (is_mapped(source) || is_mapped(destination))
    }

    fn tcp(&self) -> Result<Packet, DropReason> {
        let tuple = self.tuple(self.port(0)?, self.port(2)?);
        let event = match self.byte(13)? {
            flags if flags & (FIN | RST) != 0 => Event::Close,
            flags if flags & SYN != 0 => Event::Open,
            _ => Event::Data,
        };
        Ok(Packet::Flow { tuple, event })
    }

    fn icmp(&self) -> Result<Packet, DropReason> {
        let (kind, is_v6) = (self.byte(0)?, self.headers.l3 == L3::V6);
        Ok(match (is_v6, kind) {
            // An echo request and its reply have the same identifier.
            (false, 0 | 8) | (true, 128 | 129) => {
                let identifier = self.port(4)?;
                self.flow(identifier, identifier)
            }
            (false, 3 | 11 | 12) | (true, 1..=4) => {
                Packet::Error { tuple: self.tuple(0, 0), about: self.about() }
            }
            // Reports of multicast listeners, and neighbour discovery except routers' messages.
            (true, 130..=133 | 135 | 136 | 143) => Packet::Control,
            (true, 134) => self.flow(tuple::ROUTER_ADVERTISEMENT, 0),
            _ => self.flow(0, 0),
        })
    }

    fn fragment(&self) -> Result<Packet, DropReason> {
        let (offset, identification) = match self.headers.l3 {
            L3::V4 => {
                let at = usize::from(self.headers.l3_at);
                let [id, flags] = [at + 4, at + 6].map(|at| word(self.head, at));
                ((flags.ok_or(DropReason::Untrackable)? & 0x1fff) * 8, u32::from(id.unwrap_or(0)))
            }
            // The fragment header ends where the transport's begins.
            _ => {
                let at = usize::from(self.headers.l4_at).saturating_sub(8);
                let read = |at| word(self.head, at).ok_or(DropReason::Untrackable);
                let high = u32::from(read(at + 4)?);
                (read(at + 2)? & 0xfff8, high << 16 | u32::from(read(at + 6)?))
            }
        };
        let (high, low) = ((identification >> 16) as u16, identification as u16);
        let datagram = Tuple { is_datagram: true, ..self.tuple(high, low) };
        match offset {
            0 => {
                let has_ports = matches!(self.headers.proto, TCP | UDP | SCTP);
                let ports = if has_ports { (self.port(0)?, self.port(2)?) } else { (0, 0) };
                Ok(Packet::FirstFragment { tuple: self.tuple(ports.0, ports.1), datagram })
            }
            EARLIEST_FRAGMENT.. => Ok(Packet::LaterFragment { datagram }),
            _ => Err(DropReason::Untrackable),
        }
    }

    /// The packet that an error is about, which begins behind the error's header.
    fn about(&self) -> Option<Tuple> {
        let inner = self.head.get(usize::from(self.headers.l4_at) + 8..)?;
        let (protocol, addresses, transport) = match (self.headers.l3, inner.first()? >> 4) {
            (L3::V4, 4) => {
                let is_first = word(inner, 6)? & 0x1fff == 0;
                let transport = usize::from(inner.first()? & 0x0f) * 4;
                (*inner.get(9)?, v4(inner, 12)?, is_first.then_some(transport)?)
            }
            (L3::V6, 6) => (*inner.get(6)?, v6(inner, 8)?, 40),
            _ => return None,
        };
        let (source_port, destination_port) = match protocol {
            TCP | UDP | SCTP => (word(inner, transport)?, word(inner, transport + 2)?),
            ICMP | ICMPV6 if matches!(inner.get(transport)?, 0 | 8 | 128 | 129) => {
                let identifier = word(inner, transport + 4)?;
                (identifier, identifier)
            }
            _ => (0, 0),
        };
        let (source, destination) = addresses;
        Some(Tuple {
            source,
            destination,
            source_port,
            destination_port,
            protocol,
            is_datagram: false,
        })
    }

    fn flow(&self, source_port: u16, destination_port: u16) -> Packet {
        Packet::Flow { tuple: self.tuple(source_port, destination_port), event: Event::Data }
    }

    fn tuple(&self, source_port: u16, destination_port: u16) -> Tuple {
        let at = usize::from(self.headers.l3_at);
        let addresses = match self.headers.l3 {
            L3::V4 => v4(self.head, at + 12),
            _ => v6(self.head, at + 8),
        };
        // The header was parsed as a whole.
        let (source, destination) = addresses.unwrap_or_default();
        let protocol = self.headers.proto;
        Tuple { source, destination, source_port, destination_port, protocol, is_datagram: false }
    }

    /// The word at this place of the transport's header.
    fn port(&self, at: usize) -> Result<u16, DropReason> {
        word(self.head, usize::from(self.headers.l4_at) + at).ok_or(DropReason::Untrackable)
    }

    /// The byte at this place of the transport's header.
    fn byte(&self, at: usize) -> Result<u8, DropReason> {
        let byte = self.head.get(usize::from(self.headers.l4_at) + at);
        byte.copied().ok_or(DropReason::Untrackable)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*word))
}

/// Source and destination address, which follow each other.
fn v4(bytes: &[u8], at: usize) -> Option<(u128, u128)> {
    let &[a, b, c, d, e, f, g, h] = bytes.get(at..)?.first_chunk()?;
    Some((tuple::v4([a, b, c, d]), tuple::v4([e, f, g, h])))
}

/// Likewise.
fn v6(bytes: &[u8], at: usize) -> Option<(u128, u128)> {
    let address = |at| Some(u128::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    Some((address(at)?, address(at + 16)?))
}
