//! A worker with nothing to do: it looks a little longer, or sleeps in the kernel until something
//! is signalled.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use rustix::thread::set_current_timer_slack;

use crate::poll::cost::cpu_time;
use crate::poll::short::Shortage;
use crate::poll::{Cost, Next, Poll, PollingPolicy, State};
use crate::slot::{Wait, Watch};
use crate::stage_profiler::Step;
use crate::topology::QueueId;
use crate::watch::{SIGNALS, Signal};
use crate::worker::Worker;

/// How soon is looked again for a receiver that parcels wait for, and for one whose wait has no end
/// of its own.
const HELD: Duration = Duration::from_micros(50);
const WAITING: Duration = Duration::from_millis(1);

/// One sleep of so many is told to end after that time.
const PROBED: u64 = 64;
const PROBE: Duration = Duration::from_micros(200);
/// The CPU time of one sleep of so many is taken. Not a divisor of that: of those that have no end,
/// too.
const TIMED: u64 = 15;

impl Worker {
    /// Before the first turn: finds out what sleeping costs the calling thread, and goes by
    /// `policy` where ports have none of their own. `pinned`: the thread has a CPU of its
    /// own.
    pub(crate) fn wake_up(&mut self, policy: PollingPolicy, pinned: bool) {
        // Timers would be late by 50 us otherwise. If the kernel refuses, that is measured, too.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        self.policy = policy;
        let cost = Cost::measured();
        self.tick();
        self.poll = Poll::new(policy, cost, self.now);
        self.shortage = Shortage::of_this_thread(pinned, self.now);
    }

    /// Nothing moved: looks a little longer, or sleeps.
    pub(crate) fn rest(&mut self) {
        if self.poll.state() == State::Busy {
            self.poll.set_short(self.shortage.is_here(self.now));
            self.reconsider(None);
        }
        let waits = |at| self.slots.get(at).is_some_and(|slot| slot.wait.is_some() || slot.settle);
        match self.poll.idle(self.now) {
            Next::Arm if self.active.iter().all(waits) => self.arm(),
            Next::Nap(time) if !self.active.iter().any(waits) && self.may_nap() => {
                self.doze(State::Nap, Some(time));
            }
            _ => {
                std::hint::spin_loop();
                self.look_on();
            }
        }
    }

    /// It has just become idle, or queues have come and gone: whose patience counts. `otherwise`:
    /// whose it is if no queue is looked at; `None`: the same as before.
    pub(crate) fn reconsider(&mut self, otherwise: Option<PollingPolicy>) {
        let asked = |at| self.slots.get(at).and_then(|slot| slot.on.policy);
        let policy =
            self.active.iter().map(|at| asked(at).unwrap_or(self.policy)).max().or(otherwise);
        if let Some(policy) = policy {
            self.poll.be(policy, self.now);
        }
        if let Some(decision) = self.poll.news() {
            self.counters.polling.publish(&decision);
        }
    }

    /// Whether nothing is waited for but frames of the queues that are looked at.
    fn may_nap(&self) -> bool {
        self.debtors.is_empty() && self.crossing.held().next().is_none()
    }

    /// Queues are armed, or wait for something: sleeps until that comes.
    fn arm(&mut self) {
        let (receivers, until) = self.full_receivers();
        if !receivers.is_empty() || !self.active.is_empty() {
            self.wait_for_room(&receivers, until);
        } else {
            self.sleep(None);
        }
    }

    /// Goes on without sleep.
    fn look_on(&mut self) {
        self.glance_again();
        self.tick();
    }

    /// Receivers that frames wait for, and when the first wait of any kind ends.
    pub(crate) fn full_receivers(&self) -> (Vec<usize>, Option<Instant>) {
        let mut receivers = Vec::new();
        let mut until = None;
        for at in self.active.iter() {
            let end = match self.slots.get(at).and_then(|slot| slot.wait) {
                Some(Wait::Receiver { slot, until }) => {
                    receivers.push(slot);
                    until
                }
                Some(Wait::Rest { until }) => until,
                Some(Wait::Parcels) | None => continue,
            };
            until = Some(until.map_or(end, |u: Instant| u.min(end)));
        }
        for &at in &self.debtors {
            // What it fetches frees its senders; if it fetches nothing, its time ends.
            if let Some(due) = self.slots.get(at).and_then(|slot| slot.loans.due(self.now)) {
                receivers.push(at);
                until = Some(until.map_or(due, |u: Instant| u.min(due)));
            }
        }
        for parcel in self.crossing.held() {
            receivers.extend(self.slots.find(parcel.receiver));
            until = Some(self.now + HELD);
        }
        (receivers, until)
    }

    /// Sleeps until one of `receivers` has room, or the first wait is over, or anything else
    /// happens.
    pub(crate) fn wait_for_room(&mut self, receivers: &[usize], until: Option<Instant>) {
        let mut room = false;
        for &at in receivers {
            if let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.is_healthy()) {
                match slot.on.pair.arm(true) {
                    Ok(there) => room |= there,
                    Err(error) => slot.fail(error),
                }
            }
        }
        if room {
            self.look_on();
        } else {
            let limit = until.map_or(WAITING, |u| u.saturating_duration_since(self.now));
            self.sleep(Some(limit));
        }
        for &at in receivers {
            self.disarm(at);
        }
    }

    /// Takes back the wish for Rx signals; Tx signals stay as the slot's watch says.
    pub(crate) fn disarm(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.is_healthy()) else { return };
        slot.on.pair.disarm();
        if slot.watch == Watch::Armed {
            match slot.on.pair.arm(false) {
                Ok(true) => self.activate(at),
                Ok(false) => {}
                Err(error) => slot.fail(error),
            }
        }
    }

    /// Sleeps until a signal comes or `limit` has passed, with armed queues.
    pub(crate) fn sleep(&mut self, limit: Option<Duration>) {
        if let Some(decision) = self.poll.news() {
            self.counters.polling.publish(&decision);
        }
        // Now and then one has an end, so that it is seen how late timers are.
        let probe = self.sleeps.is_multiple_of(PROBED).then_some(PROBE);
        self.doze(State::Armed, limit.or(probe));
    }

    /// Sleeps in the kernel until a signal comes or `limit` has passed. In which `state` it does so
    /// only counts if it does.
    fn doze(&mut self, state: State, limit: Option<Duration>) {
        self.shared.doorbells[self.own].sleeping.announce();
        if self.has_mail() {
            self.shared.doorbells[self.own].sleeping.awake();
            self.look_on();
            return;
        }
        self.poll.sleeps(state);
        self.counters.polling.naps.add(u64::from(state == State::Nap));
        self.sleeps += 1;
        self.counters.sleeps.add(1);
        self.profiler.mark(Step::Look);
        let limit = self.held.limit(limit, self.now);
        let cpu = self.sleeps.is_multiple_of(TIMED).then(cpu_time);
        let signals = self.glance(limit);
        self.profiler.mark(Step::Sleep);
        self.shared.doorbells[self.own].sleeping.awake();
        let before = self.now;
        self.tick();
        self.glanced = self.now;
        self.learn(limit.filter(|_| signals == 0), self.now - before, cpu);
    }

    /// What a sleep says of what sleeping costs. `limit`: it ended because that was over; `cpu`:
    /// CPU time when it began.
    fn learn(&mut self, limit: Option<Duration>, slept: Duration, cpu: Option<u64>) {
        // A limit that was over before says nothing, and neither does a signal to the process.
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

    /// Whether another thread has left something for this worker.
    pub(crate) fn has_mail(&self) -> bool {
        let shared = &self.shared;
        self.crossing.has_mail()
            || shared.mailboxes[self.own].has_mail()
            || shared.topology.is_newer(self.seen)
            || shared.sampling.get() != self.profiler.number()
    }

    /// Takes note of the signals that have come, waiting for one up to `limit`. Returns how many it
    /// were.
    pub(crate) fn glance(&mut self, limit: Option<Duration>) -> usize {
        self.glanced = self.now;
        let mut woken = [QueueId(0); SIGNALS];
        let (mut count, mut signals) = (0, 0);
        self.watcher.wait(limit, |signal| {
            signals += 1;
            if let Signal::Tx(queue) = signal {
                woken[count] = queue;
                count += 1;
            }
        });
        for &queue in &woken[..count] {
            if let Some(at) = self.slots.find(queue) {
                self.activate(at);
            }
        }
        signals
    }

    /// Looks at an armed queue again.
    pub(crate) fn activate(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        if slot.watch == Watch::Armed {
            slot.on.counters.kicks.add(1);
            slot.on.pair.disarm();
            slot.watch = Watch::Polled { found: self.now };
            self.active.push(slot.on.port, at);
        }
    }
}
