//! The receiving side of the load generator: frames are verified, ordered and counted.

use std::sync::Arc;

use hdrhistogram::Histogram;
use ring::driver::{Piece, Window};

use super::direction_counters::DirectionCounters;
use super::order::{Arrival, Order};
use super::packet::{Fault, HEAD_MAX, Shape, Tag, VNET_LEN};
use super::shapes::Shapes;

/// The latency of one frame in this many is recorded when frames come as fast as they can.
const SAMPLE: u32 = 16;

/// Counts of one direction's receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Correct frames.
    pub good: u64,
    /// Wrong frames.
    pub corrupt: u64,
    /// Right frames that came after a later one of their flow.
    pub reordered: u64,
    /// Right frames that came before already; not among `good`.
    pub duplicate: u64,
}

/// The frames that a receiver expects.
pub struct Incoming {
    /// The sender's number.
    pub from: u16,
    /// The receiver's number among those of the sender, from 0.
    pub receiver: u32,
    /// The sender's frames.
    pub shapes: Shapes,
    /// Counters shared with the sender.
    pub counters: Arc<DirectionCounters>,
    /// The sender's flows.
    pub flows: u32,
}

/// The receiving side of one direction.
pub struct Receiver {
    incoming: Incoming,
    flows: Box<[Order]>,
    counts: Counts,
    latency: Histogram<u64>,
    /// The latency of frames whose number has these bits zero is recorded.
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
    /// A frame in `buffers` of a guest's memory, of which these lengths were written; a virtio-net
    /// header of `header_len` bytes comes first.
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

    /// Buffers of the frame by its virtio-net header.
    #[inline]
    pub fn announced(&self) -> usize {
        let mut count = [0; 2];
        if let Some(first) = self.buffers.first().filter(|first| first.len >= VNET_LEN as u32) {
            self.memory.read(first.addr + 10, &mut count);
        }
        u16::from_le_bytes(count).into()
    }

    /// Copies the frame's first bytes to `buf`; bytes beyond the frame's end stay as they are.
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
    /// A receiver of these frames. With `every`, the latency of every frame is recorded, else that
    /// of some.
    pub fn new(incoming: Incoming, every: bool) -> Self {
        Self {
            flows: vec![Order::default(); incoming.flows as usize].into(),
            incoming,
            counts: Counts::default(),
            latency: new_histogram(),
            sample: if every { 0 } else { SAMPLE - 1 },
            first_fault: None,
        }
    }

    /// Checks one frame; false if it is a multicast frame, which the generator does not check.
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
        let mut head = [0; 14];
        arrived.read_frame(&mut head);
        let ours = !self.incoming.shapes.first().is_foreign(&head);
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

    /// The shape that a frame should have: the only one, or that of the flow in its tag. `None`:
    /// the flow is none of this receiver's.
    #[inline]
    fn expected(&self, arrived: &Arrived) -> Option<&Shape> {
        let Incoming { shapes, receiver, .. } = &self.incoming;
        if !shapes.differ() {
            return Some(shapes.first());
        }
        let mut flow = [0; 4];
        arrived.read(arrived.header_len + shapes.first().flow_at(), &mut flow);
        let flow = u32::from_le_bytes(flow);
        shapes.is_for(flow, *receiver).then(|| shapes.of(flow))
    }

    #[inline]
    fn verify(&self, arrived: &Arrived) -> Result<Tag, Fault> {
        let shape = self.expected(arrived).ok_or(Fault::Tag)?;
        let skip = arrived.header_len;
        let (got, sent) = (arrived.len.saturating_sub(skip as u32), shape.len());
        if got != sent {
            return Err(Fault::Length { got, sent });
        }
        // The frame at a fixed place, the virtio-net header before it. Lengths that are constants
        // make copies without a loop.
        let mut bytes = [0; VNET_LEN + HEAD_MAX];
        match (skip, shape.head_len()) {
            (VNET_LEN, 64) => arrived.read(0, &mut bytes[..VNET_LEN + 64]),
            (VNET_LEN, HEAD_MAX) => arrived.read(0, &mut bytes),
            (_, len) => arrived.read(0, &mut bytes[VNET_LEN - skip..VNET_LEN + len]),
        }
        let Some((vnet, head)) = bytes.split_first_chunk::<VNET_LEN>() else {
            return Err(Fault::Tag);
        };
        shape.check_vnet(&vnet[VNET_LEN - skip..])?;
        let (tag, base) = shape.open(head.first_chunk().ok_or(Fault::Tag)?)?;
        if tag.flow as usize >= self.flows.len() {
            return Err(Fault::Tag);
        }
        if shape.has_words()
            && let Some(at) = wrong_word(shape, arrived, base)
        {
            return Err(Fault::Payload(at));
        }
        Ok(tag)
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
    pub fn report(&self) {
        self.incoming.counters.set_received(self.counts.good);
    }

    /// Forgets the latencies noted so far.
    pub fn reset_latency(&mut self) {
        self.latency.reset();
    }

    /// Counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The counters that this direction's sender and receiver share.
    pub fn counters(&self) -> &DirectionCounters {
        &self.incoming.counters
    }

    /// The sender's number.
    pub fn from(&self) -> u16 {
        self.incoming.from
    }

    /// Mean length of the frames, in bytes.
    pub fn mean_len(&self) -> f64 {
        let Incoming { shapes, flows, receiver, .. } = &self.incoming;
        shapes.mean_len(*flows, *receiver)
    }

    /// Latencies in ns, and the fault of the first wrong frame.
    pub fn into_parts(self) -> (Histogram<u64>, Option<String>) {
        (self.latency, self.first_fault)
    }
}

/// The place where the payload differs from what it should be.
fn wrong_word(shape: &Shape, arrived: &Arrived, base: u64) -> Option<usize> {
    let mut buffers = arrived.buffers.iter();
    // The buffer of the next word, and the buffer's place in the frame, virtio-net header
    // included.
    let (mut buffer, mut begin) = (*buffers.next()?, 0);
    for (at, len) in shape.words() {
        let place = arrived.header_len + at;
        while place >= begin + buffer.len as usize {
            let Some(next) = buffers.next() else { return Some(at) };
            begin += buffer.len as usize;
            buffer = *next;
        }
        let right = shape.word(base, at);
        let same = if len == 8 && place + 8 <= begin + buffer.len as usize {
            arrived.memory.read_word(buffer.addr + (place - begin) as u64) == right
        } else {
            let mut bytes = [0; 8];
            arrived.read(place, &mut bytes[..len]);
            bytes[..len] == right.to_le_bytes()[..len]
        };
        if !same {
            return Some(at);
        }
    }
    None
}

/// Latencies from 1 ns to a minute, with two significant digits.
fn new_histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, 60_000_000_000, 2) {
        Ok(histogram) => histogram,
        Err(e) => unreachable!("constant bounds: {e}"),
    }
}

#[cfg(test)]
mod tests;
