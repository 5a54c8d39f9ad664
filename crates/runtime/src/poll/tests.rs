//! Simulated workers: frames come at given times, and polling and sleeping advance a simulated
//! clock.

use proptest::prelude::*;

use super::cost::SleepCost;
use super::*;

/// The cost of sleeping: a signal takes 10 us, a timer is 5 us late.
fn cost() -> Cost {
    Cost::new(SleepCost { cpu: 4_000, delay: 10_000 }, SleepCost { cpu: 3_000, delay: 5_000 })
}

/// The time of a look at the queues and that of a frame, in ns.
const LOOK: u64 = 100;
const FRAME: u64 = 100;

/// A worker, and what it has cost so far.
struct Played {
    poll: Poll,
    start: Instant,
    /// ns since the start.
    now: u64,
    cpu: u64,
    times: [u64; 4],
    waits: Vec<u64>,
    sleeps: u64,
    naps: u64,
}

impl Played {
    fn new(policy: PollingPolicy) -> Self {
        let start = Instant::now();
        let poll = Poll::new(policy, cost(), start);
        Played { poll, start, now: 0, cpu: 0, times: [0; 4], waits: vec![], sleeps: 0, naps: 0 }
    }

    fn time(&self) -> Instant {
        self.start + Duration::from_nanos(self.now)
    }

    fn pass(&mut self, ns: u64, cpu: u64) {
        self.times[self.poll.state() as usize] += ns;
        self.now += ns;
        self.cpu += cpu;
    }

    /// Takes the frames that come, in order, at those times; ends when all are carried and it
    /// sleeps, or never would.
    fn play(&mut self, frames: &[u64]) {
        let mut next = 0;
        loop {
            let come = frames[next..].iter().take_while(|at| **at <= self.now).count().min(64);
            if come > 0 {
                self.poll.found(self.time(), come as u64);
                for at in &frames[next..next + come] {
                    self.waits.push(self.now - at);
                }
                next += come;
                self.pass(LOOK + FRAME * come as u64, LOOK + FRAME * come as u64);
                self.poll.worked_until(self.time());
                continue;
            }
            match self.poll.idle(self.time()) {
                Next::Poll if next == frames.len() && self.poll.policy == PollingPolicy::Always => {
                    return;
                }
                Next::Poll => self.pass(LOOK, LOOK),
                Next::Nap(time) => {
                    self.poll.sleeps(State::Nap);
                    self.naps += 1;
                    self.pass(ns(time) + cost().late, cost().nap);
                }
                Next::Arm => {
                    self.poll.sleeps(State::Armed);
                    let Some(at) = frames.get(next) else { return };
                    self.sleeps += 1;
                    self.pass(at.saturating_sub(self.now) + cost().wake, cost().sleep);
                }
            }
        }
    }

    /// CPU time in percent, and the 99th percentile of the frames' waits in ns.
    fn figures(&mut self) -> (f64, u64) {
        self.waits.sort_unstable();
        (self.cpu as f64 / self.now as f64 * 100.0, self.waits[self.waits.len() * 99 / 100])
    }
}

/// Frames with random gaps of so many ns on average, for half a second.
fn random(mean: f64) -> Vec<u64> {
    let mut state = 88_172_645_463_325_252u64;
    let mut at = 0.0;
    let gap = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        at += -(((state >> 11) + 1) as f64 / (1u64 << 53) as f64).ln() * mean;
        at as u64
    };
    std::iter::repeat_with(gap).take((5e8 / mean) as usize).collect()
}

fn played(policy: PollingPolicy, mean: f64) -> (Played, f64, u64) {
    let mut played = Played::new(policy);
    played.play(&random(mean));
    let (cpu, wait) = played.figures();
    (played, cpu, wait)
}

#[test]
fn few_frames_cost_a_sleep_each_and_no_looking() {
    for policy in [PollingPolicy::Eco, PollingPolicy::Balanced, PollingPolicy::Latency] {
        let (played, cpu, _) = played(policy, 1e6);
        assert!(cpu < 2.0, "{policy}: {cpu} %");
        assert!(played.sleeps > 400, "{policy}: {}", played.sleeps);
    }
}

#[test]
fn the_less_patience_the_more_cpu_time_and_the_less_waiting() {
    let figures = [
        PollingPolicy::Eco,
        PollingPolicy::Balanced,
        PollingPolicy::Latency,
        PollingPolicy::Always,
    ]
    .map(|policy| {
        let (_, cpu, wait) = played(policy, 12_500.0);
        (cpu, wait)
    });
    assert!(figures.is_sorted_by(|a, b| a.0 <= b.0 && a.1 >= b.1), "{figures:?}");
    assert!(figures[0].0 < 25.0 && figures[1].1 < 40_000 && figures[2].1 < 5_000, "{figures:?}");
}

#[test]
fn each_way_is_no_worse_than_looking_always_and_never_by_its_own_measure() {
    for mean in [1_000.0, 5_000.0, 20_000.0, 100_000.0, 1_000_000.0] {
        let price = |policy: PollingPolicy, worth: f64| {
            let (played, ..) = played(policy, mean);
            let waited: u64 = played.waits.iter().sum();
            played.cpu as f64 + worth * waited as f64
        };
        for policy in [PollingPolicy::Eco, PollingPolicy::Balanced, PollingPolicy::Latency] {
            let worth = policy.worth();
            let (own, always, never) = (
                price(policy, worth),
                price(PollingPolicy::Always, worth),
                price(PollingPolicy::Never, worth),
            );
            // The margin covers exploring and initial learning. The plan also does not count on
            // several gaps that end during one wake and share it: a peer that waits for its answer
            // shows none.
            let least = 1.35 * always.min(never);
            assert!(
                own < least,
                "{policy} with gaps of {mean} ns: {own}, always {always}, never {never}"
            );
        }
    }
}

/// A guest that waits for its answer sends nothing while the worker sleeps, however it sleeps.
#[test]
fn a_guest_that_waits_for_its_answer_is_looked_for() {
    for policy in [PollingPolicy::Eco, PollingPolicy::Balanced, PollingPolicy::Latency] {
        let mut played = Played::new(policy);
        for _ in 0..100_000 {
            // Its next frame comes 1 us after the last one was carried.
            let at = played.now + 1_000;
            let mut carried = false;
            while !carried {
                if at <= played.now {
                    played.poll.found(played.time(), 1);
                    played.waits.push(played.now - at);
                    played.pass(LOOK + FRAME, LOOK + FRAME);
                    carried = true;
                    continue;
                }
                match played.poll.idle(played.time()) {
                    Next::Poll => played.pass(LOOK, LOOK),
                    Next::Nap(time) => {
                        played.poll.sleeps(State::Nap);
                        played.pass(ns(time) + cost().late, cost().nap);
                    }
                    Next::Arm => {
                        played.poll.sleeps(State::Armed);
                        played.pass((at - played.now) + cost().wake, cost().sleep);
                    }
                }
            }
        }
        let late = played.waits.split_off(played.waits.len() / 2);
        let long = late.iter().filter(|wait| **wait > LOOK).count();
        assert!(long * 100 < late.len(), "{policy}: {long} of {} waited", late.len());
    }
}

#[test]
fn naps_are_tried_where_many_frames_come_in_one() {
    let (played, cpu, wait) = played(PollingPolicy::Eco, 3_000.0);
    assert!(played.naps > 1_000, "{}", played.naps);
    assert!(cpu < 40.0, "{cpu} %");
    assert!(wait < PollingPolicy::Eco.longest_nap() + 20_000, "{wait}");
    let (played, ..) = self::played(PollingPolicy::Latency, 3_000.0);
    assert_eq!(played.naps, 0);
}

#[test]
fn a_host_that_is_short_of_cpu_is_not_looked_on_in_vain() {
    let mut poll = Poll::new(PollingPolicy::Latency, cost(), Instant::now());
    let start = poll.moved();
    for n in 1..500 {
        poll.idle(start + Duration::from_micros(n));
        poll.found(start + Duration::from_micros(n), 1);
    }
    let now = start + Duration::from_micros(500);
    assert!(poll.window() > Duration::from_micros(1));
    poll.set_pressure(true);
    assert_eq!((poll.idle(now), poll.decision().suspensions), (Next::Arm, 1));
    poll.set_pressure(false);
    assert!(poll.window() > Duration::from_micros(1));
    let mut always = Poll::new(PollingPolicy::Always, cost(), now);
    always.set_pressure(true);
    assert_eq!(
        always.idle(now + Duration::from_secs(1)),
        Next::Poll,
        "one for comparison stays what it is"
    );
}

#[test]
fn gaps_that_are_slept_through_while_cpu_time_is_short_do_not_count() {
    let mut poll = Poll::new(PollingPolicy::Latency, cost(), Instant::now());
    let start = poll.moved();
    let mut now = start;
    let mut gap = |poll: &mut Poll, sleeps: bool| {
        now += Duration::from_micros(3);
        poll.idle(now);
        if sleeps {
            poll.sleeps(State::Armed);
        }
        now += Duration::from_micros(300);
        poll.found(now, 1);
    };
    (0..KNOWN).for_each(|_| gap(&mut poll, false));
    let known = poll.gaps.known();
    poll.set_pressure(true);
    (0..10 * EXPLORE).for_each(|_| gap(&mut poll, true));
    assert_eq!(poll.gaps.known(), known);
    poll.set_pressure(false);
    (0..EXPLORE).for_each(|_| gap(&mut poll, false));
    assert!(poll.gaps.known() > known);
}

#[test]
fn the_most_impatient_port_sets_the_pace_at_once() {
    let now = Instant::now();
    let mut poll = Poll::new(PollingPolicy::Never, cost(), now);
    assert_eq!(poll.idle(now), Next::Arm);
    poll.set_policy(PollingPolicy::Always, now);
    assert_eq!(poll.idle(now), Next::Poll);
    assert_eq!(poll.decision().policy, PollingPolicy::Always);
}

#[test]
fn queues_beside_busy_ones_are_armed_later_and_all_of_them_when_nothing_comes() {
    let start = Instant::now();
    let at = |us| start + Duration::from_micros(us);
    let mut poll = Poll::new(PollingPolicy::Fixed(Duration::from_micros(10)), cost(), start);
    poll.found(at(100), 1);
    assert!(!poll.arms(at(70), at(101)) && poll.arms(at(50), at(101)));
    assert!(!poll.arms(at(101), at(110)) && poll.arms(at(100), at(110)));
}

#[test]
fn the_time_of_a_long_round_is_no_part_of_a_gap() {
    let start = Instant::now();
    let mut poll = Poll::new(PollingPolicy::Balanced, cost(), start);
    let (mut now, mut sleeps) = (start, 0);
    for _ in 0..1000 {
        // The peer sends more two microseconds after a round has ended.
        poll.found(now, 32);
        now += Duration::from_micros(100);
        poll.worked_until(now);
        let more = now + Duration::from_micros(2);
        while now < more {
            now += Duration::from_nanos(LOOK);
            if poll.idle(now) != Next::Poll {
                poll.sleeps(State::Armed);
                sleeps += 1;
                now = more + Duration::from_nanos(cost().wake);
            }
        }
    }
    assert_eq!(poll.decision().gaps, [2048; 3]);
    assert!(sleeps < 10, "{sleeps}");
}

#[test]
fn a_queue_of_a_long_round_is_not_armed_when_the_round_ends() {
    let start = Instant::now();
    let at = |us| start + Duration::from_micros(us);
    let mut poll = Poll::new(PollingPolicy::Fixed(Duration::from_micros(10)), cost(), start);
    poll.found(at(0), 64);
    poll.worked_until(at(500));
    assert!(!poll.arms(at(0), at(509)) && poll.arms(at(0), at(511)));
}

proptest! {
    /// For any gaps, every frame is carried, all time is in one of the states, and the worker
    /// sleeps in the end.
    #[test]
    fn it_always_comes_to_rest(gaps in prop::collection::vec(0u64..200_000, 0..300), which in 0usize..5) {
        let policy = ["never", "eco", "balanced", "20us", "latency"][which].parse().unwrap();
        let frames: Vec<u64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
        let mut played = Played::new(policy);
        played.play(&frames);
        prop_assert_eq!(played.waits.len(), frames.len());
        prop_assert_eq!(played.poll.state(), State::Armed);
        prop_assert_eq!(played.times.iter().sum::<u64>(), played.now);
        prop_assert!(played.now <= frames.last().unwrap_or(&0) + 1_000_000);
    }
}
