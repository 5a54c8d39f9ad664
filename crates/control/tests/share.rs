//! Disks and ports on one worker: what each gets of the worker while the other has more to do than
//! the worker can. Counted in requests and frames; no time is measured.
//!
//! The worker is driven by the test, so that everything is published before the worker serves the
//! first queue. Requests are done as soon as they are submitted: a drive would only delay them.

#[path = "../../network/tests/peer/mod.rs"]
mod peer;

use std::any::Any;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use frame::Accepts;
use network::fabric::{Fabric, Workers};
use network::pipeline::FramePipeline;
use peer::{Peer, port};
use ring::{IoChain, Memory};
use runtime::{Group, ManualWorker, Pair, ThreadUsage, pipeline_workers};
use rustix::event::{EventfdFlags, eventfd};
use storage::disks::{DiskId, DiskSpec};
use storage::engine::{Engine, Finished};
use storage::image::{Direct, ImageOptions};
use storage::queue::Notified;
use storage::request::Request;
use storage::{BlockPipeline, Disk, Disks, Image, QueueError, RequestQueue};
use switch::{PortId, PortRule};

/// Bytes of a read, and of a frame.
const READ: u32 = 4096;
const FRAME: usize = 60;

/// Frames that cost as much as a read.
const FRAMES_OF_A_READ: u64 = 10;

/// Does nothing, at once.
struct NoEngine {
    done: Vec<Finished>,
    event: Arc<OwnedFd>,
}

impl Engine for NoEngine {
    fn submit(&mut self, mut request: Box<Request>) {
        let pieces = request.step().map_or(&[][..], |step| step.pieces);
        let bytes: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        self.done.push((request, Ok(bytes as u32)));
    }

    fn flush(&mut self) {}

    fn has_unsubmitted(&self) -> bool {
        false
    }

    fn reap(&mut self, finished: &mut Vec<Finished>) {
        finished.append(&mut self.done);
    }

    fn event(&self) -> &Arc<OwnedFd> {
        &self.event
    }
}

/// A queue with so many reads to make.
struct Reads {
    memory: Arc<Memory>,
    left: u64,
}

impl RequestQueue for Reads {
    fn take(&mut self, chain: &mut IoChain) -> Result<Option<u16>, QueueError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let mut hint = 0;
        chain.begin(&self.memory);
        // A header of zeros: a read of sector 0.
        chain.add(0, 16, false, &mut hint)?;
        chain.add(u64::from(READ), READ, true, &mut hint)?;
        chain.add(32, 1, true, &mut hint)?;
        Ok(Some(0))
    }

    fn has_next(&mut self) -> Result<bool, QueueError> {
        Ok(self.left > 0)
    }

    fn complete(&mut self, _: u16, _: u32) {}

    fn flush(&mut self) -> Result<Notified, QueueError> {
        Ok(Notified::Suppressed)
    }

    fn arm(&mut self) -> Result<bool, QueueError> {
        self.has_next()
    }

    fn disarm(&mut self) {}

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// A worker for ports and disks: a port that receives, one that sends, and a disk.
struct Host {
    fabric: Fabric,
    worker: ManualWorker<Pair<FramePipeline, BlockPipeline>>,
    ports: [PortId; 2],
    sink: Peer,
    disks: Disks,
    disk: DiskId,
    _image: tempfile::NamedTempFile,
}

impl Host {
    fn new() -> Host {
        let workers = Workers { count: 1, usage: Some(ThreadUsage::default), ..Workers::default() };
        let (mut manual, mut disks) = (None, None);
        let fabric = Fabric::start_with(&workers, |doorbells, frames| {
            let pair = |frames| {
                let event = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
                let engine = NoEngine { done: Vec::new(), event };
                Pair::new(frames, BlockPipeline::new(Box::new(engine), ThreadUsage::default))
            };
            let (group, mut workers) =
                Group::manual(doorbells, frames.into_iter().map(pair).collect())?;
            manual = workers.pop();
            let (frames, blocks) = pipeline_workers::split(group);
            disks = Some(Disks::new(blocks));
            Ok(frames)
        });
        let (fabric, mut worker, disks) = (fabric.unwrap(), manual.unwrap(), disks.unwrap());
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let options = ImageOptions::new(image.path().to_owned());
        let opened = Image::open(&ImageOptions { direct: Direct::Never, ..options }).unwrap();
        let disk = disks.add(DiskSpec {
            name: "disk".into(),
            disk: Arc::new(Disk::new(Arc::new(opened), "disk")),
            on_error: Arc::new(|_, error| panic!("{error}")),
            policy: None,
        });
        let ports = [(); 2].map(|()| port(&fabric, PortRule::default()).0);
        let attach = || Peer::attach(&fabric, ports[0], 0, Accepts::ALL, usize::MAX);
        let sink = worker.run_while(attach);
        let mut host = Host { fabric, worker, ports, sink, disks, disk, _image: image };
        // The switch learns where the sink is.
        host.sink.send([frame(9, 0)]);
        host.run_until(|host| host.sink.completed() == 1);
        host
    }

    /// A queue of the port that sends.
    fn sender(&mut self, index: u16) -> Peer {
        let (fabric, port) = (&self.fabric, self.ports[1]);
        self.worker.run_while(|| Peer::attach(fabric, port, index, Accepts::ALL, usize::MAX))
    }

    /// A queue of the disk, with so many reads to make.
    fn reads(&self, index: u16, reads: u64) {
        let memory = Arc::new(Memory::anonymous(2 * READ as usize).unwrap());
        let queue = Reads { memory, left: reads };
        self.disks.attach(self.disk, index, Box::new(queue)).unwrap();
    }

    /// Reads that have begun.
    fn begun(&self) -> u64 {
        self.disks.counters(self.disk).iter().map(|(queue, _)| queue.requests.reads.get()).sum()
    }

    /// Drives the worker until a condition holds.
    fn run_until(&mut self, there: impl Fn(&Host) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !there(self) {
            assert!(Instant::now() < until, "waited for a minute in vain");
            self.worker.run_once(Instant::now());
        }
    }
}

/// A frame from station `src` to station `dst`.
fn frame(dst: u8, src: u8) -> Vec<u8> {
    let mut frame = [&[2, 0, 0, 0, 0, dst][..], &[2, 0, 0, 0, 0, src], &[0x88, 0xb5]].concat();
    frame.resize(FRAME, src);
    frame
}

/// Whether one got what the other got, in the cost of the worker. Either is served in bursts, so
/// not to the last frame.
#[track_caller]
fn assert_shared(frames: u64, reads: u64) {
    let of_reads = reads * FRAMES_OF_A_READ;
    assert!(
        (frames * 3 / 4..=frames * 5 / 4).contains(&of_reads),
        "{frames} frames, {reads} reads"
    );
}

#[test]
fn a_flood_of_requests_leaves_a_port_its_share() {
    for queues in [1, 4] {
        let mut host = Host::new();
        let quiet = host.sender(0);
        (0..queues).for_each(|index| host.reads(index, u64::MAX));
        host.run_until(|host| host.begun() > 0);
        let (before, sent) = (host.begun(), 20_000);
        quiet.send(vec![frame(0, 1); sent]);
        host.run_until(|_| quiet.completed() == sent);
        assert_shared(sent as u64, host.begun() - before);
        assert_eq!(host.sink.received().len(), sent);
    }
}

#[test]
fn a_flood_of_frames_leaves_a_disk_its_share() {
    for queues in [1, 4] {
        let mut host = Host::new();
        let loud: Vec<Peer> = (0..queues).map(|index| host.sender(index)).collect();
        let flood = 80_000 / usize::from(queues);
        loud.iter().for_each(|queue| queue.send(vec![frame(0, 1); flood]));
        host.run_until(|_| loud.iter().all(|queue| queue.completed() > 0));
        host.sink.received();
        let reads = 2000;
        host.reads(0, reads);
        host.run_until(|host| host.begun() == reads);
        assert_shared(host.sink.received().len() as u64, reads);
        assert!(loud.iter().all(|queue| queue.completed() < flood), "the flood was over");
    }
}
