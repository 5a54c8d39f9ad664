//! The Rx ring: frames become responses to the buffers that the frontend has posted.

use frame::{Mac, Offload};
use hypervisor::{DomId, GrantRef, Granted, PAGE};
use network::packet::Packet;
use network::port::QueueError;
use ring::grant_copy_batch::Target;
use ring::pages::LookupHint;
use ring::xen::BackRing;
use ring::{GrantCopyBatch, Pages, Put};

use super::Queue;
use crate::netif::guest_copy::{FetchPlan, Slots};
use crate::netif::slots::{self, Layout, PAGES, Sizes};

/// Frames with fewer bytes behind their head are copied, because passing a grant costs more.
const MIN_PASSED_LEN: u32 = 256;

impl Queue {
    /// Responds to the next requests with a frame, and queues its copies.
    #[inline]
    pub(super) fn put_frame(
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
        if let Some(put) = self.pass(packet, &offload, grant_copies)? {
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
            token,
            len,
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

    /// Whether the frame is for a multicast group that the frontend does not receive.
    #[inline]
    pub(super) fn is_unwanted(&mut self, head: &[u8]) -> bool {
        match head.first_chunk() {
            Some(dst) if dst[0] & 1 != 0 => !self.vif.groups.receives(&mut self.view, Mac(*dst)),
            _ => false,
        }
    }

    /// Whether `slots` requests are posted; if not, counts the frame, and notes the number.
    #[inline]
    pub(super) fn has_slots(&mut self, slots: u32) -> Result<bool, QueueError> {
        if self.rx.ready(slots)? >= slots {
            return Ok(true);
        }
        self.slots_needed = slots;
        self.stats.full.add(1);
        Ok(false)
    }

    /// The token of a frame that takes the next `slots` slots.
    #[inline]
    pub(super) fn token(&self, slots: u32) -> u32 {
        self.rx.position() & 0xffff | slots << 16
    }

    /// Passes a frame, if possible: its head is copied, and grants of the other bytes are passed to
    /// the frontend. `None` when the frame is to be copied.
    #[inline]
    pub(super) fn pass(
        &mut self,
        packet: &Packet<'_>,
        offload: &Offload,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Option<Put>, QueueError> {
        let Some(passed_grants) = &mut self.passed_grants else { return Ok(None) };
        if passed_grants.has_retired() {
            passed_grants.free_retired(self.rx.posted()?);
        }
        if !packet.may_pass || packet.body.len() < MIN_PASSED_LEN {
            return Ok(None);
        }
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
            token,
            packet.len(),
            1,
            packet.head.len(),
        ) {
            return Ok(None);
        }
        self.write_passed(&slots, packet.head, grant_copies);
        self.stats.put.add(1);
        Ok(Some(Put::Passed { token }))
    }

    /// Responds to the next requests with a passed frame, and queues the copy of its head.
    pub(super) fn write_passed(
        &mut self,
        slots: &Slots<'_>,
        head: &[u8],
        grant_copies: &mut GrantCopyBatch,
    ) {
        let (rx, domain, count) = (&mut self.rx, self.vif.domain, slots.count());
        let Some(passed_grants) = &mut self.passed_grants else { return };
        let reference = GrantRef(slots::rx_reference(rx.request(0)));
        let (pages, [_, seen]) = (self.mapping.rx.as_deref(), &mut self.mapping.seen);
        let page = pages.and_then(|pages| pages.find(reference, true, seen));
        let at = Granted { domain, reference, offset: 0 };
        grant_copies.bytes(head, Target { at, len: head.len().min(PAGE) as u16, page });
        for n in 0..count {
            rx.note(n, slots.response(n, rx.request(n), |from| passed_grants.pass(from)));
        }
        rx.take(count);
        rx.give(count);
        passed_grants.close(rx.position());
    }

    /// Queues the copies of a frame to the pages that the next requests name, and responds to these
    /// requests.
    #[inline]
    pub(super) fn fill(
        &mut self,
        layout: &Layout,
        packet: &Packet<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) {
        let (rx, domain) = (&mut self.rx, self.vif.domain);
        if let Some((n, extra)) = layout.extra() {
            rx.note(n, extra);
        }
        let (mapped, [_, seen]) = (self.mapping.rx.as_deref(), &mut self.mapping.seen);
        let mut responder = Responder { rx, layout, domain, mapped, seen };
        let room = grant_copies.bytes(packet.head, responder.page(0));
        if layout.pages() == 1 {
            grant_copies.body(packet.body, room, &[]);
        } else {
            let mut targets = [Target::NONE; PAGES];
            grant_copies.body(packet.body, room, responder.other_pages(&mut targets));
        }
        self.rx.take(layout.slots());
        self.rx.give(layout.slots());
    }
}

/// Responds to requests with the pages of a frame.
struct Responder<'q, 'a> {
    rx: &'q mut BackRing<2>,
    layout: &'q Layout,
    domain: DomId,
    /// The frontend's pages that stay mapped, and the last one that was found.
    mapped: Option<&'a Pages>,
    seen: &'q mut LookupHint,
}

impl<'a> Responder<'_, 'a> {
    /// Responds to the request for page number `page`. Returns where the bytes of the page go.
    #[inline]
    fn page(&mut self, page: u32) -> Target<'a> {
        let n = self.layout.slot_of(page);
        let request = self.rx.request(n);
        let (response, len) = self.layout.page(page, request);
        self.rx.note(n, response);
        let reference = GrantRef(slots::rx_reference(request));
        let at = Granted { domain: self.domain, reference, offset: slots::rx_offset(response) };
        let page = self.mapped.and_then(|pages| pages.find(reference, true, self.seen));
        Target { at, len, page }
    }

    /// Responds to the requests for all pages but the first. Returns where their bytes go.
    fn other_pages<'t>(&mut self, targets: &'t mut [Target<'a>; PAGES]) -> &'t [Target<'a>] {
        let pages = 1..self.layout.pages();
        let count = pages.len();
        for (target, page) in targets.iter_mut().zip(pages) {
            *target = self.page(page);
        }
        targets.get(..count).unwrap_or_default()
    }
}
