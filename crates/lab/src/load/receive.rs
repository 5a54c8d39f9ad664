//! What comes back: verified, put in order, counted.

use std::sync::Arc;

use hdrhistogram::Histogram;
use ring::driver::{Piece, Window};

use super::lane::Lane;
use super::order::{Arrival, Order};
use super::packet::{Fault, HEAD_MAX, Shape, Tag, VNET_LEN, is_multicast};

/// One of so many frames has its latency noted when frames come as fast as they can.
const SAMPLE: u32 = 16;

/// Counts of one direction's receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Frames that are right.
    pub good: u64,
    /// Frames that are wrong.
    pub corrupt: u64,
    /// Right, but after a later one of their flow.
    pub reordered: u64,
    /// Right, but not for the first time; not among `good`.
    pub duplicate: u64,
}

/// The receiving side of one direction.
pub struct Receiver {
    shape: Shape,
    lane: Arc<Lane>,
    flows: Box<[Order]>,
    counts: Counts,
    latency: Histogram<u64>,
    /// Note the latency of frames whose number has these bits zero.
    sample: u32,
    first_fault: Option<String>,
}

/// A received frame, still in its buffers: virtio-net header and frame as one run of bytes.
pub struct Arrived<'a> {
    memory: &'a Window,
    buffers: &'a [Piece],
    header_len: usize,
    len: u32,
}

impl<'a> Arrived<'a> {
    /// A frame in `buffers` of a guest's memory, of which these lengths were written; a virtio-net header of `header_len` bytes
    /// comes first.
    #[inline]
    pub fn new(memory: &'a Window, buffers: &'a [Piece], header_len: usize) -> Self {
        let len = match buffers {
            [piece] => piece.len,
            _ => buffers.iter().map(|piece| piece.len).sum(),
        };
        Self { memory, buffers, header_len, len }
    }

    /// Buffers that it came in.
    pub fn buffers(&self) -> usize {
        self.buffers.len()
    }

    /// Buffers that the virtio-net header says the frame has.
    #[inline]
    pub fn announced(&self) -> usize {
        let mut count = [0; 2];
        if let Some(first) = self.buffers.first().filter(|first| first.len >= VNET_LEN as u32) {
            self.memory.read(first.addr + 10, &mut count);
        }
        u16::from_le_bytes(count).into()
    }

    /// Copies the frame's first bytes; what it is short of stays as it is.
    pub fn read_frame(&self, buf: &mut [u8]) {
        self.read(self.header_len, buf);
    }

    /// Copies from `offset` on; bytes beyond the end stay as they are.
    #[inline]
    fn read(&self, offset: usize, buf: &mut [u8]) {
        if let Some(first) = self.buffers.first()
            && offset + buf.len() <= first.len as usize
        {
            return self.memory.read(first.addr + offset as u64, buf);
        }
        self.read_across(offset, buf);
    }

    fn read_across(&self, offset: usize, mut buf: &mut [u8]) {
        let mut skip = offset;
        for piece in self.buffers {
            let len = piece.len as usize;
            if skip < len && !buf.is_empty() {
                let (now, later) = buf.split_at_mut(buf.len().min(len - skip));
                self.memory.read(piece.addr + skip as u64, now);
                buf = later;
            }
            skip = skip.saturating_sub(len);
        }
    }
}

impl Receiver {
    /// Expects `flows` flows of frames as `shape` has them; `every` frame's latency is noted, or that of some.
    pub fn new(shape: Shape, lane: Arc<Lane>, flows: u32, every: bool) -> Self {
        Self {
            shape,
            lane,
            flows: vec![Order::default(); flows as usize].into(),
            counts: Counts::default(),
            latency: new_histogram(),
            sample: if every { 0 } else { SAMPLE - 1 },
            first_fault: None,
        }
    }

    /// Checks one frame; false if it is none of ours, being addressed to many.
    #[inline]
    pub fn receive(&mut self, arrived: &Arrived, now: u64) -> bool {
        match self.verify(arrived) {
            Ok(tag) => self.sort(tag, now),
            Err(fault) => return self.refuse(fault, arrived),
        }
        true
    }

    #[cold]
    fn refuse(&mut self, fault: Fault, arrived: &Arrived) -> bool {
        let mut first = [0; 1];
        arrived.read_frame(&mut first);
        let ours = !is_multicast(&first);
        if ours {
            self.corrupt(fault, arrived);
        }
        ours
    }

    #[inline]
    fn sort(&mut self, tag: Tag, now: u64) {
        // `verify` has refused flows that do not exist.
        let Some(flow) = self.flows.get_mut(tag.flow as usize) else { return };
        match flow.note(tag.seq) {
            Arrival::InOrder => {}
            Arrival::Late => self.counts.reordered += 1,
            Arrival::Duplicate => {
                self.counts.duplicate += 1;
                return;
            }
        }
        self.counts.good += 1;
        if tag.seq & self.sample == 0 {
            self.latency.saturating_record(now.saturating_sub(tag.time));
        }
    }

    #[inline]
    fn verify(&self, arrived: &Arrived) -> Result<Tag, Fault> {
        let (shape, skip) = (&self.shape, arrived.header_len);
        let (got, sent) = (arrived.len.saturating_sub(skip as u32), shape.len());
        if got != sent {
            return Err(Fault::Length { got, sent });
        }
        // The frame at a fixed place, the virtio-net header before it. Lengths that are constants make copies without a loop.
        let mut bytes = [0; VNET_LEN + HEAD_MAX];
        match (skip, shape.head_len()) {
            (VNET_LEN, 64) => arrived.read(0, &mut bytes[..VNET_LEN + 64]),
            (VNET_LEN, HEAD_MAX) => arrived.read(0, &mut bytes),
            (_, len) => arrived.read(0, &mut bytes[VNET_LEN - skip..VNET_LEN + len]),
        }
        let Some((vnet, head)) = bytes.split_first_chunk::<VNET_LEN>() else { return Err(Fault::Tag) };
        shape.check_vnet(&vnet[VNET_LEN - skip..])?;
        let (tag, base) = shape.open(head.first_chunk().ok_or(Fault::Tag)?)?;
        if tag.flow as usize >= self.flows.len() {
            return Err(Fault::Tag);
        }
        if shape.has_words()
            && let Some(at) = self.wrong_word(arrived, base)
        {
            return Err(Fault::Payload(at));
        }
        Ok(tag)
    }

    /// Where the payload differs from what it should be.
    fn wrong_word(&self, arrived: &Arrived, base: u64) -> Option<usize> {
        let (shape, skip) = (&self.shape, arrived.header_len);
        for (at, len) in shape.words() {
            let mut word = [0; 8];
            arrived.read(skip + at, &mut word[..len]);
            if word[..len] != shape.word(base, at)[..len] {
                return Some(at);
            }
        }
        None
    }

    /// Counts a wrong frame, and remembers the first one.
    #[cold]
    pub fn corrupt(&mut self, fault: Fault, arrived: &Arrived) {
        self.counts.corrupt += 1;
        if self.first_fault.is_none() {
            let mut bytes = vec![0; (arrived.len as usize).min(VNET_LEN + HEAD_MAX)];
            arrived.read(0, &mut bytes);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let lens: Vec<u32> = arrived.buffers.iter().map(|piece| piece.len).take(20).collect();
            self.first_fault = Some(format!("{fault}; buffers of {lens:?} bytes, beginning {hex}"));
        }
    }

    /// Tells the sender how many frames came.
    #[inline]
    pub fn tell(&self) {
        self.lane.set_received(self.counts.good);
    }

    /// Forgets the latencies noted so far.
    pub fn reset_latency(&mut self) {
        self.latency.reset();
    }

    /// Counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What this direction's sender and receiver know of each other.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Bytes of a frame.
    pub fn frame_len(&self) -> u32 {
        self.shape.len()
    }

    /// Latencies in ns, and what was wrong with the first wrong frame.
    pub fn into_parts(self) -> (Histogram<u64>, Option<String>) {
        (self.latency, self.first_fault)
    }
}

/// Latencies from 1 ns to a minute, with two significant digits.
fn new_histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, 60_000_000_000, 2) {
        Ok(histogram) => histogram,
        Err(e) => unreachable!("constant bounds: {e}"),
    }
}
