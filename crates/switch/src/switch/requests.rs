//! Requests (ARP, and neighbour solicitations) for IP addresses of stations on other hosts.
//!
//! Such a request is a broadcast or a multicast: without more knowledge, each other host gets a copy.
//! Where a control plane has said which station has the address, and where that station is, the
//! request goes to the station's host alone. The station itself answers, so a wrong entry delays an
//! answer at worst until the entry is gone, and never makes one up.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use frame::{Headers, Mac};

use super::Switch;
use crate::port_id::PortId;
use crate::station::Station;
use crate::verdict::{Decision, Verdict};
use crate::vlan::Network;

impl Switch {
    /// Says which station of a network has an IP address; `None`: nobody knows. The caller bounds
    /// how many there are.
    pub fn set_neighbour(&mut self, network: Network, address: IpAddr, mac: Option<Mac>) {
        self.neighbours.set(network, address, mac);
    }

    /// Forgets all addresses in a network.
    pub fn forget_neighbours(&mut self, network: Network) {
        self.neighbours.forget(network);
    }

    /// Whether any address is known: as long as none is, nobody needs to ask.
    pub fn has_neighbours(&self) -> Arc<AtomicBool> {
        Arc::clone(self.neighbours.exist())
    }

    /// Where a request for the owner of `address` goes, if not to all: to the tunnel behind which
    /// the owner is. The verdict is for this frame alone.
    pub fn direct(
        &mut self,
        ingress: PortId,
        headers: &Headers,
        address: IpAddr,
    ) -> Option<Verdict> {
        let (network, form) = self.admit(ingress, headers).ok()?;
        let mac = self.neighbours.get(network, address)?;
        let owner = Station { network, mac };
        if self.tunnels.has_end(ingress) || self.owner(owner).is_some() {
            return None;
        }
        let target = self.unicast(ingress, self.tunnels.pinned(owner)?, owner, form).ok()?;
        let mirrors = self.mirrors.copies(ingress, [&target]);
        let stamp = self.generations.stamp(Station { network, mac: headers.src }, owner);
        Some(Verdict { decision: Decision::To(target), mirrors, stamp })
    }
}

#[cfg(test)]
mod tests;
