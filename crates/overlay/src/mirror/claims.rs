//! Claims of IP addresses by stations.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use frame::Mac;

/// Claims of stations, by station and by address.
#[derive(Default)]
pub(super) struct Claims {
    stations: HashMap<IpAddr, BTreeSet<Mac>>,
    addresses: HashMap<Mac, BTreeSet<IpAddr>>,
}

impl Claims {
    /// Sets the addresses that a station claims. Returns those, and the ones that it no longer
    /// claims.
    pub fn set(&mut self, mac: Mac, addresses: &[IpAddr]) -> BTreeSet<IpAddr> {
        let mut touched: BTreeSet<IpAddr> = addresses.iter().copied().collect();
        let before = match touched.is_empty() {
            true => self.addresses.remove(&mac),
            false => self.addresses.insert(mac, touched.clone()),
        };
        for address in before.into_iter().flatten() {
            if touched.insert(address) {
                self.withdraw(mac, address);
            }
        }
        for address in addresses {
            self.stations.entry(*address).or_default().insert(mac);
        }
        touched
    }

    fn withdraw(&mut self, mac: Mac, address: IpAddr) {
        let Some(stations) = self.stations.get_mut(&address) else { return };
        stations.remove(&mac);
        if stations.is_empty() {
            self.stations.remove(&address);
        }
    }

    /// The stations that claim an address; none is no set.
    pub fn stations(&self, address: IpAddr) -> Option<&BTreeSet<Mac>> {
        self.stations.get(&address)
    }

    /// All addresses that are claimed.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.stations.keys().copied()
    }

    /// How many addresses are claimed.
    pub fn len(&self) -> usize {
        self.stations.len()
    }
}
