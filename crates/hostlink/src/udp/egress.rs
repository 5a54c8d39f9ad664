//! Frames to one VTEP in one network: the receiving side of its port.

use std::any::Any;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use frame::vxlan::VXLAN_LEN;
use frame::{Accepts, Headers, Vni, flow_hash};
use network::burst::{AHEAD, BURST, Burst};
use network::coalescing::CoalescingLimits;
use network::packet::Packet;
use network::port::{Coalescing, Notified, QueueError, QueuePair};
use ring::GrantCopyBatch;
use ring::datagrams::{DATAGRAMS, LANES, Peer, SendBatch};
use ring::device::Put;

use super::counters::UnderlayCounters;

/// How long datagrams that were copied whole may wait for those of later bursts.
pub(super) fn coalescing() -> Option<CoalescingLimits> {
    CoalescingLimits::new(Some(DATAGRAMS as u32 / 2), Duration::from_micros(20))
}

/// Datagrams of a lane that are worth a message: a message costs about as much as six datagrams.
const WORTH: usize = 10;

/// A pair that encapsulates. Nothing is fetched from it: frames of the VTEP come by the underlay's
/// own pairs.
///
/// Frames stay in their senders' memory until [`flush`](QueuePair::flush), which comes before any
/// of them is completed. Short frames are copied whole. After a full burst of those, more frames
/// wait at their sender. If the burst is spread over many lanes, each of which sends a message, it
/// is sent with the next one: sending is the interrupt that the worker defers.
pub(super) struct EgressPair {
    header: [u8; VXLAN_LEN],
    sockets: Arc<[OwnedFd; LANES]>,
    batch: SendBatch,
    /// Frames since the last flush.
    added: usize,
    counters: Arc<UnderlayCounters>,
}

impl EgressPair {
    pub fn new(
        vni: Vni,
        peer: Peer,
        sockets: Arc<[OwnedFd; LANES]>,
        counters: Arc<UnderlayCounters>,
    ) -> Self {
        let (header, batch) = (vni.header(), SendBatch::new(peer));
        EgressPair { header, sockets, batch, added: 0, counters }
    }

    /// Adds one frame to the batch, of the flow with this hash.
    #[inline]
    fn add(&mut self, packet: &Packet<'_>, hash: u32) -> Put {
        // The lower bits select receivers' queues, so the upper ones are used here.
        let lane = (hash >> 28) as u8;
        loop {
            match self.batch.push(lane, &self.header, packet.head, packet.body) {
                Some(true) => {
                    self.added += 1;
                    return Put::Done;
                }
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
        self.added = 0;
        if self.batch.is_empty() {
            return Ok([Notified::Nothing; 2]);
        }
        self.send();
        Ok([Notified::Nothing, Notified::Sent])
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

    fn coalescing(&mut self) -> Option<&mut dyn Coalescing> {
        Some(self)
    }
}

impl Coalescing for EgressPair {
    fn flush_deferred(&mut self) -> Result<[Notified; 2], QueueError> {
        if self.added < BURST || !self.batch.owns_bytes() || self.batch.per_lane() >= WORTH {
            return self.flush();
        }
        self.added = 0;
        Ok([Notified::Nothing, Notified::Deferred])
    }

    fn interrupt(&mut self) -> Result<(), QueueError> {
        self.flush().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use frame::Offload;
    use ring::gather::{Body, Gather};
    use ring::region::Memory;

    use super::*;

    /// A pair, and the socket that its datagrams go to.
    fn pair() -> (EgressPair, UdpSocket) {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        let sockets = std::array::from_fn(|_| UdpSocket::bind("127.0.0.1:0").unwrap().into());
        let peer = Peer::new(receiver.local_addr().unwrap());
        let vni = Vni::new(100).unwrap();
        (EgressPair::new(vni, peer, Arc::new(sockets), Arc::default()), receiver)
    }

    fn put(pair: &mut EgressPair, count: usize, body: Body<'_>) {
        let offload = Offload::default();
        let packet =
            Packet { offload: &offload, headers_len: 0, head: &[7; 60], body, may_pass: false };
        for n in 0..count as u32 {
            // Of a flow of its own.
            assert!(matches!(pair.add(&packet, n << 28), Put::Done));
        }
    }

    fn received(receiver: &UdpSocket) -> usize {
        std::iter::from_fn(|| receiver.recv(&mut [0; 2048]).ok()).count()
    }

    #[test]
    fn short_frames_of_a_full_burst_wait_for_the_next_burst() {
        let (mut pair, receiver) = pair();
        let mut flush = |count, body| {
            put(&mut pair, count, body);
            (pair.flush_deferred().unwrap()[1], received(&receiver))
        };
        assert_eq!(flush(BURST - 1, Body::empty()), (Notified::Sent, BURST - 1));
        assert_eq!(flush(BURST, Body::empty()), (Notified::Deferred, 0));
        assert_eq!(flush(3, Body::empty()), (Notified::Sent, BURST + 3));
        assert_eq!(flush(BURST, Body::empty()), (Notified::Deferred, 0));
        // The bytes of long frames stay with their senders, who may reuse them after the burst.
        let memory = Arc::new(Memory::anonymous(4096).unwrap());
        let mut gather = Gather::new(1);
        let chain = gather.push_range(&memory, 0, 1000).unwrap();
        assert_eq!(flush(BURST, gather.body(chain)), (Notified::Sent, 2 * BURST));
        assert_eq!(flush(BURST, Body::empty()), (Notified::Deferred, 0));
        pair.interrupt().unwrap();
        assert_eq!(
            (received(&receiver), pair.flush_deferred().unwrap()[1]),
            (BURST, Notified::Nothing)
        );
    }
}
