//! The back-end of the vhost-user protocol, for any device.
//!
//! From the socket up: [`connection`] turns bytes into messages, [`message`] parses
//! them, [`session`] keeps the state of one connection and drives a [`device`], and [`server`] is
//! the thread that accepts front-ends and serves them one at a time.
//!
//! Invariants:
//! - A message is checked completely before any of it takes effect, and each has a bounded size.
//! - Only eventfds ([`event`]) and memory files are accepted from a front-end, so neither writing
//!   to
//!   nor mapping a descriptor can block or signal this process.
//! - A vring is started only while its size, addresses and memory are known, and only a stopped
//!   vring changes them.
//!
//! A hostile front-end can try lengths, ring numbers and addresses out of range, descriptors of
//! other kinds, truncated messages, unread replies, and requests in any order. Each ends in a named
//! error or is declined; none makes the thread wait for anything but `poll`.

mod backend_channel;
pub mod connection;
pub mod device;
pub mod error;
pub mod event;
pub mod feature;
mod inflight;
mod memory_table;
pub mod message;
pub mod saved;
pub mod server;
pub mod session;
pub mod status;
mod vring;
mod vrings;
