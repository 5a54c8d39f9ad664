//! A frontend of vbds that is made by hand, slot by slot, and a host with a daemon.
#![allow(dead_code, unused_imports)] // Not every test that has this module uses all of it.

mod front;
mod host;
mod queue;
#[path = "../../wait/mod.rs"]
mod waiting;

pub use front::{Front, Spec};
pub use host::Host;
pub use queue::{FrontQueue, Io, Segment};
pub use waiting::wait;

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
