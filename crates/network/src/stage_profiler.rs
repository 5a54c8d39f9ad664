//! Profiles of a worker's time, by time stamps between its steps.
//!
//! All time between two stamps belongs to one step, so that the steps add up to the whole time of
//! the worker. The time of a burst is also charged to the queues that received its frames, in
//! proportion to their numbers. For frames that are handed off, the time spent here is passed on to
//! the other worker. Time for frames that no queue received, and for polling and sleeping, is
//! charged to no queue.

use std::sync::Arc;

use ring::ticks;

use crate::count::{QueueCounters, WorkerCounters};
use crate::step::{Step, Ticks};

/// A stopwatch for one step within another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stopwatch {
    on: bool,
    ticks: u64,
}

impl Stopwatch {
    /// Runs `work`, and adds its time.
    #[inline]
    pub fn during<T>(&mut self, work: impl FnOnce() -> T) -> T {
        if !self.on {
            return work();
        }
        let start = ticks::now();
        let done = work();
        self.ticks += ticks::now().saturating_sub(start);
        done
    }
}

/// A queue that received frames of the present burst.
struct Share {
    queue: Arc<QueueCounters>,
    frames: u64,
    bytes: u64,
}

/// A worker's stamps.
pub struct StageProfiler {
    /// The present request; zero: no stamps are taken.
    number: u64,
    /// The first request since stamps were last off.
    since: u64,
    last: u64,
    /// Times of the present burst's steps.
    ticks: Ticks,
    shares: Vec<Share>,
    own: Arc<WorkerCounters>,
}

impl StageProfiler {
    /// A profiler for the worker with these counters, switched off.
    pub fn new(own: Arc<WorkerCounters>) -> Self {
        StageProfiler {
            number: 0,
            since: 0,
            last: 0,
            ticks: Ticks::default(),
            shares: Vec::new(),
            own,
        }
    }

    /// Whether stamps are taken.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.number != 0
    }

    /// The request with which it began to take stamps, if it does.
    #[inline]
    pub fn since(&self) -> Option<u64> {
        self.is_on().then_some(self.since)
    }

    /// Follows another request. The time since the last stamp counts as polling.
    pub fn set_request(&mut self, number: u64, heads: &mut Stopwatch) {
        self.mark(Step::Poll);
        self.forget();
        if !self.is_on() {
            (self.last, self.since) = (ticks::now(), number);
        }
        self.number = number;
        *heads = Stopwatch { on: number != 0, ticks: 0 };
    }

    /// Counts the time since the last stamp as that step's.
    #[inline]
    pub fn mark(&mut self, step: Step) {
        if self.is_on() {
            self.stamp(step, 0);
        }
    }

    /// A burst begins: its frames were fetched, and their heads copied in the time that the
    /// stopwatch says.
    #[inline]
    pub fn fetched(&mut self, heads: &mut Stopwatch) {
        if self.is_on() {
            self.forget();
            self.stamp(Step::Fetch, std::mem::take(&mut heads.ticks));
        }
    }

    #[cold]
    fn stamp(&mut self, step: Step, copied: u64) {
        let now = ticks::now();
        // The worker may have moved to another CPU, whose counter is behind.
        let passed = now.saturating_sub(self.last);
        let copied = copied.min(passed);
        self.last = now;
        for (step, ticks) in [(step, passed - copied), (Step::Copy, copied)] {
            self.own.spent.add(step, ticks);
            self.ticks[step as usize] += ticks;
        }
    }

    /// Notes that a queue received `frames` frames of `bytes` bytes in the present burst.
    pub fn received(&mut self, queue: &Arc<QueueCounters>, frames: u64, bytes: u64) {
        if frames > 0 {
            self.shares.push(Share { queue: Arc::clone(queue), frames, bytes });
        }
    }

    /// Splits off the share of `frames` out of `all` in the times of the present burst, to be
    /// passed on with these frames.
    pub fn give(&mut self, frames: usize, all: usize) -> Ticks {
        let mut part = Ticks::default();
        for (part, ticks) in part.iter_mut().zip(&mut self.ticks) {
            *part = share(*ticks, frames as u64, all as u64);
            *ticks -= *part;
        }
        part
    }

    /// Adds the times that another worker spent on the frames that come from it.
    pub fn take(&mut self, part: Ticks) {
        self.ticks.iter_mut().zip(part).for_each(|(ticks, part)| *ticks += part);
    }

    /// Notes that the time since the last burst was not spent on frames.
    pub fn forget(&mut self) {
        self.ticks = Ticks::default();
        self.shares.clear();
    }

    /// Charges the present burst to those who received it.
    pub fn charge(&mut self) {
        let all = self.shares.iter().map(|share| share.frames).sum();
        for Share { queue, frames, bytes } in &self.shares {
            for step in Step::ALL {
                queue.charged.spent.add(step, share(self.ticks[step as usize], *frames, all));
            }
            queue.charged.frames.add(*frames);
            queue.charged.bytes.add(*bytes);
            queue.charged.bursts.add(1);
        }
        self.forget();
    }
}

/// The share of `part` in `all` of `ticks` ticks.
fn share(ticks: u64, part: u64, all: u64) -> u64 {
    if part >= all {
        ticks
    } else {
        (u128::from(ticks) * u128::from(part) / u128::from(all)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiler() -> (StageProfiler, Arc<WorkerCounters>, Stopwatch) {
        let own = Arc::new(WorkerCounters::default());
        (StageProfiler::new(Arc::clone(&own)), own, Stopwatch::default())
    }

    #[test]
    fn nothing_is_stamped_while_nobody_profiles() {
        let (mut profiler, own, mut heads) = profiler();
        profiler.mark(Step::Sleep);
        assert_eq!(heads.during(|| 5), 5);
        profiler.fetched(&mut heads);
        assert_eq!(own.spent.get(), Ticks::default());
        profiler.set_request(1, &mut heads);
        profiler.set_request(2, &mut heads);
        assert_eq!(profiler.since(), Some(1), "it goes on");
        profiler.set_request(0, &mut heads);
        assert_eq!(profiler.since(), None);
        let before = own.spent.get();
        profiler.mark(Step::Fetch);
        assert_eq!(own.spent.get(), before);
    }

    #[test]
    fn steps_add_up_to_the_whole_time() {
        let (mut profiler, own, mut heads) = profiler();
        let outer = ticks::now();
        profiler.set_request(1, &mut heads);
        let start = ticks::now();
        for step in Step::ALL {
            heads.during(|| std::hint::black_box([0; 64]));
            if step == Step::Fetch { profiler.fetched(&mut heads) } else { profiler.mark(step) }
        }
        let end = ticks::now();
        profiler.set_request(2, &mut heads);
        let sum: u64 = own.spent.get().iter().sum();
        assert!((end - start..=ticks::now() - outer).contains(&sum), "{sum}");
    }

    #[test]
    fn receivers_are_charged_by_their_frames() {
        let (mut profiler, own, mut heads) = profiler();
        profiler.set_request(1, &mut heads);
        let queues = [Arc::new(QueueCounters::default()), Arc::new(QueueCounters::default())];
        profiler.ticks[Step::Copy as usize] = 1000;
        // A quarter of the frames goes to another worker.
        let gone = profiler.give(2, 8);
        assert_eq!((gone[Step::Copy as usize], profiler.ticks[Step::Copy as usize]), (250, 750));
        profiler.take(Ticks::from([1, 0, 0, 0, 0, 0, 0]));
        profiler.received(&queues[0], 4, 400);
        profiler.received(&queues[1], 2, 200);
        profiler.received(&queues[1], 0, 0);
        profiler.charge();
        let copied = queues.each_ref().map(|queue| queue.charged.spent.get()[Step::Copy as usize]);
        assert_eq!(copied, [500, 250]);
        let counts = |queue: &QueueCounters| {
            (queue.charged.frames.get(), queue.charged.bytes.get(), queue.charged.bursts.get())
        };
        assert_eq!(queues.each_ref().map(|queue| counts(queue)), [(4, 400, 1), (2, 200, 1)]);
        // What another worker did is in its own account.
        assert_eq!(own.spent.get()[Step::Fetch as usize], 0);
        profiler.charge();
        assert_eq!(counts(&queues[0]), (4, 400, 1), "once");
    }
}
