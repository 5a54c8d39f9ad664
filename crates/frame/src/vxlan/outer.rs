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
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Appends bytes. There is room for all that a template writes.
    fn push(&mut self, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}

/// The headers of a tunnel without what differs between frames: lengths, checksums, and the source
/// port, which are zero.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    outer: Outer,
    /// The sum over the header of IPv4.
    ip: Sum,
    /// The sum over the pseudo header.
    pseudo: Sum,
    /// The sum over UDP and VXLAN headers.
    udp: Sum,
}

impl Template {
    /// What the headers of all frames of this tunnel share.
    ///
    /// The identification of IPv4 is zero: the datagram may not be fragmented (RFC 6864, 4.1).
    pub fn prefix(&self) -> Prefix {
        const DONT_FRAGMENT: u8 = 0x40;
        let mut outer = Outer { bytes: [0; OUTER_V6], len: 0 };
        outer.push(&self.link.1.0);
        outer.push(&self.link.0.0);
        let (mut ip, mut pseudo) = (Sum::new(), Sum::new());
        match self.ends {
            Ends::V4(source, destination) => {
                let (source, destination) = (source.octets(), destination.octets());
                pseudo.add_pseudo_v4(source, destination, proto::UDP, 0);
                outer.push(&ethertype::IPV4.to_be_bytes());
                let fixed = [0x45, 0, 0, 0, 0, 0, DONT_FRAGMENT, 0, self.ttl, proto::UDP, 0, 0];
                outer.push(&fixed);
                outer.push(&source);
                outer.push(&destination);
                ip.add(&outer.as_slice()[14..]);
            }
            Ends::V6(source, destination) => {
                let (source, destination) = (source.octets(), destination.octets());
                pseudo.add_pseudo_v6(source, destination, proto::UDP, 0);
                outer.push(&ethertype::IPV6.to_be_bytes());
                outer.push(&[0x60, 0, 0, 0, 0, 0, proto::UDP, self.ttl]);
                outer.push(&source);
                outer.push(&destination);
            }
        }
        let udp_at = outer.len;
        let [hi, lo] = self.port.to_be_bytes();
        outer.push(&[0, 0, hi, lo, 0, 0, 0, 0]);
        outer.push(&self.vni.header());
        let udp = Sum::of(&outer.as_slice()[udp_at..]);
        Prefix { outer, ip, pseudo, udp }
    }
}

impl Prefix {
    /// Whether the tunnel is one over IPv6.
    #[inline]
    pub fn is_v6(&self) -> bool {
        self.outer.len == OUTER_V6
    }

    /// The headers of one inner frame of `inner_len` bytes, from `source_port`.
    ///
    /// # Errors
    /// [`BadOffload::CsumRange`] when the inner checksum is not in the bytes that were given, or
    /// [`BadOffload::GsoSize`] when the datagram would be longer than 65535 bytes.
    #[inline]
    pub fn headers(
        &self,
        source_port: u16,
        inner_len: usize,
        inner: Covered<'_>,
    ) -> Result<Outer, BadOffload> {
        let datagram = u16::try_from(UDP_LEN + VXLAN_LEN + inner_len);
        let datagram = datagram.ok().filter(|len| *len <= u16::MAX - 20);
        let datagram = datagram.ok_or(BadOffload::GsoSize)?;
        let mut outer = self.outer;
        let mut put = |at: usize, value: u16| {
            outer.bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        };
        if self.is_v6() {
            put(18, datagram);
        } else {
            let (mut ip, len) = (self.ip, datagram + 20);
            ip.add_u16(len);
            put(16, len);
            put(24, ip.checksum());
        }
        let mut all = self.pseudo;
        all.add_u16(datagram);
        let checksum = match inner.sum()? {
            Some(inner) => {
                all.append(self.udp);
                all.add_u16(source_port);
                all.add_u16(datagram);
                all.append(inner);
                all.checksum_nonzero()
            }
            None => all.fold(),
        };
        let udp_at = self.outer.len - UDP_LEN - VXLAN_LEN;
        put(udp_at, source_port);
        put(udp_at + 4, datagram);
        put(udp_at + 6, checksum);
        Ok(outer)
    }
}
