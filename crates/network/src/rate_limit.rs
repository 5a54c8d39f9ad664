//! Ports with limits of sending and receiving, or with a list of addresses.
//!
//! A sender that has used up its rate waits: its frames stay in its ring, where they hold up no
//! other sender. The next frame has a reservation, so queues that share a rate take turns. Frames
//! beyond the rate of a receiver are dropped there, since they would otherwise wait in the rings of
//! their senders, at the senders' expense.

use std::time::Instant;

use ring::GrantCopyBatch;

use crate::count::DropReason;
use crate::pipeline::FramePipeline;
use crate::restricted::Restricted;
use crate::restrictions::Reservation;
use crate::run::Run;
use crate::slot::{Sending, Slot};
use crate::wait::Wait;

impl FramePipeline {
    /// Notes the wait of the queue in slot `src` if its pair limits the rate. Called when nothing
    /// was fetched.
    pub(crate) fn poll_rate_limit(&mut self, src: usize) {
        let now = self.clock.now;
        let Some(slot) = self.slots.get_mut(src).filter(|slot| slot.is_healthy()) else { return };
        if slot.sending.wait.is_none() {
            let until = slot.on.pair.rate_limit().and_then(|limit| limit.limited_until());
            slot.sending.wait = until.filter(|until| *until > now).map(Wait::Until);
        }
    }

    /// Takes room for the fetched frames, as far as there is any, and gives the others back to
    /// their ring. Returns how many are left.
    #[cold]
    pub(crate) fn enforce_rate(&mut self, src: usize, fetched: usize) -> usize {
        let now = self.clock.now;
        let Some(slot) = self.slots.get_mut(src) else { return fetched };
        let Some(restrictions) = &slot.restrictions else { return fetched };
        let (limits, frames) = (&restrictions.transmit, self.burst.frames());
        let fitting = match slot.sending.reserved.take() {
            Some(reserved) => limits.take_reserved(now, reserved, frames),
            None => limits.take(now, frames),
        };
        self.service.taken = fitting;
        if fitting == fetched {
            return fetched;
        }
        if fitting == 0 {
            slot.sending.reserve(limits.reserve(now, &frames[0]));
        }
        self.truncate_burst(fitting);
        let Some(slot) = self.slots.get_mut(src) else { return fitting };
        slot.on.pair.rewind(fetched - fitting);
        slot.sending.limit.estimate = fitting.max(1);
        slot.on.counters.tx_limited.add(1);
        fitting
    }

    /// Frames of the burst from `finished` on have to be fetched again: gives back what was taken
    /// for them.
    #[cold]
    pub(crate) fn give_back_rate(&mut self, src: usize, finished: usize) {
        let taken = std::mem::take(&mut self.service.taken);
        let restrictions = self.slots.get(src).and_then(|slot| slot.restrictions.as_ref());
        let frames = self.burst.frames();
        if let Some(restrictions) = restrictions
            && (finished..=frames.len()).contains(&taken)
        {
            restrictions.transmit.give_back(frames.range(finished..taken));
        }
    }

    /// Drops the frames of the burst that claim addresses which their port may not use.
    #[cold]
    pub(crate) fn verify_sources(&mut self, src: usize) {
        let Some(restrictions) = self.slots.get(src).and_then(|slot| slot.restrictions.as_ref())
        else {
            return;
        };
        if let Some(guard) = &restrictions.guard {
            self.burst.refuse(|head, headers| guard.check(head, headers));
        }
    }
}

impl Sending {
    /// The next frame waits for the room that it has taken.
    fn reserve(&mut self, reserved: Reservation) {
        self.wait = Some(Wait::Until(reserved.ready));
        self.reserved = Some(reserved);
    }
}

impl Slot {
    /// Adopts the port's present restrictions. A wait that was due to a former rate ends.
    pub(crate) fn follow_restrictions(&mut self) {
        self.cancel_reservation();
        self.restrictions = self.on.restrictions.get().map(Restricted::new);
        if matches!(self.sending.wait, Some(Wait::Until(_))) {
            self.sending.wait = None;
        }
    }

    /// Whether frames from the queue are subject to a rate limit.
    #[inline]
    pub(crate) fn is_tx_limited(&self) -> bool {
        self.restrictions.as_ref().is_some_and(|restrictions| !restrictions.transmit.is_empty())
    }

    /// Whether frames for the queue are subject to a rate limit.
    #[inline]
    pub(crate) fn is_rx_limited(&self) -> bool {
        self.restrictions.as_ref().is_some_and(|restrictions| !restrictions.receive.is_empty())
    }

    /// Whether the next frame has a reservation that is not ready; then the sender waits.
    #[cold]
    pub(crate) fn wait_for_rate(&mut self, now: Instant) -> bool {
        let reserved = self.sending.reserved.as_ref();
        let Some(ready) = reserved.map(|reserved| reserved.ready).filter(|at| *at > now) else {
            return false;
        };
        self.sending.wait = Some(Wait::Until(ready));
        true
    }

    /// Gives back the reservation of the next frame.
    pub(crate) fn cancel_reservation(&mut self) {
        if let Some((reserved, old)) = self.sending.reserved.take().zip(self.restrictions.as_ref())
        {
            old.transmit.cancel(&reserved);
        }
    }

    /// Puts frames on the ring as far as the port may receive them, and drops the others.
    #[cold]
    pub(crate) fn receive_limited(
        &mut self,
        run: Run<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Option<usize> {
        // With the restrictions taken out, all frames that are left are received.
        let restrictions = self.restrictions.take()?;
        let (limits, frames) = (&restrictions.receive, run.burst.frames());
        let end = run.i + limits.take(run.now, frames.range(run.i..run.end));
        let full = self.receive(Run { end, ..run }, grant_copies);
        if let Some(full) = full {
            limits.give_back(frames.range(full..end));
        }
        if full.is_none() {
            // If a frame has to wait, the frames behind it are offered again.
            self.on.counters.lose(DropReason::RxRate, (run.end - end) as u64);
        }
        self.restrictions = Some(restrictions);
        full
    }
}
