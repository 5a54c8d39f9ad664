//! Frames from all VTEPs: the sending side of the underlay's port.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use frame::Accepts;
use frame::vxlan::VXLAN_LEN;
use network::burst::Burst;
use network::packet::Packet;
use network::port::{Notified, QueueError, QueuePair};
use overlay::{Refusal, VtepTable};
use ring::GrantCopyBatch;
use ring::datagrams::{ReceiveBatch, Received};
use ring::device::Put;
use ring::gather::{Chain, Gather};
use ring::region::MapError;
use switch::PortId;

use super::Shared;

/// Buffers of a worker.
const BUFFERS: u16 = 32;
/// Bytes of each buffer: the most that the kernel coalesces of one flow.
const BUFFER: u32 = 65_536;

/// A received frame that is not completed yet.
#[derive(Clone, Copy)]
struct Landed {
    /// The port that stands for its VTEP.
    port: PortId,
    buffer: u16,
    at: u32,
    len: u32,
}

/// A pair that decapsulates.
///
/// The first `fetched` of `frames`, oldest first, are under way. The others were rewound, or belong
/// to another VTEP than those before, and come with a later burst.
pub(super) struct IngressPair {
    socket: OwnedFd,
    shared: Arc<Shared>,
    /// The table of VTEPs as this pair knows it, and the version of the table.
    table: Arc<VtepTable>,
    version: u64,
    batch: ReceiveBatch,
    free: Vec<u16>,
    /// How many frames of each buffer are not completed.
    used: [u32; BUFFERS as usize],
    frames: VecDeque<Landed>,
    fetched: usize,
    received: Vec<Received>,
}

impl IngressPair {
    pub fn new(socket: OwnedFd, shared: Arc<Shared>) -> Result<Self, MapError> {
        let (table, version) = shared.table();
        Ok(IngressPair {
            socket,
            shared,
            table,
            version,
            batch: ReceiveBatch::new(BUFFERS, BUFFER)?,
            free: (0..BUFFERS).rev().collect(),
            used: [0; BUFFERS as usize],
            // A datagram has 22 bytes at least, but the kernel coalesces at most 64.
            frames: VecDeque::with_capacity(usize::from(BUFFERS) * 64),
            fetched: 0,
            received: Vec::with_capacity(BUFFERS.into()),
        })
    }

    /// Whether any frame is not under way.
    fn has_frames(&self) -> bool {
        self.fetched < self.frames.len()
    }

    /// Reads from the socket by one system call. False: nothing came, or no received frame is
    /// admitted.
    fn receive(&mut self) -> bool {
        if self.free.is_empty() {
            return false;
        }
        if self.shared.version() != self.version {
            (self.table, self.version) = self.shared.table();
        }
        let received = &mut self.received;
        let socket = self.socket.as_fd();
        if self.batch.receive(socket, &mut self.free, |one| received.push(one)).is_err() {
            return false;
        }
        let mut datagrams = 0;
        for at in 0..self.received.len() {
            datagrams += self.admit(self.received[at]);
        }
        self.received.clear();
        self.shared.counters.received(datagrams);
        self.has_frames()
    }

    /// Admits the frames one by one. Returns how many datagrams came.
    fn admit(&mut self, one: Received) -> u64 {
        let (mut at, mut datagrams) = (0, 0);
        // All datagrams came from one VTEP, and nearly always in one network.
        let mut last: Option<([u8; VXLAN_LEN], PortId)> = None;
        while at < one.len {
            let len = one.segment.min(one.len - at);
            datagrams += 1;
            match self.ingress(&one, at, len, &mut last) {
                Ok(port) => {
                    let (at, len) = (at + VXLAN_LEN as u32, len - VXLAN_LEN as u32);
                    self.frames.push_back(Landed { port, buffer: one.buffer, at, len });
                    self.used[usize::from(one.buffer)] += 1;
                }
                Err(refusal) => self.shared.counters.refused(refusal),
            }
            at += len;
        }
        if one.len == 0 {
            datagrams = 1;
            self.shared.counters.refused(Refusal::Malformed);
        }
        if self.used[usize::from(one.buffer)] == 0 {
            self.free.push(one.buffer);
        }
        datagrams
    }

    /// The ingress port of the datagram at `at` in a buffer.
    fn ingress(
        &self,
        one: &Received,
        at: u32,
        len: u32,
        last: &mut Option<([u8; VXLAN_LEN], PortId)>,
    ) -> Result<PortId, Refusal> {
        let mut head = [0; VXLAN_LEN];
        let known = head.len().min(len as usize);
        let place = self.batch.place(one.buffer) + u64::from(at);
        self.batch.memory().read(place, &mut head[..known]).map_err(|_| Refusal::Malformed)?;
        if one.truncated {
            return Err(Refusal::Malformed);
        }
        let source = one.source.ok_or(Refusal::UnknownVtep)?;
        match last {
            Some((header, port)) if *header == head && len >= 22 => Ok(*port),
            _ => {
                let port = self.table.admit(source, &head[..known], len as usize)?;
                *last = Some((head, port));
                Ok(port)
            }
        }
    }

    /// Takes frames of one VTEP, oldest first. Returns its port.
    fn take(
        &mut self,
        gather: &mut Gather,
        chains: &mut Vec<Chain>,
        room: usize,
    ) -> Result<Option<PortId>, QueueError> {
        if !self.has_frames() && !self.receive() {
            return Ok(None);
        }
        let port = self.frames.get(self.fetched).map(|frame| frame.port);
        while let Some(frame) = self.frames.get(self.fetched).filter(|it| Some(it.port) == port)
            && chains.len() < room
        {
            let place = self.batch.place(frame.buffer) + u64::from(frame.at);
            chains.push(gather.push_range(self.batch.memory(), place, frame.len)?);
            self.fetched += 1;
        }
        Ok(port)
    }
}

impl QueuePair for IngressPair {
    fn fetch(&mut self, burst: &mut Burst) -> Result<(), QueueError> {
        let mut port = None;
        // There is no offload header in front of a frame.
        burst.fill(0, |gather, chains, room| {
            port = self.take(gather, chains, room)?;
            Ok::<_, QueueError>(chains.len())
        })?;
        if let Some(port) = port {
            burst.set_ingress(port);
        }
        Ok(())
    }

    fn complete(&mut self, n: usize) {
        let n = n.min(self.fetched);
        for frame in self.frames.drain(..n) {
            let used = &mut self.used[usize::from(frame.buffer)];
            *used -= 1;
            if *used == 0 {
                self.free.push(frame.buffer);
            }
        }
        self.fetched -= n;
    }

    fn rewind(&mut self, n: usize) {
        self.fetched = self.fetched.saturating_sub(n);
    }

    fn is_full(&self) -> bool {
        self.free.is_empty() && !self.has_frames()
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
        // The socket was empty when it was last read, and signals later datagrams. Datagrams that
        // are not admitted are read until none is left, but the number of reads is limited: a peer
        // could send them without end.
        for _ in 0..4 {
            if self.has_frames() || self.receive() {
                return Ok(true);
            }
        }
        Ok(self.is_readable())
    }

    fn disarm(&mut self) {}

    fn wakers(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.socket.as_fd()), None]
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl IngressPair {
    /// Whether the socket has a datagram.
    fn is_readable(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(1..))
    }
}
