//! Bytes of frames that lie with their sender.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::copies::{Copies, Engine, Status, same};
use crate::copy::{CACHE_LINE, copy, prefetch};
use crate::grant::{Granted, PAGE};
use crate::granted_copy::{fetch_granted, read_granted};
use crate::pages::Pages;
use crate::piece::{Piece, Span};
use crate::region::Memory;

/// Most pieces of one `writev(2)`.
pub(crate) const IOV_MAX: usize = libc::UIO_MAXIOV as usize;

/// The origin of the bytes of a gather.
#[derive(Debug)]
pub(crate) struct Source {
    /// The memory that the spans point into.
    pub(crate) pins: Vec<Arc<Memory>>,
    /// Granted pieces. A gather has either these or spans.
    pub(crate) granted: Vec<Piece>,
    /// Copies the granted pieces.
    pub(crate) engine: Option<Arc<dyn Engine>>,
    /// The pages of the granted pieces that stay mapped here.
    pub(crate) pages: Vec<Arc<Pages>>,
    /// The grants cover nothing but the pieces' bytes, so they may be passed on.
    pub(crate) passable: bool,
}

/// Bytes that lie with their sender, in one or more pieces. Reading them twice may give two
/// different results.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    /// None at all when the bytes are granted.
    pub(crate) spans: &'a [Span],
    /// Bytes to leave out at the start of the first span, or of the first granted piece: at most
    /// its length.
    pub(crate) skip: u32,
    pub(crate) len: u32,
    pub(crate) source: Option<&'a Source>,
    /// The first granted piece.
    pub(crate) first: u32,
    /// How many granted pieces there are at most.
    pub(crate) count: u32,
}

// SAFETY: as for `Gather`, which it borrows.
unsafe impl Send for Body<'_> {}
// SAFETY: as above.
unsafe impl Sync for Body<'_> {}

impl<'a> Body<'a> {
    /// No bytes.
    #[inline]
    pub const fn empty() -> Self {
        Self { spans: &[], skip: 0, len: 0, source: None, first: 0, count: 0 }
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

    /// The `len` bytes from `offset`, or as many as there are.
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
        let all = self.source.map_or(&[][..], |source| &source.granted);
        all.get(first..first + self.count as usize).unwrap_or_default()
    }

    /// Whether the bytes lie in granted pages, which only a hypervisor can access.
    #[inline]
    pub fn is_granted(&self) -> bool {
        self.spans.is_empty() && self.len > 0
    }

    /// The engine that can copy granted bytes.
    pub fn engine(&self) -> Option<&'a Arc<dyn Engine>> {
        self.source.and_then(|source| source.engine.as_ref())
    }

    /// The memories that their spans point into.
    pub(crate) fn pins(&self) -> &'a [Arc<Memory>] {
        self.source.map_or(&[], |source| &source.pins)
    }

    /// The most pieces that the bytes lie in.
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

    /// The pieces of the body, if `engine` may pass on their grants.
    pub fn passable(
        &self,
        engine: &Arc<dyn Engine>,
    ) -> Option<impl Iterator<Item = (Granted, u16)> + use<'a>> {
        let own = self.source.filter(|source| source.passable)?.engine.as_ref()?;
        (self.is_granted() && same(own, engine))
            .then(|| self.granted().map(|piece| (piece.at, piece.len)))
    }

    /// The lengths of the body's pieces, if they are granted.
    pub fn granted_lens(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.granted().map(|piece| piece.len.into())
    }

    /// The offset of each piece from the start of a page, and its length, in bytes.
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

    /// Copies granted bytes to address `addr` of `mem` at once. `copies`, which must be empty, is
    /// used for the copies.
    ///
    /// # Errors
    /// The status of the first copy that failed.
    pub fn bring(&self, copies: &mut Copies, mem: &Arc<Memory>, addr: u64) -> Result<(), Status> {
        let engine = self.engine().ok_or(Status::BAD_PAGE)?;
        fetch_granted(&**engine, self.granted(), copies, |copies, offset, len| {
            copies.place(mem, addr + u64::from(offset), len).ok()
        })
    }

    /// Copies from the start into `buf`; returns how many bytes were copied: the lesser of both
    /// lengths, or fewer when granted bytes cannot be copied.
    pub fn read(&self, buf: &mut [u8]) -> usize {
        match self.engine().filter(|_| self.is_granted()) {
            Some(engine) => {
                let len = buf.len().min(self.len as usize);
                let pieces = self.slice(0, len as u32).granted();
                read_granted(&**engine, pieces, buf.get_mut(..len).unwrap_or_default())
            }
            None => self.read_mapped(buf),
        }
    }

    /// [`read`](Self::read) for mapped bytes only. Granted bytes are ignored.
    #[inline]
    pub fn read_mapped(&self, buf: &mut [u8]) -> usize {
        let mut done = 0;
        self.pieces(buf.len() as u32, |from, len| {
            // SAFETY: `len` bytes are mapped at `from`; the pieces are not longer than `buf` in
            // all.
            unsafe { copy(from, buf.as_mut_ptr().add(done), len) };
            done += len;
        });
        // The caller must see only the copy: the compiler may not read the source again.
        compiler_fence(Ordering::Acquire);
        done
    }

    /// Reads a byte of each page of the body, so that missing pages fault now and not during the
    /// copy.
    pub fn touch(&self) {
        self.pieces(self.len, |from, len| {
            let mut at = 0;
            while at < len {
                // SAFETY: less than the piece's length; bytes are always aligned.
                unsafe { from.add(at).read_volatile() };
                at += PAGE - from.addr().wrapping_add(at) % PAGE;
            }
        });
    }

    /// Prefetches all of the body for reading.
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
    /// The error of `writev(2)`; `InvalidInput` when there are more than 1024 pieces, or they are
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
