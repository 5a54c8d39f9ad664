//! Event descriptors: those that a front-end sends, and our own.
//!
//! The front-end keeps the other end of what it sends, and may send anything. Only a real eventfd
//! is accepted, so that no write of ours can reach a file, fill a pipe or raise `SIGPIPE`. The
//! eventfd is made non-blocking: if a hostile front-end fills its counter, the interrupt is pending
//! anyway, and no worker waits. [`ring::interrupt`] detects a front-end that makes it blocking
//! again.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ring::Violation;
use ring::interrupt_thread::{Target, interrupt};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, readlinkat};

/// An eventfd that a front-end signals through, or is signalled through.
#[derive(Debug)]
pub struct Event(Arc<Target>);

impl Event {
    /// Takes a descriptor that came from a front-end, if it is an eventfd.
    pub fn adopt(fd: OwnedFd) -> Option<Event> {
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let target = readlinkat(rustix::fs::CWD, link, Vec::new()).ok()?;
        if target.as_bytes() != b"anon_inode:[eventfd]" {
            return None;
        }
        let flags = fcntl_getfl(&fd).ok()?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK).ok()?;
        Some(Event(Target::new(fd)))
    }

    /// A new event.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new() -> io::Result<Event> {
        Ok(Event(Target::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Signals it.
    ///
    /// # Errors
    /// When the front-end has made it blocking and filled its counter.
    #[inline]
    pub fn signal(&self) -> Result<(), Violation> {
        interrupt(&self.0)
    }

    /// Forgets signals that came so far.
    pub fn clear(&self) {
        // The read fails when there were none.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_eventfd_is_let_in() {
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert!(Event::adopt(pipe).is_none());
        let file = tempfile::tempfile().unwrap();
        assert!(Event::adopt(file.into()).is_none());
        let blocking = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let event = Event::adopt(blocking).unwrap();
        assert!(fcntl_getfl(&event.0).unwrap().contains(OFlags::NONBLOCK));
    }

    #[test]
    fn a_full_counter_does_not_block() {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let event = Event::adopt(fd).unwrap();
        event.signal().unwrap();
        event.clear();
        event.signal().unwrap();
        let mut count = [0; 8];
        rustix::io::read(&event.0, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }

    #[test]
    fn one_that_is_made_to_block_is_found_out() {
        let theirs = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let event = Event::adopt(theirs.try_clone().unwrap()).unwrap();
        rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fcntl_setfl(&theirs, OFlags::empty()).unwrap();
        assert_eq!(event.signal(), Err(Violation::InterruptBlocks));
    }
}
