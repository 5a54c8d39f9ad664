//! Scatter lists of a burst of chains.
//!
//! A [`Gather`] holds spans: raw host addresses and lengths of peer memory. That safe code can use
//! them without harm rests on this:
//!
//! - A span is made only here and in the rings, from a translation by a [`Memory`] whose `Arc` the
//!   same gather pins first. So every span in a gather points into pages that are mapped as long as
//!   the gather holds it.
//! - [`Gather::clear`] forgets the spans and the pins together, and needs the gather mutably: no
//!   [`Body`] can be alive then, since a body borrows the gather.
//! - A [`Chain`] is a pair of plain numbers. One that is stale, or of another gather, is cut to the
//!   spans that are there: it gives wrong bytes, never wild ones.
//! - The bytes themselves are never referred to, only copied through raw pointers; that the peer
//!   changes them meanwhile is expected.
//!
//! A gather may hold *granted* pieces instead: numbers that only a hypervisor can resolve
//! ([`Engine`]). They are kept in a list of their own, so nothing that follows spans can take them
//! for addresses: to it they are no bytes at all. Those whose pages are mapped nevertheless
//! ([`Pages`]) say where; the gather keeps these sets as it keeps memory, and forgets them with the
//! pieces.

use std::fmt::Debug;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::copies::{Copies, OwnPages, Status};
use crate::copy::{CACHE_LINE, copy, prefetch};
use crate::device::MAX_SPANS;
use crate::grant::{Granted, PAGE};
use crate::grant_copy_batch::{fetch_granted, read_granted};
use crate::pages::{Base, Held, Pages, Seen};
use crate::region::Memory;
use crate::violation::Violation;

/// Most pieces of one `writev(2)`.
const IOV_MAX: usize = 1024;

/// Memories that a gather has room for from the start.
const PINS: usize = 16;

/// One piece of host memory that a peer may be changing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) at: NonNull<u8>,
    pub(crate) len: u32,
}

impl Span {
    pub(crate) const EMPTY: Span = Span { at: NonNull::dangling(), len: 0 };
}

/// One piece of a page that is granted; it lies within the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) at: Granted,
    pub(crate) len: u16,
    /// Where the page is mapped, if it is: as long as the gather holds the piece.
    pub(crate) page: Option<Base>,
}

impl Piece {
    /// The address of its first `len` bytes, if its page is mapped.
    #[inline(always)]
    pub(crate) fn mapped(&self, len: u16) -> Option<*const u8> {
        self.page.and_then(|page| page.at(self.at.offset, len))
    }
}

/// Whoever makes copies with granted ends.
pub trait Engine: Debug + Send + Sync {
    /// Runs what waits in `copies`. What became of each is its status; one that fails does not keep
    /// the others from being made.
    fn run(&self, copies: &mut Copies);

    /// `len` bytes of our own as it likes them best for copies. `None`: it takes any.
    fn own_pages(&self, len: usize) -> Option<OwnPages> {
        let _ = len;
        None
    }
}

/// The buffers of a burst of chains, wherever their bytes lie. The only way from safe code to bytes
/// that a peer may be changing.
#[derive(Debug)]
pub struct Gather {
    spans: Vec<Span>,
    max_spans: usize,
    /// What the spans point into.
    pins: Vec<Arc<Memory>>,
    /// Granted pieces; then there are no spans.
    granted: Vec<Piece>,
    /// Who copies them.
    engine: Option<Arc<dyn Engine>>,
    /// Those of their pages that are mapped.
    pages: Vec<Arc<Pages>>,
    /// Nothing but their bytes is granted, so their grants may be passed on.
    passable: bool,
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
}

impl Gather {
    /// Room for `max_spans` pieces of memory (at least as many as one chain can have). Nothing is
    /// allocated later.
    pub fn new(max_spans: usize) -> Self {
        let max_spans = max_spans.clamp(MAX_SPANS, u32::MAX as usize);
        Self {
            spans: Vec::with_capacity(max_spans),
            max_spans,
            pins: Vec::with_capacity(PINS),
            granted: Vec::new(),
            engine: None,
            pages: Vec::new(),
            passable: false,
        }
    }

    /// Forgets all chains, and lets go of the memory they were in. To be called at the end of a
    /// burst: a worker that sleeps must not keep a guest's memory alive.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.pins.clear();
        self.passable = false;
        if self.engine.take().is_some() {
            self.granted.clear();
            self.pages.clear();
        }
    }

    /// The bytes of `chain`. A chain from before a [`clear`](Self::clear), or of another gather,
    /// gives some other bytes, or fewer.
    #[inline]
    pub fn body(&self, chain: Chain) -> Body<'_> {
        let Chain { first, count, len } = chain;
        Body { spans: self.spans_of(chain), skip: 0, len, gather: Some(self), first, count }
    }

    /// Copies the first 12 bytes of `chain` to `net`, and those behind them to `head`, as many as
    /// there are and fit; returns how many came to `head`. Only for the usual chain, that lies
    /// in one piece and is mapped; `None`: it is not such a one.
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
        // What was copied is what the caller looks at: the compiler may not go back to the source.
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

    /// Appends granted pieces as a chain; `engine` can copy them. `None` when there is no room, a
    /// piece reaches beyond its page, or chains of another kind are here: then nothing was
    /// appended.
    pub fn push_granted(
        &mut self,
        engine: &Arc<dyn Engine>,
        pieces: impl IntoIterator<Item = (Granted, u16)>,
    ) -> Option<Chain> {
        self.push_pieces(engine, pieces.into_iter().map(|(at, len)| Piece { at, len, page: None }))
    }

    /// [`push_granted`](Self::push_granted) of a domain of which `pages` are mapped, as long as the
    /// gather points into any.
    pub fn push_mapped(
        &mut self,
        engine: &Arc<dyn Engine>,
        (pages, seen): (&Arc<Pages>, &mut Seen),
        pieces: impl IntoIterator<Item = (Granted, u16)>,
    ) -> Option<Chain> {
        self.keep(pages);
        let mapped = |(at, len): (Granted, u16)| {
            let page = pages.find(at.reference, false, seen).map(Held::base);
            Piece { at, len, page }
        };
        self.push_pieces(engine, pieces.into_iter().map(mapped))
    }

    /// Keeps pages mapped until the next [`clear`](Self::clear). Always before a piece in one of
    /// them is pushed.
    fn keep(&mut self, pages: &Arc<Pages>) {
        if !self.pages.iter().any(|own| Arc::ptr_eq(own, pages)) {
            self.pages.push(Arc::clone(pages));
        }
    }

    fn push_pieces(
        &mut self,
        engine: &Arc<dyn Engine>,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Option<Chain> {
        if !self.spans.is_empty() || self.engine.as_ref().is_some_and(|own| !same(own, engine)) {
            return None;
        }
        let first = self.granted.len();
        let mut len = 0;
        for piece in pieces {
            let end = usize::from(piece.at.offset) + usize::from(piece.len);
            if self.granted.len() == self.max_spans || end > PAGE {
                self.granted.truncate(first);
                return None;
            }
            self.granted.push(piece);
            len += u32::from(piece.len);
        }
        self.engine.get_or_insert_with(|| Arc::clone(engine));
        Some(Chain { first: first as u32, count: (self.granted.len() - first) as u32, len })
    }

    /// Of what is granted here, nothing but the pieces is granted: their grants may be passed on.
    pub fn allow_passing(&mut self) {
        self.passable = true;
    }

    /// Appends a chain of another gather, without copying its bytes: for the way from one worker to
    /// another. `None` when there is no room.
    pub fn append_from(&mut self, other: &Gather, chain: Chain) -> Option<Chain> {
        if let Some(engine) = &other.engine {
            let first = chain.first as usize;
            let pieces = other.granted.get(first..first + chain.count as usize).unwrap_or_default();
            other.pages.iter().for_each(|pages| self.keep(pages));
            let chain = self.push_pieces(engine, pieces.iter().copied());
            self.passable = other.passable;
            return chain;
        }
        let spans = other.spans_of(chain);
        if self.spans.len() + spans.len() > self.max_spans {
            return None;
        }
        for mem in &other.pins {
            self.pin(mem);
        }
        let mark = self.mark();
        self.spans.extend_from_slice(spans);
        Some(self.chain_from(mark, chain.len))
    }

    /// Keeps `mem` mapped until the next [`clear`](Self::clear). Always before a span of it is
    /// pushed.
    #[inline]
    pub(crate) fn pin(&mut self, mem: &Arc<Memory>) {
        if !self.pins.iter().any(|pin| Arc::ptr_eq(pin, mem)) {
            self.pins.push(mem.clone());
        }
    }

    /// All memory that spans point into.
    pub(crate) fn pins(&self) -> &[Arc<Memory>] {
        &self.pins
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

/// Bytes that lie with their sender, in one or more pieces. Reading them twice may give two
/// different results.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    /// None at all when the bytes are granted.
    spans: &'a [Span],
    /// Bytes to leave out at the start of the first span, or of the first granted piece: at most
    /// its length.
    skip: u32,
    len: u32,
    gather: Option<&'a Gather>,
    /// The first granted piece.
    first: u32,
    /// How many granted pieces there are at most.
    count: u32,
}

// SAFETY: as for `Gather`, which it borrows.
unsafe impl Send for Body<'_> {}
// SAFETY: as above.
unsafe impl Sync for Body<'_> {}

impl<'a> Body<'a> {
    /// No bytes.
    #[inline]
    pub const fn empty() -> Self {
        Self { spans: &[], skip: 0, len: 0, gather: None, first: 0, count: 0 }
    }

    /// How many bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `len` bytes from `offset`; fewer when there are fewer.
    #[inline]
    #[must_use]
    pub fn slice(&self, offset: u32, len: u32) -> Body<'a> {
        let offset = offset.min(self.len);
        let len = len.min(self.len - offset);
        let (mut spans, mut skip) = (self.spans, u64::from(self.skip) + u64::from(offset));
        while let [first, rest @ ..] = spans
            && skip >= u64::from(first.len)
        {
            skip -= u64::from(first.len);
            spans = rest;
        }
        let body = Body { spans, skip: skip as u32, len, ..*self };
        if body.is_granted() { body.step_over() } else { body }
    }

    /// Leaves out granted pieces that are skipped whole.
    fn step_over(mut self) -> Body<'a> {
        for piece in self.pieces_from_first() {
            let Some(skip) = self.skip.checked_sub(piece.len.into()) else { break };
            (self.first, self.count, self.skip) = (self.first + 1, self.count - 1, skip);
        }
        self
    }

    /// The granted pieces, as they are in the gather.
    fn pieces_from_first(&self) -> &'a [Piece] {
        let first = self.first as usize;
        let all = self.gather.map_or(&[][..], |gather| &gather.granted);
        all.get(first..first + self.count as usize).unwrap_or_default()
    }

    /// Whether they lie in granted pages, where only a hypervisor gets at them.
    #[inline]
    pub fn is_granted(&self) -> bool {
        self.spans.is_empty() && self.len > 0
    }

    /// Who can copy them, if they are granted.
    pub fn engine(&self) -> Option<&'a Arc<dyn Engine>> {
        self.gather.and_then(|gather| gather.engine.as_ref())
    }

    /// The gather that they are in.
    pub(crate) fn gather(&self) -> Option<&'a Gather> {
        self.gather
    }

    /// In how many pieces they lie, at most.
    pub fn fragments(&self) -> usize {
        match self.is_granted() {
            true => self.count as usize,
            false => self.spans.len(),
        }
    }

    /// The granted pieces, none of them empty.
    #[inline]
    pub(crate) fn granted(&self) -> impl Iterator<Item = Piece> + use<'a> {
        let pieces = if self.is_granted() { self.pieces_from_first() } else { &[] };
        let (mut skip, mut left) = (self.skip, self.len);
        pieces
            .iter()
            .map(move |piece| {
                let len = u32::from(piece.len).saturating_sub(skip).min(left);
                let at = Granted { offset: piece.at.offset + skip as u16, ..piece.at };
                (skip, left) = (0, left - len);
                Piece { at, len: len as u16, page: piece.page }
            })
            .filter(|piece| piece.len > 0)
    }

    /// The pieces that it lies in, if their grants may be passed on by `engine`.
    pub fn passable(
        &self,
        engine: &Arc<dyn Engine>,
    ) -> Option<impl Iterator<Item = (Granted, u16)> + use<'a>> {
        let own = self.gather.filter(|gather| gather.passable)?.engine.as_ref()?;
        (self.is_granted() && same(own, engine))
            .then(|| self.granted().map(|piece| (piece.at, piece.len)))
    }

    /// How long the pieces are that it lies in, if they are granted.
    pub fn granted_lens(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.granted().map(|piece| piece.len.into())
    }

    /// Where its pieces begin, in bytes from the start of a page, and how long they are.
    pub fn places(&self) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        let granted = self.granted().map(|piece| (piece.at.offset.into(), piece.len.into()));
        let (mut skip, mut left) = (self.skip, self.len);
        let mapped = self.spans.iter().map(move |span| {
            let len = span.len.saturating_sub(skip).min(left);
            let start = (span.at.as_ptr() as usize % PAGE) as u32 + skip;
            (skip, left) = (0, left - len);
            (start, len)
        });
        granted.chain(mapped.filter(|(_, len)| *len > 0))
    }

    /// Copies granted bytes to address `addr` of `mem`, now, with the room that `copies` has when
    /// it is empty.
    ///
    /// # Errors
    /// What became of the first copy that was not made.
    pub fn bring(&self, copies: &mut Copies, mem: &Arc<Memory>, addr: u64) -> Result<(), Status> {
        fetch_granted(self, copies, |copies, offset, len| {
            copies.place(mem, addr + u64::from(offset), len).ok()
        })
    }

    /// Copies from the start into `buf`; returns how many bytes were copied: the lesser of both
    /// lengths. Fewer when they are granted, and can't be had.
    pub fn read(&self, buf: &mut [u8]) -> usize {
        if self.is_granted() { read_granted(self, buf) } else { self.read_mapped(buf) }
    }

    /// [`read`](Self::read) for bytes that are not granted; those that are, are none to it.
    #[inline]
    pub fn read_mapped(&self, buf: &mut [u8]) -> usize {
        let mut done = 0;
        self.pieces(buf.len() as u32, |from, len| {
            // SAFETY: `len` bytes are mapped at `from`; the pieces are not longer than `buf` in
            // all.
            unsafe { copy(from, buf.as_mut_ptr().add(done), len) };
            done += len;
        });
        // What was copied is what the caller looks at: the compiler may not go back to the source.
        compiler_fence(Ordering::Acquire);
        done
    }

    /// Brings all of it near, to be read.
    #[inline]
    pub fn prefetch(&self) {
        self.pieces(self.len, |from, len| {
            for offset in (0..len).step_by(CACHE_LINE) {
                prefetch(from.wrapping_add(offset));
            }
        });
    }

    /// One `writev(2)` of the `prefix` pieces and then the body to `fd`; returns how many bytes it
    /// took.
    ///
    /// # Errors
    /// What `writev(2)` says; `InvalidInput` when there are more than 1024 pieces, or they are
    /// granted.
    pub fn write_to(&self, fd: BorrowedFd<'_>, prefix: &[&[u8]]) -> io::Result<usize> {
        if self.is_granted() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "granted bytes can't be written",
            ));
        }
        let mut list = [const { MaybeUninit::<libc::iovec>::uninit() }; IOV_MAX];
        let mut count = 0;
        let mut add = |base: *const u8, len: usize| {
            if let Some(entry) = list.get_mut(count) {
                entry.write(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len });
            }
            count += 1;
        };
        prefix.iter().for_each(|piece| add(piece.as_ptr(), piece.len()));
        self.pieces(self.len, &mut add);
        if count > IOV_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than 1024 pieces"));
        }
        // SAFETY: the first `count` entries were written; the kernel only reads what they name:
        // borrowed slices and spans that the gather, which `self` borrows, keeps mapped.
        let took =
            unsafe { libc::writev(fd.as_raw_fd(), list.as_ptr().cast(), count as libc::c_int) };
        usize::try_from(took).map_err(|_| io::Error::last_os_error())
    }

    /// Calls `each` for the pieces of the first `max` bytes, none of them empty.
    #[inline(always)]
    pub(crate) fn pieces(&self, max: u32, mut each: impl FnMut(*const u8, usize)) {
        let (mut left, mut skip) = (self.len.min(max), self.skip);
        for span in self.spans {
            if left == 0 {
                break;
            }
            let now = (span.len - skip).min(left);
            if now > 0 {
                // SAFETY: `skip` is at most the span's length.
                each(unsafe { span.at.as_ptr().add(skip as usize) }, now as usize);
            }
            (left, skip) = (left - now, 0);
        }
    }
}

/// Whether both are the same.
pub(crate) fn same(a: &Arc<dyn Engine>, b: &Arc<dyn Engine>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

#[cfg(test)]
mod tests;
