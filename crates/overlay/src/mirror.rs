//! What EVPN's control plane says, as it stands in the kernel's tables, and what follows from it for
//! the tunnels of an overlay.
//!
//! FRR writes the addresses that other hosts announce into the tables of a VXLAN device and a bridge
//! of the kernel, and announces those that it finds at other ports of the bridge. The devices are
//! shadows: they carry no traffic. This is a state machine without sockets and without a clock:
//! rows go in as the kernel tells them, in any order and any number of times, and
//! [`reconcile`](Mirror::reconcile) says what changes for the overlay.
//!
//! IP addresses are rows of neighbours of the bridge: FRR's have the mark of a control plane, and
//! those without it are this host's.
//!
//! Two tables are joined. The bridge's row says behind which port a station is; the device's row says
//! which VTEP it is at, and stays when the station moves in here, so it counts only together with a
//! row of the bridge.
//!
//! **Headless.** A control plane that ends takes all rows with it. A station that is withdrawn
//! together with its VTEP stays in use, *stale*, for [`STALE_MS`]; one that is withdrawn alone goes.
//! The VTEP's row, that of its floods, is the last of all, so this is decided when no row was
//! withdrawn for [`QUIET_MS`]. For a host that is dead, nothing is lost by that but frames that
//! would be lost anyway.

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
/// How long what an earlier process has announced stays so without a sign of life, in milliseconds:
/// as long as a silent station is known.
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
        /// Whether the row says that the station is nowhere else.
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
        /// Whether a control plane has said so; else, this host.
        learned: bool,
    },
}

/// A change of the overlay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// There is a VTEP in a network, and floods go there or do not.
    Vtep(Vni, IpAddr, bool),
    /// There is no such VTEP any more. No station is there.
    NoVtep(Vni, IpAddr),
    /// A station is at a VTEP that is there.
    Station(Vni, Mac, IpAddr),
    /// A station is at no VTEP any more.
    NoStation(Vni, Mac),
    /// A station has an IP address; `None`: nobody is known to have it any more.
    Neighbour(Vni, IpAddr, Option<Owner>),
}

/// A change of the kernel's tables, by which FRR announces or withdraws a station.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// The port of the bridge.
    pub here: u32,
    /// The station.
    pub mac: Mac,
    /// Whether it is there from now on, and how.
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
    /// It is not.
    Away,
    /// It is, and may move to other hosts.
    Moves,
    /// It is, and other hosts are not to believe anybody else who claims it: sticky (RFC 7432,
    /// clause 7.7).
    Sticky,
}

/// A VTEP that the overlay has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Whether floods go there.
    pub floods: bool,
    /// Whether the control plane knows nothing of it any more.
    pub stale: bool,
}

/// All networks of an overlay.
#[derive(Default)]
pub struct Mirror {
    networks: BTreeMap<Vni, Network>,
    /// Rows that were refused: there are too many.
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

    /// A row came or went, at a time in milliseconds.
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

    /// All rows come now, one by one, and those that do not are gone.
    pub fn begin_dump(&mut self) {
        self.dump = Some(HashSet::new());
    }

    /// That were all rows.
    pub fn end_dump(&mut self, now: u64) {
        let Some(came) = self.dump.take() else { return };
        for network in self.networks.values_mut() {
            let gone: Vec<Row> = network.rows().filter(|row| !came.contains(&key(row))).collect();
            gone.into_iter().for_each(|row| network.apply(now, row, false));
            network.compare(now);
        }
    }

    /// A station is at a port of this host, or is there no more.
    pub fn set_here(&mut self, vni: Vni, mac: Mac, presence: Presence) {
        if let Some(network) = self.networks.get_mut(&vni) {
            network.set_here(mac, presence);
        }
    }

    /// The configuration gives a station that is at a port of this host these IP addresses, and no
    /// others. They go with the station.
    pub fn set_addresses(&mut self, vni: Vni, mac: Mac, addresses: &[IpAddr]) {
        if let Some(network) = self.networks.get_mut(&vni) {
            network.addresses_mut().set_given(mac, addresses);
        }
    }

    /// A station that is at a port of this host says that it has these IP addresses, and no others.
    /// They go with the station. One that the configuration gives to a station of this host is that
    /// station's, whoever else claims it.
    pub fn set_heard(&mut self, vni: Vni, mac: Mac, addresses: &[IpAddr]) {
        if let Some(network) = self.networks.get_mut(&vni) {
            network.addresses_mut().set_heard(mac, addresses);
        }
    }

    /// These stations, and no others, are at ports of this host in a network.
    pub fn set_all_here(&mut self, vni: Vni, macs: &HashMap<Mac, Presence>) {
        let Some(network) = self.networks.get_mut(&vni) else { return };
        let gone = network.here().keys().filter(|mac| !macs.contains_key(mac));
        let gone: Vec<Mac> = gone.copied().collect();
        let new = macs.iter().filter(|(mac, presence)| network.here().get(mac) != Some(presence));
        let new: Vec<_> = new.map(|(mac, presence)| (*mac, *presence)).collect();
        gone.into_iter().for_each(|mac| network.set_here(mac, Presence::Away));
        new.into_iter().for_each(|(mac, presence)| network.set_here(mac, presence));
    }

    /// What is to be written to the kernel's tables.
    pub fn announcements(&mut self, now: u64) -> Vec<Announcement> {
        self.networks.values_mut().flat_map(|network| network.announcements(now)).collect()
    }

    /// What is to be written to the kernel's tables of neighbours, after
    /// [`announcements`](Self::announcements).
    pub fn address_announcements(&mut self) -> Vec<AddressAnnouncement> {
        self.networks.values_mut().flat_map(Network::address_announcements).collect()
    }

    /// What changes for the overlay: VTEPs come before their stations, and go after them.
    pub fn reconcile(&mut self, now: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        for (vni, network) in &mut self.networks {
            network.reconcile(now, *vni, &mut changes);
        }
        changes
    }

    /// When there is something to do, if no row comes before; in milliseconds.
    pub fn deadline(&self) -> Option<u64> {
        self.networks.values().filter_map(Network::deadline).min()
    }
}

/// What tells rows apart.
fn key(row: &Row) -> (u32, Mac, Option<IpAddr>) {
    match *row {
        Row::Bridge { port, mac, .. } => (port, mac, None),
        Row::Tunnel { device, mac, vtep } => (device, mac, Some(vtep)),
        Row::Neighbour { device, address, .. } => (device, Mac([0; 6]), Some(address)),
    }
}

#[cfg(test)]
mod tests;
