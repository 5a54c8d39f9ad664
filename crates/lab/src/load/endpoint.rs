//! One guest as the generator plays it: its driver, its buffers, what it sends and what it
//! receives.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use ring::driver::{BadUsed, Direction, DriverRing, Piece, Used, Window};
use vhost_user_driver::{Driver, FrontEnd, Guest};
use vmm_sys_util::eventfd::EventFd;

use super::Error;
use super::args::Args;
use super::direction_counters::DirectionCounters;
use super::packet::{self, Fault, Shape, Tag};
use super::plan::{Buffers, Plan, front_end_config};
use super::pool::{Cut, Pool};
use super::receive::{Arrived, Receiver};
use super::time::{Clock, Pace};

/// Most frames that are sent or taken at a time.
const BURST_MAX: usize = 64;

/// Most buffers that one frame comes in.
const GROUP_MAX: usize = 1024;

/// What a guest sends.
pub struct Sender {
    /// Its frames.
    pub shape: Shape,
    /// What it and the receiver know of each other.
    pub counters: Arc<DirectionCounters>,
    /// How fast it goes.
    pub pace: Pace,
    /// Next number of each flow.
    pub flows: Box<[u32]>,
    /// Times that there was something to send, and room in the ring.
    pub bursts: u64,
    /// Times that there was something to send, and no room.
    pub full: u64,
}

/// Who a guest is, and what it does.
pub struct Role {
    /// Its own number, which gives its addresses.
    pub number: u16,
    /// The other one's.
    pub peer: u16,
    /// What it sends.
    pub sender: Option<Sender>,
    /// What it receives.
    pub receiver: Option<Receiver>,
}

/// What there is besides checked frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Doorbells {
    /// Kicks given.
    pub kicks: u64,
    /// Interrupts taken.
    pub interrupts: u64,
    /// Unicast frames that came to a guest which nobody sends to.
    pub strays: u64,
}

/// A guest.
pub struct Endpoint<R> {
    role: Role,
    /// Keeps the connection: the back-end stops when it closes.
    _front: FrontEnd,
    memory: Window,
    queues: Vec<Queue<R>>,
    header_len: usize,
    burst: usize,
    /// Whether the peer's announcement came through.
    greeted: bool,
    doorbells: Doorbells,
}

/// One queue pair and its buffers.
struct Queue<R> {
    driver: Driver<R>,
    tx: Pool,
    rx: Pool,
    cut: Cut,
    mergeable: bool,
    /// The flow whose turn it is; those of this queue are a number of queues apart.
    flow: u32,
    /// Scratch.
    pieces: Vec<Piece>,
    /// Frames that are worth a publication, if there is no room for a burst.
    worth: usize,
    /// Buffers so far of a frame that has more of them, and their numbers.
    group: Vec<Piece>,
    held: Vec<u32>,
}

impl<R: DriverRing> Endpoint<R> {
    /// Agrees with the back-end at the other end of `stream`, and gives it rings full of receive
    /// buffers.
    ///
    /// # Errors
    /// When the back-end cannot do what the options ask for, or memory is short.
    pub fn new(args: &Args, role: Role, stream: UnixStream) -> Result<Self, Error> {
        let mut front = FrontEnd::negotiate(stream, &front_end_config(args))?;
        let header_len = front.header_len();
        let plan = Plan::new(args, front.features(), header_len as u32)?;
        let mut guest = Guest::new(plan.bytes::<R>(args), args.regions)?;
        let memory = Window::new(guest.memory(), 0, guest.size(), 64)?;
        front.share(&guest)?;
        let make = |pair| Queue::new(args, &plan, &mut guest, &mut front, pair);
        let queues = (0..args.queues).map(make).collect::<Result<Vec<_>, Error>>()?;
        let mut endpoint = Self {
            role,
            _front: front,
            memory,
            queues,
            header_len,
            burst: usize::from(args.burst),
            greeted: false,
            doorbells: Doorbells::default(),
        };
        for queue in &mut endpoint.queues {
            queue.touch(&endpoint.memory);
            queue.refill();
        }
        Ok(endpoint)
    }

    /// Sends a gratuitous ARP.
    ///
    /// # Errors
    /// When the back-end broke the protocol.
    pub fn announce(&mut self) -> Result<(), Error> {
        let mut bytes = [0; 72];
        let bytes = &mut bytes[..self.header_len + 60];
        bytes[self.header_len..].copy_from_slice(&packet::announcement(self.role.number));
        let Some(queue) = self.queues.first_mut() else { return Ok(()) };
        queue.reclaim().map_err(|e| self.role.blame("Tx", e))?;
        queue.send(bytes.len() as u32, |addr| self.memory.write(addr, bytes));
        queue.driver.tx.publish();
        Ok(())
    }

    /// Which guest it is.
    pub fn number(&self) -> u16 {
        self.role.number
    }

    /// Whether something that it sent is still in a ring.
    pub fn is_sending(&self) -> bool {
        self.queues.iter().any(|queue| queue.tx.free() < queue.tx.count() as usize)
    }

    /// Takes back what was sent.
    ///
    /// # Errors
    /// When the back-end broke the protocol.
    pub fn reclaim(&mut self) -> Result<(), Error> {
        let role = &self.role;
        self.queues
            .iter_mut()
            .try_for_each(|queue| queue.reclaim())
            .map_err(|e| role.blame("Tx", e))
    }

    /// Whether the peer's announcement came through.
    pub fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Writes what is the same in all frames into all buffers: after the announcements, before the
    /// first [`transmit`](Self::transmit).
    pub fn prepare(&mut self) {
        let Some(sender) = &self.role.sender else { return };
        let Some(vnet) = sender.shape.vnet().get(..self.header_len) else { return };
        for queue in &self.queues {
            for buffer in 0..queue.tx.count() {
                let addr = queue.tx.addr(buffer);
                self.memory.write(addr, vnet);
                self.memory.write(addr + vnet.len() as u64, sender.shape.headers());
            }
        }
    }

    /// Sends a burst on each queue, as far as pace and rings allow; returns how many frames.
    ///
    /// # Errors
    /// When the back-end broke the protocol.
    #[inline]
    pub fn transmit(&mut self, clock: Clock) -> Result<usize, Error> {
        let Some(sender) = &mut self.role.sender else { return Ok(0) };
        let (mut total, queues) = (0, self.queues.len() as u32);
        for queue in &mut self.queues {
            let sent =
                queue.transmit(sender, &self.memory, self.header_len, self.burst, queues, clock);
            total += sent.map_err(|e| blame(self.role.number, "Tx", e))?;
        }
        Ok(total)
    }

    /// Takes a burst from each queue; returns how many buffers.
    ///
    /// # Errors
    /// When the back-end broke the protocol.
    #[inline]
    pub fn receive(&mut self, clock: Clock) -> Result<usize, Error> {
        let mut total = 0;
        for index in 0..self.queues.len() {
            let Some(queue) = self.queues.get_mut(index) else { break };
            if !queue.driver.rx.ring.pending() {
                continue;
            }
            let mut used = [Used::default(); BURST_MAX];
            let count = queue.driver.rx.ring.collect(&mut used[..self.burst]);
            let count = count.map_err(|e| self.role.blame("Rx", e))?;
            self.take(index, &used[..count], clock.now());
            total += count;
        }
        Ok(total)
    }

    /// Takes what came on queue `index`, and gives the buffers back.
    #[inline]
    fn take(&mut self, index: usize, used: &[Used], now: u64) {
        let Some(queue) = self.queues.get_mut(index) else { return };
        for used in used {
            let addr = queue.rx.addr(queue.rx.of_chain(used.id));
            self.memory.prefetch(addr);
            self.memory.prefetch(addr + 64);
        }
        for used in used {
            let buffer = queue.rx.of_chain(used.id);
            let piece = Piece { addr: queue.rx.addr(buffer), len: used.len };
            let alone = Arrived::new(&self.memory, std::slice::from_ref(&piece), self.header_len);
            // Most frames come in one buffer.
            if queue.group.is_empty() && (!queue.mergeable || alone.announced() == 1) {
                self.greeted |= deliver(&mut self.role, &mut self.doorbells, &alone, now);
                queue.rx.put(buffer);
                continue;
            }
            queue.group.push(piece);
            queue.held.push(buffer);
            let arrived = Arrived::new(&self.memory, &queue.group, self.header_len);
            match arrived.announced() {
                // No correct device says so: this is one buffer at least.
                0 => torn(&mut self.role, &arrived),
                announced if queue.group.len() < announced.min(GROUP_MAX) => continue,
                _ => self.greeted |= deliver(&mut self.role, &mut self.doorbells, &arrived, now),
            }
            queue.release();
        }
        if !queue.group.is_empty() && used.len() < self.burst {
            torn(&mut self.role, &Arrived::new(&self.memory, &queue.group, self.header_len));
            queue.release();
        }
        if let Some(receiver) = &self.role.receiver {
            receiver.tell();
        }
        queue.refill();
    }

    /// Asks for interrupts where there may be something to wait for; true if something is there
    /// already.
    pub fn arm(&mut self) -> bool {
        let sends = self.role.sender.is_some();
        let mut ready = false;
        for queue in &mut self.queues {
            ready |= queue.driver.rx.ring.arm();
            ready |= sends && queue.is_full() && queue.driver.tx.ring.arm();
        }
        ready
    }

    /// Asks for no more interrupts, and takes those that came.
    pub fn disarm(&mut self) {
        for queue in &mut self.queues {
            queue.driver.rx.ring.disarm();
            queue.driver.tx.ring.disarm();
            let came =
                u64::from(queue.driver.rx.acknowledge()) + u64::from(queue.driver.tx.acknowledge());
            self.doorbells.interrupts += came;
        }
    }

    /// What becomes readable with an interrupt.
    pub fn interrupts(&self) -> impl Iterator<Item = &EventFd> {
        self.queues.iter().flat_map(|queue| [queue.driver.rx.call(), queue.driver.tx.call()])
    }

    /// What it sends.
    pub fn sender(&self) -> Option<&Sender> {
        self.role.sender.as_ref()
    }

    /// What it receives.
    pub fn receiver(&mut self) -> Option<&mut Receiver> {
        self.role.receiver.as_mut()
    }

    /// Takes the guest apart for the report.
    pub fn into_parts(self) -> (Role, Doorbells) {
        let kicks = self.queues.iter().map(|q| q.driver.tx.kicks() + q.driver.rx.kicks()).sum();
        (self.role, Doorbells { kicks, ..self.doorbells })
    }
}

impl Role {
    fn blame(&self, ring: &'static str, error: BadUsed) -> Error {
        blame(self.number, ring, error)
    }
}

#[cold]
fn blame(number: u16, ring: &'static str, error: BadUsed) -> Error {
    Error::Used { guest: number, ring, error }
}

/// A frame that is not one of the peer's numbered ones; true if it is the peer's announcement.
#[cold]
fn odd(role: &mut Role, doorbells: &mut Doorbells, arrived: &Arrived) -> bool {
    let mut head = [0; 12];
    arrived.read_frame(&mut head);
    if packet::is_multicast(&head) {
        return head[6..] == packet::mac(role.peer);
    }
    if role.receiver.is_none() {
        doorbells.strays += 1;
    }
    false
}

/// Not as many buffers are there as the header announces, although the back-end published all that
/// it has.
#[cold]
fn torn(role: &mut Role, arrived: &Arrived) {
    let fault = Fault::Torn { got: arrived.buffers(), announced: arrived.announced() };
    if let Some(receiver) = &mut role.receiver {
        receiver.corrupt(fault, arrived);
    }
}

/// Has a frame checked; true if it was the peer's announcement.
#[inline]
fn deliver(role: &mut Role, doorbells: &mut Doorbells, arrived: &Arrived, now: u64) -> bool {
    let ours = role.receiver.as_mut().is_some_and(|receiver| receiver.receive(arrived, now));
    !ours && odd(role, doorbells, arrived)
}

impl<R: DriverRing> Queue<R> {
    fn new(
        args: &Args,
        plan: &Plan,
        guest: &mut Guest,
        front: &mut FrontEnd,
        pair: u16,
    ) -> Result<Self, Error> {
        let driver = front.driver(guest, pair, (args.rx_ring(), args.ring), plan.entries)?;
        let mut pool = |buffers: Buffers, ring| -> Result<Pool, Error> {
            let base = guest.alloc(Pool::stride(buffers.len) * u64::from(buffers.count), 4096)?;
            Ok(Pool::new(base, buffers.len, buffers.count, ring))
        };
        Ok(Self {
            driver,
            tx: pool(plan.tx, args.ring)?,
            rx: pool(plan.rx, args.rx_ring())?,
            cut: plan.cut,
            mergeable: plan.mergeable,
            flow: u32::from(pair),
            pieces: Vec::with_capacity(64),
            worth: (plan.tx_held as usize).div_ceil(4),
            group: Vec::with_capacity(64),
            held: Vec::with_capacity(64),
        })
    }

    /// Brings every page of the buffers into being.
    fn touch(&self, memory: &Window) {
        for pool in [&self.tx, &self.rx] {
            for page in (pool.addr(0)..pool.addr(pool.count())).step_by(4096) {
                memory.write(page, &[0; 8]);
            }
        }
    }

    /// Gives the device every free receive buffer that the ring has room for.
    #[inline]
    fn refill(&mut self) {
        let len = self.rx.buffer_len();
        while let Some(buffer) = self.rx.next() {
            let addr = self.rx.addr(buffer);
            let Some(id) = add(
                &mut self.driver.rx.ring,
                self.cut,
                &mut self.pieces,
                (addr, len),
                Direction::In,
            ) else {
                break;
            };
            self.rx.take(id);
        }
        self.driver.rx.publish();
    }

    /// The buffers of a frame that was looked at are free.
    #[inline]
    fn release(&mut self) {
        for buffer in &self.held {
            self.rx.put(*buffer);
        }
        self.held.clear();
        self.group.clear();
    }

    /// Takes sent buffers back.
    fn reclaim(&mut self) -> Result<(), BadUsed> {
        while self.driver.tx.ring.pending() {
            let mut used = [Used::default(); BURST_MAX];
            let count = self.driver.tx.ring.collect(&mut used)?;
            for used in &used[..count] {
                self.tx.put(self.tx.of_chain(used.id));
            }
        }
        Ok(())
    }

    /// Adds a frame whose bytes `write` puts to the address that it is given; false if there is no
    /// room.
    #[inline]
    fn send(&mut self, len: u32, write: impl FnOnce(u64)) -> bool {
        let Some(buffer) = self.tx.next() else { return false };
        let addr = self.tx.addr(buffer);
        let Some(id) =
            add(&mut self.driver.tx.ring, self.cut, &mut self.pieces, (addr, len), Direction::Out)
        else {
            return false;
        };
        self.tx.take(id);
        // The device does not look before the burst is published.
        write(addr);
        true
    }

    /// Frames that the Tx ring has room for.
    fn room(&self) -> usize {
        self.tx.free().min(self.driver.tx.ring.room(self.cut.count(self.tx.buffer_len())))
    }

    fn is_full(&self) -> bool {
        self.room() == 0
    }

    #[inline]
    fn transmit(
        &mut self,
        sender: &mut Sender,
        memory: &Window,
        header_len: usize,
        burst: usize,
        queues: u32,
        clock: Clock,
    ) -> Result<usize, BadUsed> {
        let mut now = if sender.pace.is_open() { 0 } else { clock.now() };
        let budget = sender.pace.budget(now, &sender.counters).min(burst as u64) as usize;
        if budget == 0 {
            return Ok(0);
        }
        if self.room() < budget {
            self.reclaim()?;
        }
        let room = self.room();
        if room < budget.min(self.worth) {
            sender.full += 1;
            return Ok(0);
        }
        sender.bursts += 1;
        let len = self.tx.buffer_len();
        let flows = sender.flows.len() as u32;
        let mut sent = 0;
        if sender.pace.is_open() {
            now = clock.now();
        }
        while sent < budget.min(room) {
            let flow = self.flow;
            let Some(seq) = sender.flows.get_mut(flow as usize) else { break };
            let (shape, tag) = (&sender.shape, Tag { flow, seq: *seq, time: now });
            let write = |addr: u64| {
                let frame = addr + header_len as u64;
                let base = shape.stamp(tag, |at, bytes| memory.write(frame + at as u64, bytes));
                for (at, len) in shape.words() {
                    let word = shape.word(base, at);
                    match len {
                        8 => memory.write_word(frame + at as u64, word),
                        _ => memory.write(frame + at as u64, &word.to_le_bytes()[..len]),
                    }
                }
            };
            if !self.send(len, write) {
                break;
            }
            let Some(seq) = sender.flows.get_mut(flow as usize) else { break };
            *seq = seq.wrapping_add(1);
            self.flow += queues;
            if self.flow >= flows {
                self.flow %= queues;
            }
            sent += 1;
        }
        if sent > 0 {
            sender.counters.add_sent(sent as u64);
            sender.pace.spend(sent as u64);
            self.driver.tx.publish();
        }
        Ok(sent)
    }
}

/// Adds a buffer to a ring, in one piece or cut; `pieces` is scratch.
#[inline]
fn add<R: DriverRing>(
    ring: &mut R,
    cut: Cut,
    pieces: &mut Vec<Piece>,
    (addr, len): (u64, u32),
    direction: Direction,
) -> Option<u16> {
    if let Some(piece) = cut.whole(addr, len) {
        return ring.add(&[piece], direction);
    }
    pieces.clear();
    cut.pieces(addr, len, pieces);
    ring.add(pieces, direction)
}
