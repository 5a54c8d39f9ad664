//! Links to the host, and to processes that are guests: TAP, and receive queues of devices by
//! AF_XDP. Ports whose other end is the host's kernel, or that have no other end, have their
//! modules here.

pub mod fdb;
pub mod inside;
pub mod route_socket;
pub mod shadow;
pub mod tap;
mod tun;
pub mod udp;
pub mod xdp;
