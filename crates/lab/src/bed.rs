//! Test beds: a daemon with processes as guests, and TCP between stations of any kind, with all
//! that is seen meanwhile.

mod cable;
mod daemon;
mod generator;
mod guests;
mod pairs;
mod said;
mod station;
mod streams;
mod wire;

pub use cable::{Cable, DEVICE, UPLINK, whole_frames};
pub use daemon::{Look, Seen, at_rest, rest};
pub use generator::{GENERATOR_CPU, Rig, WORKER_CPU, generate, ports as generator_ports};
pub use guests::{Bed, Member, Wants, Wish};
pub use pairs::{Paired, Pairs, ports};
pub use station::{Station, Task};
pub use streams::{Amount, Batches, Carried, Flow, carry};
pub use wire::{Wire, Wired};
