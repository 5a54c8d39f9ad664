//! In-flight records that say anything, and rings that go on from them.

use std::collections::BTreeSet;
use std::sync::Arc;

use ring::inflight::RingRecord;
use ring::{IoChain, Memory, RequestRing, RingConfig};

use crate::input::Input;
use crate::rings::{config, describe, memory, publish, scribble, write};

/// Most steps of one run.
const STEPS: usize = 300;

/// Bytes that hold records, which a front-end writes to as well.
const RECORDS: usize = 16 << 10;

/// A ring, the back-ends that serve it one after the other, and the record that they leave.
struct Life {
    memory: Arc<Memory>,
    records: Arc<Memory>,
    config: RingConfig,
    at: u64,
    packed: bool,
}

/// One ring's life over several back-ends. `packed`: the layout of `R`.
pub fn run<R: RequestRing>(packed: bool, data: &[u8]) {
    let mut input = Input::new(data);
    let config = config(&mut input);
    let at = if input.u8() < 16 { u64::from(input.u16()) } else { 64 };
    let records = Arc::new(Memory::anonymous(RECORDS).expect("memory"));
    let life = Life { memory: memory(), records, config, at, packed };
    let at = u64::from(input.u8()) * 16;
    let len = usize::from(input.u16() % 2048);
    write(&life.memory, at, input.take(len));
    if input.u8() & 1 == 0 {
        RingRecord::create(Arc::clone(&life.records), life.at, packed, config.size);
    }
    for _ in 0..8 {
        if input.is_empty() || !life.serve::<R>(&mut input) {
            break;
        }
    }
}

impl Life {
    /// One back-end. False: there cannot be another.
    fn serve<R: RequestRing>(&self, input: &mut Input<'_>) -> bool {
        (0..input.below(6)).for_each(|_| self.scribble(input));
        let record = RingRecord::open(Arc::clone(&self.records), self.at, self.config.size);
        let Ok((mut ring, _)) = R::start(Arc::clone(&self.memory), &self.config, record) else {
            return false;
        };
        let (mut taken, mut chain) = (BTreeSet::new(), IoChain::default());
        for _ in 0..STEPS {
            match input.below(12) {
                0 => scribble(&self.memory, input),
                1 => describe(&self.memory, input),
                2 => publish(&self.memory, input),
                3 => self.scribble(input),
                4..8 => match ring.take(&mut chain) {
                    Ok(Some(token)) => {
                        assert!(token < self.config.size);
                        assert!(taken.insert(token), "taken twice: {token}");
                    }
                    Ok(None) => {}
                    Err(_) => return true,
                },
                8..10 => {
                    // Any, also such as are not in flight.
                    let token = match taken.len() {
                        0 => input.u16(),
                        len => *taken.iter().nth(input.below(len as u32) as usize).expect("one"),
                    };
                    ring.complete(token, input.u32());
                    taken.remove(&token);
                }
                10 => drop(ring.publish()),
                _ if input.is_empty() || input.u8() < 64 => break,
                _ => match ring.arm() {
                    Ok(_) => ring.disarm(),
                    Err(_) => return true,
                },
            }
            assert_eq!(ring.in_flight(), taken.len());
            assert!(taken.len() <= usize::from(self.config.size));
        }
        ring.position();
        // The next one comes after this one was killed.
        true
    }

    /// Any bytes in a field of the header, or in an entry.
    fn scribble(&self, input: &mut Input<'_>) {
        let (header, entry) = if self.packed { (32, 32) } else { (16, 16) };
        let offset = match input.u8() {
            0..64 => u64::from(input.u8()) % header,
            _ => header + entry * u64::from(input.u16() % 64) + u64::from(input.u8()) % entry,
        };
        let len = 1 + usize::from(input.u8() % 8);
        write(&self.records, self.at + offset, input.take(len));
    }
}
