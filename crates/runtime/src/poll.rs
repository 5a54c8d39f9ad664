//! What a worker does while nothing comes.
//!
//! It is in one of four states:
//!
//! - **busy**: its last turn moved something;
//! - **spin**: it looks again at once;
//! - **nap**: it sleeps for a short while that is bounded by a timer. Its queues are not armed, so
//!   their peers do not signal;
//! - **armed**: its peers were asked to signal, their rings were looked at once more, and it sleeps
//!   until a signal comes.
//!
//! A turn that moved something leads to busy from anywhere. From busy, one that moved nothing leads
//! where the [`Plan`] says: spin or nap until so much time has passed since something last moved,
//! then armed. How a worker gets to sleep is in [`rest`](crate::rest); this is what it decides by,
//! with no clock, no file and no ring in it.
//!
//! The plan follows from the lengths of recent gaps, from the measured [`Cost`] of sleeping, and
//! from how much waiting is worth ([`PollingPolicy`]). What is not looked at is not known, so one gap of
//! every [`EXPLORE`] is looked at for as long as a sleep takes, whatever the plan says; only gaps
//! that were looked at so long count. And a nap is only worth something if more comes while it
//! lasts; a peer that waits for its answer sends nothing meanwhile. So naps are counted with what
//! they found, and given up for a while ([`BAN`]) if that is hardly more than one frame each.

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

/// How long a queue is looked at after something was last found there, at least, as long as the
/// worker is awake for others anyway: that costs little, and saves the peer its signals.
pub const BESIDE: Duration = Duration::from_micros(50);

/// One gap of so many is looked at as long as a sleep takes.
const EXPLORE: u32 = 32;
/// As long as fewer are known, all are.
const KNOWN: u32 = 16;
/// The plan is made anew after so many gaps that count, and not sooner than so.
const RENEW: u32 = 8;
const SETTLED: Duration = Duration::from_micros(100);
/// Naps that ended with something are judged together, so many of them, and are to have found so
/// many frames each.
const JUDGED: u64 = 8;
const WORTH_NAPPING: u64 = 2;
/// How long no nap is tried after they were of no use.
const BAN: Duration = Duration::from_millis(100);
/// A turn that found so many frames is not followed by a nap: more than half a burst came within
/// the last one.
const MANY: u64 = 32;

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum State {
    /// Its last turn moved something.
    Busy,
    /// It looks.
    Spin,
    /// It sleeps for a while.
    Nap,
    /// It sleeps until it is signalled.
    Armed,
}

impl State {
    /// All of them, in the order of their numbers.
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

/// What an idle worker is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look again.
    Look,
    /// Sleep for so long, with queues that are not armed.
    Nap(Duration),
    /// Arm what is not armed yet, and sleep.
    Arm,
}

/// What one worker decides by.
#[derive(Debug)]
pub struct Poll {
    policy: PollingPolicy,
    cost: Cost,
    gaps: Gaps,
    plan: Plan,
    state: State,
    /// Since when nothing has moved.
    moved: Instant,
    /// The host is short of CPU: nothing is looked at in vain.
    short: bool,
    /// Gaps so far; and those that count and that the plan does not know of, and when it was made.
    gap: u32,
    fresh: u32,
    renewed: Instant,
    /// It was, or what it rests on was, since that was shown last.
    news: bool,
    gave_way: u64,
    /// This gap is looked at whatever the plan says.
    exploring: bool,
    /// Frames that the last turn found.
    found: u64,
    /// Naps that ended with something since they were judged last, and the frames that they found.
    finds: u64,
    frames: u64,
    /// Until when no nap is tried.
    banned: Option<Instant>,
}

impl Poll {
    /// Of a worker that begins.
    pub fn new(policy: PollingPolicy, cost: Cost, now: Instant) -> Self {
        let mut poll = Poll {
            policy,
            cost,
            gaps: Gaps::default(),
            plan: Plan::default(),
            state: State::Busy,
            moved: now,
            short: false,
            gap: 0,
            fresh: 0,
            renewed: now,
            news: true,
            gave_way: 0,
            exploring: false,
            found: 0,
            finds: 0,
            frames: 0,
            banned: None,
        };
        poll.renew(now);
        poll
    }

    /// A turn that began at `now` moved something: `frames` that were fetched, or anything else.
    #[inline]
    pub fn found(&mut self, now: Instant, frames: u64) {
        self.found = frames;
        if self.state != State::Busy {
            self.end_gap(now);
        }
        self.moved = now;
    }

    /// A gap is over. How long it was counts if it was looked at so long that a sleep would not
    /// have hidden it.
    fn end_gap(&mut self, now: Instant) {
        let gap = ns(now.saturating_duration_since(self.moved));
        match self.state {
            State::Nap => self.judge(now),
            _ if !self.is_seen() => {}
            State::Armed => self.count(gap.saturating_sub(self.cost.wake)),
            State::Spin | State::Busy => self.count(gap),
        }
        self.state = State::Busy;
        self.gap = self.gap.wrapping_add(1);
        self.exploring = self.gap.is_multiple_of(EXPLORE) || self.gaps.known() < KNOWN;
        if self.fresh >= RENEW && now.saturating_duration_since(self.renewed) >= SETTLED {
            self.renew(now);
        }
    }

    fn count(&mut self, gap: u64) {
        self.gaps.add(gap);
        self.fresh += 1;
    }

    /// Whether the present gap is looked at for as long as a sleep takes, or always would be.
    fn is_seen(&self) -> bool {
        !self.gives_way() && (self.exploring || self.plan.looks() >= self.cost.hidden())
    }

    /// Whether it looks at nothing in vain for the present.
    fn gives_way(&self) -> bool {
        self.short && self.policy.is_adaptive()
    }

    /// A nap has ended with something.
    fn judge(&mut self, now: Instant) {
        self.finds += 1;
        self.frames += self.found;
        if self.finds < JUDGED {
            return;
        }
        if self.frames < self.finds * WORTH_NAPPING {
            self.banned = Some(now + BAN);
            self.renew(now);
        }
        (self.finds, self.frames) = (0, 0);
    }

    /// Makes the plan anew.
    fn renew(&mut self, now: Instant) {
        (self.fresh, self.renewed, self.news) = (0, now, true);
        self.banned = self.banned.filter(|end| now < *end);
        self.plan = plan::best(&self.gaps, &self.cost, self.policy, self.banned.is_none());
    }

    /// How long nothing must have moved before the worker arms its queues.
    pub fn window(&self) -> Duration {
        let until = match self.policy.is_adaptive() {
            _ if self.gives_way() => 0,
            true if self.exploring => {
                self.plan.looks().max(self.cost.hidden()).min(plan::LONGEST_LOOK)
            }
            _ => self.plan.until,
        };
        Duration::from_nanos(until)
    }

    /// Whether a queue where something was last found at `found`, and nothing at `now`, is to be
    /// armed.
    pub fn arms(&self, found: Instant, now: Instant) -> bool {
        let window = self.window();
        let needed = if now.saturating_duration_since(self.moved) < window {
            window.max(BESIDE)
        } else {
            window
        };
        now.saturating_duration_since(found) >= needed
    }

    /// A turn at `now` moved nothing: what to do next.
    pub fn idle(&mut self, now: Instant) -> Next {
        self.state = State::Spin;
        if now.saturating_duration_since(self.moved) >= self.window() {
            return Next::Arm;
        }
        match self.plan.nap {
            1.. if !self.exploring && self.found < MANY => {
                Next::Nap(Duration::from_nanos(self.plan.nap))
            }
            _ => Next::Look,
        }
    }

    /// It goes to sleep: for a nap, or armed.
    pub fn sleeps(&mut self, state: State) {
        self.state = state;
    }

    /// What it is doing.
    pub fn state(&self) -> State {
        self.state
    }

    /// Since when nothing has moved.
    pub fn moved(&self) -> Instant {
        self.moved
    }

    /// From now on it goes by this patience.
    pub fn set_policy(&mut self, policy: PollingPolicy, now: Instant) {
        if policy != self.policy {
            self.policy = policy;
            self.renew(now);
        }
    }

    /// Whether the host is short of CPU time from now on.
    pub fn set_pressure(&mut self, short: bool) {
        self.gave_way += u64::from(short && !self.short);
        self.short = short;
    }

    /// What sleeping costs, to be corrected.
    pub fn cost_mut(&mut self) -> &mut Cost {
        self.news = true;
        &mut self.cost
    }

    /// What it decides by, if the plan was made anew since this was asked last.
    pub fn news(&mut self) -> Option<Decision> {
        std::mem::take(&mut self.news).then(|| self.decision())
    }

    /// What it decides by, for those who want to see it.
    pub fn decision(&self) -> Decision {
        let percentile = |percent| self.gaps.percentile(percent);
        Decision {
            policy: self.policy,
            nap: Duration::from_nanos(self.plan.nap),
            window: Duration::from_nanos(self.plan.until),
            cost: self.cost,
            gaps: [50, 90, 99].map(percentile),
            short: self.short,
            gave_way: self.gave_way,
        }
    }
}

/// What a worker decides by at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Of the most impatient of its ports that were busy lately.
    pub policy: PollingPolicy,
    /// How long a nap is; zero: it looks.
    pub nap: Duration,
    /// How long it looks or naps before it arms its queues.
    pub window: Duration,
    /// What sleeping costs.
    pub cost: Cost,
    /// Of the gaps: what 50, 90 and 99 percent do not exceed, in ns.
    pub gaps: [u64; 3],
    /// The host is short of CPU.
    pub short: bool,
    /// How often that has begun.
    pub gave_way: u64,
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

#[cfg(all(test, loom))]
mod models;
