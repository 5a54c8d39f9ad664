//! Event descriptors that block, or are something else.

use super::*;

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

pub fn events() -> Vec<Attack> {
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
