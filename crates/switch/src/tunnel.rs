//! Ports that stand for the far end of a tunnel: a VTEP of another host, in one virtual network.
//!
//! Every tunnel end is a port of its own, so the decision for a frame names the VTEP, and a flood
//! list has one copy for each. What is different about such ports:
//!
//! - **Split horizon**: a frame never goes from one end of a group to another. The sender's host
//!   has sent a copy to each of them itself; a second one from here would be a duplicate, or a loop.
//!   Frames for a station that has just left for another host are sent on for a while, though: the
//!   other hosts may not know yet. They never go back to the host that they came from.
//! - Stations may be *pinned* to a port: the configuration or a control plane says where they are.
//!   A pin wins over what was learned, and a locked port over a pin.

use frame::Mac;

use crate::port_id::PortId;
use crate::station::Station;
use crate::switch::Switch;

/// What is different about the port of a tunnel's end.
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
    /// There are as many pins as there can be.
    #[error("there are {MAX_PINS} pinned stations already")]
    Full,
}

/// What a pin does when its station speaks at a port of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// It stays: the configuration has it.
    Stays,
    /// It yields: a control plane has it, and will learn that the station has moved.
    Yields,
}

/// Where a station is, whatever is learned elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pin {
    pub port: PortId,
    hold: Hold,
}

/// How long frames for a station that has left for another host are sent on there, in seconds.
const SENT_ON: u32 = 5;

/// Most stations that are pinned.
pub const MAX_PINS: usize = 131_072;

impl Switch {
    /// Makes a port one end of a tunnel.
    pub fn set_tunnel(&mut self, port: PortId, tunnel: Tunnel) {
        self.tunnels.insert(port, tunnel);
        self.reconfigured();
    }

    /// Says that a station is behind a port, whatever is learned elsewhere. One that was pinned to
    /// another port moves.
    ///
    /// # Errors
    /// When the station or the port is impossible, or there are too many.
    pub fn pin(&mut self, station: Station, port: PortId, hold: Hold) -> Result<(), PinError> {
        if station.mac.is_multicast() || station.mac.is_zero() {
            return Err(PinError::Mac(station.mac));
        }
        if !self.is_in(port, station.network) {
            return Err(PinError::Port(port));
        }
        if self.pins.len() >= MAX_PINS && !self.pins.contains_key(&station) {
            return Err(PinError::Full);
        }
        let was_here =
            self.table.get(station).is_some_and(|port| !self.tunnels.contains_key(&port));
        if hold == Hold::Yields && was_here {
            self.left.insert(station, None);
        }
        self.pins.insert(station, Pin { port, hold });
        self.moved(station);
        Ok(())
    }

    /// Forgets a pin. Returns whether there was one.
    pub fn unpin(&mut self, station: Station) -> bool {
        let known = self.pins.remove(&station).is_some();
        self.left.remove(&station);
        if known {
            self.moved(station);
        }
        known
    }

    /// The port that a station is pinned to.
    pub(crate) fn pinned(&self, station: Station) -> Option<PortId> {
        self.pins.get(&station).map(|pin| pin.port)
    }

    /// Whether no frame goes from one of the ports to the other.
    pub(crate) fn are_split(&self, ingress: PortId, egress: PortId) -> bool {
        let group = |port| self.tunnels.get(&port).map(|tunnel| tunnel.group);
        group(ingress).is_some_and(|own| group(egress) == Some(own))
    }

    /// Whether a station has left this host a moment ago, to where it is pinned.
    pub(crate) fn has_just_left(&self, station: Station) -> bool {
        self.left.contains_key(&station)
    }

    /// Frames for those that left long ago are sent on no more.
    pub(crate) fn settle_left(&mut self, now: u32) {
        let mut settled = Vec::new();
        for (station, since) in &mut self.left {
            if now.saturating_sub(*since.get_or_insert(now)) >= SENT_ON {
                settled.push(*station);
            }
        }
        for station in settled {
            self.left.remove(&station);
            self.generations.bump(station);
        }
    }

    /// Whether what is flooded from one port goes to another.
    pub(crate) fn floods_to(&self, ingress: PortId, egress: PortId) -> bool {
        self.tunnels.get(&egress).is_none_or(|tunnel| tunnel.floods)
            && !self.are_split(ingress, egress)
    }

    /// Whether the source of a frame from this port is learned. A pin that yields is gone then.
    pub(crate) fn learns(&mut self, ingress: PortId, station: Station) -> bool {
        let tunnel = self.tunnels.get(&ingress);
        match self.pins.get(&station) {
            None => tunnel.is_none_or(|tunnel| tunnel.learns),
            Some(pin) => pin.hold == Hold::Yields && tunnel.is_none() && self.unpin(station),
        }
    }

    /// Forgets all that is special about a port.
    pub(crate) fn forget_tunnel(&mut self, port: PortId) {
        if self.tunnels.remove(&port).is_some() {
            self.pins.retain(|_, pin| pin.port != port);
            self.left.retain(|station, _| self.pins.contains_key(station));
        }
    }
}

#[cfg(test)]
mod tests;
