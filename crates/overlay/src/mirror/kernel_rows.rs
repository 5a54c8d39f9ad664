//! The rows of a network's bridge and tunnel, as the kernel has them.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use frame::Mac;

use super::{Devices, MAX_STATIONS, Row};

/// The place of a station in the bridge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Tunnel,
    Here { sticky: bool },
    Elsewhere,
}

impl Place {
    /// The place that a port of the bridge stands for.
    pub fn of(devices: Devices, port: u32, sticky: bool) -> Place {
        match port {
            port if port == devices.vxlan => Place::Tunnel,
            port if port == devices.here => Place::Here { sticky },
            _ => Place::Elsewhere,
        }
    }

    fn is_here(self) -> bool {
        matches!(self, Place::Here { .. })
    }

    /// Whether it is behind the same port.
    fn is_like(self, other: Place) -> bool {
        self == other || self.is_here() && other.is_here()
    }
}

/// Rows of one network.
#[derive(Default)]
pub(super) struct KernelRows {
    places: HashMap<Mac, Place>,
    vteps: HashMap<Mac, IpAddr>,
    floods: BTreeSet<IpAddr>,
}

impl KernelRows {
    /// The place of a station in the bridge; `None`: the bridge does not have it.
    pub fn place(&self, mac: Mac) -> Option<Place> {
        self.places.get(&mac).copied()
    }

    /// The VTEP of a station that is behind the tunnel.
    pub fn vtep(&self, mac: Mac) -> Option<IpAddr> {
        match self.place(mac) {
            Some(Place::Tunnel) => self.vteps.get(&mac).copied(),
            _ => None,
        }
    }

    /// The VTEPs that get floods.
    pub fn floods(&self) -> &BTreeSet<IpAddr> {
        &self.floods
    }

    /// The stations that were announced as this host's.
    pub fn announced(&self) -> impl Iterator<Item = Mac> {
        self.places.iter().filter(|(_, place)| place.is_here()).map(|(mac, _)| *mac)
    }

    /// Whether the row of a station in the bridge is known, or there is room for one more.
    pub fn has_room_for_place(&self, mac: Mac) -> bool {
        self.places.contains_key(&mac) || !self.is_full()
    }

    /// Whether the row of a station, or of a VTEP that gets floods, is known in the tunnel, or
    /// there is room for one more.
    pub fn has_room_for_vtep(&self, mac: Mac, vtep: IpAddr) -> bool {
        self.vteps.contains_key(&mac) || self.floods.contains(&vtep) || !self.is_full()
    }

    fn is_full(&self) -> bool {
        self.vteps.len().max(self.places.len()).max(self.floods.len()) >= MAX_STATIONS
    }

    /// Sets whether a VTEP gets floods. Returns whether that has changed.
    pub fn set_flood(&mut self, vtep: IpAddr, present: bool) -> bool {
        if present { self.floods.insert(vtep) } else { self.floods.remove(&vtep) }
    }

    /// Sets whether a station is behind this VTEP.
    pub fn set_vtep(&mut self, mac: Mac, vtep: IpAddr, present: bool) {
        if present {
            self.vteps.insert(mac, vtep);
        } else if self.vteps.get(&mac) == Some(&vtep) {
            self.vteps.remove(&mac);
        }
    }

    /// Sets whether the bridge has a station at this place.
    pub fn set_place(&mut self, mac: Mac, place: Place, present: bool) {
        if present {
            self.places.insert(mac, place);
        } else if self.places.get(&mac).is_some_and(|known| known.is_like(place)) {
            self.places.remove(&mac);
        }
    }

    /// All rows.
    pub fn rows(&self, devices: Devices) -> impl Iterator<Item = Row> {
        let Devices { bridge, vxlan, here } = devices;
        let places = self.places.iter().filter_map(move |(mac, place)| {
            let (port, sticky) = match *place {
                Place::Tunnel => (vxlan, false),
                Place::Here { sticky } => (here, sticky),
                Place::Elsewhere => return None,
            };
            Some(Row::Bridge { bridge, port, mac: *mac, sticky })
        });
        let tunnel = move |mac, vtep| Row::Tunnel { device: vxlan, mac, vtep };
        let vteps = self.vteps.iter().map(move |(mac, vtep)| tunnel(*mac, *vtep));
        let floods = self.floods.iter().map(move |vtep| tunnel(Mac([0; 6]), *vtep));
        places.chain(vteps).chain(floods)
    }
}
