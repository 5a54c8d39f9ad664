//! Frames from all VTEPs: the sending side of the underlay's port.
//!
//! The kernel delivers datagrams of a flow side by side in one buffer. TCP segments among them that
//! follow each other become one frame ([`Coalescer`]): their payloads stay where they are, and the
//! guest is spared a frame for each. No frame waits for others.

use std::any::Any;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use frame::vxlan::VXLAN_LEN;
use frame::{Accepts, Coalescer, VNET_LEN, coalesce, vnet};
use network::burst::Burst;
use network::packet::Packet;
use network::port::{Notified, QueueError, QueuePair};
use overlay::{Refusal, VtepTable};
use ring::GrantCopyBatch;
use ring::device::Put;
use ring::gather::{Chain, Gather};
use ring::violation::Violation;
use switch::PortId;

use super::Shared;
use super::arrival::Arrival;
use super::landed::{Kind, Landed, Segments};
use super::receiver::Receiver;

/// Coalesced frames that a buffer may have: each takes two datagrams, and the kernel coalesces at
/// most 128.
const COALESCED: u16 = 64;
/// Most buffers of a receiver that coalesces. The offload headers of coalesced frames are in one
/// buffer more, which is never filled.
const COALESCING_BUFFERS: usize = 64;
const _: () = assert!(COALESCING_BUFFERS * COALESCED as usize * VNET_LEN <= 65_536);

/// A datagram that was admitted. Those that follow nearly always have the same VTEP and network.
struct Admission {
    source: IpAddr,
    header: [u8; VXLAN_LEN],
    /// The port that the datagram came in on.
    port: PortId,
}

/// A coalesced frame to which segments may still be added. It is the newest frame.
struct Open {
    coalescer: Coalescer,
    /// Bytes of the newest segment.
    last: u32,
    /// Where the next segment must be in the buffer. What was refused may lie between two segments.
    next: u32,
}

/// A pair that decapsulates.
///
/// The first `fetched` of `frames`, oldest first, are under way. The others were rewound, or belong
/// to another VTEP than those before, and come with a later burst.
pub(super) struct IngressPair {
    receiver: Receiver,
    shared: Arc<Shared>,
    /// The table of VTEPs as this pair knows it, and the version of the table.
    table: Arc<VtepTable>,
    version: u64,
    free: Vec<u16>,
    /// How many frames of each buffer are not completed.
    used: Box<[u32]>,
    /// How many buffers have such frames.
    busy: u16,
    frames: VecDeque<Landed>,
    fetched: usize,
    arrivals: Vec<Arrival>,
    open: Option<Open>,
    /// A private copy of a segment, while it is looked at.
    segment: Box<[u8]>,
    /// How many coalesced frames the newest buffer has.
    coalesced: u16,
}

impl IngressPair {
    pub fn new(receiver: Receiver, shared: Arc<Shared>) -> Self {
        let (table, version) = shared.table();
        let buffers = receiver.buffers();
        IngressPair {
            frames: VecDeque::with_capacity(receiver.frames()),
            receiver,
            shared,
            table,
            version,
            free: (0..buffers).rev().collect(),
            used: vec![0; buffers.into()].into_boxed_slice(),
            busy: 0,
            fetched: 0,
            arrivals: Vec::with_capacity(buffers.into()),
            open: None,
            segment: vec![0; usize::from(u16::MAX)].into_boxed_slice(),
            coalesced: 0,
        }
    }

    /// Whether any frame is not under way.
    fn has_frames(&self) -> bool {
        self.fetched < self.frames.len()
    }

    /// Receives what there is, as far as there are buffers. False: nothing came, or no received
    /// frame is admitted.
    fn receive(&mut self) -> Result<bool, QueueError> {
        if usize::from(self.busy) == self.used.len() {
            return Ok(false);
        }
        if self.shared.version() != self.version {
            (self.table, self.version) = self.shared.table();
        }
        let received = self.receiver.receive(&mut self.free, &mut self.arrivals);
        if self.arrivals.is_empty() {
            return received.map(|()| false);
        }
        let (mut datagrams, mut last) = (0, None);
        for at in 0..self.arrivals.len() {
            datagrams += self.admit(self.arrivals[at], &mut last);
        }
        let calls = self.receiver.calls(self.arrivals.len());
        self.arrivals.clear();
        self.shared.counters.received(datagrams, calls);
        received.map(|()| self.has_frames())
    }

    /// Admits the frames of a buffer one by one. Returns how many datagrams came. `last`: the
    /// newest admission of this burst.
    fn admit(&mut self, one: Arrival, last: &mut Option<Admission>) -> u64 {
        let (mut at, mut datagrams) = (one.at, 0);
        let end = one.at + one.len;
        self.coalesced = 0;
        loop {
            let len = one.segment.min(end - at);
            datagrams += 1;
            match self.ingress(&one, at, len, last) {
                Ok(port) => self.admit_frame(&one, at, len, port),
                Err(refusal) => self.shared.counters.refused(refusal),
            }
            at += len;
            if at >= end {
                break;
            }
        }
        self.close();
        if self.used[usize::from(one.buffer)] == 0 {
            self.free.push(one.buffer);
        }
        datagrams
    }

    /// Admits the frame of the datagram of `len` bytes at `at`, which came in on `port`.
    fn admit_frame(&mut self, one: &Arrival, at: u32, len: u32, port: PortId) {
        let (at, len) = (at + VXLAN_LEN as u32, len - VXLAN_LEN as u32);
        let mut frame = Landed { port, buffer: one.buffer, at, len, kind: Kind::Plain };
        if let Some(header) = &one.offload {
            // The outer headers have been read, so the header may be written over their end.
            let place = self.receiver.place(one.buffer) + u64::from(at) - VNET_LEN as u64;
            if self.receiver.memory().write(place, header).is_ok() {
                frame.kind = Kind::Offload;
            }
            self.push(frame);
        } else {
            self.land(frame, one.segment < one.len);
        }
    }

    fn push(&mut self, frame: Landed) {
        let used = &mut self.used[usize::from(frame.buffer)];
        self.busy += u16::from(*used == 0);
        *used += 1;
        self.frames.push_back(frame);
    }

    /// Adds a frame, or adds it to the newest one if it is the next segment of that. `beside`:
    /// whether its buffer has several.
    fn land(&mut self, frame: Landed, beside: bool) {
        let place = self.receiver.place(frame.buffer) + u64::from(frame.at);
        let copied = beside && self.copy(place, frame.len as usize);
        let bytes = self.segment.get(..frame.len as usize).filter(|_| copied);
        let next = frame.at + frame.len + VXLAN_LEN as u32;
        if let (Some(bytes), Some(open)) = (bytes, &mut self.open)
            && self.frames.back().is_some_and(|newest| newest.port == frame.port)
            && open.next == frame.at
            && open.coalescer.append(bytes)
        {
            (open.last, open.next) = (frame.len, next);
            return;
        }
        let open = bytes.and_then(Coalescer::begin);
        self.close();
        let open = open.filter(|_| self.coalesced < COALESCED);
        self.open = open.map(|coalescer| Open { coalescer, last: frame.len, next });
        self.push(frame);
    }

    /// Copies a frame that may be a segment, so that it can be looked at. False: it is none.
    fn copy(&mut self, place: u64, len: usize) -> bool {
        let mut first = [0; coalesce::FIRST];
        let memory = self.receiver.memory();
        if len < first.len() || memory.read(place, &mut first).is_err() {
            return false;
        }
        let copy = self.segment.get_mut(..len).filter(|_| coalesce::may_be_segment(&first));
        copy.is_some_and(|copy| memory.read(place, copy).is_ok())
    }

    /// Completes the newest frame, to which no more segments are added.
    fn close(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        let (count, headers_len) = (open.coalescer.segments(), open.coalescer.headers_len() as u32);
        let Some(frame) = self.frames.back_mut() else { return };
        let slot = u64::from(frame.buffer) * u64::from(COALESCED) + u64::from(self.coalesced);
        let offloads = self.receiver.place(self.receiver.buffers());
        let offload = offloads + slot * VNET_LEN as u64;
        let Some((head, kind)) = open.coalescer.finish() else { return };
        let header = vnet::encode(&kind, headers_len as u16);
        let place = self.receiver.place(frame.buffer) + u64::from(frame.at);
        let memory = self.receiver.memory();
        // Both places are in the batch's memory.
        if memory.write(offload, &header).and_then(|()| memory.write(place, head)).is_ok() {
            let segments = Segments { count, last: open.last, headers_len, offload };
            frame.kind = Kind::Segments(segments);
            self.coalesced += 1;
        }
    }

    /// The ingress port of the datagram at `at` in a buffer.
    fn ingress(
        &self,
        one: &Arrival,
        at: u32,
        len: u32,
        last: &mut Option<Admission>,
    ) -> Result<PortId, Refusal> {
        let source = one.source?;
        let known = VXLAN_LEN.min(len as usize);
        let header = match one.header {
            Some(header) => header,
            None => self.header(one, at, known)?,
        };
        match last {
            Some(last) if (last.source, last.header) == (source, header) && len >= 22 => {
                Ok(last.port)
            }
            _ => {
                let port = self.table.admit(source, &header[..known], len as usize)?;
                *last = Some(Admission { source, header, port });
                Ok(port)
            }
        }
    }

    /// The VXLAN header at `at` in a buffer, of which `known` bytes are there.
    fn header(&self, one: &Arrival, at: u32, known: usize) -> Result<[u8; VXLAN_LEN], Refusal> {
        let mut header = [0; VXLAN_LEN];
        let place = self.receiver.place(one.buffer) + u64::from(at);
        let read = self.receiver.memory().read(place, &mut header[..known]);
        read.map(|()| header).map_err(|_| Refusal::Malformed)
    }

    /// The next frame that is not under way.
    fn next(&mut self) -> Result<Option<Landed>, QueueError> {
        if !self.has_frames() && !self.receive()? {
            return Ok(None);
        }
        Ok(self.frames.get(self.fetched).copied())
    }

    /// Takes frames like `next`, oldest first: of one VTEP, and all with an offload header or all
    /// without.
    fn take(
        &mut self,
        next: &Landed,
        gather: &mut Gather,
        chains: &mut Vec<Chain>,
        room: usize,
    ) -> Result<(), QueueError> {
        let is_like =
            |frame: &&Landed| frame.port == next.port && frame.has_offload() == next.has_offload();
        while let Some(frame) = self.frames.get(self.fetched).filter(is_like)
            && chains.len() < room
        {
            let memory = self.receiver.memory();
            match frame.push(memory, self.receiver.place(frame.buffer), gather) {
                Ok(chain) => chains.push(chain),
                // Coalesced frames have many pieces. The frame comes with a later burst.
                Err(Violation::ChainScattered(_)) if !gather.is_empty() => break,
                Err(violation) => return Err(violation.into()),
            }
            self.fetched += 1;
        }
        Ok(())
    }
}

impl QueuePair for IngressPair {
    fn fetch(&mut self, burst: &mut Burst) -> Result<(), QueueError> {
        let Some(next) = self.next()? else { return Ok(()) };
        let header = if next.has_offload() { VNET_LEN } else { 0 };
        burst.fill(header, |gather, chains, room| {
            self.take(&next, gather, chains, room)?;
            Ok::<_, QueueError>(chains.len())
        })?;
        burst.set_ingress(next.port);
        Ok(())
    }

    fn complete(&mut self, n: usize) {
        let n = n.min(self.fetched);
        for frame in self.frames.drain(..n) {
            let used = &mut self.used[usize::from(frame.buffer)];
            *used -= 1;
            if *used == 0 {
                self.free.push(frame.buffer);
                self.busy -= 1;
            }
        }
        self.fetched -= n;
    }

    fn rewind(&mut self, n: usize) {
        self.fetched = self.fetched.saturating_sub(n);
    }

    fn is_full(&self) -> bool {
        usize::from(self.busy) == self.used.len() && !self.has_frames()
    }

    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    fn prepare(&mut self, _: usize) -> Result<(), QueueError> {
        Ok(())
    }

    fn put(&mut self, _: &Packet<'_>, _: &mut GrantCopyBatch) -> Result<Put, QueueError> {
        // Nothing is sent here: each VTEP has a port of its own.
        Ok(Put::Refused)
    }

    fn room(&mut self) -> Result<usize, QueueError> {
        Ok(usize::MAX)
    }

    fn flush(&mut self) -> Result<[Notified; 2], QueueError> {
        Ok([Notified::Nothing; 2])
    }

    fn arm(&mut self, _: bool) -> Result<bool, QueueError> {
        // The receiver was empty when it was last read, and signals later datagrams. Datagrams that
        // are not admitted are read until none is left, but the number of reads is limited: a peer
        // could send them without end.
        for _ in 0..4 {
            if self.has_frames() || self.receive()? {
                return Ok(true);
            }
        }
        Ok(self.is_readable())
    }

    fn disarm(&mut self) {}

    fn wakers(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.receiver.fd()), None]
    }

    fn is_unmasked(&self) -> bool {
        true
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl IngressPair {
    /// Whether there is a datagram.
    fn is_readable(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let fd = self.receiver.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(1..))
    }
}
