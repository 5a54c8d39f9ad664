//! Ports, as the frame pipeline sees them: queue pairs.
//!
//! A port of any kind (a guest's virtio-net device, a Xen vif, a TAP) is a set of [`QueuePair`]s.
//! One worker owns a pair at a time and calls it from its own thread only, so a pair needs no lock.
//! All directions are named from the guest's side: *Tx* is what the peer transmits and the worker
//! fetches, *Rx* is what the worker delivers and the peer receives.
//!
//! [`QueuePair`] has what every port needs. Each optional capability is a trait of its own, for
//! which the pair has an accessor: [`Coalescing`], [`RxProgress`], [`RateLimit`], [`GrantPassing`],
//! [`DeviceQueue`]. None of the accessors is called for each frame.
//!
//! A pair comes into service in two calls of the [fabric](crate::fabric): `add_port`, then
//! `attach`. The smallest pairs are those of TAPs (`hostlink::tap`), and the guests made of lists
//! that tests have (`network/tests/peer`). `docs/newcomers.md` lists the other parts of a kind of
//! port.
//!
//! Everything behind these traits can be written by the peer. An implementation checks each index
//! and length after it was copied, bounds each loop over what the peer published, and answers a
//! breach of the protocol with a [`QueueError`].

use std::any::Any;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use frame::Accepts;
use ring::GrantCopyBatch;
use ring::copies::Status;
use ring::device::Put;
use ring::violation::Violation;
pub use runtime::coalescing::Notified;
use thiserror::Error;

use crate::burst::{AHEAD, Burst};
use crate::packet::Packet;

/// Why a queue pair cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueueError {
    /// The peer broke the ring protocol.
    #[error(transparent)]
    Protocol(#[from] Violation),
    /// The peer broke the rules of its kind of device, in the words of that device.
    #[error("{0}")]
    Device(&'static str),
    /// A page of the peer is not granted, not any more, or not for what it is used for.
    #[error("a page is not granted for what it is used for ({0})")]
    Grant(Status),
    /// The device behind the port does not exist any more.
    #[error("the device is gone")]
    Gone,
}

impl QueueError {
    /// The violation of the ring protocol, if the error is one.
    pub fn violation(&self) -> Option<Violation> {
        if let QueueError::Protocol(violation) = self { Some(*violation) } else { None }
    }
}

/// One Tx ring and one Rx ring of a port, as a worker sees them.
///
/// A method that returns a [`QueueError`] says that the peer broke the protocol, or went away: the
/// worker never calls the pair again, and the port is stopped with that error.
pub trait QueuePair: Send {
    /// Takes the frames that the peer has published, oldest first, up to the room in `burst`.
    ///
    /// Frames stay the peer's until [`complete`](Self::complete); those given back by
    /// [`rewind`](Self::rewind) are fetched again, and are checked again. If the burst is left as
    /// it is, there are no frames.
    fn fetch(&mut self, burst: &mut Burst) -> Result<(), QueueError>;

    /// Completes the oldest `n` fetched frames. The completion is published at the next
    /// [`flush`](Self::flush).
    fn complete(&mut self, n: usize);

    /// Returns the newest `n` fetched frames to the ring, as if they were never fetched.
    fn rewind(&mut self, n: usize);

    /// Whether nothing can be fetched before fetched frames are [complete](Self::complete),
    /// whatever the peer has published: the pair has no place left for more.
    fn is_full(&self) -> bool {
        false
    }

    /// The offloads that this receiver accepts. Others are done in software beforehand. With
    /// [`Accepts::ALL`], all frames come as they were sent.
    fn accepts(&self) -> Accepts;

    /// Announces that about `n` frames follow, so that buffers can be looked up and their cache
    /// lines prefetched.
    fn prepare(&mut self, n: usize) -> Result<(), QueueError>;

    /// Copies one frame into the peer's next buffers, or adds the copy to `grant_copies`, which is
    /// flushed before the next [`flush`](Self::flush). A packet may only be passed if it says so.
    /// On [`Put::Full`] and [`Put::TooBig`] nothing was taken.
    ///
    /// The pipeline counts the outcome at this pair: [`Put::Done`] and [`Put::Passed`] as received,
    /// whatever the peer does with the frame then; after [`Put::Full`] the frame waits with its
    /// sender, and may drop as `rx_full`; [`Put::TooBig`] drops it as `rx_too_small`,
    /// [`Put::Refused`] as `rx_refused`, [`Put::Unwanted`] as `multicast`.
    fn put(
        &mut self,
        packet: &Packet<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, QueueError>;

    /// [Puts](Self::put) the frames `run` of a burst as they are, in order, until one is not
    /// [`Put::Done`]. Returns how many were done, and the result of the next frame, or `Put::Done`
    /// when all were. One call for a run of frames allows lookups that they share to be done once.
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
            let packet = Packet { may_pass: packet.may_pass && may_pass, ..packet };
            match self.put(&packet, grant_copies) {
                Ok(Put::Done) => {}
                other => return (i - run.start, other),
            }
        }
        (run.len(), Ok(Put::Done))
    }

    /// The number of `faults`, which happened while frames were put into the peer's memory, that
    /// first use of memory does not explain.
    fn excess_faults(&self, faults: u64) -> u64 {
        let _ = faults;
        0
    }

    /// Charges the peer for `faults` page faults that happened in memory of unknown peers, if its
    /// own memory has grown meanwhile.
    fn settle_faults(&self, faults: u64) {
        let _ = faults;
    }

    /// How many pieces of memory frames were put into since the last time, beyond one a frame.
    fn take_extra_pieces(&mut self) -> u32 {
        0
    }

    /// Invalidates the frame known by `token`, for which a copy of `grant_copies` failed. The
    /// frame's place in the ring is taken, but the peer must not take it for a frame. A pair that
    /// adds nothing to the batch has nothing to invalidate.
    fn invalidate(&mut self, token: u32) {
        let _ = token;
    }

    /// After [`Put::Full`], about how many frames like that one fit into the buffers posted since.
    /// [`usize::MAX`]: there may be room of unknown size.
    fn room(&mut self) -> Result<usize, QueueError>;

    /// Makes everything completed and put since the last flush visible to the peer, at once for
    /// each ring, and interrupts the peer where it expects that. First the Tx ring's outcome, then
    /// the Rx ring's.
    fn flush(&mut self) -> Result<[Notified; 2], QueueError>;

    /// Asks the peer to signal when it publishes something (to Tx; and to Rx too if `rx`), then
    /// looks once more. True when something is there already; otherwise a descriptor of
    /// [`wakers`](Self::wakers) will become ready, if the pair has one for that ring. A pair that
    /// [is full](Self::is_full) must not be armed, since it could not look. A pair whose peer
    /// publishes nothing returns false, and has no wakers.
    fn arm(&mut self, rx: bool) -> Result<bool, QueueError>;

    /// Tells the peer that signals are not needed while the worker polls.
    fn disarm(&mut self);

    /// Descriptors that the peer signals through: Tx, then Rx. They are watched edge-triggered and
    /// never read here, so that a peer that holds the other end cannot make a worker block on them.
    /// `None`: there is no signal for this ring, and an armed pair is not polled for it.
    fn wakers(&self) -> [Option<BorrowedFd<'_>>; 2];

    /// Whether the descriptors of [`wakers`](Self::wakers) signal every frame, also while the pair
    /// is not armed. The worker then does not watch them while the pair is busy.
    fn is_unmasked(&self) -> bool {
        false
    }

    /// Whether the peer publishes frames without ever signalling: the Tx ring is polled from time
    /// to time, and the pair is never armed for it. False also for a peer that publishes nothing.
    /// The answer stays the same while the pair is attached.
    fn is_unsignalled(&self) -> bool {
        false
    }

    /// The pair as what it is, when its port takes it from the pipeline.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;

    /// How Rx interrupts are deferred; `None`: the pair sends none.
    fn coalescing(&mut self) -> Option<&mut dyn Coalescing> {
        None
    }

    /// How far the peer has consumed the Rx ring; `None`: frames that were put lie in no ring.
    fn rx_progress(&self) -> Option<&dyn RxProgress> {
        None
    }

    /// The limit of the peer's rate; `None`: it has none.
    fn rate_limit(&self) -> Option<&dyn RateLimit> {
        None
    }

    /// Frames that stay with their senders until the peer has copied them; `None`: the pair passes
    /// none.
    fn grant_passing(&mut self) -> Option<&mut dyn GrantPassing> {
        None
    }

    /// Whether there is a [`device_queue`](Self::device_queue).
    fn has_device_queue(&self) -> bool {
        false
    }

    /// The device that fills the Rx ring by itself; `None`: only the worker fills it.
    fn device_queue(&mut self) -> Option<&mut dyn DeviceQueue> {
        None
    }
}

/// A pair whose Rx interrupts can be sent later than the entries that they announce.
pub trait Coalescing {
    /// [`flush`](QueuePair::flush) without an interrupt for the Rx ring: where the peer expects
    /// one, the result is [`Notified::Deferred`].
    fn flush_deferred(&mut self) -> Result<[Notified; 2], QueueError>;

    /// Sends an interrupt for the Rx ring that was deferred. The peer may have seen the entries
    /// meanwhile.
    fn interrupt(&mut self) -> Result<(), QueueError>;

    /// [`flush`](QueuePair::flush) by the methods of this trait: publishes, and interrupts at once.
    fn flush_now(&mut self) -> Result<[Notified; 2], QueueError> {
        let [tx, rx] = self.flush_deferred()?;
        if rx != Notified::Deferred {
            return Ok([tx, rx]);
        }
        self.interrupt()?;
        Ok([tx, Notified::Sent])
    }
}

/// A pair that can tell how far its peer has consumed the Rx ring.
pub trait RxProgress {
    /// The position up to which frames were put.
    fn position(&self) -> u32;

    /// Whether the peer has certainly consumed all frames that were put before `position`. False,
    /// perhaps for ever, if that is unknown.
    fn has_consumed(&self, position: u32) -> bool;
}

/// A pair whose peer's sending is limited.
pub trait RateLimit {
    /// Until when nothing is fetched, although the peer may have published frames. `None`: there
    /// is credit left.
    fn limited_until(&self) -> Option<Instant>;
}

/// A pair that passes on grants: the bytes of a frame ([`Put::Passed`]) stay with their sender
/// until the peer has copied them itself.
pub trait GrantPassing {
    /// How many of the passed frames, oldest first, the peer has fetched since the last time:
    /// nothing of them is in use any more.
    fn released(&mut self) -> Result<usize, QueueError>;

    /// Takes back all passed frames, whatever the peer does. Returns how many frames, oldest first,
    /// are no longer in use. To be called until none is in use, and also when the peer broke the
    /// protocol.
    fn revoke(&mut self) -> usize;
}

/// A pair whose Rx ring is filled by a device. The device needs the peer's buffers ahead of any
/// frame, so a signal for the Rx ring is a reason to fetch, as is one for the Tx ring.
pub trait DeviceQueue {
    /// The frames that the device has put since the last time.
    fn take_received(&mut self) -> DeviceFrames;
}

/// Frames that a device put on an Rx ring by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceFrames {
    /// How many.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}
