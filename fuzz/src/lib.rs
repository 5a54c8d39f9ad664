//! The bodies of the fuzz targets. `tests/fuzz_bodies.rs` of `vhost_user` and of `xen` include the same files, so that they
//! also run on any machine, on random bytes.

pub mod control;
pub mod frame;
pub mod guard;
pub mod input;
pub mod keys;
pub mod messages;
pub mod rings;
pub mod session;
pub mod slots;
pub mod vif;
pub mod wire;
