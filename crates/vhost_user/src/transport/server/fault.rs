//! Reports of workers about queues that break the protocol.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use ring::Violation;
use runtime::slow_signals;

use crate::transport::event::Event;

/// A queue that broke the protocol.
#[derive(Debug)]
pub(super) struct QueueFault {
    queue: u16,
    error: Box<dyn Error + Send>,
    violation: Option<Violation>,
}

impl QueueFault {
    /// Time of a worker that the fault has cost and that the port was not charged for yet.
    pub(super) fn cost(&self) -> Duration {
        match self.violation {
            Some(Violation::SlowInterrupt) => slow_signals::COST,
            // A write may have waited for twice the time after which it is interrupted.
            Some(Violation::InterruptBlocks) => 2 * ring::interrupt::TIMEOUT,
            _ => Duration::ZERO,
        }
    }
}

impl fmt::Display for QueueFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}: {}", self.queue, self.error)
    }
}

/// The first fault since the last connection began.
pub struct QueueFaults {
    first: Mutex<Option<QueueFault>>,
    event: Event,
}

impl QueueFaults {
    /// No fault yet.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new() -> io::Result<QueueFaults> {
        Ok(QueueFaults { first: Mutex::default(), event: Event::new()? })
    }

    /// Reports a fault. Called by a worker, so it is quick and never waits for anything slow.
    /// `violation`: the error, if it is one of the ring protocol.
    pub fn report(
        &self,
        queue: u16,
        error: impl Error + Send + 'static,
        violation: Option<Violation>,
    ) {
        let fault = QueueFault { queue, error: Box::new(error), violation };
        self.first.lock().get_or_insert(fault);
        // No other process has this event, so it does not block.
        let _ = self.event.signal();
    }

    /// Takes the report out.
    pub(super) fn take(&self) -> Option<QueueFault> {
        self.event.clear();
        self.first.lock().take()
    }

    /// Readable after a report.
    pub(super) fn event(&self) -> &Event {
        &self.event
    }
}
