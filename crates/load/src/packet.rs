//! The generator's frames: their contents, and the check of received frames.
//!
//! Headers, then the tag (22 bytes), then payload:
//!
//! | tag bytes | |
//! | --- | --- |
//! | 0..4 | number of the frame within its flow |
//! | 4..8 | flow |
//! | 8..16 | send time, ns on the generator's clock |
//! | 16..22 | check over all of these, the frame's length and the direction's key |
//!
//! Payload words are computed from the key, the flow, the number and their position, so they differ
//! from frame to frame. A buffer that still holds bytes of another frame does not pass. This module
//! does no I/O.

use std::ops::Range;

use super::args::{Sources, Verify};
use headers::{ARP, headers, ports, pseudo_sum, vnet};

mod fault;
mod headers;
mod words;

pub use fault::Fault;
pub use headers::{Ends, announcement, is_multicast, mac};
pub use words::Words;

/// Length of Ethernet and IPv4 headers.
const L4_AT: usize = 34;
const TAG_LEN: usize = 22;
const UDP_TAG_AT: usize = L4_AT + 8;
/// Most bytes up to the end of the tag: TCP's.
pub const HEAD_MAX: usize = L4_AT + 20 + TAG_LEN;
/// A `virtio_net_hdr` with `num_buffers`.
pub const VNET_LEN: usize = 12;

const DATA_VALID: u8 = 2;
/// Place of the source address.
const SOURCE: Range<usize> = 6..12;
/// Place of TCP's checksum.
const CSUM_AT: usize = L4_AT + 16;

/// The content of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Flow.
    pub flow: u32,
    /// Number within the flow.
    pub seq: u32,
    /// Send time in ns.
    pub time: u64,
}

/// The common part of all frames of one direction.
#[derive(Clone, Debug)]
pub struct Shape {
    len: u32,
    /// Payload bytes of a segment, for frames that need segmentation.
    gso: Option<u16>,
    tcp: bool,
    /// Headers with zero ports and TCP sequence number.
    headers: [u8; HEAD_MAX],
    tag_at: usize,
    /// Distance of payload words that are written and checked.
    step: usize,
    key: u64,
    vnet: [u8; VNET_LEN],
    sources: Sources,
}

impl Shape {
    /// Frames of `len` bytes, with room for headers and tag; `mss` makes them TCP with a partial
    /// checksum, and with TSO where the payload exceeds it. `key` tells runs and directions
    /// apart.
    pub fn new(ends: Ends, len: u32, mss: Option<u16>, verify: Verify, key: u64) -> Self {
        let tcp = mss.is_some();
        let tag_at = if tcp { HEAD_MAX - TAG_LEN } else { UDP_TAG_AT };
        let payload = len as usize - tag_at;
        let step = match verify {
            Verify::Full => 8,
            Verify::Sampled if len <= 2048 => 256,
            Verify::Sampled => 1024,
        };
        let gso = mss.filter(|mss| payload > usize::from(*mss));
        Self {
            len,
            gso,
            tcp,
            headers: headers(ends, len, tcp),
            tag_at,
            step,
            key: mix(key ^ u64::from(ends.from) << 32 ^ u64::from(ends.to)),
            vnet: vnet(tcp, gso),
            sources: Sources::Own,
        }
    }

    /// The same frames from other addresses.
    pub fn with_sources(self, sources: Sources) -> Self {
        Self { sources, ..self }
    }

    /// The source address of a frame, where it is not the sender's own.
    #[inline]
    fn source(&self, tag: Tag) -> Option<[u8; 6]> {
        let number = match self.sources {
            Sources::Own => return None,
            Sources::Flow => tag.flow,
            // Each queue has its own flows, whose frames have the same numbers.
            Sources::Frame => tag.seq ^ tag.flow << 24,
        };
        let [a, b, c, d] = number.to_be_bytes();
        // A locally administered address that no guest has: guests' addresses have another first
        // byte.
        Some([0x56, self.headers[11], a, b, c, d])
    }

    /// Bytes of each frame.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Bytes up to the end of the tag.
    pub fn head_len(&self) -> usize {
        self.tag_at + TAG_LEN
    }

    /// Place of the flow in the tag.
    #[inline]
    pub fn flow_at(&self) -> usize {
        self.tag_at + 4
    }

    /// The headers, for a buffer's first use.
    pub fn headers(&self) -> &[u8] {
        &self.headers[..self.tag_at]
    }

    /// The virtio-net header of each frame; a shorter one is its beginning.
    pub fn vnet(&self) -> &[u8; VNET_LEN] {
        &self.vnet
    }

    /// Writes the parts that differ from frame to frame, piece by piece: ports, TCP sequence
    /// number, tag. Returns the frame's base for [`word`](Self::word).
    #[inline]
    pub fn stamp(&self, tag: Tag, mut put: impl FnMut(usize, &[u8])) -> u64 {
        let base = self.base(tag);
        if let Some(source) = self.source(tag) {
            put(SOURCE.start, &source);
        }
        put(L4_AT, &ports(tag.flow));
        if self.tcp {
            put(L4_AT + 4, &self.tcp_seq(tag.seq).to_be_bytes());
        }
        put(self.tag_at, &(u64::from(tag.seq) | u64::from(tag.flow) << 32).to_le_bytes());
        put(self.tag_at + 8, &tag.time.to_le_bytes());
        put(self.tag_at + TAG_LEN - 8, &self.end(base, tag.time).to_le_bytes());
        base
    }

    /// Writes a whole frame, as long as it is.
    pub fn write(&self, tag: Tag, frame: &mut [u8]) {
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(place) = frame.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        put(0, self.headers());
        let base = self.stamp(tag, &mut put);
        for (at, len) in self.words() {
            put(at, &self.word(base, at).to_le_bytes()[..len]);
        }
    }

    /// Whether there is payload behind the tag.
    #[inline]
    pub fn has_words(&self) -> bool {
        self.head_len() < self.len as usize
    }

    /// Places of the payload words that are written and checked, with the bytes of the word (fewer
    /// than 8 at the frame's end).
    #[inline]
    pub fn words(&self) -> Words {
        let (at, len) = (self.head_len(), self.len as usize);
        Words { at, last: at + (len - at).saturating_sub(1) / 8 * 8, end: len, step: self.step }
    }

    /// The payload word at `at`, to be written in little-endian order.
    #[inline]
    pub fn word(&self, base: u64, at: usize) -> u64 {
        let word = (base ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word ^ word >> 32
    }

    /// Checks headers and tag of a frame; of `head`, its first [`head_len`](Self::head_len) bytes
    /// matter.
    ///
    /// # Errors
    /// The differences.
    #[inline]
    pub fn open(&self, head: &[u8; HEAD_MAX]) -> Result<(Tag, u64), Fault> {
        let bytes = if self.tcp {
            &head[HEAD_MAX - TAG_LEN..]
        } else {
            &head[UDP_TAG_AT..UDP_TAG_AT + TAG_LEN]
        };
        let ([first, time], end) = (words_at(bytes), last_word(bytes));
        let tag = Tag { seq: first as u32, flow: (first >> 32) as u32, time };
        let base = self.base(tag);
        if end != self.end(base, time) {
            return Err(self.blame(head, None));
        }
        let rest = match self.tcp {
            false => head[L4_AT + 4..UDP_TAG_AT] == self.headers[L4_AT + 4..UDP_TAG_AT],
            true => {
                head[L4_AT + 4..L4_AT + 8] == self.tcp_seq(tag.seq).to_be_bytes()
                    && head[L4_AT + 8..L4_AT + 20] == self.headers[L4_AT + 8..L4_AT + 20]
            }
        };
        let below = match self.source(tag) {
            None => head[..L4_AT] == self.headers[..L4_AT],
            Some(source) => {
                head[SOURCE] == source
                    && head[..SOURCE.start] == self.headers[..SOURCE.start]
                    && head[SOURCE.end..L4_AT] == self.headers[SOURCE.end..L4_AT]
            }
        };
        if !rest || !below || head[L4_AT..L4_AT + 4] != ports(tag.flow) {
            return self.second_look(head, tag).map(|()| (tag, base));
        }
        Ok((tag, base))
    }

    /// Checks headers that differ. One difference is allowed: the sum of the pseudo header may
    /// leave out the length of a frame with TSO. DPDK's vhost writes that form, as network cards
    /// require, and segmentation recomputes the checksum in any case.
    #[cold]
    fn second_look(&self, head: &[u8; HEAD_MAX], tag: Tag) -> Result<(), Fault> {
        let mut expected = self.headers;
        self.stamp(tag, |at, bytes| {
            if let Some(place) = expected.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        });
        let without = pseudo_sum([&expected[26..30], &expected[30..34]], 0);
        if self.gso.is_some() && head[CSUM_AT..CSUM_AT + 2] == without {
            expected[CSUM_AT..CSUM_AT + 2].copy_from_slice(&without);
        }
        match head[..self.tag_at] == expected[..self.tag_at] {
            true => Ok(()),
            false => Err(self.blame(head, Some(&expected))),
        }
    }

    /// The fault at the first header byte that differs; the fault of the tag, if no byte does.
    /// Without a valid tag the ports are unknown, so only the bytes before them are compared.
    #[cold]
    fn blame(&self, head: &[u8; HEAD_MAX], expected: Option<&[u8; HEAD_MAX]>) -> Fault {
        let unknown =
            |at: &usize| expected.is_none() && self.sources != Sources::Own && SOURCE.contains(at);
        let (expected, len) =
            expected.map_or((&self.headers, L4_AT), |expected| (expected, self.tag_at));
        let differs = |at: &usize| head[*at] != expected[*at] && !unknown(at);
        (0..len).find(differs).map_or(Fault::Tag, Fault::Headers)
    }

    /// Whether a frame with this header cannot be one of the sender's numbered frames, even a
    /// damaged one: it is a multicast frame of another sender, or an announcement.
    pub fn is_foreign(&self, head: &[u8; 14]) -> bool {
        is_multicast(head) && (head[6..12] != self.headers[6..12] || head[12..] == ARP)
    }

    /// Checks a received virtio-net header: it must describe the offloads that were sent, or say
    /// that checksums are good where none were requested.
    ///
    /// # Errors
    /// The first difference.
    #[inline]
    pub fn check_vnet(&self, got: &[u8]) -> Result<(), Fault> {
        match got.first_chunk::<10>() == self.vnet.first_chunk() {
            true => Ok(()),
            false => self.check_vnet_fields(got),
        }
    }

    #[cold]
    fn check_vnet_fields(&self, got: &[u8]) -> Result<(), Fault> {
        let mut expected = self.vnet;
        if got.first() == Some(&DATA_VALID) && !self.tcp {
            expected[0] = DATA_VALID;
        }
        // The header length is a hint (virtio 1.2, 5.1.6.2), as are csum fields without the flag
        // that makes them valid.
        let matters = |at: &usize| match at {
            0 | 1 => true,
            4 | 5 => self.gso.is_some(),
            6..=9 => self.tcp,
            _ => false,
        };
        let differs = |at: &usize| got.get(*at) != expected.get(*at);
        (0..10).filter(matters).find(differs).map_or(Ok(()), |at| Err(Fault::Vnet(at)))
    }

    /// TCP sequence number of a flow's frame: frames follow each other seamlessly.
    fn tcp_seq(&self, seq: u32) -> u32 {
        seq.wrapping_mul(self.len - self.tag_at as u32)
    }

    #[inline]
    fn base(&self, tag: Tag) -> u64 {
        mix(self.key ^ (u64::from(tag.flow) << 32 | u64::from(tag.seq)))
    }

    /// The tag's last 8 bytes: the last two of the time, and the check.
    #[inline]
    fn end(&self, base: u64, time: u64) -> u64 {
        time >> 48 | mix(base ^ time ^ u64::from(self.len) << 44) << 16
    }
}

/// The first two words of a tag.
#[inline]
fn words_at(tag: &[u8]) -> [u64; 2] {
    let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    [word(tag.first_chunk()), word(tag.get(8..).and_then(|rest| rest.first_chunk()))]
}

/// The last word of a tag.
#[inline]
fn last_word(tag: &[u8]) -> u64 {
    tag.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Spreads every input bit over all output bits.
#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 32
}

#[cfg(test)]
mod tests;
