//! A disk of a guest of the embedded hypervisor: the work of `xen-blkfront`, and of the programs
//! above it.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use hypervisor::{Channel, Domain, PAGE, transaction};
use ring::Memory;
use ring::front::FrontRing;
use xen::blkif::layout::{LEN_64, Layout};
use xen::blkif::request::{MAX_INDIRECT_SEGMENTS, MAX_SEGMENTS, SEGMENT, op};
use xen::xenbus::{FrontError, Frontend, GrantedPages, PageAllocator, State};

use super::content::Content;
use super::driver::Driver;
use super::queue::{Queue, SECTOR, TIMEOUT};
use super::{DiskLoadError, Operation, Order, Report, Span, Workload};

/// Words of a slot.
const WORDS: usize = LEN_64 / 4;
/// Requests of a queue at a time, at most: the slots of a ring of one page.
const REQUESTS: u32 = FrontRing::<WORDS>::SIZE;
/// Pages with data of a queue's requests, in sum.
const DATA: u32 = 256;
/// Pages of a queue: its ring, a page with segments for each request, and data.
const PAGES: u32 = 1 + REQUESTS + DATA;

/// A disk that is connected.
pub struct BlkifDisk {
    queues: Vec<BlkifQueue>,
    length: u64,
    // The device stays connected.
    _bus: Frontend,
}

impl BlkifDisk {
    /// Pages of the guest's memory that a disk with so many queues takes.
    pub const fn pages(queues: u16) -> u32 {
        queues as u32 * PAGES
    }

    /// Connects disk number `handle` of a domain with so many queues.
    ///
    /// # Errors
    /// When there is no such disk, it has fewer queues, or the backend does not connect it.
    pub fn connect(
        domain: &Arc<dyn Domain>,
        pages: &mut PageAllocator,
        handle: u32,
        queues: u16,
    ) -> Result<BlkifDisk, FrontError> {
        let bus = Frontend::find(Arc::clone(domain), "vbd", handle, &[])?;
        await_state(&bus, State::InitWait)?;
        let most = bus.backend_number::<u16>("multi-queue-max-queues")?.unwrap_or(1);
        let segments = bus.backend_number::<u16>("feature-max-indirect-segments")?.unwrap_or(0);
        if most < queues || segments < MAX_INDIRECT_SEGMENTS {
            return Err(FrontError::Backend("offers too few queues or segments"));
        }
        let queue = |index: u16| {
            let directory = match queues {
                1 => bus.path().to_owned(),
                _ => format!("{}/queue-{index}", bus.path()),
            };
            BlkifQueue::new(domain, pages, &bus, &directory)
        };
        let made = (0..queues).map(queue).collect::<Result<Vec<_>, _>>()?;
        transaction(domain.store(), |nodes| {
            nodes.put(&format!("{}/multi-queue-num-queues", bus.path()), queues)?;
            nodes.put(&format!("{}/protocol", bus.path()), Layout::NATIVE.name())
        })?;
        bus.set_state(State::Initialised)?;
        await_state(&bus, State::Connected)?;
        bus.set_state(State::Connected)?;
        let sectors = bus.backend_number::<u64>("sectors")?;
        let length = sectors.and_then(|sectors| sectors.checked_mul(SECTOR));
        let length = length.ok_or(FrontError::Backend("does not tell the length"))?;
        Ok(BlkifDisk { queues: made, length, _bus: bus })
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Sends requests for a while, on all queues of the disk. `backend`: the process that serves it.
    ///
    /// # Errors
    /// When the backend breaks the protocol, fails a request, or is silent, or the user interrupts.
    pub fn run(
        &mut self,
        workload: &Workload,
        span: Span,
        backend: u32,
    ) -> Result<Report, DiskLoadError> {
        self.queues.iter_mut().try_for_each(|queue| queue.begin(workload))?;
        Driver::new(&mut self.queues, self.length, backend, workload)?.run(span)
    }

    /// Writes each block of the disk once, in random order, then reads each in another order and
    /// compares all bytes. Returns how many bytes were compared.
    ///
    /// # Errors
    /// As [`run`](Self::run); and when a block holds something else.
    pub fn verify(
        &mut self,
        workload: &Workload,
        generation: u32,
        backend: u32,
    ) -> Result<u64, DiskLoadError> {
        let whole = |operation| Workload {
            operation,
            order: Order::Random,
            generation: Some(generation),
            ..workload.clone()
        };
        self.run(&whole(Operation::Write), Span::EachBlockOnce, backend)?;
        Ok(self.run(&whole(Operation::Read), Span::EachBlockOnce, backend)?.bytes)
    }
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// The block, in requests' lengths.
    block: u64,
    /// When it was sent, in ns of the driver's clock.
    at: u64,
}

/// One queue. Request number `n` has the `n`th part of the pages with data, and the `n`th page with
/// segments.
struct BlkifQueue {
    ring: FrontRing<WORDS>,
    channel: Arc<dyn Channel>,
    memory: Arc<Memory>,
    lists: GrantedPages,
    data: GrantedPages,
    content: Content,
    /// The next request of each number, but for its sector.
    slots: Vec<[u8; LEN_64]>,
    /// By number.
    under_way: Vec<Option<Sent>>,
    free: Vec<u32>,
    // The page of the ring stays granted.
    _page: GrantedPages,
}

impl BlkifQueue {
    fn new(
        domain: &Arc<dyn Domain>,
        pages: &mut PageAllocator,
        bus: &Frontend,
        directory: &str,
    ) -> Result<BlkifQueue, FrontError> {
        let mut grant = |count| pages.grant(domain, bus.backend(), count, true);
        let (page, lists, data) = (grant(1)?, grant(REQUESTS)?, grant(DATA)?);
        let memory = Arc::clone(domain.memory());
        let ring = FrontRing::new(Arc::clone(&memory), page.addr(0))?;
        let (port, channel) = bus.open_channel()?;
        transaction(domain.store(), |nodes| {
            nodes.put(&format!("{directory}/ring-ref"), page.reference(0).0)?;
            nodes.put(&format!("{directory}/event-channel"), port.0)
        })?;
        let none = Workload::new(Operation::Read, Order::Random, PAGE as u32, 0);
        Ok(BlkifQueue {
            ring,
            channel,
            memory,
            lists,
            data,
            content: Content::new(&none),
            slots: Vec::new(),
            under_way: Vec::new(),
            free: Vec::new(),
            _page: page,
        })
    }

    /// Prepares for requests of a workload, of which as many are under way at a time as there is
    /// room for. None is under way before.
    fn begin(&mut self, workload: &Workload) -> Result<(), FrontError> {
        self.content = Content::new(workload);
        let room = DATA / self.pages().max(1);
        let depth = u32::from(workload.depth).min(REQUESTS).min(room);
        self.slots = (0..depth).map(|number| self.slot(number)).collect::<Result<_, _>>()?;
        self.under_way = vec![None; depth as usize];
        self.free = (0..depth).collect();
        Ok(())
    }

    /// Pages of a request.
    fn pages(&self) -> u32 {
        self.content.bytes.div_ceil(PAGE as u32)
    }

    /// Guest address of the data of request `number`.
    fn address(&self, number: u32) -> u64 {
        self.data.addr(number * self.pages())
    }

    /// The segments of request `number`, as slots and lists have them.
    fn segments(&self, number: u32) -> Vec<u8> {
        let segment = |page: u32| {
            let left = self.content.bytes - page * PAGE as u32;
            let last = u64::from(left.min(PAGE as u32)) / SECTOR - 1;
            let [a, b, c, d] = self.data.reference(number * self.pages() + page).0.to_le_bytes();
            [a, b, c, d, 0, last as u8, 0, 0]
        };
        (0..self.pages()).flat_map(segment).collect()
    }

    /// The slot of request `number`, without its sector. Writes its list of segments, if it has one.
    fn slot(&self, number: u32) -> Result<[u8; LEN_64], FrontError> {
        let operation = match self.content.operation {
            Operation::Read => op::READ,
            Operation::Write => op::WRITE,
        };
        let mut slot = [0; LEN_64];
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        let layout = Layout::NATIVE;
        put(layout.id(), &u64::from(number).to_le_bytes());
        let segments = self.segments(number);
        let count = (segments.len() / SEGMENT) as u16;
        if count <= MAX_SEGMENTS {
            put(0, &[operation, count as u8]);
            put(layout.body(), &segments);
        } else {
            let [low, high] = count.to_le_bytes();
            put(0, &[op::INDIRECT, operation, low, high]);
            put(layout.lists(), &self.lists.reference(number).0.to_le_bytes());
            self.memory.write(self.lists.addr(number), &segments)?;
        }
        Ok(slot)
    }

    /// Takes the next response. Returns when its request was sent.
    fn take(&mut self) -> Result<u64, DiskLoadError> {
        let response = self.ring.response(0).map_err(FrontError::from)?;
        self.ring.take(1);
        // The number in two words; the operation, padding, and the status in two bytes.
        let [number, high, rest, ..] = response;
        let place = self.under_way.get_mut(number as usize).filter(|_| high == 0);
        let sent = place.and_then(Option::take);
        let sent = sent.ok_or(FrontError::Backend("answers a request that is not under way"))?;
        self.free.push(number);
        let offset = sent.block * u64::from(self.content.bytes);
        let status = (rest >> 16) as i16;
        if status != 0 {
            return Err(DiskLoadError::Status { offset, status });
        }
        let (memory, at, mut outcome) = (&self.memory, self.address(number), Ok(()));
        let right = self.content.is_right(sent.block, |found| outcome = memory.read(at, found));
        outcome.map_err(FrontError::from)?;
        if right { Ok(sent.at) } else { Err(DiskLoadError::Content(offset)) }
    }
}

impl Queue for BlkifQueue {
    fn waker(&self) -> RawFd {
        self.channel.waker().as_raw_fd()
    }

    fn in_flight(&self) -> usize {
        self.under_way.len() - self.free.len()
    }

    fn oldest(&self) -> Option<u64> {
        self.under_way.iter().flatten().map(|sent| sent.at).min()
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty() && self.ring.free() > 0
    }

    fn add(&mut self, block: u64, now: u64) -> Result<bool, DiskLoadError> {
        let Some(&number) = self.free.last() else { return Ok(false) };
        let at = self.address(number);
        if let Some(data) = self.content.outgoing(block) {
            self.memory.write(at, data).map_err(FrontError::from)?;
        }
        let Some(slot) = self.slots.get_mut(number as usize) else { return Ok(false) };
        let sector = block * (u64::from(self.content.bytes) / SECTOR);
        let place = Layout::NATIVE.sector();
        slot[place..place + 8].copy_from_slice(&sector.to_le_bytes());
        if self.ring.push(words(slot)).map_err(FrontError::from)?.is_none() {
            return Ok(false);
        }
        self.free.pop();
        if let Some(place) = self.under_way.get_mut(number as usize) {
            *place = Some(Sent { block, at: now });
        }
        Ok(true)
    }

    fn publish(&mut self) -> Result<(), DiskLoadError> {
        if self.ring.publish().map_err(FrontError::from)? {
            self.channel.notify();
        }
        Ok(())
    }

    fn collect(&mut self, mut done: impl FnMut(u64)) -> Result<usize, DiskLoadError> {
        let count = self.ring.ready().map_err(FrontError::from)?;
        for _ in 0..count {
            done(self.take()?);
        }
        Ok(count as usize)
    }

    fn arm(&mut self) -> Result<bool, DiskLoadError> {
        // First the channel, so that no signal is lost.
        self.channel.take();
        Ok(self.ring.arm(1).map_err(FrontError::from)? > 0)
    }

    fn disarm(&mut self) {}
}

fn words(slot: &[u8; LEN_64]) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(slot.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

fn await_state(bus: &Frontend, wanted: State) -> Result<(), FrontError> {
    match bus.wait(TIMEOUT, |state| state == wanted)? {
        true => Ok(()),
        false => Err(FrontError::Backend("takes too long to connect")),
    }
}
