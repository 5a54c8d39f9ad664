//! The bodies of the fuzz targets. `tests/fuzz_bodies.rs` of `vhost_user` and of `xen` include the
//! same files, so that they also run on any machine, on random bytes. Those of a whole daemon
//! (module [`daemon`]) and of images run here only.

#![forbid(unsafe_code)]

pub mod blkif;
pub mod bpf;
pub mod coalesce;
pub mod control;
pub mod daemon;
pub mod disk;
pub mod frame;
pub mod guard;
#[path = "../../crates/storage/tests/guest/mod.rs"]
pub mod guest;
pub mod inflight;
pub mod input;
pub mod keys;
pub mod messages;
pub mod qcow2;
pub mod requests;
pub mod rings;
pub mod session;
pub mod slots;
pub mod vbd;
pub mod vif;
pub mod vxlan;
pub mod wire;
