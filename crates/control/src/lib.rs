//! The running daemon: configuration, ports, disks, control socket, and the client of that socket.

#![forbid(unsafe_code)]

mod acceptor;
pub mod api;
mod backend;
mod budgets;
pub mod capture;
pub mod categories;
pub mod client;
pub mod config;
pub mod config_file;
pub mod confinement;
mod copy_methods;
pub mod daemon;
pub mod disks;
pub mod events;
mod evpn;
pub mod hand_over;
pub mod kind;
mod line;
pub mod metrics;
mod natural;
mod overlay_network;
mod overlays;
pub mod pcapng;
mod periodic;
mod ports;
pub mod preflight;
mod profile;
mod reload;
mod report;
mod rules;

mod server;
pub mod socket_file;
mod state;
mod uplink;
mod vif;
mod xen_disks;
