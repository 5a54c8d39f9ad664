//! Frames to one VTEP in one network: the receiving side of its port.

use std::any::Any;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use frame::vxlan::VXLAN_LEN;
use frame::{Accepts, Headers, Vni, flow_hash};
use network::burst::{AHEAD, Burst};
use network::packet::Packet;
use network::port::{Notified, QueueError, QueuePair};
use ring::GrantCopyBatch;
use ring::datagrams::{LANES, Peer, SendBatch};
use ring::device::Put;

use super::counters::UnderlayCounters;

/// A pair that encapsulates. Nothing is fetched from it: frames of the VTEP come by the underlay's
/// own pairs.
///
/// Frames stay in their senders' memory until [`flush`](QueuePair::flush), which comes before any
/// of them is completed.
pub(super) struct EgressPair {
    header: [u8; VXLAN_LEN],
    sockets: Arc<[OwnedFd; LANES]>,
    batch: SendBatch,
    counters: Arc<UnderlayCounters>,
}

impl EgressPair {
    pub fn new(
        vni: Vni,
        peer: Peer,
        sockets: Arc<[OwnedFd; LANES]>,
        counters: Arc<UnderlayCounters>,
    ) -> Self {
        EgressPair { header: vni.header(), sockets, batch: SendBatch::new(peer), counters }
    }

    /// Adds one frame to the batch, of the flow with this hash.
    #[inline]
    fn add(&mut self, packet: &Packet<'_>, hash: u32) -> Put {
        // The lower bits select receivers' queues, so the upper ones are used here.
        let lane = (hash >> 28) as u8;
        loop {
            match self.batch.push(lane, &self.header, packet.head, packet.body) {
                Some(true) => return Put::Done,
                Some(false) if !self.batch.is_empty() => self.send(),
                // The frame is longer than a datagram, has too many pieces, or its pages are gone.
                _ => return Put::Refused,
            }
        }
    }

    fn send(&mut self) {
        let outcome = self.batch.send(&self.sockets);
        self.counters.sent(&outcome);
    }
}

impl QueuePair for EgressPair {
    fn fetch(&mut self, _: &mut Burst) -> Result<(), QueueError> {
        Ok(())
    }

    fn complete(&mut self, _: usize) {}

    fn rewind(&mut self, _: usize) {}

    fn accepts(&self) -> Accepts {
        // An inner frame must be complete: checksums and segmentation are done before this port.
        Accepts::default()
    }

    fn prepare(&mut self, _: usize) -> Result<(), QueueError> {
        Ok(())
    }

    fn put(&mut self, packet: &Packet<'_>, _: &mut GrantCopyBatch) -> Result<Put, QueueError> {
        let mut headers = Headers::default();
        let known = frame::parse_into(packet.head, &mut headers);
        let hash = if known { flow_hash(&headers, packet.head) } else { 0 };
        Ok(self.add(packet, hash))
    }

    fn put_run(
        &mut self,
        burst: &Burst,
        run: Range<usize>,
        _: bool,
        _: &mut GrantCopyBatch,
    ) -> (usize, Result<Put, QueueError>) {
        for i in run.clone() {
            burst.prefetch(i + AHEAD);
            let hash = flow_hash(&burst.frames()[i].headers, burst.head(i).as_slice());
            match self.add(&burst.packet(i), hash) {
                Put::Done => {}
                other => return (i - run.start, Ok(other)),
            }
        }
        (run.len(), Ok(Put::Done))
    }

    fn room(&mut self) -> Result<usize, QueueError> {
        Ok(usize::MAX)
    }

    fn flush(&mut self) -> Result<[Notified; 2], QueueError> {
        if !self.batch.is_empty() {
            self.send();
        }
        Ok([Notified::Nothing; 2])
    }

    fn arm(&mut self, _: bool) -> Result<bool, QueueError> {
        Ok(false)
    }

    fn disarm(&mut self) {}

    fn wakers(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
