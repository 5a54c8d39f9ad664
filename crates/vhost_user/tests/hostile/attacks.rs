//! The table of attacks.

mod events;
mod memory;
mod messages;
mod nuisances;
mod orders;
mod receivers;
mod regions;
mod rings;

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
        rings::indices(),
        rings::chains(),
        rings::tables(),
        rings::packed_rings(),
        receivers::receivers(),
        memory::memory_games(),
        events::events(),
        messages::messages(),
        orders::orders(),
        regions::lies(),
        nuisances::nuisances(),
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

fn null() -> OwnedFd {
    open("/dev/null", OFlags::RDWR, Mode::empty()).unwrap()
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
