//! A queue pair of a guest, and its buffers.

use ring::driver::{BadUsed, Direction, DriverRing, Piece, Used, Window};
use vhost_user_driver::{Driver, FrontEnd, Guest};

use super::BURST_MAX;
use super::role::Sender;
use crate::Error;
use crate::args::Args;
use crate::packet::Tag;
use crate::plan::{Buffers, Plan};
use crate::pool::{Cut, Pool};
use crate::time::Clock;

/// One queue pair and its buffers.
pub struct Queue<R> {
    pub driver: Driver<R>,
    pub tx: Pool,
    pub rx: Pool,
    pub cut: Cut,
    pub mergeable: bool,
    /// The flow of the next frame. Consecutive flows of this queue differ by the number of queues.
    pub flow: u32,
    /// Scratch space.
    pub pieces: Vec<Piece>,
    /// The least number of frames that is published, if there is no room for a burst.
    pub worth: usize,
    /// Buffers so far of a frame that is not complete, and their numbers.
    pub group: Vec<Piece>,
    pub held: Vec<u32>,
}

impl<R: DriverRing> Queue<R> {
    pub fn new(
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

    /// Touches every page of the buffers, so that it is allocated.
    pub fn touch(&self, memory: &Window) {
        for pool in [&self.tx, &self.rx] {
            for page in (pool.addr(0)..pool.addr(pool.count())).step_by(4096) {
                memory.write(page, &[0; 8]);
            }
        }
    }

    /// Posts every free receive buffer that the ring has room for.
    #[inline]
    pub fn refill(&mut self) {
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

    /// Frees the buffers of a frame that was checked.
    #[inline]
    pub fn release(&mut self) {
        for buffer in &self.held {
            self.rx.put(*buffer);
        }
        self.held.clear();
        self.group.clear();
    }

    /// Takes sent buffers back.
    pub fn reclaim(&mut self) -> Result<(), BadUsed> {
        while self.driver.tx.ring.pending() {
            let mut used = [Used::default(); BURST_MAX];
            let count = self.driver.tx.ring.collect(&mut used)?;
            for used in &used[..count] {
                self.tx.put(self.tx.of_chain(used.id));
            }
        }
        Ok(())
    }

    /// Adds a frame whose bytes `write` writes to the given address; false if there is no room.
    #[inline]
    pub fn send(&mut self, len: u32, write: impl FnOnce(u64)) -> bool {
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
    pub fn room(&self) -> usize {
        self.tx.free().min(self.driver.tx.ring.room(self.cut.count(self.tx.buffer_len())))
    }

    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    #[inline]
    pub fn transmit(
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
        let flows = sender.flows.len() as u32;
        let mut sent = 0;
        if sender.pace.is_open() {
            now = clock.now();
        }
        while sent < budget.min(room) {
            let flow = self.flow;
            let Some(seq) = sender.flows.get_mut(flow as usize) else { break };
            let (shape, tag) = (sender.shapes.of(flow), Tag { flow, seq: *seq, time: now });
            let len = header_len as u32 + shape.len();
            let write = |addr: u64| {
                let frame = addr + header_len as u64;
                if sender.shapes.differ() {
                    memory.write(frame, shape.headers());
                }
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
            sender.counters.add_sent(flow);
            self.flow += queues;
            if self.flow >= flows {
                self.flow %= queues;
            }
            sent += 1;
        }
        if sent > 0 {
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
