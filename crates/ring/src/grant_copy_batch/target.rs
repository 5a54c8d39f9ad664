//! Granted pages of the receiver that bytes are copied to.

use crate::grant::{DomId, GrantRef, Granted};
use crate::pages::MappedPageRef;

/// Where bytes of a frame are copied to: a range within one page.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Where they begin.
    pub at: Granted,
    /// How many.
    pub len: u16,
    /// The page, if it is mapped.
    pub page: Option<MappedPageRef<'a>>,
}

impl Target<'_> {
    /// No room at all.
    pub const NONE: Self = {
        let at = Granted { domain: DomId(0), reference: GrantRef(0), offset: 0 };
        Target { at, len: 0, page: None }
    };

    /// Goes on to what is behind its first `len` bytes.
    #[inline]
    pub(super) fn advance(&mut self, len: u16) {
        let len = len.min(self.len);
        self.at.offset = self.at.offset.saturating_add(len);
        self.len -= len;
    }

    /// The address at which its first `len` bytes can be written without the hypervisor.
    #[inline(always)]
    pub(super) fn mapped(&self, len: u16) -> Option<*mut u8> {
        self.page.and_then(|page| page.target(self.at.offset, len))
    }
}
