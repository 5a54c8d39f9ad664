//! Copies of frames for mirrors ([`switch::Mirrors`]).
//!
//! A frame that has mirrors is delivered first, and waits as any other frame. Once it was
//! delivered, or dropped for want of a receiver, each mirror gets a copy. Copies do not wait: a
//! copy for which there is no room is dropped as `mirror_full`. Copies are charged to the queue
//! that sent the frame, and counted there, as those of floods are; a mirror without a peer gets
//! none.
//!
//! The switch marks such frames with [`Action::Mirrored`], so a frame without mirrors costs nothing
//! extra.

use std::sync::Arc;

use switch::{Decision, Target};

use crate::action::{Action, Mirrored};
use crate::count::DropReason;
use crate::pipeline::{Blocked, FramePipeline};
use crate::route::Route;
use crate::sharing::Sharing;

impl FramePipeline {
    /// Carries frame `i`, and copies it to its mirrors.
    #[cold]
    #[inline(never)]
    pub(crate) fn carry_mirrored(
        &mut self,
        src: usize,
        i: usize,
        Mirrored { decision, mirrors }: &Mirrored,
    ) -> Option<Blocked> {
        self.share(i, Sharing::Mirrored);
        let blocked = match decision {
            Decision::To(target) => {
                self.change_destination(src, target.port);
                self.output(src, i..i + 1, *target)
            }
            Decision::Flood(targets) => self.flood(src, i, Arc::clone(targets)),
            Decision::Drop(reason) => self.discard_mirrored(src, i, (*reason).into()),
        };
        if blocked.is_none() {
            self.share(i, Sharing::Mirror);
            self.copy_to_mirrors(src, i, mirrors);
        }
        blocked
    }

    fn discard_mirrored(&mut self, src: usize, i: usize, reason: DropReason) -> Option<Blocked> {
        if let Some(frame) = self.burst.frame_mut(i) {
            // The taps of captures must see this action.
            frame.action = Action::Drop(reason);
        }
        self.discard(src, reason)
    }

    fn copy_to_mirrors(&mut self, src: usize, i: usize, mirrors: &[Target]) {
        let mut copies = 0;
        for &mirror in mirrors {
            if !self.routes.to(mirror.port).is_some_and(Route::is_reachable) {
                continue;
            }
            copies += 1;
            if self.output(src, i..i + 1, mirror).is_some() {
                self.drop_at(src, DropReason::MirrorFull, 1);
            }
        }
        self.charge_copies(src, i, copies);
    }

    fn share(&mut self, i: usize, sharing: Sharing) {
        if let Some(frame) = self.burst.frame_mut(i) {
            frame.sharing = sharing;
        }
    }
}
