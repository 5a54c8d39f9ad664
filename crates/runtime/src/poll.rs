//! The state machine of a worker that has nothing to do.
//!
//! The worker is in one of four states:
//!
//! - **busy**: its last round moved something;
//! - **spin**: it polls again at once;
//! - **nap**: it sleeps for a short while that is bounded by a timer. Its queues are not armed, so
//!   their peers do not signal;
//! - **armed**: its peers were asked to signal, their rings were polled once more, and the worker
//!   sleeps until a signal comes.
//!
//! A round that moved something leads to busy from any state. From busy, a round that moved nothing
//! leads to spin or nap, as the [`Plan`] says, and to armed once a given time has passed since
//! something last moved. How a worker gets to sleep is in [`sleep`](crate::sleep); this module has
//! the decision, with no clock, no file and no ring in it.
//!
//! The plan follows from the lengths of recent gaps, from the measured [`Cost`] of sleeping, and
//! from how much a shorter wait is worth ([`PollingPolicy`]). The length of a gap that was slept
//! through is not known. So one gap of every [`EXPLORE`] is polled through for as long as a sleep
//! takes, whatever the plan says, and only gaps that were polled through for that long count. A nap
//! is only useful if more than one frame comes while it lasts; a peer that waits for its answer
//! sends nothing meanwhile. So naps, and the frames that they found, are counted; if naps find
//! hardly more than one frame each, they are given up for a while ([`BAN`]).

pub mod cost;
mod gaps;
mod plan;
pub mod policy;
pub mod pressure;
pub mod show;

use std::time::{Duration, Instant};

pub use cost::Cost;
use gaps::Gaps;
use plan::Plan;
pub use policy::PollingPolicy;

/// How long a queue is polled at least after something was last found there, while the worker is
/// awake for other queues anyway. Such polling costs little, and saves the peer its signals.
pub const BESIDE: Duration = Duration::from_micros(50);

/// One gap in this many is polled through for as long as a sleep takes.
const EXPLORE: u32 = 32;
/// While fewer gaps than this are known, every gap is explored.
const KNOWN: u32 = 16;
/// Gaps after which the plan is made anew, and the shortest time between two plans.
const RENEW: u32 = 8;
const SETTLED: Duration = Duration::from_micros(100);
/// The number of naps with work that are judged together, and the units of work that each of them
/// must find on average to be worthwhile.
const JUDGED: u64 = 8;
const WORTH_NAPPING: u64 = 2;
/// How long naps are not tried after they were judged useless.
const BAN: Duration = Duration::from_millis(100);
/// Units of work in a round after which no nap follows: half a burst came within the last nap.
const MANY: u64 = 32;

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum State {
    /// Its last round moved something.
    Busy,
    /// The worker polls.
    Spin,
    /// The worker sleeps until a timer ends.
    Nap,
    /// The worker sleeps until it is signalled.
    Armed,
}

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [State; 4] = [State::Busy, State::Spin, State::Nap, State::Armed];

    /// The name under which it is shown.
    pub fn name(self) -> &'static str {
        match self {
            State::Busy => "busy",
            State::Spin => "spin",
            State::Nap => "nap",
            State::Armed => "sleep",
        }
    }
}

/// The next action of an idle worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Poll again.
    Poll,
    /// Sleep for this time, with queues that are not armed.
    Nap(Duration),
    /// Arm what is not armed yet, and sleep.
    Arm,
}

/// The state from which one worker decides.
#[derive(Debug)]
pub struct Poll {
    policy: PollingPolicy,
    cost: Cost,
    gaps: Gaps,
    plan: Plan,
    age: PlanAge,
    state: State,
    /// When the last round that moved something began.
    began: Instant,
    /// Since when nothing has moved: when that round ended.
    moved: Instant,
    /// Units of work that the last round did.
    found: u64,
    /// The present gap is polled through whatever the plan says.
    exploring: bool,
    naps: Naps,
    pressure: Pressure,
}

/// How old a plan is.
#[derive(Debug)]
struct PlanAge {
    /// Gaps so far.
    gaps: u32,
    /// Gaps that count and that the plan does not know of.
    fresh: u32,
    /// When the plan was made.
    made: Instant,
    /// The plan, or what it rests on, has changed since it was shown.
    news: bool,
}

/// Statistics on the benefit of naps.
#[derive(Debug, Default)]
struct Naps {
    /// Naps that ended with something since they were judged last.
    finds: u64,
    /// The units of work that those found.
    units: u64,
    /// Until when no nap is tried.
    banned: Option<Instant>,
}

/// Whether the host is short of CPU time. During a shortage, nothing is polled in vain.
#[derive(Debug, Default)]
struct Pressure {
    here: bool,
    /// How often a shortage has begun.
    begun: u64,
}

impl Poll {
    /// The state of a worker that begins.
    pub fn new(policy: PollingPolicy, cost: Cost, now: Instant) -> Self {
        let mut poll = Poll {
            policy,
            cost,
            gaps: Gaps::default(),
            plan: Plan::default(),
            age: PlanAge { gaps: 0, fresh: 0, made: now, news: true },
            state: State::Busy,
            began: now,
            moved: now,
            found: 0,
            exploring: false,
            naps: Naps::default(),
            pressure: Pressure::default(),
        };
        poll.renew(now);
        poll
    }

    /// Notes that a round that began at `now` did `units` units of work, or other work.
    #[inline]
    pub fn found(&mut self, now: Instant, units: u64) {
        self.found = units;
        if self.state != State::Busy {
            self.end_gap(now);
        }
        (self.began, self.moved) = (now, now);
    }

    /// Notes that the round which found something ended at `now`. A gap begins here: the time of
    /// the round itself, which may be long, is no part of it.
    #[inline]
    pub fn worked_until(&mut self, now: Instant) {
        self.moved = now;
    }

    /// Ends a gap. Its length counts if the worker polled long enough that a sleep would not have
    /// hidden it.
    fn end_gap(&mut self, now: Instant) {
        let gap = ns(now.saturating_duration_since(self.moved));
        match self.state {
            State::Nap => self.judge(now),
            _ if !self.is_seen() => {}
            State::Armed => self.count(gap.saturating_sub(self.cost.wake)),
            State::Spin | State::Busy => self.count(gap),
        }
        self.state = State::Busy;
        self.age.gaps = self.age.gaps.wrapping_add(1);
        self.exploring = self.age.gaps.is_multiple_of(EXPLORE) || self.gaps.known() < KNOWN;
        if self.age.fresh >= RENEW && now.saturating_duration_since(self.age.made) >= SETTLED {
            self.renew(now);
        }
    }

    fn count(&mut self, gap: u64) {
        self.gaps.add(gap);
        self.age.fresh += 1;
    }

    /// Whether the present gap is polled through for as long as a sleep takes, or always would be.
    fn is_seen(&self) -> bool {
        !self.yields() && (self.exploring || self.plan.polls() >= self.cost.hidden())
    }

    /// Whether the worker polls nothing in vain at present.
    fn yields(&self) -> bool {
        self.pressure.here && self.policy.is_adaptive()
    }

    /// A nap has ended with something.
    fn judge(&mut self, now: Instant) {
        self.naps.finds += 1;
        self.naps.units += self.found;
        if self.naps.finds < JUDGED {
            return;
        }
        if self.naps.units < self.naps.finds * WORTH_NAPPING {
            self.naps.banned = Some(now + BAN);
            self.renew(now);
        }
        (self.naps.finds, self.naps.units) = (0, 0);
    }

    /// Makes the plan anew.
    fn renew(&mut self, now: Instant) {
        (self.age.fresh, self.age.made, self.age.news) = (0, now, true);
        self.naps.banned = self.naps.banned.filter(|end| now < *end);
        self.plan = plan::best(&self.gaps, &self.cost, self.policy, self.naps.banned.is_none());
    }

    /// How long nothing must have moved before the worker arms its queues.
    pub fn window(&self) -> Duration {
        let until = match self.policy.is_adaptive() {
            _ if self.yields() => 0,
            true if self.exploring => self.plan.polls().max(self.cost.hidden()).min(plan::MAX_POLL),
            _ => self.plan.until,
        };
        Duration::from_nanos(until)
    }

    /// Whether a queue where something was last found by the round that began at `found`, and
    /// nothing at `now`, is to be armed.
    pub fn arms(&self, found: Instant, now: Instant) -> bool {
        let window = self.window();
        let found = if found == self.began { self.moved } else { found };
        let needed = if now.saturating_duration_since(self.moved) < window {
            window.max(BESIDE)
        } else {
            window
        };
        now.saturating_duration_since(found) >= needed
    }

    /// A round at `now` moved nothing: what to do next.
    pub fn idle(&mut self, now: Instant) -> Next {
        self.state = State::Spin;
        if now.saturating_duration_since(self.moved) >= self.window() {
            return Next::Arm;
        }
        match self.plan.nap {
            1.. if !self.exploring && self.found < MANY => {
                Next::Nap(Duration::from_nanos(self.plan.nap))
            }
            _ => Next::Poll,
        }
    }

    /// Notes that the worker goes to sleep, for a nap or armed.
    pub fn sleeps(&mut self, state: State) {
        self.state = state;
    }

    /// The state of the worker.
    pub fn state(&self) -> State {
        self.state
    }

    /// Since when nothing has moved.
    pub fn moved(&self) -> Instant {
        self.moved
    }

    /// Sets the policy.
    pub fn set_policy(&mut self, policy: PollingPolicy, now: Instant) {
        if policy != self.policy {
            self.policy = policy;
            self.renew(now);
        }
    }

    /// Whether the host is short of CPU time from now on.
    pub fn set_pressure(&mut self, here: bool) {
        self.pressure.begun += u64::from(here && !self.pressure.here);
        self.pressure.here = here;
    }

    /// The cost of sleeping, to be corrected.
    pub fn cost_mut(&mut self) -> &mut Cost {
        self.age.news = true;
        &mut self.cost
    }

    /// The worker's decision, if the plan was made anew since the last call.
    pub fn news(&mut self) -> Option<Decision> {
        std::mem::take(&mut self.age.news).then(|| self.decision())
    }

    /// The worker's decision, to be shown.
    pub fn decision(&self) -> Decision {
        let percentile = |percent| self.gaps.percentile(percent);
        Decision {
            policy: self.policy,
            nap: Duration::from_nanos(self.plan.nap),
            window: Duration::from_nanos(self.plan.until),
            cost: self.cost,
            gaps: [50, 90, 99].map(percentile),
            short: self.pressure.here,
            suspensions: self.pressure.begun,
        }
    }
}

/// The inputs and the result of a worker's decision at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The policy of the most impatient of the worker's queues that were busy lately.
    pub policy: PollingPolicy,
    /// How long a nap is; zero: it polls.
    pub nap: Duration,
    /// How long it polls or naps before it arms its queues.
    pub window: Duration,
    /// The cost of sleeping.
    pub cost: Cost,
    /// The 50th, 90th and 99th percentile of the gaps, in ns.
    pub gaps: [u64; 3],
    /// The host is short of CPU.
    pub short: bool,
    /// How often a shortage has begun.
    pub suspensions: u64,
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

#[cfg(all(test, loom))]
mod models;
