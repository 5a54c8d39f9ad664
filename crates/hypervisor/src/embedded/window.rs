//! The address range of this process in which pages of other domains are mapped.
//!
//! Addresses without a page stay reserved and inaccessible, so that no other mapping can take their
//! place. This is the only module of `embedded` with `unsafe`: for mapping, and for access to what
//! was mapped.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use ring::region::MappingOwner;
use ring::{Memory, Page};
use rustix::mm::{MapFlags, ProtFlags};

use super::config::Flush;
use super::sync::lock;
use super::table::Table;
use crate::PAGE;

/// Pages unmapped for one flush, at most.
const BATCH: usize = 32;

/// A range of addresses.
#[derive(Debug)]
pub struct Window {
    base: NonNull<u8>,
    flush: Flush,
    places: Mutex<Places>,
}

#[derive(Debug)]
struct Places {
    taken: Vec<bool>,
    /// Where the search for free places begins.
    next: usize,
}

impl Places {
    /// Takes `count` adjacent places.
    fn take(&mut self, count: usize) -> Option<usize> {
        let end = self.taken.len();
        let mut run = 0;
        for at in (self.next..end).chain(0..end) {
            run = if at == 0 || self.taken[at - 1] { 0 } else { run };
            run = if self.taken[at] { 0 } else { run + 1 };
            if run >= count {
                let first = at + 1 - count;
                self.taken[first..=at].fill(true);
                self.next = (at + 1) % end;
                return Some(first);
            }
        }
        None
    }
}

// SAFETY: the range belongs to the process, not to a thread; the users of its parts are determined
// in `places`.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Reserves a range for so many pages.
    ///
    /// # Errors
    /// When the kernel has no such range.
    pub fn new(pages: usize, flush: Flush) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at a place that the kernel chooses touches nothing that exists.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), pages * PAGE, ProtFlags::empty(), flags)?
        };
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Window {
            base,
            flush,
            places: Mutex::new(Places { taken: vec![false; pages], next: 0 }),
        })
    }

    /// Maps pages of a domain side by side. `keeper` is dropped when they are unmapped again.
    ///
    /// # Errors
    /// When there is no room, or the kernel refuses.
    pub fn map(
        self: &Arc<Self>,
        table: &Table,
        pages: &[u32],
        keeper: Box<dyn MappingOwner>,
    ) -> io::Result<Memory> {
        let run = self.run(table, pages, true, keeper)?;
        let (base, len) = (run.at(0), pages.len() * PAGE);
        // SAFETY: so many bytes were just mapped there, and are until the run is dropped. No other
        // code knows them. The file cannot be shortened, as was checked when the domain was
        // created.
        Ok(unsafe { Memory::adopt(base, len, Box::new(run)) })
    }

    /// Maps a page of a domain to be read or, if `write`, to be written, too. `keeper` is dropped
    /// when it is unmapped again.
    ///
    /// # Errors
    /// When there is no room, or the kernel refuses.
    pub fn map_page(
        self: &Arc<Self>,
        table: &Table,
        page: u32,
        write: bool,
        keeper: Box<dyn MappingOwner>,
    ) -> io::Result<Page> {
        let run = self.run(table, &[page], write, keeper)?;
        // SAFETY: as above, with one page, which is writable only if `write` is set.
        Ok(unsafe { Page::adopt(run.at(0), write, Box::new(run)) })
    }

    fn run(
        self: &Arc<Self>,
        table: &Table,
        pages: &[u32],
        write: bool,
        keeper: Box<dyn MappingOwner>,
    ) -> io::Result<Run> {
        let first = lock(&self.places).take(pages.len());
        let first = first
            .ok_or_else(|| io::Error::new(io::ErrorKind::StorageFull, "no room for mappings"))?;
        let run = Run { window: Arc::clone(self), first, count: pages.len(), _keeper: keeper };
        let prot = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // Untouched pages are made present only if they are to be flushed in any case.
        let present =
            if self.flush == Flush::Touched { MapFlags::empty() } else { MapFlags::POPULATE };
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE | present;
        for (n, page) in pages.iter().enumerate() {
            let (at, offset) = (run.at(n), u64::from(*page) * PAGE as u64);
            // SAFETY: the place is in our range and was just taken, so it is not in use.
            unsafe {
                rustix::mm::mmap(
                    at.as_ptr().cast(),
                    PAGE,
                    prot,
                    flags,
                    table.file().as_fd(),
                    offset,
                )?
            };
        }
        Ok(run)
    }

    /// Unmaps `count` pages from place `first` on.
    fn unmap(&self, first: usize, count: usize) {
        let at_once = if self.flush == Flush::Always { 1 } else { BATCH };
        let (prot, flags) =
            (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE);
        for done in (0..count).step_by(at_once) {
            let now = at_once.min(count - done);
            // SAFETY: the places are within the range, and belong to the caller.
            let at = unsafe { self.base.add((first + done) * PAGE) };
            // SAFETY: as above; the mapping is replaced in one step by inaccessible pages.
            let unmapped =
                unsafe { rustix::mm::mmap_anonymous(at.as_ptr().cast(), now * PAGE, prot, flags) };
            debug_assert!(unmapped.is_ok(), "unmapping pages");
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let len = lock(&self.places).taken.len() * PAGE;
        // SAFETY: exactly what was mapped; all users of parts of it held the window.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), len) };
        debug_assert!(unmapped.is_ok(), "unmapping a whole mapping");
    }
}

/// Mapped pages. On drop they are unmapped, then their addresses are freed, and only then is the
/// use of the grant ended.
#[derive(Debug)]
struct Run {
    window: Arc<Window>,
    first: usize,
    count: usize,
    _keeper: Box<dyn MappingOwner>,
}

impl Run {
    fn at(&self, n: usize) -> NonNull<u8> {
        // SAFETY: within the range.
        unsafe { self.window.base.add((self.first + n) * PAGE) }
    }
}

impl MappingOwner for Run {}

impl Drop for Run {
    fn drop(&mut self) {
        self.window.unmap(self.first, self.count);
        lock(&self.window.places).taken[self.first..self.first + self.count].fill(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_side_by_side() {
        let mut places = Places { taken: vec![false; 8], next: 0 };
        assert_eq!(places.take(3), Some(0));
        assert_eq!(places.take(3), Some(3));
        assert_eq!(places.take(3), None);
        assert_eq!(places.take(2), Some(6));
        places.taken[2..5].fill(false);
        assert_eq!(places.take(2), Some(2));
        assert_eq!(places.take(2), None);
        assert_eq!(places.take(1), Some(4));
        places.taken.fill(false);
        assert_eq!(places.take(9), None);
        assert_eq!(places.take(8), Some(0));
    }
}
