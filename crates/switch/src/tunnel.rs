//! Ports that stand for the far end of a tunnel: a VTEP of another host, in one virtual network.
//!
//! Every tunnel end is a port of its own, so the decision for a frame names the VTEP, and a flood
//! list has one copy for each. Such ports differ from others:
//!
//! - **Split horizon**: a frame never goes from one end of a group to another. The sender's host
//!   has sent a copy to each end itself; a second one from here would be a duplicate, or a loop.
//!   Frames for a station that has just left for another host are an exception: they are forwarded
//!   for a while, because other hosts may not know of the move yet. Such frames never go back to
//!   the host that they came from.
//! - Stations may be *pinned* to a port: the configuration or a control plane says where they are.
//!   A pin wins over what was learned, and a locked port over a pin.

use std::collections::HashMap;

use frame::Mac;

use crate::port_id::PortId;
use crate::station::Station;

/// The special properties of the port of a tunnel's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunnel {
    /// Ends of the same group exchange no frames.
    pub group: u16,
    /// The sources of frames are learned there.
    pub learns: bool,
    /// A copy of each frame that is flooded goes there.
    pub floods: bool,
}

/// A pin that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PinError {
    /// A group address or zero.
    #[error("{0} cannot be the address of a station")]
    Mac(Mac),
    /// The port is not there, or not in the network.
    #[error("port {0} is not in the station's network")]
    Port(PortId),
    /// There are already [`MAX_PINS`] pins.
    #[error("there are {MAX_PINS} pinned stations already")]
    Full,
}

/// Where a pin comes from, which decides what happens when its station sends from a port of this
/// host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PinKind {
    /// From the configuration: the pin stays.
    Sticky,
    /// From a control plane, which will learn that the station has moved: the pin yields.
    Learned,
}

/// The port of a station, which overrides what is learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pin {
    port: PortId,
    kind: PinKind,
}

/// How long frames for a station that has left for another host are forwarded there, in seconds.
pub(crate) const SENT_ON: u32 = 5;

/// Most stations that are pinned.
pub const MAX_PINS: usize = 131_072;

/// All ends of tunnels, and all pins.
#[derive(Default)]
pub(crate) struct Tunnels {
    ends: HashMap<PortId, Tunnel>,
    /// The stations that are pinned.
    pins: HashMap<Station, Pin>,
    /// Pinned stations that were at a port of this host, and when this was seen.
    left: HashMap<Station, Option<u32>>,
}

impl Tunnels {
    /// Makes a port one end of a tunnel.
    pub fn insert(&mut self, port: PortId, tunnel: Tunnel) {
        self.ends.insert(port, tunnel);
    }

    /// Forgets all that is special about a port.
    pub fn remove(&mut self, port: PortId) {
        if self.ends.remove(&port).is_some() {
            self.pins.retain(|_, pin| pin.port != port);
            self.left.retain(|station, _| self.pins.contains_key(station));
        }
    }

    /// Whether a port is the end of a tunnel.
    pub fn has_end(&self, port: PortId) -> bool {
        self.ends.contains_key(&port)
    }

    /// Pins a station to a port. `was_here`: frames said that the station is at this host.
    ///
    /// # Errors
    /// When there are too many.
    pub fn pin(
        &mut self,
        station: Station,
        port: PortId,
        kind: PinKind,
        was_here: bool,
    ) -> Result<(), PinError> {
        if self.pins.len() >= MAX_PINS && !self.pins.contains_key(&station) {
            return Err(PinError::Full);
        }
        if kind == PinKind::Learned && was_here {
            self.left.insert(station, None);
        }
        self.pins.insert(station, Pin { port, kind });
        Ok(())
    }

    /// Forgets a pin. Returns whether there was one.
    pub fn unpin(&mut self, station: Station) -> bool {
        self.left.remove(&station);
        self.pins.remove(&station).is_some()
    }

    /// The port that a station is pinned to.
    pub fn pinned(&self, station: Station) -> Option<PortId> {
        self.pins.get(&station).map(|pin| pin.port)
    }

    /// All pinned stations, and the port of each.
    pub fn pins(&self) -> impl Iterator<Item = (Station, PortId)> {
        self.pins.iter().map(|(station, pin)| (*station, pin.port))
    }

    /// Whether no frame goes from one of the ports to the other.
    pub fn are_split(&self, ingress: PortId, egress: PortId) -> bool {
        let group = |port| self.ends.get(&port).map(|tunnel| tunnel.group);
        group(ingress).is_some_and(|own| group(egress) == Some(own))
    }

    /// Whether floods from one port reach another.
    pub fn floods_to(&self, ingress: PortId, egress: PortId) -> bool {
        self.ends.get(&egress).is_none_or(|tunnel| tunnel.floods)
            && !self.are_split(ingress, egress)
    }

    /// Whether a station has left this host a moment ago, to where it is pinned.
    pub fn has_just_left(&self, station: Station) -> bool {
        self.left.contains_key(&station)
    }

    /// Takes the stations that left so long ago that frames for them are no longer forwarded.
    pub fn expire_left(&mut self, now: u32) -> Vec<Station> {
        let mut expired = Vec::new();
        self.left.retain(|station, since| {
            let goes = now.saturating_sub(*since.get_or_insert(now)) >= SENT_ON;
            if goes {
                expired.push(*station);
            }
            !goes
        });
        expired
    }

    /// Whether the source of a frame from this port is learned.
    pub fn learns(&self, ingress: PortId, source: Station) -> bool {
        !self.pins.contains_key(&source)
            && self.ends.get(&ingress).is_none_or(|tunnel| tunnel.learns)
    }

    /// Whether the source of a frame from this port has a pin that yields to that frame.
    pub fn yields(&self, ingress: PortId, source: Station) -> bool {
        let pin = self.pins.get(&source);
        pin.is_some_and(|pin| pin.kind == PinKind::Learned) && !self.has_end(ingress)
    }
}
