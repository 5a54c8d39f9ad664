//! Disks on workers: requests of guests made by hand, against images of all kinds.

mod devices;
#[path = "../guest/mod.rs"]
mod guest;
mod latency;
mod limits;
mod power_loss;
mod qcow2;
mod qcow2_resize;
mod requests;
