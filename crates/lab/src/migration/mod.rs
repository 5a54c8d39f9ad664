//! A stock guest that migrates between two hosts on this machine, each with a daemon of its own,
//! while it sends and receives: for tests and for `ringmain-lab bench-migration`.

mod echo;
mod hosts;
mod network;
mod paced;

use std::time::Duration;

pub use echo::Echo;
pub use hosts::{GUEST, Hosts, HostsError, MAC, Machine};
pub use network::{Between, HOST};
pub use paced::{Paced, Window};

/// Longest boot, command or migration. Time in which the machine was busy otherwise does not count.
pub const LIMIT: Duration = Duration::from_secs(180);
