//! Rings full of garbage.

use super::*;

/// While another thread scribbles all over ring and descriptors, the worst is a violation.
fn survives_a_scribbler<M: Model>() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let mem = memory();
    let model = M::new(mem.clone(), 64, M::origin());
    let config = model.config();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 1;
            while !stop.load(Ordering::Relaxed) {
                for at in (0..0x700).step_by(2) {
                    seed = u32::wrapping_mul(seed, 1664525).wrapping_add(1013904223);
                    // Small numbers, and the flags of both layouts.
                    let word = [(seed >> 24) as u16 & 63, (seed >> 24) as u16 & 0x8087, 0]
                        [(seed >> 20) as usize % 3];
                    mem.write(crate::model::RING + at, &word.to_le_bytes()).unwrap();
                }
            }
        });
        let (mut gather, mut chains) = (Gather::new(0), Vec::new());
        let mut device = M::Device::new(mem.clone(), &config).unwrap();
        for round in 0..20_000 {
            gather.clear();
            chains.clear();
            let result = if round / 100 % 2 == 0 {
                device.fetch(&mut gather, &mut chains, 40).map(|n| device.complete(n))
            } else {
                device
                    .prepare(40)
                    .and_then(|_| {
                        device.put(
                            &mut [0; 12],
                            &[1; 300],
                            Body::empty(),
                            true,
                            &mut GrantCopyBatch::new(),
                        )
                    })
                    .map(drop)
            };
            for chain in &chains {
                gather.body(*chain).read(&mut [0; 2000]);
            }
            device.publish();
            if result.is_err() || round % 100 == 99 {
                device = M::Device::new(mem.clone(), &config).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_scribbling_peer_is_survived() {
    survives_a_scribbler::<Split>();
    survives_a_scribbler::<Packed>();
}

/// Whatever bytes are in the ring, nothing is worse than a violation.
fn survives<M: Model>(size: u16, mergeable: bool, bytes: &[u8], seed: u32) {
    let mem = memory();
    let model = M::new(mem.clone(), size, M::origin());
    // Descriptors and indices at random, but often enough plausible.
    let mut ring = noise(seed, 40 * usize::from(size));
    for chunk in ring.chunks_mut(16) {
        if chunk[0] % 4 != 0 {
            chunk[2..].fill(0);
            chunk[8] = chunk[0];
            chunk[12] = chunk[1] & 7;
            chunk[14] = (chunk[0] >> 2) & 3 | 0x80;
        }
    }
    mem.write(crate::model::RING, &ring).unwrap();
    for (i, &byte) in bytes.iter().enumerate() {
        mem.write(crate::model::RING + (i as u64 * 61) % (28 * u64::from(size)), &[byte]).unwrap();
    }
    let config = model.config();
    let (mut gather, mut chains) = (Gather::new(0), Vec::new());
    for receive in [false, true] {
        let mut device = M::Device::new(mem.clone(), &config).unwrap();
        for round in 0..20u16 {
            let index = config.driver + 2;
            mem.write(index, &(round * (size / 4)).to_le_bytes()).unwrap();
            let result = if receive {
                let mut net = [0; 12];
                device
                    .prepare(40)
                    .and_then(|_| {
                        device.put(
                            &mut net,
                            &[1; 300],
                            Body::empty(),
                            mergeable,
                            &mut GrantCopyBatch::new(),
                        )
                    })
                    .map(|_| ())
            } else {
                gather.clear();
                chains.clear();
                device.fetch(&mut gather, &mut chains, 40).map(|n| {
                    for chain in &chains {
                        gather.body(*chain).read(&mut [0; 2000]);
                    }
                    device.complete(n / 2);
                    device.rewind(n / 4);
                })
            };
            device.publish();
            let _ = (device.arm(), device.available());
            device.disarm();
            if result.is_err() {
                break;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn garbage_is_survived(
        size in 1u32..7,
        mergeable in any::<bool>(),
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        seed in any::<u32>(),
    ) {
        survives::<Split>(1 << size, mergeable, &bytes, seed);
        survives::<Packed>(1 << size, mergeable, &bytes, seed);
    }
}
