//! Interrupts through an event descriptor that the peer also holds, without ever waiting for the
//! peer.
//!
//! A write to an eventfd blocks while its counter is full, unless the descriptor is non-blocking.
//! The non-blocking flag is a property of the open file, which the peer shares. A hostile peer can
//! fill the counter and clear the flag at any moment, also between a check and the write, so a
//! check would not help. Instead, a watchdog observes the threads that write: a thread that is
//! still at the same write after [`TIMEOUT`] gets a signal that interrupts it. A write to an
//! eventfd can only be interrupted while it waits, so the interruption proves the violation:
//! [`Violation::InterruptBlocks`].
//!
//! A write also takes long where many tasks watch the descriptor: the kernel walks over all of
//! them, and a front-end can have hundreds of thousands of epoll instances do so. A write that
//! seemed to take long is repeated with zero, which notifies all watchers but does not change the
//! counter. The repeated write is timed by the CPU time of the thread, which excludes the time of
//! others on that CPU. At most the time of both writes is charged. The thread reads the result by
//! [`take_slow`].
//!
//! The watch costs a writer two stores, a barrier and two time stamps. The watchdog is one thread
//! for the process, which sleeps while no thread writes. A writer that finds it asleep wakes it. As
//! in the data path's other wake-ups, both sides write, issue a full barrier, and then look.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::time::{ClockId, clock_gettime};

use crate::ticks;
use crate::violation::Violation;

/// The least time after which a blocked write is interrupted; at most twice that time passes.
pub const TIMEOUT: Duration = Duration::from_millis(20);

/// The [ticks](crate::ticks) of a write, some 50 us, from which on it is examined. Most such writes
/// were interrupted by something else.
const SUSPICIOUS: u64 = 1 << 17;

/// The CPU time from which on a write is slow. Without other watchers, a write takes a few
/// microseconds.
const SLOW: Duration = Duration::from_micros(100);

/// The watchdog's signal. It is ignored by default and used for nothing else, so a late one does no
/// harm.
const SIGNAL: libc::c_int = libc::SIGURG;

/// Signals `event`, an eventfd. If its counter is full, it is signalled already.
///
/// # Errors
/// [`Violation::InterruptBlocks`].
#[inline]
pub fn interrupt(event: BorrowedFd<'_>) -> Result<(), Violation> {
    // A thread that is ending has no writer any more, and interrupts no peer.
    WRITER.try_with(|writer| writer.0.interrupt_peer(event)).unwrap_or(Ok(()))
}

/// The CPU time of the calling thread's slow writes since the last call, in nanoseconds; usually 0.
#[inline]
pub fn take_slow() -> u64 {
    SLOW_TIME.take()
}

/// Adds to the calling thread's slow writes, in nanoseconds.
pub(crate) fn add_slow(nanoseconds: u64) {
    SLOW_TIME.set(SLOW_TIME.get().saturating_add(nanoseconds));
}

/// One thread's writes.
struct Writer {
    thread: libc::pid_t,
    /// Odd while the thread writes, and different for each write.
    sequence: AtomicU64,
}

impl Writer {
    #[inline]
    fn interrupt_peer(&self, event: BorrowedFd<'_>) -> Result<(), Violation> {
        let began = ticks::now();
        let written = self.write(event, 1);
        let first = ticks::now().wrapping_sub(began);
        if first > SUSPICIOUS && written.is_ok() {
            return self.examine(event, first);
        }
        written
    }

    /// Determines whether notifying the watchers is slow, or something else delayed the write that
    /// took `first` ticks.
    #[cold]
    fn examine(&self, event: BorrowedFd<'_>, first: u64) -> Result<(), Violation> {
        let (began, before) = (ticks::now(), cpu_time());
        let written = self.write(event, 0);
        let spent = cpu_time().saturating_sub(before);
        let second = ticks::now().wrapping_sub(began);
        let spent = common(first, second, spent);
        if spent >= SLOW {
            // The watchers took this time in each of the two writes.
            let spent = u64::try_from(2 * spent.as_nanos()).unwrap_or(u64::MAX);
            add_slow(spent);
        }
        written
    }

    #[inline]
    fn write(&self, event: BorrowedFd<'_>, number: u64) -> Result<(), Violation> {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !AWAKE.load(Ordering::Relaxed) {
            wake();
        }
        let number = number.to_ne_bytes();
        // SAFETY: eight bytes are read from an array of eight.
        let written =
            unsafe { libc::write(event.as_raw_fd(), number.as_ptr().cast(), number.len()) };
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
        match written < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            true => Err(Violation::InterruptBlocks),
            false => Ok(()),
        }
    }

    fn interrupt(&self) {
        // SAFETY: a bare system call. The thread lives: it leaves the list of writers, under its
        // lock, before it ends.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.thread, SIGNAL) };
    }
}

/// A thread's writer, on the list as long as the thread lives.
struct Enlisted(Arc<Writer>);

impl Enlisted {
    fn new() -> Self {
        // SAFETY: asks for a number.
        let thread = unsafe { libc::gettid() };
        let writer = Arc::new(Writer { thread, sequence: AtomicU64::new(0) });
        watched().writers.push((Arc::clone(&writer), 0));
        Enlisted(writer)
    }
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        watched().writers.retain(|(writer, _)| !Arc::ptr_eq(writer, &self.0));
    }
}

thread_local! {
    static WRITER: Enlisted = Enlisted::new();
    /// Time of slow writes, in nanoseconds.
    static SLOW_TIME: Cell<u64> = const { Cell::new(0) };
}

/// The CPU time that two writes have in common, of which the second one took `spent`. Time that
/// only one of them took is not due to the watchers. For example, the host of a virtual machine may
/// take a CPU away, and the machine's kernel then counts that time for the thread.
fn common(first: u64, second: u64, spent: Duration) -> Duration {
    match first < second {
        true => spent.mul_f64(first as f64 / second as f64),
        false => spent,
    }
}

/// The CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// The writers that the watchdog watches.
struct Watched {
    /// Each writer, with its sequence when it was last looked at.
    writers: Vec<(Arc<Writer>, u64)>,
    started: bool,
}

impl Watched {
    /// Starts the watchdog, unless it runs.
    fn start(&mut self) -> io::Result<()> {
        if self.started {
            return Ok(());
        }
        install()?;
        let thread = std::thread::Builder::new().name("rm-watchdog".into()).stack_size(64 << 10);
        thread.spawn(watch)?;
        self.started = true;
        Ok(())
    }
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { writers: Vec::new(), started: false });
static AWAKE: AtomicBool = AtomicBool::new(false);
static BELL: Condvar = Condvar::new();

fn watched() -> MutexGuard<'static, Watched> {
    WATCHED.lock()
}

/// Starts the watchdog on behalf of threads that are not allowed to start threads.
///
/// # Errors
/// When no thread can be started, or the signal's handler cannot be installed.
pub fn start_watchdog() -> io::Result<()> {
    watched().start()
}

/// Wakes the watchdog, or starts it. If it cannot be started now, the next write tries again.
#[cold]
fn wake() {
    let mut watched = watched();
    let _ = watched.start();
    AWAKE.store(watched.started, Ordering::Relaxed);
    BELL.notify_one();
}

/// Installs a handler that does nothing, so that the signal interrupts: without `SA_RESTART`.
fn install() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: sigaction is plain data for which all zeros is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    action.sa_flags = libc::SA_ONSTACK;
    // SAFETY: the handler has the signature of one without SA_SIGINFO, and does nothing.
    match unsafe { libc::sigaction(SIGNAL, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The watchdog.
fn watch() {
    sandbox::enter_thread(sandbox::Role::Helper);
    loop {
        std::thread::sleep(TIMEOUT);
        let mut watched = watched();
        if look(&mut watched.writers) {
            continue;
        }
        AWAKE.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if look(&mut watched.writers) {
            AWAKE.store(true, Ordering::Relaxed);
            continue;
        }
        while !AWAKE.load(Ordering::Relaxed) {
            BELL.wait(&mut watched);
        }
    }
}

/// Interrupts writers that are still at the same write. True when any thread wrote or writes.
fn look(writers: &mut [(Arc<Writer>, u64)]) -> bool {
    let mut busy = false;
    for (writer, seen) in writers {
        let sequence = writer.sequence.load(Ordering::Acquire);
        let writing = !sequence.is_multiple_of(2);
        if writing && sequence == *seen {
            writer.interrupt();
        }
        busy |= writing || sequence != *seen;
        *seen = sequence;
    }
    busy
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::event::{EventfdFlags, epoll, eventfd};

    use super::*;

    fn full(flags: EventfdFlags) -> OwnedFd {
        let fd = eventfd(0, flags).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fd
    }

    #[test]
    fn a_full_counter_is_signalled_already() {
        let fd = full(EventfdFlags::NONBLOCK);
        assert_eq!(interrupt(fd.as_fd()), Ok(()));
    }

    /// Without the watchdog, this test would never end.
    #[test]
    fn one_that_blocks_is_found_out_also_after_a_rest() {
        let blocks = full(EventfdFlags::empty());
        let good = eventfd(0, EventfdFlags::empty()).unwrap();
        for _ in 0..3 {
            assert_eq!(interrupt(blocks.as_fd()), Err(Violation::InterruptBlocks));
            assert_eq!(interrupt(good.as_fd()), Ok(()));
            // By then the watchdog sleeps.
            std::thread::sleep(TIMEOUT * 4);
        }
        let mut count = [0; 8];
        rustix::io::read(&good, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 3);
    }

    #[test]
    fn what_one_of_two_writes_took_is_not_the_watchers() {
        let ms = Duration::from_millis;
        assert_eq!(common(100, 1000, ms(10)), ms(1));
        assert_eq!(common(1000, 100, ms(10)), ms(10));
        assert_eq!(common(1, u64::MAX, ms(10)), Duration::ZERO);
    }

    /// Many writes in a row are slow with these watchers, and none without, even on a busy machine.
    #[test]
    fn a_descriptor_with_many_watchers_is_slow() {
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let copies: Vec<OwnedFd> = (0..128).map(|_| fd.try_clone().unwrap()).collect();
        let watchers: Vec<OwnedFd> = (0..128)
            .map(|_| {
                let watcher = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
                for copy in &copies {
                    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                    epoll::add(&watcher, copy, epoll::EventData::new_u64(0), flags).unwrap();
                }
                watcher
            })
            .collect();
        let is_slow = |_: &u32| {
            interrupt(fd.as_fd()).unwrap();
            let slow = take_slow();
            assert!(slow == 0 || slow >= 2 * SLOW.as_nanos() as u64, "{slow} ns");
            assert_eq!(take_slow(), 0, "taken");
            slow > 0
        };
        take_slow();
        // Not all of them: a thread that loses its CPU during the second of its two writes is
        // charged less.
        let slow = (0..100).filter(is_slow).count();
        assert!(slow >= 20, "{slow} of 100");
        drop(watchers);
        let slow = (0..1000).filter(is_slow).count();
        assert!(slow < 100, "{slow} of 1000");
    }

    #[test]
    fn threads_that_end_leave_the_list() {
        let good = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let thread = std::thread::spawn(move || {
            interrupt(good.as_fd()).unwrap();
            WRITER.with(|writer| Arc::downgrade(&writer.0))
        });
        assert!(thread.join().unwrap().upgrade().is_none());
    }
}
