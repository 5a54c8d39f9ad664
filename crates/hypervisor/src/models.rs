//! What loom tries: the parts of the embedded hypervisor that are made of nothing but locks and
//! atomics.

#![allow(dead_code)]

#[path = "embedded/config.rs"]
mod config;
#[path = "embedded/maptrack.rs"]
mod maptrack;
#[path = "embedded/signal.rs"]
mod signal;
#[path = "embedded/sync.rs"]
mod sync;
#[path = "embedded/tablelock.rs"]
mod tablelock;
#[path = "embedded/vcpu.rs"]
mod vcpu;
