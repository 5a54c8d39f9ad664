//! Vifs on a host for tests: frontends of all kinds, the daemon's own and hostile ones, and all
//! that a toolstack does.

mod coalescing;
mod device_queue;
mod frames;
mod front;
mod frontend;
mod frontend_static_grants;
mod guest_copy;
mod hostile;
mod hotplug;
mod merged_bursts;
mod negotiate;
mod neighbours;
mod ranges;
mod rates;
mod restart;
mod static_grants;
mod trouble;
mod vif;
