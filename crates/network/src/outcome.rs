//! The outcome of a frame at a receiver.

use std::time::Instant;

use ring::device::Put;

use crate::count::DropReason;
use crate::passed_grants::PassedGrant;
use crate::run::Run;
use crate::slot::Slot;

/// The outcome of one frame at one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The frame went out as this number of frames; further ones may have been dropped, and are
    /// counted.
    Out(u32),
    /// The receiver has no room at the moment; nothing was taken.
    Full,
    /// The frame cannot be delivered there.
    Refused(DropReason),
}

/// The outcome of putting a whole frame of `len` bytes, from the receiver's answer.
#[inline]
pub(crate) fn taken(slot: &mut Slot, put: Put, len: u32, run: &Run<'_>) -> Outcome {
    match put {
        Put::Done => {
            slot.receiving.passed.took(1, len);
            slot.count_received(1, len, run.now)
        }
        Put::Passed { token } => {
            let (origin, since) = (run.origin, run.now);
            slot.receiving.passed.add(PassedGrant { origin, len, token, since, counts: true });
            slot.count_received(1, len, run.now)
        }
        Put::Full => Outcome::Full,
        Put::TooBig => Outcome::Refused(DropReason::RxTooSmall),
        Put::Refused => Outcome::Refused(DropReason::RxRefused),
        Put::Unwanted => Outcome::Refused(DropReason::Multicast),
    }
}

impl Slot {
    /// The receiver took frames of `bytes` bytes in all.
    #[inline]
    pub(crate) fn count_received(&mut self, frames: u32, bytes: u32, now: Instant) -> Outcome {
        self.receiving.backpressure.took(frames, bytes, now);
        self.on.counters.rx.frames.add(frames.into());
        self.on.counters.rx.bytes.add(bytes.into());
        Outcome::Out(frames)
    }
}
