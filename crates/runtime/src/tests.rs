//! The runtime with queues that are counters: a peer publishes units of work, and serving a queue
//! takes them.

mod migration;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::pipeline::{Failed, Wakers};
use crate::poll::PollingPolicy;
use crate::*;

/// Units of work that are taken at a time at most.
const BURST: u64 = 16;
const QUANTUM: u64 = 1000;

/// State that a peer and its worker share.
struct Ring {
    class: u32,
    /// Cost of a unit of work.
    cost: u64,
    published: AtomicU64,
    taken: AtomicU64,
    /// The peer is to signal.
    armed: AtomicBool,
    bell: OwnedFd,
    /// A worker is serving the queue.
    served: AtomicBool,
    /// The peer breaks the protocol.
    breaks: AtomicBool,
    /// Serving it panics.
    panics: AtomicBool,
    /// The peer signals whether or not it is armed.
    unmasked: AtomicBool,
}

impl Ring {
    fn new(class: u32, cost: u64) -> Arc<Ring> {
        Arc::new(Ring {
            class,
            cost,
            published: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            armed: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
            served: AtomicBool::new(false),
            breaks: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            unmasked: AtomicBool::new(false),
        })
    }

    /// As a driver does: publish, then look whether a signal is expected.
    fn publish(&self, units: u64) {
        self.published.fetch_add(units, Ordering::Release);
        fence(Ordering::SeqCst);
        let armed = self.armed.swap(false, Ordering::Relaxed);
        if armed || self.unmasked.load(Ordering::Relaxed) {
            rustix::io::write(&self.bell, &1u64.to_ne_bytes()).unwrap();
        }
    }

    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    fn left(&self) -> u64 {
        self.published.load(Ordering::Acquire) - self.taken()
    }
}

/// A worker's queues.
#[derive(Default)]
struct Counting {
    queues: Vec<Option<Arc<Ring>>>,
    failed: Vec<bool>,
    /// No work is taken before this time.
    blocked: Option<Instant>,
    departed: Vec<(usize, Departure)>,
    now: Option<Instant>,
    counters: Arc<RunCounters>,
    topology: Arc<AtomicU64>,
}

impl Pipeline for Counting {
    type Queue = Arc<Ring>;
    type Topology = u64;
    type Request = Option<Instant>;

    const QUANTUM: u64 = QUANTUM;

    fn counters(&self) -> &RunCounters {
        &self.counters
    }

    fn tick(&mut self, now: Instant) {
        self.now = Some(now);
    }

    fn attach(&mut self, queue: Arc<Ring>) -> Attached {
        let class = ClassId(queue.class);
        self.queues.push(Some(queue));
        self.failed.push(false);
        Attached { slot: self.queues.len() - 1, class, policy: None, failed: false }
    }

    fn depart(&mut self, slot: usize, how: Departure) {
        self.departed.push((slot, how));
    }

    fn is_drained(&self, _: usize) -> bool {
        true
    }

    fn resume(&mut self, slot: usize) {
        self.departed.retain(|(departed, _)| *departed != slot);
    }

    fn detach(&mut self, slot: usize) -> Option<Arc<Ring>> {
        self.resume(slot);
        self.queues[slot].take()
    }

    fn follow(&mut self, topology: &u64) {
        self.topology.store(*topology, Ordering::Release);
    }

    fn request(&mut self, request: Option<Instant>) {
        self.blocked = request;
    }

    fn begin(&mut self) -> bool {
        false
    }

    fn serve(&mut self, slot: usize, quantum: u64) -> Served {
        let Some(queue) = &self.queues[slot] else { panic!("served after it left") };
        if self.departed.iter().any(|(departed, _)| *departed == slot) {
            return Served::default();
        }
        if queue.breaks.load(Ordering::Relaxed) {
            assert!(!std::mem::replace(&mut self.failed[slot], true), "served after it failed");
            return Served::default();
        }
        if self.blocked > self.now {
            return Served::default();
        }
        assert!(!queue.panics.load(Ordering::Relaxed), "as the test wants it");
        assert!(!queue.served.swap(true, Ordering::AcqRel), "one owner at a time");
        let limit = BURST.min(quantum / queue.cost).max(1);
        let units = queue.left().min(limit);
        queue.taken.fetch_add(units, Ordering::Release);
        queue.served.store(false, Ordering::Release);
        Served { cost: units * queue.cost, units, moved: units > 0, more: units == limit }
    }

    fn end(&mut self) {}

    fn status(&self, slot: usize) -> Status {
        match self.blocked.filter(|until| Some(*until) > self.now) {
            _ if self.failed[slot] => Status::Failed,
            until @ Some(_) => Status::Blocked(Blocked { room: None, until }),
            None => Status::Idle,
        }
    }

    fn pending(&self, _: &mut Waits) {}

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn has_mail(&self) -> bool {
        false
    }

    fn arm(&mut self, slot: usize, _: bool) -> Result<bool, Failed> {
        let Some(queue) = &self.queues[slot] else { return Err(Failed) };
        queue.armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(queue.left() > 0)
    }

    fn disarm(&mut self, slot: usize) {
        if let Some(queue) = &self.queues[slot] {
            queue.armed.store(false, Ordering::Relaxed);
        }
    }

    fn woken(&mut self, slot: usize) {
        self.disarm(slot);
    }

    fn wakers(&self, slot: usize) -> Wakers<'_> {
        let Some(queue) = &self.queues[slot] else { return Wakers::default() };
        let unmasked = queue.unmasked.load(Ordering::Relaxed);
        Wakers { work: Some(queue.bell.as_fd()), unmasked, ..Wakers::default() }
    }

    fn owner(&self, slot: usize) -> Option<String> {
        self.queues.get(slot)?.as_ref().map(|queue| format!("class {}", queue.class))
    }

    fn sleeping(&mut self, _: bool) {}
}

/// Workers with threads, and where they count.
fn start(workers: usize, policy: PollingPolicy) -> (Group<Counting>, Vec<Arc<RunCounters>>) {
    let pipelines: Vec<Counting> = (0..workers).map(|_| Counting::default()).collect();
    let counters = pipelines.iter().map(|pipeline| Arc::clone(&pipeline.counters)).collect();
    let doorbells = group::doorbells(workers).unwrap();
    (Group::start(doorbells, pipelines, &[], policy).unwrap(), counters)
}

/// One worker that is driven by the test, with these queues.
fn manual(rings: &[Arc<Ring>]) -> (Group<Counting>, ManualWorker<Counting>, Arc<RunCounters>) {
    let pipeline = Counting::default();
    let counters = Arc::clone(&pipeline.counters);
    let doorbells = group::doorbells(1).unwrap();
    let (group, workers) = Group::manual(doorbells, vec![pipeline]).unwrap();
    for (id, ring) in rings.iter().enumerate() {
        group.attach(0, QueueId(id as u64), Arc::clone(ring));
    }
    (group, workers.into_iter().next().unwrap(), counters)
}

/// Waits for something that must come.
fn wait(mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited for a minute in vain");
        thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn classes_share_equally_whatever_their_work_costs() {
    // One class has two queues, and gains nothing by that.
    let rings = [Ring::new(0, 3), Ring::new(1, 100), Ring::new(2, 50), Ring::new(2, 7)];
    rings.iter().for_each(|ring| ring.publish(1 << 40));
    let (_group, mut worker, _) = manual(&rings);
    let mut now = Instant::now();
    for _ in 0..2000 {
        now += Duration::from_micros(10);
        assert!(worker.run_once(now));
    }
    let cost = |ring: &Ring| ring.taken() * ring.cost;
    let shares = [cost(&rings[0]), cost(&rings[1]), cost(&rings[2]) + cost(&rings[3])];
    let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(most - least <= 2 * QUANTUM, "{shares:?}");
    let (one, other) = (cost(&rings[2]), cost(&rings[3]));
    assert!(one.abs_diff(other) * 4 <= one + other, "queues of one class: {one} and {other}");
}

#[test]
fn a_class_with_little_to_do_is_not_delayed_by_others() {
    let rings = [Ring::new(0, 100), Ring::new(1, 1)];
    let (_group, mut worker, _) = manual(&rings);
    rings[0].publish(1 << 40);
    let mut now = Instant::now();
    for _ in 0..100 {
        rings[1].publish(1);
        now += Duration::from_micros(10);
        worker.run_once(now);
        assert_eq!(rings[1].left(), 0, "served in the same round");
    }
}

#[test]
fn an_idle_queue_is_armed_and_found_again_by_its_signal() {
    let rings = [Ring::new(0, 1)];
    let (_group, mut worker, counters) = manual(&rings);
    let mut now = Instant::now();
    for _ in 0..100 {
        now += Duration::from_millis(1);
        assert!(!worker.run_once(now));
    }
    assert!(rings[0].armed.load(Ordering::Relaxed));
    let served = counters.busy_passes.get();
    rings[0].publish(5);
    now += Duration::from_millis(1);
    assert!(worker.run_once(now));
    assert_eq!((rings[0].left(), counters.busy_passes.get()), (0, served + 1));
}

#[test]
fn a_busy_queue_whose_peer_always_signals_is_not_watched() {
    let ring = Ring::new(0, 1);
    ring.unmasked.store(true, Ordering::Relaxed);
    let (_group, mut worker, _) = manual(std::slice::from_ref(&ring));
    let mut now = Instant::now();
    let mut rounds = |worker: &mut ManualWorker<Counting>, count: u32, units| {
        for _ in 0..count {
            ring.publish(units);
            now += Duration::from_millis(1);
            worker.run_once(now);
        }
        worker.is_watched(QueueId(0))
    };
    assert!(rounds(&mut worker, 31, 1), "few signals cost less than a change");
    assert!(!rounds(&mut worker, 1, 1));
    assert!(!rounds(&mut worker, 100, 1));
    assert_eq!(ring.left(), 0);
    assert!(rounds(&mut worker, 100, 0), "an idle queue is armed");
    assert!(ring.armed.load(Ordering::Relaxed));
    assert!(rounds(&mut worker, 1, 1));
    assert_eq!(ring.left(), 0, "the signal has come");
}

#[test]
fn a_blocked_queue_is_served_when_its_wait_is_over() {
    let ring = Ring::new(0, 1);
    let (group, mut worker, _) = manual(std::slice::from_ref(&ring));
    let start = Instant::now();
    group.request(0, Some(start + Duration::from_millis(5)));
    ring.publish(3);
    for ms in 1..5 {
        assert!(!worker.run_once(start + Duration::from_millis(ms)), "{ms} ms");
    }
    assert!(worker.run_once(start + Duration::from_millis(5)));
    assert_eq!(ring.left(), 0);
}

#[test]
fn a_failed_queue_is_not_served_again() {
    let rings = [Ring::new(0, 1), Ring::new(1, 1)];
    let (_group, mut worker, _) = manual(&rings);
    rings[0].breaks.store(true, Ordering::Relaxed);
    let mut now = Instant::now();
    for _ in 0..50 {
        rings.iter().for_each(|ring| ring.publish(1));
        now += Duration::from_micros(10);
        worker.run_once(now);
    }
    assert_eq!((rings[0].taken(), rings[1].taken()), (0, 50), "its neighbour is served");
}

#[test]
fn no_signal_is_lost_however_the_worker_waits() {
    for policy in ["never", "eco", "balanced", "latency", "always"] {
        let (group, _) = start(2, policy.parse().unwrap());
        let rings = [Ring::new(0, 1), Ring::new(1, 1), Ring::new(2, 1)];
        rings[2].unmasked.store(true, Ordering::Relaxed);
        for (id, ring) in rings.iter().enumerate() {
            group.attach(id % 2, QueueId(id as u64), Arc::clone(ring));
        }
        for n in 0..400u64 {
            let ring = &rings[n as usize % 3];
            ring.publish(1 + n % 40);
            // A peer that waits for its answer before it sends more: a lost signal would hang it.
            if n % 3 == 0 {
                wait(|| ring.left() == 0);
            }
            if n % 64 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        rings.iter().for_each(|ring| wait(|| ring.left() == 0));
    }
}

#[test]
fn an_idle_worker_sleeps() {
    let (group, counters) = start(1, PollingPolicy::default());
    let ring = Ring::new(0, 1);
    group.attach(0, QueueId(0), Arc::clone(&ring));
    group.await_version(group.publish(1));
    thread::sleep(Duration::from_millis(20));
    let before = (counters[0].sleeps.get(), counters[0].idle_passes.get());
    thread::sleep(Duration::from_millis(100));
    let after = (counters[0].sleeps.get(), counters[0].idle_passes.get());
    assert!(after.0 - before.0 <= 2 && after.1 - before.1 <= 4, "{before:?} to {after:?}");
    ring.publish(1);
    wait(|| ring.left() == 0);
}

#[test]
fn every_worker_follows_a_published_topology() {
    let pipelines: Vec<Counting> = (0..3).map(|_| Counting::default()).collect();
    let seen: Vec<_> = pipelines.iter().map(|pipeline| Arc::clone(&pipeline.topology)).collect();
    let doorbells = group::doorbells(3).unwrap();
    let group = Group::start(doorbells, pipelines, &[], PollingPolicy::Never).unwrap();
    for version in 1..50 {
        group.await_version(group.publish(version));
        for seen in &seen {
            assert_eq!(seen.load(Ordering::Acquire), version);
        }
    }
}

/// The variable that has the test below play the process that ends.
const ENDS: &str = "RUNTIME_TEST_ENDS";

#[test]
fn a_worker_that_panics_ends_the_process_by_its_name() {
    if std::env::var_os(ENDS).is_some() {
        tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
        let (group, _) = start(2, PollingPolicy::default());
        let ring = Ring::new(7, 1);
        ring.panics.store(true, Ordering::Relaxed);
        group.attach(1, QueueId(0), ring);
        wait(|| false);
    }
    let name = "tests::a_worker_that_panics_ends_the_process_by_its_name";
    let test = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(ENDS, "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&test.stderr);
    assert_eq!(test.status.signal(), Some(rustix::process::Signal::ABORT.as_raw()), "{told}");
    assert!(told.contains("worker=1") && told.contains("class 7"), "{told}");
}
