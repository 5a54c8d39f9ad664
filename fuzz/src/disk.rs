//! A disk: rings of requests that say anything, a kernel that completes requests as the input says,
//! and a front-end that reads and writes the configuration space.

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ring::{IoChain, Memory, RequestRing, RingConfig};
use runtime::token_bucket::Rate;
use runtime::{Group, ManualWorker, QueueId, ThreadUsage, group};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use storage::disks::DiskSpec;
use storage::engine::{Engine, Finished};
use storage::image::{Direct, ImageOptions};
use storage::limits::DiskRates;
use storage::queue::{Notified, QueueError, RequestQueue};
use storage::request::{Operation, Request, STEP};
use storage::{BlockPipeline, Disk, Disks, Image};
use vhost_user::blk::device::{BlkDevice, RequestHost};
use vhost_user::transport::device::Device;
use vhost_user::transport::feature::Features;

use crate::input::Input;
use crate::rings::{config, describe, memory, publish, scribble, write};

/// Most steps of one run.
const STEPS: usize = 200;
/// Bytes of the disk.
const BYTES: u64 = 1 << 20;

/// What a driver writes of its own requests, and where.
const HEADER: u64 = 0x3800;
const STATUS: u64 = 0x3900;
const DATA: u64 = 0x4000;

/// A disk's life. `packed`: the layout of `R`.
pub fn run<R: RequestRing + 'static>(packed: bool, data: &[u8]) {
    let mut input = Input::new(data);
    let (memory, config, kind) = (memory(), config(&mut input), input.u8());
    let disk = Arc::new(Disk::new(image(kind & 1 != 0), "fuzz"));
    disk.set_write_through(kind & 2 != 0).expect("a memory file is stable");
    if kind & 4 != 0 {
        let rate = Some(Rate { per_second: 10_000, burst: 3 });
        let bytes = Some(Rate { per_second: 1 << 20, burst: 4096 });
        disk.set_limits(DiskRates { requests: rate, bytes });
    }
    config_space(Arc::clone(&disk), &mut input);
    disk.set_write_through(kind & 2 != 0).expect("a memory file is stable");
    let Ok((ring, _)) = R::start(Arc::clone(&memory), &config, None) else { return };
    let count = usize::from(input.u8() % 64);
    let outcomes = input.take(count).to_vec();
    let mut bench = Bench::new(disk, Box::new(Says::new(outcomes)), ring);
    let mut driver = Driver { memory, config, packed, next: 0, wrap: true };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(10) {
            0 => scribble(&driver.memory, &mut input),
            1 => describe(&driver.memory, &mut input),
            2 => publish(&driver.memory, &mut input),
            3..7 => driver.send(&mut input),
            _ => bench.work(input.u16().into()),
        }
    }
    bench.end();
}

/// The image of all runs, with small or with large blocks. No request gets to it.
fn image(large: bool) -> Arc<Image> {
    static IMAGES: OnceLock<[Arc<Image>; 2]> = OnceLock::new();
    let open = |sector| {
        let file = memfd_create(c"image", MemfdFlags::CLOEXEC).expect("a memory file");
        ftruncate(&file, BYTES).expect("room");
        let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
        let options = ImageOptions {
            direct: Direct::Never,
            sector_size: Some(sector),
            ..ImageOptions::new(path)
        };
        Arc::new(Image::open(&options).expect("an image"))
    };
    Arc::clone(&IMAGES.get_or_init(|| [open(512), open(4096)])[usize::from(large)])
}

/// A front-end reads and writes the configuration space, and negotiates.
fn config_space(disk: Arc<Disk>, input: &mut Input<'_>) {
    let mut device = BlkDevice::new(Nowhere, disk, 1 + u16::from(input.u8() % 128));
    for _ in 0..input.below(8) {
        let offset = if input.u8() < 200 { input.u8().into() } else { input.u32() };
        let len = usize::from(input.u8());
        match input.below(4) {
            0 => drop(device.write_config(offset, input.take(len))),
            1 => device.set_features(Features(input.u64())),
            _ => {
                let mut bytes = vec![7; len];
                assert!(device.read_config(offset, &mut bytes));
                // The fields end at 60: zeros follow, whatever the range.
                let behind = 60usize.saturating_sub(offset as usize).min(bytes.len());
                assert!(bytes[behind..].iter().all(|byte| *byte == 0));
            }
        }
    }
    let mut capacity = [0; 8];
    assert!(device.read_config(0, &mut capacity));
    assert_eq!(u64::from_le_bytes(capacity), BYTES / 512);
}

/// No place for queues: none is started.
struct Nowhere;

impl RequestHost for Nowhere {
    fn attach(&self, _: u16, _: Box<dyn RequestQueue>) -> Option<QueueId> {
        None
    }

    fn detach(&self, _: QueueId) -> Option<Box<dyn RequestQueue>> {
        None
    }
}

/// A driver whose requests are sound, mostly.
struct Driver {
    memory: Arc<Memory>,
    config: RingConfig,
    packed: bool,
    /// Split: the available index. Packed: the next descriptor.
    next: u16,
    /// Packed: the wrap counter.
    wrap: bool,
}

impl Driver {
    fn send(&mut self, input: &mut Input<'_>) {
        let kind = [0, 1, 4, 8, 11, 13, input.u32()][input.below(7) as usize];
        let sector = if input.u8() < 200 { u64::from(input.u16()) % 2100 } else { input.u64() };
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        write(&self.memory, HEADER, &header);
        let len = match (kind, input.u8()) {
            (11 | 13, 32..) => {
                let sectors = u32::from(input.u16() % 4096);
                let flags = u32::from(input.u8() < 64);
                let count = [sectors.to_le_bytes(), flags.to_le_bytes()].concat();
                write(&self.memory, DATA, &[&sector.to_le_bytes()[..], &count].concat());
                16
            }
            (_, 32..) => 512 * u32::from(input.u8() % 17),
            _ => input.u16().into(),
        };
        let writable = matches!(kind, 0 | 8) ^ (input.u8() < 8);
        let (next, write) = (1, 2 * u16::from(writable));
        let pieces = [(HEADER, 16, next), (DATA, len, next | write), (STATUS, 1, 2)];
        match self.packed {
            true => self.describe_packed(pieces),
            false => self.describe_split(pieces),
        }
    }

    fn describe_split(&mut self, pieces: [(u64, u32, u16); 3]) {
        let size = self.config.size.max(1);
        let head = self.next.wrapping_mul(3) % size;
        for (at, (addr, len, flags)) in (0..).zip(pieces) {
            let (slot, next) = ((head + at) % size, (head + at + 1) % size);
            let (flags, next) = (flags.to_le_bytes(), next.to_le_bytes());
            let descriptor = [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags, &next].concat();
            write(&self.memory, self.config.desc.wrapping_add(16 * u64::from(slot)), &descriptor);
        }
        let entry = 4 + 2 * u64::from(self.next % size);
        write(&self.memory, self.config.driver.wrapping_add(entry), &head.to_le_bytes());
        self.next = self.next.wrapping_add(1);
        write(&self.memory, self.config.driver.wrapping_add(2), &self.next.to_le_bytes());
    }

    fn describe_packed(&mut self, pieces: [(u64, u32, u16); 3]) {
        for (addr, len, flags) in pieces {
            let flags = flags | if self.wrap { 1 << 7 } else { 1 << 15 };
            let (id, flags) = (self.next.to_le_bytes(), flags.to_le_bytes());
            let descriptor = [&addr.to_le_bytes()[..], &len.to_le_bytes(), &id, &flags].concat();
            let at = self.config.desc.wrapping_add(16 * u64::from(self.next));
            write(&self.memory, at, &descriptor);
            self.next += 1;
            if self.next >= self.config.size {
                (self.next, self.wrap) = (0, !self.wrap);
            }
        }
    }
}

/// What is under way on the queue, by its token.
type Tokens = Arc<Mutex<BTreeSet<u16>>>;

/// The queue, which notes what is under way.
struct Queue<R> {
    ring: R,
    tokens: Tokens,
}

impl<R: RequestRing + 'static> RequestQueue for Queue<R> {
    fn take(&mut self, chain: &mut IoChain) -> Result<Option<u16>, QueueError> {
        let token = self.ring.take(chain)?;
        if let Some(token) = token {
            assert!(self.tokens.lock().insert(token), "taken twice: {token}");
        }
        Ok(token)
    }

    fn has_next(&mut self) -> Result<bool, QueueError> {
        Ok(self.ring.has_next()?)
    }

    fn complete(&mut self, token: u16, len: u32) {
        assert!(self.tokens.lock().remove(&token), "answered twice: {token}");
        self.ring.complete(token, len);
    }

    fn flush(&mut self) -> Result<Notified, QueueError> {
        Ok(self.ring.publish().map_or(Notified::Nothing, |_| Notified::Suppressed))
    }

    fn arm(&mut self) -> Result<bool, QueueError> {
        // Always polled.
        Ok(self.ring.arm().map(|_| true)?)
    }

    fn disarm(&mut self) {
        self.ring.disarm();
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// A worker with the disk.
struct Bench {
    worker: ManualWorker<BlockPipeline>,
    _disks: Disks,
    errors: Arc<Mutex<Vec<QueueError>>>,
    tokens: Tokens,
    now: Instant,
}

impl Bench {
    fn new<R: RequestRing + 'static>(disk: Arc<Disk>, engine: Box<dyn Engine>, ring: R) -> Bench {
        let doorbells = group::doorbells(1).expect("a doorbell");
        let pipelines = vec![BlockPipeline::new(engine, ThreadUsage::now)];
        let (group, mut workers) = Group::manual(doorbells, pipelines).expect("a worker");
        let disks = Disks::new(Arc::new(group));
        let (errors, tokens) = (Arc::default(), Tokens::default());
        let sink: Arc<Mutex<Vec<QueueError>>> = Arc::clone(&errors);
        let on_error = Arc::new(move |_, error| sink.lock().push(error));
        let id = disks.add(DiskSpec { name: "fuzz".into(), disk, on_error, policy: None });
        let queue = Queue { ring, tokens: Arc::clone(&tokens) };
        disks.attach(id, 0, Box::new(queue)).expect("the disk is there");
        let (worker, now) = (workers.remove(0), Instant::now());
        Bench { worker, _disks: disks, errors, tokens, now }
    }

    fn work(&mut self, microseconds: u64) {
        self.now += Duration::from_micros(microseconds);
        self.worker.run_once(self.now);
    }

    /// All that has begun ends, and is answered unless the driver broke the protocol.
    fn end(&mut self) {
        // The outcomes that are left are less than that, and then every step succeeds.
        (0..300).for_each(|_| self.work(0));
        if self.errors.lock().is_empty() {
            let tokens = self.tokens.lock();
            assert!(tokens.is_empty(), "never answered: {tokens:?}");
        }
    }
}

/// A kernel whose answers come from the input, and are successes after that.
struct Says {
    outcomes: VecDeque<u8>,
    submitted: Vec<Finished>,
    begun: VecDeque<Box<Request>>,
    event: Arc<OwnedFd>,
}

impl Says {
    fn new(outcomes: Vec<u8>) -> Says {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an event"));
        let (submitted, begun) = (Vec::new(), VecDeque::new());
        Says { outcomes: outcomes.into(), submitted, begun, event }
    }

    /// What becomes of the step; `None`: it goes on.
    fn outcome(&mut self, request: &mut Request) -> Option<Result<u32, i32>> {
        let step = request.step().expect("a request that was submitted has an image");
        let bytes: usize = step.pieces.iter().map(|piece| piece.iov_len).sum();
        assert!(bytes <= STEP);
        match step.operation {
            Operation::Read | Operation::Write { .. } | Operation::WriteZeros => {
                assert!(bytes > 0 && step.offset + bytes as u64 <= BYTES);
            }
            Operation::PunchHole | Operation::ZeroRange => {
                assert!(step.len > 0 && step.offset + step.len <= BYTES);
            }
            Operation::Sync => {}
        }
        let bytes = bytes as u32;
        // EINTR, EIO, EAGAIN, ENOSPC, ENOSYS, EOPNOTSUPP.
        let errors = [4, 5, 11, 28, 38, 95];
        match self.outcomes.pop_front() {
            None | Some(0..150) => Some(Ok(bytes)),
            Some(150..180) => None,
            Some(180..200) => Some(Ok(bytes / 2)),
            Some(other) => Some(Err(errors[usize::from(other) % errors.len()])),
        }
    }
}

impl Engine for Says {
    fn submit(&mut self, request: Box<Request>) {
        self.submitted.push((request, Ok(0)));
    }

    fn flush(&mut self) {
        self.begun.extend(self.submitted.drain(..).map(|(request, _)| request));
    }

    fn has_unsubmitted(&self) -> bool {
        !self.submitted.is_empty()
    }

    fn reap(&mut self, finished: &mut Vec<Finished>) {
        for _ in 0..self.begun.len() {
            let Some(mut request) = self.begun.pop_front() else { break };
            match self.outcome(&mut request) {
                Some(result) => finished.push((request, result)),
                None => self.begun.push_back(request),
            }
        }
    }

    fn event(&self) -> &Arc<OwnedFd> {
        &self.event
    }
}
