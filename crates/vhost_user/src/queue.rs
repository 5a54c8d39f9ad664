//! A guest's queue pair: the rings of one vhost-user connection as the datapath sees them.
//!
//! One owner at a time: while a worker has the pair, nobody else touches it; the session takes it
//! back, changes what has changed, and hands it over again. Everything that a worker does here is
//! bounded by the burst that it does it for, and nothing blocks.

use std::any::Any;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use frame::{Accepts, VNET_LEN};
use network::burst::{AHEAD, Burst};
use network::count::DropReason;
use network::flowcache::Action;
use network::packet::Packet;
use network::port::{Coalescing, Notified, QueueError, QueuePair, RxProgress};
use ring::{DeviceRing, GrantCopyBatch, Memory, Put, RingConfig, Violation};

use crate::event::Event;
use crate::feature::{Features, bit};

/// Which ring of a pair, in the guest's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The guest receives; ring numbers are even (virtio 1.2, 5.1.2).
    Rx,
    /// The guest transmits; ring numbers are odd.
    Tx,
}

impl Side {
    /// The side of ring number `ring`.
    pub fn of(ring: usize) -> Side {
        if ring.is_multiple_of(2) { Side::Rx } else { Side::Tx }
    }
}

/// How a ring's two ends signal each other, and whether it may pass data.
#[derive(Clone, Debug, Default)]
pub struct Wires {
    /// The driver signals through this. `None`: it expects the ring to be polled.
    pub kick: Option<Arc<Event>>,
    /// The driver is interrupted through this. `None`: it polls.
    pub call: Option<Arc<Event>>,
    /// Disabled rings pass no data: Tx is drained and discarded, Rx is not filled.
    pub enabled: bool,
}

/// What a session does to a pair while no worker has it.
pub trait Pair: QueuePair {
    /// Attaches to a ring in the guest's memory, in place of what was there.
    ///
    /// # Errors
    /// When the ring cannot be where it is said to be.
    fn start(
        &mut self,
        side: Side,
        memory: Arc<Memory>,
        config: &RingConfig,
        wires: Wires,
    ) -> Result<(), Violation>;

    /// Lets go of a ring and says where it stands, as `GET_VRING_BASE` answers. `None`: it was not
    /// started.
    fn stop(&mut self, side: Side) -> Option<u32>;

    /// Changes how a ring that is started signals and whether it passes data.
    fn rewire(&mut self, side: Side, wires: Wires);

    /// Finds the ring anew in a changed memory; one that is not started does not mind.
    ///
    /// # Errors
    /// When the ring is not in the new memory.
    fn set_memory(&mut self, side: Side, memory: Arc<Memory>) -> Result<(), Violation>;

    /// Whether the ring is started.
    fn has(&self, side: Side) -> bool;

    /// Whether frames may be put.
    fn receives(&self) -> bool;
}

/// A ring and its wires.
struct End<R> {
    ring: R,
    wires: Wires,
    /// Chains completed or frames put since the last publication.
    unpublished: bool,
}

impl<R: DeviceRing> End<R> {
    /// Publishes, and interrupts the driver where it wants that.
    fn publish(&mut self) -> Result<Notified, Violation> {
        match self.publish_quietly() {
            Notified::Deferred => self.interrupt().map(|()| Notified::Sent),
            told => Ok(told),
        }
    }

    /// Publishes; an interrupt that the driver wants is held.
    fn publish_quietly(&mut self) -> Notified {
        if !std::mem::take(&mut self.unpublished) {
            return Notified::Nothing;
        }
        let wanted = self.ring.publish();
        if wanted && self.wires.call.is_some() { Notified::Deferred } else { Notified::Suppressed }
    }

    /// The usual case of [`put`](Self::put); false: it is not this one.
    #[inline(always)]
    fn put_alone(&mut self, taste: Taste, packet: &Packet<'_>) -> bool {
        let mut offload = *packet.offload;
        offload.valid &= taste.csum;
        taste.vnet_len == VNET_LEN
            && self.ring.put_alone(
                frame::vnet::encode(&offload, packet.headers_len),
                packet.head,
                packet.body,
            )
    }

    /// Writes one frame into the driver's buffers.
    fn put(
        &mut self,
        taste: Taste,
        packet: &Packet<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, Violation> {
        let mut offload = *packet.offload;
        offload.valid &= taste.csum;
        let mut net = frame::vnet::encode(&offload, packet.headers_len);
        let net = net.get_mut(..taste.vnet_len).unwrap_or_default();
        self.ring.put(net, packet.head, packet.body, taste.mergeable, grant_copies)
    }

    fn interrupt(&self) -> Result<(), Violation> {
        self.wires.call.as_ref().map_or(Ok(()), |call| call.signal())
    }

    /// A driver that gave no kick expects its ring to be looked at all the time: there is always
    /// something.
    fn arm(&mut self) -> Result<bool, Violation> {
        Ok(self.ring.arm()? || self.wires.kick.is_none())
    }

    fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.wires.kick.as_ref().map(|kick| kick.as_fd())
    }
}

/// How the guest wants its frames.
#[derive(Clone, Copy)]
struct Taste {
    /// Bytes of the offload header.
    vnet_len: usize,
    /// A frame may take several buffers.
    mergeable: bool,
    /// It may be told that a checksum is good.
    csum: bool,
}

/// A queue pair over virtqueues of one layout.
pub struct VirtioPair<R> {
    tx: Option<End<R>>,
    rx: Option<End<R>>,
    /// What the rings are in.
    memory: Option<Arc<Memory>>,
    vnet_len: usize,
    mergeable: bool,
    accepts: Accepts,
}

impl<R: DeviceRing + 'static> VirtioPair<R> {
    /// A pair without rings, for a guest with these features.
    pub fn new(features: Features) -> Self {
        VirtioPair {
            tx: None,
            rx: None,
            memory: None,
            vnet_len: features.vnet_len(),
            mergeable: features.has(bit::MRG_RXBUF),
            accepts: features.accepts(),
        }
    }

    fn end(&mut self, side: Side) -> &mut Option<End<R>> {
        match side {
            Side::Rx => &mut self.rx,
            Side::Tx => &mut self.tx,
        }
    }

    #[inline]
    fn taste(&self) -> Taste {
        Taste { vnet_len: self.vnet_len, mergeable: self.mergeable, csum: self.accepts.csum }
    }

    /// Fails when the guest's memory has a hole. Then what was read were zeros, or soon will be.
    #[inline]
    fn whole(&self) -> Result<(), Violation> {
        match self.memory.as_ref().is_some_and(|memory| memory.is_faulted()) {
            true => Err(Violation::MemoryTruncated),
            false => Ok(()),
        }
    }

    /// The reason for a violation: zeros in place of a ring can look like any.
    #[cold]
    fn reason(&self, violation: Violation) -> QueueError {
        self.whole().err().unwrap_or(violation).into()
    }
}

impl<R: DeviceRing + 'static> Pair for VirtioPair<R> {
    fn start(
        &mut self,
        side: Side,
        memory: Arc<Memory>,
        config: &RingConfig,
        wires: Wires,
    ) -> Result<(), Violation> {
        let mut ring = R::new(Arc::clone(&memory), config)?;
        ring.disarm();
        self.memory = Some(memory);
        *self.end(side) = Some(End { ring, wires, unpublished: false });
        Ok(())
    }

    fn stop(&mut self, side: Side) -> Option<u32> {
        let mut end = self.end(side).take()?;
        // The ring is let go of anyway.
        let _ = end.publish();
        Some(end.ring.position())
    }

    fn rewire(&mut self, side: Side, wires: Wires) {
        if let Some(end) = self.end(side) {
            end.wires = wires;
        }
    }

    fn set_memory(&mut self, side: Side, memory: Arc<Memory>) -> Result<(), Violation> {
        if let Some(end) = self.end(side) {
            end.ring.set_memory(Arc::clone(&memory))?;
            self.memory = Some(memory);
        }
        Ok(())
    }

    fn has(&self, side: Side) -> bool {
        match side {
            Side::Rx => self.rx.is_some(),
            Side::Tx => self.tx.is_some(),
        }
    }

    fn receives(&self) -> bool {
        self.rx.as_ref().is_some_and(|rx| rx.wires.enabled)
    }
}

impl<R: DeviceRing + 'static> QueuePair for VirtioPair<R> {
    fn fetch(&mut self, burst: &mut Burst) -> Result<(), QueueError> {
        let Some(tx) = &mut self.tx else {
            return Ok(());
        };
        let filled =
            burst.fill(self.vnet_len, |gather, chains, max| tx.ring.fetch(gather, chains, max));
        if !tx.wires.enabled {
            for frame in burst.frames_mut() {
                frame.action = Action::Drop(DropReason::TxDisabled);
            }
        }
        filled.map_err(|violation| self.reason(violation))?;
        Ok(self.whole()?)
    }

    fn complete(&mut self, n: usize) {
        if let Some(tx) = self.tx.as_mut().filter(|_| n > 0) {
            tx.ring.complete(n);
            tx.unpublished = true;
        }
    }

    fn rewind(&mut self, n: usize) {
        if let Some(tx) = &mut self.tx {
            tx.ring.rewind(n);
        }
    }

    fn accepts(&self) -> Accepts {
        self.accepts
    }

    fn prepare(&mut self, n: usize) -> Result<(), QueueError> {
        if let Some(rx) = self.rx.as_mut().filter(|rx| rx.wires.enabled) {
            rx.ring.prepare(n).map_err(|violation| self.reason(violation))?;
        }
        Ok(())
    }

    fn put(
        &mut self,
        packet: &Packet<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, QueueError> {
        let taste = self.taste();
        let Some(rx) = self.rx.as_mut().filter(|rx| rx.wires.enabled) else {
            return Ok(Put::Full);
        };
        let put = rx.put(taste, packet, grant_copies);
        rx.unpublished |= put == Ok(Put::Done);
        put.map_err(|violation| self.reason(violation))
    }

    fn put_run(
        &mut self,
        burst: &Burst,
        run: Range<usize>,
        _: bool,
        grant_copies: &mut GrantCopyBatch,
    ) -> (usize, Result<Put, QueueError>) {
        let taste = self.taste();
        let Some(rx) = self.rx.as_mut().filter(|rx| rx.wires.enabled) else {
            return (0, Ok(Put::Full));
        };
        let mut done = 0;
        let mut put = Ok(Put::Done);
        for i in run {
            if let Some(len) = burst.prefetch(i + AHEAD) {
                rx.ring.ask(AHEAD, taste.vnet_len + len);
            }
            let packet = burst.packet(i);
            if !rx.put_alone(taste, &packet) {
                put = rx.put(taste, &packet, grant_copies);
                if !matches!(put, Ok(Put::Done)) {
                    break;
                }
            }
            done += 1;
        }
        rx.unpublished |= done > 0;
        (done, put.map_err(|violation| self.reason(violation)))
    }

    fn invalidate(&mut self, token: u32) {
        if let Some(rx) = &mut self.rx {
            rx.ring.spoil(token);
        }
    }

    fn room(&mut self) -> Result<usize, QueueError> {
        let Some(rx) = &mut self.rx else { return Ok(0) };
        let available = rx.ring.available().map_err(|violation| self.reason(violation))?;
        Ok(if available { usize::MAX } else { 0 })
    }

    fn flush(&mut self) -> Result<[Notified; 2], QueueError> {
        let publish =
            |end: &mut Option<End<R>>| end.as_mut().map_or(Ok(Notified::Nothing), End::publish);
        let told = [publish(&mut self.tx)?, publish(&mut self.rx)?];
        self.whole()?;
        Ok(told)
    }

    fn arm(&mut self, rx: bool) -> Result<bool, QueueError> {
        let arm = |end: &mut Option<End<R>>| end.as_mut().map_or(Ok(false), End::arm);
        let there = arm(&mut self.tx).and_then(|tx| Ok(tx | (rx && arm(&mut self.rx)?)));
        there.map_err(|violation| self.reason(violation))
    }

    fn disarm(&mut self) {
        for end in [&mut self.tx, &mut self.rx].into_iter().flatten() {
            end.ring.disarm();
        }
    }

    fn wakers(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [&self.tx, &self.rx].map(|end| end.as_ref().and_then(End::kick))
    }

    /// A `Box<dyn Pair>`, whatever the layout.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        let pair: Box<dyn Pair> = self;
        Box::new(pair)
    }

    fn coalescing(&mut self) -> Option<&mut dyn Coalescing> {
        Some(self)
    }

    fn rx_progress(&self) -> Option<&dyn RxProgress> {
        Some(self)
    }
}

impl<R: DeviceRing + 'static> Coalescing for VirtioPair<R> {
    fn flush_deferred(&mut self) -> Result<[Notified; 2], QueueError> {
        let tx = self.tx.as_mut().map_or(Ok(Notified::Nothing), End::publish)?;
        let rx = self.rx.as_mut().map_or(Notified::Nothing, End::publish_quietly);
        self.whole()?;
        Ok([tx, rx])
    }

    fn interrupt(&mut self) -> Result<(), QueueError> {
        Ok(self.rx.as_ref().map_or(Ok(()), End::interrupt)?)
    }
}

impl<R: DeviceRing + 'static> RxProgress for VirtioPair<R> {
    fn position(&self) -> u32 {
        self.rx.as_ref().map_or(0, |rx| rx.ring.mark())
    }

    fn has_consumed(&self, position: u32) -> bool {
        self.rx.as_ref().is_none_or(|rx| rx.ring.has_taken(position))
    }
}
