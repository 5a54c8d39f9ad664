//! Watchers of the stations at ports of this host.

use super::Switch;
use crate::sightings::{Presence, Sighted, Wake, WatcherId};
use crate::station::Station;

impl Switch {
    /// Adds a watcher. `wake` is called when stations of this host change, once until
    /// [`sighted`](Self::sighted) is called. All stations are new to the watcher at first.
    pub fn watch(&mut self, wake: Wake) -> WatcherId {
        self.table.sightings.watch(wake)
    }

    /// Forgets a watcher.
    pub fn unwatch(&mut self, id: WatcherId) {
        self.table.sightings.unwatch(id);
    }

    /// Takes the changes that are new to a watcher.
    pub fn sighted(&mut self, id: WatcherId) -> Sighted {
        match self.table.sightings.take_changed(id) {
            Some(stations) => Sighted::Some(
                stations.into_iter().map(|station| (station, self.presence(station))).collect(),
            ),
            None => Sighted::All(self.stations_here()),
        }
    }

    /// Whether a station has been heard at a port of this host, and is there still.
    pub(super) fn presence(&self, station: Station) -> Presence {
        if self.owner(station).is_some() {
            return match self.table.sightings.has_heard(station) {
                true => Presence::Locked,
                false => Presence::Away,
            };
        }
        let is_learned = self.table.get(station).is_some_and(|port| !self.tunnels.has_end(port));
        match self.tunnels.pinned(station).is_none() && is_learned {
            true => Presence::Learned,
            false => Presence::Away,
        }
    }

    fn stations_here(&self) -> Vec<(Station, Presence)> {
        let heard = self.table.sightings.heard();
        let learned = self.table.iter().map(|(station, _)| station);
        let all = heard.chain(learned).map(|station| (station, self.presence(station)));
        all.filter(|(_, presence)| *presence != Presence::Away).collect()
    }
}

#[cfg(test)]
mod tests;
