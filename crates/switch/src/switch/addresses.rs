//! The IP addresses of stations at ports of this host, for watchers: those that the configuration
//! gives to ports, and those that stations are heard to have.
//!
//! A claim of an address is accepted if the frame may enter, the station is known to be at its
//! port, the configuration gives the address to no other port of the network, and the port has not
//! claimed too many.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use frame::Headers;

use super::Switch;
use crate::port_id::PortId;
use crate::sightings::{Presence, WatcherId};
use crate::station::Station;
use crate::vlan::Network;

impl Switch {
    /// Sets the networks for which a watcher is told of stations whose learned IP addresses change.
    pub fn learn_addresses(&mut self, id: WatcherId, networks: Vec<Network>) {
        self.table.sightings.want_addresses(id, networks);
    }

    /// Whether any watcher wants addresses. While none does, workers need not report them.
    pub fn learns_addresses(&self) -> Arc<AtomicBool> {
        Arc::clone(self.table.sightings.learns())
    }

    /// Learns an IP address that the sender of a frame claims to have. The port must be allowed to
    /// send the frame, which has these headers. False: the address is refused.
    pub fn hear_address(
        &mut self,
        now: u32,
        ingress: PortId,
        headers: &Headers,
        address: IpAddr,
    ) -> bool {
        let Ok((network, form)) = self.admit(ingress, headers) else { return true };
        if !self.table.sightings.wants(network) || !form.is_whole(headers.tags) {
            return true;
        }
        let station = Station { network, mac: headers.src };
        if self.tunnels.has_end(ingress) {
            self.table.sightings.dispute(now, station, address);
            return true;
        }
        if !self.is_at(station, ingress) {
            return true;
        }
        let is_free = !self.is_given_to_others(network, ingress, address);
        is_free && self.table.sightings.hear_address(now, station, ingress, address)
    }

    /// The IP addresses that a station at a port of this host was heard to have.
    pub fn addresses_of(&self, station: Station) -> Vec<IpAddr> {
        self.table.sightings.addresses_of(station).collect()
    }

    /// All IP addresses that stations at ports of this host were heard to have, in no order.
    pub fn heard_addresses(&self) -> impl Iterator<Item = (Station, PortId, IpAddr)> {
        self.table.sightings.heard_addresses()
    }

    /// Learns an address that another switch knew a station behind the same port to have, if this
    /// switch would learn it, too. No watcher needs to want addresses yet.
    pub fn learn_address(&mut self, now: u32, station: Station, port: PortId, address: IpAddr) {
        if self.place(station) == Some(port)
            && !self.is_given_to_others(station.network, port, address)
        {
            self.table.sightings.hear_address(now, station, port, address);
        }
    }

    /// Sets the IP addresses that the configuration gives to a port. The learned addresses of its
    /// stations are forgotten, because they may now claim other ones.
    pub fn give_addresses(&mut self, port: PortId, addresses: Vec<IpAddr>) {
        let networks = self.ports.get(&port).into_iter().flat_map(|rule| rule.vlan.networks());
        for network in networks {
            for address in &addresses {
                self.table.sightings.forget_address(network, *address);
            }
        }
        self.given.set(port, addresses);
        self.table.sightings.forget_addresses_at(port);
        for station in self.locked_to(port) {
            self.table.sightings.note(station);
        }
    }

    fn is_given_to_others(&self, network: Network, port: PortId, address: IpAddr) -> bool {
        let Some(ports) = self.given.ports(address) else { return false };
        !ports.contains(&port) && ports.iter().any(|other| self.is_in(*other, network))
    }

    /// Whether a station has been heard at a port, and is there still.
    fn is_at(&self, station: Station, port: PortId) -> bool {
        self.place(station) == Some(port) && self.presence(station) != Presence::Away
    }

    /// The port that a station is locked to, or else was last heard at.
    fn place(&self, station: Station) -> Option<PortId> {
        self.owner(station).or_else(|| self.table.get(station))
    }
}

#[cfg(test)]
mod tests;
