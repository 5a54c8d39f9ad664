//! Scatter lists of a burst of chains.
//!
//! A [`Gather`] holds spans: raw host addresses and lengths of peer memory. Their use by safe code
//! is sound because of these invariants:
//!
//! - Spans are made only here and in the rings, from a translation by a [`Memory`] whose `Arc` the
//!   same gather pins first. So every span in a gather points into pages that are mapped as long as
//!   the gather holds it.
//! - [`Gather::clear`] forgets the spans and the pins together, and needs the gather mutably: no
//!   [`Body`] can be alive then, since a body borrows the gather.
//! - A [`Chain`] is a pair of plain numbers. A chain that is stale, or of another gather, is
//!   limited to the spans that exist: it yields wrong bytes, but never accesses unmapped memory.
//! - No reference to the bytes themselves is formed. They are only copied through raw pointers, and
//!   the peer may change them meanwhile.
//!
//! A gather may hold *granted* pieces instead: numbers that only a hypervisor can resolve
//! ([`Engine`]). They are kept in a list of their own, so code that follows spans cannot take them
//! for addresses, and sees no bytes. A piece whose page is mapped ([`Pages`]) also has the address;
//! the gather pins these sets as it pins memory, and forgets them with the pieces.

use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::body::Source;
use crate::copies::same;
use crate::copy::copy;
use crate::grant::{Granted, PAGE};
use crate::pages::{LookupHint, MappedPageRef, Pages};
use crate::piece::{Piece, Span};
use crate::region::Memory;
use crate::violation::Violation;

/// Most descriptors that one chain may have, and most entries of an indirect table.
///
/// The bound of Linux' drivers and of `IOV_MAX`; virtio allows a chain as long as the queue (1.2,
/// 2.7.5.3.1).
pub const MAX_CHAIN: u32 = 1024;

/// Most pieces of host memory that one chain may lie in: a descriptor can straddle regions that
/// touch each other.
pub const MAX_SPANS: usize = 2 * MAX_CHAIN as usize;

pub use crate::body::Body;
pub use crate::copies::Engine;

/// Memories that a gather has room for from the start.
const PINS: usize = 16;

/// The buffers of a burst of chains, wherever their bytes lie. The only way from safe code to bytes
/// that a peer may be changing.
#[derive(Debug)]
pub struct Gather {
    spans: Vec<Span>,
    max_spans: usize,
    source: Source,
}

// SAFETY: the spans point into memory that the pins keep mapped for the whole process, and that is
// only reached through raw copies; see `Memory`.
unsafe impl Send for Gather {}
// SAFETY: as above.
unsafe impl Sync for Gather {}

/// One chain in a [`Gather`]: a frame, with whatever header its transport puts before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    first: u32,
    count: u32,
    len: u32,
}

impl Chain {
    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many pieces of memory it lies in.
    #[inline]
    pub fn pieces(&self) -> u32 {
        self.count
    }

    /// How many pieces its gather has up to its end.
    #[inline]
    pub fn end(&self) -> u32 {
        self.first + self.count
    }
}

impl Gather {
    /// An empty gather with room for `max_spans` pieces of memory, but at least as many as one
    /// chain can have. Nothing is allocated later.
    pub fn new(max_spans: usize) -> Self {
        let max_spans = max_spans.clamp(MAX_SPANS, u32::MAX as usize);
        Self {
            spans: Vec::with_capacity(max_spans),
            max_spans,
            source: Source {
                pins: Vec::with_capacity(PINS),
                granted: Vec::new(),
                engine: None,
                pages: Vec::new(),
                passable: false,
            },
        }
    }

    /// Forgets all chains, and unpins their memory. To be called at the end of a burst: a worker
    /// that sleeps must not keep a guest's memory mapped.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.source.pins.clear();
        self.source.passable = false;
        if self.source.engine.take().is_some() {
            self.source.granted.clear();
            self.source.pages.clear();
        }
    }

    /// Whether it holds no chain.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.source.granted.is_empty()
    }

    /// Notes page faults in the memory of the chains, which is that of one peer.
    pub fn faulted(&self, faults: u64) {
        if let Some(memory) = self.source.pins.first() {
            memory.faulted(faults);
        }
    }

    /// The part of `faults` that first use of the chains' memory does not explain; see
    /// [`Memory::excess_faults`].
    pub fn excess_faults(&self, faults: u64) -> u64 {
        self.source.pins.first().map_or(0, |memory| memory.excess_faults(faults))
    }

    /// The part of the `delays` of faults that first use of the chains' memory does not explain;
    /// see [`Memory::excess_delays`].
    pub fn excess_delays(&self, delays: u64) -> u64 {
        self.source.pins.first().map_or(0, |memory| memory.excess_delays(delays))
    }

    /// The bytes of `chain`. A chain from before a [`clear`](Self::clear), or of another gather,
    /// yields other bytes, or fewer.
    #[inline]
    pub fn body(&self, chain: Chain) -> Body<'_> {
        let Chain { first, count, len } = chain;
        Body { spans: self.spans_of(chain), skip: 0, len, source: Some(&self.source), first, count }
    }

    /// Copies the first 12 bytes of `chain` to `net`, and those behind them to `head`, as many as
    /// there are and fit; returns how many came to `head`. `None`: the chain is not of the usual
    /// kind, in one piece and mapped, and nothing was done.
    #[inline(always)]
    pub fn read_alone(&self, chain: Chain, net: &mut [u8; 12], head: &mut [u8]) -> Option<usize> {
        let span = self
            .spans
            .get(chain.first as usize)
            .filter(|span| chain.count == 1 && span.len == chain.len)?;
        let len = head.len().min((span.len as usize).checked_sub(net.len())?);
        let at = span.at.as_ptr();
        // SAFETY: the span is mapped, and has 12 bytes and `len` more, as just computed; `head` has
        // room for them.
        unsafe {
            copy(at, net.as_mut_ptr(), 8);
            copy(at.add(8), net.as_mut_ptr().add(8), 4);
            copy(at.add(12), head.as_mut_ptr(), len);
        }
        // The caller must see only the copy: the compiler may not read the source again.
        compiler_fence(Ordering::Acquire);
        Some(len)
    }

    #[inline]
    fn spans_of(&self, chain: Chain) -> &[Span] {
        let first = chain.first as usize;
        self.spans.get(first..first + chain.count as usize).unwrap_or_default()
    }

    /// Appends the `len` bytes at guest address `addr` of `mem` as a chain.
    ///
    /// # Errors
    /// [`Violation::Outside`], or [`Violation::ChainScattered`] when the gather is full.
    pub fn push_range(
        &mut self,
        mem: &Arc<Memory>,
        addr: u64,
        len: u32,
    ) -> Result<Chain, Violation> {
        self.pin(mem);
        let mark = self.mark();
        let (mut at, mut left, mut hint) = (addr, len, 0);
        while left > 0 {
            let Some((host, run)) = mem.run(at, &mut hint) else {
                self.back_to(mark);
                return Err(Violation::Outside { addr, len: u64::from(len) });
            };
            let now = run.min(u64::from(left)) as u32;
            if !self.push(Span { at: host, len: now }) {
                self.back_to(mark);
                return Err(Violation::ChainScattered(self.max_spans as u32));
            }
            (at, left) = (at.wrapping_add(u64::from(now)), left - now);
        }
        Ok(self.chain_from(mark, len))
    }

    /// Appends the bytes of several ranges of `mem`, each an address and a length, as one chain.
    ///
    /// # Errors
    /// As for [`push_range`](Self::push_range); then nothing was appended.
    pub fn push_ranges(
        &mut self,
        mem: &Arc<Memory>,
        ranges: impl IntoIterator<Item = (u64, u32)>,
    ) -> Result<Chain, Violation> {
        let (mark, mut len) = (self.mark(), 0u32);
        for (addr, bytes) in ranges {
            if let Err(violation) = self.push_range(mem, addr, bytes) {
                self.back_to(mark);
                return Err(violation);
            }
            len = len.saturating_add(bytes);
        }
        Ok(self.chain_from(mark, len))
    }

    /// Appends granted pieces as a chain; `engine` can copy them. `None`, with nothing appended,
    /// when there is no room, a piece reaches beyond its page, or the gather has chains of another
    /// kind.
    pub fn push_granted(
        &mut self,
        engine: &Arc<dyn Engine>,
        pieces: impl IntoIterator<Item = (Granted, u16)>,
    ) -> Option<Chain> {
        self.push_pieces(engine, pieces.into_iter().map(|(at, len)| Piece { at, len, page: None }))
    }

    /// [`push_granted`](Self::push_granted) for a domain of which `pages` are mapped. The set is
    /// kept as long as the gather points into it.
    pub fn push_mapped(
        &mut self,
        engine: &Arc<dyn Engine>,
        pages: &Arc<Pages>,
        seen: &mut LookupHint,
        pieces: impl IntoIterator<Item = (Granted, u16)>,
    ) -> Option<Chain> {
        self.keep(pages);
        let mapped = |(at, len): (Granted, u16)| {
            let page = pages.find(at.reference, false, seen).map(MappedPageRef::page);
            Piece { at, len, page }
        };
        self.push_pieces(engine, pieces.into_iter().map(mapped))
    }

    /// Keeps pages mapped until the next [`clear`](Self::clear). Must be called before a piece in
    /// one of them is pushed.
    fn keep(&mut self, pages: &Arc<Pages>) {
        if !self.source.pages.iter().any(|own| Arc::ptr_eq(own, pages)) {
            self.source.pages.push(Arc::clone(pages));
        }
    }

    fn push_pieces(
        &mut self,
        engine: &Arc<dyn Engine>,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Option<Chain> {
        if !self.spans.is_empty()
            || self.source.engine.as_ref().is_some_and(|own| !same(own, engine))
        {
            return None;
        }
        let first = self.source.granted.len();
        let mut len = 0;
        for piece in pieces {
            let end = usize::from(piece.at.offset) + usize::from(piece.len);
            if self.source.granted.len() == self.max_spans || end > PAGE {
                self.source.granted.truncate(first);
                return None;
            }
            self.source.granted.push(piece);
            len += u32::from(piece.len);
        }
        self.source.engine.get_or_insert_with(|| Arc::clone(engine));
        Some(Chain { first: first as u32, count: (self.source.granted.len() - first) as u32, len })
    }

    /// Declares that the grants made here cover nothing but the pieces, so that they may be passed
    /// on.
    pub fn allow_passing(&mut self) {
        self.source.passable = true;
    }

    /// Appends a chain of another gather, without copying its bytes, for a hand-off to another
    /// worker. `None` when there is no room.
    pub fn append_from(&mut self, other: &Gather, chain: Chain) -> Option<Chain> {
        if let Some(engine) = &other.source.engine {
            let first = chain.first as usize;
            let pieces =
                other.source.granted.get(first..first + chain.count as usize).unwrap_or_default();
            other.source.pages.iter().for_each(|pages| self.keep(pages));
            let chain = self.push_pieces(engine, pieces.iter().copied());
            self.source.passable = other.source.passable;
            return chain;
        }
        let spans = other.spans_of(chain);
        if self.spans.len() + spans.len() > self.max_spans {
            return None;
        }
        for mem in &other.source.pins {
            self.pin(mem);
        }
        let mark = self.mark();
        self.spans.extend_from_slice(spans);
        Some(self.chain_from(mark, chain.len))
    }

    /// Keeps `mem` mapped until the next [`clear`](Self::clear). Must be called before a span of it
    /// is pushed.
    #[inline]
    pub(crate) fn pin(&mut self, mem: &Arc<Memory>) {
        if !self.source.pins.iter().any(|pin| Arc::ptr_eq(pin, mem)) {
            self.source.pins.push(mem.clone());
        }
    }

    /// Appends one span of a memory that is pinned; false when there is no room.
    #[inline(always)]
    pub(crate) fn push(&mut self, span: Span) -> bool {
        let room = self.spans.len() < self.max_spans;
        if room {
            self.spans.push(span);
        }
        room
    }

    /// Appends one span of a memory that is pinned, as a chain; `None` when there is no room.
    #[inline(always)]
    pub(crate) fn push_alone(&mut self, span: Span) -> Option<Chain> {
        let first = self.spans.len();
        self.push(span).then_some(Chain { first: first as u32, count: 1, len: span.len })
    }

    /// Where the next chain begins.
    #[inline]
    pub(crate) fn mark(&self) -> usize {
        self.spans.len()
    }

    /// Forgets the spans since `mark`.
    #[inline]
    pub(crate) fn back_to(&mut self, mark: usize) {
        self.spans.truncate(mark);
    }

    /// The spans since `mark`, `len` bytes in all, as a chain.
    #[inline]
    pub(crate) fn chain_from(&self, mark: usize, len: u32) -> Chain {
        Chain { first: mark as u32, count: (self.spans.len() - mark) as u32, len }
    }
}

#[cfg(test)]
mod tests;
