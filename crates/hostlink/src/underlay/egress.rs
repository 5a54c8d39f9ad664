//! Frames to one VTEP in one network: the receiving side of its port.

use std::any::Any;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use frame::vxlan::VXLAN_LEN;
use frame::vxlan::outer::OVERHEAD_V6;
use frame::{Accepts, Headers, Vni, flow_hash};
use network::burst::{AHEAD, BURST, Burst};
use network::coalescing::CoalescingLimits;
use network::packet::Packet;
use network::port::{Coalescing, Notified, QueueError, QueuePair};
use network::software_offload::{MIN_SEGMENT, put_segments};
use ring::GrantCopyBatch;
use ring::datagrams::{DATAGRAMS, LANES, Peer, SendBatch};
use ring::device::Put;

use super::counters::UnderlayCounters;
use super::tap::sender::TapSender;
use crate::tun;

/// How long datagrams that were copied whole may wait for those of later bursts.
pub(super) fn coalescing() -> Option<CoalescingLimits> {
    CoalescingLimits::new(Some(DATAGRAMS as u32 / 2), Duration::from_micros(20))
}

/// Datagrams of a lane that are worth a message: a message costs about as much as six datagrams.
const WORTH: usize = 10;

/// Bytes of the longest frame that fits into an IP packet behind outer headers.
const LONGEST_WHOLE: u32 = u16::MAX as u32 - OVERHEAD_V6 as u32;

/// A pair that encapsulates. Nothing is fetched from it: frames of the VTEP come by the underlay's
/// own pairs.
///
/// Frames stay in their senders' memory until [`flush`](QueuePair::flush), which comes before any
/// of them is completed. Short frames are copied whole. After a full burst of those, more frames
/// wait at their sender. If the burst is spread over many lanes, each of which sends a message, it
/// is sent with the next one: sending is the interrupt that the worker defers.
///
/// Where the underlay has a TAP device, frames to be segmented go there whole.
pub(super) struct EgressPair {
    header: [u8; VXLAN_LEN],
    sockets: Arc<[OwnedFd; LANES]>,
    batch: SendBatch,
    /// Frames since the last flush.
    added: usize,
    tap: Option<TapSender>,
    counters: Arc<UnderlayCounters>,
}

impl EgressPair {
    pub fn new(
        vni: Vni,
        peer: Peer,
        sockets: Arc<[OwnedFd; LANES]>,
        tap: Option<TapSender>,
        counters: Arc<UnderlayCounters>,
    ) -> Self {
        let (header, batch) = (vni.header(), SendBatch::new(peer));
        EgressPair { header, sockets, batch, added: 0, tap, counters }
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

    /// Sends a frame to be segmented.
    fn add_whole(
        &mut self,
        packet: &Packet<'_>,
        hash: u32,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, QueueError> {
        // The kernel's segments cost this worker as much as its own, so they have the same least
        // payload.
        let is_fine = packet.offload.gso.is_some_and(|gso| gso.size >= MIN_SEGMENT);
        if packet.len() > LONGEST_WHOLE || !is_fine {
            return put_segments(self, packet, grant_copies);
        }
        // Frames of the same flow may be in the batch.
        self.flush()?;
        let Some(tap) = &mut self.tap else { return Ok(Put::Refused) };
        let sent = tap.send(packet, hash, grant_copies);
        self.counters.sent_whole(&sent);
        match sent {
            Err(error) if tun::is_gone(&error) => Err(QueueError::Gone),
            // A frame that the kernel did not take is lost, as on a wire.
            _ => Ok(Put::Done),
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
        // An inner frame of a socket's datagram must be complete: checksums and segmentation are
        // done before this port.
        match self.tap {
            None => Accepts::default(),
            Some(_) => Accepts { tso4: true, tso6: true, ecn: true, ..Accepts::default() },
        }
    }

    fn prepare(&mut self, _: usize) -> Result<(), QueueError> {
        Ok(())
    }

    fn put(
        &mut self,
        packet: &Packet<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, QueueError> {
        let mut headers = Headers::default();
        let known = frame::parse_into(packet.head, &mut headers);
        let hash = if known { flow_hash(&headers, packet.head) } else { 0 };
        match packet.offload.gso {
            None => Ok(self.add(packet, hash)),
            Some(_) => self.add_whole(packet, hash, grant_copies),
        }
    }

    fn put_run(
        &mut self,
        burst: &Burst,
        run: Range<usize>,
        _: bool,
        grant_copies: &mut GrantCopyBatch,
    ) -> (usize, Result<Put, QueueError>) {
        for i in run.clone() {
            burst.prefetch(i + AHEAD);
            let (frame, packet) = (&burst.frames()[i], burst.packet(i));
            let hash = flow_hash(&frame.headers, burst.head(i).as_slice());
            let put = match frame.offload.gso {
                None => Ok(self.add(&packet, hash)),
                Some(_) => self.add_whole(&packet, hash, grant_copies),
            };
            if put != Ok(Put::Done) {
                return (i - run.start, put);
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
    use std::os::unix::net::UnixDatagram;

    use frame::vnet::tunnel::{Outstanding, TUNNEL_LEN, decode};
    use frame::vxlan::decapsulate;
    use frame::{Gso, GsoKind, Offload, PartialCsum};
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
        (EgressPair::new(vni, peer, Arc::new(sockets), None, Arc::default()), receiver)
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

    /// The first bytes of a TCP frame of `len` bytes to be segmented, and how.
    fn tcp(len: u32, size: u16) -> ([u8; 54], Offload) {
        let mut head = [0; 54];
        head[12] = 0x08;
        (head[14], head[22], head[23], head[46], head[47]) = (0x45, 64, 6, 0x50, 0x10);
        head[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
        let csum = Some(PartialCsum { start: 34, offset: 16 });
        let gso = Some(Gso { kind: GsoKind::TcpV4, size, ecn: false });
        (head, Offload { csum, gso, valid: false })
    }

    #[test]
    fn a_device_takes_frames_to_be_segmented_unless_they_or_their_segments_are_out_of_bounds() {
        let (mut pair, receiver) = pair();
        let (device, host) = UnixDatagram::pair().unwrap();
        host.set_nonblocking(true).unwrap();
        let local = "10.9.1.1:4789".parse().unwrap();
        let vni = Vni::new(100).unwrap();
        let peer = "10.9.1.2".parse().unwrap();
        pair.tap = TapSender::new(Arc::new(device.into()), local, peer, vni);
        assert!(pair.tap.is_some() && pair.accepts().takes(&tcp(60_000, 1400).1));
        let memory = Arc::new(Memory::anonymous(68 << 10).unwrap());
        let mut send = |len: u32, size: u16, put: Put| {
            let mut gather = Gather::new(1);
            let chain = gather.push_range(&memory, 0, len - 54).unwrap();
            let ((head, offload), body) = (tcp(len, size), gather.body(chain));
            let packet =
                Packet { offload: &offload, headers_len: 54, head: &head, body, may_pass: false };
            let mut grant_copies = GrantCopyBatch::new();
            assert_eq!(pair.put(&packet, &mut grant_copies), Ok(put));
            pair.flush().unwrap();
            let mut bytes = vec![0; 70_000];
            let whole = host.recv(&mut bytes).ok().map(|len| bytes[..len].to_vec());
            (whole, received(&receiver))
        };
        let (whole, segments) = send(LONGEST_WHOLE, 1400, Put::Done);
        let whole = whole.unwrap();
        let frame = &whole[TUNNEL_LEN..];
        let outer = decapsulate(&frame[..200], frame.len(), 4789).unwrap();
        assert_eq!((outer.inner_len as u32, segments), (LONGEST_WHOLE, 0));
        let outstanding = decode(whole.first_chunk().unwrap(), 34, 50).unwrap();
        assert!(matches!(outstanding, Outstanding::Inner([1, 1, 0, 0, 0x78, 5, 34, 0, 16, ..])));
        // The longest frame that a guest can send does not fit behind outer headers.
        assert_eq!(send(65_549, 1400, Put::Done), (None, (65_549 - 54_usize).div_ceil(1400)));
        // A hostile guest could make the kernel cut a frame into thousands of segments.
        assert_eq!(send(60_000, MIN_SEGMENT - 1, Put::Refused), (None, 0));
        assert!(send(60_000, MIN_SEGMENT, Put::Done).0.is_some());
    }
}
