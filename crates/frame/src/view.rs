//! The headers in a frame's first bytes, parsed in one pass and without copies.
//!
//! A hostile peer may write any lengths, any chain of extension headers, any number of tags. The
//! parser looks at no more than [`HEAD_LEN`] bytes and every step moves forward, so it is bounded;
//! a header that is malformed or does not fit ends the parse, and the headers behind it are "not
//! known".

use crate::bytes::chunk;
use crate::head::HEAD_LEN;
use crate::mac::Mac;

/// EtherTypes that the parser handles.
pub(crate) mod ethertype {
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const IPV6: u16 = 0x86dd;
    pub const DOT1Q: u16 = 0x8100;
    pub const DOT1AD: u16 = 0x88a8;
}

/// IP protocol numbers that the parser handles.
pub mod proto {
    /// Transmission Control Protocol.
    pub const TCP: u8 = 6;
    /// User Datagram Protocol.
    pub const UDP: u8 = 17;
    /// Stream Control Transmission Protocol; its checksum is a CRC32c.
    pub const SCTP: u8 = 132;
    pub(crate) const ICMP: u8 = 1;
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const FRAGMENT: u8 = 44;
    pub(crate) const AUTHENTICATION: u8 = 51;
    pub(crate) const ICMPV6: u8 = 58;
    pub(crate) const DESTINATION: u8 = 60;
}

/// Length of a TCP header without options.
const TCP_LEAST: usize = 20;

/// In the flags and the offset of an IPv4 header: more fragments follow, or this is not the first.
const FRAGMENT: u16 = 0x3fff;

/// The network protocol of a frame.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Hash)]
pub enum L3 {
    /// Not IP, or an IP header that is malformed or incomplete.
    #[default]
    None,
    /// IPv4 with a whole, well-formed header.
    V4,
    /// IPv6 with a whole fixed header.
    V6,
}

/// The transport protocol of a frame. Those with ports come last.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Debug, Hash)]
pub enum L4 {
    /// Not known: no IP, or extension headers that do not fit.
    #[default]
    None,
    /// Another protocol, a fragment, or a transport header that is malformed or incomplete.
    Other,
    /// TCP with a whole, well-formed header, options included; not a fragment.
    Tcp,
    /// UDP with a whole header; not a fragment.
    Udp,
}

/// The headers of a frame, parsed. All offsets count from the frame's first byte.
///
/// Invariant: `l3_at <= l4_at <= end <=` length of the head that was parsed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Headers {
    /// Destination address.
    pub dst: Mac,
    /// Source address.
    pub src: Mac,
    /// The outermost tag's control information (priority, DEI, VLAN id) if that tag is 802.1Q. An
    /// outermost 802.1ad tag is neither read nor edited, but skipped, and gives `None`.
    pub tag: Option<u16>,
    /// How many tags, of either kind, were stepped over: at most 2 after parsing, more once some
    /// were pushed.
    pub tags: u8,
    /// EtherType after the tags.
    pub ethertype: u16,
    /// Network protocol.
    pub l3: L3,
    /// First byte after Ethernet header and tags.
    pub l3_at: u8,
    /// IP protocol number after extension headers; 0 without IP.
    pub proto: u8,
    /// Transport protocol.
    pub l4: L4,
    /// First byte after the network header and its extensions, as far as known; `l3_at` without
    /// IP.
    pub l4_at: u8,
    /// First payload byte after the last header that is known.
    pub end: u8,
    /// Part of a fragmented IP datagram, the first part included: ports must not be trusted.
    pub fragment: bool,
}

impl Headers {
    /// Both addresses, the destination's first byte in the lowest bits: 12 bytes as a number of
    /// eight and one of four. They are written in these sizes; loads of other sizes would wait
    /// until the stores have left the processor's store buffer.
    #[inline(always)]
    pub fn addresses(&self) -> (u64, u32) {
        let ([d0, d1, d2, d3, d4, d5], [s0, s1, s2, s3, s4, s5]) = (self.dst.0, self.src.0);
        (u64::from_le_bytes([d0, d1, d2, d3, d4, d5, s0, s1]), u32::from_le_bytes([s2, s3, s4, s5]))
    }

    /// VLAN id of the outermost 802.1Q tag, 0 for a priority tag.
    #[inline]
    pub fn vid(&self) -> Option<u16> {
        self.tag.map(|tci| tci & 0x0fff)
    }

    /// Whether another tag lies behind the outermost one, which is 802.1Q.
    #[inline]
    pub fn has_inner_tag(&self) -> bool {
        let is_tag = matches!(self.ethertype, ethertype::DOT1Q | ethertype::DOT1AD);
        self.tag.is_some() && (self.tags > 1 || is_tag)
    }

    /// True when the parse is complete: more bytes of the frame would not change it.
    #[inline]
    pub fn is_whole(&self) -> bool {
        match (self.l3, self.l4) {
            (L3::None, _) => !matches!(
                self.ethertype,
                ethertype::IPV4 | ethertype::IPV6 | ethertype::DOT1Q | ethertype::DOT1AD
            ),
            (_, L4::Tcp | L4::Udp) => true,
            (_, L4::Other) => self.fragment || !matches!(self.proto, proto::TCP | proto::UDP),
            (_, L4::None) => false,
        }
    }

    /// True when source and destination port are the first four bytes at `l4_at`.
    #[inline]
    pub fn has_ports(&self) -> bool {
        self.l4 >= L4::Tcp
    }
}

/// Reads the headers of the frame that starts with `head`; bytes after the first [`HEAD_LEN`] are
/// not looked at. `None` when it is shorter than an Ethernet header (14 bytes).
#[inline]
pub fn parse(head: &[u8]) -> Option<Headers> {
    let mut headers = Headers::default();
    parse_into(head, &mut headers).then_some(headers)
}

/// [`parse`] into existing headers, in place. False when the frame is too short. Headers have many
/// small fields, and copying them as a whole just after they were written would wait until they
/// have left the processor's store buffer.
#[inline]
pub fn parse_into(head: &[u8], h: &mut Headers) -> bool {
    let head = head.get(..HEAD_LEN).unwrap_or(head);
    if let Some(headers) = plain_ipv4(head) {
        *h = headers;
        return true;
    }
    let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, e0, e1]) = chunk(head, 0) else {
        return false;
    };
    *h = Headers {
        dst: Mac([d0, d1, d2, d3, d4, d5]),
        src: Mac([s0, s1, s2, s3, s4, s5]),
        ethertype: u16::from_be_bytes([e0, e1]),
        l3_at: 14,
        l4_at: 14,
        end: 14,
        ..Headers::default()
    };
    if matches!(h.ethertype, ethertype::DOT1Q | ethertype::DOT1AD) {
        tags(head, h);
    }
    match h.ethertype {
        ethertype::IPV4 => ipv4(head, h),
        ethertype::IPV6 => ipv6(head, h),
        _ => {}
    }
    true
}

/// The headers of the usual frame: no tag, IPv4 without options, UDP or TCP, no fragment. Most
/// fields are then constants, and the whole view can be written at once. `None`: the frame is of
/// another kind.
#[inline(always)]
fn plain_ipv4(head: &[u8]) -> Option<Headers> {
    const L4_AT: usize = 34;
    let first: &[u8; L4_AT + 8] = chunk(head, 0)?;
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, 0x08, 0x00, 0x45, rest @ ..] = first
    else {
        return None;
    };
    let [_, _, _, _, _, f0, f1, _, proto, ..] = *rest;
    if u16::from_be_bytes([f0, f1]) & FRAGMENT != 0 {
        return None;
    }
    let (l4, len) = match proto {
        proto::UDP => (L4::Udp, 8),
        proto::TCP => (L4::Tcp, tcp_len(head, L4_AT)),
        _ => return None,
    };
    if l4 == L4::Tcp && (len < TCP_LEAST || L4_AT + len > head.len()) {
        return None;
    }
    Some(Headers {
        dst: Mac([*d0, *d1, *d2, *d3, *d4, *d5]),
        src: Mac([*s0, *s1, *s2, *s3, *s4, *s5]),
        tag: None,
        tags: 0,
        ethertype: ethertype::IPV4,
        l3: L3::V4,
        l3_at: 14,
        proto,
        l4,
        l4_at: L4_AT as u8,
        end: (L4_AT + len) as u8,
        fragment: false,
    })
}

/// Steps over at most two tags; a third one is payload.
fn tags(head: &[u8], h: &mut Headers) {
    while h.tags < 2 && matches!(h.ethertype, ethertype::DOT1Q | ethertype::DOT1AD) {
        let Some(&[c0, c1, t0, t1]) = chunk(head, h.l3_at as usize) else {
            return;
        };
        if h.tags == 0 && h.ethertype == ethertype::DOT1Q {
            h.tag = Some(u16::from_be_bytes([c0, c1]));
        }
        h.ethertype = u16::from_be_bytes([t0, t1]);
        h.tags += 1;
        h.l3_at += 4;
        h.l4_at = h.l3_at;
        h.end = h.l3_at;
    }
}

#[inline(always)]
fn ipv4(head: &[u8], h: &mut Headers) {
    let at = h.l3_at as usize;
    let Some(ip) = chunk::<20>(head, at) else {
        return;
    };
    let header_len = (ip[0] & 0x0f) as usize * 4;
    let l4_at = at + header_len;
    if ip[0] >> 4 != 4 || header_len < 20 || l4_at > head.len() {
        return;
    }
    h.l3 = L3::V4;
    h.proto = ip[9];
    h.l4_at = l4_at as u8;
    h.fragment = u16::from_be_bytes([ip[6], ip[7]]) & FRAGMENT != 0;
    transport(head, h);
}

#[inline(always)]
fn ipv6(head: &[u8], h: &mut Headers) {
    let Some(ip) = chunk::<40>(head, h.l3_at as usize) else {
        return;
    };
    if ip[0] >> 4 != 6 {
        return;
    }
    h.l3 = L3::V6;
    h.proto = ip[6];
    h.l4_at = h.l3_at + 40;
    if matches!(h.proto, proto::TCP | proto::UDP) || extensions(head, h) {
        transport(head, h);
    } else {
        h.end = h.l4_at;
    }
}

/// Steps over IPv6 extension headers (RFC 8200, 4). False when the chain leaves the head before it
/// ends.
///
/// Every step moves forward by at least 8 bytes, so the loop is bounded.
fn extensions(head: &[u8], h: &mut Headers) -> bool {
    loop {
        let at = h.l4_at as usize;
        let next = match h.proto {
            proto::HOP_BY_HOP | proto::ROUTING | proto::DESTINATION => {
                chunk(head, at).map(|&[next, len]: &[u8; 2]| (next, at + 8 + len as usize * 8))
            }
            proto::AUTHENTICATION => {
                chunk(head, at).map(|&[next, len]: &[u8; 2]| (next, at + 8 + len as usize * 4))
            }
            proto::FRAGMENT => chunk(head, at).map(|ext: &[u8; 8]| (ext[0], at + 8)),
            _ => return true,
        };
        let Some((next, end)) = next.filter(|&(_, end)| end <= head.len()) else {
            return false;
        };
        h.fragment = h.proto == proto::FRAGMENT;
        h.proto = next;
        h.l4_at = end as u8;
        if h.fragment {
            // Further headers are only in the first fragment, and all fragments must be parsed
            // alike.
            return true;
        }
    }
}

#[inline(always)]
fn transport(head: &[u8], h: &mut Headers) {
    let at = h.l4_at as usize;
    h.l4 = L4::Other;
    h.end = h.l4_at;
    if h.fragment {
        return;
    }
    let (l4, least, len) = match h.proto {
        proto::TCP => (L4::Tcp, TCP_LEAST, tcp_len(head, at)),
        proto::UDP => (L4::Udp, 8, 8),
        _ => return,
    };
    if len >= least && at + len <= head.len() {
        h.l4 = l4;
        h.end = (at + len) as u8;
    }
}

/// Length of the TCP header at `at`, according to its own field; 0 when that is missing.
#[inline(always)]
fn tcp_len(head: &[u8], at: usize) -> usize {
    head.get(at + 12).map_or(0, |byte| usize::from(byte >> 4) * 4)
}

#[cfg(test)]
mod tests;
