//! A domain's grant table, from the hypervisor's side.
//!
//! The entries lie in the domain's own memory, and the domain may write anything there. The state
//! that the hypervisor relies on is the *active entry* of each entry: the users of the page, and
//! the grant as it was for the first of them. The entry's status bits show uses to the domain. The
//! domain revokes a grant by clearing an entry whose status bits are clear; that step and the
//! marking of an entry are atomic against each other. A domain that clears an entry in use does not
//! affect its present users, but prevents new uses, so the uses come to an end.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use ring::Memory;

use super::config::Locking;
use super::copy_usage::CopyAccount;
use super::layout::{Entry, FRAMES, GrantKind, Layout, RESERVED, Reason, Version, flag};
use super::store_usage::StoreAccount;
use super::sync::lock;
use super::tablelock::{Readers, TableLock};
use super::vcpu::Vcpu;
use crate::{DomId, GrantRef};

/// Active entries that are made at once.
const CHUNK: u32 = 512;

/// How often marking an entry that keeps changing is tried.
const LOOKS: u32 = 5;

/// The kind of use of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Whether it is mapped, rather than copied.
    pub map: bool,
    /// Whether it is written.
    pub write: bool,
}

/// The users of a page, and what was granted.
#[derive(Debug, Default)]
struct Active {
    uses: u32,
    writes: u32,
    entry: Option<Entry>,
}

/// An active entry on a cache line of its own: workers of different queues use grants that lie side
/// by side.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ActiveLine(Mutex<Active>);

/// The active entries of some consecutive references.
type Chunk = Box<[ActiveLine]>;

/// A domain's memory and grant table.
#[derive(Debug)]
pub struct Table {
    id: DomId,
    memory: Arc<Memory>,
    file: OwnedFd,
    layout: Layout,
    dying: AtomicBool,
    /// How often pages are mapped.
    mapped: AtomicUsize,
    /// The copies that the domain has had this process make.
    copy_usage: CopyAccount,
    store_usage: StoreAccount,
    readers: Arc<Readers>,
    /// Guards the fields below: taken for reading to use entries, for writing to change the table.
    lock: TableLock,
    /// A [`Version`]'s number.
    version: AtomicU32,
    /// Pages that the table has grown to.
    frames: AtomicU32,
    active: Box<[OnceLock<Chunk>]>,
}

impl Table {
    /// The table of a domain whose memory, laid out as `layout` says, is `memory`, from the start
    /// of `file`.
    pub fn new(
        id: DomId,
        (memory, file): (Arc<Memory>, OwnedFd),
        layout: Layout,
        locking: Locking,
        readers: &Arc<Readers>,
    ) -> Self {
        let chunks = (FRAMES * Version::V1.per_frame()).div_ceil(CHUNK);
        let table = Table {
            id,
            memory,
            file,
            layout,
            dying: AtomicBool::new(false),
            mapped: AtomicUsize::new(0),
            copy_usage: CopyAccount::default(),
            store_usage: StoreAccount::default(),
            readers: Arc::clone(readers),
            lock: TableLock::new(locking, readers),
            version: AtomicU32::new(Version::V1.number()),
            frames: AtomicU32::new(0),
            active: (0..chunks).map(|_| OnceLock::new()).collect(),
        };
        table.grow(1);
        table
    }

    /// The domain of the table.
    pub fn id(&self) -> DomId {
        self.id
    }

    /// The domain's memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The file that the memory is in, from its start.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// How the memory is laid out.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// How often pages of it are mapped.
    pub fn mapped(&self) -> usize {
        self.mapped.load(Ordering::Relaxed)
    }

    /// The copies that the domain has had this process make.
    pub fn copy_usage(&self) -> &CopyAccount {
        &self.copy_usage
    }

    /// Its requests to the store.
    pub fn store_usage(&self) -> &StoreAccount {
        &self.store_usage
    }

    /// Prevents all further uses of pages.
    pub fn kill(&self) {
        let _alone = self.lock.write(&self.readers);
        self.dying.store(true, Ordering::Relaxed);
    }

    /// Grows the table to `frames` pages, but never shrinks it. Returns the number of pages.
    pub fn grow(&self, frames: u32) -> u32 {
        let _alone = self.lock.write(&self.readers);
        let frames = frames.clamp(self.frames.load(Ordering::Relaxed), FRAMES);
        let entries = frames * self.version().per_frame();
        for chunk in self.active.iter().take(entries.div_ceil(CHUNK) as usize) {
            chunk.get_or_init(|| (0..CHUNK).map(|_| ActiveLine::default()).collect());
        }
        self.frames.store(frames, Ordering::Relaxed);
        frames
    }

    /// Changes the layout of entries. False when any is in use.
    pub fn set_version(&self, version: Version) -> bool {
        let _alone = self.lock.write(&self.readers);
        let entries = self.active.iter().filter_map(OnceLock::get).flatten();
        if entries.into_iter().any(|active| lock(&active.0).uses > 0) {
            return false;
        }
        self.version.store(version.number(), Ordering::Relaxed);
        true
    }

    /// The layout of its entries.
    pub fn version(&self) -> Version {
        Version::of(self.version.load(Ordering::Relaxed)).unwrap_or_default()
    }

    fn end(&self) -> u32 {
        self.frames.load(Ordering::Relaxed) * self.version().per_frame()
    }

    fn active(&self, reference: GrantRef) -> Option<MutexGuard<'_, Active>> {
        let chunk = self.active.get((reference.0 / CHUNK) as usize)?.get()?;
        chunk.get((reference.0 % CHUNK) as usize).map(|active| lock(&active.0))
    }

    /// Begins a use of a grant. Returns the granted page or bytes.
    ///
    /// # Errors
    /// The reason why the use is not allowed.
    pub fn acquire(&self, by: DomId, reference: GrantRef, how: Use) -> Result<GrantKind, Reason> {
        let vcpu = Vcpu::enter();
        let _reading = self.lock.read(&self.readers, &vcpu);
        if self.dying.load(Ordering::Relaxed) {
            return Err(Reason::Dying);
        }
        if reference.0 >= self.end() {
            return Err(Reason::BeyondTable);
        }
        if reference.0 < RESERVED {
            return Err(Reason::NeverGranted);
        }
        let mut active = self.active(reference).ok_or(Reason::BeyondTable)?;
        let entry = match active.entry {
            Some(entry) => {
                check(&entry, by, how)?;
                if how.write && active.writes == 0 {
                    self.mark(by, reference, how)?;
                } else if !self.is_granted(reference) {
                    return Err(Reason::Revoked);
                }
                entry
            }
            None => self.mark(by, reference, how)?,
        };
        active.entry = Some(entry);
        active.uses += 1;
        active.writes += u32::from(how.write);
        if how.map {
            self.mapped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(entry.what)
    }

    /// Whether a grant that is in use is still granted.
    fn is_granted(&self, reference: GrantRef) -> bool {
        let flags = self.memory.atomic_u16(self.layout.entry(self.version(), reference));
        flags.is_ok_and(|flags| flags.load(Ordering::Acquire) & flag::TYPE != flag::INVALID)
    }

    /// Ends a use that was begun.
    pub fn release(&self, reference: GrantRef, how: Use) {
        let vcpu = Vcpu::enter();
        let _reading = self.lock.read(&self.readers, &vcpu);
        let Some(mut active) = self.active(reference) else { return };
        active.uses = active.uses.saturating_sub(1);
        active.writes = active.writes.saturating_sub(u32::from(how.write));
        let mut over = 0;
        if active.writes == 0 {
            over |= flag::WRITING;
        }
        if active.uses == 0 {
            over |= flag::READING;
            active.entry = None;
        }
        let at = match self.version() {
            Version::V1 => self.layout.entry(Version::V1, reference),
            Version::V2 => self.layout.status(reference),
        };
        if let Ok(flags) = self.memory.atomic_u16(at) {
            flags.fetch_and(!over, Ordering::SeqCst);
        }
        if how.map {
            self.mapped.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reads the entry in the domain's memory, and marks it as used.
    fn mark(&self, by: DomId, reference: GrantRef, how: Use) -> Result<Entry, Reason> {
        let status = flag::READING | if how.write { flag::WRITING } else { 0 };
        let entry = match self.version() {
            Version::V1 => self.mark_v1(by, reference, how, status),
            Version::V2 => self.mark_v2(by, reference, how, status),
        }?;
        match entry.what {
            GrantKind::Page(page) | GrantKind::SubPage { page, .. }
                if page >= self.layout.pages =>
            {
                self.unmark(reference);
                Err(Reason::NoPage)
            }
            _ => Ok(entry),
        }
    }

    /// Clears the mark on an entry without users.
    fn unmark(&self, reference: GrantRef) {
        let at = match self.version() {
            Version::V1 => self.layout.entry(Version::V1, reference),
            Version::V2 => self.layout.status(reference),
        };
        if let Ok(flags) = self.memory.atomic_u16(at) {
            flags.fetch_and(!(flag::READING | flag::WRITING), Ordering::SeqCst);
        }
    }

    /// Marks an entry of version 1, whose status bits are in the entry: the check and the mark
    /// concern the same word.
    fn mark_v1(
        &self,
        by: DomId,
        reference: GrantRef,
        how: Use,
        status: u16,
    ) -> Result<Entry, Reason> {
        let at = self.layout.entry(Version::V1, reference);
        let word = self.memory.atomic_u64(at).map_err(|_| Reason::BeyondTable)?;
        for _ in 0..LOOKS {
            let seen = word.load(Ordering::Acquire);
            let entry = Entry::decode_v1(seen)?;
            check(&entry, by, how)?;
            let marked = seen | u64::from(status);
            if word.compare_exchange(seen, marked, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                return Ok(entry);
            }
        }
        Err(Reason::Unstable)
    }

    /// Marks an entry of version 2, whose status bits lie apart from it. The bits are set first,
    /// and the entry is checked once more: a domain that revokes clears the entry first and checks
    /// the bits afterwards.
    fn mark_v2(
        &self,
        by: DomId,
        reference: GrantRef,
        how: Use,
        status: u16,
    ) -> Result<Entry, Reason> {
        let at = self.layout.entry(Version::V2, reference);
        let beyond = |_| Reason::BeyondTable;
        let (first, last) = (
            self.memory.atomic_u64(at).map_err(beyond)?,
            self.memory.atomic_u64(at + 8).map_err(beyond)?,
        );
        let word = self.memory.atomic_u16(self.layout.status(reference)).map_err(beyond)?;
        for _ in 0..LOOKS {
            let seen = [first.load(Ordering::Acquire), last.load(Ordering::Acquire)];
            let entry = Entry::decode_v2(seen)?;
            check(&entry, by, how)?;
            let before = word.fetch_or(status, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if first.load(Ordering::Acquire) == seen[0] {
                return Ok(entry);
            }
            word.fetch_and(before | !status, Ordering::SeqCst);
        }
        Err(Reason::Unstable)
    }
}

/// Whether an entry allows a use.
fn check(entry: &Entry, by: DomId, how: Use) -> Result<(), Reason> {
    match entry {
        entry if entry.to != by => Err(Reason::NotToUs),
        entry if how.write && !entry.writable => Err(Reason::ReadOnly),
        entry if how.map && !matches!(entry.what, GrantKind::Page(_)) => Err(Reason::NotWhole),
        _ => Ok(()),
    }
}
