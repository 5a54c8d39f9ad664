//! One ring of a queue pair: its device side, and how both ends notify each other.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use frame::VNET_LEN;
use network::burst::{AHEAD, Burst};
use network::packet::Packet;
use network::port::Notified;
use ring::gather::Body;
use ring::{DeviceRing, GrantCopyBatch, Put, Violation};

use crate::transport::device::VringControl;

/// A ring and its control.
pub(super) struct NetVring<R> {
    pub(super) ring: R,
    pub(super) control: VringControl,
    /// Chains completed or frames put since the last publication.
    pub(super) unpublished: bool,
}

impl<R: DeviceRing> NetVring<R> {
    /// Publishes, and interrupts the driver where it wants that.
    pub(super) fn publish(&mut self) -> Result<Notified, Violation> {
        match self.publish_quietly() {
            Notified::Deferred => self.interrupt().map(|()| Notified::Sent),
            told => Ok(told),
        }
    }

    /// Publishes, but defers the interrupt that the driver wants.
    pub(super) fn publish_quietly(&mut self) -> Notified {
        if !std::mem::take(&mut self.unpublished) {
            return Notified::Nothing;
        }
        let wanted = self.ring.publish();
        if wanted && self.control.call.is_some() {
            Notified::Deferred
        } else {
            Notified::Suppressed
        }
    }

    /// Puts frames of `run`, one buffer each, up to the first that is not the usual case (see
    /// [`DeviceRing::put_alone`]); returns its number, or the end of the run.
    ///
    /// Out of line, so that the unusual cases take no registers from this loop.
    #[inline(never)]
    pub(super) fn put_each_alone(
        &mut self,
        format: RxFormat,
        burst: &Burst,
        run: Range<usize>,
    ) -> usize {
        if format.vnet_len != VNET_LEN || self.ring.is_logged() {
            return run.start;
        }
        let has_bodies = burst.has_bodies();
        for i in run.clone() {
            if has_bodies && let Some(len) = burst.prefetch(i + AHEAD) {
                self.ring.prefetch(AHEAD, VNET_LEN + len);
            }
            let done = match burst.plain(i) {
                Some(head) => self.ring.put_alone([0; VNET_LEN], head, Body::empty()),
                None => self.put_alone(format, burst, i),
            };
            if !done {
                return i;
            }
        }
        run.end
    }

    /// Puts frame `i`, which has a body or something left to be done, if it goes into one buffer.
    #[inline(never)]
    fn put_alone(&mut self, format: RxFormat, burst: &Burst, i: usize) -> bool {
        let packet = burst.packet(i);
        let mut offload = *packet.offload;
        offload.valid &= format.csum;
        let net = frame::vnet::encode(&offload, packet.headers_len);
        self.ring.put_alone(net, packet.head, packet.body)
    }

    /// Writes one frame into the driver's buffers.
    pub(super) fn put(
        &mut self,
        format: RxFormat,
        packet: &Packet<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, Violation> {
        let mut offload = *packet.offload;
        offload.valid &= format.csum;
        let mut net = frame::vnet::encode(&offload, packet.headers_len);
        let net = net.get_mut(..format.vnet_len).unwrap_or_default();
        self.ring.put(net, packet.head, packet.body, format.mergeable, grant_copies)
    }

    pub(super) fn interrupt(&self) -> Result<(), Violation> {
        self.control.call.as_ref().map_or(Ok(()), |call| call.signal())
    }

    /// Asks for a kick. A driver that gave no descriptor for it has its ring polled.
    pub(super) fn arm(&mut self) -> Result<bool, Violation> {
        self.ring.arm()
    }

    pub(super) fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.control.kick.as_ref().map(|kick| kick.as_fd())
    }
}

/// The format in which the guest receives frames.
#[derive(Clone, Copy)]
pub(super) struct RxFormat {
    /// Bytes of the offload header.
    pub(super) vnet_len: usize,
    /// A frame may take several buffers.
    pub(super) mergeable: bool,
    /// The guest may be told that a checksum is good.
    pub(super) csum: bool,
}
