//! The running daemon: configuration, ports, control socket.

pub mod config;
