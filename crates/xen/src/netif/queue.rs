//! A queue of a vif as the datapath sees it: a Tx ring and an Rx ring, and their event channels.
//! Only the rings are mapped of the frontend's memory.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use frame::{Accepts, Head, Headers};
use hypervisor::{Channel, DomId, TransitiveGrants};
use network::burst::Burst;
use network::count::{Counter, DropReason};
use network::packet::Packet;
use network::port::{
    Coalescing, GrantPassing, Notified, QueueError, QueuePair, RateLimit, RxProgress,
};
use ring::pages::LookupHint;
use ring::xen::BackRing;
use ring::{Engine, GrantCopyBatch, Memory, Pages, Put, Violation};

mod abilities;
mod rx;
mod tx;

use crate::netif::groups::{Groups, View};
use crate::netif::negotiation::FrontendFeatures;
use crate::netif::passed_grants::PassedGrants;
use crate::netif::slots::{self, Meta, Piece, TxSlot};
use crate::netif::static_grants::MappedPages;

/// State that the queues of a vif share.
#[derive(Debug)]
pub struct VifShared {
    /// The domain of the vif's frontend.
    pub domain: DomId,
    /// Copies for it.
    pub engine: Arc<dyn Engine>,
    /// The features that the frontend supports.
    pub features: FrontendFeatures,
    /// The multicast groups that it receives.
    pub groups: Groups,
    /// Whether the bytes of received frames begin where copies are aligned.
    pub align: bool,
    /// Passes grants on to it, if it copies frames itself (`feature-guest-copy`).
    pub transitive_grants: Option<Arc<dyn TransitiveGrants>>,
    /// The vif is paused: nothing is taken out of its Tx rings.
    pub paused: AtomicBool,
}

/// Counters of a queue, to be read by other threads.
#[derive(Debug, Default)]
pub struct QueueStats {
    /// Frames put.
    pub put: Counter,
    /// Frames that found no room.
    pub full: Counter,
    /// Copies whose page was mapped by static grants, while the queue had any.
    pub hits: Counter,
    /// Copies whose page was not.
    pub misses: Counter,
}

/// Parts that a queue is made from.
pub struct QueueParts {
    /// The page of its Tx ring.
    pub tx_ring: Arc<Memory>,
    /// The page of its Rx ring.
    pub rx_ring: Arc<Memory>,
    /// Its event channel, or that of its Tx ring.
    pub tx_channel: Box<dyn Channel>,
    /// The event channel of its Rx ring, if it has one of its own.
    pub rx_channel: Option<Box<dyn Channel>>,
    /// State shared with the vif's other queues.
    pub vif: Arc<VifShared>,
    /// The counters of the queue.
    pub stats: Arc<QueueStats>,
    /// Pages of the frontend that stay mapped, if the options allow any.
    pub mapped_pages: Option<Arc<MappedPages>>,
    /// Another daemon served the rings before, and may have been stopped at any point.
    pub resumed: bool,
}

/// A packet of the Tx ring that is under way.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    slots: u32,
    /// Whether the datapath counts the packet as a frame.
    frame: bool,
}

/// What is read from the Tx ring.
#[derive(Default)]
struct Fetched {
    /// The offloads of each frame that was fetched last, or the reason to drop it.
    metas: Vec<Result<Meta, DropReason>>,
    /// The packet that is being read.
    pieces: Vec<Piece>,
    answers: Vec<TxSlot>,
}

/// Pages of the frontend that stay mapped, as a queue uses them.
struct Mapping {
    pages: Option<Arc<MappedPages>>,
    /// The pages at the beginning of the burst that is being put.
    rx: Option<Arc<Pages>>,
    /// Look-ups: Tx, Rx.
    seen: [LookupHint; 2],
}

/// A queue.
pub struct Queue {
    tx: BackRing<3>,
    rx: BackRing<2>,
    tx_channel: Box<dyn Channel>,
    rx_channel: Option<Box<dyn Channel>>,
    vif: Arc<VifShared>,
    stats: Arc<QueueStats>,
    accepts: Accepts,
    /// Packets taken and not answered, oldest first.
    in_flight: VecDeque<InFlight>,
    fetched: Fetched,
    /// The time until which nothing is fetched, because the vif is paused.
    paused_until: Option<Instant>,
    /// Slots needed by the last frame that found no room.
    slots_needed: u32,
    view: View,
    mapping: Mapping,
    /// Frames that the frontend is to copy itself, if it does that.
    passed_grants: Option<PassedGrants>,
}

impl Queue {
    /// Continues the rings from their present indices, and signals the frontend: a signal of an
    /// earlier daemon may have been lost with it.
    ///
    /// # Errors
    /// When the indices of a ring contradict each other.
    pub fn new(parts: QueueParts) -> Result<Self, Violation> {
        let FrontendFeatures { sg, gso_v4, gso_v6, csum_v4, csum_v6, .. } = parts.vif.features;
        // Blank checksums are accepted for both protocols or not at all: a frame's offload does not
        // say which protocol it has.
        let csum = csum_v4 && csum_v6;
        let accepts = Accepts {
            csum,
            tso4: csum && gso_v4 && sg,
            tso6: csum && gso_v6 && sg,
            ecn: true,
            uso4: false,
            uso6: false,
        };
        // Without a free reference, frames are copied like those of other vifs.
        let reserve = |transitive_grants: &Arc<dyn TransitiveGrants>| {
            PassedGrants::new(Arc::clone(transitive_grants), parts.vif.domain).ok()
        };
        let passed_grants = parts.vif.transitive_grants.as_ref().and_then(reserve);
        let mut queue = Queue {
            tx: BackRing::attach(parts.tx_ring, 0)?,
            rx: BackRing::attach(parts.rx_ring, 0)?,
            tx_channel: parts.tx_channel,
            rx_channel: parts.rx_channel,
            vif: parts.vif,
            stats: parts.stats,
            accepts,
            in_flight: VecDeque::with_capacity(BackRing::<3>::SIZE as usize),
            fetched: Fetched::default(),
            paused_until: None,
            slots_needed: 1,
            view: View::default(),
            mapping: Mapping { pages: parts.mapped_pages, rx: None, seen: Default::default() },
            passed_grants,
        };
        if parts.resumed {
            queue.publish_left_over()?;
        }
        queue.tx_channel.notify();
        if let Some(channel) = &queue.rx_channel {
            channel.notify();
        }
        Ok(queue)
    }
}

impl QueuePair for Queue {
    fn fetch(&mut self, burst: &mut Burst) -> Result<(), QueueError> {
        burst.take_granted(|gather, chains, room| self.take(gather, chains, room))?;
        self.pass_over();
        if self.fetched.metas.is_empty() {
            // The worker publishes only for frames. Its copies to the Rx ring may still wait.
            if self.tx.publish() == Some(true) {
                self.tx_channel.notify();
            }
            return Ok(());
        }
        let metas = &self.fetched.metas;
        let judge = |i: usize, head: &mut Head, headers: &Headers, len| match metas.get(i) {
            Some(Ok(meta)) => {
                slots::offload(*meta, head, headers, len).map_err(|_| DropReason::BadOffload)
            }
            Some(Err(reason)) => Err(*reason),
            None => Err(DropReason::BadOffload),
        };
        burst.examine_granted(judge).map_err(QueueError::Grant)
    }

    fn complete(&mut self, n: usize) {
        for _ in 0..n {
            self.pass_over();
            self.respond();
        }
        self.pass_over();
    }

    fn rewind(&mut self, n: usize) {
        let mut left = n;
        while left > 0 {
            let Some(packet) = self.in_flight.pop_back() else { return };
            if packet.frame {
                left -= 1;
            }
            self.tx.put_back(packet.slots);
        }
    }

    fn accepts(&self) -> Accepts {
        self.accepts
    }

    fn prepare(&mut self, n: usize) -> Result<(), QueueError> {
        self.mapping.rx = self.mapped();
        self.rx.ready(n as u32)?;
        Ok(())
    }

    fn put(
        &mut self,
        packet: &Packet<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, QueueError> {
        self.put_frame(packet, grant_copies)
    }

    fn invalidate(&mut self, token: u32) {
        // Indices have 32 bits, of which the token has the lower half: enough to identify a slot
        // that is not published.
        let position = self.rx.position();
        let number = position.wrapping_sub(position.wrapping_sub(token) & 0xffff);
        if let Some(response) = self.rx.response_mut(number) {
            slots::spoil(response);
        }
    }

    fn room(&mut self) -> Result<usize, QueueError> {
        if self.rx.ready(self.slots_needed)? < self.slots_needed {
            return Ok(0);
        }
        let ready = self.rx.ready(BackRing::<2>::SIZE).unwrap_or_default();
        Ok((ready / self.slots_needed.max(1)) as usize)
    }

    fn flush(&mut self) -> Result<[Notified; 2], QueueError> {
        self.flush_now()
    }

    fn arm(&mut self, rx: bool) -> Result<bool, QueueError> {
        // The channels come first, so that a signal which comes while the rings are read is not
        // lost.
        self.tx_channel.take();
        if let Some(channel) = self.rx_channel.as_ref().filter(|_| rx) {
            channel.take();
        }
        let there = self.tx.arm()? > 0;
        // An event for passed frames, half of which come back at a time.
        let back = self
            .passed_grants
            .as_ref()
            .and_then(PassedGrants::half)
            .map(|half| half.wrapping_sub(self.rx.upcoming()));
        let slots_needed =
            back.map_or(self.slots_needed, |back| back.min(self.slots_needed)).max(1);
        Ok(rx && self.rx.arm_for(slots_needed)? >= slots_needed || there)
    }

    /// Does nothing: the ring's event stays in the past, and the channel's signal is not taken, so
    /// no other comes.
    fn disarm(&mut self) {}

    fn wakers(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.tx_channel.waker()), self.rx_channel.as_ref().map(|channel| channel.waker())]
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }

    fn coalescing(&mut self) -> Option<&mut dyn Coalescing> {
        Some(self)
    }

    fn rx_progress(&self) -> Option<&dyn RxProgress> {
        Some(self)
    }

    fn rate_limit(&self) -> Option<&dyn RateLimit> {
        Some(self)
    }

    fn grant_passing(&mut self) -> Option<&mut dyn GrantPassing> {
        Some(self)
    }
}
