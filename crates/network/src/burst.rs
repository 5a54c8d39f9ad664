//! A burst: up to [`BURST`] frames on their way, each with its first [`HEAD_LEN`](frame::HEAD_LEN)
//! bytes in private memory.
//!
//! A published head is copied here once; all later steps read only the copy. A peer that rewrites
//! its ring or its headers meanwhile changes nothing but its own payload, which stays where the
//! peer put it until the one copy that delivers it.

mod granted;
mod reordering;

use std::ops::Range;

use frame::{BadOffload, HEAD_LEN, Head, Headers, Offload, Owner, VNET_LEGACY_LEN, VNET_LEN, vnet};
use ring::gather::{Body, Chain, Gather};
use ring::heads::Heads;
use switch::{DropReason as SwitchReason, PortId, Target};

use crate::action::Action;
use crate::cost::{PIECE, cost};
use crate::count::DropReason;
use crate::packet::Packet;
use crate::sharing::Sharing;
use crate::stage_profiler::Stopwatch;

pub(crate) use reordering::Reordering;

/// Frames that are fetched from a queue at a time at most.
pub const BURST: usize = 64;

/// How many frames before its copy a frame's payload is asked for.
pub const AHEAD: usize = 2;

/// Longest frame that is carried: a 64 KiB IP packet behind an Ethernet header and two VLAN tags.
pub const MAX_FRAME: u32 = 65_535 + 14 + 8;

/// Longest frame whose payload is asked for ahead of its copy.
const PREFETCHED: u32 = 2048;

/// Scatter-list entries of a burst. A frame may have up to 1024, so a burst of fragmented frames
/// ends early.
const SPANS: usize = 2048;

/// One frame of a burst.
#[derive(Clone, Default)]
pub struct Frame {
    /// Bytes of the frame, offload header not counted.
    pub len: u32,
    /// Parsed private headers.
    pub headers: Headers,
    /// Checksums and segmentation that the sender left to do.
    pub offload: Offload,
    /// The decision for the frame.
    pub action: Action,
    /// Who gets it.
    pub sharing: Sharing,
    chain: Chain,
    skip: u32,
}

impl Frame {
    /// Gives the frame, which is unclassified, its action.
    #[inline(always)]
    pub(crate) fn classify(&mut self, action: Action) {
        debug_assert!(matches!(self.action, Action::Unclassified));
        // What is replaced holds nothing that had to be dropped, which the compiler does not see.
        std::mem::forget(std::mem::replace(&mut self.action, action));
    }

    /// Cost of the frame to its worker.
    pub(crate) fn cost(&self) -> u64 {
        cost(1, self.len.into()) + PIECE * u64::from(self.chain.pieces().saturating_sub(1))
    }

    /// Replaces the frame in this place. `chain` has `len` bytes after the transport's header.
    /// `read` writes the fields of the head in place, one by one.
    #[inline(always)]
    fn start(
        &mut self,
        chain: Chain,
        len: u32,
        read: impl FnOnce(&mut Frame) -> Result<(), DropReason>,
    ) {
        (self.chain, self.len, self.skip, self.sharing) = (chain, len, 0, Sharing::Sole);
        self.action = match read(self) {
            Ok(()) => Action::Unclassified,
            Err(reason) => Action::Drop(reason),
        };
    }
}

/// Frames fetched together from one queue, or handed together from one worker to another.
pub struct Burst {
    /// Where the peer's bytes are; pins the memory they are in.
    pub gather: Gather,
    /// Always [`BURST`] of them; the first `count` mean something.
    frames: Box<[Frame; BURST]>,
    count: usize,
    heads: Box<[Head; BURST]>,
    chains: Vec<Chain>,
    limit: usize,
    /// The port that the frames came in on, where that is not their queue's own.
    ingress: Option<PortId>,
    /// Heads of granted frames on their way here.
    granted: Heads,
    /// Which of them are too short.
    short: Vec<usize>,
    /// Time that this takes, while a profile is taken.
    pub(crate) heads_watch: Stopwatch,
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
            heads: Box::new([Head::new(); BURST]),
            chains: Vec::with_capacity(BURST),
            limit: BURST,
            ingress: None,
            granted: Heads::new(),
            short: Vec::with_capacity(BURST),
            heads_watch: Stopwatch::default(),
        }
    }

    /// Forgets all frames, and lets go of the memory they were in.
    pub fn reset(&mut self) {
        self.count = 0;
        self.chains.clear();
        self.gather.clear();
        self.limit = BURST;
        self.ingress = None;
    }

    /// The frames came in on another port than that of their queue: on the far end of the tunnel
    /// that they came through. All frames of a burst come in on the same.
    pub fn set_ingress(&mut self, port: PortId) {
        self.ingress = Some(port);
    }

    /// The port that the frames came in on, where that is not their queue's own.
    #[inline]
    pub(crate) fn ingress(&self) -> Option<PortId> {
        self.ingress
    }

    /// The next fetch may take so many frames. Not to be called before what was fetched last is
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

    /// The frames, oldest first.
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.count]
    }

    /// The frames, to decide their action.
    pub fn frames_mut(&mut self) -> &mut [Frame] {
        &mut self.frames[..self.count]
    }

    /// Frame `i` goes to `target`: the first frame behind it that does not.
    #[inline]
    pub fn run(&self, i: usize, target: Target) -> usize {
        let same =
            |frame: &&Frame| matches!(&frame.action, Action::Output(other) if *other == target);
        i + 1 + self.frames()[i + 1..].iter().take_while(same).count()
    }

    /// Bytes of all frames.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.frames().iter().map(|frame| u64::from(frame.len)).sum()
    }

    /// Cost of the first `n` frames: bytes, and pieces of memory.
    #[inline]
    pub(crate) fn cost(&self, n: usize, bytes: u64) -> u64 {
        let last = n.checked_sub(1).and_then(|last| self.frames().get(last));
        // The frames of a burst lie in its gather one behind the other.
        let pieces = last.map_or(0, |frame| frame.chain.end() as usize);
        cost(n, bytes) + PIECE * pieces.saturating_sub(n) as u64
    }

    /// Keeps the first `n` frames.
    #[inline]
    pub fn truncate(&mut self, n: usize) {
        self.count = self.count.min(n);
    }

    /// Whether the burst holds no frame.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Lets `take` fill the scatter lists with up to [`room`](Self::room) chains, then copies and
    /// parses the head of each. Every chain starts with a virtio-net header of `vnet_len` bytes
    /// (10 or 12).
    pub fn fill<E>(
        &mut self,
        vnet_len: usize,
        take: impl FnOnce(&mut Gather, &mut Vec<Chain>, usize) -> Result<usize, E>,
    ) -> Result<(), E> {
        let room = self.room();
        self.chains.clear();
        take(&mut self.gather, &mut self.chains, room)?;
        for i in 0..self.chains.len().min(room) {
            self.examine(self.chains[i], vnet_len);
        }
        Ok(())
    }

    /// Copies the offload header and the head of the frame that `chain` holds, and checks both.
    #[inline]
    fn examine(&mut self, chain: Chain, vnet_len: usize) {
        let len = chain.len().saturating_sub(vnet_len as u32);
        let gather = &self.gather;
        let (frame, head) = (&mut self.frames[self.count], &mut self.heads[self.count]);
        frame.start(chain, len, |frame| {
            if len > MAX_FRAME {
                return Err(DropReason::Oversized);
            }
            let mut vnet = [0; VNET_LEN];
            let alone = vnet_len == VNET_LEN
                && head.try_fill(|room| gather.read_alone(chain, &mut vnet, room));
            if !alone {
                let whole = gather.body(chain);
                whole.read_mapped(&mut vnet[..vnet_len]);
                let bytes = whole.slice(vnet_len as u32, len);
                head.fill(|room| bytes.read_mapped(room));
            }
            if !frame::parse_into(head.as_slice(), &mut frame.headers) {
                return Err(DropReason::Runt);
            }
            frame.skip = (vnet_len + head.len()) as u32;
            frame.offload = offload(&vnet, vnet_len, &frame.headers, len)
                .map_err(|_| DropReason::BadOffload)?;
            Ok(())
        });
        self.count += 1;
    }

    /// Drops the frames that `check` refuses by their head and headers.
    pub(crate) fn refuse(
        &mut self,
        mut check: impl FnMut(&[u8], &Headers) -> Result<(), SwitchReason>,
    ) {
        for (frame, head) in self.frames[..self.count].iter_mut().zip(self.heads.iter()) {
            if matches!(frame.action, Action::Unclassified)
                && let Err(reason) = check(head.as_slice(), &frame.headers)
            {
                frame.classify(Action::Drop(reason.into()));
            }
        }
    }

    /// The head of frame `i`.
    #[inline]
    pub fn head(&self, i: usize) -> &Head {
        &self.heads[i]
    }

    /// The hashes of the flows of some frames: of those that are of TCP or UDP.
    pub(crate) fn flows(&self, frames: Range<usize>) -> impl Iterator<Item = u32> {
        let hash = |i: usize| {
            let headers = &self.frames[i].headers;
            headers.has_ports().then(|| frame::flow_hash(headers, self.head(i).as_slice()))
        };
        frames.filter_map(hash)
    }

    /// The part of frame `i` that is still in its sender's memory: all behind the head.
    #[inline]
    pub fn body(&self, i: usize) -> Body<'_> {
        let frame = &self.frames[i];
        let whole = self.gather.body(frame.chain);
        whole.slice(frame.skip, whole.len().saturating_sub(frame.skip))
    }

    /// The bytes of frame `i`, as far as they may be looked at: a frame that was refused when it was
    /// fetched may have no head, and no more than that.
    pub(crate) fn readable(&self, i: usize) -> (&[u8], Body<'_>) {
        let (frame, head) = (&self.frames[i], self.heads[i].as_slice());
        if frame.len > MAX_FRAME {
            // The head is still that of another frame.
            return (&[], Body::empty());
        }
        let is_whole = frame.skip == 0 || frame.len as usize <= head.len();
        (head, if is_whole { Body::empty() } else { self.body(i) })
    }

    /// Asks for the payload of frame `i`, if there is one, ahead of its copy; returns how long the
    /// frame is, then. Long frames are left to the hardware, which sees them coming by itself.
    #[inline(always)]
    pub fn prefetch(&self, i: usize) -> Option<usize> {
        let len = self.frames().get(i)?.len;
        if len <= HEAD_LEN as u32 || len > PREFETCHED {
            return None;
        }
        self.body(i).prefetch();
        Some(len as usize)
    }

    /// Frame `i` as a receiver sees it, when nothing has to be changed.
    #[inline(always)]
    pub fn packet(&self, i: usize) -> Packet<'_> {
        let (frame, head) = (&self.frames[i], self.heads[i].as_slice());
        let body = if frame.len as usize > head.len() { self.body(i) } else { Body::empty() };
        Packet {
            offload: &frame.offload,
            headers_len: frame.headers.end.into(),
            head,
            body,
            may_pass: frame.sharing == Sharing::Sole,
        }
    }

    /// Frame `i`, which asks for an address, becomes the answer of its owner. False: there is none.
    pub(crate) fn answer(&mut self, i: usize, owner: Owner) -> bool {
        let (frame, head) = (&mut self.frames[i], &mut self.heads[i]);
        let is_written = frame::answer(head, &frame.headers, owner)
            && frame::parse_into(head.as_slice(), &mut frame.headers);
        if is_written {
            // All of it is in the head.
            (frame.len, frame.skip) = (head.len() as u32, 0);
            (frame.offload, frame.sharing) = (Offload::default(), Sharing::Answer);
        }
        is_written
    }

    /// Copies frame `i` of `other` into this burst: head and scatter list, not the payload. False
    /// when there is no room.
    pub fn adopt(&mut self, other: &Burst, i: usize, action: Action) -> bool {
        if self.room() == 0 {
            return false;
        }
        let Some(chain) = self.gather.append_from(&other.gather, other.frames[i].chain) else {
            return false;
        };
        self.heads[self.count].copy_from(&other.heads[i]);
        self.frames[self.count] = Frame { chain, action, ..other.frames[i].clone() };
        self.count += 1;
        true
    }
}

/// The meaning of an offload header of 12 or 10 bytes.
#[inline]
fn offload(
    vnet: &[u8; VNET_LEN],
    vnet_len: usize,
    headers: &Headers,
    len: u32,
) -> Result<Offload, BadOffload> {
    match vnet {
        [legacy @ .., _, _] if vnet_len == VNET_LEGACY_LEN => {
            vnet::decode_legacy(legacy, headers, len)
        }
        whole => vnet::decode(whole, headers, len),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ring::region::Memory;
    use ring::violation::Violation;

    use super::*;

    #[test]
    fn each_piece_of_a_frame_costs() {
        let memory = Arc::new(Memory::anonymous(4096).unwrap());
        let mut burst = Burst::new();
        let pieces = |count: u64| (0..count).map(|at| (at, 1));
        burst
            .fill(VNET_LEN, |gather, chains, _| {
                chains.push(gather.push_range(&memory, 0, 72)?);
                chains.push(gather.push_ranges(&memory, pieces(1000))?);
                chains.push(gather.push_range(&memory, 0, 72)?);
                Ok::<_, Violation>(3)
            })
            .unwrap();
        let (short, long) = (cost(1, 60), cost(1, 988) + 999 * PIECE);
        assert_eq!(
            burst.frames().iter().map(Frame::cost).collect::<Vec<_>>(),
            [short, long, short]
        );
        for (n, bytes, total) in
            [(0, 0, 0), (1, 60, short), (2, 1048, short + long), (3, 1108, 2 * short + long)]
        {
            assert_eq!(burst.cost(n, bytes), total, "{n} frames");
        }
    }
}
