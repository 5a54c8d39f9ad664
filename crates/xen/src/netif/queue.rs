//! A queue of a vif as the datapath sees it: a Tx ring and an Rx ring, their event channels, and
//! nothing mapped of the frontend but the rings.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use frame::{Accepts, Head, Headers, Mac, Offload};
use hypervisor::{Channel, DomId, GrantRef, Granted, PAGE, TransitiveGrants};
use network::burst::Burst;
use network::count::{Counter, DropReason};
use network::packet::Packet;
use network::port::{
    Coalescing, GrantPassing, Notified, QueueError, QueuePair, RateLimit, RxProgress,
};
use ring::grant_copy_batch::Target;
use ring::pages::LookupHint;
use ring::xen::BackRing;
use ring::{Chain, Engine, Gather, GrantCopyBatch, Memory, Pages, Put, Violation};

use crate::netif::groups::{Groups, View};
use crate::netif::guest_copy::{FetchPlan, Slots};
use crate::netif::negotiation::FrontendFeatures;
use crate::netif::passed_grants::PassedGrants;
use crate::netif::rate::Rate;
use crate::netif::slots::{self, Layout, Meta, Piece, Sizes, TxSlot, What};
use crate::netif::static_grants::MappedPages;

/// Grants below are the hypervisor's own (`GNTTAB_NR_RESERVED_ENTRIES`): those of the console's
/// ring and the store's.
const RESERVED: u32 = 8;

/// What the queues of a vif have in common.
#[derive(Debug)]
pub struct VifShared {
    /// Whose it is.
    pub domain: DomId,
    /// Who copies for it.
    pub engine: Arc<dyn Engine>,
    /// What its frontend supports.
    pub features: FrontendFeatures,
    /// How fast it may send.
    pub rate: Option<Rate>,
    /// What groups it wants.
    pub groups: Groups,
    /// Whether what it receives begins where copies are aligned.
    pub align: bool,
    /// Who passes grants on to it, if it fetches frames itself.
    pub transitive_grants: Option<Arc<dyn TransitiveGrants>>,
    /// What it sends stays where it is for the moment.
    pub held: AtomicBool,
}

/// Fewer bytes are not worth being fetched: passing on a grant costs more than copying them.
const WORTH: u32 = 256;

/// How long until a vif that is held is looked at again.
const HELD: Duration = Duration::from_micros(200);

/// How a queue's receiving goes, for those who watch from elsewhere.
#[derive(Debug, Default)]
pub struct QueueStats {
    /// Frames put.
    pub put: Counter,
    /// GuestTimes that there was no room for a frame.
    pub full: Counter,
    /// Pages to be copied from or to that were mapped already, while any were.
    pub hits: Counter,
    /// Those that were not.
    pub misses: Counter,
}

/// What a queue is made of.
pub struct QueueParts {
    /// The page of its Tx ring.
    pub tx_ring: Arc<Memory>,
    /// The page of its Rx ring.
    pub rx_ring: Arc<Memory>,
    /// Its event channel, or that of its Tx ring.
    pub tx_channel: Box<dyn Channel>,
    /// The event channel of its Rx ring, if it has one of its own.
    pub rx_channel: Option<Box<dyn Channel>>,
    /// What it has in common with the vif's other queues.
    pub vif: Arc<VifShared>,
    /// Where its receiving is noted.
    pub stats: Arc<QueueStats>,
    /// Pages of it that stay mapped, if any may.
    pub mapped_pages: Option<Arc<MappedPages>>,
    /// Somebody else served the rings before, and may have been stopped anywhere.
    pub resumed: bool,
}

/// A packet of the Tx ring that is under way.
#[derive(Clone, Copy, Debug)]
struct Taken {
    slots: u32,
    /// Whether it is a frame in the datapath's eyes.
    frame: bool,
    /// Its length in bytes.
    len: u32,
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
    /// Packets under way, oldest first.
    taken: VecDeque<Taken>,
    /// What was last fetched: what is left to be done, or why it can't be.
    metas: Vec<Result<Meta, DropReason>>,
    /// The packet that is being read.
    pieces: Vec<Piece>,
    answers: Vec<TxSlot>,
    /// The vif has used up its rate until then.
    rests: Option<Instant>,
    /// Slots that the frame needs which found no room.
    needs: u32,
    view: View,
    mapped_pages: Option<Arc<MappedPages>>,
    /// What was on it when the burst began that is being put.
    rx_pages: Option<Arc<Pages>>,
    /// Look-ups in it, for each direction.
    seen: [LookupHint; 2],
    /// Frames that it is to fetch, if it does that.
    passed_grants: Option<PassedGrants>,
}

impl Queue {
    /// Takes up the rings where they stand, and tells the frontend to look: if it was told before
    /// of what is there, the one who was to hear the answer may be gone.
    ///
    /// # Errors
    /// When the indices of a ring contradict each other.
    pub fn new(parts: QueueParts) -> Result<Self, Violation> {
        let FrontendFeatures { sg, gso_v4, gso_v6, csum_v4, csum_v6, .. } = parts.vif.features;
        // Blank checksums are taken for both protocols or not at all: a frame's offload does not
        // say which it is.
        let csum = csum_v4 && csum_v6;
        let accepts = Accepts {
            csum,
            tso4: gso_v4 && sg,
            tso6: gso_v6 && sg,
            ecn: true,
            uso4: false,
            uso6: false,
        };
        // Without references left, it gets copies as others do.
        let lend = |transitive_grants: &Arc<dyn TransitiveGrants>| {
            PassedGrants::new(Arc::clone(transitive_grants), parts.vif.domain).ok()
        };
        let passed_grants = parts.vif.transitive_grants.as_ref().and_then(lend);
        let mut queue = Queue {
            tx: BackRing::attach(parts.tx_ring, 0)?,
            rx: BackRing::attach(parts.rx_ring, 0)?,
            tx_channel: parts.tx_channel,
            rx_channel: parts.rx_channel,
            vif: parts.vif,
            stats: parts.stats,
            accepts,
            taken: VecDeque::with_capacity(BackRing::<3>::SIZE as usize),
            metas: Vec::new(),
            pieces: Vec::new(),
            answers: Vec::new(),
            rests: None,
            needs: 1,
            view: View::default(),
            mapped_pages: parts.mapped_pages,
            rx_pages: None,
            seen: [LookupHint::default(); 2],
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

    /// The one before us may have been stopped while it wrote responses, before they were
    /// published. They lie in the oldest slots, in the place of requests, and are told from
    /// them: those to packets, which have arrived, by a mark; those to buffers by naming no
    /// page. All of them are published now: buffers as empty.
    fn publish_left_over(&mut self) -> Result<(), Violation> {
        loop {
            let ready = self.tx.ready(1)?;
            let read = |n| self.tx.request(n);
            match slots::next_packet(ready, read, &mut self.pieces, &mut self.answers) {
                Ok(packet) if ready > 0 && slots::is_answered(read(0)) => {
                    self.tx.take(packet.slots)
                }
                // If it is a bad one, that is found out again when it is its turn.
                _ => break,
            }
            self.answers.iter().for_each(|answer| self.tx.respond(*answer));
        }
        while self.rx.ready(1)? > 0 && !self.names_page(slots::rx_reference(self.rx.request(0))) {
            let [number, _] = self.rx.request(0);
            let mut response = [number & 0xffff, 0];
            slots::spoil(&mut response);
            self.rx.take(1);
            self.rx.respond(response);
        }
        self.tx.publish();
        self.rx.publish();
        Ok(())
    }

    /// Whether there is a granted page of that number.
    fn names_page(&self, reference: u32) -> bool {
        let at = Granted { domain: self.vif.domain, reference: GrantRef(reference), offset: 0 };
        reference >= RESERVED && ring::granted_copy::read(&*self.vif.engine, at, 1).is_some()
    }

    /// Takes up to `room` frames out of the ring, and what stands between them.
    fn take(
        &mut self,
        gather: &mut Gather,
        chains: &mut Vec<Chain>,
        room: usize,
    ) -> Result<(), QueueError> {
        self.metas.clear();
        self.rests = None;
        if self.vif.features.extensions.ranges {
            gather.allow_passing();
        }
        if self.vif.held.load(Ordering::Relaxed) {
            self.rests = Some(Instant::now() + HELD);
            return Ok(());
        }
        let pages = self.mapped();
        let mut now = None;
        while chains.len() < room {
            let ready = self.tx.ready(1)?;
            if ready == 0 {
                break;
            }
            let tx = &self.tx;
            let packet = match slots::next_packet(
                ready,
                |n| tx.request(n),
                &mut self.pieces,
                &mut self.answers,
            ) {
                Ok(packet) => packet,
                // What is good comes first; the next time it is the first that is bad.
                Err(_) if !chains.is_empty() => break,
                Err(fault) => return Err(QueueError::Device(fault.name())),
            };
            let len = self.pieces.iter().map(|piece| u32::from(piece.len)).sum();
            let frame = self.frame_of(packet.what);
            if let Some(meta) = frame {
                if let Some(rate) = &self.vif.rate
                    && let Err(until) = rate.send(*now.get_or_insert_with(Instant::now), len)
                {
                    self.rests = Some(until);
                    break;
                }
                let Some(chain) = self.gather(gather, pages.as_ref(), meta.is_ok()) else {
                    self.vif.rate.iter().for_each(|rate| rate.refund(len));
                    break;
                };
                chains.push(chain);
                self.metas.push(meta);
            }
            for (n, answer) in (0..).zip(&self.answers) {
                self.tx.note(n, *answer);
            }
            self.tx.take(packet.slots);
            self.taken.push_back(Taken { slots: packet.slots, frame: frame.is_some(), len });
        }
        Ok(())
    }

    /// What is left to be done of a frame, or why it can't be; `None`: it is none, and has been
    /// seen to.
    #[inline]
    fn frame_of(&mut self, what: What) -> Option<Result<Meta, DropReason>> {
        match what {
            What::Frame(meta) => Some(Ok(meta)),
            What::TooLong => Some(Err(DropReason::TooManySlots)),
            What::Overflown => Some(Err(DropReason::Oversized)),
            What::Group { join, group } => {
                if !self.vif.groups.set(group, join) {
                    slots::refuse(&mut self.answers);
                }
                None
            }
        }
    }

    /// A scatter list of the packet that is being read, or an empty one. `None`: there is no room
    /// for it.
    #[inline]
    fn gather(
        &mut self,
        gather: &mut Gather,
        pages: Option<&Arc<Pages>>,
        wanted: bool,
    ) -> Option<Chain> {
        let domain = self.vif.domain;
        let granted = |piece: &Piece| {
            let reference = GrantRef(piece.reference);
            (Granted { domain, reference, offset: piece.offset }, piece.len)
        };
        let pieces = if wanted { self.pieces.as_slice() } else { &[] };
        let (engine, pieces) = (&self.vif.engine, pieces.iter().map(granted));
        match pages {
            None => gather.push_granted(engine, pieces),
            Some(pages) => gather.push_mapped(engine, (pages, &mut self.seen[0]), pieces),
        }
    }

    /// Its pages that are mapped, for a burst.
    #[inline]
    fn mapped(&self) -> Option<Arc<Pages>> {
        self.mapped_pages.as_ref().and_then(|mapped_pages| mapped_pages.take())
    }

    /// Counts the look-ups of the bursts that are over.
    fn tally(&mut self) {
        for seen in &mut self.seen {
            self.stats.hits.add(std::mem::take(&mut seen.hits));
            self.stats.misses.add(std::mem::take(&mut seen.misses));
        }
    }

    /// Gives the responses of packets that are no frames and are the oldest.
    fn pass_over(&mut self) {
        while self.taken.front().is_some_and(|taken| !taken.frame) {
            self.respond();
        }
    }

    /// Gives the responses of the oldest packet.
    fn respond(&mut self) {
        if let Some(Taken { slots, .. }) = self.taken.pop_front() {
            self.tx.give(slots);
        }
    }

    /// Whether the frame is for a group that the frontend does not want.
    #[inline]
    fn is_unwanted(&mut self, head: &[u8]) -> bool {
        match head.first_chunk() {
            Some(dst) if dst[0] & 1 != 0 => !self.vif.groups.wants(&mut self.view, Mac(*dst)),
            _ => false,
        }
    }

    /// Whether there are so many slots for a frame; if not, that is noted.
    #[inline]
    fn has_slots(&mut self, slots: u32) -> Result<bool, QueueError> {
        if self.rx.ready(slots)? >= slots {
            return Ok(true);
        }
        self.needs = slots;
        self.stats.full.add(1);
        Ok(false)
    }

    /// What the frame is called that takes the next `slots` slots.
    fn token(&self, slots: u32) -> u32 {
        self.rx.position() & 0xffff | slots << 16
    }

    /// Lends a frame, if it is one that can be lent: its head is copied, and the rest is for the
    /// frontend to fetch.
    fn lend(
        &mut self,
        packet: &Packet<'_>,
        offload: &Offload,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Option<Put>, QueueError> {
        let worth = packet.may_pass && packet.body.len() >= WORTH;
        let Some(passed_grants) = self.passed_grants.as_ref().filter(|_| worth) else {
            return Ok(None);
        };
        let Some(pieces) = packet.body.passable(&self.vif.engine) else { return Ok(None) };
        let Some(plan) = FetchPlan::of(packet.head.len() as u32, pieces) else { return Ok(None) };
        let Some(layout) = Layout::of(plan.sizes(), offload, || frame::parse(packet.head)) else {
            return Ok(None);
        };
        if layout.pages() > 1 && !self.vif.features.sg
            || !passed_grants.has_room(plan.fetched().count())
        {
            return Ok(None);
        }
        let slots = Slots::of(&plan, &layout);
        if !self.has_slots(slots.count())? {
            return Ok(Some(Put::Full));
        }
        let token = self.token(slots.count());
        if !grant_copies.begin(
            &self.vif.engine,
            packet.body,
            (token, packet.len()),
            1,
            packet.head.len(),
        ) {
            return Ok(None);
        }
        self.write_lent(&slots, packet.head, grant_copies);
        self.stats.put.add(1);
        Ok(Some(Put::Passed { token }))
    }

    /// Answers the next requests with a frame that is lent, and queues the copy of its head.
    fn write_lent(&mut self, slots: &Slots<'_>, head: &[u8], grant_copies: &mut GrantCopyBatch) {
        let (rx, domain, count) = (&mut self.rx, self.vif.domain, slots.count());
        let Some(passed_grants) = &mut self.passed_grants else { return };
        let reference = GrantRef(slots::rx_reference(rx.request(0)));
        let (pages, [_, seen]) = (self.rx_pages.as_deref(), &mut self.seen);
        let page = pages.and_then(|pages| pages.find(reference, true, seen));
        let at = Granted { domain, reference, offset: 0 };
        grant_copies.bytes(head, Target { at, len: head.len().min(PAGE) as u16, page });
        for n in 0..count {
            rx.note(n, slots.response(n, rx.request(n), |from| passed_grants.lend(from)));
        }
        rx.take(count);
        rx.give(count);
        passed_grants.close(rx.position());
    }

    /// Queues the copies of a frame to the pages that the next requests name, and answers those.
    fn fill(&mut self, layout: &Layout, packet: &Packet<'_>, grant_copies: &mut GrantCopyBatch) {
        let (rx, domain) = (&mut self.rx, self.vif.domain);
        let (pages, [_, seen]) = (self.rx_pages.as_deref(), &mut self.seen);
        let slots = layout.slots();
        let mut n = 0;
        let mut next = || {
            while n < slots {
                let request = rx.request(n);
                let (response, size) = layout.answer(n, request);
                rx.note(n, response);
                n += 1;
                if let Some(len) = size {
                    let (reference, offset) =
                        (GrantRef(slots::rx_reference(request)), slots::rx_offset(response));
                    let page = pages.and_then(|pages| pages.find(reference, true, seen));
                    return Some(Target { at: Granted { domain, reference, offset }, len, page });
                }
            }
            None
        };
        let Some(room) = next() else { return };
        let room = grant_copies.bytes(packet.head, room);
        grant_copies.body(packet.body, room, &mut next);
        // What is left holds no bytes.
        while next().is_some() {}
        self.rx.take(slots);
        self.rx.give(slots);
    }
}

impl QueuePair for Queue {
    fn fetch(&mut self, burst: &mut Burst) -> Result<(), QueueError> {
        burst.take_granted(|gather, chains, room| self.take(gather, chains, room))?;
        self.pass_over();
        if self.metas.is_empty() {
            // Nobody else will publish what was passed over.
            self.flush()?;
            return Ok(());
        }
        let metas = &self.metas;
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
            let Some(taken) = self.taken.pop_back() else { return };
            if taken.frame {
                left -= 1;
                // It will be sent, and paid for, once more.
                self.vif.rate.iter().for_each(|rate| rate.refund(taken.len));
            }
            self.tx.put_back(taken.slots);
        }
    }

    fn accepts(&self) -> Accepts {
        self.accepts
    }

    fn prepare(&mut self, n: usize) -> Result<(), QueueError> {
        self.rx_pages = self.mapped();
        self.rx.ready(n as u32)?;
        Ok(())
    }

    fn put(
        &mut self,
        packet: &Packet<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, QueueError> {
        if self.is_unwanted(packet.head) {
            return Ok(Put::Unwanted);
        }
        let len = packet.len();
        let mut offload = *packet.offload;
        offload.valid &= self.accepts.csum;
        if let Some(put) = self.lend(packet, &offload, grant_copies)? {
            return Ok(put);
        }
        let pieces = || packet.body.granted_lens();
        let sizes = Sizes::of(packet.head.len() as u32, len, pieces);
        let Some(mut layout) = Layout::of(sizes, &offload, || frame::parse(packet.head)) else {
            return Ok(Put::Refused);
        };
        if self.vif.align {
            layout = layout.aligned(packet.head.len() as u32, packet.body.places());
        }
        if layout.pages() > 1 && !self.vif.features.sg || packet.head.len() > PAGE {
            return Ok(Put::TooBig);
        }
        let slots = layout.slots();
        if !self.has_slots(slots)? {
            return Ok(Put::Full);
        }
        let token = self.token(slots);
        let pieces = packet.body.fragments() + layout.pages() as usize + 1;
        let begun = grant_copies.begin(
            &self.vif.engine,
            packet.body,
            (token, len),
            pieces,
            packet.head.len(),
        );
        if !begun {
            return Ok(Put::Refused);
        }
        self.fill(&layout, packet, grant_copies);
        self.stats.put.add(1);
        Ok(Put::Done)
    }

    fn invalidate(&mut self, token: u32) {
        // Numbers have 32 bits, of which the token has the lower half: enough to find one that is
        // not published.
        let position = self.rx.position();
        let number = position.wrapping_sub(position.wrapping_sub(token) & 0xffff);
        if let Some(response) = self.rx.response_mut(number) {
            slots::spoil(response);
        }
    }

    fn room(&mut self) -> Result<usize, QueueError> {
        if self.rx.ready(self.needs)? < self.needs {
            return Ok(0);
        }
        let ready = self.rx.ready(BackRing::<2>::SIZE).unwrap_or_default();
        Ok((ready / self.needs.max(1)) as usize)
    }

    fn flush(&mut self) -> Result<[Notified; 2], QueueError> {
        let [tx, rx] = self.flush_deferred()?;
        if rx != Notified::Deferred {
            return Ok([tx, rx]);
        }
        self.interrupt()?;
        Ok([tx, Notified::Sent])
    }

    fn arm(&mut self, rx: bool) -> Result<bool, QueueError> {
        // First the channels, so that a signal that comes while the rings are looked at is not
        // lost.
        self.tx_channel.take();
        if let Some(channel) = self.rx_channel.as_ref().filter(|_| rx) {
            channel.take();
        }
        let there = self.tx.arm()? > 0;
        // So that frames come back, if any are lent: half of them at a time.
        let back = self
            .passed_grants
            .as_ref()
            .and_then(PassedGrants::half)
            .map(|half| half.wrapping_sub(self.rx.upcoming()));
        let needs = back.map_or(self.needs, |back| back.min(self.needs)).max(1);
        Ok(rx && self.rx.arm_for(needs)? >= needs || there)
    }

    /// The ring's event is left where it is, in the past; and the channel's signal is not taken, so
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

impl Coalescing for Queue {
    fn flush_deferred(&mut self) -> Result<[Notified; 2], QueueError> {
        if self.mapped_pages.is_some() {
            self.rx_pages = None;
            self.tally();
        }
        let (tx, rx) = (self.tx.publish(), self.rx.publish());
        if tx == Some(true) {
            self.tx_channel.notify();
        }
        // Who looks at both rings after one signal needs no other.
        let told = tx == Some(true) && self.rx_channel.is_none();
        let wanted = if told { Notified::Sent } else { Notified::Deferred };
        let outcome = |wants, wanted| match wants {
            None => Notified::Nothing,
            Some(true) => wanted,
            Some(false) => Notified::Suppressed,
        };
        Ok([outcome(tx, Notified::Sent), outcome(rx, wanted)])
    }

    fn interrupt(&mut self) -> Result<(), QueueError> {
        self.rx_channel.as_ref().unwrap_or(&self.tx_channel).notify();
        Ok(())
    }
}

impl RxProgress for Queue {
    fn position(&self) -> u32 {
        self.rx.position()
    }

    fn has_consumed(&self, position: u32) -> bool {
        self.rx.has_consumed(position)
    }
}

impl RateLimit for Queue {
    fn limited_until(&self) -> Option<Instant> {
        self.rests
    }
}

impl GrantPassing for Queue {
    fn released(&mut self) -> Result<usize, QueueError> {
        let Some(passed_grants) = &mut self.passed_grants else { return Ok(0) };
        Ok(passed_grants.returned(self.rx.posted()?))
    }

    fn revoke(&mut self) -> usize {
        self.passed_grants.as_mut().map_or(0, PassedGrants::recall)
    }
}
