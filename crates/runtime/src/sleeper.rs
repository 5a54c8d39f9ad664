//! The state that sleeping needs: the worker's watcher, and the known cost of sleeping.

use std::io;
use std::time::{Duration, Instant};

use crate::doorbell::Doorbell;
use crate::pipeline::Waits;
use crate::poll::cost::cpu_time;
use crate::poll::pressure::CpuPressure;
use crate::poll::{Cost, Poll, PollingPolicy};
use crate::watcher::{Signal, Watcher};

/// The state that a worker sleeps by.
pub(crate) struct Sleeper {
    pub watcher: Watcher,
    /// The policy of queues that have none of their own.
    pub policy: PollingPolicy,
    pub poll: Poll,
    pub pressure: CpuPressure,
    /// How often the worker has slept.
    pub sleeps: u64,
    /// When events were polled last.
    pub polled: Instant,
    /// Reused from sleep to sleep.
    pub waits: Waits,
}

impl Sleeper {
    pub fn new(doorbell: &Doorbell, now: Instant) -> io::Result<Self> {
        let watcher = Watcher::new()?;
        watcher.add(doorbell.fd(), Signal::Doorbell)?;
        let policy = PollingPolicy::default();
        Ok(Sleeper {
            watcher,
            policy,
            poll: Poll::new(policy, Cost::default(), now),
            pressure: CpuPressure::never(now),
            sleeps: 0,
            polled: now,
            waits: Waits::default(),
        })
    }

    /// Corrects the cost of sleeping by the measurement of one sleep. `limit`: the time limit that
    /// ended the sleep, if one did; `cpu`: CPU time when the sleep began.
    pub fn learn(&mut self, limit: Option<Duration>, slept: Duration, cpu: Option<u64>) {
        // A limit that had passed before the sleep says nothing, and neither does a signal to the
        // process.
        let late =
            limit.filter(|limit| !limit.is_zero()).and_then(|limit| slept.checked_sub(limit));
        let cost = self.poll.cost_mut();
        if let Some(late) = late {
            cost.came_late(late.as_nanos() as u64);
        }
        if let Some(cpu) = cpu {
            cost.spent(late.is_some(), cpu_time().saturating_sub(cpu));
        }
    }
}
