//! The kernel's side of a worker's sleep: one epoll set.
//!
//! All descriptors are watched edge-triggered and never read. A peer holds the other end of most of
//! them, and could empty or fill them at will. So a worker neither reads nor writes where it could
//! block, and a signal that stays in a descriptor does not wake it twice.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use crate::id::QueueId;

/// The subject of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A queue's peer has published work.
    Work(QueueId),
    /// A queue's peer has made room.
    Room(QueueId),
    /// Another thread has something for this worker.
    Doorbell,
}

const DOORBELL: u64 = u64::MAX;

impl Signal {
    fn encode(self) -> u64 {
        match self {
            Signal::Work(id) => id.0 << 1,
            Signal::Room(id) => id.0 << 1 | 1,
            Signal::Doorbell => DOORBELL,
        }
    }

    fn decode(data: u64) -> Self {
        match data {
            DOORBELL => Signal::Doorbell,
            work if work & 1 == 0 => Signal::Work(QueueId(work >> 1)),
            room => Signal::Room(QueueId(room >> 1)),
        }
    }
}

/// Signals taken per wait; further signals stay pending until the next one.
pub const SIGNALS: usize = 64;

/// An epoll set.
pub struct Watcher(OwnedFd);

impl Watcher {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        Ok(Watcher(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Watches `fd` until it is removed. Descriptors of work and doorbells become readable; one of
    /// room may be one that the peer signals through (readable) or one that takes data (writable).
    pub fn add(&self, fd: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
        let flags = match signal {
            Signal::Room(_) => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            Signal::Work(_) | Signal::Doorbell => epoll::EventFlags::IN,
        };
        let data = epoll::EventData::new_u64(signal.encode());
        match epoll::add(&self.0, fd, data, flags | epoll::EventFlags::ET) {
            // A descriptor of both rings is watched once.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Stops watching `fd`.
    pub fn remove(&self, fd: impl AsFd) {
        // The call fails only for a descriptor that is not watched.
        let _ = epoll::delete(&self.0, fd);
    }

    /// Sleeps until something is signalled, or `timeout` has passed (`None`: for ever), and calls
    /// `each` for every signal.
    pub fn wait(&self, timeout: Option<Duration>, mut each: impl FnMut(Signal)) {
        if let Some(timeout) = timeout
            && !timeout.is_zero()
            && !self.sleep(timeout)
        {
            return;
        }
        let timeout = timeout.map(|_| Timespec::default());
        let mut events = [MaybeUninit::uninit(); SIGNALS];
        // An interrupted wait reports nothing, and the worker comes back soon enough.
        if let Ok((events, _)) = epoll::wait(&self.0, &mut events, timeout.as_ref()) {
            for event in events {
                each(Signal::decode(event.data.u64()));
            }
        }
    }

    /// Sleeps until something is signalled, or `timeout` has passed. Returns whether something is
    /// signalled; false if the sleep was interrupted.
    ///
    /// `epoll_pwait` counts in whole milliseconds, and kernels before Linux 5.11 have nothing
    /// finer. `ppoll` counts in nanoseconds, and takes an epoll set as it takes any file.
    fn sleep(&self, timeout: Duration) -> bool {
        // A timeout that the kernel cannot represent means no timeout.
        let timeout = Timespec::try_from(timeout).ok();
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout.as_ref())
            .is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::doorbell::Doorbell;

    /// How many signals a wait reports.
    fn count(watcher: &Watcher, timeout: Option<Duration>) -> usize {
        let mut count = 0;
        watcher.wait(timeout, |_| count += 1);
        count
    }

    #[test]
    fn a_signal_is_reported_once_by_each_kind_of_wait() {
        let (watcher, doorbell) = (Watcher::new().unwrap(), Doorbell::new().unwrap());
        watcher.add(doorbell.fd(), Signal::Doorbell).unwrap();
        for timeout in [None, Some(Duration::ZERO), Some(Duration::from_secs(3600))] {
            doorbell.sleeping.announce();
            doorbell.ring();
            assert_eq!(count(&watcher, timeout), 1, "{timeout:?}");
            assert_eq!(count(&watcher, Some(Duration::ZERO)), 0);
            assert_eq!(count(&watcher, Some(Duration::from_micros(1))), 0);
        }
    }

    #[test]
    fn sleeps_are_not_rounded_up_to_milliseconds() {
        let watcher = Watcher::new().unwrap();
        let sleep = |_| {
            let start = Instant::now();
            assert_eq!(count(&watcher, Some(Duration::from_micros(20))), 0);
            start.elapsed()
        };
        // Any one sleep may end late on a busy machine, so the shortest counts.
        let shortest = (0..500).map(sleep).min().unwrap();
        assert!(shortest < Duration::from_millis(1), "{shortest:?}");
    }
}
