//! The IP addresses of stations in one network: those of other hosts, which the control plane has
//! written, and those of this host, which are written for it to announce.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use frame::{Mac, Owner, Vni};

use super::claims::Claims;
use super::{AddressAnnouncement, Change, MAX_STATIONS, Row};

/// The addresses. Each has one row in the kernel, the control plane's or this host's.
#[derive(Default)]
pub(super) struct Addresses {
    /// The rows of the control plane.
    learned: HashMap<IpAddr, Owner>,
    /// The rows of this host.
    announced: HashMap<IpAddr, Mac>,
    /// The addresses of each station in those rows.
    announced_of: HashMap<Mac, BTreeSet<IpAddr>>,
    /// The addresses that the configuration gives to stations of this host.
    given: Claims,
    /// The addresses that stations of this host say they have.
    heard: Claims,
    /// Addresses whose owner differs from the one that the overlay was told.
    changed: BTreeSet<IpAddr>,
    /// Addresses whose rows may have to be written.
    unwritten: BTreeSet<IpAddr>,
}

impl Addresses {
    /// All rows that the kernel has.
    pub fn rows(&self, bridge: u32) -> impl Iterator<Item = Row> {
        let row = move |address, owner, learned| Row::Neighbour {
            device: bridge,
            address,
            owner,
            learned,
        };
        let learned = self.learned.iter().map(move |(&address, &owner)| row(address, owner, true));
        let announced = self.announced.iter();
        learned.chain(announced.map(move |(&address, &mac)| row(address, Owner::host(mac), false)))
    }

    /// Whether the row of an address is known, or there is room for one more.
    pub fn has_room(&self, address: IpAddr) -> bool {
        let is_known = self.learned.contains_key(&address) || self.announced.contains_key(&address);
        is_known || self.learned.len() + self.announced.len() < MAX_STATIONS
    }

    /// Applies a row: a station has an address, or no station has.
    pub fn apply(&mut self, address: IpAddr, owner: Option<Owner>, learned: bool) {
        let before = self.learned.remove(&address);
        self.forget_announced(address);
        match owner {
            Some(owner) if learned => _ = self.learned.insert(address, owner),
            Some(Owner { mac, .. }) => {
                self.announced.insert(address, mac);
                self.announced_of.entry(mac).or_default().insert(address);
            }
            None => {}
        }
        if before != self.learned.get(&address).copied() {
            self.changed.insert(address);
        }
        self.unwritten.insert(address);
    }

    /// How many addresses of other hosts' stations are known.
    pub fn learned(&self) -> usize {
        self.learned.len()
    }

    /// How many addresses of stations of this host are announced.
    pub fn announced(&self) -> usize {
        self.announced.len()
    }

    /// How many addresses stations of this host say they have.
    pub fn heard(&self) -> usize {
        self.heard.len()
    }

    /// Sets the addresses that the configuration gives to a station of this host.
    pub fn set_given(&mut self, mac: Mac, addresses: &[IpAddr]) {
        self.unwritten.extend(self.given.set(mac, addresses));
        self.compare_rows_of(mac);
    }

    /// Sets the addresses that a station of this host claims to have.
    pub fn set_heard(&mut self, mac: Mac, addresses: &[IpAddr]) {
        self.unwritten.extend(self.heard.set(mac, addresses));
        self.compare_rows_of(mac);
    }

    /// Compares the rows of a station, which an earlier process may have written.
    fn compare_rows_of(&mut self, mac: Mac) {
        self.unwritten.extend(self.announced_of.get(&mac).into_iter().flatten());
    }

    fn forget_announced(&mut self, address: IpAddr) {
        let Some(mac) = self.announced.remove(&address) else { return };
        if let Some(addresses) = self.announced_of.get_mut(&mac) {
            addresses.remove(&address);
            if addresses.is_empty() {
                self.announced_of.remove(&mac);
            }
        }
    }

    /// Compares all rows with the addresses to announce.
    pub fn compare(&mut self) {
        let claimed = self.given.addresses().chain(self.heard.addresses());
        self.unwritten.extend(claimed.chain(self.announced.keys().copied()));
    }

    /// The changes for the overlay.
    pub fn changes(&mut self, vni: Vni) -> impl Iterator<Item = Change> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        changed.map(move |address| {
            Change::Neighbour(vni, address, self.learned.get(&address).copied())
        })
    }

    /// The one station of this host that has an address for certain: the only one that is given it,
    /// or, if none is, the only one that claims it.
    fn only_station(&self, address: IpAddr) -> Option<Mac> {
        let stations = self.given.stations(address).or_else(|| self.heard.stations(address));
        let stations = stations.filter(|stations| stations.len() == 1)?;
        stations.first().copied()
    }

    /// The rows to write. `is_adopted`: an earlier process has announced the station, which has
    /// sent nothing since.
    pub fn announcements(
        &mut self,
        bridge: u32,
        is_adopted: impl Fn(Mac) -> bool,
    ) -> Vec<AddressAnnouncement> {
        let unwritten = std::mem::take(&mut self.unwritten).into_iter();
        let change = |address| {
            let mac = self.only_station(address);
            let row = self.announced.get(&address).copied();
            // A row of another station is never removed.
            let is_others = self.learned.get(&address).is_some_and(|it| Some(it.mac) != mac);
            let is_kept = mac.is_none() && row.is_some_and(&is_adopted);
            let is_due = mac != row && !is_others && !is_kept;
            is_due.then_some(AddressAnnouncement { bridge, address, mac })
        };
        unwritten.filter_map(change).collect()
    }
}
