//! A guest in this process: rings in its own memory, and a worker that is driven by hand.

// Each test uses some of it.
#![allow(dead_code)]

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ring::driver::{DriverRing, Piece, Tables, Used};
use ring::split::driver::SplitDriver;
use ring::{IoChain, Memory, RequestRing, RingConfig, SplitRequests};
use runtime::{Group, ManualWorker, ThreadUsage, group};
use storage::disks::{DiskId, DiskSpec};
use storage::engine::Engine;
use storage::image::ImageOptions;
use storage::queue::{Notified, QueueError, RequestQueue};
use storage::{BlockPipeline, Disk, Disks, Image};

pub const SECTOR: usize = 512;
/// Entries of each ring.
pub const SIZE: u16 = 64;
/// Longest request, in bytes of data.
pub const LONGEST: u64 = 64 << 10;

/// The place of the parts of a request that a driver writes.
const HEADERS: u64 = 1 << 20;
const DATA: u64 = 2 << 20;
/// Where the rings are: each has so many bytes.
const RING: u64 = 1 << 18;

/// A queue over a split ring without signals: the guest polls, and so does the worker.
struct TestQueue(SplitRequests);

impl RequestQueue for TestQueue {
    fn take(&mut self, chain: &mut IoChain) -> Result<Option<u16>, QueueError> {
        Ok(self.0.take(chain)?)
    }

    fn has_next(&mut self) -> Result<bool, QueueError> {
        Ok(self.0.has_next()?)
    }

    fn complete(&mut self, token: u16, len: u32) {
        self.0.complete(token, len);
    }

    fn flush(&mut self) -> Result<Notified, QueueError> {
        Ok(self.0.publish().map_or(Notified::Nothing, |_| Notified::Suppressed))
    }

    fn arm(&mut self) -> Result<bool, QueueError> {
        // Always polled.
        Ok(true)
    }

    fn disarm(&mut self) {}

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// How a request ended: its status byte, and its data, if it was a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u8,
    pub data: Vec<u8>,
    pub len: u32,
}

/// A request that waits for its answer.
struct Waiting {
    number: u64,
    slot: u64,
    room: u64,
}

/// One queue as its driver sees it.
struct Queue {
    memory: Arc<Memory>,
    driver: SplitDriver,
    waiting: HashMap<u16, Waiting>,
    free: Vec<u64>,
}

/// A disk, its worker, and a guest that has the disk.
pub struct Site {
    pub disk: Arc<Disk>,
    pub disks: Arc<Disks>,
    pub id: DiskId,
    pub worker: ManualWorker<BlockPipeline>,
    /// Violations, as they were reported.
    pub errors: Arc<Mutex<Vec<QueueError>>>,
    queues: Vec<Queue>,
    sent: u64,
}

/// A request as a driver sends it.
#[derive(Clone, Debug)]
pub struct Sent {
    pub kind: u32,
    pub sector: u64,
    pub data: Vec<u8>,
    /// Bytes of room for data.
    pub room: u64,
}

impl Sent {
    pub fn read(sector: u64, sectors: u64) -> Sent {
        Sent { kind: 0, sector, data: Vec::new(), room: sectors * SECTOR as u64 }
    }

    pub fn write(sector: u64, data: Vec<u8>) -> Sent {
        Sent { kind: 1, sector, data, room: 0 }
    }

    pub fn flush() -> Sent {
        Sent { kind: 4, sector: 0, data: Vec::new(), room: 0 }
    }

    pub fn range(kind: u32, sector: u64, sectors: u32, flags: u32) -> Sent {
        let mut data = sector.to_le_bytes().to_vec();
        data.extend(sectors.to_le_bytes());
        data.extend(flags.to_le_bytes());
        Sent { kind, sector: 0, data, room: 0 }
    }
}

pub fn options(path: &Path) -> ImageOptions {
    ImageOptions::new(path.to_owned())
}

impl Site {
    /// A disk with an image, so many queues, and this engine.
    pub fn new(image: Image, queues: u16, engine: Box<dyn Engine>) -> Site {
        let doorbells = group::doorbells(1).unwrap();
        let pipelines = vec![BlockPipeline::new(engine, ThreadUsage::default)];
        let (group, mut workers) = Group::manual(doorbells, pipelines).unwrap();
        let disks = Arc::new(Disks::new(Arc::new(group)));
        let disk = Arc::new(Disk::new(Arc::new(image), "serial"));
        disk.set_write_through(false).unwrap();
        let errors = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&errors);
        let on_error = Arc::new(move |_, error| sink.lock().push(error));
        let id = disks.add(DiskSpec {
            name: "disk".into(),
            disk: Arc::clone(&disk),
            on_error,
            policy: None,
        });
        let mut worker = workers.remove(0);
        let queues = (0..queues).map(|index| {
            let (queue, config) = Queue::new();
            let (ring, _) = SplitRequests::start(queue.memory.clone(), &config, None).unwrap();
            disks.attach(id, index, Box::new(TestQueue(ring))).unwrap();
            worker.run_once(Instant::now());
            queue
        });
        let queues = queues.collect();
        Site { disk, disks, id, worker, errors, queues, sent: 0 }
    }

    /// Sends a request on a queue, in pieces of at most `piece` bytes. Returns its number; `None`:
    /// the ring is full.
    pub fn send(&mut self, queue: usize, request: &Sent, piece: u32) -> Option<u64> {
        let number = self.sent;
        let sent = self.queues[queue].send(request, piece, number)?;
        self.sent += u64::from(sent);
        Some(number)
    }

    /// Takes the answers that have come on any queue.
    pub fn collect(&mut self) -> Vec<(u64, Answer)> {
        self.queues.iter_mut().flat_map(Queue::collect).collect()
    }

    /// Has the worker work until a number of answers have come.
    pub fn answers(&mut self, count: usize) -> Vec<(u64, Answer)> {
        let (mut all, until) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        while all.len() < count {
            assert!(Instant::now() < until, "{} of {count} answers", all.len());
            self.worker.run_once(Instant::now());
            all.extend(self.collect());
        }
        all
    }

    /// Sends a request, and waits for its answer.
    pub fn ask(&mut self, request: &Sent) -> Answer {
        self.send(0, request, 1 << 20).unwrap();
        self.answers(1).remove(0).1
    }

    /// The memory of a queue's guest, and where its ring is.
    pub fn raw(&mut self, queue: usize) -> (&Arc<Memory>, &mut SplitDriver) {
        let queue = &mut self.queues[queue];
        (&queue.memory, &mut queue.driver)
    }
}

impl Queue {
    fn new() -> (Queue, RingConfig) {
        let memory =
            Arc::new(Memory::anonymous((DATA + u64::from(SIZE) * LONGEST) as usize).unwrap());
        let ring = SplitDriver::footprint(SIZE).at_zero(SIZE);
        let config = RingConfig { indirect: true, ..ring };
        let tables = Tables { addr: RING, entries: 160 };
        let driver = SplitDriver::new(memory.clone(), &config, Some(tables)).unwrap();
        let free = (0..u64::from(SIZE)).collect();
        (Queue { memory, driver, waiting: HashMap::new(), free }, config)
    }

    /// False: only the answers are awaited of a request that was sent; `None`: no room.
    fn send(&mut self, request: &Sent, piece: u32, number: u64) -> Option<bool> {
        let slot = *self.free.last()?;
        let (header, data) = (HEADERS + slot * 64, DATA + slot * LONGEST);
        let mut bytes = request.kind.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(request.sector.to_le_bytes());
        self.memory.write(header, &bytes).unwrap();
        self.memory.write(header + 32, &[0xff]).unwrap();
        self.memory.write(data, &request.data).unwrap();
        let cut = |addr: u64, len: u64| {
            (0..len)
                .step_by(piece as usize)
                .map(move |at| Piece { addr: addr + at, len: piece.min((len - at) as u32) })
        };
        let readable: Vec<Piece> =
            cut(header, 16).chain(cut(data, request.data.len() as u64)).collect();
        let status = Piece { addr: header + 32, len: 1 };
        let writable: Vec<Piece> = cut(data, request.room).chain([status]).collect();
        let id = self.driver.add_request(&readable, &writable)?;
        self.free.pop();
        self.driver.publish();
        self.waiting.insert(id, Waiting { number, slot, room: request.room });
        Some(true)
    }

    fn collect(&mut self) -> Vec<(u64, Answer)> {
        let mut used = [Used::default(); SIZE as usize];
        let count = self.driver.collect(&mut used).unwrap();
        let answer = |Used { id, len }: &Used| {
            let Waiting { number, slot, room } = self.waiting.remove(id).expect("answered twice");
            let (mut status, mut data) = ([0], vec![0; room as usize]);
            self.memory.read(HEADERS + slot * 64 + 32, &mut status).unwrap();
            self.memory.read(DATA + slot * LONGEST, &mut data).unwrap();
            self.free.push(slot);
            (number, Answer { status: status[0], data, len: *len })
        };
        used[..count].iter().map(answer).collect()
    }
}
