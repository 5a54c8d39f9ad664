//! How much of a peer's memory this process has allocated.
//!
//! A peer's memory is a sparse file. The kernel charges a page to the process that touches it
//! first. A peer that names a new page in each buffer therefore has its memory paid for by this
//! process, up to the length of the file. Nothing tells for a page who touched it first, so an
//! account has an upper bound: what a file has grown by from one look at it to the next, and no more
//! than there were page faults meanwhile. Faults are noted by whoever counts them; the files are
//! looked at once for [`STEP`] of them.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use rustix::fs;

use crate::fault;
use crate::violation::Violation;

/// Page faults between two looks at the files: 1 MiB of ordinary pages.
const STEP: u64 = 256;

/// Bytes of a block, as `stat` counts them.
const BLOCK: u64 = 512;

/// A file that a peer's memory lies in.
#[derive(Debug)]
pub(super) struct BackingFile {
    fd: OwnedFd,
    /// Device and number.
    id: (u64, u64),
}

/// Growth of a file that is in use.
#[derive(Debug)]
struct Growth {
    file: Weak<BackingFile>,
    /// Bytes that it had when it was last looked at.
    seen: u64,
    /// Bytes of them that this process has allocated, at most.
    charged: u64,
}

/// The growth of all files.
#[derive(Debug, Default)]
struct Files {
    list: Vec<Growth>,
    /// Bytes that were charged for files that are not in use any more: their peer may keep them.
    past: u64,
}

/// How much of a peer's memory this process may allocate, and how much it has at most.
#[derive(Debug)]
pub struct MemoryAccount {
    limit: AtomicU64,
    allocated: AtomicU64,
    exceeded: AtomicBool,
    /// Page faults since the files were last looked at.
    faults: AtomicU64,
    files: Mutex<Files>,
}

impl MemoryAccount {
    /// For a peer of whose memory `limit` bytes may be allocated.
    pub fn new(limit: u64) -> Self {
        MemoryAccount {
            limit: limit.into(),
            allocated: AtomicU64::new(0),
            exceeded: AtomicBool::new(false),
            faults: AtomicU64::new(0),
            files: Mutex::default(),
        }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. A peer that exceeds the new one is stopped at its next page faults; one
    /// that was stopped stays so until [`reset`](Self::reset).
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// The most that may have been allocated, in bytes.
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Another peer, or the same one with a new session: nothing was allocated yet.
    pub fn reset(&self) {
        let mut files = self.lock();
        *files = Files::default();
        self.faults.store(0, Ordering::Relaxed);
        self.allocated.store(0, Ordering::Relaxed);
        self.exceeded.store(false, Ordering::Relaxed);
    }

    /// So many page faults happened in this peer's memory. Looks at the files when there were
    /// [`STEP`] in all: a few system calls.
    pub(crate) fn note(&self, faults: u64) {
        if self.faults.fetch_add(faults, Ordering::Relaxed) + faults >= STEP {
            self.settle(0);
        }
    }

    /// Looks at the files. `faults`: so many page faults more may have happened in this memory.
    pub(crate) fn settle(&self, faults: u64) {
        // Another thread that is at it sees the same.
        let mut files = match self.files.try_lock() {
            Ok(files) => files,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let faults = self.faults.swap(0, Ordering::Relaxed).saturating_add(faults);
        let allocated = files.charge(faults);
        self.allocated.store(allocated, Ordering::Relaxed);
        if allocated > self.limit() && !self.exceeded.swap(true, Ordering::Relaxed) {
            fault::set_any();
        }
    }

    /// The peer's violation, if any.
    pub(super) fn violation(&self) -> Option<Violation> {
        let exceeded = self.exceeded.load(Ordering::Relaxed);
        exceeded.then(|| Violation::MemoryLimit { limit: self.limit() })
    }

    /// The files of these descriptors, each once. Those that are in use already stay the same.
    pub(super) fn files(&self, fds: impl Iterator<Item = OwnedFd>) -> Vec<Arc<BackingFile>> {
        let mut files = self.lock();
        let mut list: Vec<Arc<BackingFile>> = Vec::new();
        for fd in fds {
            let Ok(stat) = fs::fstat(&fd) else { continue };
            let id = (stat.st_dev, stat.st_ino);
            if list.iter().all(|file| file.id != id) {
                list.push(files.find_or_add(fd, id, stat.st_blocks as u64 * BLOCK));
            }
        }
        list
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files {
    fn find_or_add(&mut self, fd: OwnedFd, id: (u64, u64), seen: u64) -> Arc<BackingFile> {
        let known = self.list.iter().filter_map(|growth| growth.file.upgrade());
        if let Some(file) = known.into_iter().find(|file| file.id == id) {
            return file;
        }
        let file = Arc::new(BackingFile { fd, id });
        self.list.push(Growth { file: Arc::downgrade(&file), seen, charged: 0 });
        file
    }

    /// Charges so many page faults to the files that have grown. Returns what was charged in all.
    fn charge(&mut self, mut faults: u64) -> u64 {
        let mut sum = 0;
        self.list.retain_mut(|growth| {
            let Some(file) = growth.file.upgrade() else {
                self.past = self.past.saturating_add(growth.charged);
                return false;
            };
            growth.look(&file, &mut faults);
            sum += growth.charged;
            true
        });
        self.past.saturating_add(sum)
    }
}

impl Growth {
    /// Charges what the file has grown by, as far as page faults explain it.
    fn look(&mut self, file: &BackingFile, faults: &mut u64) {
        let Ok(stat) = fs::fstat(&file.fd) else { return };
        // Huge pages come whole: a file that has them says so by its preferred size of blocks.
        let page = (stat.st_blksize as u64).max(1);
        let now = stat.st_blocks as u64 * BLOCK;
        let used = now.saturating_sub(self.seen).div_ceil(page).min(*faults);
        *faults -= used;
        // Pages that the peer has given back are nobody's any more.
        self.charged = self.charged.saturating_add(used.saturating_mul(page)).min(now);
        self.seen = now;
    }
}

#[cfg(test)]
mod tests;
