//! IP addresses of stations on other hosts, and requests for them (ARP, and neighbour solicitations).
//!
//! Such a request is a broadcast or a multicast: without more knowledge, each other host gets a copy.
//! Where a control plane has said which station has the address, and where that station is, the
//! request goes to the station's host alone. The station itself answers, so a wrong entry delays an
//! answer at worst until the entry is gone, and never makes one up.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use frame::{Headers, Mac};

use crate::port_id::PortId;
use crate::station::Station;
use crate::switch::{Decision, Switch, Verdict};
use crate::vlan::Network;

/// The addresses that are known.
#[derive(Default)]
pub(crate) struct Neighbours {
    table: HashMap<(Network, IpAddr), Mac>,
    exist: Arc<AtomicBool>,
}

impl Switch {
    /// Says which station of a network has an IP address; `None`: nobody knows. The caller bounds
    /// how many there are.
    pub fn set_neighbour(&mut self, network: Network, address: IpAddr, mac: Option<Mac>) {
        let Neighbours { table, exist } = &mut self.neighbours;
        match mac {
            Some(mac) => _ = table.insert((network, address), mac),
            None => _ = table.remove(&(network, address)),
        }
        exist.store(!table.is_empty(), Ordering::Relaxed);
    }

    /// Forgets all addresses in a network.
    pub fn forget_neighbours(&mut self, network: Network) {
        let Neighbours { table, exist } = &mut self.neighbours;
        table.retain(|(of, _), _| *of != network);
        exist.store(!table.is_empty(), Ordering::Relaxed);
    }

    /// Whether any address is known: as long as none is, nobody needs to ask.
    pub fn has_neighbours(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.neighbours.exist)
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
        let mac = *self.neighbours.table.get(&(network, address))?;
        let owner = Station { network, mac };
        if self.tunnels.contains_key(&ingress) || self.owner(owner).is_some() {
            return None;
        }
        let target = self.unicast(ingress, self.pinned(owner)?, owner, form).ok()?;
        let mirrors = self.mirrors.copies(ingress, [&target]);
        let stamp = self.generations.stamp(Station { network, mac: headers.src }, owner);
        Some(Verdict { decision: Decision::To(target), mirrors, stamp })
    }
}

#[cfg(test)]
mod tests;
