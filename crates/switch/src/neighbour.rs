//! IP addresses of stations on other hosts.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use frame::Owner;

use crate::vlan::Network;

/// The addresses that are known.
#[derive(Default)]
pub(crate) struct Neighbours {
    table: HashMap<(Network, IpAddr), Owner>,
    exist: Arc<AtomicBool>,
}

impl Neighbours {
    /// Sets the station of a network that has an IP address; `None`: it is unknown.
    pub fn set(&mut self, network: Network, address: IpAddr, owner: Option<Owner>) {
        match owner {
            Some(owner) => _ = self.table.insert((network, address), owner),
            None => _ = self.table.remove(&(network, address)),
        }
        self.exist.store(!self.table.is_empty(), Ordering::Relaxed);
    }

    /// Forgets all addresses in a network.
    pub fn forget(&mut self, network: Network) {
        self.table.retain(|(of, _), _| *of != network);
        self.exist.store(!self.table.is_empty(), Ordering::Relaxed);
    }

    /// The station of a network that has the address.
    pub fn get(&self, network: Network, address: IpAddr) -> Option<Owner> {
        self.table.get(&(network, address)).copied()
    }

    /// Whether any address is known.
    pub fn exist(&self) -> &Arc<AtomicBool> {
        &self.exist
    }
}
