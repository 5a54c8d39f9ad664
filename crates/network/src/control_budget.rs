//! A budget for the work that a port's control messages cause on the workers.
//!
//! A message of a front-end may cause work on all workers: a queue leaves its worker and comes
//! back, all routes are computed again, memory is mapped and unmapped under running threads. Each
//! port therefore has a budget, a token bucket, which is charged for such work after it is done. A
//! port that has overdrawn its budget is not listened to until the debt is paid off; no other port
//! waits.
//!
//! The budget of a port earns one hundredth of the time, and holds half a second: the
//! start of a guest with 16 queues uses less than a tenth of that.

use std::time::{Duration, Instant};

use runtime::time_share::TimeShare;

/// Cost of a message that changes nothing, in time of a worker.
pub const MESSAGE: Duration = Duration::from_micros(10);

/// Cost of taking a queue pair from its worker and giving it back, or of publishing a topology.
pub const QUEUE: Duration = Duration::from_micros(50);

/// Cost of mapping and unmapping a region of memory.
pub const REGION: Duration = Duration::from_micros(50);

/// A port may use 1/`SHARE` of the time.
const SHARE: u32 = 100;

/// The time that a port may use at once.
const BURST: Duration = Duration::from_millis(500);

/// The budget of one port.
#[derive(Debug)]
pub struct ControlBudget(TimeShare);

impl Default for ControlBudget {
    fn default() -> Self {
        ControlBudget(TimeShare::new(SHARE, BURST))
    }
}

impl ControlBudget {
    /// Charges for work that was done at `now`.
    pub fn charge(&mut self, cost: Duration, now: Instant) {
        self.0.charge(cost, now);
    }

    /// Until when the port is not listened to; `None`: it may go on at once.
    pub fn overdrawn_until(&self, now: Instant) -> Option<Instant> {
        self.0.overdrawn_until(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does work of this cost whenever allowed. Returns how often that was within `time`.
    fn done(budget: &mut ControlBudget, cost: Duration, time: Duration) -> u32 {
        let start = Instant::now();
        let (mut now, mut count) = (start, 0);
        while now < start + time {
            budget.charge(cost, now);
            count += 1;
            now = budget.overdrawn_until(now).unwrap_or(now + Duration::from_micros(1));
        }
        count
    }

    #[test]
    fn a_flood_gets_its_share() {
        let cost = MESSAGE + 2 * QUEUE;
        let burst = BURST.div_duration_f64(cost) as u32;
        let flood = done(&mut ControlBudget::default(), cost, Duration::from_secs(100));
        let share = Duration::from_secs(1).div_duration_f64(cost) as u32;
        assert!((burst + share..burst + share + share / 10).contains(&flood), "{flood}");
    }

    #[test]
    fn a_port_with_slow_interrupts_waits_whatever_it_has_saved() {
        let (mut budget, now) = (ControlBudget::default(), Instant::now());
        budget.charge(runtime::slow_signals::COST, now);
        assert_eq!(budget.overdrawn_until(now), Some(now + Duration::from_secs(25)));
    }

    /// As QEMU starts such a guest: it shows the memory once for each queue pair.
    #[test]
    fn a_guest_with_sixteen_queues_boots_and_resets_without_delay() {
        let (queues, regions, now) = (16, 8, Instant::now());
        let memory = MESSAGE + QUEUE * (queues + 1) + REGION * regions;
        let ring = 8 * MESSAGE + 3 * 2 * QUEUE;
        let start = memory * queues + ring * 2 * queues;
        let mut budget = ControlBudget::default();
        for _ in 0..8 {
            budget.charge(start, now);
            assert_eq!(budget.overdrawn_until(now), None);
        }
    }
}
