//! The running daemon: configuration, ports, control socket.

#![forbid(unsafe_code)]

pub mod api;
pub mod categories;
pub mod client;
pub mod config;
pub mod daemon;
mod line;
mod link;
mod profile;
mod report;
pub mod server;
mod uplink;
