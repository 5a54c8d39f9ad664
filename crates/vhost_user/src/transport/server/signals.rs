//! Waits of a server's thread, and the events that end them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::fault::QueueFaults;
use crate::transport::event::Event;

/// The reason why a wait ended.
pub(super) enum Wakeup {
    Ready,
    Timeout,
    Stop,
    Fault,
    ConfigChange,
    HandOver,
}

/// The events that interrupt every wait.
pub(super) struct Signals {
    pub(super) stop: Arc<Event>,
    pub(super) faults: Arc<QueueFaults>,
    /// The owner has a request for the hand-over to another process.
    pub(super) hand_over: Arc<Event>,
}

impl Signals {
    /// Sleeps until `what` is ready, the server must end, or a worker has reported a fault. Events
    /// that end a connection have priority.
    pub(super) fn wait(
        &self,
        what: Option<(&impl AsFd, PollFlags)>,
        timeout: Option<Duration>,
    ) -> Wakeup {
        self.poll(what, [], timeout)
    }

    /// As [`wait`](Self::wait), or until the configuration space changes, or the owner requests a
    /// hand-over.
    pub(super) fn wait_for(
        &self,
        what: Option<(&impl AsFd, PollFlags)>,
        config_changes: Option<&Event>,
        timeout: Option<Duration>,
    ) -> Wakeup {
        let others =
            [(Some(&*self.hand_over), Wakeup::HandOver), (config_changes, Wakeup::ConfigChange)];
        self.poll(what, others, timeout)
    }

    fn poll<const N: usize>(
        &self,
        what: Option<(&impl AsFd, PollFlags)>,
        others: [(Option<&Event>, Wakeup); N],
        timeout: Option<Duration>,
    ) -> Wakeup {
        let mut fds = vec![
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::new(self.faults.event(), PollFlags::IN),
        ];
        let mut wakeups = vec![Wakeup::Stop, Wakeup::Fault];
        for (event, wakeup) in others {
            fds.extend(event.map(|event| PollFd::new(event, PollFlags::IN)));
            wakeups.extend(event.map(|_| wakeup));
        }
        fds.extend(what.map(|(fd, flags)| PollFd::new(fd, flags)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // An interrupted wait is one that found nothing; the caller waits again.
        if let Ok(0) = poll(&mut fds, timeout.as_ref()) {
            return Wakeup::Timeout;
        }
        let ready = fds.iter().position(|fd| !fd.revents().is_empty());
        ready.and_then(|at| wakeups.into_iter().nth(at)).unwrap_or(Wakeup::Ready)
    }
}
