//! Indices, chains, tables and packed rings that are invalid.

use super::*;

/// One Tx descriptor that points to a table, and the table.
fn table(hostile: &HostileFrontEnd, flags: u16, len: u32, table: &[u8]) {
    hostile.write(TABLE, table);
    one(hostile, GUEST + TABLE, len, flags | INDIRECT);
}

pub fn indices() -> Vec<Attack> {
    let jumped = Stops("available index jumped");
    vec![
        running("available index ahead by one too many", Kind::SPLIT, jumped, |hostile, _| {
            hostile.publish(TX, SIZE + 1);
        }),
        running("available index far ahead", Kind::SPLIT, jumped, |hostile, _| {
            hostile.publish(TX, 0x7fff)
        }),
        running("available index goes back", Kind::SPLIT, jumped, |hostile, beacon| {
            transmit(hostile, 8);
            crate::eventually("frames arrive", || beacon.receive(|_| ()));
            hostile.publish(TX, 2);
        }),
        running(
            "head beyond the table",
            Kind::SPLIT,
            Stops("descriptor index 64 in a table of 64"),
            |hostile, _| {
                hostile.write(driver(TX) + 4, &SIZE.to_le_bytes());
                hostile.write(driver(TX) + 2, &[1, 0]);
                hostile.kick(1);
            },
        ),
        running(
            "link beyond the table",
            Kind::SPLIT,
            Stops("descriptor index 65535 in a table of 64"),
            |hostile, _| {
                hostile.describe_any(TX, 0, GUEST, 100, NEXT, 0xffff);
                hostile.publish(TX, 1);
            },
        ),
    ]
}

pub fn chains() -> Vec<Attack> {
    vec![
        running(
            "descriptor linked to itself",
            Kind::SPLIT,
            Stops("longer than 64, or a loop"),
            |hostile, _| {
                hostile.describe_any(TX, 0, GUEST, 1, NEXT, 0);
                hostile.publish(TX, 1);
            },
        ),
        running("loop of two", Kind::SPLIT, Stops("longer than 64, or a loop"), |hostile, _| {
            hostile.describe_any(TX, 0, GUEST, 0, NEXT, 1);
            hostile.describe_any(TX, 1, GUEST, 0, NEXT, 0);
            hostile.publish(TX, 64);
        }),
        running(
            "writable buffer to send",
            Kind::SPLIT,
            Stops("writable descriptor"),
            |hostile, _| {
                one(hostile, GUEST + BUFFER, 100, WRITE);
            },
        ),
        running("buffer before the memory", Kind::SPLIT, OUTSIDE, |hostile, _| {
            one(hostile, GUEST - 1, 100, 0)
        }),
        running("buffer behind the memory", Kind::SPLIT, OUTSIDE, |hostile, _| {
            one(hostile, GUEST + MEMORY, 1, 0)
        }),
        running("buffer across the end", Kind::SPLIT, OUTSIDE, |hostile, _| {
            one(hostile, GUEST + MEMORY - 99, 100, 0)
        }),
        running("buffer of 4 GiB", Kind::SPLIT, OUTSIDE, |hostile, _| {
            one(hostile, GUEST, u32::MAX, 0)
        }),
        running("buffer around the end of all addresses", Kind::SPLIT, OUTSIDE, |hostile, _| {
            one(hostile, u64::MAX - 9, 100, 0);
        }),
        running("good frames before a bad one", Kind::SPLIT, OUTSIDE, |hostile, beacon| {
            for i in 0..5 {
                let at = frame(hostile, i.into(), &[0; 12], 60);
                hostile.describe_buffer(TX, i, at, 72, 0);
            }
            hostile.describe_any(TX, 5, 0, 72, 0, 0);
            hostile.publish(TX, 6);
            let mut count = 0;
            crate::eventually("the good ones arrive", || {
                beacon.receive(|_| count += 1);
                count >= 5
            });
        }),
    ]
}

pub fn tables() -> Vec<Attack> {
    let length = Stops("indirect table of");
    vec![
        running(
            "table that was not negotiated",
            Kind::SPLIT,
            Stops("without VIRTIO_F_INDIRECT_DESC"),
            |hostile, _| {
                table(hostile, 0, 16, &split(GUEST + BUFFER, 100, 0, 0));
            },
        ),
        running("table of no bytes", Kind::INDIRECT, length, |hostile, _| {
            table(hostile, 0, 0, &[])
        }),
        running("table of 15 bytes", Kind::INDIRECT, length, |hostile, _| {
            table(hostile, 0, 15, &[])
        }),
        running("table of 1025 entries", Kind::INDIRECT, length, |hostile, _| {
            table(hostile, 0, 1025 * 16, &[])
        }),
        running("table of 4 GiB", Kind::INDIRECT, length, |hostile, _| {
            table(hostile, 0, 0xffff_fff0, &[])
        }),
        running(
            "table in a table",
            Kind::INDIRECT,
            Stops("inside an indirect table"),
            |hostile, _| {
                table(hostile, 0, 16, &split(GUEST + TABLE, 16, INDIRECT, 0));
            },
        ),
        running(
            "table with a next descriptor",
            Kind::INDIRECT,
            Stops("with a next one"),
            |hostile, _| {
                table(hostile, NEXT, 16, &split(GUEST + BUFFER, 100, 0, 0));
            },
        ),
        running("table outside the memory", Kind::INDIRECT, OUTSIDE, |hostile, _| {
            one(hostile, GUEST - 16, 16, INDIRECT)
        }),
        running("table across the end", Kind::INDIRECT, OUTSIDE, |hostile, _| {
            hostile.write(MEMORY - 16, &split(GUEST, 1, NEXT, 1));
            one(hostile, GUEST + MEMORY - 16, 32, INDIRECT);
        }),
        running("table around the end of all addresses", Kind::INDIRECT, OUTSIDE, |hostile, _| {
            one(hostile, u64::MAX - 15, 32, INDIRECT);
        }),
        running(
            "loop in a table",
            Kind::INDIRECT,
            Stops("longer than 2, or a loop"),
            |hostile, _| {
                let entries = [split(GUEST, 1, NEXT, 1), split(GUEST, 1, NEXT, 0)];
                table(hostile, 0, 32, &entries.concat());
            },
        ),
        running(
            "link beyond a table",
            Kind::INDIRECT,
            Stops("descriptor index 9 in a table of 2"),
            |hostile, _| {
                table(hostile, 0, 32, &split(GUEST, 1, NEXT, 9));
            },
        ),
        running(
            "writable buffer in a table",
            Kind::INDIRECT,
            Stops("writable descriptor"),
            |hostile, _| {
                table(hostile, 0, 16, &split(GUEST, 1, WRITE, 0));
            },
        ),
        running("chain of 4 GiB", Kind::INDIRECT, Stops("4 GiB or more"), |hostile, _| {
            let entries: Vec<_> = (1..513u16)
                .flat_map(|i| split(GUEST, MEMORY as u32, if i < 512 { NEXT } else { 0 }, i))
                .collect();
            table(hostile, 0, 512 * 16, &entries);
        }),
        running(
            "chain of 2049 pieces",
            Kind::INDIRECT,
            Stops("more than 2048 pieces"),
            |hostile, _| {
                let entries: Vec<_> = (1..1025u16)
                    .flat_map(|i| split(GUEST + SECOND - 1, 2, if i < 1024 { NEXT } else { 0 }, i))
                    .collect();
                hostile.write(TABLE, &entries);
                hostile.describe_any(TX, 0, GUEST, 14, NEXT, 1);
                hostile.describe_any(TX, 1, GUEST + TABLE, 1024 * 16, INDIRECT, 0);
                hostile.publish(TX, 1);
            },
        ),
    ]
}

pub fn packed_rings() -> Vec<Attack> {
    vec![
        running(
            "packed: chain into nowhere",
            Kind::PACKED,
            Stops("not available"),
            |hostile, _| {
                hostile.describe_any(TX, 0, GUEST, 100, NEXT, 0);
                hostile.kick(1);
            },
        ),
        running(
            "packed: chain all around the ring",
            Kind::PACKED,
            Stops("not available"),
            |hostile, _| {
                for i in (0..SIZE).rev() {
                    hostile.describe_any(TX, i, GUEST, 1, NEXT, 0);
                }
                hostile.kick(1);
            },
        ),
        running(
            "packed: writable buffer to send",
            Kind::PACKED,
            Stops("writable descriptor"),
            |hostile, _| {
                one(hostile, GUEST + BUFFER, 100, WRITE);
            },
        ),
        running("packed: buffer outside", Kind::PACKED, OUTSIDE, |hostile, _| {
            one(hostile, 0, 100, 0)
        }),
        running(
            "packed: table that was not negotiated",
            Kind::PACKED,
            Stops("VIRTIO_F_INDIRECT_DESC"),
            |hostile, _| {
                one(hostile, GUEST + TABLE, 16, INDIRECT);
            },
        ),
        running(
            "packed: table in a table",
            Kind::PACKED_INDIRECT,
            Stops("inside an indirect table"),
            |hostile, _| {
                table(hostile, 0, 16, &packed(GUEST + TABLE, 16, 0, INDIRECT));
            },
        ),
        running(
            "packed: table with a next descriptor",
            Kind::PACKED_INDIRECT,
            Stops("with a next one"),
            |hostile, _| {
                one(hostile, GUEST + TABLE, 16, INDIRECT | NEXT);
            },
        ),
        running(
            "packed: table of 17 bytes",
            Kind::PACKED_INDIRECT,
            Stops("indirect table of 17"),
            |hostile, _| {
                one(hostile, GUEST + TABLE, 17, INDIRECT);
            },
        ),
        running(
            "packed: readable buffer to receive",
            Kind::PACKED,
            Stops("readable descriptor"),
            |hostile, beacon| {
                hostile.describe_buffer(RX, 0, BUFFER, 2048, 0);
                shout(beacon);
            },
        ),
        running("packed: all ids the same", Kind::PACKED, GoesOn, |hostile, beacon| {
            for i in 0..SIZE {
                let at = frame(hostile, i.into(), &[0; 12], 60);
                hostile.describe_any(TX, i, GUEST + at, 72, 0, 7);
            }
            hostile.kick(1);
            hears(beacon, 64);
        }),
    ]
}
