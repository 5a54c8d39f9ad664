//! Frontends for tests, and a host with a daemon.
#![allow(dead_code, unused_imports)] // Not every test that has this module uses all of it.

use std::time::{Duration, Instant};

mod by_hand;
mod frames;
mod host;
mod interface;
pub mod netfront;
mod queue;
mod raw_control_ring;
pub mod station;
pub mod tcp;
mod vif;

pub use by_hand::Front;
pub use frames::{Peer, Received, frame, introduce, is_greeting, mac, what};
pub use host::Host;
pub use queue::{CSUM_BLANK, EXTRA_INFO, FrontQueue, Granted, MORE_DATA};
pub use raw_control_ring::RawControlRing;
pub use vif::{FrontSpec, Vif};

/// Where the fields of a shared ring's page are, in bytes: the indices, and the first slot.
pub const REQ_PROD: u64 = 0;
pub const REQ_EVENT: u64 = 4;
pub const RSP_PROD: u64 = 8;
pub const RSP_EVENT: u64 = 12;
pub const SLOTS: u64 = 64;

/// Waits for a condition, for a minute at most.
#[track_caller]
pub fn wait(mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited for a minute in vain");
        std::thread::sleep(Duration::from_micros(200));
    }
}
