//! IP addresses that the configuration gives to ports.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use crate::port_id::PortId;

/// The addresses, by port and by address. Several ports may have the same.
#[derive(Default)]
pub(crate) struct Given {
    ports: HashMap<PortId, Vec<IpAddr>>,
    addresses: HashMap<IpAddr, BTreeSet<PortId>>,
}

impl Given {
    /// Sets the addresses that a port is given, in place of earlier ones.
    pub fn set(&mut self, port: PortId, addresses: Vec<IpAddr>) {
        self.take(port);
        for address in &addresses {
            self.addresses.entry(*address).or_default().insert(port);
        }
        if !addresses.is_empty() {
            self.ports.insert(port, addresses);
        }
    }

    /// Removes all addresses of a port.
    pub fn take(&mut self, port: PortId) {
        for address in self.ports.remove(&port).unwrap_or_default() {
            if let Some(ports) = self.addresses.get_mut(&address) {
                ports.remove(&port);
                if ports.is_empty() {
                    self.addresses.remove(&address);
                }
            }
        }
    }

    /// The ports that are given an address.
    pub fn ports(&self, address: IpAddr) -> Option<&BTreeSet<PortId>> {
        self.addresses.get(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_leaves_nothing() {
        let [first, second] = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        let mut given = Given::default();
        given.set(PortId(1), vec![first, first, second]);
        given.set(PortId(2), vec![first]);
        assert_eq!(given.ports(first), Some(&[PortId(1), PortId(2)].into()));
        given.set(PortId(1), vec![second]);
        assert_eq!(given.ports(first), Some(&[PortId(2)].into()));
        given.take(PortId(1));
        given.take(PortId(2));
        assert!(given.ports.is_empty() && given.addresses.is_empty());
    }
}
