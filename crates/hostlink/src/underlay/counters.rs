//! Counters of an underlay, beside those that its ports have as all ports do.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use overlay::Refusal;
use ring::datagrams::Outcome;

/// Counts of datagrams by their outcome. Several workers write, each once for a burst.
#[derive(Debug, Default)]
pub struct UnderlayCounters {
    refused: [AtomicU64; Refusal::ALL.len()],
    received: AtomicU64,
    receive_calls: AtomicU64,
    sent: AtomicU64,
    send_calls: AtomicU64,
    socket_full: AtomicU64,
    too_long: AtomicU64,
    unreachable: AtomicU64,
}

/// The counts at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnderlayCounts {
    /// Received datagrams: those that became frames or parts of them, and those that were refused.
    /// A datagram to be segmented counts once.
    pub received: u64,
    /// System calls that returned received datagrams.
    pub receive_calls: u64,
    /// Datagrams that the kernel accepted for sending.
    pub sent: u64,
    /// System calls that sent datagrams.
    pub send_calls: u64,
    /// Lost datagrams by reason: first received ones, by [`Refusal`], then outgoing ones.
    pub drops: Vec<(&'static str, u64)>,
}

/// The names of drops of outgoing datagrams, and their meanings.
pub const SEND_DROPS: [(&str, &str); 3] = [
    ("socket_full", "The sending socket had no room: the underlay is slower than the frames."),
    ("underlay_mtu", "The datagram is longer than the underlay's MTU."),
    ("unreachable", "The kernel refused the datagram: no route, or memory of the sender is gone."),
];

impl UnderlayCounters {
    /// Counts `datagrams` that were received by so many system calls.
    pub(super) fn received(&self, datagrams: u64, calls: u64) {
        self.received.fetch_add(datagrams, Ordering::Relaxed);
        self.receive_calls.fetch_add(calls, Ordering::Relaxed);
    }

    /// Counts a refused datagram.
    pub(super) fn refused(&self, refusal: Refusal) {
        self.refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a frame that a TAP device took, or did not take, in one piece.
    pub(super) fn sent_whole(&self, sent: &io::Result<()>) {
        let count = match sent {
            Ok(()) => &self.sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => &self.socket_full,
            Err(_) => &self.unreachable,
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.send_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts datagrams that were given to a card.
    pub(super) fn sent_to_card(&self, datagrams: u64) {
        self.sent.fetch_add(datagrams, Ordering::Relaxed);
    }

    /// Counts system calls that made a card send.
    pub(super) fn send_call(&self) {
        self.send_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts datagrams for which there was no room.
    pub(super) fn full(&self, datagrams: u64) {
        self.socket_full.fetch_add(datagrams, Ordering::Relaxed);
    }

    /// Counts datagrams whose next hop is not known.
    pub(super) fn unreachable(&self, datagrams: u64) {
        self.unreachable.fetch_add(datagrams, Ordering::Relaxed);
    }

    /// Counts a sent batch.
    pub(super) fn sent(&self, outcome: &Outcome) {
        let add = |counter: &AtomicU64, count: u64| {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        };
        add(&self.sent, outcome.sent);
        add(&self.send_calls, outcome.calls);
        add(&self.socket_full, outcome.full);
        add(&self.too_long, outcome.too_long);
        add(&self.unreachable, outcome.refused);
    }

    /// The counts now.
    pub fn counts(&self) -> UnderlayCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let refused = Refusal::ALL.iter().zip(&self.refused);
        let refused = refused.map(|(refusal, count)| (refusal.name(), get(count)));
        let lost = [&self.socket_full, &self.too_long, &self.unreachable];
        let lost = SEND_DROPS.iter().zip(lost).map(|((name, _), count)| (*name, get(count)));
        UnderlayCounts {
            received: get(&self.received),
            receive_calls: get(&self.receive_calls),
            sent: get(&self.sent),
            send_calls: get(&self.send_calls),
            drops: refused.chain(lost).collect(),
        }
    }
}
