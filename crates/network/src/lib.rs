//! The frame pipeline: bursts of frames between queue pairs.
//!
//! A frame's way is in [`pipeline`]: fetch, classify, deliver, complete. Ports implement
//! [`port::QueuePair`]; the control side uses [`fabric::Fabric`]. Threads, scheduling, polling and
//! sleeping are the [`runtime`]'s, which drives the pipeline through [`schedule`].
//!
//! Whatever a peer publishes is copied once before it is looked at, every index and length is
//! checked after that copy, and every frame is counted: delivered, or dropped under a reason.

#![forbid(unsafe_code)]

mod backpressure;
pub mod burst;
mod classifier;
mod cost;
pub mod count;
mod deliver;
mod device_queue;
pub mod fabric;
pub mod flowcache;
pub mod flows;
mod handoff;
mod in_flight;
mod indirection_table;
pub mod manual;
mod migration_wait;
pub mod packet;
mod page_faults;
mod passed_grants;
pub mod pipeline;
pub mod port;
mod profiling;
mod publish;
mod quantum;
mod rate_limit;
mod receive_debt;
pub mod restrictions;
pub mod route;
pub mod schedule;
pub mod slot;
mod slots;
mod software_offload;
pub mod stage_profiler;
pub mod token_bucket;
pub mod topology;
pub mod wait;

pub use runtime::{balance, coalescing, poll};
