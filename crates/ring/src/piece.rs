//! Pieces of a peer's memory: mapped, or granted.

use std::ptr::NonNull;

use crate::grant::Granted;
use crate::pages::MappedPage;

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
    /// The address of the page, if it is mapped, which it then is as long as the gather holds the
    /// piece.
    pub(crate) page: Option<MappedPage>,
}

impl Piece {
    /// The address of its first `len` bytes, if its page is mapped.
    #[inline(always)]
    pub(crate) fn mapped(&self, len: u16) -> Option<*const u8> {
        self.page.and_then(|page| page.at(self.at.offset, len))
    }
}
