//! A device ring in memory that says anything, and changes at any time.

use std::sync::Arc;

use ring::{
    Chain, DeviceRing, Gather, GrantCopyBatch, Memory, Put, RegionSpec, RingConfig, Violation,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::input::Input;

/// Bytes of the peer's memory: at guest addresses from 0 on, and as a second region with a hole
/// before it.
const BYTES: u64 = 32 << 10;
const SECOND: u64 = 0x1_0000_0000;

/// Most steps of one run.
const STEPS: usize = 300;

/// One ring's life. It is used in both directions, as no port does it, but as the trait allows.
pub fn run<R: DeviceRing>(data: &[u8]) {
    let mut input = Input::new(data);
    let memory = memory();
    let config = config(&mut input);
    let at = u64::from(input.u8()) * 16;
    let len = usize::from(input.u16() % 2048);
    write(&memory, at, input.take(len));
    let Ok(ring) = R::new(Arc::clone(&memory), &config) else { return };
    let mut bench = Bench {
        ring,
        memory,
        gather: Gather::new(0),
        chains: Vec::new(),
        size: config.size.into(),
    };
    for _ in 0..STEPS {
        if input.is_empty() || bench.step(&mut input).is_err() {
            break;
        }
        assert!(bench.ring.in_flight() <= bench.size);
    }
    bench.ring.position();
}

/// A peer's memory: two regions of a file.
pub fn memory() -> Arc<Memory> {
    let fd = memfd_create(c"fuzz", MemfdFlags::CLOEXEC).expect("a memory file");
    ftruncate(&fd, 2 * BYTES).expect("room");
    let region = |guest_addr, offset| RegionSpec {
        guest_addr,
        user_addr: guest_addr,
        len: BYTES,
        offset,
        fd: fd.try_clone().expect("a descriptor"),
    };
    Arc::new(Memory::map(vec![region(0, 0), region(SECOND, BYTES)]).expect("memory"))
}

/// Writes what lies within the memory.
pub fn write(memory: &Memory, at: u64, bytes: &[u8]) {
    // Beyond the end there is nothing to be written.
    let _ = memory.write(at, bytes);
}

/// A ring that can be, most of the time.
pub fn config(input: &mut Input<'_>) -> RingConfig {
    let kind = input.u8();
    let size = match kind & 7 {
        0 => input.u16(),
        other => 2 << other,
    };
    let place = |input: &mut Input<'_>, usual| if input.u8() < 8 { input.u64() } else { usual };
    RingConfig {
        size,
        desc: place(input, 0),
        driver: place(input, 0x1000),
        device: place(input, 0x2000),
        event_idx: kind & 8 != 0,
        indirect: kind & 16 != 0,
        start: if kind & 32 != 0 { input.u32() } else { 0x8000 * u32::from(kind >> 6 & 1) },
    }
}

/// Any bytes in one of the areas.
pub fn scribble(memory: &Memory, input: &mut Input<'_>) {
    let area = [0, 0x1000, 0x2000, 0x3000][input.below(4) as usize];
    let (at, len) = (area + u64::from(input.u8()), usize::from(input.u8() % 32));
    write(memory, at, input.take(len));
}

/// Something that is a descriptor in either layout.
pub fn describe(memory: &Memory, input: &mut Input<'_>) {
    let table = if input.u8() < 200 { 0 } else { 0x3000 };
    let slot = u64::from(input.u8() % 16);
    let addr = match input.u8() {
        0..16 => input.u64(),
        16..32 => SECOND + BYTES - 8,
        other => u64::from(other) * 64,
    };
    let (len, flags, next) = (input.u16() % 3000, input.u16(), input.u16() % 18);
    let split = [
        &addr.to_le_bytes()[..],
        &u32::from(len).to_le_bytes(),
        &(flags & 7).to_le_bytes(),
        &next.to_le_bytes(),
    ];
    let packed = [split[0], split[1], &next.to_le_bytes(), &flags.to_le_bytes()];
    let bytes = if input.u8() & 1 == 0 { split.concat() } else { packed.concat() };
    write(memory, table + 16 * slot, &bytes);
}

/// An available index.
pub fn publish(memory: &Memory, input: &mut Input<'_>) {
    let index = input.u16();
    let index = if input.u8() < 230 { index % 64 } else { index };
    write(memory, 0x1002, &index.to_le_bytes());
}

struct Bench<R> {
    ring: R,
    memory: Arc<Memory>,
    gather: Gather,
    chains: Vec<Chain>,
    size: usize,
}

impl<R: DeviceRing> Bench<R> {
    fn step(&mut self, input: &mut Input<'_>) -> Result<(), Violation> {
        match input.below(16) {
            0..3 => scribble(&self.memory, input),
            3 => describe(&self.memory, input),
            4 => publish(&self.memory, input),
            5..8 => self.fetch(input)?,
            8 => {
                let n = usize::from(input.u8()).min(self.ring.in_flight());
                self.ring.complete(n);
            }
            9 => {
                let n = usize::from(input.u8()).min(self.ring.in_flight());
                self.ring.rewind(n);
            }
            10 => drop(self.ring.prepare(usize::from(input.u8()) * 2)?),
            11..13 => self.put(input)?,
            13 => drop(self.ring.publish()),
            14 => {
                self.ring.arm()?;
                self.ring.disarm();
                self.ring.available()?;
            }
            _ => {
                let memory = if input.u8() < 16 { memory() } else { Arc::clone(&self.memory) };
                self.ring.set_memory(Arc::clone(&memory))?;
                self.memory = memory;
            }
        }
        Ok(())
    }

    fn fetch(&mut self, input: &mut Input<'_>) -> Result<(), Violation> {
        self.gather.clear();
        self.chains.clear();
        let max = usize::from(input.u8());
        let count = self.ring.fetch(&mut self.gather, &mut self.chains, max)?;
        assert!(count == self.chains.len() && count <= max);
        for &chain in &self.chains {
            let mut bytes = [0; 3000];
            let body = self.gather.body(chain);
            let tail = body.slice(chain.len() / 2, 100);
            assert_eq!(body.read(&mut bytes), bytes.len().min(chain.len() as usize));
            assert_eq!(tail.len(), 100.min(chain.len() - chain.len() / 2));
        }
        Ok(())
    }

    /// A frame into the ring: some private bytes, and what was fetched before.
    fn put(&mut self, input: &mut Input<'_>) -> Result<(), Violation> {
        let kind = input.u8();
        let mut net = [0; 12];
        let net = if kind & 1 == 0 { &mut net[..] } else { &mut net[..10] };
        let head = [7; 128];
        let chain = self.chains.get(usize::from(kind >> 2)).copied().unwrap_or_default();
        let body = self.gather.body(chain).slice(0, 70_000);
        let put = self.ring.put(
            net,
            &head[..usize::from(input.u8() % 129)],
            body,
            kind & 2 == 0,
            &mut GrantCopyBatch::new(),
        )?;
        assert!(put != Put::Refused);
        Ok(())
    }
}
