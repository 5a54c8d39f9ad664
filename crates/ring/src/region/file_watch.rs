//! Watches for the end of a peer's file, without a descriptor that would keep the file.
//!
//! Pages of a memfd stay charged to the process that touched them first until the memfd is gone:
//! until no process has a descriptor or a mapping of it. A descriptor of this process would keep
//! the pages itself. An inotify watch does not. The kernel removes the watch with the last
//! descriptor or mapping, and reports `IN_DELETE_SELF`. Descriptors on their way through a socket
//! count, and so do those that were opened with `O_PATH`.
//!
//! The report is evidence for memfds only. A file of a mounted tmpfs can have several names: the
//! kernel also reports when one name is dropped and no link is left, while a descriptor that was
//! opened by another name keeps the pages. The size of the tmpfs bounds these. Pages of hugetlbfs
//! come from a pool of their own.
//!
//! A peer cannot end a watch while it keeps the memfd. A hostile peer can forbid the watch, by a
//! file mode that does not let this process read. Such a memfd is assumed to exist for ever. No
//! known front-end changes the mode of a memfd.
//!
//! One inotify instance serves the process, since a user may have 128 of them. All accounts that
//! know a file share its watch.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::io::{self, Errno};

/// Most files that are watched at a time. Each causes two events at most, and events are read
/// before a watch is added: a queue of 16 384 events, the kernel's default, never overflows.
const MOST: usize = 8000;

/// The knowledge about a file that is not mapped any more.
#[derive(Debug)]
pub(super) enum Existence {
    /// The watch reports whether the file exists.
    Watched(Arc<FileWatch>),
    /// The peer forbids the watch.
    Hidden,
    /// The file is no memfd, or this process cannot watch it.
    Unknown,
}

impl Existence {
    /// Watches `file`, which lies on the file system `device`.
    pub(super) fn watch(file: BorrowedFd<'_>, device: u64) -> Existence {
        match Watches::get_or_create() {
            Some(watches) if watches.device == device => watches.add(file),
            _ => Existence::Unknown,
        }
    }

    /// Whether the file is known to be gone, by the events that were [read](read_events).
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Existence::Watched(watch) if watch.is_gone())
    }
}

/// The watch of one file.
#[derive(Debug, Default)]
pub(super) struct FileWatch {
    is_gone: AtomicBool,
}

impl FileWatch {
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }
}

/// Learns which files are gone, by one system call, or none if no file is watched. The sandbox
/// allows it to all threads, and the other functions here to control threads only.
pub(super) fn read_events() {
    if let Some(watches) = WATCHES.get() {
        watches.read_events(&mut watches.lock());
    }
}

static WATCHES: OnceLock<Watches> = OnceLock::new();

/// Watches by the numbers that the kernel gives them.
type Table = HashMap<i32, Weak<FileWatch>>;

struct Watches {
    inotify: OwnedFd,
    /// The file system of all memfds.
    device: u64,
    table: Mutex<Table>,
}

impl Watches {
    /// `None`: this process cannot watch files, at least for now.
    fn get_or_create() -> Option<&'static Watches> {
        WATCHES.get().or_else(|| {
            let watches = Watches::new().ok()?;
            Some(WATCHES.get_or_init(|| watches))
        })
    }

    /// Tries with a memfd of its own: where `/proc` is missing or a policy of the host forbids the
    /// watch, a refusal says nothing about a peer.
    fn new() -> io::Result<Watches> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let own = memfd_create(c"ringmain-watch", MemfdFlags::CLOEXEC)?;
        let number = inotify::add_watch(&inotify, path(own.as_raw_fd()), WatchFlags::DELETE_SELF)?;
        inotify::remove_watch(&inotify, number)?;
        Ok(Watches { inotify, device: fstat(&own)?.st_dev, table: Mutex::default() })
    }

    fn add(&self, file: BorrowedFd<'_>) -> Existence {
        let mut table = self.lock();
        self.read_events(&mut table);
        self.remove_unused(&mut table);
        if table.len() >= MOST {
            return Existence::Unknown;
        }
        let path = path(file.as_raw_fd());
        let number = match inotify::add_watch(&self.inotify, path, WatchFlags::DELETE_SELF) {
            Ok(number) => number,
            Err(Errno::ACCESS) => return Existence::Hidden,
            Err(_) => return Existence::Unknown,
        };
        // A file that is watched already keeps its number.
        let watch = table.get(&number).and_then(Weak::upgrade).unwrap_or_default();
        table.insert(number, Arc::downgrade(&watch));
        Existence::Watched(watch)
    }

    fn read_events(&self, table: &mut Table) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.inotify, &mut buffer);
        let end = |watch: Weak<FileWatch>| {
            if let Some(watch) = watch.upgrade() {
                watch.is_gone.store(true, Ordering::Relaxed);
            }
        };
        while let Ok(event) = events.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                // This happens only if the host allows fewer events than usual. It is then unknown
                // which files are gone, and a guest must not be refused for that.
                table.drain().for_each(|(_, watch)| end(watch));
            } else if let Some(watch) = table.remove(&event.wd()) {
                end(watch);
            }
        }
    }

    /// Removes watches that no account needs any more.
    fn remove_unused(&self, table: &mut Table) {
        table.retain(|number, watch| {
            let is_used = watch.strong_count() > 0;
            if !is_used {
                // Fails if the file has just gone.
                let _ = inotify::remove_watch(&self.inotify, *number);
            }
            is_used
        });
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

/// The path that leads to an open file.
fn path(fd: i32) -> String {
    format!("/proc/self/fd/{fd}")
}
