//! The driver of a disk: it sends, collects, waits and counts.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ring::driver::DriverRing;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user::blk::feature::bit;
use vhost_user_driver::{DriverError, FrontEnd, FrontEndConfig, Guest};

use super::alarm::Alarm;
use super::pattern::{shuffled, step};
use super::queue::Queue;
use super::{DiskLoadError, Order, Place, Report, Workload, histogram};
use crate::interrupt;
use load::cpu::Snapshot;
use load::{GapDistribution, Gaps, Latency};

/// How long a back-end may take to listen, and to answer a request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Memory for rings, beside the buffers.
const RINGS: u64 = 1 << 20;

/// Longest sleep in ns: the user may interrupt.
const NAP: u64 = 50_000_000;

/// Requests after which the device is told of them, while more are added.
const BATCH: u32 = 8;

/// Passes between two looks whether the user interrupts.
const LOOK: u32 = 1 << 12;

/// When requests are due.
enum Pace {
    /// Requests are sent as soon as there is room.
    Open,
    /// Never.
    Never,
    /// After random gaps: when the next one is due, in ns.
    Gaps(Gaps, u64),
}

impl Pace {
    fn new(workload: &Workload) -> Pace {
        match workload.rate {
            None => Pace::Open,
            Some(0) => Pace::Never,
            Some(rate) => Gaps::new(GapDistribution::Random, 1e9 / rate as f64, 1)
                .map_or(Pace::Open, |gaps| Pace::Gaps(gaps, 0)),
        }
    }

    /// Whether a request is due.
    fn is_due(&mut self, now: u64) -> bool {
        match self {
            Pace::Open => true,
            Pace::Never => false,
            Pace::Gaps(_, next) => *next <= now,
        }
    }

    /// One request was sent.
    fn spend(&mut self) {
        if let Pace::Gaps(gaps, next) = self {
            *next += gaps.draw();
        }
    }

    /// ns until a request is due, if that is known.
    fn due_in(&self, now: u64) -> Option<u64> {
        match self {
            Pace::Gaps(_, next) => Some(next.saturating_sub(now)),
            Pace::Open | Pace::Never => None,
        }
    }
}

/// The blocks that are asked for, in their order.
enum Blocks {
    /// Blocks in random order, without end: the number of blocks, and the state of the random
    /// numbers.
    Random(u64, u64),
    /// Each queue's next block in its part, whose length is last.
    Serial(Vec<u64>, u64),
    /// These, from the end on.
    Each(Vec<u64>),
}

impl Blocks {
    fn next(&mut self, queue: usize) -> Option<u64> {
        match self {
            Blocks::Random(count, state) => Some(step(state) % *count),
            Blocks::Serial(next, part) => {
                let next = next.get_mut(queue)?;
                let block = queue as u64 * *part + *next;
                *next = (*next + 1) % *part;
                Some(block)
            }
            Blocks::Each(left) => left.pop(),
        }
    }
}

/// The completed requests.
struct Tally {
    requests: u64,
    latency: Histogram<u64>,
}

impl Tally {
    fn new() -> Tally {
        Tally { requests: 0, latency: histogram() }
    }
}

/// A connected driver.
pub(super) struct Driver {
    // The connection lives as long as the rings are used.
    _front: FrontEnd,
    queues: Vec<Queue>,
    blocks: Blocks,
    count: u64,
    pace: Pace,
    alarm: Alarm,
    tally: Tally,
    clock: Instant,
    workload: Workload,
    backend: u32,
}

impl Driver {
    /// Connects, and starts all queues.
    pub(super) fn connect(place: &Place, workload: &Workload) -> Result<Driver, DiskLoadError> {
        let features = bit::VERSION_1 | bit::EVENT_IDX | bit::INDIRECT_DESC | bit::FLUSH | bit::MQ;
        let config = FrontEndConfig {
            features,
            required: bit::VERSION_1,
            // Of a disk these are queues.
            queue_pairs: workload.queues,
            mtu: None,
            protocol: VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK,
        };
        let mut front = FrontEnd::negotiate(open(&place.socket)?, &config)?;
        let each = u64::from(workload.bytes).next_multiple_of(4096) + 4096;
        let buffers = u64::from(workload.queues) * (u64::from(workload.depth) * each + RINGS);
        let mut guest = Guest::new(RINGS + buffers, 1)?;
        front.share(&guest)?;
        let queues =
            (0..workload.queues).map(|index| Queue::start(&mut front, &mut guest, index, workload));
        let queues = queues.collect::<Result<Vec<_>, _>>()?;
        let alarm = Alarm::new(queues.iter().map(|queue| queue.vring.call()))
            .map_err(|error| DiskLoadError::System("watch interrupts", error))?;
        let count = (place.length / u64::from(workload.bytes)).max(1);
        let parts = u64::from(workload.queues.max(1));
        Ok(Driver {
            _front: front,
            blocks: match workload.order {
                Order::Random => Blocks::Random(count, 1),
                Order::Serial => Blocks::Serial(vec![0; queues.len()], (count / parts).max(1)),
            },
            queues,
            count,
            pace: Pace::new(workload),
            alarm,
            tally: Tally::new(),
            clock: Instant::now(),
            workload: workload.clone(),
            backend: place.backend,
        })
    }

    /// Sends for `warm_up`, then for `measured`, of which the report is.
    pub(super) fn run_for(
        &mut self,
        warm_up: Duration,
        measured: Duration,
    ) -> Result<Report, DiskLoadError> {
        let processes = [self.backend, std::process::id()];
        self.pass_until(warm_up)?;
        self.tally = Tally::new();
        let (before, began) = (Snapshot::now(&processes), self.clock.elapsed());
        self.pass_until(began + measured)?;
        let shares = Snapshot::now(&processes).since(&before);
        let report = self.report((self.clock.elapsed() - began).as_secs_f64(), &shares);
        self.drain()?;
        Ok(report)
    }

    /// Sends one request for each block, in random order.
    pub(super) fn run_over_all_blocks(&mut self) -> Result<Report, DiskLoadError> {
        let seed = 1 + u64::from(self.workload.generation.unwrap_or(0));
        self.blocks = Blocks::Each(shuffled(self.count, seed));
        let processes = [self.backend, std::process::id()];
        let (before, began) = (Snapshot::now(&processes), self.clock.elapsed());
        while !matches!(&self.blocks, Blocks::Each(left) if left.is_empty()) {
            self.pass(true, self.now())?;
            self.look()?;
        }
        self.drain()?;
        let shares = Snapshot::now(&processes).since(&before);
        Ok(self.report((self.clock.elapsed() - began).as_secs_f64(), &shares))
    }

    fn report(&self, seconds: f64, shares: &load::cpu::Shares) -> Report {
        Report {
            requests: self.tally.requests,
            bytes: self.tally.requests * u64::from(self.workload.bytes),
            seconds,
            latency: Latency::of(&self.tally.latency),
            backend: shares.of.first().copied().unwrap_or_default(),
            others: shares.others + shares.stolen,
        }
    }

    /// Sends and collects until so much of the clock has passed.
    fn pass_until(&mut self, end: Duration) -> Result<(), DiskLoadError> {
        let mut passes = 0u32;
        loop {
            let now = self.now();
            if u128::from(now) >= end.as_nanos() {
                return Ok(());
            }
            let busy = self.pass(true, now)?;
            if !busy && self.workload.sleeps {
                self.sleep(end)?;
            } else if !busy {
                // The back-end's CPU may share a core with this one.
                std::hint::spin_loop();
            }
            passes = passes.wrapping_add(1);
            if self.workload.sleeps || passes.is_multiple_of(LOOK) {
                self.look()?;
            }
        }
    }

    /// Collects what is under way.
    fn drain(&mut self) -> Result<(), DiskLoadError> {
        while self.queues.iter().any(|queue| queue.in_flight() > 0) {
            self.pass(false, self.now())?;
            self.look()?;
        }
        Ok(())
    }

    /// Looks at all queues once; the clock shows `now`. True: something completed or was sent.
    pub(super) fn pass(&mut self, send: bool, now: u64) -> Result<bool, DiskLoadError> {
        let Driver { queues, blocks, pace, tally, .. } = self;
        let mut busy = false;
        for (number, queue) in queues.iter_mut().enumerate() {
            let count = queue.collect(|slot| {
                tally.requests += 1;
                // Longer than the histogram's minute is a minute.
                tally.latency.saturating_record(now.saturating_sub(slot.sent).max(1));
            })?;
            busy |= count > 0;
            let mut added = 0;
            while send && queue.has_room() && pace.is_due(now) {
                let Some(block) = blocks.next(number) else { break };
                if !queue.add(block, now) {
                    break;
                }
                pace.spend();
                added += 1;
                if added % BATCH == 0 {
                    queue.vring.publish();
                }
            }
            if added > 0 {
                queue.vring.publish();
                busy = true;
            }
        }
        Ok(busy)
    }

    /// Sleeps until a queue interrupts, or a request is due, or the clock shows `end`.
    fn sleep(&mut self, end: Duration) -> Result<(), DiskLoadError> {
        let mut ready = false;
        for queue in &mut self.queues {
            ready |= queue.vring.ring.arm();
        }
        if !ready {
            let now = self.now();
            let left = (end.as_nanos() as u64).saturating_sub(now);
            let nap = self.pace.due_in(now).unwrap_or(NAP).min(NAP).min(left);
            self.alarm.wait(nap).map_err(|error| DiskLoadError::System("wait", error))?;
        }
        for queue in &mut self.queues {
            queue.vring.ring.disarm();
            queue.vring.acknowledge();
        }
        Ok(())
    }

    /// Fails if the user interrupts, or the back-end is silent.
    fn look(&self) -> Result<(), DiskLoadError> {
        if interrupt::asked() {
            return Err(DiskLoadError::Interrupted);
        }
        let waiting = self.queues.iter().map(Queue::in_flight).sum();
        let oldest = self.queues.iter().filter_map(Queue::oldest).min().unwrap_or(u64::MAX);
        let silent = self.now().saturating_sub(oldest) > TIMEOUT.as_nanos() as u64;
        if silent { Err(DiskLoadError::Silent(waiting)) } else { Ok(()) }
    }

    /// The driver's clock, in ns.
    pub(super) fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }
}

/// Connects, as soon as the back-end listens.
fn open(socket: &Path) -> Result<UnixStream, DiskLoadError> {
    let until = Instant::now() + TIMEOUT;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > until => {
                return Err(DriverError::Io("connect", error).into());
            }
            Err(_) if interrupt::asked() => return Err(DiskLoadError::Interrupted),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_load::Operation;

    #[test]
    fn serial_blocks_stay_in_the_part_of_their_queue() {
        let mut blocks = Blocks::Serial(vec![0, 0], 3);
        let of = |blocks: &mut Blocks, queue| {
            (0..4).map(|_| blocks.next(queue).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(of(&mut blocks, 0), [0, 1, 2, 0]);
        assert_eq!(of(&mut blocks, 1), [3, 4, 5, 3]);
        let mut random = Blocks::Random(5, 1);
        assert!((0..100).all(|_| random.next(0).unwrap() < 5));
    }

    #[test]
    fn requests_are_due_at_their_rate() {
        let workload = Workload {
            rate: Some(10_000),
            ..Workload::new(Operation::Read, Order::Random, 4096, 1)
        };
        let mut pace = Pace::new(&workload);
        let mut sent = 0;
        for now in (0..1_000_000_000).step_by(10_000) {
            while pace.is_due(now) {
                pace.spend();
                sent += 1;
            }
        }
        assert!((9_000..11_000).contains(&sent), "{sent}");
        assert!(pace.due_in(0).is_some());
        assert!(!Pace::new(&Workload { rate: Some(0), ..workload }).is_due(u64::MAX));
    }
}
