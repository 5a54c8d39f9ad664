use std::cell::Cell;

use super::*;

const MS: Duration = Duration::from_millis(1);

thread_local! {
    static USAGE: Cell<ThreadUsage> =
        const { Cell::new(ThreadUsage { faults: 1, sleeps: 0, preemptions: 0 }) };
}

fn more(faults: u64) {
    let usage = USAGE.get();
    USAGE.set(ThreadUsage { faults: usage.faults + faults, ..usage });
}

/// Sets how often the thread has slept, and lost its CPU.
fn switched(sleeps: u64, preemptions: u64) {
    let usage = USAGE.get();
    let (sleeps, preemptions) = (usage.sleeps + sleeps, usage.preemptions + preemptions);
    USAGE.set(ThreadUsage { sleeps, preemptions, ..usage });
}

/// A meter whose worker has taken its first sample, and the time of that.
fn calm() -> (FaultMeter, Instant) {
    let start = Instant::now();
    let mut meter = FaultMeter::new(|| USAGE.get(), start);
    more(1_000_000);
    meter.sample(start);
    assert!(!meter.is_on(), "what was before the first burst does not count");
    (meter, start)
}

#[test]
fn bursts_are_measured_while_there_are_many_faults() {
    let (mut meter, start) = calm();
    more(100 * FEW_PER_MS);
    assert!(!meter.is_due(start + 99 * MS));
    let calm = start + 100 * MS;
    assert!(meter.is_due(calm));
    meter.sample(calm);
    assert!(!meter.is_on());
    more(100 * FEW_PER_MS + 1);
    let many = calm + 100 * MS;
    meter.sample(many);
    assert!(meter.is_on());
    assert!(meter.is_due(many + MS));
    more(FEW_PER_MS);
    meter.sample(many + MEASURED_TIME - MS);
    assert!(meter.is_on());
    meter.sample(many + MEASURED_TIME);
    assert!(!meter.is_on());
}

#[test]
fn an_alert_worker_finds_many_faults_within_a_millisecond() {
    let (mut meter, start) = calm();
    more(2000);
    let many = start + 100 * MS;
    meter.sample(many);
    meter.sample(many + MEASURED_TIME);
    assert!(!meter.is_on());
    more(FEW_PER_MS + 1);
    let again = many + MEASURED_TIME + MS;
    assert!(meter.is_due(again));
    meter.sample(again);
    assert!(meter.is_on());
    let last = again + ALERT;
    meter.sample(last);
    assert!(!meter.is_due(last + MS), "alert for too long");
}

#[test]
fn faults_during_a_long_sleep_count_as_those_of_a_tenth_of_a_second() {
    let (mut meter, start) = calm();
    more(101 * FEW_PER_MS);
    meter.sample(start + 3600 * 1000 * MS);
    assert!(meter.is_on());
}

#[test]
fn few_faults_are_measured_once_they_add_up_and_as_long_as_they_go_on() {
    let (mut meter, start) = calm();
    let mut now = start;
    let mut step = |faults, time| {
        more(faults);
        now += time;
        (meter.sample(now), meter.is_on())
    };
    let each = UNMEASURED / 8;
    (1..8).for_each(|_| assert_eq!(step(each, 100 * MS), (0, false)));
    assert_eq!(step(each, 100 * MS), (UNMEASURED, true));
    (0..100).for_each(|_| assert_eq!(step(FEW_PER_MS_MEASURED + 1, MS), (0, true)));
    let hold = MEASURED_TIME.as_millis();
    (1..hold).for_each(|_| assert_eq!(step(FEW_PER_MS_MEASURED, MS), (0, true)));
    assert_eq!(step(FEW_PER_MS_MEASURED, MS), (0, false));
}

#[test]
fn a_fault_in_a_long_pass_is_enough() {
    let (mut meter, start) = calm();
    let pass = |meter: &mut FaultMeter, faults, from, to| {
        more(faults);
        meter.tick(from, to);
        let due = meter.is_due(to);
        if due {
            meter.sample(to);
        }
        (due, meter.is_on())
    };
    assert_eq!(pass(&mut meter, 1, start, start + MS / 2), (false, false));
    assert_eq!(pass(&mut meter, 0, start + MS / 2, start + 2 * MS), (true, true));
    // A sample has seen that fault.
    let later = start + 2 * MS + MEASURED_TIME;
    assert_eq!(pass(&mut meter, 0, start + 2 * MS, later), (true, false));
    assert_eq!(pass(&mut meter, 0, later, later + 2 * MS), (true, false));
    assert_eq!(pass(&mut meter, 1, later + 2 * MS, later + 40 * MS), (true, true));
}

#[test]
fn sleeps_and_preemptions_make_no_pass_long() {
    let (mut meter, start) = calm();
    // Sleeps, with a fault before each.
    for n in 0..3u32 {
        let begin = start + n * 5 * MS;
        more(1);
        switched(1, 0);
        meter.sleeps(begin, begin + MS / 2);
        meter.tick(begin, begin + 5 * MS);
        assert!(!meter.is_due(begin + 5 * MS));
    }
    meter.sample(start + 100 * MS);
    assert!(!meter.is_on());
    // A pass in which another thread had the processor.
    let mut pass = |begin, sleeps, preemptions| {
        more(1);
        switched(sleeps, preemptions);
        meter.tick(begin, begin + 2 * MS);
        assert!(meter.is_due(begin + 2 * MS));
        meter.sample(begin + 2 * MS);
        meter.is_on()
    };
    assert!(!pass(start + 100 * MS, 0, 1));
    assert!(pass(start + 200 * MS, 1, 1));
}

/// As many as when a guest touches its memory for the first time.
#[test]
fn a_pass_that_is_long_for_many_short_faults_is_not_slow() {
    let slow = Duration::from_nanos(SLOW_FAULT / COST_PER_NS);
    for (time, found) in [(slow * 299, false), (slow * 300, true)] {
        let (mut meter, start) = calm();
        // Less than what counts as many.
        more(300);
        let end = start + 100 * MS;
        meter.tick(end - time, end);
        meter.sample(end);
        assert_eq!(meter.is_on(), found, "{time:?}");
    }
}

/// The kernel counts the worker's own sleeps, too.
#[test]
fn a_preempted_pass_after_sleeps_is_not_long() {
    for (waits, found) in [(0, false), (1, true)] {
        let (mut meter, start) = calm();
        for n in 0..3u32 {
            let begin = start + n * 5 * MS;
            switched(1, 0);
            meter.sleeps(begin, begin + MS / 2);
            meter.tick(begin, begin + 5 * MS);
        }
        // A call that finds something to do at once is no sleep.
        meter.sleeps(start + 15 * MS, start + 15 * MS);
        meter.tick(start + 15 * MS, start + 15 * MS + SLEPT / 2);
        more(1);
        switched(waits, 1);
        meter.tick(start + 20 * MS, start + 22 * MS);
        meter.sample(start + 22 * MS);
        assert_eq!(meter.is_on(), found, "{waits} waits");
    }
}

/// Where the host is slow, a guest's faults take long now and then.
#[test]
fn a_measured_fault_that_takes_long_adds_only_the_short_time() {
    let (mut meter, start) = calm();
    let mut now = start;
    for _ in 0..10 {
        now += ALERT + MS;
        more(1);
        meter.tick(now - MS, now);
        meter.sample(now);
    }
    assert_eq!((meter.slow_time, meter.is_on()), (ALERT, true));
    meter.slow = Some(now + ALERT);
    meter.sample(now + ALERT + MEASURED_TIME / 2);
    assert!(meter.is_on());
    meter.sample(now + ALERT + MEASURED_TIME);
    assert!(!meter.is_on());
}

#[test]
fn a_pass_that_is_long_before_a_sleep_counts() {
    let (mut meter, start) = calm();
    more(1);
    meter.sleeps(start, start + 2 * MS);
    meter.tick(start, start + 50 * MS);
    assert!(meter.is_due(start + 50 * MS));
    meter.sample(start + 50 * MS);
    assert!(meter.is_on());
}

#[test]
fn faults_that_take_long_again_and_again_are_measured_for_longer_each_time() {
    let (mut meter, mut now) = calm();
    let mut slow_fault = |after: Duration| {
        let next = now + after + MS;
        more(1);
        meter.tick(now + after, next);
        meter.sample(next);
        now = next;
        assert!(meter.is_on());
        meter.slow_time
    };
    assert_eq!(slow_fault(MS), MEASURED_TIME);
    // While bursts are measured, faults do not escape.
    assert_eq!(slow_fault(MS), MEASURED_TIME);
    for doubled in 1..9 {
        let time = MEASURED_TIME * (1 << doubled);
        assert_eq!(slow_fault(time / 2), time);
    }
    assert_eq!(slow_fault(ALERT), ALERT);
    assert_eq!(slow_fault(ALERT), ALERT);
    assert_eq!(slow_fault(FORGOTTEN), MEASURED_TIME);
}

#[test]
fn a_measured_fault_that_takes_long_lengthens_the_time() {
    let (mut meter, start) = calm();
    meter.begin();
    more(1);
    let long = Duration::from_nanos(SLOW_FAULT / COST_PER_NS + 1);
    meter.since -= long;
    assert!(meter.take().cost > SLOW_FAULT);
    let found = meter.slow.expect("the fault took long");
    meter.sample(start.max(found) + MEASURED_TIME / 2);
    assert!(meter.is_on());
}

#[test]
fn time_without_a_cpu_is_no_cost_of_a_fault() {
    let (mut meter, _) = calm();
    let long = Duration::from_nanos(SLOW_FAULT / COST_PER_NS + 1);
    let mut cost = |sleeps, preemptions| {
        meter.begin();
        more(1);
        switched(sleeps, preemptions);
        meter.since -= long;
        let cost = meter.take().cost;
        (cost, meter.slow.take().is_some())
    };
    assert_eq!(cost(0, 1), (SLOW_FAULT, false));
    for (sleeps, preemptions) in [(0, 0), (1, 0), (1, 1)] {
        let (cost, slow) = cost(sleeps, preemptions);
        assert!(cost > SLOW_FAULT && slow, "{sleeps} sleeps, {preemptions} preemptions");
    }
}

#[test]
fn faults_belong_to_the_section_that_they_happen_in() {
    let mut meter = FaultMeter::new(|| USAGE.get(), Instant::now());
    more(7);
    meter.begin();
    assert_eq!(meter.take(), Faults::default());
    more(3);
    let Faults { count, cost } = meter.take();
    assert_eq!(count, 3);
    assert!(cost >= 3 * FAULT);
    assert_eq!(meter.take(), Faults::default());
}
