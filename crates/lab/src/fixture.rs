//! Daemons, guests and streams that most experiments start: a daemon with processes as guests, and
//! TCP between guests of any kind, with the counters of daemon and machine. For disks, a host
//! within this process.

mod cable;
mod daemon;
mod disk_host;
mod disk_reader;
mod generator;
mod guest_pair;
mod guests;
mod mapped_grants;
mod pairs;
mod placement;
mod streams;
mod tool_output;
mod traffic_end;
mod wire;

pub use cable::{Cable, DEVICE, UPLINK, whole_frames};
pub use daemon::{CounterDelta, CounterSnapshot, at_rest, balance, check_conserved};
pub use disk_host::{DiskHost, DiskHostSpec, Reads};
pub use generator::{GeneratorSetup, generate, port as generator_port, ports as generator_ports};
pub(crate) use guest_pair::GuestPair;
pub use guests::{DaemonSpec, GuestNetwork, GuestSpec, NetworkGuest, with_grant_copies};
pub use pairs::{Pairs, PairsOutcome, ports};
pub use placement::Placement;
pub use streams::{Amount, Batches, Carried, Ends, Flow, carry};
pub use traffic_end::{Task, TrafficEnd};
pub use wire::{Wire, WireOutcome, kernel_helpers};
