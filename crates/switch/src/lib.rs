//! The decision for a frame: learning, VLANs, source locking, filters.
//!
//! The crate is pure: no I/O, no threads, no clock of its own (time comes in as whole seconds). One
//! [`Switch`] serves all workers, behind a lock that the datapath owns. Workers ask it once per
//! flow and cache the [`Verdict`]; [`Generations`] shows without the lock whether a cached verdict
//! is still valid.
//!
//! A hostile guest could try
//!
//! - to flood the table with sources: the table is bounded, and shared out so that other ports can
//!   still learn;
//! - to take another station's address: this is allowed between unlocked ports, as in any learning
//!   switch, and refused where an address is locked;
//! - to reach a VLAN that it is not in: tags are checked when a frame comes in;
//! - to invalidate the caches of other workers: the generation buckets are picked by a keyed hash,
//!   and only a change of the table bumps them.

#![forbid(unsafe_code)]

mod address;
pub mod filter;
mod generation;
mod given;
pub mod guard;
mod mac;
mod mirror;
mod neighbour;
mod port_id;
mod port_rule;
mod reason;
mod sightings;
mod station;
mod switch;
mod tunnel;
mod verdict;
mod vlan;

pub use address::{ADDRESS_AGE, MAX_ADDRESSES};
pub use frame::TagEdit;
pub use generation::{Generations, Stamp};
pub use guard::SourceGuard;
pub use mac::Limits;
pub use mirror::Mirrors;
pub use port_id::PortId;
pub use port_rule::{PortRule, RuleError};
pub use reason::DropReason;
pub use sightings::{Presence, Sighted, Wake, WatcherId};
pub use station::Station;
pub use switch::{Row, Switch};
pub use tunnel::{MAX_PINS, PinError, PinKind, Tunnel};
pub use verdict::{Decision, Target, Verdict};
pub use vlan::{Network, Vlan};
