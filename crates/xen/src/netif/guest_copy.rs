//! The layout in the slots of an Rx ring of frames that their receiver fetches. A private extension
//! of netif.h, in force only where `feature-guest-copy` was offered and `request-guest-copy` was
//! set.
//!
//! In the response of each slot that holds data of such a frame, `offset` is the number of bytes
//! that were copied already, from the start of the page on, and the status is the number of all
//! bytes, as in other frames. The missing bytes are to be copied behind the others, out of one
//! grant of the backend's domain. The first response is followed by one slot of extra info, of type
//! [`extra::FETCH`], for each slot with missing bytes, in their order:
//!
//! ```text
//! struct { uint8_t type, flags; uint16_t offset; uint32_t gref; }
//! ```
//!
//! The bytes begin at `offset` in the grant `gref`, and their number follows from the slot. They
//! may be fetched until a request lies in the frame's last slot again. So the frontend has to keep
//! the ring full: a request in a slot says that the frontend has finished with the slot's frame.

use hypervisor::{GrantRef, Granted, PAGE};

use crate::netif::slots::{Layout, PAGES, RxSlot, Sizes, extra, flag};

/// The content of one page of the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Page {
    size: u16,
    /// Number of bytes that are copied for the receiver.
    there: u16,
    /// Where the others are.
    from: Option<Granted>,
}

/// The assignment of a frame's bytes to pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchPlan {
    pages: [Page; PAGES],
    count: usize,
}

impl FetchPlan {
    /// The plan for a frame whose first `head` bytes are copied, and whose other bytes lie in
    /// granted pieces. `None`: there are too many pieces.
    pub fn of(head: u32, pieces: impl Iterator<Item = (Granted, u16)>) -> Option<FetchPlan> {
        let head = u16::try_from(head).ok().filter(|head| usize::from(*head) <= PAGE)?;
        let mut plan = FetchPlan { pages: [Page::default(); PAGES], count: 1 };
        plan.pages[0] = Page { size: head, there: head, from: None };
        for (mut at, mut left) in pieces {
            while left > 0 {
                let last = plan.pages.get_mut(plan.count - 1)?;
                let room = PAGE as u16 - last.size;
                if last.from.is_some() || room == 0 {
                    *plan.pages.get_mut(plan.count)? = Page::default();
                    plan.count += 1;
                    continue;
                }
                let len = left.min(room);
                (last.from, last.size) = (Some(at), last.size + len);
                (at.offset, left) = (at.offset.saturating_add(len), left - len);
            }
        }
        Some(plan)
    }

    fn pages(&self) -> &[Page] {
        self.pages.get(..self.count).unwrap_or_default()
    }

    /// The place of each piece to fetch.
    pub fn fetched(&self) -> impl Iterator<Item = Granted> {
        self.pages().iter().filter_map(|page| page.from)
    }

    /// The number of bytes in each page.
    pub fn sizes(&self) -> Option<Sizes> {
        Sizes::given(self.pages().iter().map(|page| page.size))
    }
}

/// A frame in its slots: the slot with its first bytes, then extra info, then the other slots.
#[derive(Clone, Debug)]
pub struct Slots<'a> {
    plan: &'a FetchPlan,
    layout: &'a Layout,
    /// Slots with bytes to fetch.
    fetched: u32,
}

impl<'a> Slots<'a> {
    /// The slots of a frame with bytes to fetch, for this layout of the plan's sizes.
    pub fn of(plan: &'a FetchPlan, layout: &'a Layout) -> Slots<'a> {
        Slots { plan, layout, fetched: plan.fetched().count() as u32 }
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.layout.slots() + self.fetched
    }

    /// The response in slot number `n`, whose request was `request`. `pass` returns the reference
    /// under which a grant is passed on, and is called once for each grant.
    pub fn response(
        &self,
        n: u32,
        request: RxSlot,
        pass: impl FnOnce(Granted) -> GrantRef,
    ) -> RxSlot {
        // The slots to be fetched come after the first slot and other extra info.
        let before = self.layout.slots() - self.layout.pages() + 1;
        if let Some(k) = n.checked_sub(before).filter(|k| *k < self.fetched) {
            let more = if k + 1 < self.fetched { extra::MORE } else { 0 };
            let Some(from) = self.plan.fetched().nth(k as usize) else { return [0; 2] };
            let head =
                u32::from(extra::FETCH) | u32::from(more) << 8 | u32::from(from.offset) << 16;
            return [head, pass(from).0];
        }
        let mut response =
            self.layout.response(if n < before { n } else { n - self.fetched }, request);
        match n {
            0 => {
                response[0] |= u32::from(self.plan.pages[0].there) << 16;
                response[1] |= u32::from(flag::RX_EXTRA_INFO);
            }
            // Other extra info, behind which there is more.
            n if n < before => response[0] |= u32::from(extra::MORE) << 8,
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests;
