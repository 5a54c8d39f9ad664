//! Links to the host, and to processes that are guests: TAP, and receive queues of devices by
//! AF_XDP.

pub mod inside;
pub mod tap;
mod tun;
pub mod xdp;
