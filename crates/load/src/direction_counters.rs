//! Counters that sender and receiver of one direction share.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Counts of one direction, each with one writer. They only control the pace; the frames themselves
/// pass through the back-end.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct DirectionCounters {
    /// Written by the sender.
    sent: AtomicU64,
    /// Frames that the sender counts as lost.
    abandoned: AtomicU64,
    /// Whether the sender has stopped.
    closed: AtomicBool,
    received: Received,
}

/// A counter on a cache line of its own, because another thread writes it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Received(AtomicU64);

impl DirectionCounters {
    /// Counts `n` more sent frames.
    #[inline]
    pub fn add_sent(&self, n: u64) {
        self.sent.store(self.sent.load(Relaxed) + n, Relaxed);
    }

    /// Notes that the sender has stopped.
    pub fn close(&self) {
        self.closed.store(true, Release);
    }

    /// Whether the sender has stopped, and all of its frames were received.
    pub fn is_complete(&self) -> bool {
        self.closed.load(Acquire) && self.received() >= self.sent()
    }

    /// Sets the number of received frames to `n`.
    #[inline]
    pub fn set_received(&self, n: u64) {
        self.received.0.store(n, Relaxed);
    }

    /// Frames sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Frames received.
    pub fn received(&self) -> u64 {
        self.received.0.load(Relaxed)
    }

    /// Frames under way, from the sender's point of view.
    #[inline]
    pub fn under_way(&self) -> u64 {
        self.sent().saturating_sub(self.received() + self.abandoned.load(Relaxed))
    }

    /// Counts all frames under way as lost, and returns their number.
    pub fn abandon(&self) -> u64 {
        let lost = self.under_way();
        self.abandoned.store(self.abandoned.load(Relaxed) + lost, Relaxed);
        lost
    }
}

/// The counters of one sender's directions, by the numbers of their receivers.
#[derive(Clone, Debug)]
pub struct SenderCounters(Box<[Arc<DirectionCounters>]>);

impl SenderCounters {
    /// The counters of this many directions.
    pub fn new(receivers: u32) -> SenderCounters {
        SenderCounters((0..receivers).map(|_| Arc::default()).collect())
    }

    /// Those of each direction.
    pub fn each(&self) -> impl Iterator<Item = &Arc<DirectionCounters>> {
        self.0.iter()
    }

    /// Counts a sent frame of a flow.
    #[inline]
    pub fn add_sent(&self, flow: u32) {
        let direction = match &*self.0 {
            [only] => Some(only),
            several => several.get(flow as usize % several.len().max(1)),
        };
        if let Some(direction) = direction {
            direction.add_sent(1);
        }
    }

    /// Notes that the sender has stopped.
    pub fn close(&self) {
        self.each().for_each(|direction| direction.close());
    }

    /// Whether the sender has stopped, and all of its frames were received.
    pub fn is_complete(&self) -> bool {
        self.each().all(|direction| direction.is_complete())
    }

    /// Frames received.
    pub fn received(&self) -> u64 {
        self.each().map(|direction| direction.received()).sum()
    }

    /// Frames under way, from the sender's point of view.
    #[inline]
    pub fn under_way(&self) -> u64 {
        self.each().map(|direction| direction.under_way()).sum()
    }

    /// Counts all frames under way as lost.
    pub fn abandon(&self) {
        for direction in self.each() {
            direction.abandon();
        }
    }
}
