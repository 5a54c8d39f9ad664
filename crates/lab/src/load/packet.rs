//! The generator's frames: what is in them, and whether what came back is what was sent.
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
//! Payload words follow from the key, flow and number (and where they stand), so they differ from
//! frame to frame: a buffer that still holds an older frame's bytes, or another's, does not pass.
//! All of it is pure: bytes in, meaning out.

use std::ops::Range;

use frame::checksum::Sum;

use super::args::{Sources, Verify};

/// Length of Ethernet and IPv4 headers.
const L4_AT: usize = 34;
const TAG_LEN: usize = 22;
const UDP_TAG_AT: usize = L4_AT + 8;
/// Most bytes up to the end of the tag: TCP's.
pub const HEAD_MAX: usize = L4_AT + 20 + TAG_LEN;
/// A `virtio_net_hdr` with `num_buffers`.
pub const VNET_LEN: usize = 12;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_TCPV4: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ARP: [u8; 2] = [0x08, 0x06];
/// Where the source address stands.
const SOURCE: Range<usize> = 6..12;
/// Where TCP's checksum stands.
const CSUM_AT: usize = L4_AT + 16;

/// What is wrong with a frame that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is not as long as what was sent.
    #[error("{got} bytes instead of {sent}")]
    Length {
        /// Bytes that came, without the virtio-net header.
        got: u32,
        /// Bytes that every frame has.
        sent: u32,
    },
    /// Its virtio-net header does not describe it.
    #[error("virtio-net header differs at byte {0}")]
    Vnet(usize),
    /// Buffers that its header announces did not come with it.
    #[error("{got} buffers instead of {announced}")]
    Torn {
        /// Buffers that came at once.
        got: usize,
        /// What `num_buffers` says.
        announced: usize,
    },
    /// Headers are not those of its flow.
    #[error("headers differ at byte {0}")]
    Headers(usize),
    /// Number, flow, time or check were changed, or the frame is of another run.
    #[error("the tag does not check")]
    Tag,
    /// The payload is not this frame's.
    #[error("payload differs at byte {0}")]
    Payload(usize),
}

/// What a tag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Flow.
    pub flow: u32,
    /// Number within the flow.
    pub seq: u32,
    /// Send time in ns.
    pub time: u64,
}

/// What all frames of one direction have in common.
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

/// Who sends to whom, as far as frames are concerned.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The sender's number.
    pub from: u16,
    /// The receiver's number.
    pub to: u16,
}

/// The MAC address of guest `number`.
pub fn mac(number: u16) -> [u8; 6] {
    let [high, low] = number.to_be_bytes();
    [0x52, 0x54, 0x00, 0x4c, high, low]
}

fn ip(number: u16) -> [u8; 4] {
    let [high, low] = number.wrapping_add(1).to_be_bytes();
    [10, 76, high, low]
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
            // Queues have flows of their own, whose numbers run alike.
            Sources::Frame => tag.seq ^ tag.flow << 24,
        };
        let [a, b, c, d] = number.to_be_bytes();
        // Locally administered, and nobody's else: guests' own begin otherwise.
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

    /// The headers, for a buffer's first use.
    pub fn headers(&self) -> &[u8] {
        &self.headers[..self.tag_at]
    }

    /// The virtio-net header of each frame; a shorter one is its beginning.
    pub fn vnet(&self) -> &[u8; VNET_LEN] {
        &self.vnet
    }

    /// Writes what differs from frame to frame, piece by piece: ports, TCP sequence number, tag.
    /// Returns the frame's base for [`word`](Self::word).
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

    /// Whether there is payload behind the tag.
    #[inline]
    pub fn has_words(&self) -> bool {
        self.head_len() < self.len as usize
    }

    /// Where payload words stand that are written and checked, with the bytes of the word (fewer
    /// than 8 at the frame's end).
    #[inline]
    pub fn words(&self) -> Words {
        let (at, len) = (self.head_len(), self.len as usize);
        Words { at, last: at + (len - at).saturating_sub(1) / 8 * 8, end: len, step: self.step }
    }

    /// The payload word that stands at `at`, to be written in little-endian order.
    #[inline]
    pub fn word(&self, base: u64, at: usize) -> u64 {
        let word = (base ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word ^ word >> 32
    }

    /// Checks headers and tag of a frame; of `head`, its first [`head_len`](Self::head_len) bytes
    /// matter.
    ///
    /// # Errors
    /// What differs.
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

    /// Headers that differ may do so only in that the sum of TSO's pseudo header leaves the length
    /// out: DPDK's vhost writes it like that, as network cards want it, and whoever segments
    /// computes it anew anyway.
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

    /// The first header byte that differs from what it should be; without any, the tag. Where no
    /// tag says what ports should be, only what stands before them is looked at.
    #[cold]
    fn blame(&self, head: &[u8; HEAD_MAX], expected: Option<&[u8; HEAD_MAX]>) -> Fault {
        let unknown =
            |at: &usize| expected.is_none() && self.sources != Sources::Own && SOURCE.contains(at);
        let (expected, len) =
            expected.map_or((&self.headers, L4_AT), |expected| (expected, self.tag_at));
        let differs = |at: &usize| head[*at] != expected[*at] && !unknown(at);
        (0..len).find(differs).map_or(Fault::Tag, Fault::Headers)
    }

    /// Whether a frame that begins like this is none of the sender's numbered ones, whatever
    /// happened to it on the way: it is addressed to many, and somebody else's or an
    /// announcement.
    pub fn is_foreign(&self, head: &[u8; 14]) -> bool {
        is_multicast(head) && (head[6..12] != self.headers[6..12] || head[12..] == ARP)
    }

    /// Checks a received virtio-net header: it must say what was sent, or say that checksums are
    /// good where nothing was asked.
    ///
    /// # Errors
    /// Where it differs.
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
        // The header length is a hint (virtio 1.2, 5.1.6.2), as are csum fields that nothing asks
        // to look at.
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

/// Places and lengths of payload words, in ascending order.
#[derive(Clone, Debug)]
pub struct Words {
    at: usize,
    /// Where the last one stands, unless the end has been reached.
    last: usize,
    end: usize,
    step: usize,
}

impl Iterator for Words {
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<(usize, usize)> {
        let at = self.at;
        if at < self.last {
            self.at = (at + self.step).min(self.last);
            return Some((at, 8));
        }
        self.at = self.end;
        (at < self.end).then_some((at, self.end - at))
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

fn vnet(tcp: bool, gso: Option<u16>) -> [u8; VNET_LEN] {
    let mut vnet = [0; VNET_LEN];
    if tcp {
        vnet[0] = NEEDS_CSUM;
        vnet[6..8].copy_from_slice(&(L4_AT as u16).to_le_bytes());
        vnet[8..10].copy_from_slice(&16u16.to_le_bytes());
    }
    if let Some(size) = gso {
        vnet[1] = GSO_TCPV4;
        vnet[2..4].copy_from_slice(&(L4_AT as u16 + 20).to_le_bytes());
        vnet[4..6].copy_from_slice(&size.to_le_bytes());
    }
    vnet
}

/// Source and destination port of a flow.
#[inline]
fn ports(flow: u32) -> [u8; 4] {
    let [a, b] = (1024 + (flow & 0x3fff) as u16).to_be_bytes();
    let [c, d] = (5001 + (flow >> 14) as u16).to_be_bytes();
    [a, b, c, d]
}

fn headers(ends: Ends, len: u32, tcp: bool) -> [u8; HEAD_MAX] {
    let mut bytes = [0; HEAD_MAX];
    bytes[..6].copy_from_slice(&mac(ends.to));
    bytes[6..12].copy_from_slice(&mac(ends.from));
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    let ip_len = len - 14;
    let (proto, (src, dst)) = (if tcp { TCP } else { UDP }, (ip(ends.from), ip(ends.to)));
    bytes[14..24].copy_from_slice(&[
        0x45,
        0,
        (ip_len >> 8) as u8,
        ip_len as u8,
        0,
        0,
        0x40,
        0,
        64,
        proto,
    ]);
    bytes[26..30].copy_from_slice(&src);
    bytes[30..34].copy_from_slice(&dst);
    let checksum = Sum::of(&bytes[14..34]).checksum();
    bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    let l4_len = ip_len - 20;
    if tcp {
        // Data offset 5, ACK; the partial checksum's field holds the pseudo header's sum.
        bytes[46..50].copy_from_slice(&[0x50, 0x10, 0xff, 0xff]);
        bytes[CSUM_AT..CSUM_AT + 2].copy_from_slice(&pseudo_sum([&src, &dst], l4_len));
    } else {
        bytes[38..40].copy_from_slice(&(l4_len as u16).to_be_bytes());
    }
    bytes
}

/// What a partial TCP checksum's field holds.
fn pseudo_sum([src, dst]: [&[u8]; 2], len: u32) -> [u8; 2] {
    let mut sum = Sum::of(src);
    sum.add(dst);
    sum.add(&[0, TCP]);
    sum.add(&len.to_be_bytes());
    sum.fold().to_be_bytes()
}

/// A gratuitous ARP of guest `number`: switches learn where it is.
pub fn announcement(number: u16) -> [u8; 60] {
    let mut bytes = [0; 60];
    bytes[..6].fill(0xff);
    bytes[6..12].copy_from_slice(&mac(number));
    bytes[12..22].copy_from_slice(&[ARP[0], ARP[1], 0, 1, 0x08, 0x00, 6, 4, 0, 1]);
    bytes[22..28].copy_from_slice(&mac(number));
    bytes[28..32].copy_from_slice(&ip(number));
    bytes[38..42].copy_from_slice(&ip(number));
    bytes
}

/// Whether these are the first bytes of somebody's multicast: not ours, and not checked.
pub fn is_multicast(head: &[u8]) -> bool {
    head.first().is_some_and(|byte| byte & 1 != 0)
}

/// Spreads every input bit over all output bits.
#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(len: u32, mss: Option<u16>, verify: Verify) -> Shape {
        Shape::new(Ends { from: 0, to: 1 }, len, mss, verify, 99)
    }

    /// The frame as the generator writes it, and its base.
    fn build(shape: &Shape, tag: Tag) -> (Vec<u8>, u64) {
        let mut bytes = vec![0; shape.len() as usize];
        bytes[..shape.headers().len()].copy_from_slice(shape.headers());
        let base = shape.stamp(tag, |at, piece| bytes[at..at + piece.len()].copy_from_slice(piece));
        for (at, len) in shape.words() {
            bytes[at..at + len].copy_from_slice(&shape.word(base, at).to_le_bytes()[..len]);
        }
        (bytes, base)
    }

    fn check(shape: &Shape, bytes: &[u8]) -> Result<Tag, Fault> {
        let mut head = [0; HEAD_MAX];
        head[..shape.head_len()].copy_from_slice(&bytes[..shape.head_len()]);
        let (tag, base) = shape.open(&head)?;
        for (at, len) in shape.words() {
            if bytes[at..at + len] != shape.word(base, at).to_le_bytes()[..len] {
                return Err(Fault::Payload(at));
            }
        }
        Ok(tag)
    }

    const TAG: Tag = Tag { flow: 7, seq: 1234, time: 0x1_2345_6789 };

    #[test]
    fn a_frame_opens_to_what_was_stamped() {
        for (len, mss) in [
            (64, None),
            (65, None),
            (1514, None),
            (76, Some(1448)),
            (65536, Some(1448)),
            (65549, Some(536)),
        ] {
            for verify in [Verify::Sampled, Verify::Full] {
                let shape = shape(len, mss, verify);
                let (bytes, _) = build(&shape, TAG);
                assert_eq!(check(&shape, &bytes), Ok(TAG), "{len} {verify:?}");
            }
        }
    }

    #[test]
    fn every_byte_of_a_fully_verified_frame_matters() {
        for (len, mss) in [(64, None), (71, None), (200, None), (90, Some(1448))] {
            let shape = shape(len, mss, Verify::Full);
            let (bytes, _) = build(&shape, TAG);
            for at in 0..len as usize {
                let mut changed = bytes.clone();
                changed[at] ^= 0x10;
                assert!(check(&shape, &changed).is_err(), "byte {at} of {len}");
            }
        }
    }

    #[test]
    fn sources_follow_flows_or_frames_and_are_checked() {
        let next = Tag { seq: TAG.seq + 1, ..TAG };
        let other = Tag { flow: TAG.flow + 1, ..TAG };
        for (sources, frames, flows) in [
            (Sources::Own, false, false),
            (Sources::Flow, false, true),
            (Sources::Frame, true, true),
        ] {
            let shape = shape(64, None, Verify::Full).with_sources(sources);
            let source = |tag| build(&shape, tag).0[SOURCE].to_vec();
            assert_eq!(
                (source(TAG) != source(next), source(TAG) != source(other)),
                (frames, flows),
                "{sources:?}"
            );
            let (mut bytes, _) = build(&shape, TAG);
            assert_eq!(check(&shape, &bytes), Ok(TAG));
            assert!(!is_multicast(&source(TAG)));
            bytes[9] ^= 1;
            assert_eq!(check(&shape, &bytes), Err(Fault::Headers(9)));
        }
    }

    #[test]
    fn other_lengths_runs_and_directions_do_not_pass() {
        let sent = shape(128, None, Verify::Sampled);
        let (bytes, _) = build(&sent, TAG);
        let other_run = Shape::new(Ends { from: 0, to: 1 }, 128, None, Verify::Sampled, 98);
        assert_eq!(check(&other_run, &bytes), Err(Fault::Tag));
        let back = Shape::new(Ends { from: 1, to: 0 }, 128, None, Verify::Sampled, 99);
        assert!(check(&back, &bytes).is_err());
        let shorter = shape(127, None, Verify::Sampled);
        assert!(check(&shorter, &bytes[..127]).is_err());
    }

    #[test]
    fn stale_payload_does_not_pass() {
        let shape = shape(4096, Some(1448), Verify::Sampled);
        let (old, _) = build(&shape, Tag { seq: 1233, ..TAG });
        let (new, _) = build(&shape, TAG);
        for cut in [100, 1000, 3000, 4095] {
            let torn: Vec<u8> = [&new[..cut], &old[cut..]].concat();
            assert!(matches!(check(&shape, &torn), Err(Fault::Payload(_))), "{cut}");
        }
    }

    #[test]
    fn the_frame_crate_reads_the_headers_alike() {
        let shape = shape(65536, Some(1448), Verify::Sampled);
        let (bytes, _) = build(&shape, TAG);
        let headers = frame::view::parse(&bytes[..128]).unwrap();
        let offload = frame::vnet::decode(shape.vnet(), &headers, shape.len()).unwrap();
        assert_eq!(offload.gso.map(|gso| gso.size), Some(1448));
        assert_eq!(offload.csum.map(|csum| (csum.start, csum.offset)), Some((34, 16)));
        assert_eq!(Sum::of(&bytes[14..34]).checksum(), 0, "the IPv4 header checks");
    }

    #[test]
    fn a_pseudo_header_may_lack_its_length_where_it_is_segmented() {
        for (len, passes) in [(65536, true), (1000, false)] {
            let shape = shape(len, Some(1448), Verify::Sampled);
            let (mut bytes, _) = build(&shape, TAG);
            let sum = pseudo_sum([&ip(0), &ip(1)], 0);
            assert_ne!(bytes[50..52], sum);
            bytes[50..52].copy_from_slice(&sum);
            assert_eq!(check(&shape, &bytes).is_ok(), passes, "{len}");
            bytes[51] ^= 1;
            assert_eq!(check(&shape, &bytes), Err(Fault::Headers(if passes { 51 } else { 50 })));
        }
    }

    #[test]
    fn vnet_headers_must_say_what_was_sent() {
        let plain = shape(64, None, Verify::Sampled);
        assert_eq!(plain.check_vnet(&[0; 12]), Ok(()));
        assert_eq!(plain.check_vnet(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]), Ok(()));
        assert_eq!(plain.check_vnet(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), Err(Fault::Vnet(1)));
        let tso = shape(65536, Some(1448), Verify::Sampled);
        let mut vnet = *tso.vnet();
        vnet[2] = 200;
        assert_eq!(tso.check_vnet(&vnet), Ok(()), "the header length is a hint");
        vnet[4] ^= 1;
        assert_eq!(tso.check_vnet(&vnet), Err(Fault::Vnet(4)));
        assert_eq!(tso.check_vnet(&[0; 12]), Err(Fault::Vnet(0)));
    }
}
