//! Where the stations of this host are, for a control plane that tells other hosts.
//!
//! A watcher is told which stations came, moved or went, and then queries where they are now. The
//! list of changes between two queries is bounded: beyond that, a query returns all stations. A
//! guest that makes up sources is bounded by the table of addresses, and wakes a watcher at most
//! once per query.
//!
//! A watcher may also want the IP addresses of stations. The learned addresses of a station are
//! forgotten whenever its place changes.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::address::{Addresses, Heard};
use crate::port_id::PortId;
use crate::station::Station;
use crate::vlan::Network;

/// The most stations that a watcher is told of one by one.
pub(crate) const MOST: usize = 4096;

/// Wakes a watcher. Called while the switch is locked, so it must not call the switch.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A watcher of one switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatcherId(u64);

/// Whether a station is at a port of this host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Presence {
    /// The station is not at a port of this host.
    Away,
    /// The station is here, until its frames come from elsewhere.
    Learned,
    /// The station is here, and cannot be elsewhere: its address is locked to the port.
    Locked,
}

/// The changes since the last query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sighted {
    /// These stations, and where each is now.
    Some(Vec<(Station, Presence)>),
    /// All stations at ports of this host, because too many have changed.
    All(Vec<(Station, Presence)>),
}

struct Watcher {
    id: WatcherId,
    wake: Wake,
    /// `None`: too many.
    changed: Option<HashSet<Station>>,
    /// The networks whose stations' addresses are wanted.
    networks: Vec<Network>,
}

#[derive(Default)]
pub(crate) struct Sightings {
    watchers: Vec<Watcher>,
    next: u64,
    /// Stations of locked ports, which are not learned, and when a frame from each was last looked
    /// up. Empty while nobody watches.
    heard: HashMap<Station, u32>,
    addresses: Addresses,
    /// Whether any watcher wants addresses.
    learns: Arc<AtomicBool>,
}

impl Sightings {
    /// Notes a change of a station's place, or of the addresses that its port may claim.
    pub fn note(&mut self, station: Station) {
        self.addresses.forget(station);
        self.tell(station);
    }

    /// Tells watchers of a change of a station.
    fn tell(&mut self, station: Station) {
        for Watcher { wake, changed, .. } in &mut self.watchers {
            let Some(stations) = changed else { continue };
            // A watcher that has changes pending was woken before, and will query.
            if stations.is_empty() {
                wake();
            }
            stations.insert(station);
            if stations.len() > MOST {
                *changed = None;
            }
        }
    }

    /// Notes a frame of a station from the port that is locked to it.
    pub fn hear(&mut self, now: u32, station: Station) {
        if !self.watchers.is_empty() && self.heard.insert(station, now).is_none() {
            // The station has no addresses yet but those that another process has learned.
            self.tell(station);
        }
    }

    /// Forgets the stations of locked ports for which `is_gone` holds.
    pub fn forget(&mut self, is_gone: impl Fn(&Station, u32) -> bool) {
        let gone = self.heard.iter().filter(|(station, seen)| is_gone(station, **seen));
        let gone: Vec<Station> = gone.map(|(station, _)| *station).collect();
        for station in gone {
            self.heard.remove(&station);
            self.note(station);
        }
    }

    /// Whether a station of a locked port was heard.
    pub fn has_heard(&self, station: Station) -> bool {
        self.heard.contains_key(&station)
    }

    /// The stations of locked ports that were heard.
    pub fn heard(&self) -> impl Iterator<Item = Station> {
        self.heard.keys().copied()
    }

    /// A new watcher, to whom all stations are new.
    pub fn watch(&mut self, wake: Wake) -> WatcherId {
        let id = WatcherId(self.next);
        self.next += 1;
        wake();
        self.watchers.push(Watcher { id, wake, changed: None, networks: Vec::new() });
        id
    }

    /// Sets the networks in which a watcher wants the addresses of stations.
    pub fn want_addresses(&mut self, id: WatcherId, networks: Vec<Network>) {
        if let Some(watcher) = self.watchers.iter_mut().find(|watcher| watcher.id == id) {
            watcher.networks = networks;
        }
        self.see_wants();
    }

    /// Forgets a watcher.
    pub fn unwatch(&mut self, id: WatcherId) {
        self.watchers.retain(|watcher| watcher.id != id);
        if self.watchers.is_empty() {
            self.heard.clear();
        }
        self.see_wants();
    }

    fn see_wants(&mut self) {
        let wanted = self.watchers.iter().any(|watcher| !watcher.networks.is_empty());
        if !wanted {
            self.addresses = Addresses::default();
        }
        self.learns.store(wanted, Ordering::Relaxed);
    }

    /// Whether any watcher wants addresses.
    pub fn learns(&self) -> &Arc<AtomicBool> {
        &self.learns
    }

    /// Whether a watcher wants the addresses of stations in a network.
    pub fn wants(&self, network: Network) -> bool {
        self.watchers.iter().any(|watcher| watcher.networks.contains(&network))
    }

    /// All addresses that stations were heard to have.
    pub fn heard_addresses(&self) -> impl Iterator<Item = (Station, PortId, IpAddr)> {
        self.addresses.all()
    }

    /// Learns that a station at a port of this host has an address. False: the address is refused.
    pub fn hear_address(
        &mut self,
        now: u32,
        station: Station,
        port: PortId,
        address: IpAddr,
    ) -> bool {
        let heard = self.addresses.hear(now, station, port, address);
        if heard == Heard::New {
            self.tell(station);
        }
        heard != Heard::Refused
    }

    /// Disputes an address that a station of another host was heard to have.
    pub fn dispute(&mut self, now: u32, claimant: Station, address: IpAddr) {
        let stations = self.addresses.dispute(now, claimant, address);
        stations.into_iter().for_each(|station| self.tell(station));
    }

    /// Forgets the addresses that were heard at a port.
    pub fn forget_addresses_at(&mut self, port: PortId) {
        let stations = self.addresses.forget_port(port);
        stations.into_iter().for_each(|station| self.tell(station));
    }

    /// Forgets an address that stations were heard to have.
    pub fn forget_address(&mut self, network: Network, address: IpAddr) {
        let stations = self.addresses.forget_address(network, address);
        stations.into_iter().for_each(|station| self.tell(station));
    }

    /// Forgets the addresses that were not heard for too long.
    pub fn age_addresses(&mut self, now: u32) {
        let stations = self.addresses.age(now);
        stations.into_iter().for_each(|station| self.tell(station));
    }

    /// The addresses that a station was heard to have.
    pub fn addresses_of(&self, station: Station) -> impl Iterator<Item = IpAddr> {
        self.addresses.of(station)
    }

    /// Takes the stations that are new to a watcher; `None`: all of them.
    pub fn take_changed(&mut self, id: WatcherId) -> Option<HashSet<Station>> {
        let watcher = self.watchers.iter_mut().find(|watcher| watcher.id == id)?;
        watcher.changed.replace(HashSet::new())
    }
}
