//! Traffic, guests, measurement and reports.

#![forbid(unsafe_code)]

mod bare_process;
pub mod bench;
pub mod daemon;
pub mod demo;
pub mod disk_demo;
pub mod disk_load;
pub mod experiment;
pub mod experiments;
pub mod fixture;
pub mod folders;
pub mod frr;
pub mod guest;
pub mod guest_process;
pub mod interrupt;
pub mod isolation;
pub mod migration;
pub mod model;
mod null_engine;
pub mod ovs;
pub mod page;
pub mod plot;
pub mod program;
pub mod progress;
pub mod serve;
pub mod statistics;
pub mod suite;
mod table;
pub mod tool;
pub mod xen;
