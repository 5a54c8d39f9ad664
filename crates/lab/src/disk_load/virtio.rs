//! One queue of a disk over vhost-user: its ring, its buffers, and the requests that are under way.

use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use ring::driver::{DriverRing, Piece, Used, Window};
use ring::split::driver::SplitDriver;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user::blk::feature::bit;
use vhost_user_driver::{DriverError, FrontEnd, FrontEndConfig, Guest, Vring};

use super::content::Content;
use super::queue::{Queue, SECTOR, TIMEOUT};
use super::{DiskLoadError, Operation, Place, Workload};
use crate::interrupt;

/// Entries of each ring.
const RING: u16 = 128;

/// Descriptors in an indirect table: header, data, status.
const ENTRIES: u16 = 4;

/// Bytes set aside for a header, and behind it for a status.
const CONTROL: u64 = 64;
const STATUS: u64 = 32;

/// Alignment of data, as of a guest's pages.
const PAGE: u64 = 4096;

/// Types of requests (virtio 1.2, 5.2.6).
const TYPE_IN: u64 = 0;
const TYPE_OUT: u64 = 1;

/// Memory for rings, beside the buffers.
const RINGS: u64 = 1 << 20;

/// One request of the driver: its place in memory, and its place on the disk while it is under way.
#[derive(Clone, Copy, Debug)]
struct Slot {
    control: u64,
    data: u64,
    /// The block, in requests' lengths.
    block: u64,
    /// When it was sent, in ns of the driver's clock.
    sent: u64,
}

/// Connects to a back-end, and starts all queues. They serve as long as the connection.
pub(super) fn connect(
    place: &Place,
    workload: &Workload,
) -> Result<(FrontEnd, Vec<VirtioQueue>), DiskLoadError> {
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
    let each = u64::from(workload.bytes).next_multiple_of(PAGE) + PAGE;
    let buffers = u64::from(workload.queues) * (u64::from(workload.depth) * each + RINGS);
    let mut guest = Guest::new(RINGS + buffers, 1)?;
    front.share(&guest)?;
    let queues = (0..workload.queues)
        .map(|index| VirtioQueue::start(&mut front, &mut guest, index, workload));
    let queues = queues.collect::<Result<_, _>>()?;
    Ok((front, queues))
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

/// One queue.
pub(super) struct VirtioQueue {
    vring: Vring<SplitDriver>,
    window: Window,
    /// Guest address of the window.
    base: u64,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The slot of each chain that is under way, by the ring's id of the chain.
    under_way: Vec<Option<usize>>,
    content: Content,
}

impl VirtioQueue {
    /// Sets rings and buffers aside, and starts the queue.
    fn start(
        front: &mut FrontEnd,
        guest: &mut Guest,
        index: u16,
        workload: &Workload,
    ) -> Result<VirtioQueue, DiskLoadError> {
        let vring = Vring::new(guest, index, RING, front.features(), ENTRIES)?;
        front.start(&vring, vring.config().start)?;
        let depth = u64::from(workload.depth);
        let each = u64::from(workload.bytes).next_multiple_of(PAGE);
        let data = (depth * CONTROL).next_multiple_of(PAGE);
        let base = guest.alloc(data + depth * each, PAGE)?;
        let window = Window::new(guest.memory(), base, data + depth * each, PAGE)
            .map_err(DriverError::from)?;
        let slot = |n| Slot { control: n * CONTROL, data: data + n * each, block: 0, sent: 0 };
        Ok(VirtioQueue {
            vring,
            window,
            base,
            slots: (0..depth).map(slot).collect(),
            free: (0..usize::from(workload.depth)).collect(),
            under_way: vec![None; usize::from(RING)],
            content: Content::new(workload),
        })
    }

    fn check(&mut self, slot: &Slot) -> Result<(), DiskLoadError> {
        let offset = slot.block * u64::from(self.content.bytes);
        let mut status = [0];
        self.window.read(slot.control + STATUS, &mut status);
        if status != [0] {
            return Err(DiskLoadError::Status { offset, status: status[0].into() });
        }
        let window = &self.window;
        match self.content.is_right(slot.block, |found| window.read(slot.data, found)) {
            true => Ok(()),
            false => Err(DiskLoadError::Content(offset)),
        }
    }
}

impl Queue for VirtioQueue {
    fn waker(&self) -> RawFd {
        self.vring.call().as_raw_fd()
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn oldest(&self) -> Option<u64> {
        let slots = self.under_way.iter().flatten().filter_map(|number| self.slots.get(*number));
        slots.map(|slot| slot.sent).min()
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    fn add(&mut self, block: u64, now: u64) -> Result<bool, DiskLoadError> {
        let Some(&number) = self.free.last() else { return Ok(false) };
        let Some(slot) = self.slots.get_mut(number) else { return Ok(false) };
        (slot.block, slot.sent) = (block, now);
        let (slot, bytes) = (*slot, self.content.bytes);
        let kind = match self.content.operation {
            Operation::Read => TYPE_IN,
            Operation::Write => TYPE_OUT,
        };
        self.window.write_word(slot.control, kind);
        self.window.write_word(slot.control + 8, block * (u64::from(bytes) / SECTOR));
        self.window.write(slot.control + STATUS, &[0xff]);
        if let Some(data) = self.content.outgoing(block) {
            self.window.write(slot.data, data);
        }
        let piece = |offset, len| Piece { addr: self.base + offset, len };
        let [header, data, status] =
            [piece(slot.control, 16), piece(slot.data, bytes), piece(slot.control + STATUS, 1)];
        let id = match self.content.operation {
            Operation::Read => self.vring.ring.add_request(&[header], &[data, status]),
            Operation::Write => self.vring.ring.add_request(&[header, data], &[status]),
        };
        let Some(place) = id.and_then(|id| self.under_way.get_mut(usize::from(id))) else {
            return Ok(false);
        };
        *place = Some(number);
        self.free.pop();
        Ok(true)
    }

    fn publish(&mut self) -> Result<(), DiskLoadError> {
        self.vring.publish();
        Ok(())
    }

    fn collect(&mut self, mut done: impl FnMut(u64)) -> Result<usize, DiskLoadError> {
        let used = &mut [Used::default(); RING as usize];
        let count = self.vring.ring.collect(used)?;
        for Used { id, .. } in &used[..count] {
            // The ring has checked that the chain was under way.
            let number = self.under_way.get_mut(usize::from(*id)).and_then(Option::take);
            let Some((number, slot)) = number.and_then(|n| Some((n, *self.slots.get(n)?))) else {
                continue;
            };
            self.check(&slot)?;
            self.free.push(number);
            done(slot.sent);
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<bool, DiskLoadError> {
        Ok(self.vring.ring.arm())
    }

    fn disarm(&mut self) {
        self.vring.ring.disarm();
        self.vring.acknowledge();
    }
}
