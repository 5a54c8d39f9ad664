//! Messages that are malformed.

use super::*;

pub fn messages() -> Vec<Attack> {
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
