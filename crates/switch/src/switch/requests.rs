//! Requests (ARP, and neighbour solicitations) for IP addresses of stations on other hosts.
//!
//! Such a request is a broadcast or a multicast, of which each other host would get a copy. If a
//! control plane has said which station has the address, and where that station is, the request is
//! answered here, in the station's name, or goes to the station's host alone. A wrong entry is used
//! until the control plane withdraws it, as in the kernel's bridge.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use frame::{Headers, Owner};

use super::Switch;
use crate::port_id::PortId;
use crate::station::Station;
use crate::verdict::{Decision, Verdict};
use crate::vlan::Network;

impl Switch {
    /// Sets the station of a network that has an IP address; `None`: it is unknown. The caller must
    /// bound the number of addresses.
    pub fn set_neighbour(&mut self, network: Network, address: IpAddr, owner: Option<Owner>) {
        self.neighbours.set(network, address, owner);
    }

    /// Forgets all addresses in a network.
    pub fn forget_neighbours(&mut self, network: Network) {
        self.neighbours.forget(network);
    }

    /// Whether any address is known. While none is, workers need not ask.
    pub fn has_neighbours(&self) -> Arc<AtomicBool> {
        Arc::clone(self.neighbours.exist())
    }

    /// The owner of the `address` that a request asks for, and the request's destination if that is
    /// not all ports: the tunnel to the owner's host. The verdict holds for this frame only.
    pub fn direct(
        &mut self,
        ingress: PortId,
        headers: &Headers,
        address: IpAddr,
    ) -> Option<(Owner, Verdict)> {
        let (network, form) = self.admit(ingress, headers).ok()?;
        if !form.is_whole(headers.tags) {
            return None;
        }
        let owner = self.neighbours.get(network, address)?;
        let station = Station { network, mac: owner.mac };
        if self.tunnels.has_end(ingress) || self.owner(station).is_some() {
            return None;
        }
        let target = self.unicast(ingress, self.tunnels.pinned(station)?, station, form).ok()?;
        let mirrors = self.mirrors.copies(ingress, [&target]);
        let stamp = self.generations.stamp(Station { network, mac: headers.src }, station);
        Some((owner, Verdict { decision: Decision::To(target), mirrors, stamp }))
    }
}

#[cfg(test)]
mod tests;
