//! Where frames pass the taps of captures ([`capture`](crate::capture)).
//!
//! A queue whose port is in no capture costs one comparison for each burst that it sends, and one
//! for each run of frames that it receives. A port's capture has what its counters count: frames
//! that were fetched from it, with the reason of those that were dropped before their receiver was
//! known, and frames for it, as they were delivered or dropped there. A frame that waits is
//! captured once, when it goes on. Copies are charged to the queue that sent the frames.

use std::ops::Range;
use std::time::Instant;

use frame::TagEdit;
use ring::GrantCopyBatch;

use crate::action::Action;
use crate::burst::Burst;
use crate::capture::record::{Direction, Note};
use crate::capture::tap::{Passing, Taps};
use crate::count::DropReason;
use crate::pipeline::FramePipeline;
use crate::run::Run;
use crate::sharing::Sharing;
use crate::slot::Slot;

impl FramePipeline {
    /// Captures the `finished` frames of the burst that the queue in slot `src` sent.
    #[inline(always)]
    pub(crate) fn capture_sent(&mut self, src: usize, finished: usize) {
        if self.taps.is_any() {
            self.tap_sent(src, finished);
        }
    }

    #[cold]
    #[inline(never)]
    fn tap_sent(&mut self, src: usize, finished: usize) {
        let Some(slot) = self.slots.get(src).filter(|slot| slot.captures != 0) else { return };
        // The time of fetching is that of this round, so the record precedes those of deliveries.
        let at = self.clock.now;
        for i in 0..finished {
            let frame = &self.burst.frames()[i];
            let dropped = match &frame.action {
                // The frame was captured before it was turned round.
                _ if frame.sharing == Sharing::Answer => continue,
                Action::Drop(reason) => Some(*reason),
                Action::Unclassified => Some(DropReason::NoReceiver),
                Action::Output(_) | Action::Flood(_) | Action::Answer(_) | Action::Mirrored(_) => {
                    None
                }
            };
            let frame = passing(&self.burst, i, Direction::Outbound, at);
            let note = Note { dropped, ..frame.note };
            let frame = Passing { note, ..frame };
            self.service.cost += self.taps.offer(slot.captures, slot.on.port, &frame);
        }
    }

    /// Captures frame `i` of the burst that the queue in slot `src` sent, before it is turned
    /// round.
    #[cold]
    pub(crate) fn capture_request(&mut self, src: usize, i: usize) {
        let Some(slot) = self.slots.get(src).filter(|slot| slot.captures != 0) else { return };
        let frame = passing(&self.burst, i, Direction::Outbound, self.clock.now);
        self.service.cost += self.taps.offer(slot.captures, slot.on.port, &frame);
    }

    /// Captures frames of the burst that the queue in slot `dst` did not get.
    #[cold]
    pub(crate) fn capture_lost(
        &mut self,
        dst: usize,
        frames: Range<usize>,
        tag: TagEdit,
        reason: DropReason,
    ) {
        if let Some(slot) = self.slots.get_mut(dst) {
            frames.for_each(|i| slot.tap_lost(&mut self.taps, &self.burst, i, tag, reason));
        }
    }

    /// Drops frames of the burst from the queue in slot `src`, and counts them there.
    #[cold]
    pub(crate) fn drop_sent(&mut self, src: usize, frames: Range<usize>, reason: DropReason) {
        self.drop_at(src, reason, frames.len());
        for i in frames {
            // For a flood, only one copy is dropped, and for a mirror, only the mirror's copy: the
            // frame itself is not.
            if let Some(frame) = self.burst.frame_mut(i).filter(|frame| frame.sharing.waits()) {
                frame.action = Action::Drop(reason);
            }
        }
    }
}

impl Slot {
    /// [`receive`](Self::receive), captured if the port is.
    #[inline(always)]
    pub(crate) fn receive_tapped(
        &mut self,
        run: Run<'_>,
        grant_copies: &mut GrantCopyBatch,
        taps: &mut Taps,
    ) -> Option<usize> {
        match self.captures {
            0 => self.receive(run, grant_copies),
            _ => self.receive_one_by_one(run, grant_copies, taps),
        }
    }

    /// Receives each frame by itself, so that the change of the counters shows the frame's outcome.
    #[cold]
    #[inline(never)]
    fn receive_one_by_one(
        &mut self,
        run: Run<'_>,
        grant_copies: &mut GrantCopyBatch,
        taps: &mut Taps,
    ) -> Option<usize> {
        let at = Instant::now();
        for i in run.i..run.end {
            let (drops, frames) = (self.on.counters.drops(), self.on.counters.rx.frames.get());
            let full = self.receive(Run { i, end: i + 1, ..run }, grant_copies);
            if full.is_some() {
                return full;
            }
            let delivered = self.on.counters.rx.frames.get().wrapping_sub(frames) as u32;
            let dropped = match delivered {
                0 => self.on.counters.dropped_since(&drops),
                _ => None,
            };
            self.tap_received(taps, run.burst, i, run.tag, at, |note| {
                (note.dropped, note.cut_into) = (dropped, delivered);
            });
        }
        None
    }

    /// Captures frame `i` of `burst`, which the queue did not get.
    #[cold]
    pub(crate) fn tap_lost(
        &mut self,
        taps: &mut Taps,
        burst: &Burst,
        i: usize,
        tag: TagEdit,
        reason: DropReason,
    ) {
        if self.captures != 0 {
            let at = Instant::now();
            self.tap_received(taps, burst, i, tag, at, |note| note.dropped = Some(reason));
        }
    }

    /// Captures frame `i` of `burst` with the tag that it has for this port.
    fn tap_received(
        &mut self,
        taps: &mut Taps,
        burst: &Burst,
        i: usize,
        tag: TagEdit,
        at: Instant,
        outcome: impl FnOnce(&mut Note),
    ) {
        let mut frame = passing(burst, i, Direction::Inbound, at);
        let (mut head, mut headers) = (*burst.head(i), burst.frames()[i].headers);
        let before = head.len();
        if tag.apply(&mut head, &mut headers, &mut frame.note.offload).is_ok() {
            frame.head = head.as_slice();
            frame.note.len = (frame.note.len + head.len() as u32).saturating_sub(before as u32);
        }
        outcome(&mut frame.note);
        self.receiving.added += taps.offer(self.captures, self.on.port, &frame);
    }
}

/// Frame `i` of `burst`, as its sender left it.
fn passing(burst: &Burst, i: usize, direction: Direction, at: Instant) -> Passing<'_> {
    let frame = burst.frame(i);
    let (head, body) = burst.readable(i);
    let note = Note {
        time: 0,
        interface: 0,
        direction,
        len: frame.len,
        dropped: None,
        offload: frame.offload,
        cut_into: 1,
    };
    Passing { head, body, at, note }
}
