//! Ends of tunnels, and stations that are pinned to a port.

use super::Switch;
use crate::port_id::PortId;
use crate::station::Station;
use crate::tunnel::{PinError, PinKind, Tunnel};

impl Switch {
    /// Makes a port one end of a tunnel.
    pub fn set_tunnel(&mut self, port: PortId, tunnel: Tunnel) {
        self.tunnels.insert(port, tunnel);
        self.reconfigured();
    }

    /// Pins a station to a port. A pin overrides what is learned elsewhere. A station that was
    /// pinned to another port moves.
    ///
    /// # Errors
    /// When the station or the port is impossible, or there are too many.
    pub fn pin(&mut self, station: Station, port: PortId, kind: PinKind) -> Result<(), PinError> {
        if station.mac.is_multicast() || station.mac.is_zero() {
            return Err(PinError::Mac(station.mac));
        }
        if !self.is_in(port, station.network) {
            return Err(PinError::Port(port));
        }
        let was_here = self.table.get(station).is_some_and(|port| !self.tunnels.has_end(port));
        self.tunnels.pin(station, port, kind, was_here)?;
        self.moved(station);
        Ok(())
    }

    /// Forgets a pin. Returns whether there was one.
    pub fn unpin(&mut self, station: Station) -> bool {
        let known = self.tunnels.unpin(station);
        if known {
            self.moved(station);
        }
        known
    }

    /// Stops forwarding frames for stations that left too long ago.
    pub(super) fn expire_left(&mut self, now: u32) {
        for station in self.tunnels.expire_left(now) {
            self.generations.bump(station);
        }
    }

    /// Whether the source of a frame from this port is learned. If it is, a pin that yields is
    /// removed.
    pub(super) fn learns(&mut self, ingress: PortId, source: Station) -> bool {
        if self.tunnels.yields(ingress, source) {
            return self.unpin(source);
        }
        self.tunnels.learns(ingress, source)
    }

    /// Handles a move of a station that was not learned from a frame.
    fn moved(&mut self, station: Station) {
        self.table.forget(station);
        self.generations.bump(station);
    }
}

#[cfg(test)]
mod tests;
