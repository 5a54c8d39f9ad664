//! Workers that carry bursts of frames between queue pairs.
//!
//! A frame's way is in [`carry`]: fetch, classify, deliver, complete. Ports implement
//! [`port::QueuePair`]; the control side uses [`fabric::Fabric`].

#![forbid(unsafe_code)]

mod backpressure;
pub mod balance;
pub mod burst;
mod carry;
pub mod coalescing;
pub mod count;
mod crossing;
mod cut;
mod drr;
mod exchange;
pub mod fabric;
pub mod flowcache;
pub mod flows;
mod held;
mod indirection_table;
mod loan;
pub mod manual;
mod migration;
mod migration_wait;
pub mod packet;
mod parcel;
pub mod poll;
pub mod port;
mod publish;
mod put;
mod rest;
pub mod route;
mod shared;
mod slab;
pub mod slot;
pub mod stage_profiler;
pub mod topology;
pub mod wake;
mod watch;
mod worker;
