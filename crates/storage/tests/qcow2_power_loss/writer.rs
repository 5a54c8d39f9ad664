//! A guest that writes, discards and flushes.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use storage::Image;
use storage::engine::Engine;

use crate::guest::{SECTOR, Sent, Site};
use crate::recorder::{Event, Recorder};
use crate::{MOST, qcow2};

const QUEUES: usize = 2;
/// Requests that each guest sends.
const REQUESTS: usize = 250;
/// The disk becomes longer after about so many.
const GROWS_AFTER: usize = 30;
/// Ends a test that would hang.
const WATCHDOG: Duration = Duration::from_secs(120);

/// A guest on several queues. Requests that overlap do not overlap in time.
pub struct Writer {
    site: Site,
    recorder: Recorder,
    random: Rng,
    /// Requests under way, by what the site calls them.
    changes: HashMap<u64, (usize, Range<u64>)>,
    flushes: HashMap<u64, Vec<usize>>,
    /// Requests that were answered.
    done: Vec<usize>,
    next: usize,
    sectors: u64,
    /// Sectors of a cluster.
    cluster: u64,
    write_through: bool,
    /// What makes the disk longer, meanwhile.
    growing: Option<JoinHandle<u64>>,
}

impl Writer {
    pub fn new(path: &Path, cluster: u64, recorder: Recorder, engine: Box<dyn Engine>) -> Writer {
        let image = Image::open(&qcow2(path)).unwrap();
        image.lock().unwrap();
        let sectors = image.bytes() / SECTOR as u64;
        Writer {
            site: Site::new(image, QUEUES as u16, engine),
            recorder,
            random: Rng::with_seed(1),
            changes: HashMap::new(),
            flushes: HashMap::new(),
            done: Vec::new(),
            next: 1,
            sectors,
            cluster: cluster / SECTOR as u64,
            write_through: false,
            growing: None,
        }
    }

    /// Sends requests at random, and waits for all answers. `grows`: the disk becomes longer
    /// meanwhile.
    pub fn play(&mut self, seed: u64, write_through: bool, grows: bool) {
        self.random = Rng::with_seed(seed);
        self.write_through = write_through;
        self.site.disk.set_write_through(write_through).unwrap();
        let (until, last) = (Instant::now() + WATCHDOG, self.next + REQUESTS);
        while self.next < last
            || !self.changes.is_empty()
            || !self.flushes.is_empty()
            || self.growing.is_some()
        {
            assert!(Instant::now() < until, "requests are answered");
            if self.next < last && self.changes.len() < 6 {
                self.send();
                if grows && self.growing.is_none() && self.random.usize(..GROWS_AFTER) == 0 {
                    self.grow();
                }
            }
            if self.growing.as_ref().is_some_and(JoinHandle::is_finished) {
                self.grown();
            }
            self.site.worker.run_once(Instant::now());
            self.collect();
        }
    }

    /// Makes the disk longer, beside the requests.
    fn grow(&mut self) {
        let image = Arc::clone(self.site.disk.image());
        let bytes = (self.sectors + 1 + self.random.u64(..self.sectors / 2)) * SECTOR as u64;
        self.growing = Some(std::thread::spawn(move || image.resize(Some(bytes)).unwrap()));
    }

    /// The guest sees that the disk is longer.
    fn grown(&mut self) {
        let Some(growing) = self.growing.take() else { return };
        self.sectors = growing.join().unwrap() / SECTOR as u64;
        self.recorder.note(Event::Grown(self.sectors));
    }

    /// A range of the disk: whole clusters now and then.
    fn range(&mut self, most: u64) -> Range<u64> {
        let first = self.random.u64(..self.sectors);
        let end = (first + 1 + self.random.u64(..most)).min(self.sectors);
        let first_whole = first - first % self.cluster;
        let len = (end - first_whole).next_multiple_of(self.cluster);
        match self.random.u32(..3) == 0 && len <= most {
            true => first_whole..(first_whole + len).min(self.sectors),
            false => first..end,
        }
    }

    fn send(&mut self) {
        let queue = self.random.usize(..QUEUES);
        let (kind, number) = (self.random.u32(..16), self.next);
        if kind < 3 {
            let Some(request) = self.site.send(queue, &Sent::flush(), 4096) else { return };
            self.flushes.insert(request, self.done.clone());
            return;
        }
        let range = self.range(if kind < 12 { MOST } else { 3 * MOST });
        let overlaps =
            |(_, other): &(usize, Range<u64>)| other.start < range.end && range.start < other.end;
        if self.changes.values().any(overlaps) {
            return;
        }
        let sectors = range.end - range.start;
        let (sent, stamp) = match kind {
            ..12 => {
                let mut data = vec![0; sectors as usize * SECTOR];
                let stamp = (number as u64).to_le_bytes();
                data.chunks_mut(SECTOR).for_each(|sector| sector[..8].copy_from_slice(&stamp));
                (Sent::write(range.start, data), number as u64)
            }
            12 | 13 => (Sent::range(11, range.start, sectors as u32, 0), 0),
            _ => (Sent::range(13, range.start, sectors as u32, kind & 1), 0),
        };
        self.recorder.note(Event::Sent(number, range.clone(), stamp));
        self.next += 1;
        let request = self.site.send(queue, &sent, 1 << 20).expect("a ring has room for all");
        self.changes.insert(request, (number, range));
    }

    fn collect(&mut self) {
        for (request, answer) in self.site.collect() {
            assert_eq!(answer.status, 0);
            if let Some(covered) = self.flushes.remove(&request) {
                self.recorder.note(Event::Relied(covered));
            } else if let Some((number, _)) = self.changes.remove(&request) {
                self.done.push(number);
                if self.write_through {
                    self.recorder.note(Event::Relied(vec![number]));
                }
            }
        }
    }
}
