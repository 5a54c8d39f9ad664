//! IP addresses learned from stations at ports of this host: bounded, ageing.
//!
//! Invariants: at most [`MAX_ADDRESSES`] on one port; `held` and `holders` have exactly the entries
//! of `stations`, `disputes` those of them that are disputed, and `contests` those that are
//! contested. No operation on one station looks at all others.
//!
//! A guest that claims many addresses fills the share of its own port. An address that several
//! stations claim has an entry for each of them, so a reader sees that its owner is uncertain. Each
//! claim *contests* the entries of the others: one that is not heard again within [`DISPUTE`] is
//! forgotten, so an address that fails over from one guest to another has one owner again. An
//! address that a station of another host also claims is *disputed*: it is not reported until the
//! other station has been silent for [`DISPUTE`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use frame::Mac;

use crate::port_id::PortId;
use crate::station::Station;
use crate::vlan::Network;

/// Most addresses that are learned on one port.
pub const MAX_ADDRESSES: usize = 128;
/// How long an address is kept after it was last heard, in seconds. A station that uses a single
/// connection may send no ARP or neighbour discovery for minutes.
pub const ADDRESS_AGE: u32 = 1800;
/// How long an address is disputed after another host's station has claimed it, and how long its
/// station may be silent after another one of this host has claimed it, in seconds.
pub(crate) const DISPUTE: u32 = 60;

/// The result of learning an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// It was not known.
    New,
    /// It was known.
    Known,
    /// The port has as many as it may have.
    Refused,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    port: PortId,
    /// When it was last heard, in seconds.
    seen: u32,
    /// Until when it is disputed.
    disputed: Option<u32>,
    /// When it is forgotten unless it is heard before.
    contested: Option<u32>,
}

/// Entries ordered by a time in seconds.
type ByTime = BTreeSet<(u32, Station, IpAddr)>;

#[derive(Default)]
pub(crate) struct Addresses {
    // The default hasher is keyed: a guest cannot build a table of collisions.
    stations: HashMap<Station, BTreeMap<IpAddr, Entry>>,
    holders: HashMap<(Network, IpAddr), BTreeSet<Mac>>,
    /// The addresses of each port, the least recently heard first.
    held: HashMap<PortId, ByTime>,
    /// Disputed addresses, by the end of their dispute.
    disputes: ByTime,
    /// Contested addresses, by the time at which they are forgotten.
    contests: ByTime,
}

impl Addresses {
    /// Learns that a station at a port has an address.
    pub fn hear(&mut self, now: u32, station: Station, port: PortId, address: IpAddr) -> Heard {
        let known = self.get(station, address).filter(|entry| entry.port == port);
        if known.is_none() && self.held.get(&port).map_or(0, BTreeSet::len) >= MAX_ADDRESSES {
            return Heard::Refused;
        }
        if known.is_some_and(|entry| entry.seen == now) {
            return Heard::Known;
        }
        let disputed = self.remove(station, address).and_then(|entry| entry.disputed);
        self.insert(station, address, Entry { port, seen: now, disputed, contested: None });
        self.contest(now, station, address);
        if known.is_some() { Heard::Known } else { Heard::New }
    }

    /// Notes that a station of another host has claimed an address. Returns the stations here that
    /// had it undisputed.
    pub fn dispute(&mut self, now: u32, claimant: Station, address: IpAddr) -> Vec<Station> {
        let until = Some(now.saturating_add(DISPUTE));
        let holders = self.other_holders(claimant, address).into_iter();
        holders.filter(|station| self.set_disputed(*station, address, until)).collect()
    }

    /// Gives the other stations that have an address until [`DISPUTE`] to claim it again. Those
    /// that have been given that time already get no more.
    fn contest(&mut self, now: u32, claimant: Station, address: IpAddr) {
        let contested = Some(now.saturating_add(DISPUTE));
        for station in self.other_holders(claimant, address) {
            let Some(entry) = self.get(station, address) else { continue };
            if entry.contested.is_none() {
                self.remove(station, address);
                self.insert(station, address, Entry { contested, ..entry });
            }
        }
    }

    fn other_holders(&self, claimant: Station, address: IpAddr) -> Vec<Station> {
        let holders = self.holders.get(&(claimant.network, address));
        let others = holders.into_iter().flatten().filter(|mac| **mac != claimant.mac);
        others.map(|mac| Station { mac: *mac, ..claimant }).collect()
    }

    /// The addresses of a station that are not disputed.
    pub fn of(&self, station: Station) -> impl Iterator<Item = IpAddr> {
        let entries = self.stations.get(&station).into_iter().flatten();
        entries.filter(|(_, entry)| entry.disputed.is_none()).map(|(address, _)| *address)
    }

    /// All stations with addresses that are not disputed, the port of each address, and the
    /// addresses, in no order.
    pub fn all(&self) -> impl Iterator<Item = (Station, PortId, IpAddr)> {
        self.stations.iter().flat_map(|(station, entries)| {
            let certain = entries.iter().filter(|(_, entry)| entry.disputed.is_none());
            certain.map(|(address, entry)| (*station, entry.port, *address))
        })
    }

    /// Forgets all addresses of a station.
    pub fn forget(&mut self, station: Station) {
        while let Some(address) =
            self.stations.get(&station).and_then(|entries| Some(*entries.first_key_value()?.0))
        {
            self.remove(station, address);
        }
    }

    /// Forgets all addresses that were heard at a port. Returns the stations that had some.
    pub fn forget_port(&mut self, port: PortId) -> BTreeSet<Station> {
        let held = self.held.get(&port).into_iter().flatten();
        let stations: BTreeSet<_> = held.map(|(_, station, _)| *station).collect();
        stations.iter().for_each(|station| self.forget(*station));
        stations
    }

    /// Forgets an address in a network. Returns the stations that had it.
    pub fn forget_address(&mut self, network: Network, address: IpAddr) -> Vec<Station> {
        let holders = self.holders.get(&(network, address)).into_iter().flatten();
        let stations: Vec<_> = holders.map(|mac| Station { network, mac: *mac }).collect();
        stations.iter().for_each(|station| _ = self.remove(*station, address));
        stations
    }

    /// Forgets the addresses that were not heard for too long or lost a contest, and disputes that
    /// are over. Returns the stations about which something changes.
    pub fn age(&mut self, now: u32) -> BTreeSet<Station> {
        let is_old = |seen: u32| now.saturating_sub(seen) > ADDRESS_AGE;
        let old = self.held.values().flat_map(|held| held.iter().take_while(|it| is_old(it.0)));
        let old: Vec<_> = old
            .chain(over(&self.contests, now))
            .map(|(_, station, address)| (*station, *address))
            .collect();
        for (station, address) in &old {
            self.remove(*station, *address);
        }
        let over = over(&self.disputes, now);
        let over: Vec<_> = over.map(|(_, station, address)| (*station, *address)).collect();
        for (station, address) in &over {
            self.set_disputed(*station, *address, None);
        }
        old.into_iter().chain(over).map(|(station, _)| station).collect()
    }

    fn get(&self, station: Station, address: IpAddr) -> Option<Entry> {
        self.stations.get(&station)?.get(&address).copied()
    }

    fn insert(&mut self, station: Station, address: IpAddr, entry: Entry) {
        self.stations.entry(station).or_default().insert(address, entry);
        self.holders.entry((station.network, address)).or_default().insert(station.mac);
        self.held.entry(entry.port).or_default().insert((entry.seen, station, address));
        self.disputes.extend(entry.disputed.map(|until| (until, station, address)));
        self.contests.extend(entry.contested.map(|until| (until, station, address)));
    }

    fn remove(&mut self, station: Station, address: IpAddr) -> Option<Entry> {
        let entries = self.stations.get_mut(&station)?;
        let entry = entries.remove(&address)?;
        if entries.is_empty() {
            self.stations.remove(&station);
        }
        let place = (station.network, address);
        if let Some(holders) = self.holders.get_mut(&place) {
            holders.remove(&station.mac);
            if holders.is_empty() {
                self.holders.remove(&place);
            }
        }
        if let Some(held) = self.held.get_mut(&entry.port) {
            held.remove(&(entry.seen, station, address));
            if held.is_empty() {
                self.held.remove(&entry.port);
            }
        }
        if let Some(until) = entry.disputed {
            self.disputes.remove(&(until, station, address));
        }
        if let Some(until) = entry.contested {
            self.contests.remove(&(until, station, address));
        }
        Some(entry)
    }

    /// Sets or ends a dispute. Returns whether that changed.
    fn set_disputed(&mut self, station: Station, address: IpAddr, until: Option<u32>) -> bool {
        let Some(before) = self.remove(station, address) else { return false };
        self.insert(station, address, Entry { disputed: until, ..before });
        before.disputed.is_some() != until.is_some()
    }
}

/// The entries whose time has come.
fn over(entries: &ByTime, now: u32) -> impl Iterator<Item = &(u32, Station, IpAddr)> {
    entries.iter().take_while(move |(until, ..)| *until <= now)
}

#[cfg(test)]
mod tests;
