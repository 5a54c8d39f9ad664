//! The receiving side of the load generator: frames are verified, ordered and counted.

use std::sync::Arc;

use hdrhistogram::Histogram;
use ring::driver::{Piece, Window};

use super::direction_counters::DirectionCounters;
use super::order::{Arrival, Order};
use super::packet::{Fault, HEAD_MAX, Shape, Tag, VNET_LEN};

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

/// The receiving side of one direction.
pub struct Receiver {
    shape: Shape,
    counters: Arc<DirectionCounters>,
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
    /// A receiver of `flows` flows of frames of this shape. With `every`, the latency of every
    /// frame is recorded, else that of some.
    pub fn new(shape: Shape, counters: Arc<DirectionCounters>, flows: u32, every: bool) -> Self {
        Self {
            shape,
            counters,
            flows: vec![Order::default(); flows as usize].into(),
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
        let ours = !self.shape.is_foreign(&head);
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
            && let Some(at) = self.wrong_word(arrived, base)
        {
            return Err(Fault::Payload(at));
        }
        Ok(tag)
    }

    /// The place where the payload differs from what it should be.
    fn wrong_word(&self, arrived: &Arrived, base: u64) -> Option<usize> {
        let mut buffers = arrived.buffers.iter();
        // The buffer of the next word, and the buffer's place in the frame, virtio-net header
        // included.
        let (mut buffer, mut begin) = (*buffers.next()?, 0);
        for (at, len) in self.shape.words() {
            let place = arrived.header_len + at;
            while place >= begin + buffer.len as usize {
                let Some(next) = buffers.next() else { return Some(at) };
                begin += buffer.len as usize;
                buffer = *next;
            }
            let right = self.shape.word(base, at);
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
        self.counters.set_received(self.counts.good);
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
        &self.counters
    }

    /// Bytes of a frame.
    pub fn frame_len(&self) -> u32 {
        self.shape.len()
    }

    /// Latencies in ns, and the fault of the first wrong frame.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Verify;
    use crate::packet::Ends;
    use ring::Memory;

    const LEN: u32 = 3000;

    struct Bench {
        memory: Window,
        shape: Shape,
        receiver: Receiver,
    }

    impl Bench {
        fn new(verify: Verify) -> Self {
            let (memory, _) = Memory::shared(1 << 16).unwrap();
            let memory = Window::new(&Arc::new(memory), 0, 1 << 16, 64).unwrap();
            let shape = Shape::new(Ends { from: 0, to: 1 }, LEN, None, verify, 7);
            let receiver = Receiver::new(shape.clone(), Arc::default(), 4, true);
            Self { memory, shape, receiver }
        }

        /// Header and frame, as one run of bytes.
        fn frame(&self, flow: u32, seq: u32) -> Vec<u8> {
            let mut bytes = vec![0; VNET_LEN + LEN as usize];
            bytes[VNET_LEN..][..self.shape.headers().len()].copy_from_slice(self.shape.headers());
            let frame = &mut bytes[VNET_LEN..];
            let tag = Tag { flow, seq, time: 1 };
            let base = self
                .shape
                .stamp(tag, |at, piece| frame[at..at + piece.len()].copy_from_slice(piece));
            for (at, len) in self.shape.words() {
                frame[at..at + len]
                    .copy_from_slice(&self.shape.word(base, at).to_le_bytes()[..len]);
            }
            bytes
        }

        /// Lays `bytes` out in buffers of these lengths, not next to each other, and receives them.
        fn receive(&mut self, bytes: &[u8], lens: &[usize]) -> Counts {
            let (mut buffers, mut rest) = (Vec::new(), bytes);
            for (i, len) in lens.iter().enumerate() {
                let (now, later) = rest.split_at((*len).min(rest.len()));
                let addr = i as u64 * 4096 + 64;
                self.memory.write(addr, now);
                buffers.push(Piece { addr, len: now.len() as u32 });
                rest = later;
            }
            assert!(rest.is_empty());
            self.receiver.receive(&Arrived::new(&self.memory, &buffers, VNET_LEN), 5);
            self.receiver.counts()
        }
    }

    const SHAPES: [&[usize]; 5] =
        [&[4000], &[1500, 1500, 100], &[13, 3000], &[100, 7, 1, 2999], &[64, 12, 2940]];

    #[test]
    fn frames_are_read_across_buffers() {
        for verify in [Verify::Sampled, Verify::Full] {
            let mut bench = Bench::new(verify);
            for (i, shape) in SHAPES.iter().enumerate() {
                let bytes = bench.frame(0, i as u32);
                assert_eq!(bench.receive(&bytes, shape).good, i as u64 + 1, "{shape:?}");
            }
            assert_eq!(bench.receiver.counts().corrupt, 0);
        }
    }

    #[test]
    fn a_wrong_byte_is_found_at_any_place() {
        let mut bench = Bench::new(Verify::Full);
        let bytes = bench.frame(0, 0);
        for (i, at) in (VNET_LEN..bytes.len()).step_by(11).enumerate() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert_eq!(bench.receive(&wrong, SHAPES[i % 5]).corrupt, i as u64 + 1, "byte {at}");
        }
        assert_eq!(bench.receiver.counts().good, 0);
        let (_, fault) = bench.receiver.into_parts();
        assert!(fault.unwrap().contains("differ at byte 0"));
    }

    #[test]
    fn short_long_swapped_and_stale_frames_are_wrong() {
        let mut bench = Bench::new(Verify::Sampled);
        let (old, new) = (bench.frame(0, 0), bench.frame(0, 1));
        let wrong = [
            new[..new.len() - 1].to_vec(),
            [&new[..], &[0]].concat(),
            [&new[..1500], &new[2524..], &new[1500..2524]].concat(),
            [&new[..2000], &old[2000..]].concat(),
            new[..5].to_vec(),
            vec![0; new.len()],
        ];
        for (i, bytes) in wrong.iter().enumerate() {
            assert_eq!(bench.receive(bytes, &[1000, 3000]).corrupt, i as u64 + 1, "case {i}");
        }
        assert_eq!(bench.receive(&new, &[4000]).good, 1);
    }

    #[test]
    fn reordered_and_repeated_frames_are_counted_and_foreign_ones_are_not() {
        let mut bench = Bench::new(Verify::Sampled);
        for (flow, seq) in [(0, 0), (0, 2), (1, 0), (0, 1), (0, 1), (3, 9)] {
            let bytes = bench.frame(flow, seq);
            bench.receive(&bytes, &[4000]);
        }
        let bytes = bench.frame(4, 0);
        bench.receive(&bytes, &[4000]);
        let Counts { good, corrupt, reordered, duplicate } = bench.receiver.counts();
        assert_eq!((good, corrupt, reordered, duplicate), (5, 1, 1, 1), "flow 4 does not exist");
        let mut query = bench.frame(0, 3);
        query[VNET_LEN..][..12].copy_from_slice(&[1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 9]);
        assert_eq!(
            bench.receive(&query, &[4000]).corrupt,
            1,
            "frames to multicast addresses are not checked"
        );
    }
}
