//! The frame pipeline: bursts of frames between queue pairs.
//!
//! The path of a frame is in [`pipeline`]: fetch, classify, deliver, complete. Ports implement
//! [`port::QueuePair`]; the control side uses [`fabric::Fabric`]. Threads, scheduling, polling and
//! sleeping are the [`runtime`]'s, which drives the pipeline through [`schedule`].
//!
//! Everything that a peer publishes is copied once before it is looked at, every index and length
//! is checked after that copy, and every frame is counted: delivered, or dropped under a reason.

#![forbid(unsafe_code)]

pub mod action;
mod answer;
mod backlog;
mod backpressure;
pub mod burst;
mod burst_limit;
pub mod capture;
mod capturing;
mod classifier;
pub mod control_budget;
mod cost;
pub mod count;
mod deliver;
mod device_queue;
mod egress;
mod exchange;
pub mod fabric;
mod fault_wait;
mod filtering;
pub mod flowcache;
pub mod flows;
mod grant_release;
mod handoff;
mod in_flight;
mod indirection_table;
pub mod manual;
mod merged_burst;
mod migration_wait;
mod mirror;
mod mixed_burst;
mod outcome;
pub mod packet;
mod page_faults;
mod partition;
mod passed_grants;
pub mod pipeline;
mod poll_interval;
pub mod port;
mod port_accounts;
pub mod port_filter;
mod profiling;
mod publish;
mod quantum;
pub mod queue_selector;
mod rate_limit;
mod receive_debt;
mod receivers;
mod restricted;
pub mod restrictions;
mod room_wait;
pub mod route;
mod run;
pub mod schedule;
mod service;
pub mod sharing;
pub mod slot;
mod slots;
pub mod software_offload;
pub mod stage_profiler;
pub mod step;
mod too_big;
pub mod topology;
mod unsignalled;
pub mod wait;

pub use runtime::{balance, coalescing, poll, token_bucket};
