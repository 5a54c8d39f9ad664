//! One network of an overlay: the kernel's rows, the state of the overlay, and pending work.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use frame::{Mac, Vni};

use super::addresses::Addresses;
use super::kernel_rows::{KernelRows, Place};
use super::local_stations::LocalStations;
use super::{
    AddressAnnouncement, Announcement, Change, Devices, PATIENCE_MS, Peer, Presence, QUIET_MS, Row,
    STALE_MS,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Vtep {
    floods: bool,
    /// When it is forgotten, if its row is gone.
    stale: Option<u64>,
}

/// One network.
pub(super) struct Network {
    devices: Devices,
    kernel: KernelRows,
    local: LocalStations,
    // The state of the overlay.
    stations: HashMap<Mac, IpAddr>,
    peers: BTreeMap<IpAddr, Vtep>,
    /// How many stations each VTEP has.
    held: HashMap<IpAddr, usize>,
    // Pending work.
    touched: BTreeSet<Mac>,
    /// Stations that are in use and that the kernel has no more, and when each of those that are
    /// stale is forgotten.
    withdrawn: BTreeMap<Mac, Option<u64>>,
    /// The first withdrawal that is not decided, and the last one.
    waiting: Option<(u64, u64)>,
    /// The IP addresses of stations.
    addresses: Addresses,
}

impl Network {
    /// A network without any rows.
    pub fn new(devices: Devices) -> Network {
        Network {
            devices,
            kernel: KernelRows::default(),
            local: LocalStations::default(),
            stations: HashMap::new(),
            peers: BTreeMap::new(),
            held: HashMap::new(),
            touched: BTreeSet::new(),
            withdrawn: BTreeMap::new(),
            waiting: None,
            addresses: Addresses::default(),
        }
    }

    pub fn has(&self, row: &Row) -> bool {
        match row {
            Row::Bridge { bridge, .. } => *bridge == self.devices.bridge,
            Row::Tunnel { device, .. } => *device == self.devices.vxlan,
            Row::Neighbour { device, .. } => *device == self.devices.bridge,
        }
    }

    /// Whether a row is known, or there is room for one more.
    pub fn has_room(&self, row: &Row) -> bool {
        match row {
            Row::Bridge { mac, .. } => self.kernel.has_room_for_place(*mac),
            Row::Tunnel { mac, vtep, .. } => self.kernel.has_room_for_vtep(*mac, *vtep),
            Row::Neighbour { address, .. } => self.addresses.has_room(*address),
        }
    }

    /// All rows that the kernel has.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        self.kernel.rows(self.devices).chain(self.addresses.rows(self.devices.bridge))
    }

    pub fn apply(&mut self, now: u64, row: Row, present: bool) {
        match row {
            Row::Tunnel { mac, vtep, .. } if mac.is_zero() => {
                if self.kernel.set_flood(vtep, present) && !present {
                    self.wait(now);
                }
            }
            Row::Tunnel { mac, vtep, .. } => {
                self.kernel.set_vtep(mac, vtep, present);
                self.touched.insert(mac);
            }
            Row::Neighbour { address, owner, learned, .. } => {
                self.addresses.apply(address, present.then_some(owner), learned);
            }
            Row::Bridge { port, mac, sticky, .. } => {
                self.kernel.set_place(mac, Place::of(self.devices, port, sticky), present);
                self.touched.insert(mac);
                // Another program has removed a row that must be there.
                if self.kernel.place(mac).is_none() {
                    self.local.lost(mac);
                }
            }
        }
    }

    /// The IP addresses of stations.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The IP addresses of stations.
    pub fn addresses_mut(&mut self) -> &mut Addresses {
        &mut self.addresses
    }

    fn wait(&mut self, now: u64) {
        let first = self.waiting.map_or(now, |(first, _)| first);
        self.waiting = Some((first, now));
    }

    pub fn reconcile(&mut self, now: u64, vni: Vni, changes: &mut Vec<Change>) {
        let mut moves = Vec::new();
        for mac in std::mem::take(&mut self.touched) {
            match self.kernel.vtep(mac) {
                Some(vtep) => {
                    self.withdrawn.remove(&mac);
                    if self.stations.get(&mac) != Some(&vtep) {
                        self.release(mac);
                        self.stations.insert(mac, vtep);
                        *self.held.entry(vtep).or_default() += 1;
                        moves.push(Change::Station(vni, mac, vtep));
                    }
                }
                None if !self.stations.contains_key(&mac) => {}
                // The row was replaced: the station is at another port of the bridge.
                None if self.kernel.place(mac).is_some_and(|place| place != Place::Tunnel) => {
                    self.drop_station(vni, mac, &mut moves);
                }
                None => {
                    if self.withdrawn.insert(mac, None).is_none() {
                        self.wait(now);
                    }
                }
            }
        }
        self.decide(now, vni, &mut moves);
        let expired = self.withdrawn.iter().filter(|(_, until)| until.is_some_and(|it| it <= now));
        let expired: Vec<Mac> = expired.map(|(mac, _)| *mac).collect();
        expired.into_iter().for_each(|mac| self.drop_station(vni, mac, &mut moves));
        let (new, gone) = self.reconcile_peers(now, vni);
        changes.extend(new.into_iter().chain(moves).chain(gone));
        changes.extend(self.addresses.changes(vni));
    }

    /// Decides about withdrawals after a pause: stations withdrawn alone are removed, and all
    /// others become stale.
    fn decide(&mut self, now: u64, vni: Vni, moves: &mut Vec<Change>) {
        let Some((first, last)) = self.waiting else { return };
        if now < last + QUIET_MS && now < first + PATIENCE_MS {
            return;
        }
        self.waiting = None;
        let open = self.withdrawn.iter().filter(|(_, until)| until.is_none());
        let open: Vec<Mac> = open.map(|(mac, _)| *mac).collect();
        for mac in open {
            let vtep = self.stations.get(&mac);
            if vtep.is_some_and(|vtep| self.kernel.floods().contains(vtep)) {
                self.drop_station(vni, mac, moves);
            } else {
                self.withdrawn.insert(mac, Some(now + STALE_MS));
            }
        }
        for (vtep, peer) in &mut self.peers {
            if peer.floods && !self.kernel.floods().contains(vtep) && peer.stale.is_none() {
                peer.stale = Some(now + STALE_MS);
            }
        }
    }

    fn drop_station(&mut self, vni: Vni, mac: Mac, moves: &mut Vec<Change>) {
        self.withdrawn.remove(&mac);
        self.release(mac);
        if self.stations.remove(&mac).is_some() {
            moves.push(Change::NoStation(vni, mac));
        }
    }

    /// Removes a station from the count of its VTEP.
    fn release(&mut self, mac: Mac) {
        let Some(vtep) = self.stations.get(&mac) else { return };
        if let Some(held) = self.held.get_mut(vtep) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(vtep);
            }
        }
    }

    /// The VTEPs that are new, and those that are gone.
    fn reconcile_peers(&mut self, now: u64, vni: Vni) -> (Vec<Change>, Vec<Change>) {
        let (mut new, mut gone) = (Vec::new(), Vec::new());
        for vtep in self.kernel.floods().iter().chain(self.held.keys()) {
            let floods = self.kernel.floods().contains(vtep);
            let peer = self.peers.get_mut(vtep);
            match peer {
                None => {
                    self.peers.insert(*vtep, Vtep { floods, stale: None });
                    new.push(Change::Vtep(vni, *vtep, floods));
                }
                Some(peer) if floods => {
                    peer.stale = None;
                    if !peer.floods {
                        peer.floods = true;
                        new.push(Change::Vtep(vni, *vtep, true));
                    }
                }
                Some(_) => {}
            }
        }
        let waits = self.waiting.is_some();
        self.peers.retain(|vtep, peer| {
            let is_over = peer.stale.is_some_and(|until| until <= now);
            let is_used = self.held.contains_key(vtep);
            if self.kernel.floods().contains(vtep)
                || (peer.floods && !is_over && (waits || peer.stale.is_some()))
            {
                return true;
            }
            if is_over && is_used {
                *peer = Vtep { floods: false, stale: None };
                new.push(Change::Vtep(vni, *vtep, false));
            }
            if !is_used {
                gone.push(Change::NoVtep(vni, *vtep));
            }
            is_used
        });
        (new, gone)
    }

    /// Stations of this host.
    pub fn here(&self) -> &HashMap<Mac, Presence> {
        self.local.known()
    }

    /// Sets whether a station is at a port of this host.
    pub fn set_here(&mut self, mac: Mac, presence: Presence) {
        if presence == Presence::Away {
            self.addresses.set_given(mac, &[]);
            self.addresses.set_heard(mac, &[]);
        }
        self.local.set(mac, presence);
    }

    /// Announces missing stations, after all rows are known.
    pub fn compare(&mut self, now: u64) {
        self.local.compare(now, &self.kernel);
        self.addresses.compare();
    }

    pub fn announcements(&mut self, now: u64) -> Vec<Announcement> {
        if self.local.end_adoption(now) {
            self.addresses.compare();
        }
        self.local.announcements(self.devices.here, &self.kernel)
    }

    pub fn address_announcements(&mut self) -> Vec<AddressAnnouncement> {
        let local = &self.local;
        self.addresses.announcements(self.devices.bridge, |mac| local.is_adopted(mac))
    }

    pub fn deadline(&self) -> Option<u64> {
        let waiting = self.waiting.map(|(first, last)| (last + QUIET_MS).min(first + PATIENCE_MS));
        let stale = self.peers.values().filter_map(|peer| peer.stale);
        let withdrawn = self.withdrawn.values().filter_map(|until| *until);
        waiting.into_iter().chain(stale).chain(withdrawn).chain(self.local.deadline()).min()
    }

    /// The VTEPs that the overlay has.
    pub fn peers(&self) -> impl Iterator<Item = (IpAddr, Peer)> {
        let peer = |(vtep, peer): (&IpAddr, &Vtep)| {
            (*vtep, Peer { floods: peer.floods, stale: peer.stale.is_some() })
        };
        self.peers.iter().map(peer)
    }
}
