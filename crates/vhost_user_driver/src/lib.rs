//! The driver side of vhost-user: the part of QEMU together with its guest.
//!
//! The load generator and the tests act as guests with it, from the oldest driver to the newest.
//! The messages are those of the independent crate `vhost`, so that a misreading of the protocol
//! cannot hide by being made on both sides; the few that `vhost` does not have are written here
//! byte by byte.
//!
//! A connected socket becomes a [`FrontEnd`] by [`FrontEnd::negotiate`]; a [`Guest`] is the memory;
//! [`FrontEnd::share`] sends it to the back-end; [`FrontEnd::driver`] makes and starts one queue
//! pair. A hostile test uses the lower levels: [`Guest::memory`] is all of the guest's memory,
//! rings included, [`FrontEnd::stream`] the bare socket.
//!
//! The daemon does not link this crate.

#![forbid(unsafe_code)]

mod error;
mod front_end;
mod guest;
mod log;
mod vring;

pub use error::DriverError;
pub use front_end::{FrontEnd, FrontEndConfig};
pub use guest::Guest;
pub use log::WriteLog;
pub use vring::{Driver, Vring};
