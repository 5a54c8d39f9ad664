//! Granted pages of the receiver that bytes are copied to.

use crate::grant::Granted;
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
    /// The rest of the target behind its first `len` bytes.
    #[inline]
    pub(super) fn after(self, len: u16) -> Self {
        let len = len.min(self.len);
        Target {
            at: Granted { offset: self.at.offset.saturating_add(len), ..self.at },
            len: self.len - len,
            ..self
        }
    }

    /// The address at which its first `len` bytes can be written without the hypervisor.
    #[inline(always)]
    pub(super) fn mapped(&self, len: u16) -> Option<*mut u8> {
        self.page.and_then(|page| page.target(self.at.offset, len))
    }
}
