//! Where a virtual CPU's time goes: time stamps at the borders of its steps, taken only while the
//! backend wants to know.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use ring::ticks::{self, Ratio};
use xen::netif::times::Times;

/// What a virtual CPU does.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Takes frames from its rings.
    Ring,
    /// Hands them to the kernel.
    Kernel,
    /// Posts buffers, signals, and asks to be signalled.
    Signal,
    /// Everything for what it sends.
    Send,
}

/// What all virtual CPUs of a guest have counted.
#[derive(Debug)]
pub struct Account {
    on: AtomicBool,
    start: (u64, Instant),
    ticks: [AtomicU64; 4],
    frames: AtomicU64,
    bytes: AtomicU64,
    turns: AtomicU64,
}

impl Account {
    /// Nothing yet, and nobody wants to know.
    pub fn new() -> Self {
        Account {
            on: AtomicBool::new(false),
            start: (ticks::now(), Instant::now()),
            ticks: Default::default(),
            frames: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            turns: AtomicU64::new(0),
        }
    }

    /// Whether to count from now on.
    pub fn set(&self, on: bool) {
        self.on.store(on, Relaxed);
    }

    /// What was counted so far.
    pub fn times(&self) -> Times {
        let ratio = Ratio::since(self.start);
        let [ring, kernel, signal, send] =
            self.ticks.each_ref().map(|ticks| ratio.nanoseconds(ticks.load(Relaxed)));
        let [frames, bytes, turns] =
            [&self.frames, &self.bytes, &self.turns].map(|count| count.load(Relaxed));
        Times { frames, bytes, turns, ring, kernel, signal, send }
    }
}

/// One virtual CPU's stamps.
pub struct StageProfiler<'a> {
    account: &'a Account,
    on: bool,
    last: u64,
}

impl<'a> StageProfiler<'a> {
    /// For this account.
    pub fn new(account: &'a Account) -> Self {
        StageProfiler { account, on: false, last: 0 }
    }

    /// A turn begins; what was before it does not count.
    pub fn turn(&mut self) {
        self.on = self.account.on.load(Relaxed);
        if self.on {
            self.last = ticks::now();
        }
    }

    /// What was done since the last stamp was that step.
    pub fn mark(&mut self, step: Step) {
        if self.on {
            let now = ticks::now();
            let passed = now.saturating_sub(self.last);
            self.last = now;
            self.account.ticks[step as usize].fetch_add(passed, Relaxed);
        }
    }

    /// So many frames and bytes came in this turn.
    pub fn received(&mut self, frames: usize, bytes: u64) {
        if self.on && frames > 0 {
            self.account.frames.fetch_add(frames as u64, Relaxed);
            self.account.bytes.fetch_add(bytes, Relaxed);
            self.account.turns.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_wanted_is_counted() {
        let account = Account::new();
        let mut profiler = StageProfiler::new(&account);
        let mut work = || {
            profiler.turn();
            std::hint::black_box([0; 4096]);
            profiler.mark(Step::Ring);
            profiler.received(3, 300);
            profiler.received(0, 0);
            profiler.mark(Step::Kernel);
        };
        work();
        assert_eq!(account.times(), Times::default());
        account.set(true);
        work();
        let times = account.times();
        assert_eq!((times.frames, times.bytes, times.turns), (3, 300, 1));
        assert!(times.ring > 0 && times.signal == 0 && times.send == 0, "{times:?}");
        account.set(false);
        work();
        assert_eq!(account.frames.load(Relaxed), 3);
    }
}
