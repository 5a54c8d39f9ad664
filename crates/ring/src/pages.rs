//! Granted pages that stay mapped here, so that copies need no hypervisor.
//!
//! Their use by safe code is sound for these reasons:
//!
//! - A [`Page`] is mapped as long as it lives, and knows whether it may be written: a page that is
//!   mapped for reading only is never a target.
//! - [`Pages`] never change. A caller that looks up a page holds the set, or borrows it
//!   ([`MappedPageRef`]), until the bytes are copied. A page is taken out of use by a new set
//!   without it, and unmapped when the last old set is dropped.
//! - No reference to the bytes is formed. They are only copied through raw pointers, since their
//!   owner changes them at any time.
//!
//! A front-end chooses the numbers by which pages are looked up, and could choose them to collide
//! in a hash table. So a set is sorted, and the number of steps of a look-up does not depend on
//! that choice. Most look-ups find their page behind the one that was found last.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::copy::copy;
use crate::grant::{GrantRef, PAGE};
use crate::region::MappingOwner;

/// A page of another domain, mapped as long as this lives.
#[derive(Debug)]
pub struct Page {
    base: NonNull<u8>,
    writable: bool,
    /// Unmaps the page when dropped.
    _owner: Box<dyn MappingOwner>,
}

// SAFETY: the mapping belongs to the process, not to a thread. Its bytes are reached through raw
// copies only, and are expected to change at any time anyway.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// A page that was mapped elsewhere. `owner` is dropped with the page, and not before.
    ///
    /// # Safety
    /// [`PAGE`] bytes at `base` must be mapped readable, and writable if it says so, until `owner`
    /// is dropped; nobody may refer to them, and touching them must raise no signal.
    pub unsafe fn adopt(base: NonNull<u8>, writable: bool, owner: Box<dyn MappingOwner>) -> Page {
        Page { base, writable, _owner: owner }
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Copies from `offset` on into `buf`. False, with nothing copied: the bytes do not lie wholly
    /// in the page.
    pub fn read(&self, offset: u16, buf: &mut [u8]) -> bool {
        let Some(from) = place(self.base, offset, buf.len()) else { return false };
        // SAFETY: so many bytes are mapped there, as long as the page lives.
        unsafe { copy(from, buf.as_mut_ptr(), buf.len()) };
        true
    }

    /// Copies `bytes` to `offset`. False, with nothing copied: the bytes do not lie wholly in the
    /// page, or the page may not be written.
    pub fn write(&self, offset: u16, bytes: &[u8]) -> bool {
        let Some(to) = place(self.base, offset, bytes.len()).filter(|_| self.writable) else {
            return false;
        };
        // SAFETY: as above, and they are mapped writable.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
        true
    }
}

/// The address `offset` bytes into the page at `base`, if `len` bytes follow there.
#[inline(always)]
fn place(base: NonNull<u8>, offset: u16, len: usize) -> Option<*mut u8> {
    let inside = usize::from(offset).checked_add(len).is_some_and(|end| end <= PAGE);
    // SAFETY: less than the page's length, or its end.
    inside.then(|| unsafe { base.as_ptr().add(offset.into()) })
}

/// The address of a page. It is mapped as long as the holder of the address keeps its [`Pages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MappedPage(NonNull<u8>);

impl MappedPage {
    /// The address `offset` bytes into it, if `len` bytes follow there.
    #[inline(always)]
    pub(crate) fn at(self, offset: u16, len: u16) -> Option<*const u8> {
        place(self.0, offset, len.into()).map(<*mut u8>::cast_const)
    }
}

/// A page of a set that is borrowed.
#[derive(Clone, Copy, Debug)]
pub struct MappedPageRef<'a> {
    base: NonNull<u8>,
    writable: bool,
    pages: PhantomData<&'a Pages>,
}

// SAFETY: as for `Page`, which it borrows.
unsafe impl Send for MappedPageRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for MappedPageRef<'_> {}

impl MappedPageRef<'_> {
    /// Its address, for a caller that keeps the set itself.
    pub(crate) fn page(self) -> MappedPage {
        MappedPage(self.base)
    }

    /// The address, `offset` bytes into the page, at which `len` bytes can be written. `None`: the
    /// bytes do not lie wholly in the page, or the page may not be written.
    #[inline(always)]
    pub(crate) fn target(self, offset: u16, len: u16) -> Option<*mut u8> {
        place(self.base, offset, len.into()).filter(|_| self.writable)
    }
}

/// Counts of one user's look-ups, and the likely place of the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupHint {
    next: usize,
    /// Pages that were found.
    pub hits: u64,
    /// Pages that were not.
    pub misses: u64,
}

/// Pages by the references that they are granted under.
#[derive(Debug, Default)]
pub struct Pages {
    /// In the order of references.
    entries: Box<[(GrantRef, Arc<Page>)]>,
}

impl Pages {
    /// A set of these pages and `more`. `None`: a reference is there already, or comes twice.
    pub fn with(&self, more: Vec<(GrantRef, Arc<Page>)>) -> Option<Pages> {
        let mut entries = more;
        entries.extend(self.entries.iter().cloned());
        entries.sort_unstable_by_key(|(reference, _)| *reference);
        let twice = entries.windows(2).any(|pair| matches!(pair, [(a, _), (b, _)] if a == b));
        (!twice).then(|| Pages { entries: entries.into() })
    }

    /// A set without the pages that are granted under `references`, which must be sorted, and the
    /// pages removed.
    pub fn without(&self, references: &[GrantRef]) -> (Pages, Vec<Arc<Page>>) {
        let goes = |entry: &(GrantRef, Arc<Page>)| references.binary_search(&entry.0).is_ok();
        let (gone, stay): (Vec<_>, Vec<_>) = self.entries.iter().cloned().partition(goes);
        (Pages { entries: stay.into() }, gone.into_iter().map(|(_, page)| page).collect())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there is one that is granted under this reference.
    pub fn has(&self, reference: GrantRef) -> bool {
        self.position(reference).is_some()
    }

    fn position(&self, reference: GrantRef) -> Option<usize> {
        self.entries.binary_search_by_key(&reference, |(reference, _)| *reference).ok()
    }

    /// The page that is granted under this reference, to be read or, if `write`, to be written.
    #[inline]
    pub fn find(
        &self,
        reference: GrantRef,
        write: bool,
        seen: &mut LookupHint,
    ) -> Option<MappedPageRef<'_>> {
        let expected = self.entries.get(seen.next).is_some_and(|(there, _)| *there == reference);
        let found = if expected { Some(seen.next) } else { self.position(reference) };
        let page = found.and_then(|at| {
            seen.next = at + 1;
            self.entries.get(at).map(|(_, page)| page).filter(|page| page.writable || !write)
        });
        match page {
            Some(_) => seen.hits += 1,
            None => seen.misses += 1,
        }
        page.map(|page| MappedPageRef {
            base: page.base,
            writable: page.writable,
            pages: PhantomData,
        })
    }
}

#[cfg(test)]
mod tests;
