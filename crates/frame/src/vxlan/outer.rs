//! Outer headers: Ethernet, IPv4 or IPv6, UDP and VXLAN, in front of a frame of a virtual network.
//!
//! The outer UDP checksum covers the whole inner frame. Where the inner frame has a checksum that
//! is still to be completed, the outer one follows from headers alone (local checksum offload):
//! once the inner checksum is right, the bytes that it covers sum up to the complement of the
//! field's present value, for any payload. The payload is then summed only once, when the inner
//! checksum is completed, or never, if the receiver takes a partial checksum.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{VXLAN_LEN, Vni};
use crate::bytes::get_u16;
use crate::checksum::Sum;
use crate::mac::Mac;
use crate::offload::{BadOffload, PartialCsum};
use crate::view::{ethertype, proto};

/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;
/// Bytes of all outer headers over IPv4.
pub const OUTER_V4: usize = 14 + 20 + UDP_LEN + VXLAN_LEN;
/// Bytes of all outer headers over IPv6.
pub const OUTER_V6: usize = 14 + 40 + UDP_LEN + VXLAN_LEN;

/// How much smaller the longest IP packet of a virtual network is than that of an IPv4 underlay:
/// outer IP, UDP and VXLAN headers, and the inner Ethernet header.
pub const OVERHEAD_V4: u16 = (OUTER_V4 - 14 + 14) as u16;
/// The same for an IPv6 underlay.
pub const OVERHEAD_V6: u16 = (OUTER_V6 - 14 + 14) as u16;

/// The addresses of two VTEPs, of the same family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// Source, then destination.
    V4(Ipv4Addr, Ipv4Addr),
    /// Source, then destination.
    V6(Ipv6Addr, Ipv6Addr),
}

impl Ends {
    /// The ends of a tunnel; `None`: the families differ.
    pub fn new(source: IpAddr, destination: IpAddr) -> Option<Ends> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Ends::V4(source, destination)),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Ends::V6(source, destination)),
            _ => None,
        }
    }
}

/// The fields that all outer headers of a tunnel share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Template {
    /// This host's address on the wire, then the next hop's.
    pub link: (Mac, Mac),
    /// The VTEPs.
    pub ends: Ends,
    /// The receiver's UDP port.
    pub port: u16,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// The network.
    pub vni: Vni,
}

/// The part of the outer checksum that covers an inner frame.
#[derive(Clone, Copy, Debug)]
pub enum Covered<'a> {
    /// The first bytes of the frame, up to and with the checksum's field at least, and the checksum
    /// that is still to be completed. Its field holds the pseudo header's sum.
    Partial(&'a [u8], PartialCsum),
    /// The sum over the whole frame.
    Whole(Sum),
    /// Whoever segments the frame also completes the outer checksums. The field holds the pseudo
    /// header's sum until then.
    Open,
}

impl Covered<'_> {
    /// The sum over the whole frame, once its checksum is complete. `None`: the outer checksum
    /// stays open.
    fn sum(self) -> Result<Option<Sum>, BadOffload> {
        let (head, csum) = match self {
            Covered::Open => return Ok(None),
            Covered::Whole(sum) => return Ok(Some(sum)),
            Covered::Partial(head, csum) => (head, csum),
        };
        let start = usize::from(csum.start);
        let field = get_u16(head, start + usize::from(csum.offset)).ok_or(BadOffload::CsumRange)?;
        let mut sum = Sum::of(head.get(..start).ok_or(BadOffload::CsumRange)?);
        sum.append(Sum::of(&(!field).to_be_bytes()));
        Ok(Some(sum))
    }
}

/// Outer headers that were written.
#[derive(Clone, Copy, Debug)]
pub struct Outer {
    bytes: [u8; OUTER_V6],
    len: usize,
}

impl Outer {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Template {
    /// The headers of one inner frame of `inner_len` bytes, from `source_port`.
    ///
    /// The identification of IPv4 is zero: the datagram may not be fragmented (RFC 6864, 4.1).
    ///
    /// # Errors
    /// [`BadOffload::CsumRange`] when the inner checksum is not in the bytes that were given, or
    /// [`BadOffload::GsoSize`] when the datagram would be longer than 65535 bytes.
    pub fn headers(
        &self,
        source_port: u16,
        inner_len: usize,
        inner: Covered<'_>,
    ) -> Result<Outer, BadOffload> {
        let datagram = u16::try_from(UDP_LEN + VXLAN_LEN + inner_len);
        let datagram = datagram.ok().filter(|len| *len <= u16::MAX - 20);
        let datagram = datagram.ok_or(BadOffload::GsoSize)?;
        let mut udp = [0; UDP_LEN + VXLAN_LEN];
        udp[..2].copy_from_slice(&source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&self.port.to_be_bytes());
        udp[4..6].copy_from_slice(&datagram.to_be_bytes());
        udp[UDP_LEN..].copy_from_slice(&self.vni.header());
        let inner = inner.sum()?;
        let mut outer = Outer { bytes: [0; OUTER_V6], len: 0 };
        outer.push(&self.link.1.0);
        outer.push(&self.link.0.0);
        let mut all = Sum::new();
        match self.ends {
            Ends::V4(source, destination) => {
                let (source, destination) = (source.octets(), destination.octets());
                all.add_pseudo_v4(source, destination, proto::UDP, datagram.into());
                outer.push(&ethertype::IPV4.to_be_bytes());
                outer.push(&self.ipv4(source, destination, datagram + 20));
            }
            Ends::V6(source, destination) => {
                let (source, destination) = (source.octets(), destination.octets());
                all.add_pseudo_v6(source, destination, proto::UDP, datagram.into());
                outer.push(&ethertype::IPV6.to_be_bytes());
                let [hi, lo] = datagram.to_be_bytes();
                outer.push(&[0x60, 0, 0, 0, hi, lo, proto::UDP, self.ttl]);
                outer.push(&source);
                outer.push(&destination);
            }
        }
        let checksum = match inner {
            Some(inner) => {
                all.append(Sum::of(&udp));
                all.append(inner);
                all.checksum_nonzero()
            }
            None => all.fold(),
        };
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());
        outer.push(&udp);
        Ok(outer)
    }

    fn ipv4(&self, source: [u8; 4], destination: [u8; 4], len: u16) -> [u8; 20] {
        const DONT_FRAGMENT: u8 = 0x40;
        let mut ip = [0; 20];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        (ip[6], ip[8], ip[9]) = (DONT_FRAGMENT, self.ttl, proto::UDP);
        ip[12..16].copy_from_slice(&source);
        ip[16..].copy_from_slice(&destination);
        let checksum = Sum::of(&ip).checksum();
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        ip
    }
}

impl Outer {
    /// Appends bytes. There is room for all that a template writes.
    fn push(&mut self, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}
