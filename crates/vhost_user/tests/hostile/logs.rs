//! Attacks by logs of written pages.

use std::io::Read;
use std::os::fd::AsFd;

use rustix::fs::ftruncate;
use vhost_user::transport::feature::{bit, protocol};

use crate::Beacon;
use crate::attacks::Outcome::{GoesOn, Stops};
use crate::attacks::{Attack, running, shout, transmit};
use crate::front_end::*;

/// Bytes of a log that reaches as far as the memory.
const LOG: u64 = (GUEST + MEMORY) / 4096 / 8;

/// Shares `len` bytes of `file` as a log, switches it on, and has both rings logged at guest
/// address `at`.
fn log(hostile: &HostileFrontEnd, file: impl AsFd, len: u64, at: u64) {
    hostile.say(code::SET_PROTOCOL_FEATURES, &longs(&[protocol::LOG_SHMFD]), &[]);
    hostile.say(code::SET_LOG_BASE, &longs(&[len, 0]), &[file.as_fd()]);
    // The reply is a header. None comes to an impossible log.
    let _ = (&hostile.stream).read_exact(&mut [0; 12]);
    let features = hostile.kind.features() | bit::LOG_ALL;
    hostile.say(code::SET_FEATURES, &longs(&[features]), &[]);
    for ring in 0..2 {
        let [desc, device, driver] =
            [desc(ring), device(ring), driver(ring)].map(|place| USER + place);
        let place = longs(&[desc, device, driver, at]);
        hostile.say(code::SET_VRING_ADDR, &[words(&[ring as u32, 1]), place].concat(), &[]);
    }
}

/// Logs once, and lets frames go both ways.
fn goes_on(hostile: &HostileFrontEnd, beacon: &mut Beacon, at: u64) {
    log(hostile, memory(LOG), LOG, at);
    transmit(hostile, 8);
    shout(beacon);
}

pub fn logs() -> Vec<Attack> {
    vec![
        running(
            "a log of one page",
            Kind::SPLIT,
            Stops("the log of written pages ends"),
            |h, _| {
                log(h, memory(4096), 8, 0);
            },
        ),
        running("a log of 16 EiB", Kind::SPLIT, Stops("SET_LOG_BASE"), |h, _| {
            log(h, memory(4096), u64::MAX, 0);
        }),
        running("a log beyond its file", Kind::PACKED, Stops("SET_LOG_BASE"), |h, _| {
            log(h, memory(LOG - 1), LOG, 0);
        }),
        running("a log that is a device", Kind::SPLIT, Stops("SET_LOG_BASE"), |h, _| {
            log(h, std::fs::File::open("/dev/zero").unwrap(), LOG, 0);
        }),
        running(
            "a log cut off",
            Kind::SPLIT,
            Stops("log of written pages was truncated"),
            |h, b| {
                let file = memory(LOG);
                log(h, &file, LOG, GUEST);
                ftruncate(&file, 0).unwrap();
                transmit(h, 8);
                shout(b);
            },
        ),
        running("a log that is the guest's memory", Kind::SPLIT, GoesOn, |h, b| {
            log(h, &h.buffers, LOG, GUEST);
            shout(b);
        }),
        running("rings logged nowhere", Kind::SPLIT, GoesOn, |h, b| goes_on(h, b, u64::MAX)),
        running("packed: rings logged nowhere", Kind::PACKED, GoesOn, |h, b| {
            goes_on(h, b, u64::MAX - 3);
        }),
    ]
}
