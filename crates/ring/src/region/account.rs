//! Accounts of the part of a peer's memory that this process has allocated.
//!
//! A peer's memory is a sparse file. The kernel charges a page to the process that touches it
//! first. A peer that names a new page in each buffer therefore has its memory paid for by this
//! process, up to the length of the file. The kernel does not tell who touched a page first, so an
//! account keeps an upper bound: the growth of a file between two looks at it, limited by the
//! number of page faults meanwhile. The callers that count faults report them, and the files are
//! looked at once per [`STEP`] faults.
//!
//! A peer that connects again may bring another file, and keep the former one with its pages. The
//! charge of a memfd therefore counts until the memfd is known to be gone ([`file_watch`]), over
//! all sessions. A guest whose front-end has ended begins at zero, however often it starts. If it
//! is unknown whether a file exists, the file counts in its own session, and while it is mapped.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs;

use super::file_watch::{self, Existence};
use super::table::{MAX_MAPPED, MapError};
use crate::fault;
use crate::violation::Violation;

/// Page faults between two looks at the files: 1 MiB of ordinary pages.
const STEP: u64 = 256;

/// Bytes of a block, as `stat` counts them.
const BLOCK: u64 = 512;

/// Most files that are remembered after they were unmapped.
const REMEMBERED: usize = 64;

/// A file of the host, as `stat` identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

/// A file that a peer's memory lies in.
#[derive(Debug)]
pub(super) struct BackingFile {
    fd: OwnedFd,
    id: FileId,
}

/// Growth of a file.
#[derive(Debug)]
struct Growth {
    id: FileId,
    /// The file, while any of it is mapped.
    file: Weak<BackingFile>,
    /// Whether the file is still there when it is not mapped.
    existence: Existence,
    /// Number of the last session that mapped the file.
    session: u64,
    /// Bytes that it had when it was last looked at.
    seen: u64,
    /// Bytes of them that this process has allocated, at most.
    charged: u64,
}

/// The growth of all files.
#[derive(Debug, Default)]
struct Files {
    list: Vec<Growth>,
    /// Number of the session at hand.
    session: u64,
    /// Bytes that were charged in this session for forgotten files of unknown existence.
    past: u64,
    /// Bytes that were charged in all sessions for files that existed when they were forgotten: the
    /// peer keeps more files than are [`REMEMBERED`].
    kept: u64,
}

/// The limit on the part of a peer's memory that this process allocates, and an upper bound of that
/// part.
#[derive(Debug)]
pub struct MemoryAccount {
    limit: AtomicU64,
    allocated: AtomicU64,
    exceeded: AtomicBool,
    /// Page faults since the files were last looked at.
    faults: AtomicU64,
    /// Regions that are mapped.
    mapped: AtomicUsize,
    files: Mutex<Files>,
}

/// The files of a memory that is charged to an account, and places for its mappings.
#[derive(Debug)]
pub(super) struct Charged {
    pub(super) account: Arc<MemoryAccount>,
    files: Vec<Arc<BackingFile>>,
    regions: usize,
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.account.mapped.fetch_sub(self.regions, Ordering::Relaxed);
    }
}

impl MemoryAccount {
    /// An account for a peer of whose memory `limit` bytes may be allocated.
    pub fn new(limit: u64) -> Self {
        MemoryAccount {
            limit: limit.into(),
            allocated: AtomicU64::new(0),
            exceeded: AtomicBool::new(false),
            faults: AtomicU64::new(0),
            mapped: AtomicUsize::new(0),
            files: Mutex::default(),
        }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. A peer that exceeds the new one is stopped at its next page faults; a
    /// stopped peer stays stopped until its next [session](Self::begin_session).
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// The most that may have been allocated, in bytes.
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Begins a session: another peer connects, or the same one again. Files of earlier sessions
    /// count as long as they exist, so a peer cannot renew its limit by reconnecting. Files of
    /// unknown existence count while they are mapped, and again once they are mapped again.
    pub fn begin_session(&self) {
        file_watch::read_events();
        let mut files = self.lock();
        files.session += 1;
        files.past = 0;
        self.exceeded.store(false, Ordering::Relaxed);
        self.update(&files);
    }

    /// Charges for all of a file of `bytes` that this process makes for the peer, which may keep
    /// it.
    ///
    /// # Errors
    /// [`MapError::Limit`]: the account is exhausted.
    pub fn charge(&self, file: &OwnedFd, bytes: u64) -> Result<(), MapError> {
        let stat = fs::fstat(file).map_err(std::io::Error::from)?;
        let mut files = self.lock();
        files.add_made(file, FileId { device: stat.st_dev, inode: stat.st_ino }, bytes);
        self.update(&files);
        self.check()
    }

    /// Charges for `faults` page faults of the calling thread, perhaps in this peer's memory, while
    /// it worked for the peer. Costs nothing if there were none.
    ///
    /// # Errors
    /// [`MapError::Limit`]: the account is exhausted.
    pub fn settle_own(&self, faults: u64) -> Result<(), MapError> {
        if faults == 0 {
            return Ok(());
        }
        let mut files = self.lock();
        files.look(faults);
        self.update(&files);
        self.check()
    }

    /// Notes page faults in this peer's memory. Once there were [`STEP`] in all, the files are
    /// looked at, which takes a few system calls.
    pub(crate) fn note(&self, faults: u64) {
        if self.faults.fetch_add(faults, Ordering::Relaxed) + faults >= STEP {
            self.examine(0);
        }
    }

    /// Looks at the files. `faults`: the number of further page faults that may have happened in
    /// this memory.
    pub(crate) fn examine(&self, faults: u64) {
        // Another thread that holds the lock sees the same.
        let Some(mut files) = self.files.try_lock() else { return };
        let faults = self.faults.swap(0, Ordering::Relaxed).saturating_add(faults);
        files.look(faults);
        self.update(&files);
    }

    /// The peer's violation, if any.
    pub(super) fn violation(&self) -> Option<Violation> {
        let exceeded = self.exceeded.load(Ordering::Relaxed);
        exceeded.then(|| Violation::MemoryLimit { limit: self.limit() })
    }

    /// Reserves places for `regions` mappings, which the peer has until the returned value is
    /// dropped.
    ///
    /// # Errors
    /// [`MapError::TooManyMapped`]: the peer has too many already.
    pub(super) fn reserve(self: &Arc<Self>, regions: usize) -> Result<Charged, MapError> {
        let take = |mapped: usize| Some(mapped + regions).filter(|mapped| *mapped <= MAX_MAPPED);
        match self.mapped.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(Charged { account: Arc::clone(self), files: Vec::new(), regions }),
            Err(_) => Err(MapError::TooManyMapped),
        }
    }

    fn check(&self) -> Result<(), MapError> {
        self.violation().map_or(Ok(()), |violation| Err(MapError::Limit(violation)))
    }

    /// Adds up the charges, and checks them against the limit.
    fn update(&self, files: &Files) {
        let mut allocated = files.charged();
        if allocated > self.limit() {
            // Some files may be gone since events were last read.
            file_watch::read_events();
            allocated = files.charged();
        }
        self.allocated.store(allocated, Ordering::Relaxed);
        if allocated > self.limit() && !self.exceeded.swap(true, Ordering::Relaxed) {
            fault::set_any();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.files.lock()
    }
}

impl Charged {
    /// Charges the account for future pages of these files, each file once. Files that are mapped
    /// already are not changed.
    ///
    /// # Errors
    /// [`MapError::Limit`]: the account is exhausted.
    pub(super) fn charge(&mut self, fds: impl Iterator<Item = OwnedFd>) -> Result<(), MapError> {
        let mut files = self.account.lock();
        for fd in fds {
            let Ok(stat) = fs::fstat(&fd) else { continue };
            let id = FileId { device: stat.st_dev, inode: stat.st_ino };
            if self.files.iter().all(|file| file.id != id) {
                self.files.push(files.find_or_add(fd, id, stat.st_blocks as u64 * BLOCK));
            }
        }
        self.account.update(&files);
        self.account.check()
    }
}

impl Files {
    /// A file of the session at hand, which has `now` bytes.
    fn find_or_add(&mut self, fd: OwnedFd, id: FileId, now: u64) -> Arc<BackingFile> {
        self.forget();
        let session = self.session;
        let Some(growth) = self.list.iter_mut().find(|growth| growth.id == id) else {
            let existence = Existence::watch(fd.as_fd(), id.device);
            let file = Arc::new(BackingFile { fd, id });
            let weak = Arc::downgrade(&file);
            self.list.push(Growth { id, file: weak, existence, session, seen: now, charged: 0 });
            return file;
        };
        growth.session = session;
        growth.file.upgrade().unwrap_or_else(|| {
            let file = Arc::new(BackingFile { fd, id });
            growth.file = Arc::downgrade(&file);
            growth.seen = now;
            growth.charged = growth.charged.min(now);
            file
        })
    }

    /// A file of `bytes` that this process has made in the session at hand, and does not map here.
    fn add_made(&mut self, fd: &OwnedFd, id: FileId, bytes: u64) {
        self.forget();
        let existence = Existence::watch(fd.as_fd(), id.device);
        let (file, session) = (Weak::new(), self.session);
        self.list.push(Growth { id, file, existence, session, seen: bytes, charged: bytes });
    }

    /// Forgets files that are not mapped: those that nothing was charged for, those that are gone,
    /// and the oldest beyond [`REMEMBERED`].
    fn forget(&mut self) {
        file_watch::read_events();
        let remains = |growth: &Growth| growth.charged > 0 && !growth.existence.is_gone();
        self.list.retain(|growth| growth.is_mapped() || remains(growth));
        let unmapped = self.list.iter().filter(|growth| !growth.is_mapped()).count();
        let mut surplus = unmapped.saturating_sub(REMEMBERED);
        let (session, past, kept) = (self.session, &mut self.past, &mut self.kept);
        self.list.retain(|growth| {
            let keep = surplus == 0 || growth.is_mapped();
            if !keep {
                surplus -= 1;
                let is_unknown = matches!(growth.existence, Existence::Unknown);
                let sum = if is_unknown { &mut *past } else { &mut *kept };
                *sum = sum.saturating_add(growth.counted(session));
            }
            keep
        });
    }

    /// Charges `faults` page faults to the files that have grown.
    fn look(&mut self, mut faults: u64) {
        self.list.iter_mut().for_each(|growth| growth.look(&mut faults));
    }

    /// Bytes that were charged in all.
    fn charged(&self) -> u64 {
        let each = self.list.iter().map(|growth| growth.counted(self.session));
        each.fold(self.past.saturating_add(self.kept), u64::saturating_add)
    }
}

impl Growth {
    fn is_mapped(&self) -> bool {
        self.file.strong_count() > 0
    }

    /// Bytes that count in this session.
    fn counted(&self, session: u64) -> u64 {
        let may_exist = match &self.existence {
            Existence::Watched(watch) => !watch.is_gone(),
            Existence::Hidden => true,
            Existence::Unknown => self.session == session,
        };
        if may_exist || self.is_mapped() { self.charged } else { 0 }
    }

    /// Charges the growth of the file, as far as page faults explain it.
    fn look(&mut self, faults: &mut u64) {
        let Some(file) = self.file.upgrade() else { return };
        let Ok(stat) = fs::fstat(&file.fd) else { return };
        // A huge page is allocated as a whole. A file that has huge pages shows that by its
        // preferred block size.
        let page = (stat.st_blksize as u64).max(1);
        let now = stat.st_blocks as u64 * BLOCK;
        let used = now.saturating_sub(self.seen).div_ceil(page).min(*faults);
        *faults -= used;
        // Pages that the peer has freed are no longer charged.
        self.charged = self.charged.saturating_add(used.saturating_mul(page)).min(now);
        self.seen = now;
    }
}

#[cfg(test)]
mod tests;
