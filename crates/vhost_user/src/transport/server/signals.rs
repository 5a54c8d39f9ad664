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
}

/// The events that interrupt every wait.
pub(super) struct Signals {
    pub(super) stop: Arc<Event>,
    pub(super) faults: Arc<QueueFaults>,
}

impl Signals {
    /// Sleeps until `what` is ready, the server is to end, or a worker has reported a fault. What
    /// ends a connection comes first.
    pub(super) fn wait(
        &self,
        what: Option<(&impl AsFd, PollFlags)>,
        timeout: Option<Duration>,
    ) -> Wakeup {
        self.wait_for(what, None, timeout)
    }

    /// As [`wait`](Self::wait), or until the configuration space changes.
    pub(super) fn wait_for(
        &self,
        what: Option<(&impl AsFd, PollFlags)>,
        config_changes: Option<&Event>,
        timeout: Option<Duration>,
    ) -> Wakeup {
        let mut fds = vec![
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::new(self.faults.event(), PollFlags::IN),
        ];
        fds.extend(what.map(|(fd, flags)| PollFd::new(fd, flags)));
        let change = fds.len();
        fds.extend(config_changes.map(|event| PollFd::new(event, PollFlags::IN)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // An interrupted wait is one that found nothing; the caller waits again.
        let count = poll(&mut fds, timeout.as_ref());
        let ready = |i: usize| fds.get(i).is_some_and(|fd| !fd.revents().is_empty());
        match count {
            Ok(0) => Wakeup::Timeout,
            Ok(_) if ready(0) => Wakeup::Stop,
            Ok(_) if ready(1) => Wakeup::Fault,
            Ok(_) if ready(change) => Wakeup::ConfigChange,
            _ => Wakeup::Ready,
        }
    }
}
