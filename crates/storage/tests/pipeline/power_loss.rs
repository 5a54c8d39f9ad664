//! A power cut at any moment: what was flushed is there.
//!
//! An engine that carries nothing out writes down when each write and each flush began and ended.
//! At each prefix of that log, a drive with a volatile cache holds what a flush has covered, and of
//! the rest any subset. A guest that was told that a flush is done must find what it had been told
//! to be written before it sent the flush.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::guest::{SECTOR, Sent, Site, options};
use fastrand::Rng;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use storage::Image;
use storage::engine::{Engine, Finished};
use storage::request::{Operation, Request};

const SECTORS: u64 = 64;
const QUEUES: usize = 3;

/// A write is known by its number, which its sectors begin with.
type Number = u64;

/// Something that happened.
#[derive(Clone, Debug)]
enum Event {
    /// A write of these sectors began.
    Begun(Number, std::ops::Range<u64>),
    /// The operation ended; its data is stable by itself, or not.
    Ended(Number, bool),
    /// A flush ended that had begun when these writes had ended.
    Flushed(Vec<Number>),
    /// The guest relies on these writes.
    Relied(Vec<Number>),
}

type Log = Arc<Mutex<Vec<Event>>>;

/// A step that has begun: with the writes that a flush covers.
enum Begun {
    Write(Number, bool, u32),
    Flush(Vec<Number>),
}

struct Recorder {
    log: Log,
    random: Rng,
    begun: Vec<(Box<Request>, Begun)>,
    ended: Vec<Number>,
    /// The counter-example: flushes cover nothing.
    ignores_flushes: bool,
    event: Arc<OwnedFd>,
}

impl Engine for Recorder {
    fn takes_copies(&self) -> bool {
        true
    }

    fn submit(&mut self, mut request: Box<Request>) {
        let (operation, offset) = request.step().map(|step| (step.operation, step.offset)).unwrap();
        let begun = match operation {
            Operation::Write { stable } => {
                let mut data = vec![0; request.chain.readable_len() as usize];
                assert!(request.chain.read(&mut data));
                let number = u64::from_le_bytes(*data.first_chunk().unwrap());
                let first = offset / SECTOR as u64;
                let sectors = first..first + (data.len() / SECTOR) as u64;
                self.log.lock().push(Event::Begun(number, sectors));
                Begun::Write(number, stable, data.len() as u32)
            }
            Operation::Sync => Begun::Flush(self.ended.clone()),
            other => panic!("{other:?}"),
        };
        self.begun.push((request, begun));
    }

    fn flush(&mut self) {}

    fn has_unsubmitted(&self) -> bool {
        false
    }

    fn reap(&mut self, finished: &mut Vec<Finished>) {
        while !self.begun.is_empty() && self.random.u64(..3) > 0 {
            let which = self.random.usize(..self.begun.len());
            let (request, begun) = self.begun.swap_remove(which);
            let moved = match begun {
                Begun::Write(number, stable, len) => {
                    self.ended.push(number);
                    self.log.lock().push(Event::Ended(number, stable));
                    len
                }
                Begun::Flush(covered) => {
                    let covered = if self.ignores_flushes { Vec::new() } else { covered };
                    self.log.lock().push(Event::Flushed(covered));
                    0
                }
            };
            finished.push((request, Ok(moved)));
        }
    }

    fn event(&self) -> &Arc<OwnedFd> {
        &self.event
    }
}

/// A guest that writes and flushes on several queues. Writes that overlap do not overlap in time.
struct Writer {
    site: Site,
    log: Log,
    /// The writes under way, by number of the request.
    writes: HashMap<u64, (Number, std::ops::Range<u64>)>,
    flushes: HashMap<u64, Vec<Number>>,
    written: Vec<Number>,
    next: Number,
    relies_on_writes: bool,
}

impl Writer {
    fn send(&mut self, random: &mut Rng) {
        let queue = random.usize(..QUEUES);
        if random.u64(..4) == 0 {
            // All that the guest was told to be written, on whatever queue.
            let Some(request) = self.site.send(queue, &Sent::flush(), 512) else { return };
            self.flushes.insert(request, self.written.clone());
            return;
        }
        let first = random.u64(..SECTORS - 4);
        let sectors = first..first + 1 + random.u64(..4);
        let overlaps = |(_, other): &(Number, std::ops::Range<u64>)| {
            other.start < sectors.end && sectors.start < other.end
        };
        if self.writes.values().any(overlaps) {
            return;
        }
        let mut data = self.next.to_le_bytes().to_vec();
        data.resize((sectors.end - sectors.start) as usize * SECTOR, 0);
        let Some(request) = self.site.send(queue, &Sent::write(first, data), 700) else { return };
        self.writes.insert(request, (self.next, sectors));
        self.next += 1;
    }

    fn collect(&mut self) {
        for (request, answer) in self.site.collect() {
            assert_eq!(answer.status, 0);
            if let Some(covered) = self.flushes.remove(&request) {
                self.log.lock().push(Event::Relied(covered));
            } else if let Some((number, _)) = self.writes.remove(&request) {
                self.written.push(number);
                if self.relies_on_writes {
                    self.log.lock().push(Event::Relied(vec![number]));
                }
            }
        }
    }
}

/// Records the events of a guest at work.
fn record(seed: u64, write_through: bool, ignores_flushes: bool) -> Vec<Event> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(SECTORS * SECTOR as u64).unwrap();
    let log = Log::default();
    let engine = Recorder {
        log: Arc::clone(&log),
        random: Rng::with_seed(seed),
        begun: Vec::new(),
        ended: Vec::new(),
        ignores_flushes,
        event: Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
    };
    let image = Image::open(&options(file.path())).unwrap();
    let site = Site::new(image, QUEUES as u16, Box::new(engine));
    site.disk.set_write_through(write_through).unwrap();
    let mut writer = Writer {
        site,
        log: Arc::clone(&log),
        writes: HashMap::new(),
        flushes: HashMap::new(),
        written: Vec::new(),
        next: 1,
        relies_on_writes: write_through,
    };
    let mut random = Rng::with_seed(!seed);
    for step in 0..400 {
        if step < 300 && random.u64(..2) == 0 {
            writer.send(&mut random);
        }
        writer.site.worker.run_once(Instant::now());
        if random.u64(..3) == 0 {
            writer.collect();
        }
    }
    drop(writer);
    Arc::into_inner(log).unwrap().into_inner()
}

/// Cuts the power after each event, with some subsets of what is not stable. Returns the first
/// write that the guest relies on and that is lost.
fn first_loss(events: &[Event], random: &mut Rng) -> Option<(usize, Number)> {
    let mut begun: HashMap<Number, std::ops::Range<u64>> = HashMap::new();
    let (mut stable, mut relied) = (Vec::new(), Vec::new());
    for (cut, event) in events.iter().enumerate() {
        match event {
            Event::Begun(number, sectors) => _ = begun.insert(*number, sectors.clone()),
            Event::Ended(number, true) => stable.push(*number),
            Event::Ended(_, false) => {}
            Event::Flushed(covered) => stable.extend(covered),
            Event::Relied(covered) => relied.extend(covered),
        }
        for subset in 0..3 {
            // The first subset is empty.
            let kept = |_: &&Number| subset > 0 && random.u64(..2) == 0;
            let others: Vec<Number> = begun.keys().filter(kept).copied().collect();
            let mut disk = [0; SECTORS as usize];
            for number in stable.iter().chain(&others) {
                for sector in begun[number].clone() {
                    let at = &mut disk[sector as usize];
                    *at = (*at).max(*number);
                }
            }
            let is_lost =
                |number: &&Number| begun[*number].clone().any(|at| disk[at as usize] < **number);
            if let Some(number) = relied.iter().find(is_lost) {
                return Some((cut, *number));
            }
        }
    }
    None
}

#[test]
fn what_was_flushed_is_there_after_a_power_cut() {
    for seed in 0..60 {
        let events = record(seed, false, false);
        let relied =
            events.iter().any(|event| matches!(event, Event::Relied(list) if !list.is_empty()));
        assert!(relied, "the guest relies on nothing: {seed}");
        assert_eq!(first_loss(&events, &mut Rng::with_seed(seed)), None, "{seed}");
    }
}

#[test]
fn without_a_write_cache_what_was_written_is_there_after_a_power_cut() {
    for seed in 0..60 {
        let events = record(seed, true, false);
        assert_eq!(first_loss(&events, &mut Rng::with_seed(seed)), None, "{seed}");
    }
}

/// The check finds what it is there for.
#[test]
fn ignored_flushes_are_found_out() {
    let lost = (0..60).filter(|seed| {
        first_loss(&record(*seed, false, true), &mut Rng::with_seed(*seed)).is_some()
    });
    assert_eq!(lost.count(), 60);
}
