//! The fabric's access to the switch's tables: stations, their ports and addresses.

use std::net::IpAddr;
use std::time::Instant;

use frame::Owner;
use switch::{Network, PinError, PinKind, PortId, Row, Sighted, Station, Wake, WatcherId};

use super::Fabric;
use crate::schedule::seconds;

impl Fabric {
    /// Pins a station to a port. A pin overrides what is learned elsewhere.
    ///
    /// # Errors
    /// When the station or the port is impossible, or there are too many.
    pub fn pin(&self, station: Station, port: PortId, kind: PinKind) -> Result<(), PinError> {
        self.switch().pin(station, port, kind)
    }

    /// Forgets what [`pin`](Self::pin) said of a station. Returns whether there was anything.
    pub fn unpin(&self, station: Station) -> bool {
        self.switch().unpin(station)
    }

    /// Sets the station on another host that has an IP address of a network; `None`: it is unknown.
    /// Requests for the address are answered in its name, or go to that host alone.
    pub fn set_neighbour(&self, network: Network, address: IpAddr, owner: Option<Owner>) {
        self.switch().set_neighbour(network, address, owner);
    }

    /// Forgets all that [`set_neighbour`](Self::set_neighbour) said of a network.
    pub fn forget_neighbours(&self, network: Network) {
        self.switch().forget_neighbours(network);
    }

    /// The single IP addresses that the port of a locked station may claim. None: the station is
    /// not locked.
    pub fn given_addresses(&self, station: Station) -> Vec<IpAddr> {
        let Some(port) = self.switch().owner(station) else { return Vec::new() };
        let restrictions =
            self.lock().ports.get(&port.0).and_then(|entry| entry.restrictions.get());
        restrictions.map(|restrictions| restrictions.given_addresses()).unwrap_or_default()
    }

    /// The IP addresses that a station at a port of this host was heard to have.
    pub fn learned_addresses(&self, station: Station) -> Vec<IpAddr> {
        self.switch().addresses_of(station)
    }

    /// Sets the networks for which a watcher is told of stations whose learned IP addresses change.
    pub fn learn_addresses(&self, id: WatcherId, networks: Vec<Network>) {
        self.switch().learn_addresses(id, networks);
    }

    /// Registers a watcher. `wake` is called, on any thread, when stations come to ports of this
    /// host, or go.
    pub fn watch(&self, wake: Wake) -> WatcherId {
        self.switch().watch(wake)
    }

    /// Forgets a watcher.
    pub fn unwatch(&self, id: WatcherId) {
        self.switch().unwatch(id);
    }

    /// The changes that are new to a watcher.
    pub fn sighted(&self, id: WatcherId) -> Sighted {
        self.switch().sighted(id)
    }

    /// The switch's address table.
    pub fn table(&self) -> Vec<Row> {
        let now = seconds(self.start, Instant::now());
        let mut switch = self.switch();
        switch.age(now);
        switch.table(now)
    }

    /// Learns stations that another process knew, at ports of this fabric.
    pub fn learn(&self, stations: impl IntoIterator<Item = (Station, PortId)>) {
        let now = seconds(self.start, Instant::now());
        let mut switch = self.switch();
        stations.into_iter().for_each(|(station, port)| switch.learn(now, station, port));
    }

    /// All IP addresses that stations at ports of this host were heard to have, in no order.
    pub fn heard_addresses(&self) -> Vec<(Station, PortId, IpAddr)> {
        self.switch().heard_addresses().collect()
    }

    /// Learns IP addresses that another process knew stations at ports of this fabric to have.
    pub fn restore_addresses(&self, claims: impl IntoIterator<Item = (Station, PortId, IpAddr)>) {
        let now = seconds(self.start, Instant::now());
        let mut switch = self.switch();
        for (station, port, address) in claims {
            switch.learn_address(now, station, port, address);
        }
    }

    /// Forgets stations that have been silent for too long, and says how many. To be called every
    /// few seconds.
    pub fn age(&self) -> usize {
        let now = seconds(self.start, Instant::now());
        self.switch().age(now)
    }
}
