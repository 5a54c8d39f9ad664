//! Links to the host, and to processes that are guests: TAP.

pub mod inside;
pub mod tap;
mod tun;
