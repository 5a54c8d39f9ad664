//! Messages in an order that is not allowed.

use super::*;

pub fn orders() -> Vec<Attack> {
    vec![
        fresh(
            "features that are not offered",
            Stops("SET_FEATURES with 0x8000000000000000"),
            |hostile, _| {
                hostile.say(code::SET_FEATURES, &longs(&[1 << 63]), &[]);
            },
        ),
        fresh(
            "protocol features that are not offered",
            Stops("SET_PROTOCOL_FEATURES with 0x40"),
            |hostile, _| {
                hostile.say(code::SET_PROTOCOL_FEATURES, &longs(&[0x40]), &[]);
            },
        ),
        running(
            "features changed while rings run",
            Kind::SPLIT,
            Stops("while rings are started"),
            |hostile, _| {
                hostile.say(code::SET_FEATURES, &longs(&[Kind::PACKED.features()]), &[]);
            },
        ),
        running(
            "size changed while the ring runs",
            Kind::SPLIT,
            Stops("SET_VRING_NUM for ring 1"),
            |hostile, _| {
                hostile.say(code::SET_VRING_NUM, &words(&[1, 128]), &[]);
            },
        ),
        running(
            "place changed while the ring runs",
            Kind::SPLIT,
            Stops("SET_VRING_ADDR for ring 1"),
            |hostile, _| {
                hostile.place(1, desc(0), driver(0), device(0));
            },
        ),
        running(
            "position changed while the ring runs",
            Kind::SPLIT,
            Stops("SET_VRING_BASE for ring 0"),
            |hostile, _| {
                hostile.say(code::SET_VRING_BASE, &words(&[0, 9]), &[]);
            },
        ),
        fresh(
            "a ring that the port does not have",
            Stops("SET_VRING_NUM for ring 4"),
            |hostile, _| {
                hostile.say(code::SET_VRING_NUM, &words(&[4, 64]), &[]);
            },
        ),
        fresh(
            "a ring that no port has",
            Stops("GET_VRING_BASE for ring 4294967295"),
            |hostile, _| {
                hostile.say(code::GET_VRING_BASE, &words(&[u32::MAX, 0]), &[]);
            },
        ),
        fresh("a kick before anything else", Waits, |hostile, _| {
            hostile.wire(0);
            hostile.wire(1);
            hostile.kick(1);
        }),
        fresh("memory last", GoesOn, |hostile, _| {
            hostile.say(code::SET_FEATURES, &longs(&[Kind::SPLIT.features()]), &[]);
            for ring in [1, 0] {
                hostile.wire(ring);
                hostile.describe(ring);
            }
            hostile.share();
        }),
        fresh("a ring of no entries", Stops("queue size 0 is not allowed"), |hostile, _| {
            sized(hostile, 0)
        }),
        fresh("a ring of 48 entries", Stops("queue size 48 is not allowed"), |hostile, _| {
            sized(hostile, 48)
        }),
        fresh("a ring of 65535 entries", Stops("queue size 65535 is not allowed"), |hostile, _| {
            sized(hostile, 65535)
        }),
        fresh("a ring of 65536 entries", Stops("SET_VRING_NUM of 65536"), |hostile, _| {
            sized(hostile, 65536)
        }),
        fresh("a ring at an odd place", Stops("is not aligned to"), |hostile, _| {
            placed(hostile, desc(1) + 8, device(1))
        }),
        fresh("a ring in no memory", Stops("its used ring at user address"), |hostile, _| {
            placed(hostile, desc(1), MEMORY)
        }),
        fresh("a ring across the end", Stops("is outside the peer's memory"), |hostile, _| {
            placed(hostile, desc(1), MEMORY - 16);
        }),
        fresh("a ring across two regions", Stops("is outside the peer's memory"), |hostile, _| {
            placed(hostile, SECOND - 16, device(1));
        }),
        fresh(
            "a position beyond 16 bits",
            Stops("start position 0x10000 is outside"),
            |hostile, _| {
                hostile.share();
                hostile.say(code::SET_VRING_BASE, &words(&[1, 0x10000]), &[]);
                hostile.describe(1);
                hostile.wire(1);
            },
        ),
        running("reset under traffic", Kind::SPLIT, GoesOn, |hostile, beacon| {
            transmit(hostile, 64);
            shout(beacon);
            hostile.say(code::RESET_DEVICE, &[], &[]);
            hostile.say(code::RESET_OWNER, &[], &[]);
        }),
        running(
            "started again where it was not",
            Kind::SPLIT,
            Stops("available index jumped"),
            |hostile, _| {
                transmit(hostile, 8);
                hostile.say(code::GET_VRING_BASE, &words(&[1, 0]), &[]);
                hostile.say(code::SET_VRING_BASE, &words(&[1, 30000]), &[]);
                hostile.wire(1);
                hostile.kick(1);
            },
        ),
        running("an MTU beyond the port's", Kind::SPLIT, Stops("MTU 9000"), |hostile, _| {
            hostile.say(code::NET_SET_MTU, &longs(&[9000]), &[]);
        }),
    ]
}
