//! A guest that the generator simulates: its driver, its buffers, the frames that it sends, and
//! those that it receives.

use std::os::unix::net::UnixStream;

use ring::driver::{DriverRing, Piece, Used, Window};
use vhost_user_driver::{FrontEnd, Guest};
use vmm_sys_util::eventfd::EventFd;

use super::Error;
use super::args::Args;
use super::packet;
use super::plan::{Plan, front_end_config};
use super::receive::{Arrived, Receiver};
use super::time::Clock;
use queue::Queue;
use role::{blame, deliver, torn};

mod queue;
mod role;

pub use role::{Doorbells, Role, Sender};

/// Most frames that are sent or taken at a time.
const BURST_MAX: usize = 64;

/// Most buffers of one received frame.
const GROUP_MAX: usize = 1024;

/// A guest.
pub struct Endpoint<R> {
    role: Role,
    /// Keeps the connection open: the back-end stops when it closes.
    _front: FrontEnd,
    memory: Window,
    queues: Vec<Queue<R>>,
    header_len: usize,
    burst: usize,
    doorbells: Doorbells,
}

impl<R: DriverRing> Endpoint<R> {
    /// Negotiates with the back-end at the other end of `stream`, and gives it rings full of
    /// receive buffers.
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

    /// The guest's number.
    pub fn number(&self) -> u16 {
        self.role.number
    }

    /// Whether frames that the guest sent are still in a ring.
    pub fn is_sending(&self) -> bool {
        self.queues.iter().any(|queue| queue.tx.free() < queue.tx.count() as usize)
    }

    /// Takes back the buffers of sent frames.
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

    /// Whether the announcements of all peers came through.
    pub fn is_greeted(&self) -> bool {
        self.role.silent.is_empty()
    }

    /// Writes the common part of all frames into all buffers: after the announcements, before the
    /// first [`transmit`](Self::transmit).
    pub fn prepare(&mut self) {
        let Some(sender) = &self.role.sender else { return };
        let shape = sender.shapes.first();
        let Some(vnet) = shape.vnet().get(..self.header_len) else { return };
        for queue in &self.queues {
            for buffer in 0..queue.tx.count() {
                let addr = queue.tx.addr(buffer);
                self.memory.write(addr, vnet);
                self.memory.write(addr + vnet.len() as u64, shape.headers());
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

    /// Checks the frames that came on queue `index`, and posts their buffers again.
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
                deliver(&mut self.role, &mut self.doorbells, &alone, now);
                queue.rx.put(buffer);
                continue;
            }
            queue.group.push(piece);
            queue.held.push(buffer);
            let arrived = Arrived::new(&self.memory, &queue.group, self.header_len);
            match arrived.announced() {
                // No correct device announces zero buffers: the frame has at least one.
                0 => torn(&mut self.role, &arrived),
                announced if queue.group.len() < announced.min(GROUP_MAX) => continue,
                _ => deliver(&mut self.role, &mut self.doorbells, &arrived, now),
            }
            queue.release();
        }
        if !queue.group.is_empty() && used.len() < self.burst {
            torn(&mut self.role, &Arrived::new(&self.memory, &queue.group, self.header_len));
            queue.release();
        }
        if let Some(receiver) = &self.role.receiver {
            receiver.report();
        }
        queue.refill();
    }

    /// Enables interrupts on all rings that the guest may wait for. True if one of them has work
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

    /// Disables interrupts, and counts those that were raised.
    pub fn disarm(&mut self) {
        for queue in &mut self.queues {
            queue.driver.rx.ring.disarm();
            queue.driver.tx.ring.disarm();
            let came =
                u64::from(queue.driver.rx.acknowledge()) + u64::from(queue.driver.tx.acknowledge());
            self.doorbells.interrupts += came;
        }
    }

    /// The eventfds that become readable with an interrupt.
    pub fn interrupts(&self) -> impl Iterator<Item = &EventFd> {
        self.queues.iter().flat_map(|queue| [queue.driver.rx.call(), queue.driver.tx.call()])
    }

    /// The role of the guest.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// The sender.
    pub fn sender(&self) -> Option<&Sender> {
        self.role.sender.as_ref()
    }

    /// The receiver.
    pub fn receiver(&mut self) -> Option<&mut Receiver> {
        self.role.receiver.as_mut()
    }

    /// Returns the parts of the guest that the report needs.
    pub fn into_parts(self) -> (Role, Doorbells) {
        let kicks = self.queues.iter().map(|q| q.driver.tx.kicks() + q.driver.rx.kicks()).sum();
        (self.role, Doorbells { kicks, ..self.doorbells })
    }
}
