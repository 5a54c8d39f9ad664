//! Receivers that misbehave.

use super::*;

pub fn receivers() -> Vec<Attack> {
    vec![
        running(
            "readable buffer to receive",
            Kind::SPLIT,
            Stops("readable descriptor"),
            |hostile, beacon| {
                hostile.describe_buffer(RX, 0, BUFFER, 2048, 0);
                shout(beacon);
            },
        ),
        running("buffer to receive outside", Kind::SPLIT, OUTSIDE, |hostile, beacon| {
            hostile.describe_any(RX, 0, GUEST + MEMORY - 1, 2048, WRITE, 0);
            shout(beacon);
        }),
        running(
            "available index of Rx ahead",
            Kind::SPLIT,
            Stops("available index jumped"),
            |hostile, beacon| {
                hostile.publish(RX, SIZE + 1);
                shout(beacon);
            },
        ),
        running("Rx loop", Kind::SPLIT, Stops("longer than 64, or a loop"), |hostile, beacon| {
            hostile.describe_any(RX, 0, GUEST + BUFFER, 10, WRITE | NEXT, 0);
            shout(beacon);
        }),
        running(
            "a bad buffer amid segments",
            Kind::SPLIT,
            Stops("readable descriptor"),
            |hostile, beacon| {
                hostile.describe_buffer(RX, 4, BUFFER, 2048, 0);
                assert!(beacon.send_big());
            },
        ),
        running("Rx buffers of no bytes", Kind::SPLIT, GoesOn, |hostile, beacon| {
            for i in 0..SIZE {
                hostile.describe_buffer(RX, i, BUFFER, 0, WRITE);
            }
            shout(beacon);
        }),
        running("no Rx buffers at all", Kind::SPLIT, GoesOn, |hostile, beacon| {
            hostile.publish(RX, 0);
            for _ in 0..8 {
                shout(beacon);
            }
        }),
        running("Rx buffers that are the ring itself", Kind::SPLIT, Waits, |hostile, beacon| {
            for i in 0..SIZE {
                // Descriptors, not indices: what is written there are frames, and what becomes of
                // them may be anything.
                hostile.describe_buffer(RX, i, desc(TX) + 16 * u64::from(i), 2048, WRITE);
            }
            shout(beacon);
        }),
    ]
}
