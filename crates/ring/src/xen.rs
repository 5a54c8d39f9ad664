//! The back half of a Xen ring (xen/include/public/io/ring.h).
//!
//! A ring consists of granted pages, one for most devices: four free-running indices, and as many
//! slots as fit, a power of two. A slot holds a request first, and then, in the same place, the
//! response to it. The front produces requests and consumes responses; the back does the reverse.
//!
//! The rules of this crate take this form here:
//!
//! - The request index is read once a turn, and accepted only within the capacity of the ring
//!   ([`Violation::RequestJump`]).
//! - A request is copied out once, word by word, and is looked at only in that copy.
//! - Responses are collected in private memory and written when they are published. So a slot with
//!   an unpublished response still holds its request, and a successor that takes over the ring,
//!   after a crash for example, finds everything from the response index on unchanged.
//! - Our own indices are read only once, when the back attaches to the ring.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::notify;
use crate::region::Memory;
use crate::violation::Violation;

/// Bytes of the page that a ring lies in.
pub const RING_PAGE: usize = 4096;

/// Where the indices are, in bytes from the start of the page.
pub const REQ_PROD: u64 = 0;
/// The index at which the back wants to be notified of requests.
pub const REQ_EVENT: u64 = 4;
/// The response index.
pub const RSP_PROD: u64 = 8;
/// The index at which the front wants to be notified of responses.
pub const RSP_EVENT: u64 = 12;
/// The offset of the slots; the bytes in between are padding.
pub const SLOTS: u64 = 64;

/// How many slots of `slot` bytes a ring of one page has: the largest power of two that fits.
pub const fn ring_size(slot: usize) -> u32 {
    ring_size_in(1, slot)
}

/// How many slots of `slot` bytes a ring of so many pages, at least one, has.
pub const fn ring_size_in(pages: usize, slot: usize) -> u32 {
    let fit = (pages * RING_PAGE - SLOTS as usize) / slot;
    1 << fit.ilog2()
}

/// The back half of a ring whose slots are `WORDS` words of four bytes.
///
/// Requests are taken oldest first, and can be put back newest first; responses are given in the
/// order of the requests, so the response to a request is in the request's slot.
#[derive(Debug)]
pub struct BackRing<const WORDS: usize> {
    /// Keeps the pages mapped.
    _mem: Arc<Memory>,
    start: NonNull<u8>,
    /// How many slots there are, less one: a power of two less one.
    mask: u32,
    /// Number of the next request to take.
    next: u32,
    /// The request index when it was last read.
    seen: u32,
    /// Number of the next request to respond to.
    done: u32,
    /// The response index as the front sees it.
    published: u32,
    /// Responses to the requests from `published` to `done`, by slot.
    responses: Box<[[u32; WORDS]]>,
}

// SAFETY: the pages are mapped for the whole process as long as the memory is held, and is only
// reached through atomics.
unsafe impl<const WORDS: usize> Send for BackRing<WORDS> {}

impl<const WORDS: usize> BackRing<WORDS> {
    /// The number of slots of a ring in one page.
    pub const SIZE: u32 = ring_size(WORDS * 4);

    /// Attaches to the ring in the page at address `addr` of `mem`, at its response index, which is
    /// zero in a new ring.
    ///
    /// # Errors
    /// When the page does not lie within `mem`, or its indices contradict each other.
    pub fn attach(mem: Arc<Memory>, addr: u64) -> Result<Self, Violation> {
        Self::attach_pages(mem, addr, 1)
    }

    /// Attaches to the ring in `pages` consecutive pages, at least one.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach).
    pub fn attach_pages(mem: Arc<Memory>, addr: u64, pages: usize) -> Result<Self, Violation> {
        let pages = pages.max(1);
        let page = mem.host(addr, (pages * RING_PAGE) as u64, align_of::<u32>() as u64)?;
        let size = ring_size_in(pages, WORDS * 4);
        let responses = vec![[0; WORDS]; size as usize].into();
        let (mask, start) = (size - 1, page);
        let mut ring =
            Self { _mem: mem, start, mask, next: 0, seen: 0, done: 0, published: 0, responses };
        let start = ring.word(RSP_PROD).load(Ordering::Acquire);
        (ring.next, ring.seen, ring.done, ring.published) = (start, start, start, start);
        ring.look()?;
        Ok(ring)
    }

    /// How many slots it has.
    #[inline]
    pub fn size(&self) -> u32 {
        self.mask + 1
    }

    /// Requests that can be taken: at least `wanted`, if there are as many. The front's index is
    /// read only when the requests seen before are not enough.
    ///
    /// # Errors
    /// [`Violation::RequestJump`].
    #[inline]
    pub fn ready(&mut self, wanted: u32) -> Result<u32, Violation> {
        let known = self.seen.wrapping_sub(self.next);
        if known >= wanted { Ok(known) } else { self.look() }
    }

    /// Reads the front's index. Returns how many requests can be taken now.
    #[inline]
    fn look(&mut self) -> Result<u32, Violation> {
        let index = self.word(REQ_PROD).load(Ordering::Acquire);
        self.saw(index)
    }

    /// Accepts a request index if it is possible: not before the requests taken, and at most a ring
    /// beyond the responses published.
    #[inline]
    fn saw(&mut self, index: u32) -> Result<u32, Violation> {
        let ahead = index.wrapping_sub(self.published);
        if ahead > self.size() || ahead < self.next.wrapping_sub(self.published) {
            return Err(Violation::RequestJump { index, ahead, size: self.size() });
        }
        self.seen = index;
        Ok(index.wrapping_sub(self.next))
    }

    /// Copies the `n`th request from the next one on out of the ring. The result is valid only for
    /// `n` below [`ready`](Self::ready).
    #[inline]
    pub fn request(&self, n: u32) -> [u32; WORDS] {
        let slot = self.slot(self.next.wrapping_add(n));
        std::array::from_fn(|word| self.word(slot + 4 * word as u64).load(Ordering::Relaxed))
    }

    /// Takes the next `n` requests, at most as many as are ready.
    #[inline]
    pub fn take(&mut self, n: u32) {
        let n = n.min(self.seen.wrapping_sub(self.next));
        self.next = self.next.wrapping_add(n);
    }

    /// Puts back the newest `n` requests, which will come again. `n` is limited to the requests
    /// that are taken and have no response.
    #[inline]
    pub fn put_back(&mut self, n: u32) {
        self.next = self.next.wrapping_sub(n.min(self.taken()));
    }

    /// Requests that are taken and have no response.
    #[inline]
    pub fn taken(&self) -> u32 {
        self.next.wrapping_sub(self.done)
    }

    /// Gives the oldest request that is taken its response; the front sees it after
    /// [`publish`](Self::publish). Nothing happens when none is taken.
    #[inline]
    pub fn respond(&mut self, response: [u32; WORDS]) {
        if self.taken() > 0 {
            self.responses[(self.done & self.mask) as usize] = response;
            self.done = self.done.wrapping_add(1);
        }
    }

    /// Notes the response to the `n`th request from the next one on. [`give`](Self::give) later
    /// gives it, unless the request is put back. Valid only for `n` below [`ready`](Self::ready).
    #[inline]
    pub fn note(&mut self, n: u32, response: [u32; WORDS]) {
        if n < self.seen.wrapping_sub(self.next) {
            self.responses[(self.next.wrapping_add(n) & self.mask) as usize] = response;
        }
    }

    /// Gives the oldest `n` requests that are taken the responses that were noted for them; at most
    /// as many as are taken.
    #[inline]
    pub fn give(&mut self, n: u32) {
        self.done = self.done.wrapping_add(n.min(self.taken()));
    }

    /// Reads the front's index, which is the number behind the last request.
    ///
    /// # Errors
    /// [`Violation::RequestJump`].
    pub fn posted(&mut self) -> Result<u32, Violation> {
        self.look()?;
        Ok(self.seen)
    }

    /// Number of the next request to take.
    #[inline]
    pub fn upcoming(&self) -> u32 {
        self.next
    }

    /// Number of the next request to respond to; numbers run through all 32 bits.
    #[inline]
    pub fn position(&self) -> u32 {
        self.done
    }

    /// Whether the front has certainly taken the responses before number `mark`: it has posted as
    /// many requests since as the ring has slots, or has asked to be notified of a later response.
    /// A front that lies about it reorders only its own frames.
    pub fn has_consumed(&self, mark: u32) -> bool {
        let since = self.done.wrapping_sub(mark);
        let posted = self.word(REQ_PROD).load(Ordering::Acquire).wrapping_sub(mark);
        // A front asks for the response after the last one that it took.
        let event = self.word(RSP_EVENT).load(Ordering::Acquire).wrapping_sub(1).wrapping_sub(mark);
        (self.size()..=since.saturating_add(self.size())).contains(&posted) || event <= since
    }

    /// The response to request number `number`, to be changed. `None` when the response is
    /// published, or there is none.
    pub fn response_mut(&mut self, number: u32) -> Option<&mut [u32; WORDS]> {
        let known = number.wrapping_sub(self.published);
        let pending = self.done.wrapping_sub(self.published);
        (known < pending).then(|| &mut self.responses[(number & self.mask) as usize])
    }

    /// Publishes all responses given since the last call at once. Returns whether the front wants
    /// to be notified; `None`: there were no responses.
    #[inline]
    pub fn publish(&mut self) -> Option<bool> {
        if self.done == self.published {
            return None;
        }
        let old = self.published;
        let mut number = old;
        while number != self.done {
            let slot = self.slot(number);
            for (word, value) in self.responses[(number & self.mask) as usize].iter().enumerate() {
                self.word(slot + 4 * word as u64).store(*value, Ordering::Relaxed);
            }
            number = number.wrapping_add(1);
        }
        self.published = self.done;
        Some(notify::publish_ring(self.word(RSP_PROD), self.done, old, self.word(RSP_EVENT)))
    }

    /// Asks the front to notify of the next request after those seen, and then reads its index once
    /// more. Returns how many requests can be taken now.
    ///
    /// # Errors
    /// [`Violation::RequestJump`].
    pub fn arm(&mut self) -> Result<u32, Violation> {
        self.arm_for(self.seen.wrapping_sub(self.next).saturating_add(1))
    }

    /// Asks the front to notify when `wanted` requests, at least one, can be taken, and then reads
    /// its index once more. Returns how many can be taken now.
    ///
    /// # Errors
    /// [`Violation::RequestJump`].
    pub fn arm_for(&mut self, wanted: u32) -> Result<u32, Violation> {
        let last = self.next.wrapping_add(wanted.max(1) - 1);
        let index = notify::arm_ring(self.word(REQ_EVENT), last, self.word(REQ_PROD));
        self.saw(index)
    }

    /// The offset of slot `number`, modulo the size, in the pages.
    #[inline(always)]
    fn slot(&self, number: u32) -> u64 {
        SLOTS + u64::from(number & self.mask) * 4 * WORDS as u64
    }

    /// The four bytes at `offset`, a multiple of four below the length of the pages.
    #[inline(always)]
    fn word(&self, offset: u64) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4));
        // SAFETY: all callers pass the offset of an index, or of a word of a slot whose number is
        // masked, and all slots end within the pages; those are mapped as long as `_mem` is held,
        // and aligned.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset as usize).cast()) }
    }
}

#[cfg(test)]
mod tests;
