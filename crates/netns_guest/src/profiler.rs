//! A profile of a virtual CPU's time: time stamps at the borders of its steps, taken only while the
//! backend requests them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use ring::ticks::{self, Ratio};
use xen::netif::guest_times::GuestTimes;

/// A step of a virtual CPU's work.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Takes frames from the rings.
    Ring,
    /// Writes them to the kernel.
    Kernel,
    /// Posts buffers, signals the backend, and asks for its signals.
    Signal,
    /// Everything for frames that the guest sends.
    Send,
}

/// The counts of all virtual CPUs of a guest, shared by their threads.
#[derive(Debug)]
pub struct Account {
    on: AtomicBool,
    start: (u64, Instant),
    ticks: [AtomicU64; 4],
    frames: AtomicU64,
    bytes: AtomicU64,
    bursts: AtomicU64,
}

impl Account {
    /// Counters at zero, and off.
    pub fn new() -> Self {
        Account {
            on: AtomicBool::new(false),
            start: (ticks::now(), Instant::now()),
            ticks: Default::default(),
            frames: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            bursts: AtomicU64::new(0),
        }
    }

    /// Turns counting on or off.
    pub fn set(&self, on: bool) {
        self.on.store(on, Relaxed);
    }

    /// The counts so far.
    pub fn times(&self) -> GuestTimes {
        let ratio = Ratio::since(self.start);
        let [ring, kernel, signal, send] =
            self.ticks.each_ref().map(|ticks| ratio.nanoseconds(ticks.load(Relaxed)));
        let [frames, bytes, bursts] =
            [&self.frames, &self.bytes, &self.bursts].map(|count| count.load(Relaxed));
        GuestTimes { frames, bytes, bursts, ring, kernel, signal, send }
    }
}

/// One virtual CPU's stamps.
pub struct StageProfiler<'a> {
    account: &'a Account,
    on: bool,
    last: u64,
}

impl<'a> StageProfiler<'a> {
    /// Counts into `account`.
    pub fn new(account: &'a Account) -> Self {
        StageProfiler { account, on: false, last: 0 }
    }

    /// Begins a round. Time before it is not counted.
    pub fn begin(&mut self) {
        self.on = self.account.on.load(Relaxed);
        if self.on {
            self.last = ticks::now();
        }
    }

    /// Charges the time since the last stamp to `step`.
    pub fn mark(&mut self, step: Step) {
        if self.on {
            let now = ticks::now();
            let passed = now.saturating_sub(self.last);
            self.last = now;
            self.account.ticks[step as usize].fetch_add(passed, Relaxed);
        }
    }

    /// Counts a received burst of these frames and bytes.
    pub fn received(&mut self, frames: usize, bytes: u64) {
        if self.on && frames > 0 {
            self.account.frames.fetch_add(frames as u64, Relaxed);
            self.account.bytes.fetch_add(bytes, Relaxed);
            self.account.bursts.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_counted_while_profiling_is_off() {
        let account = Account::new();
        let mut profiler = StageProfiler::new(&account);
        let mut work = || {
            profiler.begin();
            std::hint::black_box([0; 4096]);
            profiler.mark(Step::Ring);
            profiler.received(3, 300);
            profiler.received(0, 0);
            profiler.mark(Step::Kernel);
        };
        work();
        assert_eq!(account.times(), GuestTimes::default());
        account.set(true);
        work();
        let times = account.times();
        assert_eq!((times.frames, times.bytes, times.bursts), (3, 300, 1));
        assert!(times.ring > 0 && times.signal == 0 && times.send == 0, "{times:?}");
        account.set(false);
        work();
        assert_eq!(account.frames.load(Relaxed), 3);
    }
}
