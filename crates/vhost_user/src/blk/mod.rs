//! A disk over vhost-user: virtio-blk's queues as queues of the block pipeline.
//!
//! [`port`] starts and ends a disk, [`device`] starts and stops the queues of one connection,
//! [`queue`] takes and completes requests, [`config_space`] is the guest's description of the disk,
//! and [`feature`] lists the features that can be negotiated. Vring `n` is queue `n`.

mod config_space;
pub mod device;
pub mod feature;
pub mod port;
mod queue;

pub use port::{DiskConfig, DiskPort, DiskPortError};
