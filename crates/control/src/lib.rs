//! The running daemon: configuration, ports, control socket.

#![forbid(unsafe_code)]

pub mod api;
pub mod client;
pub mod config;
mod line;
pub mod server;
