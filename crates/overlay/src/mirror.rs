//! A mirror of EVPN's control plane, from the kernel's tables to the tunnels of an overlay.
//!
//! FRR writes the addresses that other hosts announce into the tables of a VXLAN device and a
//! bridge of the kernel, and announces those that it finds at other ports of the bridge. These
//! devices carry no traffic. The mirror is a state machine without sockets and without a clock:
//! rows go in as the kernel reports them, in any order and any number of times, and
//! [`reconcile`](Mirror::reconcile) returns the changes for the overlay.
//!
//! IP addresses are rows of neighbours of the bridge: FRR's have the mark of a control plane, and
//! those without it are this host's.
//!
//! Two tables are joined. The bridge's row gives the port of a station; the device's row gives its
//! VTEP. The device's row stays when the station moves to this host, so it counts only together
//! with a row of the bridge.
//!
//! **Headless.** A control plane that ends takes all rows with it. A station that is withdrawn
//! together with its VTEP stays in use, *stale*, for [`STALE_MS`]; one that is withdrawn alone
//! goes. The VTEP's row for floods is the last of all, so this is decided when no row was withdrawn
//! for [`QUIET_MS`]. If the other host is dead, the delay loses only frames that would be lost
//! anyway.

mod addresses;
mod claims;
mod kernel_rows;
mod local_stations;
mod network;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use frame::{Mac, Owner, Vni};

use network::Network;

/// How long withdrawals must have paused, in milliseconds, before they count.
pub const QUIET_MS: u64 = 500;
/// The longest wait for that, in milliseconds.
pub const PATIENCE_MS: u64 = 3000;
/// How long stale VTEPs and stations stay in use, in milliseconds.
pub const STALE_MS: u64 = 120_000;
/// How long announcements of an earlier process are kept without a frame of the station, in
/// milliseconds: as long as a silent station is known.
pub const ADOPTED_MS: u64 = 300_000;
/// Most stations of a network that are kept, and most IP addresses of stations.
pub const MAX_STATIONS: usize = 131_072;

/// The kernel's devices of a network, by the numbers of their interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Devices {
    /// The bridge.
    pub bridge: u32,
    /// The VXLAN device, a port of the bridge.
    pub vxlan: u32,
    /// The port of the bridge at which stations of this host are announced.
    pub here: u32,
}

/// A row of one of the kernel's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    /// A bridge has a station behind a port.
    Bridge {
        /// The bridge.
        bridge: u32,
        /// The port.
        port: u32,
        /// The station.
        mac: Mac,
        /// Whether the row excludes other places of the station.
        sticky: bool,
    },
    /// A VXLAN device has a station at a VTEP, or, without an address, sends floods there.
    Tunnel {
        /// The device.
        device: u32,
        /// The station; zero: floods.
        mac: Mac,
        /// The VTEP.
        vtep: IpAddr,
    },
    /// A station has an IP address.
    Neighbour {
        /// The bridge.
        device: u32,
        /// The address.
        address: IpAddr,
        /// The station.
        owner: Owner,
        /// Whether a control plane has written the row, and not this host.
        learned: bool,
    },
}

/// A change of the overlay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A VTEP in a network is new or changed; the flag says whether floods go there.
    Vtep(Vni, IpAddr, bool),
    /// A VTEP is gone. No station is behind it any more.
    NoVtep(Vni, IpAddr),
    /// A station is behind an existing VTEP.
    Station(Vni, Mac, IpAddr),
    /// A station is behind no VTEP any more.
    NoStation(Vni, Mac),
    /// A station has an IP address; `None`: the owner is not known any more.
    Neighbour(Vni, IpAddr, Option<Owner>),
}

/// A change of the kernel's tables, by which FRR announces or withdraws a station.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// The port of the bridge.
    pub here: u32,
    /// The station.
    pub mac: Mac,
    /// Its presence from now on.
    pub presence: Presence,
}

/// A change of the kernel's tables, by which FRR announces or withdraws an IP address of a station
/// of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressAnnouncement {
    /// The bridge.
    pub bridge: u32,
    /// The address.
    pub address: IpAddr,
    /// The station; `None`: nobody here has the address.
    pub mac: Option<Mac>,
}

/// Whether a station is at a port of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// The station is not at this host.
    Away,
    /// The station is at this host, and may move to other hosts.
    Moves,
    /// The station is at this host, and other hosts must not accept other claims of it: sticky (RFC
    /// 7432, clause 7.7).
    Sticky,
}

/// A VTEP that the overlay has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Whether floods go there.
    pub floods: bool,
    /// Whether the control plane does not know it any more.
    pub stale: bool,
}

/// All networks of an overlay.
#[derive(Default)]
pub struct Mirror {
    networks: BTreeMap<Vni, Network>,
    /// Rows that were refused because there are too many.
    refused: u64,
    /// The rows of a dump that is under way.
    dump: Option<HashSet<(u32, Mac, Option<IpAddr>)>>,
}

impl Mirror {
    /// Adds a network.
    pub fn add(&mut self, vni: Vni, devices: Devices) {
        self.networks.insert(vni, Network::new(devices));
    }

    /// Rows that were refused because a network has too many stations.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// How many IP addresses of stations on other hosts are known.
    pub fn neighbours(&self) -> usize {
        self.networks.values().map(|network| network.addresses().learned()).sum()
    }

    /// How many IP addresses of stations of this host are announced.
    pub fn announced(&self) -> usize {
        self.networks.values().map(|network| network.addresses().announced()).sum()
    }

    /// How many IP addresses stations of this host were heard to have.
    pub fn heard(&self) -> usize {
        self.networks.values().map(|network| network.addresses().heard()).sum()
    }

    /// The VTEPs that the overlay has.
    pub fn peers(&self) -> impl Iterator<Item = ((Vni, IpAddr), Peer)> {
        let networks = self.networks.iter();
        networks.flat_map(|(vni, network)| network.peers().map(|(vtep, peer)| ((*vni, vtep), peer)))
    }

    /// Applies a row that came or went, at a time in milliseconds.
    pub fn apply(&mut self, now: u64, row: Row, present: bool) {
        if let (Some(dump), true) = (&mut self.dump, present) {
            dump.insert(key(&row));
        }
        for network in self.networks.values_mut() {
            if network.has(&row) {
                if present && !network.has_room(&row) {
                    self.refused += 1;
                } else {
                    network.apply(now, row, present);
                }
                return;
            }
        }
    }

    /// Begins a dump: all rows follow, one by one, and rows that do not follow are gone.
    pub fn begin_dump(&mut self) {
        self.dump = Some(HashSet::new());
    }

    /// Ends a dump.
    pub fn end_dump(&mut self, now: u64) {
        let Some(came) = self.dump.take() else { return };
        for network in self.networks.values_mut() {
            let gone: Vec<Row> = network.rows().filter(|row| !came.contains(&key(row))).collect();
            gone.into_iter().for_each(|row| network.apply(now, row, false));
            network.compare(now);
        }
    }

    /// Sets whether a station is at a port of this host.
    pub fn set_here(&mut self, vni: Vni, mac: Mac, presence: Presence) {
        if let Some(network) = self.networks.get_mut(&vni) {
            network.set_here(mac, presence);
        }
    }

    /// Sets the IP addresses that the configuration gives to a station at a port of this host. They
    /// are removed with the station.
    pub fn set_addresses(&mut self, vni: Vni, mac: Mac, addresses: &[IpAddr]) {
        if let Some(network) = self.networks.get_mut(&vni) {
            network.addresses_mut().set_given(mac, addresses);
        }
    }

    /// Sets the IP addresses that a station at a port of this host claims to have. They are removed
    /// with the station. An address that the configuration gives to a station of this host belongs
    /// to that station, even if others claim it.
    pub fn set_heard(&mut self, vni: Vni, mac: Mac, addresses: &[IpAddr]) {
        if let Some(network) = self.networks.get_mut(&vni) {
            network.addresses_mut().set_heard(mac, addresses);
        }
    }

    /// Sets all stations at ports of this host in a network.
    pub fn set_all_here(&mut self, vni: Vni, macs: &HashMap<Mac, Presence>) {
        let Some(network) = self.networks.get_mut(&vni) else { return };
        let gone = network.here().keys().filter(|mac| !macs.contains_key(mac));
        let gone: Vec<Mac> = gone.copied().collect();
        let new = macs.iter().filter(|(mac, presence)| network.here().get(mac) != Some(presence));
        let new: Vec<_> = new.map(|(mac, presence)| (*mac, *presence)).collect();
        gone.into_iter().for_each(|mac| network.set_here(mac, Presence::Away));
        new.into_iter().for_each(|(mac, presence)| network.set_here(mac, presence));
    }

    /// The rows to write to the kernel's tables.
    pub fn announcements(&mut self, now: u64) -> Vec<Announcement> {
        self.networks.values_mut().flat_map(|network| network.announcements(now)).collect()
    }

    /// The rows to write to the kernel's neighbour tables, after
    /// [`announcements`](Self::announcements).
    pub fn address_announcements(&mut self) -> Vec<AddressAnnouncement> {
        self.networks.values_mut().flat_map(Network::address_announcements).collect()
    }

    /// The changes for the overlay. A VTEP is added before its stations, and removed after them.
    pub fn reconcile(&mut self, now: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        for (vni, network) in &mut self.networks {
            network.reconcile(now, *vni, &mut changes);
        }
        changes
    }

    /// The time in milliseconds at which there is work to do even if no row comes before.
    pub fn deadline(&self) -> Option<u64> {
        self.networks.values().filter_map(Network::deadline).min()
    }
}

/// The key of a row.
fn key(row: &Row) -> (u32, Mac, Option<IpAddr>) {
    match *row {
        Row::Bridge { port, mac, .. } => (port, mac, None),
        Row::Tunnel { device, mac, vtep } => (device, mac, Some(vtep)),
        Row::Neighbour { device, address, .. } => (device, Mac([0; 6]), Some(address)),
    }
}

#[cfg(test)]
mod tests;
