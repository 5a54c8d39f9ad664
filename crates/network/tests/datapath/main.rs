//! The datapath between ports for tests, whose frames are in memory of their own.

mod addresses;
mod answers;
mod backpressure;
mod capture;
mod coalescing;
mod cost;
mod fabric;
mod filter;
mod flows;
mod manual;
mod mirror;
mod mixed;
mod moves;
mod offloads;
#[path = "../peer/mod.rs"]
mod peer;
mod profile;
mod restrictions;
mod share;
mod too_big;
