//! The flow hash: one number per flow, for the choice of queues and cache slots.
//!
//! The hash is fixed and not keyed, so a peer can find frames that collide. The only effect is that
//! the peer's own flows share a queue or a cache slot. Equal hashes must therefore never be taken
//! for equal flows.

use crate::bytes::chunk;
use crate::head::Head;
use crate::view::{Headers, L3};

// Digits of pi, with many bits set and cleared: factors that do not cancel structured input.
const K0: u64 = 0x243f_6a88_85a3_08d3;
const K1: u64 = 0x1319_8a2e_0370_7344;
const K2: u64 = 0xa409_3822_299f_31d0;
const K3: u64 = 0x082e_fa98_ec4e_6c89;

/// Multiplies to 128 bits and folds the halves: every input bit reaches most output bits.
#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ (wide >> 64) as u64
}

/// The eight bytes at `at`; zero where the head does not reach.
#[inline(always)]
fn word(head: &[u8], at: usize) -> u64 {
    chunk(head, at).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Hashes MAC addresses, outermost EtherType, VLAN id, IP addresses, IP protocol and, for TCP and
/// UDP that are not fragments, ports. `head` is what `h` was parsed from.
///
/// Direction matters. All fragments of one datagram hash alike, and priority bits of the tag do not
/// count. Every bit of the result is usable: `(hash as u64 * n) >> 32` spreads evenly over `n`
/// queues.
pub fn flow_hash(h: &Headers, head: &[u8]) -> u32 {
    let l3_at = usize::from(h.l3_at);
    let ports = if h.has_ports() {
        chunk(head, usize::from(h.l4_at)).map_or(0, |p| u32::from_le_bytes(*p))
    } else {
        0
    };
    // One more than the id, so that "no tag" differs from "tag 0".
    let vlan = h.vid().map_or(0, |vid| u64::from(vid) + 1);

    // Both addresses, overlapping, and the type field. They are read from the bytes, which is
    // faster than from the view that was just written.
    let link = link_hash([word(head, 0), word(head, 6)]);
    let net = match h.l3 {
        L3::None => 0,
        L3::V4 => word(head, l3_at + 12),
        L3::V6 => {
            let src = mix(word(head, l3_at + 8) ^ K2, word(head, l3_at + 16) ^ K3);
            let dst = mix(word(head, l3_at + 24) ^ K3, word(head, l3_at + 32) ^ K1);
            src ^ dst.rotate_left(32)
        }
    };
    whole_hash(link, ends_hash(net, ports, vlan, h.proto))
}

/// [`flow_hash`] of one frame after the other. Those of a burst mostly have the same addresses, so
/// that part of the hash is kept.
#[derive(Debug)]
pub struct FlowHasher {
    /// The first and the last eight bytes of the Ethernet header, and their hash.
    link: [u64; 2],
    hashed: u64,
}

impl Default for FlowHasher {
    fn default() -> Self {
        FlowHasher { link: [0; 2], hashed: link_hash([0; 2]) }
    }
}

impl FlowHasher {
    /// The hash of the flow of a frame that starts with `head`, which `h` was parsed from.
    #[inline(always)]
    pub fn hash(&mut self, h: &Headers, head: &Head) -> u32 {
        match self.hash_plain(h, head) {
            Some(hash) => hash,
            None => flow_hash(h, head.as_slice()),
        }
    }

    /// As [`hash`](Self::hash); `None` unless the frame is TCP or UDP over IPv4, without tags and
    /// options, in a head as it was filled.
    #[inline(always)]
    pub fn hash_plain(&mut self, h: &Headers, head: &Head) -> Option<u32> {
        // Only such frames have ports at that place, and they have all bytes in front of these.
        let first = head.as_filled().filter(|_| h.l4_at == 34 && h.has_ports())?;
        let link = [word(first, 0), word(first, 6)];
        if link[0] != self.link[0] || link[1] != self.link[1] {
            (self.link, self.hashed) = (link, link_hash(link));
        }
        let ports = u32::from_le_bytes([first[34], first[35], first[36], first[37]]);
        let ends = ends_hash(word(first, 26), ports, 0, h.proto);
        Some(whole_hash(self.hashed, ends))
    }
}

/// Both addresses, overlapping, and the type field.
#[inline(always)]
fn link_hash([low, high]: [u64; 2]) -> u64 {
    mix(low ^ K0, high ^ K1) ^ K1
}

/// IP addresses, ports, VLAN, and protocol.
#[inline(always)]
fn ends_hash(net: u64, ports: u32, vlan: u64, proto: u8) -> u64 {
    mix(net ^ K2, (u64::from(ports) << 32 | vlan << 8 | u64::from(proto)) ^ K3)
}

#[inline(always)]
fn whole_hash(link: u64, ends: u64) -> u32 {
    (mix(link, ends ^ K0) >> 32) as u32
}

#[cfg(test)]
mod tests;
