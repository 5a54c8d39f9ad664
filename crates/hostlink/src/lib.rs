//! Links to the host: TAP.

pub mod tap;
mod tun;
