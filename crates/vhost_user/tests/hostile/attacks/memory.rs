//! Memory that changes under a running ring.

use super::*;

pub fn memory_games() -> Vec<Attack> {
    vec![
        running(
            "all memory cut off while frames flow",
            Kind::SPLIT,
            TRUNCATED,
            |hostile, beacon| {
                transmit(hostile, 64);
                shout(beacon);
                ftruncate(&hostile.buffers, 0).unwrap();
                ftruncate(&hostile.rings, 0).unwrap();
                hostile.kick(1);
                shout(beacon);
            },
        ),
        running(
            "packed: all memory cut off while frames flow",
            Kind::PACKED,
            TRUNCATED,
            |hostile, beacon| {
                transmit(hostile, 64);
                ftruncate(&hostile.rings, 0).unwrap();
                ftruncate(&hostile.buffers, 0).unwrap();
                hostile.kick(1);
                shout(beacon);
            },
        ),
        running("buffers to send from cut off", Kind::SPLIT, TRUNCATED, |hostile, _| {
            ftruncate(&hostile.buffers, 0).unwrap();
            for i in 0..8 {
                hostile.describe_buffer(TX, i, BUFFER + 0x1000, 100, 0);
            }
            hostile.publish(TX, 8);
        }),
        running("buffers to receive into cut off", Kind::SPLIT, TRUNCATED, |hostile, beacon| {
            ftruncate(&hostile.buffers, 0).unwrap();
            shout(beacon);
        }),
        running("rings cut off and grown again", Kind::SPLIT, Stops(""), |hostile, beacon| {
            transmit(hostile, 8);
            hears(beacon, 8);
            ftruncate(&hostile.rings, 0).unwrap();
            ftruncate(&hostile.rings, SECOND).unwrap();
            hostile.kick(1);
            shout(beacon);
        }),
        running("memory table without the rings", Kind::SPLIT, OUTSIDE, |hostile, _| {
            let table = [words(&[1, 0]), region(GUEST + SECOND, MEMORY - SECOND, USER + SECOND, 0)];
            hostile.say(code::SET_MEM_TABLE, &table.concat(), &[hostile.buffers.as_fd()]);
        }),
        running("memory tables again and again", Kind::SPLIT, GoesOn, |hostile, beacon| {
            for _ in 0..60 {
                hostile.share();
                shout(beacon);
                beacon.receive(|_| ());
            }
        }),
        running("regions that come and go", Kind::SPLIT, GoesOn, |hostile, _| {
            let other = memory(1 << 16);
            for i in 0..40 {
                let region =
                    [longs(&[0]), region(GUEST + MEMORY + i, 1 << 16, USER + MEMORY + i, 0)]
                        .concat();
                hostile.say(code::ADD_MEM_REG, &region, &[other.as_fd()]);
                hostile.say(code::REM_MEM_REG, &region, &[]);
            }
        }),
    ]
}
