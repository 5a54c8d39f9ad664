//! What a port is to the datapath: queue pairs.
//!
//! A port of any kind (a guest's virtio-net device, a TAP) is a set of [`QueuePair`]s. One worker
//! owns a pair at a time and calls it from its own thread only, so a pair needs no lock. All
//! directions are named from the guest's side: *Tx* is what the peer transmits and we fetch, *Rx*
//! is what we deliver and the peer receives.

use std::any::Any;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use frame::Accepts;
use ring::GrantCopyBatch;
use ring::copies::Status;
use ring::device::Put;
use ring::violation::Violation;
use thiserror::Error;

use crate::burst::{AHEAD, Burst};
use crate::packet::Packet;

/// Why a queue pair can't go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueueError {
    /// The peer broke the ring protocol.
    #[error(transparent)]
    Protocol(#[from] Violation),
    /// The peer broke the rules of its kind of device, in the words of that device.
    #[error("{0}")]
    Device(&'static str),
    /// A page of the peer's is not granted, not any more, or not for what it is used for.
    #[error("a page is not granted for what it is used for ({0})")]
    Grant(Status),
    /// The device behind the port is not there any more.
    #[error("the device is gone")]
    Gone,
}

/// What became of the peer's wish to be told about new entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notified {
    /// There was nothing new to tell.
    Nothing,
    /// Entries were published, and the peer was interrupted.
    Sent,
    /// Entries were published, and the peer had asked not to be interrupted.
    Suppressed,
    /// Entries were published, and the peer wants an interrupt, which was not sent.
    Deferred,
}

/// One Tx ring and one Rx ring of a port, as a worker sees them.
///
/// A method that returns a [`QueueError`] says that the peer broke the protocol, or went away: the
/// worker never calls the pair again, and the port is stopped under that name.
pub trait QueuePair: Send {
    /// Takes the frames that the peer has published, up to the room in `burst`, oldest first.
    ///
    /// Frames stay the peer's until [`complete`](Self::complete); those given back by
    /// [`rewind`](Self::rewind) are fetched again, and are checked again.
    fn fetch(&mut self, burst: &mut Burst) -> Result<(), QueueError>;

    /// The oldest `n` fetched frames are done with; the peer learns it at the next
    /// [`flush`](Self::flush).
    fn complete(&mut self, n: usize);

    /// Whether nothing can be fetched before frames that were are [complete](Self::complete),
    /// whatever the peer has published: the pair has no place left for more.
    fn is_full(&self) -> bool {
        false
    }

    /// The newest `n` fetched frames go back to where they were, as if never fetched.
    fn rewind(&mut self, n: usize);

    /// Until when the peer has nothing more to say, although it may have published more: it has
    /// used up its rate.
    fn rate_limited_until(&self) -> Option<Instant> {
        None
    }

    /// What this receiver takes without our doing the work first.
    fn accepts(&self) -> Accepts;

    /// Says that about `n` frames follow, so that buffers can be looked up and their cache lines
    /// asked for.
    fn prepare(&mut self, n: usize) -> Result<(), QueueError>;

    /// Copies one frame into the peer's next buffers, or puts that off to `grant_copies`, which is settled
    /// before the next [`flush`](Self::flush). A packet may only be lent if it says so. On
    /// [`Put::Full`] and [`Put::TooBig`] nothing was taken.
    fn put(
        &mut self,
        packet: &Packet<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, QueueError>;

    /// [`put`](Self::put) of frames `run` of a burst, as they are, in order, until one is not
    /// [`Put::Done`]. How many were, and what became of the next one; `Put::Done` when all
    /// were. One call for a run of frames, so that what they have in common is looked up once.
    fn put_run(
        &mut self,
        burst: &Burst,
        run: Range<usize>,
        may_pass: bool,
        grant_copies: &mut GrantCopyBatch,
    ) -> (usize, Result<Put, QueueError>) {
        for i in run.clone() {
            burst.prefetch(i + AHEAD);
            let packet = burst.packet(i);
            match self
                .put(&Packet { may_pass: packet.may_pass && may_pass, ..packet }, grant_copies)
            {
                Ok(Put::Done) => {}
                other => return (i - run.start, other),
            }
        }
        (run.len(), Ok(Put::Done))
    }

    /// How many of the frames that were lent ([`Put::Passed`]), oldest first, the peer has fetched
    /// since the last time: nothing of them is in use any more.
    fn released(&mut self) -> Result<usize, QueueError> {
        Ok(0)
    }

    /// Takes back all that is lent, whatever the peer does; how many of them, oldest first, are not
    /// in use any more. To be called until all are, and also when the peer broke the protocol.
    fn revoke(&mut self) -> usize {
        0
    }

    /// A frame that was put off could not be copied: the one that `grant_copies` knows by `token`. Its
    /// place is taken, but the peer must not take it for a frame. A pair that puts nothing off
    /// has nothing to spoil.
    fn spoil(&mut self, token: u32) {
        let _ = token;
    }

    /// After [`Put::Full`]: whether the peer has posted anything since. One that can't tell says
    /// yes.
    fn has_room(&mut self) -> Result<bool, QueueError>;

    /// After [`has_room`](Self::has_room) said yes: for about how many frames such as the one that
    /// found none. One that can't tell says any number.
    fn room(&mut self) -> usize {
        usize::MAX
    }

    /// Where the Rx ring stands, for [`has_taken`](Self::has_taken) to be asked later.
    fn mark(&self) -> u32 {
        0
    }

    /// Whether the peer has certainly taken all frames that were put before [`mark`](Self::mark).
    /// True at once for one that leaves nothing lying; false, perhaps for ever, for one that
    /// can't tell.
    fn has_taken(&self, mark: u32) -> bool {
        let _ = mark;
        true
    }

    /// Makes everything completed and put since the last flush visible to the peer, at once for
    /// each ring, and interrupts the peer where it asked for that. First the Tx ring's outcome,
    /// then the Rx ring's.
    fn flush(&mut self) -> Result<[Notified; 2], QueueError>;

    /// As [`flush`](Self::flush), but an interrupt for the Rx ring is not sent: [`Notified::Deferred`].
    /// A pair that has none to send has none to hold.
    fn flush_quietly(&mut self) -> Result<[Notified; 2], QueueError> {
        self.flush()
    }

    /// Sends an interrupt for the Rx ring that was not sent before. The peer may have seen
    /// meanwhile what it is about.
    fn interrupt(&mut self) -> Result<(), QueueError> {
        Ok(())
    }

    /// Asks the peer to signal when it publishes something (to Tx; and to Rx too if `rx`), then
    /// looks once more. True when something is there already; otherwise a descriptor of
    /// [`wakers`](Self::wakers) will become ready. One that [is full](Self::is_full) is not
    /// asked: it could not look.
    fn arm(&mut self, rx: bool) -> Result<bool, QueueError>;

    /// Tells the peer that signals are not needed while we poll.
    fn disarm(&mut self);

    /// Whether a signal of the Rx ring is a reason to fetch, as one of the Tx ring is: for a pair
    /// whose Rx ring a device fills, which needs the peer's buffers ahead of any frame.
    fn fetches_for_room(&self) -> bool {
        false
    }

    /// Descriptors that the peer signals through: Tx, then Rx. They are watched edge-triggered and
    /// never read here, so that a peer that holds the other end cannot make a worker block on
    /// them.
    fn wakers(&self) -> [Option<BorrowedFd<'_>>; 2];

    /// Gives the pair back as what it is, when its port takes it from the datapath.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}
