//! Surviving a peer that truncates the file behind its memory.
//!
//! Touching a page of a shared mapping beyond the end of its file raises `SIGBUS`, which would end
//! the process, and with it every other port. So each mapping of a peer's file is entered in a
//! table. A process-wide handler replaces a mapping that faults by zero pages, and marks it. The
//! thread that faulted continues with zeros; the owner of the memory finds the mark and stops the
//! port. Faults at any other address are passed on to the previous handler of `SIGBUS`.
//!
//! The handler may run at any moment in any thread, so it takes no lock: an entry has a sequence
//! number that is odd while it changes. The entry of the mapping that faulted cannot be changing,
//! since the thread that faulted keeps the mapping alive; an entry that is changing belongs to
//! another mapping, and is skipped.

use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use parking_lot::{Mutex, MutexGuard};

/// Mappings that one process can watch at a time: enough for hundreds of ports even if each has as
/// many regions as it may. Unused slots cost no memory.
const SLOTS: usize = 16384;

struct Slot {
    sequence: AtomicU32,
    start: AtomicUsize,
    /// Beyond the last byte; 0 in a free slot.
    end: AtomicUsize,
    faulted: AtomicBool,
}

impl Slot {
    const fn free() -> Self {
        Self {
            sequence: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            faulted: AtomicBool::new(false),
        }
    }

    /// Changes the range; only under the registry's lock.
    fn set(&self, start: usize, end: usize) {
        self.sequence.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.faulted.store(false, Ordering::Relaxed);
        self.sequence.fetch_add(1, Ordering::Release);
    }

    /// The range, unless it is just changing.
    fn range(&self) -> Option<(usize, usize)> {
        let before = self.sequence.load(Ordering::Acquire);
        let range = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2)).then_some(range)
    }
}

static TABLE: [Slot; SLOTS] = [const { Slot::free() }; SLOTS];
/// Set when, for the first time in the life of the process, a peer's memory must not be used any
/// more. While it is false, no closer check is needed.
static ANY: AtomicBool = AtomicBool::new(false);
static REGISTRY: Mutex<()> = Mutex::new(());
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

fn registry() -> MutexGuard<'static, ()> {
    REGISTRY.lock()
}

/// Whether any mapping was ever replaced by zeros, or any peer ever exceeded its memory limit.
#[inline]
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Notes that a peer has exceeded its memory limit.
pub(crate) fn set_any() {
    ANY.store(true, Ordering::Relaxed);
}

/// Why a mapping cannot be watched.
pub(crate) enum WatchError {
    /// All slots are taken.
    Exhausted,
    /// The handler could not be installed.
    Os(io::Error),
}

/// One watched mapping. Must be dropped before the mapping is unmapped.
#[derive(Debug)]
pub(crate) struct Watch {
    slot: usize,
}

impl Watch {
    /// Watches `len` bytes at `start`, a whole mapping.
    pub(crate) fn new(start: usize, len: usize) -> Result<Self, WatchError> {
        let _guard = registry();
        install().map_err(WatchError::Os)?;
        let slot = TABLE
            .iter()
            .position(|slot| slot.end.load(Ordering::Relaxed) == 0)
            .ok_or(WatchError::Exhausted)?;
        TABLE[slot].set(start, start + len);
        Ok(Self { slot })
    }

    /// Whether the mapping was replaced by zeros.
    pub(crate) fn is_faulted(&self) -> bool {
        TABLE[self.slot].faulted.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _guard = registry();
        TABLE[self.slot].set(0, 0);
    }
}

/// Installs the handler, once in the life of the process.
fn install() -> io::Result<()> {
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    // SAFETY: sigaction is plain data for which all zeros is a valid value.
    let (mut previous, mut ours): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: asks only, into a struct of our own.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut previous) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // This is set before the handler can run, since the handler reads it.
    PREVIOUS.get_or_init(|| previous);
    ours.sa_sigaction = on_sigbus as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and does only what a signal
    // handler may.
    if unsafe { libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler; for SIGBUS it has an
    // address.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Codes from the kernel are positive; a SIGBUS that a process sent carries no address.
    let from_kernel = code > 0;
    if from_kernel && cover(addr) {
        return;
    }
    // The signal is not ours, so the previous action is restored. A fault happens again at once; a
    // sent signal has to be sent again.
    if let Some(previous) = PREVIOUS.get() {
        // SAFETY: async-signal-safe; the action is the one that the kernel gave us.
        unsafe {
            libc::sigaction(signal, previous, ptr::null_mut());
            if !from_kernel {
                libc::raise(signal);
            }
        }
    }
}

/// Replaces the watched mapping around `addr` by zero pages. False when there is none.
fn cover(addr: usize) -> bool {
    for slot in &TABLE {
        let Some((start, end)) = slot.range() else { continue };
        if !(start..end).contains(&addr) {
            continue;
        }
        slot.faulted.store(true, Ordering::Relaxed);
        ANY.store(true, Ordering::Relaxed);
        // SAFETY: mmap is a bare system call. The range is exactly one live mapping of ours (the
        // faulting thread keeps it alive), which is replaced in one step; nobody holds
        // references into it, only raw pointers, whose targets stay mapped. errno is kept
        // for the code that was interrupted.
        return unsafe {
            let errno = *libc::__errno_location();
            let zeros = libc::mmap(
                start as *mut libc::c_void,
                end - start,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            );
            *libc::__errno_location() = errno;
            zeros != libc::MAP_FAILED
        };
    }
    false
}
