//! Block requests on their way through a worker: fetch, check, submit, complete.
//!
//! A guest's disk is a set of [`queue::RequestQueue`]s over one [`image::Image`]. A worker owns a
//! queue at a time. [`pipeline`] has the four steps, [`engine`] hands requests to the kernel,
//! [`disks`] is the control side: disks, their queues and their counters.
//!
//! Rules, as of the frame pipeline (see `ARCHITECTURE.md`):
//!
//! - A hostile guest can publish anything, so each request is checked after it was copied.
//! - No allocation, lock, log line or clock for each request. Requests of a burst go to the kernel
//!   in one system call.
//! - An error of the kernel fails only the request concerned.
//!
//! Durability:
//!
//! - A flush is one `fdatasync` of the image, begun after the flush was fetched. It covers all
//!   writes that were completed before, on all queues, since those were carried out on the same
//!   file before they were completed.
//! - Where the guest does not send flushes, each write is stable before it is completed
//!   ([`disk::Disk::set_write_through`]).

#![deny(unsafe_code)]

mod accept;
pub mod command;
pub mod count;
pub mod disk;
pub mod disks;
pub mod engine;
#[cfg(test)]
mod idle_queue;
pub mod image;
mod image_lock;
mod inbox;
pub mod limits;
mod operation;
mod outcome;
mod page_faults;
pub mod pipeline;
mod qcow2;
pub mod queue;
#[allow(unsafe_code, reason = "keeps a piece of a buffer")]
pub mod request;
mod schedule;
mod slot;
#[allow(unsafe_code, reason = "hands buffers to the kernel")]
pub mod step;

pub use disk::Disk;
pub use disks::Disks;
pub use image::Image;
pub use pipeline::BlockPipeline;
pub use queue::{QueueError, RequestQueue};
