//! The models for loom: the parts of the embedded hypervisor that consist only of locks and
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
