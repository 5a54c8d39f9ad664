//! VXLAN (RFC 7348): Ethernet frames of a virtual network inside UDP datagrams.
//!
//! All input comes from the underlay, where any host that reaches the port can send anything. A
//! header is refused with a named error ([`BadVxlan`]) unless it is complete and consistent.

pub mod outer;

use std::fmt;
use std::net::IpAddr;

use crate::bytes::{chunk, get_u16, get_u32};
use crate::view::{L3, L4, parse};

/// The UDP port that IANA assigned to VXLAN.
pub const PORT: u16 = 4789;

/// Bytes of a VXLAN header.
pub const VXLAN_LEN: usize = 8;

/// The flag that says that the VNI is valid. Other bits are reserved: zero when sent, and ignored
/// when received (RFC 7348, 5).
const VNI_VALID: u8 = 0x08;

/// Shortest inner frame: an Ethernet header.
const ETHERNET: usize = 14;

/// A VXLAN network identifier: 24 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Vni(u32);

impl Vni {
    /// The largest identifier.
    pub const MAX: u32 = 0x00ff_ffff;

    /// The identifier of this number; `None`: it has more than 24 bits.
    pub fn new(number: u32) -> Option<Vni> {
        (number <= Vni::MAX).then_some(Vni(number))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// The header of a frame of this network.
    #[inline]
    pub fn header(self) -> [u8; VXLAN_LEN] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [VNI_VALID, 0, 0, 0, a, b, c, 0]
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a datagram of the underlay is no frame of a virtual network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadVxlan {
    /// Too short for a VXLAN header and an inner Ethernet header.
    #[error("the datagram is too short for a VXLAN header and a frame")]
    Short,
    /// The header's flag says that there is no VNI.
    #[error("the VXLAN header has no VNI")]
    NoVni,
    /// The outer headers are not those of a whole UDP datagram to the port in question.
    #[error("the outer headers are not those of a VXLAN datagram")]
    Outer,
    /// The outer lengths contradict each other or the received length.
    #[error("the outer lengths contradict each other")]
    Length,
    /// The outer IPv4 header's checksum is wrong, or there is no UDP checksum where IPv6 needs one.
    #[error("an outer checksum is wrong or missing")]
    Checksum,
}

/// Reads the VXLAN header of a UDP payload of `len` bytes that starts with `head`. The inner frame
/// begins [`VXLAN_LEN`] bytes later.
///
/// # Errors
/// [`BadVxlan::Short`], [`BadVxlan::NoVni`].
#[inline]
pub fn read_header(head: &[u8], len: usize) -> Result<Vni, BadVxlan> {
    let header: &[u8; VXLAN_LEN] =
        chunk(head, 0).filter(|_| len >= VXLAN_LEN + ETHERNET).ok_or(BadVxlan::Short)?;
    if header[0] & VNI_VALID == 0 {
        return Err(BadVxlan::NoVni);
    }
    Ok(Vni(u32::from_be_bytes([0, header[4], header[5], header[6]])))
}

/// A frame of a virtual network, as it came from the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encapsulated {
    /// The VTEP that sent it, if the underlay can be trusted.
    pub source: IpAddr,
    /// The VTEP that it is for.
    pub destination: IpAddr,
    /// The outer source port: the sender's entropy for the flow.
    pub source_port: u16,
    /// The network.
    pub vni: Vni,
    /// Where the inner frame begins, from the start of the outer one.
    pub inner_at: usize,
    /// Bytes of the inner frame. Padding of the outer frame is not included.
    pub inner_len: usize,
}

/// Reads the outer headers of a frame of `len` bytes that starts with `head`, and is for `port`.
/// Fragments are refused, because only the first one has the headers of the datagram.
///
/// # Errors
/// The reason why the frame is refused.
pub fn decapsulate(head: &[u8], len: usize, port: u16) -> Result<Encapsulated, BadVxlan> {
    let headers = parse(head).ok_or(BadVxlan::Short)?;
    let (l3_at, l4_at) = (usize::from(headers.l3_at), usize::from(headers.l4_at));
    if headers.l4 != L4::Udp || get_u16(head, l4_at + 2) != Some(port) {
        return Err(BadVxlan::Outer);
    }
    let field = |at| get_u16(head, at).ok_or(BadVxlan::Short);
    let datagram = usize::from(field(l4_at + 4)?);
    let (source, destination, behind_l3) = match headers.l3 {
        L3::V4 => {
            let header = head.get(l3_at..l4_at).ok_or(BadVxlan::Short)?;
            if crate::Sum::of(header).fold() != 0xffff {
                return Err(BadVxlan::Checksum);
            }
            let address = |at| get_u32(head, at).map(|bits| IpAddr::V4(bits.into()));
            let whole = usize::from(field(l3_at + 2)?);
            (address(l3_at + 12), address(l3_at + 16), whole.checked_sub(l4_at - l3_at))
        }
        L3::V6 => {
            if field(l4_at + 6)? == 0 {
                return Err(BadVxlan::Checksum);
            }
            let address = |at| chunk(head, at).map(|bytes: &[u8; 16]| IpAddr::V6((*bytes).into()));
            let behind = usize::from(field(l3_at + 4)?);
            (address(l3_at + 8), address(l3_at + 24), (behind + l3_at + 40).checked_sub(l4_at))
        }
        L3::None => return Err(BadVxlan::Outer),
    };
    let (Some(source), Some(destination)) = (source, destination) else {
        return Err(BadVxlan::Short);
    };
    if behind_l3 != Some(datagram) || l4_at + datagram > len || datagram < outer::UDP_LEN {
        return Err(BadVxlan::Length);
    }
    let at = l4_at + outer::UDP_LEN;
    let vni = read_header(head.get(at..).unwrap_or_default(), datagram - outer::UDP_LEN)?;
    let (inner_at, inner_len) = (at + VXLAN_LEN, datagram - outer::UDP_LEN - VXLAN_LEN);
    let source_port = field(l4_at)?;
    Ok(Encapsulated { source, destination, source_port, vni, inner_at, inner_len })
}

/// A source port for the flow with this hash, out of the ports that no service uses (RFC 7348, 5:
/// 49152 to 65535): paths and queues of the underlay are chosen by it.
#[inline]
pub fn source_port(hash: u32) -> u16 {
    0xc000 | (hash >> 18) as u16
}

#[cfg(test)]
mod tests;
