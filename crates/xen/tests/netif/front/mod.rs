//! Frontends for tests, and a host with a daemon.
#![allow(dead_code, unused_imports)] // Not every test that has this module uses all of it.

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
#[path = "../../wait/mod.rs"]
mod waiting;

pub use by_hand::Front;
pub use frames::{Peer, Received, frame, greet, introduce, is_greeting, mac, what};
pub use host::Host;
pub use queue::{CSUM_BLANK, EXTRA_INFO, FrontQueue, Granted, MORE_DATA};
pub use raw_control_ring::RawControlRing;
pub use vif::{FrontSpec, Vif};
pub use waiting::wait;

/// Where the fields of a shared ring's page are, in bytes: the indices, and the first slot.
pub const REQ_PROD: u64 = 0;
pub const REQ_EVENT: u64 = 4;
pub const RSP_PROD: u64 = 8;
pub const RSP_EVENT: u64 = 12;
pub const SLOTS: u64 = 64;
