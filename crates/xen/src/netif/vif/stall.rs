//! Detection of frontends that take no frames any more (`rx_stall_timeout_msecs` of Linux'
//! backend).

use std::sync::Arc;
use std::time::Instant;

use crate::netif::queue::QueueStats;

/// The receive state of one queue, checked every few seconds.
#[derive(Debug)]
pub struct StallDetector {
    stats: Arc<QueueStats>,
    put: u64,
    full: u64,
    since: Option<Instant>,
}

impl StallDetector {
    /// The state of the queue whose counters are `stats`.
    pub fn new(stats: Arc<QueueStats>) -> Self {
        StallDetector { stats, put: 0, full: 0, since: None }
    }

    /// The counters of the queue.
    pub fn stats(&self) -> &QueueStats {
        &self.stats
    }

    /// Reads the counters again. Returns the time since which frames found no room and none was
    /// put.
    pub fn stalled_since(&mut self, now: Instant) -> Option<Instant> {
        let (put, full) = (self.stats.put.get(), self.stats.full.get());
        if put != self.put {
            self.since = None;
        } else if full != self.full {
            self.since.get_or_insert(now);
        }
        (self.put, self.full) = (put, full);
        self.since
    }
}
