//! A TAP device as a port: the link to the host and, through its bridge or routes, to the wire.
//!
//! Each queue is a descriptor. Frames carry a virtio-net header, so unfinished checksums and
//! unsegmented frames pass through. Frames from the kernel are read into a few private buffers, and
//! copied to the receiver from there, because the receiver is only known once the frame was read.
//! Frames to the kernel are written straight from the sender's memory.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use frame::{Accepts, VNET_LEN, vnet};
use network::burst::{Burst, MAX_FRAME};
use network::fabric::{Fabric, NewPort};
use network::packet::Packet;
use network::poll::PollingPolicy;
use network::port::{Notified, QueueError, QueuePair};
use network::restrictions::Restrictions;
use network::topology::QueueId;
use parking_lot::Mutex;
use ring::GrantCopyBatch;
use ring::device::Put;
use ring::gather::{Body, Chain, Gather};
use ring::region::{MapError, Memory};
use switch::{PortId, PortRule};

use crate::staging::Staging;
use crate::tun;

mod error;
mod hand_over;

pub use error::TapError;

/// Most frames that a queue has read and not yet delivered. With more workers than CPUs, this
/// number of frames may wait until another worker gets a CPU.
const BUFFERS: u16 = 256;
/// Bytes of each buffer: the longest frame and its header, in whole pages.
const BUFFER: u64 = (MAX_FRAME as u64 + VNET_LEN as u64).next_multiple_of(4096);

/// Parts that a TAP port is made from.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// The device's name. A missing device is created, and removed together with the port.
    pub device: String,
    /// Queues, at least one.
    pub queues: u16,
    /// VLANs and source lock.
    pub rule: PortRule,
    /// The MTU that the device gets. `None`: the MTU is left alone.
    pub mtu: Option<u16>,
    /// How workers wait for its frames. `None`: as for the frames of other ports.
    pub policy: Option<PollingPolicy>,
    /// Limits on the frames that the port sends and receives.
    pub restrictions: Restrictions,
}

/// A TAP device in service.
pub struct Tap {
    name: tun::IfName,
    fabric: Arc<Fabric>,
    port: PortId,
    /// The descriptors of the queues.
    files: Vec<Arc<OwnedFd>>,
    queues: Mutex<Vec<Place>>,
    stopped: Arc<Mutex<Option<QueueError>>>,
}

/// The place of a queue.
enum Place {
    /// In the fabric.
    Attached(QueueId),
    /// Detached, while another process may continue with it. The identifier is the queue's place
    /// in the fabric, if it has one.
    Detached(Option<QueueId>, Box<TapQueue>),
}

impl Tap {
    /// Opens the device, and attaches its queues. A device that is created here is also set up.
    ///
    /// # Errors
    /// When the kernel or the fabric refuse.
    pub fn start(fabric: Arc<Fabric>, config: TapConfig) -> Result<Self, TapError> {
        let name = name_of(&config)?;
        let queues = open(name, &config)?;
        let tap = Tap::add(fabric, name, config, queues)?;
        tap.put_back();
        Ok(tap)
    }

    /// Adds a port whose queues are all detached.
    fn add(
        fabric: Arc<Fabric>,
        name: tun::IfName,
        config: TapConfig,
        queues: Vec<TapQueue>,
    ) -> Result<Self, TapError> {
        let stopped: Arc<Mutex<Option<QueueError>>> = Arc::default();
        let note = Arc::clone(&stopped);
        let on_error = Arc::new(move |_, error| *note.lock() = Some(error));
        let TapConfig { device, rule, mtu, policy, restrictions, .. } = config;
        let port = fabric.add_port(NewPort {
            name: device.into(),
            rule,
            mtu,
            on_error,
            coalescing: None,
            policy,
            restrictions,
        })?;
        let files = queues.iter().map(|queue| Arc::clone(&queue.fd)).collect();
        let detached = |queue| Place::Detached(None, Box::new(queue));
        let queues = Mutex::new(queues.into_iter().map(detached).collect());
        Ok(Tap { name, fabric, port, files, queues, stopped })
    }

    /// The port's number.
    pub fn port(&self) -> PortId {
        self.port
    }

    /// Whether the interface is up.
    ///
    /// # Errors
    /// When this network namespace has no interface of that name any more.
    pub fn is_up(&self) -> io::Result<bool> {
        tun::is_up(self.name)
    }

    /// Why the device is out of service, if it is.
    pub fn stopped(&self) -> Option<QueueError> {
        *self.stopped.lock()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // Attached queues are dropped with the port.
        self.fabric.remove_port(self.port);
    }
}

fn name_of(config: &TapConfig) -> Result<tun::IfName, TapError> {
    tun::if_name(&config.device).ok_or_else(|| TapError::Name(config.device.clone()))
}

fn open(name: tun::IfName, config: &TapConfig) -> Result<Vec<TapQueue>, TapError> {
    let failed = |error| TapError::Open { name: config.device.clone(), error };
    let unset = |what| move |error| TapError::Set { name: config.device.clone(), what, error };
    let created = !tun::exists(name).map_err(failed)?;
    let mut queues = Vec::new();
    for _ in 0..config.queues.max(1) {
        let fd = tun::open_queue(name).map_err(failed)?;
        let accepts = tun::set_offloads(&fd).map_err(unset("offloads"))?;
        queues.push(TapQueue::new(fd, accepts)?);
    }
    if let Some(mtu) = config.mtu {
        tun::set_mtu(name, mtu).map_err(unset("the MTU"))?;
    }
    if created {
        tun::set_up(name).map_err(unset("the state"))?;
    }
    Ok(queues)
}

/// One queue of a TAP device.
///
/// The first `fetched` of the frames that were read, oldest first, are under way. The others were
/// rewound and will be fetched again.
struct TapQueue {
    fd: Arc<OwnedFd>,
    /// A duplicate of the descriptor, to be watched for room independently of frames.
    room: Option<OwnedFd>,
    accepts: Accepts,
    memory: Arc<Memory>,
    frames: VecDeque<Landed>,
    fetched: usize,
    /// Buffers without a frame. The buffer that was used last is used first, so that no more memory
    /// is touched than is needed at a time.
    free: Vec<u16>,
    /// Created when first needed.
    staging: Option<Box<Staging>>,
}

/// A frame that was read.
#[derive(Clone, Copy)]
struct Landed {
    buffer: u16,
    len: u32,
}

impl TapQueue {
    fn new(fd: OwnedFd, accepts: Accepts) -> Result<Self, MapError> {
        let memory = Arc::new(Memory::anonymous((u64::from(BUFFERS) * BUFFER) as usize)?);
        let room = rustix::io::fcntl_dupfd_cloexec(&fd, 0).ok();
        Ok(TapQueue {
            fd: Arc::new(fd),
            room,
            accepts,
            memory,
            frames: VecDeque::with_capacity(BUFFERS.into()),
            fetched: 0,
            free: (0..BUFFERS).rev().collect(),
            staging: None,
        })
    }

    /// Whether a frame was rewound and has to be fetched again.
    fn has_rewound(&self) -> bool {
        self.fetched < self.frames.len()
    }

    /// Fills `chains` with up to `room` frames: first those that were rewound, then frames that the
    /// kernel has.
    fn take(
        &mut self,
        gather: &mut Gather,
        chains: &mut Vec<Chain>,
        room: usize,
    ) -> Result<usize, QueueError> {
        while chains.len() < room && (self.has_rewound() || self.read_one()?) {
            let Some(&Landed { buffer, len }) = self.frames.get(self.fetched) else { break };
            chains.push(gather.push_range(&self.memory, place(buffer), len)?);
            self.fetched += 1;
        }
        Ok(chains.len())
    }

    /// Reads one frame into a free buffer. False when there is no frame or no free buffer.
    fn read_one(&mut self) -> Result<bool, QueueError> {
        let Some(&buffer) = self.free.last() else { return Ok(false) };
        match self.memory.read_from_fd(self.fd.as_fd(), place(buffer), BUFFER as usize) {
            Ok(len) => {
                self.free.pop();
                self.frames.push_back(Landed { buffer, len: len as u32 });
                Ok(true)
            }
            Err(error) if tun::is_gone(&error) => Err(QueueError::Gone),
            // Nothing there, or the interface is down.
            Err(_) => Ok(false),
        }
    }
}

/// The address of a buffer.
fn place(buffer: u16) -> u64 {
    u64::from(buffer) * BUFFER
}

impl TapQueue {
    /// Writes a frame whose body is granted: it is copied to private memory first.
    #[cold]
    fn put_granted(
        &mut self,
        packet: &Packet<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, QueueError> {
        let Some(mut staging) = self.staging.take().or_else(Staging::new) else {
            return Ok(Put::Refused);
        };
        let put = match staging.bring(packet.body) {
            Ok(body) => self.write(packet, body),
            Err(status) => {
                grant_copies.fail_sender(status);
                Ok(Put::Refused)
            }
        };
        self.staging = Some(staging);
        put
    }

    fn write(&self, packet: &Packet<'_>, body: Body<'_>) -> Result<Put, QueueError> {
        let header = vnet::encode(packet.offload, packet.headers_len);
        match body.write_to(self.fd.as_fd(), &[&header, packet.head]) {
            Ok(_) => Ok(Put::Done),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Put::Full),
            Err(error) if tun::is_gone(&error) => Err(QueueError::Gone),
            Err(_) => Ok(Put::Refused),
        }
    }
}

impl QueuePair for TapQueue {
    fn fetch(&mut self, burst: &mut Burst) -> Result<(), QueueError> {
        burst.fill(VNET_LEN, |gather, chains, room| self.take(gather, chains, room))
    }

    fn complete(&mut self, n: usize) {
        let n = n.min(self.fetched);
        self.free.extend(self.frames.drain(..n).map(|frame| frame.buffer));
        self.fetched -= n;
    }

    fn rewind(&mut self, n: usize) {
        self.fetched = self.fetched.saturating_sub(n);
    }

    fn is_full(&self) -> bool {
        self.free.is_empty() && !self.has_rewound()
    }

    fn accepts(&self) -> Accepts {
        self.accepts
    }

    fn prepare(&mut self, _: usize) -> Result<(), QueueError> {
        Ok(())
    }

    fn put(
        &mut self,
        packet: &Packet<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, QueueError> {
        if packet.body.is_granted() {
            return self.put_granted(packet, grant_copies);
        }
        self.write(packet, packet.body)
    }

    fn room(&mut self) -> Result<usize, QueueError> {
        Ok(usize::MAX)
    }

    fn flush(&mut self) -> Result<[Notified; 2], QueueError> {
        // The kernel needs no notification: it takes each frame when the frame is written.
        Ok([Notified::Nothing; 2])
    }

    fn arm(&mut self, rx: bool) -> Result<bool, QueueError> {
        // The descriptor was empty when it was read last, and signals later frames. It does not
        // signal while the kernel's own queue is full and drops frames, so it has to be read until
        // empty.
        let _ = rx;
        Ok(self.has_rewound() || self.read_one()?)
    }

    fn disarm(&mut self) {}

    fn wakers(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.fd.as_fd()), self.room.as_ref().map(AsFd::as_fd)]
    }

    fn is_unmasked(&self) -> bool {
        true
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
