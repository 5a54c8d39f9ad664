//! One queue of a disk: its ring, its buffers, and the requests that are under way.

use ring::driver::{DriverRing, Piece, Used, Window};
use ring::split::driver::SplitDriver;
use vhost_user_driver::{FrontEnd, Guest, Vring};

use super::pattern::fill;
use super::{DiskLoadError, Operation, Workload};

/// Entries of each ring.
pub(super) const RING: u16 = 128;

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

/// Bytes of a sector, the unit of places on a disk.
pub(super) const SECTOR: u64 = 512;

/// One request of the driver: its place in memory, and its place on the disk while it is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    control: u64,
    data: u64,
    /// The block, in requests' lengths.
    pub(super) block: u64,
    /// When it was sent, in ns of the driver's clock.
    pub(super) sent: u64,
}

/// One queue.
pub(super) struct Queue {
    pub(super) vring: Vring<SplitDriver>,
    window: Window,
    /// Guest address of the window.
    base: u64,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The slot of each chain that is under way, by the ring's id of the chain.
    under_way: Vec<Option<usize>>,
    /// Chains that were collected, while they are looked at.
    used: Box<[Used]>,
    operation: Operation,
    bytes: u32,
    generation: Option<u32>,
    scratch: [Vec<u8>; 2],
}

impl Queue {
    /// Sets rings and buffers aside, and starts the queue.
    pub(super) fn start(
        front: &mut FrontEnd,
        guest: &mut Guest,
        index: u16,
        workload: &Workload,
    ) -> Result<Queue, DiskLoadError> {
        let vring = Vring::new(guest, index, RING, front.features(), ENTRIES)?;
        front.start(&vring, vring.config().start)?;
        let depth = u64::from(workload.depth);
        let each = u64::from(workload.bytes).next_multiple_of(PAGE);
        let data = (depth * CONTROL).next_multiple_of(PAGE);
        let base = guest.alloc(data + depth * each, PAGE)?;
        let window = Window::new(guest.memory(), base, data + depth * each, PAGE)
            .map_err(vhost_user_driver::DriverError::from)?;
        let slot = |n| Slot { control: n * CONTROL, data: data + n * each, block: 0, sent: 0 };
        Ok(Queue {
            vring,
            window,
            base,
            slots: (0..depth).map(slot).collect(),
            free: (0..usize::from(workload.depth)).collect(),
            under_way: vec![None; usize::from(RING)],
            used: vec![Used::default(); usize::from(RING)].into(),
            operation: workload.operation,
            bytes: workload.bytes,
            generation: workload.generation,
            scratch: [vec![0; workload.bytes as usize], vec![0; workload.bytes as usize]],
        })
    }

    /// Requests that are under way.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// When the oldest request that is under way was sent, in ns of the driver's clock.
    pub(super) fn oldest(&self) -> Option<u64> {
        let slots = self.under_way.iter().flatten().filter_map(|number| self.slots.get(*number));
        slots.map(|slot| slot.sent).min()
    }

    /// Whether one more request may be sent.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Adds a request for `block`; the device sees it after the ring is published. False: there is
    /// no room.
    pub(super) fn add(&mut self, block: u64, now: u64) -> bool {
        let Some(&number) = self.free.last() else { return false };
        let Some(slot) = self.slots.get_mut(number) else { return false };
        (slot.block, slot.sent) = (block, now);
        let slot = *slot;
        let kind = match self.operation {
            Operation::Read => TYPE_IN,
            Operation::Write => TYPE_OUT,
        };
        self.window.write_word(slot.control, kind);
        self.window.write_word(slot.control + 8, block * (u64::from(self.bytes) / SECTOR));
        self.window.write(slot.control + STATUS, &[0xff]);
        if let (Some(generation), Operation::Write) = (self.generation, self.operation) {
            fill(&mut self.scratch[0], block, generation);
            self.window.write(slot.data, &self.scratch[0]);
        }
        let piece = |offset, len| Piece { addr: self.base + offset, len };
        let [header, data, status] = [
            piece(slot.control, 16),
            piece(slot.data, self.bytes),
            piece(slot.control + STATUS, 1),
        ];
        let id = match self.operation {
            Operation::Read => self.vring.ring.add_request(&[header], &[data, status]),
            Operation::Write => self.vring.ring.add_request(&[header, data], &[status]),
        };
        let Some(place) = id.and_then(|id| self.under_way.get_mut(usize::from(id))) else {
            return false;
        };
        *place = Some(number);
        self.free.pop();
        true
    }

    /// Takes back what has completed, and hands each to `done`. Returns how many there were.
    pub(super) fn collect(&mut self, mut done: impl FnMut(&Slot)) -> Result<usize, DiskLoadError> {
        let count = self.vring.ring.collect(&mut self.used)?;
        let slot = |id| self.slots.get((*self.under_way.get(usize::from(id))?)?);
        for slot in self.used[..count].iter().filter_map(|used| slot(used.id)) {
            // The device has just written the status.
            self.window.prefetch(slot.control);
        }
        for i in 0..count {
            let id = usize::from(self.used[i].id);
            // The ring has checked that the chain was under way.
            let number = self.under_way.get_mut(id).and_then(Option::take);
            let Some((number, slot)) = number.and_then(|n| Some((n, *self.slots.get(n)?))) else {
                continue;
            };
            self.check(&slot)?;
            self.free.push(number);
            done(&slot);
        }
        Ok(count)
    }

    fn check(&mut self, slot: &Slot) -> Result<(), DiskLoadError> {
        let offset = slot.block * u64::from(self.bytes);
        let mut status = [0];
        self.window.read(slot.control + STATUS, &mut status);
        if status != [0] {
            return Err(DiskLoadError::Status { offset, status: status[0] });
        }
        let (Some(generation), Operation::Read) = (self.generation, self.operation) else {
            return Ok(());
        };
        let [wanted, found] = &mut self.scratch;
        fill(wanted, slot.block, generation);
        self.window.read(slot.data, found);
        if wanted == found { Ok(()) } else { Err(DiskLoadError::Content(offset)) }
    }
}
