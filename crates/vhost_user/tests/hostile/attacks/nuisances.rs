//! Work that a front-end causes at no cost of its own.

use super::*;

pub fn nuisances() -> Vec<Attack> {
    vec![
        running("runts, giants and lying offloads", Kind::SPLIT, GoesOn, |hostile, _| {
            for i in 0..SIZE {
                let mut offload = [0; 12];
                offload[..10].copy_from_slice(&[
                    1,
                    (i % 7) as u8,
                    9,
                    0,
                    i as u8,
                    0,
                    i as u8,
                    (i / 9) as u8,
                    250,
                    0,
                ]);
                let at = frame(hostile, i.into(), &offload, 100);
                let len = [0, 1, 12, 13, 25, 26, 112, 70_000][usize::from(i % 8)];
                hostile.describe_buffer(TX, i, at, len, 0);
            }
            hostile.publish(TX, SIZE);
        }),
        running("addresses that are others'", Kind::SPLIT, GoesOn, |hostile, _| {
            for i in 0..SIZE {
                let at = frame(hostile, i.into(), &[0; 12], 60);
                hostile.write(at + 18, &crate::station::address(1 + i as u8 % 2));
                hostile.describe_buffer(TX, i, at, 72, 0);
            }
            hostile.publish(TX, SIZE);
        }),
        running("a flood of new addresses", Kind::SPLIT, GoesOn, |hostile, beacon| {
            for round in 1..20u16 {
                for i in 0..SIZE {
                    let at = frame(hostile, i.into(), &[0; 12], 60);
                    hostile.write(at + 18, &[0x52, 0x54, 7, 7, round as u8, i as u8]);
                    hostile.describe_buffer(TX, i, at, 72, 0);
                }
                hostile.write(
                    driver(TX) + 4,
                    &(0..SIZE).flat_map(u16::to_le_bytes).collect::<Vec<_>>(),
                );
                hostile.write(driver(TX) + 2, &(round * SIZE).to_le_bytes());
                hostile.kick(1);
                hears(beacon, 64);
            }
        }),
        running(
            "rings enabled and disabled without end",
            Kind::SPLIT,
            GoesOn,
            |hostile, beacon| {
                for i in 0..200 {
                    hostile.say(code::SET_VRING_ENABLE, &words(&[i % 2, i / 2 % 2]), &[]);
                    if i % 50 == 0 {
                        transmit(hostile, 64);
                        shout(beacon);
                    }
                }
            },
        ),
        running("headers rewritten while they are read", Kind::SPLIT, Waits, |hostile, _| {
            transmit(hostile, 64);
            for i in 0..2000u64 {
                hostile.write(BUFFER + 0x10_0000 + 2048 * (i % 64), &[i as u8; 40]);
                hostile.write(desc(TX) + 16 * (i % 64) + 8, &[(i % 100) as u8]);
            }
        }),
    ]
}
