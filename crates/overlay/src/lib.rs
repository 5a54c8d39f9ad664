//! The tables of virtual networks over an IP underlay, without sockets, threads or a clock.
//!
//! The far end of each tunnel, a VTEP in one network, is a port of the switch. So the switch
//! decides where a station is, which addresses are learned, which frames are flooded, and that no
//! frame goes from tunnel to tunnel; the flow caches of workers keep its decisions. This crate
//! decides on which of those ports a datagram came in ([`VtepTable::ingress`]), or for which reason
//! it is refused ([`Refusal`]).
//!
//! [`mirror`] follows EVPN's control plane, through rows of the kernel's tables.
//!
//! An underlay does not authenticate senders. A datagram is accepted only from an address that was
//! configured as a VTEP, and only into that VTEP's networks. A hostile host that can forge such an
//! address can send into these networks.

#![forbid(unsafe_code)]

pub mod mirror;
mod refusal;
mod vtep;

pub use refusal::Refusal;
pub use vtep::{MAX_VTEPS, VtepError, VtepTable};
