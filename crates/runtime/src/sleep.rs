//! An idle worker: polling a little longer, or sleeping in the kernel until a signal comes.
//!
//! [`Poll`] decides how the worker waits. Before the worker sleeps, it announces its sleep and then
//! looks for mail once more. Arming a queue looks at its ring once more. So either a sender finds
//! the worker asleep and signals, or the worker finds what the sender left.

use std::num::NonZeroU64;
use std::time::Duration;

use rustix::thread::set_current_timer_slack;

use crate::id::QueueId;
use crate::pipeline::{Pipeline, Status, Waits};
use crate::poll::cost::cpu_time;
use crate::poll::pressure::CpuPressure;
use crate::poll::{Cost, Next, Poll, PollingPolicy, State};
use crate::queues::Watch;
use crate::stolen;
use crate::watcher::{SIGNALS, Signal};
use crate::worker::Worker;

/// How often a worker that is kept busy by some queues polls for signals of those that are armed.
const EVENT_INTERVAL: Duration = Duration::from_micros(20);

/// Interval at which a worker looks for room when no wait has an end of its own, or when no signal
/// of room would come.
const ROOM_INTERVAL: Duration = Duration::from_millis(1);

/// One unbounded sleep in this many is made to end after [`PROBE`], to measure how late timers are.
const PROBED: u64 = 64;
const PROBE: Duration = Duration::from_micros(200);
/// The CPU time of one sleep in this many is measured. Not a divisor of [`PROBED`], so that sleeps
/// without an end are measured, too.
const TIMED: u64 = 15;

impl<P: Pipeline> Worker<P> {
    /// Prepares the calling thread for its first round: measures the cost of sleeping, and sets
    /// `policy` for queues that have none of their own. `pinned`: the thread has a CPU of its own.
    pub(crate) fn prepare_thread(&mut self, policy: PollingPolicy, pinned: bool) {
        // Timers would be late by 50 us otherwise. If the kernel refuses, that is measured, too.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let cost = Cost::measured();
        self.tick();
        self.pipeline.started();
        self.sleeper.policy = policy;
        self.sleeper.poll = Poll::new(policy, cost, self.now);
        self.sleeper.pressure = CpuPressure::of_this_thread(pinned, self.now);
        stolen::prepare();
    }

    /// Nothing moved: polls a little longer, or sleeps.
    pub(crate) fn idle(&mut self) {
        let sleeper = &mut self.sleeper;
        if sleeper.poll.state() == State::Busy {
            sleeper.poll.set_pressure(sleeper.pressure.is_here(self.now));
            self.choose_policy(None);
        }
        let blocked = |slot| matches!(self.pipeline.status(slot), Status::Blocked(_));
        match self.sleeper.poll.idle(self.now) {
            Next::Arm if self.active.iter().all(blocked) => self.wait(),
            Next::Nap(time) if !self.active.iter().any(blocked) && !self.has_pending() => {
                self.sleep(State::Nap, Some(time));
            }
            _ => {
                std::hint::spin_loop();
                self.poll_on();
            }
        }
    }

    /// Takes the policy of the most impatient queue that is polled. To be called when the worker
    /// has just become idle, or queues have come or left. `otherwise`: the policy if no queue is
    /// polled; `None`: the same as before.
    pub(crate) fn choose_policy(&mut self, otherwise: Option<PollingPolicy>) {
        let own = |slot| self.queues.get(slot).and_then(|queue| queue.policy);
        let all = self.active.iter().map(|slot| own(slot).unwrap_or(self.sleeper.policy));
        if let Some(policy) = all.max().or(otherwise) {
            self.sleeper.poll.set_policy(policy, self.now);
        }
        self.show_decision();
    }

    fn show_decision(&mut self) {
        if let Some(decision) = self.sleeper.poll.news() {
            self.pipeline.counters().polling.publish(&decision);
        }
    }

    /// Whether anything is waited for that is not the work of a queue.
    fn has_pending(&mut self) -> bool {
        let waits = &mut self.sleeper.waits;
        waits.clear();
        self.pipeline.pending(waits);
        !waits.is_empty()
    }

    /// Queues are armed, or blocked: sleeps until something comes for one of them.
    fn wait(&mut self) {
        self.has_pending();
        let mut waits = std::mem::take(&mut self.sleeper.waits);
        for slot in self.active.iter() {
            if let Status::Blocked(blocked) = self.pipeline.status(slot) {
                waits.add(blocked);
            }
        }
        if !waits.rooms.is_empty() || !self.active.is_empty() {
            self.wait_for_room(&waits);
        } else {
            self.sleep_armed(None);
        }
        self.sleeper.waits = waits;
    }

    /// Sleeps until one of the awaited queues has room, or the first wait is over, or anything else
    /// happens.
    fn wait_for_room(&mut self, waits: &Waits) {
        let mut room = false;
        for &slot in &waits.rooms {
            room |= !self.watch(slot) || self.pipeline.arm(slot, true).unwrap_or(false);
        }
        if room {
            self.poll_on();
        } else {
            let limit = waits.until.map(|until| until.saturating_duration_since(self.now));
            let silent = |slot: &usize| self.pipeline.wakers(*slot).room.is_none();
            let least = waits.rooms.iter().any(silent).then_some(ROOM_INTERVAL);
            let limit = limit.into_iter().chain(least).min();
            self.sleep_armed(Some(limit.unwrap_or(ROOM_INTERVAL)));
        }
        for &slot in &waits.rooms {
            self.disarm_room(slot);
        }
    }

    /// Asks for no more signals of room in `slot`; signals of work stay as they are watched.
    fn disarm_room(&mut self, slot: usize) {
        if self.pipeline.status(slot) == Status::Failed {
            return;
        }
        self.pipeline.disarm(slot);
        let armed = self.queues.get(slot).is_some_and(|queue| queue.watch == Watch::Armed);
        if armed && self.pipeline.arm(slot, false) == Ok(true) {
            self.activate(slot);
        }
    }

    /// Continues without sleep.
    fn poll_on(&mut self) {
        self.poll_events_again();
        self.tick();
    }

    /// Sleeps until a signal comes or `limit` has passed, with armed queues.
    fn sleep_armed(&mut self, limit: Option<Duration>) {
        self.show_decision();
        let probe = self.sleeper.sleeps.is_multiple_of(PROBED).then_some(PROBE);
        self.sleep(State::Armed, limit.or(probe));
    }

    /// Sleeps in the kernel until a signal comes or `limit` has passed. The `state` counts only if
    /// it does sleep.
    fn sleep(&mut self, state: State, limit: Option<Duration>) {
        self.link.doorbell().sleeping.announce();
        if self.link.has_mail() || self.pipeline.has_mail() {
            self.link.doorbell().sleeping.awake();
            self.poll_on();
            return;
        }
        let sleeper = &mut self.sleeper;
        sleeper.poll.sleeps(state);
        sleeper.sleeps += 1;
        let cpu = sleeper.sleeps.is_multiple_of(TIMED).then(cpu_time);
        let counters = self.pipeline.counters();
        counters.polling.naps.add(u64::from(state == State::Nap));
        counters.sleeps.add(1);
        let due = self.pipeline.deadline().map(|due| due.saturating_duration_since(self.now));
        let limit = limit.into_iter().chain(due).min();
        self.pipeline.sleeping(true);
        let signals = self.poll_events(limit);
        self.pipeline.sleeping(false);
        self.link.doorbell().sleeping.awake();
        let before = self.now;
        self.tick();
        self.sleeper.polled = self.now;
        self.sleeper.learn(limit.filter(|_| signals == 0), self.now - before, cpu);
    }

    /// Polls for signals of armed queues, if that was not done lately.
    #[inline]
    pub(crate) fn poll_events_again(&mut self) {
        if self.now - self.sleeper.polled > EVENT_INTERVAL {
            self.poll_events(Some(Duration::ZERO));
        }
    }

    /// Takes note of the signals that have come, waiting for one up to `limit`. Returns how many
    /// there were.
    fn poll_events(&mut self, limit: Option<Duration>) -> usize {
        self.sleeper.polled = self.now;
        let mut woken = [QueueId(0); SIGNALS];
        let (mut count, mut signals) = (0, 0);
        self.sleeper.watcher.wait(limit, |signal| {
            signals += 1;
            if let Signal::Work(queue) = signal {
                woken[count] = queue;
                count += 1;
            }
        });
        for &queue in &woken[..count] {
            if let Some(slot) = self.queues.find(queue) {
                self.activate(slot);
            }
        }
        signals
    }

    /// Polls an armed queue again.
    fn activate(&mut self, slot: usize) {
        let Some(queue) = self.queues.get_mut(slot) else { return };
        if queue.watch == Watch::Armed {
            self.pipeline.woken(slot);
            queue.watch = Watch::Polled { found: self.now };
            self.active.push(queue.class, slot);
        }
    }
}
