//! Virtual networks over an IP underlay, as far as they are tables: no sockets, no threads, no
//! clock.
//!
//! The far end of each tunnel, a VTEP in one network, is a port of the switch. So where a station
//! is, what is learned, what is flooded, and that nothing goes from tunnel to tunnel is decided by
//! the switch, and kept in the flow caches of workers. What is decided here is on which of those
//! ports a datagram came in ([`VtepTable::ingress`]), or under which name it is refused
//! ([`Refusal`]).
//!
//! [`mirror`] follows what EVPN's control plane says, as rows of the kernel's tables.
//!
//! An underlay authenticates nobody. A datagram is let in only from an address that was named as a
//! VTEP, and only into networks that were named with it; whoever can forge that address is inside.

#![forbid(unsafe_code)]

pub mod mirror;
mod refusal;
mod vtep;

pub use refusal::Refusal;
pub use vtep::{MAX_VTEPS, VtepError, VtepTable};
