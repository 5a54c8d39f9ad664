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
        let (shapes, counters) = (Shapes::same(shape.clone()), Arc::default());
        let incoming = Incoming { from: 0, receiver: 0, shapes, counters, flows: 4 };
        let receiver = Receiver::new(incoming, true);
        Self { memory, shape, receiver }
    }

    /// Header and frame, as one run of bytes.
    fn frame(&self, flow: u32, seq: u32) -> Vec<u8> {
        let mut bytes = vec![0; VNET_LEN + LEN as usize];
        self.shape.write(Tag { flow, seq, time: 1 }, &mut bytes[VNET_LEN..]);
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
