//! Receive buffers that were taken ahead of the frames for them.
//!
//! A fixed queue of buffers, oldest first, each with the spans that it lies in. A buffer nearly
//! always has one span, which is kept in the buffer itself; further spans are in a second queue. A
//! frame is placed by first finding how many buffers it takes ([`Buffers::fit`]), and then filling
//! exactly those ([`Buffers::fill`]): all or nothing.

use std::collections::VecDeque;
use std::ptr::NonNull;

use crate::body::Body;
use crate::copies::Place;
use crate::copy::{CACHE_LINE, copy, prefetch_write};
use crate::gather::MAX_SPANS;
use crate::grant_copy_batch::GrantCopyBatch;
use crate::piece::Span;
use crate::segment::Local;
use crate::walk::Sink;

/// Most buffers that are taken ahead, and so most that one frame may take: a frame of 64 KiB in
/// buffers of 256 bytes.
pub(crate) const MOST: usize = 256;

/// Bytes of a buffer that are prefetched when a ring takes it.
const PREFETCHED: usize = 2 * CACHE_LINE;

/// Buffers that are taken together when one is needed.
const BATCH: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Buffer {
    first: Span,
    /// Further spans, in `Buffers::more`.
    more: u32,
    /// Bytes in all spans.
    len: u32,
}

impl Buffer {
    const EMPTY: Buffer = Buffer { first: Span::EMPTY, more: 0, len: 0 };
}

/// How many buffers a frame takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// So many of the oldest buffers.
    Takes(usize),
    /// More than there are by now.
    Short,
    /// More than there will ever be.
    Never,
}

/// The queue. The ring keeps the ids of the buffers.
#[derive(Debug)]
pub(crate) struct Buffers {
    ready: Box<[Buffer; MOST]>,
    /// Free-running numbers of the oldest buffer and of the one after the newest.
    oldest: usize,
    next: usize,
    /// Spans beyond the first, of all buffers in turn.
    more: VecDeque<Span>,
    /// The buffer that is being added.
    open: Buffer,
    opened: bool,
    /// A buffer had to stay in the ring because there was no room for its spans.
    crowded: bool,
}

impl Buffers {
    pub(crate) fn new() -> Self {
        Self {
            ready: Box::new([Buffer::EMPTY; MOST]),
            oldest: 0,
            next: 0,
            more: VecDeque::with_capacity(MAX_SPANS),
            open: Buffer::EMPTY,
            opened: false,
            crowded: false,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.next.wrapping_sub(self.oldest)
    }

    /// How many buffers there is room for.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        if self.crowded { 0 } else { MOST - self.len() }
    }

    /// How many buffers to take so that `n` are ready: none, or a whole batch, so that the buffer
    /// of a single frame has usually been looked up before.
    #[inline]
    pub(crate) fn wanted(&self, n: usize) -> usize {
        let len = self.len();
        if n <= len { 0 } else { (n.max(BATCH) - len).min(self.room()) }
    }

    /// Gives all buffers back; their spans are forgotten.
    pub(crate) fn clear(&mut self) {
        (self.oldest, self.next) = (0, 0);
        self.more.clear();
        self.cancel();
        self.crowded = false;
    }

    /// How many buffers a frame of `total` bytes takes.
    #[inline]
    pub(crate) fn fit(&self, total: u64, mergeable: bool) -> Fit {
        if self.len() > 0 && u64::from(self.buffer(0).len) >= total {
            return Fit::Takes(1);
        }
        self.fit_several(total, mergeable)
    }

    fn fit_several(&self, total: u64, mergeable: bool) -> Fit {
        // A used length has 32 bits, and so has the capacity of a chain.
        if total > u64::from(u32::MAX) {
            return Fit::Never;
        }
        if !mergeable {
            return if self.len() > 0 { Fit::Never } else { Fit::Short };
        }
        let mut room = 0;
        for n in 0..self.len() {
            room += u64::from(self.buffer(n).len);
            if room >= total {
                return Fit::Takes(n + 1);
            }
        }
        if self.room() == 0 { Fit::Never } else { Fit::Short }
    }

    #[inline(always)]
    fn buffer(&self, n: usize) -> Buffer {
        self.ready[self.oldest.wrapping_add(n) % MOST]
    }

    /// Writes a frame into the oldest buffer and takes the buffer out, provided that it lies in one
    /// piece and has room for the whole frame. Returns the number of bytes written. `None`: nothing
    /// was done.
    ///
    /// The header is written from registers, as two words. If it were assembled in memory, byte by
    /// byte, its copy would wait until those bytes have left the processor's store buffer, behind
    /// all stores on their way to the peer.
    #[inline(always)]
    pub(crate) fn fill_alone(&mut self, net: [u8; 12], head: &[u8], body: Body<'_>) -> Option<u32> {
        let total = (net.len() + head.len()) as u64 + u64::from(body.len());
        let Buffer { first, more, .. } = self.ready[self.oldest % MOST];
        if self.len() == 0 || more > 0 || u64::from(first.len) < total || body.is_granted() {
            return None;
        }
        let [a, b, c, d, e, f, g, h, i, j, _, _] = net;
        let (low, high) = ([a, b, c, d, e, f, g, h], [i, j, 1, 0]);
        let mut to = first.at.as_ptr();
        let mut add = |from: *const u8, len: usize| {
            // SAFETY: `from` is private, or a piece of the body, `len` bytes long; the span has
            // room for all of them, and the ring keeps the memory of its buffers
            // mapped.
            unsafe {
                copy(from, to, len);
                to = to.add(len);
            }
        };
        add(low.as_ptr(), low.len());
        add(high.as_ptr(), high.len());
        if !head.is_empty() {
            add(head.as_ptr(), head.len());
        }
        body.pieces(body.len(), add);
        // The buffer had no further spans, so no room for spans is freed: `crowded` stays.
        self.oldest = self.oldest.wrapping_add(1);
        Some(total as u32)
    }

    /// Prefetches, for writing, the lines of the `n`th buffer up to its byte `len` that were not
    /// prefetched when it was taken. Most frames are shorter than those.
    #[inline(always)]
    pub(crate) fn prefetch(&self, n: usize, len: usize) {
        if len > PREFETCHED && n < self.len() {
            let first = self.buffer(n).first;
            for offset in (PREFETCHED..len.min(first.len as usize)).step_by(CACHE_LINE) {
                prefetch_write(first.at.as_ptr().wrapping_add(offset));
            }
        }
    }

    /// Writes a frame into the oldest `n` buffers, which have room for it, and takes them out;
    /// `used` gets the number of bytes in each, in order.
    pub(crate) fn fill(
        &mut self,
        n: usize,
        net: &mut [u8],
        head: &[u8],
        body: Body<'_>,
        mut used: impl FnMut(u32),
    ) {
        announce(net, n);
        let mut left = net.len() as u64 + head.len() as u64 + u64::from(body.len());
        let mut cursor = Cursor::new(self, n);
        // SAFETY: private slices, and pieces of a body, which stay mapped while it is borrowed.
        let mut write = |from, len| unsafe { cursor.write(from, len) };
        write(net.as_ptr(), net.len());
        write(head.as_ptr(), head.len());
        body.pieces(body.len(), write);
        for _ in 0..n {
            let now = u64::from(self.buffer(0).len).min(left);
            left -= now;
            self.drop_oldest();
            used(now as u32);
        }
    }

    /// Calls `each` with the places of the first `len` bytes of the oldest `n` buffers.
    pub(crate) fn targets(&self, n: usize, len: usize, each: impl FnMut(NonNull<u8>, usize)) {
        Cursor::new(self, n).each_room(len, each);
    }

    /// How many pieces the oldest `n` buffers lie in.
    pub(crate) fn pieces(&self, n: usize) -> usize {
        (0..n).map(|i| 1 + self.buffer(i).more as usize).sum()
    }

    /// [`fill`](Self::fill) with a body that is granted: it is only copied when `grant_copies` is
    /// flushed.
    #[cold]
    pub(crate) fn fill_granted(
        &mut self,
        n: usize,
        net: &mut [u8],
        head: &[u8],
        body: Body<'_>,
        grant_copies: &mut GrantCopyBatch,
        mut used: impl FnMut(u32),
    ) {
        announce(net, n);
        let mut left = net.len() as u64 + head.len() as u64 + u64::from(body.len());
        let mut cursor = Cursor::new(self, n);
        for bytes in [&*net, head] {
            // SAFETY: a private slice.
            unsafe { cursor.write(bytes.as_ptr(), bytes.len()) };
        }
        for piece in body.granted() {
            let mut from = piece;
            cursor.each_room(piece.len.into(), |to, len| {
                from.len = len as u16;
                grant_copies.piece(from, Place::Local(Local::new(to)));
                from.at.offset += from.len;
            });
        }
        for _ in 0..n {
            let now = u64::from(self.buffer(0).len).min(left);
            left -= now;
            self.drop_oldest();
            used(now as u32);
        }
    }

    #[inline(always)]
    fn drop_oldest(&mut self) {
        let more = self.buffer(0).more;
        if more > 0 {
            self.more.drain(..more as usize);
        }
        self.oldest = self.oldest.wrapping_add(1);
        self.crowded = false;
    }
}

/// Writes the number of buffers, `n`, into a header that has the field (virtio 1.2, 5.1.6:
/// `num_buffers`).
fn announce(net: &mut [u8], n: usize) {
    if let Some(count) = net.get_mut(10..12) {
        count.copy_from_slice(&(n as u16).to_le_bytes());
    }
}

impl Sink for Buffers {
    const WRITABLE: bool = true;

    #[inline(always)]
    fn push(&mut self, span: Span) -> bool {
        if !self.opened {
            self.opened = true;
            self.open = Buffer { first: span, more: 0, len: 0 };
            return true;
        }
        if self.more.len() == MAX_SPANS {
            self.crowded = true;
            return false;
        }
        self.more.push_back(span);
        self.open.more += 1;
        true
    }

    #[inline(always)]
    fn push_alone(&mut self, span: Span) -> bool {
        self.ready[self.next % MOST] = Buffer { first: span, more: 0, len: span.len };
        self.next = self.next.wrapping_add(1);
        true
    }

    #[inline(always)]
    fn close(&mut self, len: u32) {
        self.ready[self.next % MOST] = Buffer { len, ..self.open };
        self.next = self.next.wrapping_add(1);
        self.opened = false;
    }

    fn cancel(&mut self) {
        if self.opened {
            self.more.truncate(self.more.len() - self.open.more as usize);
            self.opened = false;
        }
    }
}

/// A cursor that writes through the spans of the oldest buffers.
struct Cursor<'a> {
    buffers: &'a Buffers,
    /// The buffer being written, and how many there are to write.
    buffer: usize,
    end: usize,
    /// Spans of it that are left after the current one, and where the next of them is.
    left: u32,
    more: usize,
    span: Span,
}

impl<'a> Cursor<'a> {
    fn new(buffers: &'a Buffers, n: usize) -> Self {
        let first = buffers.buffer(0);
        Self { buffers, buffer: 0, end: n, left: first.more, more: 0, span: first.first }
    }

    /// Writes `len` bytes; bytes that do not fit are left out.
    ///
    /// # Safety
    /// `len` bytes must be mapped readable at `from`.
    unsafe fn write(&mut self, mut from: *const u8, len: usize) {
        self.each_room(len, |to, now| {
            // SAFETY: the caller's promise, and within a span whose memory the ring keeps mapped.
            unsafe {
                copy(from, to.as_ptr(), now);
                from = from.add(now);
            }
        });
    }

    /// Calls `each` with the places of the next `len` bytes; bytes that do not fit are left out.
    #[inline(always)]
    fn each_room(&mut self, mut len: usize, mut each: impl FnMut(NonNull<u8>, usize)) {
        while len > 0 {
            if self.span.len == 0 {
                if !self.next_span() {
                    return;
                }
                continue;
            }
            let now = len.min(self.span.len as usize);
            each(self.span.at, now);
            // SAFETY: `now` is at most the span's length.
            self.span.at = unsafe { self.span.at.add(now) };
            self.span.len -= now as u32;
            len -= now;
        }
    }

    fn next_span(&mut self) -> bool {
        if self.left > 0 {
            self.left -= 1;
            self.span = self.buffers.more.get(self.more).copied().unwrap_or(Span::EMPTY);
            self.more += 1;
            return true;
        }
        self.buffer += 1;
        if self.buffer >= self.end {
            return false;
        }
        let buffer = self.buffers.buffer(self.buffer);
        (self.left, self.span) = (buffer.more, buffer.first);
        true
    }
}
