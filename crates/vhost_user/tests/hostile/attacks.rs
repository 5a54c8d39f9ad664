//! The table of attacks.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_setfl, ftruncate, open};

use crate::Beacon;
use crate::front_end::*;
use crate::logs::logs;

/// The required outcome of an attack.
#[derive(Clone, Copy)]
pub enum Outcome {
    /// The port is stopped, and says this.
    Stops(&'static str),
    /// The port goes on, and still answers.
    GoesOn,
    /// The port waits for more.
    Waits,
}

use Outcome::{GoesOn, Stops, Waits};

/// One way to be hostile.
pub struct Attack {
    pub name: &'static str,
    pub kind: Kind,
    /// Whether the rings run when it begins.
    pub started: bool,
    pub outcome: Outcome,
    pub act: fn(&mut HostileFrontEnd, &mut Beacon),
}

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

const TX: u64 = 1;
const RX: u64 = 0;

const OUTSIDE: Outcome = Stops("is outside the peer's memory");
const TRUNCATED: Outcome = Stops("the file behind the peer's memory was truncated");
const BLOCKS: Outcome = Stops("the interrupt's event descriptor is full, and was made blocking");

/// All of them.
pub fn all() -> Vec<Attack> {
    [
        indices(),
        chains(),
        tables(),
        packed_rings(),
        receivers(),
        memory_games(),
        events(),
        messages(),
        orders(),
        lies(),
        nuisances(),
        logs(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub fn running(
    name: &'static str,
    kind: Kind,
    outcome: Outcome,
    act: fn(&mut HostileFrontEnd, &mut Beacon),
) -> Attack {
    Attack { name, kind, started: true, outcome, act }
}

fn fresh(
    name: &'static str,
    outcome: Outcome,
    act: fn(&mut HostileFrontEnd, &mut Beacon),
) -> Attack {
    Attack { name, kind: Kind::SPLIT, started: false, outcome, act }
}

/// A broadcast frame in buffer `slot`, with an offload header before it.
fn frame(hostile: &HostileFrontEnd, slot: u64, offload: &[u8; 12], len: usize) -> u64 {
    let at = BUFFER + 0x10_0000 + 2048 * slot;
    let mut bytes = offload.to_vec();
    bytes.extend([0xff; 6]);
    bytes.extend([0x52, 0x54, 0, 0, 9, 9, 0x88, 0xb6]);
    bytes.resize(12 + len, 0);
    hostile.write(at, &bytes);
    at
}

/// Makes `count` good frames available on the Tx ring, from its start.
pub fn transmit(hostile: &HostileFrontEnd, count: u16) {
    for i in 0..count {
        let at = frame(hostile, i.into(), &[0; 12], 60);
        hostile.describe_buffer(TX, i, at, 72, 0);
    }
    hostile.publish(TX, count);
}

/// One Tx descriptor.
fn one(hostile: &HostileFrontEnd, addr: u64, len: u32, flags: u16) {
    hostile.describe_any(TX, 0, addr, len, flags, 1);
    hostile.publish(TX, 1);
}

/// One Tx descriptor that points to a table, and the table.
fn table(hostile: &HostileFrontEnd, flags: u16, len: u32, table: &[u8]) {
    hostile.write(TABLE, table);
    one(hostile, GUEST + TABLE, len, flags | INDIRECT);
}

fn indices() -> Vec<Attack> {
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

fn chains() -> Vec<Attack> {
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

fn tables() -> Vec<Attack> {
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

fn packed_rings() -> Vec<Attack> {
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

/// The beacon says something to everybody.
pub fn shout(beacon: &mut Beacon) {
    beacon.send(0, [0xff; 6], 9, 1, 200);
}

/// The beacon hears so many frames, or more.
fn hears(beacon: &mut Beacon, frames: usize) {
    let mut count = 0;
    crate::eventually("frames arrive", || {
        beacon.receive(|_| count += 1);
        count >= frames
    });
}

fn receivers() -> Vec<Attack> {
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

fn memory_games() -> Vec<Attack> {
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

/// Fills the counter of `event`, and makes it block.
fn trap(event: &OwnedFd) {
    fill(event);
    fcntl_setfl(event, OFlags::empty()).unwrap();
}

fn fill(event: &OwnedFd) {
    // Fails when it is full by now.
    let _ = rustix::io::read(event, &mut [0; 8]);
    let _ = rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes());
}

fn null() -> OwnedFd {
    open("/dev/null", OFlags::RDWR, Mode::empty()).unwrap()
}

fn events() -> Vec<Attack> {
    vec![
        running("Tx interrupt that blocks", Kind::SPLIT, BLOCKS, |hostile, _| {
            trap(&hostile.calls[1]);
            transmit(hostile, 8);
        }),
        running("Rx interrupt that blocks", Kind::SPLIT, BLOCKS, |hostile, beacon| {
            trap(&hostile.calls[0]);
            shout(beacon);
        }),
        running("packed: interrupt that blocks", Kind::PACKED, BLOCKS, |hostile, _| {
            trap(&hostile.calls[1]);
            transmit(hostile, 8);
        }),
        running("interrupts that are full", Kind::SPLIT, GoesOn, |hostile, beacon| {
            hostile.calls.iter().for_each(fill);
            transmit(hostile, 60);
            shout(beacon);
            hears(beacon, 60);
        }),
        running("kick that is full, and blocks", Kind::SPLIT, GoesOn, |hostile, beacon| {
            trap(&hostile.kicks[1]);
            hostile.say(code::SET_VRING_KICK, &longs(&[1]), &[hostile.kicks[1].as_fd()]);
            hostile.wait_until_idle();
            hostile.kicks[1] = event();
            transmit(hostile, 8);
            hostile.say(code::SET_VRING_KICK, &longs(&[1]), &[hostile.kicks[1].as_fd()]);
            hostile.kick(1);
            hears(beacon, 8);
        }),
        running("kick taken away: poll", Kind::SPLIT, GoesOn, |hostile, beacon| {
            hostile.say(code::SET_VRING_KICK, &longs(&[1 | 1 << 8]), &[]);
            transmit(hostile, 8);
            hears(beacon, 8);
        }),
        running("one event for everything", Kind::SPLIT, GoesOn, |hostile, beacon| {
            let event = event();
            for request in [code::SET_VRING_KICK, code::SET_VRING_CALL, code::SET_VRING_ERR] {
                for ring in [0, 1] {
                    hostile.say(request, &longs(&[ring]), &[event.as_fd()]);
                }
            }
            hostile.kicks[1] = event;
            transmit(hostile, 8);
            hears(beacon, 8);
        }),
        running(
            "call that is a device",
            Kind::SPLIT,
            Stops("SET_VRING_CALL for ring 1 brings"),
            |hostile, _| {
                hostile.say(code::SET_VRING_CALL, &longs(&[1]), &[null().as_fd()]);
            },
        ),
        running(
            "kick that is memory",
            Kind::SPLIT,
            Stops("SET_VRING_KICK for ring 0 brings"),
            |hostile, _| {
                hostile.say(code::SET_VRING_KICK, &longs(&[0]), &[hostile.rings.as_fd()]);
            },
        ),
        running(
            "error that is a socket",
            Kind::SPLIT,
            Stops("SET_VRING_ERR for ring 0 brings"),
            |hostile, _| {
                hostile.say(code::SET_VRING_ERR, &longs(&[0]), &[hostile.stream.as_fd()]);
            },
        ),
        running(
            "kick that is an epoll set",
            Kind::SPLIT,
            Stops("SET_VRING_KICK for ring 1 brings"),
            |hostile, _| {
                let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)
                    .unwrap();
                hostile.say(code::SET_VRING_KICK, &longs(&[1]), &[set.as_fd()]);
            },
        ),
    ]
}

fn messages() -> Vec<Attack> {
    vec![
        fresh("a byte, and the end", Stops("ended in the middle of a message"), |hostile, _| {
            hostile.send(&[1], &[]);
            hostile.stream.shutdown(std::net::Shutdown::Both).unwrap();
        }),
        fresh(
            "half a payload, and the end",
            Stops("ended in the middle of a message"),
            |hostile, _| {
                hostile.send(&[2, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 1, 2], &[]);
                hostile.stream.shutdown(std::net::Shutdown::Write).unwrap();
            },
        ),
        fresh("half a header, and silence", Waits, |hostile, _| {
            hostile.send(&[2, 0, 0, 0, 1], &[])
        }),
        fresh("half a payload with descriptors, and silence", Waits, |hostile, _| {
            hostile.send(
                &[5, 0, 0, 0, 1, 0, 0, 0, 72, 0, 0, 0, 1],
                &[hostile.rings.as_fd(), hostile.buffers.as_fd()],
            );
        }),
        fresh("version 0", Stops("protocol version 0"), |hostile, _| {
            hostile.send(&words(&[1, 0, 0]), &[])
        }),
        fresh("a reply", Stops("calls itself a reply"), |hostile, _| {
            hostile.send(&words(&[1, 5, 0]), &[])
        }),
        fresh("4097 bytes announced", Stops("SET_MEM_TABLE announces 4097"), |hostile, _| {
            hostile.send(&words(&[5, 1, 4097]), &[]);
        }),
        fresh("4 GiB announced", Stops("announces 4294967295"), |hostile, _| {
            hostile.send(&words(&[1, 1, u32::MAX]), &[])
        }),
        fresh("a payload where none is", Stops("SET_OWNER with a payload of 8"), |hostile, _| {
            hostile.say(3, &[0; 8], &[])
        }),
        fresh(
            "no payload where one is",
            Stops("SET_VRING_ADDR with a payload of 0"),
            |hostile, _| hostile.say(9, &[], &[]),
        ),
        fresh("a longer payload", Stops("SET_FEATURES with a payload of 4096"), |hostile, _| {
            hostile.say(2, &[0; 4096], &[])
        }),
        fresh("unknown request", Stops("unknown request 4242"), |hostile, _| {
            hostile.say(4242, &[], &[])
        }),
        fresh(
            "a request that is not offered",
            Stops("SET_LOG_BASE, which is not offered"),
            |hostile, _| {
                hostile.say(code::SET_LOG_BASE, &[0; 16], &[hostile.rings.as_fd()]);
            },
        ),
        running("unknown request, politely", Kind::POLITE, GoesOn, |hostile, _| {
            assert_eq!(hostile.ask(4242, &[], &[]), Some(1));
        }),
        fresh("a surplus descriptor", Stops("SET_OWNER with 1 file descriptors"), |hostile, _| {
            hostile.say(code::SET_OWNER, &[], &[hostile.rings.as_fd()]);
        }),
        fresh(
            "a missing descriptor",
            Stops("SET_VRING_CALL with 0 file descriptors"),
            |hostile, _| {
                hostile.say(code::SET_VRING_CALL, &longs(&[0]), &[]);
            },
        ),
        fresh(
            "a descriptor too few",
            Stops("SET_MEM_TABLE with 1 file descriptors"),
            |hostile, _| {
                let table =
                    [words(&[2, 0]), region(0, 4096, 0, 0), region(4096, 4096, 4096, 0)].concat();
                hostile.say(code::SET_MEM_TABLE, &table, &[hostile.rings.as_fd()]);
            },
        ),
        fresh("fifty descriptors", Stops("more than 8 file descriptors"), |hostile, _| {
            hostile.say(code::SET_OWNER, &[], &[hostile.rings.as_fd(); 50]);
        }),
        fresh(
            "a descriptor with every byte",
            Stops("more than 8 file descriptors"),
            |hostile, _| {
                for _ in 0..12 {
                    hostile.send(&[1], &[hostile.rings.as_fd()]);
                }
            },
        ),
        fresh("replies that nobody reads", Waits, |hostile, _| {
            hostile.stream.set_nonblocking(true).unwrap();
            let request = words(&[code::GET_FEATURES, 1, 0]).repeat(1000);
            while (&hostile.stream).write_all(&request).is_ok() {}
        }),
        fresh("noise", Stops("protocol version"), |hostile, _| {
            let noise: Vec<u8> =
                (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0xfe).collect();
            hostile.send(&noise, &[]);
        }),
    ]
}

fn orders() -> Vec<Attack> {
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

/// Starts ring 1 with another size.
fn sized(hostile: &HostileFrontEnd, size: u32) {
    hostile.share();
    hostile.say(code::SET_VRING_NUM, &words(&[1, size]), &[]);
    hostile.place(1, desc(1), driver(1), device(1));
    hostile.wire(1);
}

/// Starts ring 1 in another place.
fn placed(hostile: &HostileFrontEnd, desc: u64, device: u64) {
    hostile.share();
    hostile.say(code::SET_VRING_NUM, &words(&[1, 64]), &[]);
    hostile.place(1, desc, driver(1), device);
    hostile.wire(1);
}

/// Adds one region.
fn add(hostile: &HostileFrontEnd, region: Vec<u8>, fd: &OwnedFd) {
    hostile.say(code::ADD_MEM_REG, &[longs(&[0]), region].concat(), &[fd.as_fd()]);
}

fn lies() -> Vec<Attack> {
    vec![
        fresh(
            "a region longer than its file",
            Stops("needs a file of 8392704 bytes"),
            |hostile, _| {
                add(hostile, region(0, MEMORY + 4096, 0, 0), &memory(MEMORY));
            },
        ),
        fresh("a region behind its file", Stops("needs a file of"), |hostile, _| {
            add(hostile, region(0, 4096, 0, 1 << 62), &memory(MEMORY));
        }),
        fresh("a region of no bytes", Stops("is empty"), |hostile, _| {
            add(hostile, region(0, 0, 0, 0), &memory(4096))
        }),
        fresh("a region around the end", Stops("wraps around"), |hostile, _| {
            add(hostile, region(u64::MAX - 4095, 8192, 0, 0), &memory(8192));
        }),
        fresh("a region around the end of its file", Stops("wraps around"), |hostile, _| {
            add(hostile, region(0, 8192, 0, u64::MAX - 4095), &memory(8192));
        }),
        fresh("regions that overlap", Stops("overlap"), |hostile, _| {
            hostile.share();
            add(hostile, region(GUEST + MEMORY - 1, 4096, USER + MEMORY, 0), &memory(4096));
        }),
        fresh("regions that the front-end says overlap", Stops("overlap"), |hostile, _| {
            hostile.share();
            add(hostile, region(GUEST + MEMORY, 4096, USER, 0), &memory(4096));
        }),
        fresh(
            "all addresses that there are",
            Stops("0x100000000000 bytes in all"),
            |hostile, _| {
                add(hostile, region(0, 1 << 44, 0, 0), &memory(1 << 62));
            },
        ),
        fresh("33 regions", Stops("ADD_MEM_REG beyond 32"), |hostile, _| {
            for i in 0..33 {
                add(hostile, region(i << 20, 4096, i << 20, 0), &memory(4096));
            }
        }),
        fresh("a table of no regions", Stops("SET_MEM_TABLE with 0 regions"), |hostile, _| {
            hostile.say(code::SET_MEM_TABLE, &longs(&[0]), &[]);
        }),
        fresh(
            "a table shorter than it says",
            Stops("SET_MEM_TABLE with a payload of 40"),
            |hostile, _| {
                hostile.say(
                    code::SET_MEM_TABLE,
                    &[words(&[2, 0]), region(0, 4096, 0, 0)].concat(),
                    &[],
                );
            },
        ),
        fresh("a region to remove that is not there", GoesOn, |hostile, _| {
            hostile.share();
            hostile.say(
                code::REM_MEM_REG,
                &[longs(&[0]), region(0, SECOND, USER, 0)].concat(),
                &[],
            );
        }),
        fresh("memory that is a device", Stops("is in no memory file"), |hostile, _| {
            add(
                hostile,
                region(0, 4096, 0, 0),
                &open("/dev/zero", OFlags::RDWR, Mode::empty()).unwrap(),
            );
        }),
        fresh("memory that is a socket", Stops("is in no memory file"), |hostile, _| {
            add(hostile, region(0, 4096, 0, 0), &hostile.stream.try_clone().unwrap().into());
        }),
        fresh(
            "memory that is a file on a disk, or wherever",
            Stops("is in no memory file"),
            |hostile, _| {
                add(
                    hostile,
                    region(0, 4096, 0, 0),
                    &open("/proc/self/exe", OFlags::RDONLY, Mode::empty()).unwrap(),
                );
            },
        ),
        fresh("memory that cannot be written", Stops("mapping memory"), |hostile, _| {
            let fd = memory(4096);
            fcntl_add_seals(&fd, SealFlags::WRITE).unwrap();
            add(hostile, region(0, 4096, 0, 0), &fd);
        }),
        fresh("a region that begins within a page", GoesOn, |hostile, _| {
            add(hostile, region(77, 4096, 99, 1001), &memory(8192));
        }),
    ]
}

fn nuisances() -> Vec<Attack> {
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
