//! The Tx ring: packets become frames of a burst, and get responses in their order.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hypervisor::{GrantRef, Granted};
use network::count::DropReason;
use network::port::QueueError;
use ring::{Chain, Gather, Pages, Violation};

use super::{InFlight, Queue};
use crate::netif::slots::{self, Meta, Piece, What};

/// References below are reserved (`GNTTAB_NR_RESERVED_ENTRIES`): for the rings of the console and
/// the store.
const RESERVED_REFERENCES: u32 = 8;

/// Interval between attempts to serve a vif whose sending is paused.
const PAUSE: Duration = Duration::from_micros(200);

impl Queue {
    /// Publishes responses that an earlier daemon left: it may have been stopped after it wrote
    /// responses and before it published them. They lie in the oldest slots, in the place of
    /// requests, and differ from requests: responses to packets have a mark, responses to buffers
    /// name no granted page. Buffers are returned as empty.
    pub(super) fn publish_left_over(&mut self) -> Result<(), Violation> {
        loop {
            let ready = self.tx.ready(1)?;
            let read = |n| self.tx.request(n);
            match slots::next_packet(
                ready,
                read,
                &mut self.fetched.pieces,
                &mut self.fetched.answers,
            ) {
                Ok(packet) if ready > 0 && slots::is_answered(read(0)) => {
                    self.tx.take(packet.slots)
                }
                // A violation is found again when this packet is fetched.
                _ => break,
            }
            self.fetched.answers.iter().for_each(|answer| self.tx.respond(*answer));
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

    /// Whether a page is granted under that reference.
    pub(super) fn names_page(&self, reference: u32) -> bool {
        let at = Granted { domain: self.vif.domain, reference: GrantRef(reference), offset: 0 };
        reference >= RESERVED_REFERENCES
            && ring::granted_copy::read(&*self.vif.engine, at, 1).is_some()
    }

    /// Takes up to `room` frames out of the ring, and the requests between them that are no frames.
    #[inline]
    pub(super) fn take(
        &mut self,
        gather: &mut Gather,
        chains: &mut Vec<Chain>,
        room: usize,
    ) -> Result<(), QueueError> {
        self.fetched.metas.clear();
        self.paused_until = None;
        if self.vif.features.extensions.ranges {
            gather.allow_passing();
        }
        if self.vif.paused.load(Ordering::Relaxed) {
            self.paused_until = Some(Instant::now() + PAUSE);
            return Ok(());
        }
        let pages = self.mapped();
        while chains.len() < room {
            let ready = self.tx.ready(1)?;
            if ready == 0 {
                break;
            }
            let tx = &self.tx;
            let packet = match slots::next_packet(
                ready,
                |n| tx.request(n),
                &mut self.fetched.pieces,
                &mut self.fetched.answers,
            ) {
                Ok(packet) => packet,
                // Valid packets first: the next fetch begins with the violation.
                Err(_) if !chains.is_empty() => break,
                Err(fault) => return Err(QueueError::Device(fault.name())),
            };
            let frame = self.frame_of(packet.what);
            if let Some(meta) = frame {
                let Some(chain) = self.gather(gather, pages.as_ref(), meta.is_ok()) else { break };
                chains.push(chain);
                self.fetched.metas.push(meta);
            }
            for (n, answer) in (0..).zip(&self.fetched.answers) {
                self.tx.note(n, *answer);
            }
            self.tx.take(packet.slots);
            self.in_flight.push_back(InFlight { slots: packet.slots, frame: frame.is_some() });
        }
        Ok(())
    }

    /// The offloads of a frame, or the reason to drop it. `None` for a request that is no frame,
    /// and that has been executed.
    #[inline]
    pub(super) fn frame_of(&mut self, what: What) -> Option<Result<Meta, DropReason>> {
        match what {
            What::Frame(meta) => Some(Ok(meta)),
            What::TooLong => Some(Err(DropReason::TooManySlots)),
            What::Overflown => Some(Err(DropReason::Oversized)),
            What::Group { join, group } => {
                if !self.vif.groups.set(group, join) {
                    slots::refuse(&mut self.fetched.answers);
                }
                None
            }
        }
    }

    /// A scatter list of the packet that is being read; an empty one for a packet to be dropped.
    /// `None` when there is no room for it.
    #[inline]
    pub(super) fn gather(
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
        let pieces = if wanted { self.fetched.pieces.as_slice() } else { &[] };
        let (engine, pieces) = (&self.vif.engine, pieces.iter().map(granted));
        match pages {
            None => gather.push_granted(engine, pieces),
            Some(pages) => gather.push_mapped(engine, pages, &mut self.mapping.seen[0], pieces),
        }
    }

    /// The pages that stay mapped, for a burst.
    #[inline]
    pub(super) fn mapped(&self) -> Option<Arc<Pages>> {
        self.mapping.pages.as_ref().and_then(|mapped_pages| mapped_pages.take())
    }

    /// Counts the look-ups of finished bursts.
    #[inline]
    pub(super) fn tally(&mut self) {
        for seen in &mut self.mapping.seen {
            self.stats.hits.add(std::mem::take(&mut seen.hits));
            self.stats.misses.add(std::mem::take(&mut seen.misses));
        }
    }

    /// Responds to the oldest packets, as long as they are no frames.
    #[inline]
    pub(super) fn pass_over(&mut self) {
        while self.in_flight.front().is_some_and(|packet| !packet.frame) {
            self.respond();
        }
    }

    /// Responds to the oldest packet.
    #[inline]
    pub(super) fn respond(&mut self) {
        if let Some(InFlight { slots, .. }) = self.in_flight.pop_front() {
            self.tx.give(slots);
        }
    }
}
