//! A burst: up to [`BURST`] frames on their way, each with its first [`HEAD_LEN`](frame::HEAD_LEN)
//! bytes in private memory.
//!
//! A published head is copied here once; all later steps read only the copy. A peer that rewrites
//! its ring or its headers meanwhile changes nothing but its own payload, which stays where the
//! peer put it until the one copy that delivers it.

mod burst_frame;
mod delivery_order;
mod frames;
mod granted;
mod mapped;

use std::ops::Range;

use frame::{HEAD_LEN, Head, Headers, Owner};
use ring::gather::{Body, Chain, Gather};
use switch::{DropReason as SwitchReason, PortId, Target};

use crate::action::Action;
use crate::cost::{PIECE, cost};
use crate::packet::Packet;
use crate::sharing::Sharing;

use delivery_order::DeliveryOrder;
use granted::GrantedHeads;

pub use burst_frame::Frame;
pub(crate) use delivery_order::{MAX_PARTS, Part};
pub use frames::Frames;

/// The most frames that are fetched from a queue at a time.
pub const BURST: usize = 64;

/// How many frames ahead of its copy a frame's payload is prefetched.
pub const AHEAD: usize = 2;

/// Longest frame that is carried: a 64 KiB IP packet behind an Ethernet header and two VLAN tags.
pub const MAX_FRAME: u32 = 65_535 + 14 + 8;

/// Longest frame whose payload is prefetched.
const PREFETCHED: u32 = 2048;

/// Scatter-list entries of a burst. A frame may have up to 1024, so a burst of fragmented frames
/// ends early.
const SPANS: usize = 2048;

/// Properties that some frame of the burst may have. If one is false, no frame has to be checked
/// for it.
#[derive(Clone, Copy, Debug, Default)]
struct Facts {
    /// The sender left something to be done, or said that the checksum is good.
    offloads: bool,
    /// A frame is longer than its head.
    bodies: bool,
}

/// Frames fetched together from one queue, or handed together from one worker to another.
pub struct Burst {
    /// The places of the peer's bytes; pins the memory that holds them.
    pub gather: Gather,
    /// Always [`BURST`] of them, in the order in which they were fetched; only the first `count`
    /// are valid.
    frames: Box<[Frame; BURST]>,
    count: usize,
    order: DeliveryOrder,
    /// The number of frames at the front that have the same action.
    alike: usize,
    facts: Facts,
    heads: Box<[Head; BURST]>,
    chains: Vec<Chain>,
    limit: usize,
    /// The port that the frames came in on, if it is not the port of their queue.
    ingress: Option<PortId>,
    /// Heads of granted frames that are being fetched.
    granted: GrantedHeads,
}

impl Default for Burst {
    fn default() -> Self {
        Self::new()
    }
}

impl Burst {
    /// An empty burst with all its room allocated.
    pub fn new() -> Self {
        Burst {
            gather: Gather::new(SPANS),
            frames: Box::new(std::array::from_fn(|_| Frame::default())),
            count: 0,
            order: DeliveryOrder::default(),
            alike: 0,
            facts: Facts::default(),
            heads: Box::new([Head::new(); BURST]),
            chains: Vec::with_capacity(BURST),
            limit: BURST,
            ingress: None,
            granted: GrantedHeads::default(),
        }
    }

    /// Forgets all frames, and unpins their memory.
    pub fn reset(&mut self) {
        (self.count, self.alike, self.facts) = (0, 0, Facts::default());
        self.order.restore();
        self.chains.clear();
        self.gather.clear();
        self.limit = BURST;
        self.ingress = None;
    }

    /// Sets the port that all frames of the burst came in on, where it is not the port of their
    /// queue: the far end of the tunnel that they came through.
    pub fn set_ingress(&mut self, port: PortId) {
        self.ingress = Some(port);
    }

    /// The port that the frames came in on, if it is not the port of their queue.
    #[inline]
    pub(crate) fn ingress(&self) -> Option<PortId> {
        self.ingress
    }

    /// Limits the next fetch to `limit` frames. Must not be called before the last burst is
    /// [forgotten](Self::reset).
    #[inline]
    pub fn set_limit(&mut self, limit: usize) {
        debug_assert!(self.is_empty() && self.gather.is_empty());
        self.limit = limit.min(BURST);
    }

    /// How many more frames fit.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.count)
    }

    /// The frames, in the order in which they are delivered: the oldest first, unless they were
    /// [reordered](Self::reorder).
    #[inline]
    pub fn frames(&self) -> Frames<'_> {
        Frames::new(&*self.frames, &self.order.places()[..self.count])
    }

    /// The frames, oldest first, to decide their action.
    pub fn frames_mut(&mut self) -> &mut [Frame] {
        self.alike = 0;
        &mut self.frames[..self.count]
    }

    /// Frame `i`, if there is one, to change its action.
    pub(crate) fn frame_mut(&mut self, i: usize) -> Option<&mut Frame> {
        self.alike = 0;
        let at = *self.order.places()[..self.count].get(i)?;
        self.frames.get_mut(usize::from(at))
    }

    /// Notes that the first `n` frames have the same action, until one is changed.
    #[inline]
    pub(crate) fn note_alike(&mut self, n: usize) {
        self.alike = n;
    }

    /// The index of frame `i` in the order of fetching.
    #[inline(always)]
    fn at(&self, i: usize) -> usize {
        usize::from(self.order.places()[i]) % BURST
    }

    /// Frame `i`.
    #[inline(always)]
    pub(crate) fn frame(&self, i: usize) -> &Frame {
        &self.frames[self.at(i)]
    }

    /// Whether there is a frame `i`, and it goes to `target`.
    #[inline]
    pub fn goes_to(&self, i: usize, target: Target) -> bool {
        self.frames().get(i).is_some_and(|frame| frame.action.is_output(target))
    }

    /// The end of the run of frames for `target` that begins at frame `i`.
    #[inline]
    pub fn run(&self, i: usize, target: Target) -> usize {
        let same = |frame: &&Frame| frame.action.is_output(target);
        let known = if i == 0 { self.alike.clamp(1, self.count.max(1)) } else { i + 1 };
        known + self.frames().range(known..self.count).iter().take_while(same).count()
    }

    /// Bytes of all frames.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.frames[..self.count].iter().map(|frame| u64::from(frame.len)).sum()
    }

    /// Cost of the first `n` frames: bytes, and pieces of memory.
    #[inline]
    pub(crate) fn cost(&self, n: usize, bytes: u64) -> u64 {
        let last = n.checked_sub(1).and_then(|last| self.frames[..self.count].get(last));
        // The frames of a burst lie in its gather one behind the other.
        let pieces = last.map_or(0, |frame| frame.chain.end() as usize);
        cost(n, bytes) + PIECE * pieces.saturating_sub(n) as u64
    }

    /// Whether some frame may need an offload that its sender left to do: checksums, segments.
    #[inline]
    pub(crate) fn has_offloads(&self) -> bool {
        self.facts.offloads
    }

    /// Whether some frame may be longer than its head.
    #[inline]
    pub fn has_bodies(&self) -> bool {
        self.facts.bodies
    }

    /// Keeps the first `n` frames.
    #[inline]
    pub fn truncate(&mut self, n: usize) {
        debug_assert!(!self.order.is_changed(), "which frames of the ring these are is not known");
        self.count = self.count.min(n);
    }

    /// Whether the burst holds no frame.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Drops the frames that `check` refuses by their head and headers.
    pub(crate) fn refuse(
        &mut self,
        mut check: impl FnMut(&[u8], &Headers) -> Result<(), SwitchReason>,
    ) {
        self.alike = 0;
        for (frame, head) in self.frames[..self.count].iter_mut().zip(self.heads.iter()) {
            if matches!(frame.action, Action::Unclassified)
                && let Err(reason) = check(head.as_slice(), &frame.headers)
            {
                frame.classify(Action::Drop(reason.into()));
            }
        }
    }

    /// The frames at these places in the order of fetching, and their heads.
    #[inline(always)]
    pub(crate) fn fetched(&self, range: Range<usize>) -> (&[Frame], &[Head]) {
        (&self.frames[range.clone()], &self.heads[range])
    }

    /// The head of frame `i`.
    #[inline]
    pub fn head(&self, i: usize) -> &Head {
        &self.heads[self.at(i)]
    }

    /// The flow hashes of those of the frames that are TCP or UDP.
    pub(crate) fn flows(&self, frames: Range<usize>) -> impl Iterator<Item = u32> {
        let hash = |i: usize| {
            let headers = &self.frame(i).headers;
            headers.has_ports().then(|| frame::flow_hash(headers, self.head(i).as_slice()))
        };
        frames.filter_map(hash)
    }

    /// The part of frame `i` that is still in its sender's memory: all behind the head.
    #[inline]
    pub fn body(&self, i: usize) -> Body<'_> {
        self.body_of(self.frame(i))
    }

    #[inline]
    fn body_of(&self, frame: &Frame) -> Body<'_> {
        let whole = self.gather.body(frame.chain);
        whole.slice(frame.skip, whole.len().saturating_sub(frame.skip))
    }

    /// The bytes of frame `i` that may be read. A frame that was refused when it was fetched may
    /// have no head; then nothing of it is readable.
    pub(crate) fn readable(&self, i: usize) -> (&[u8], Body<'_>) {
        let (frame, head) = (self.frame(i), self.head(i).as_slice());
        if frame.len > MAX_FRAME {
            // The head still belongs to another frame.
            return (&[], Body::empty());
        }
        let is_whole = frame.skip == 0 || frame.len as usize <= head.len();
        (head, if is_whole { Body::empty() } else { self.body_of(frame) })
    }

    /// Prefetches the payload of frame `i`, if it has one, and then returns the frame's length.
    /// Long frames are left to the hardware prefetcher.
    #[inline(always)]
    pub fn prefetch(&self, i: usize) -> Option<usize> {
        let frame = self.frames().get(i)?;
        if frame.len <= HEAD_LEN as u32 || frame.len > PREFETCHED {
            return None;
        }
        self.body_of(frame).prefetch();
        Some(frame.len as usize)
    }

    /// The bytes of frame `i`, if all of them are in its head and no offload is left to do. A
    /// receiver then needs nothing but the head.
    #[inline(always)]
    pub fn plain(&self, i: usize) -> Option<&[u8]> {
        let at = self.at(i);
        let (frame, head) = (&self.frames[at], self.heads[at].as_slice());
        (frame.len as usize <= head.len() && frame.offload.is_plain()).then_some(head)
    }

    /// Frame `i` as a receiver sees it, when nothing has to be changed.
    #[inline(always)]
    pub fn packet(&self, i: usize) -> Packet<'_> {
        let at = self.at(i);
        let (frame, head) = (&self.frames[at], self.heads[at].as_slice());
        let is_long = frame.len as usize > head.len();
        let body = if is_long { self.body_of(frame) } else { Body::empty() };
        Packet {
            offload: &frame.offload,
            headers_len: frame.headers.end.into(),
            head,
            body,
            may_pass: frame.sharing == Sharing::Sole,
        }
    }

    /// Turns frame `i`, which asks for an address, into the answer of its owner. False: no answer
    /// can be made.
    pub(crate) fn answer(&mut self, i: usize, owner: Owner) -> bool {
        let at = self.at(i);
        let (frame, head) = (&mut self.frames[at], &mut self.heads[at]);
        let is_written = frame::answer(head, &frame.headers, owner);
        is_written && frame.turn_round(head)
    }

    /// Turns frame `i` into the report to its sender that it is longer than `mtu` bytes. False:
    /// nobody may be told.
    pub(crate) fn report_too_big(&mut self, i: usize, mtu: u16) -> bool {
        let at = self.at(i);
        let (frame, head) = (&mut self.frames[at], &mut self.heads[at]);
        let is_written = frame::report_too_big(head, &frame.headers, mtu);
        is_written && frame.turn_round(head)
    }

    /// Copies frame `i` of `other` into this burst: head and scatter list, not the payload. False
    /// when there is no room.
    pub fn adopt(&mut self, other: &Burst, i: usize, action: Action) -> bool {
        if self.room() == 0 {
            return false;
        }
        let Some(chain) = self.gather.append_from(&other.gather, other.frame(i).chain) else {
            return false;
        };
        self.heads[self.count].copy_from(other.head(i));
        self.frames[self.count] = Frame { chain, action, ..other.frame(i).clone() };
        self.facts.offloads |= other.facts.offloads;
        self.facts.bodies |= other.facts.bodies;
        self.count += 1;
        true
    }
}

#[cfg(test)]
mod tests;
