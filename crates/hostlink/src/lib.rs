//! Links to the host, to processes that are guests, and to other hosts: TAP, receive queues of
//! devices by AF_XDP, and tunnels. Ports whose other end is the host's kernel, or that have no
//! other end, have their modules here.

pub mod fdb;
pub mod inside;
mod next_hop;
pub mod route_socket;
pub mod shadow;
mod staging;
pub mod tap;
mod tun;
pub mod underlay;
pub mod xdp;
