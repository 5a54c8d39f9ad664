//! The bodies of the fuzz targets. `crates/vhost_user/tests/fuzz_bodies.rs` includes the same files, so that they also run
//! on any machine, on random bytes.

pub mod frame;
pub mod input;
pub mod messages;
pub mod rings;
pub mod session;
