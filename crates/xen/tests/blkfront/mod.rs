//! A frontend of vbds that is made by hand, slot by slot, and a host with a daemon.
#![allow(dead_code, unused_imports)] // Not every test that has this module uses all of it.

use std::time::{Duration, Instant};

mod front;
mod host;
mod queue;

pub use front::{Front, Spec};
pub use host::Host;
pub use queue::{FrontQueue, Io, Segment};

pub const OKAY: i16 = 0;
pub const ERROR: i16 = -1;
pub const EOPNOTSUPP: i16 = -2;

pub const READ: u8 = 0;
pub const WRITE: u8 = 1;
pub const FLUSH: u8 = 3;
pub const DISCARD: u8 = 5;
pub const INDIRECT: u8 = 6;

/// Bytes of a sector.
pub const SECTOR: usize = 512;
/// Sectors of an image.
pub const SECTORS: u64 = 4096;

/// Waits for a condition, for a minute at most.
#[track_caller]
pub fn wait(mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited for a minute in vain");
        std::thread::sleep(Duration::from_micros(200));
    }
}
