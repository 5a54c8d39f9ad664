//! Where the stations of this host are, for a control plane that tells other hosts.
//!
//! A watcher is told which stations came, moved or went, and asks where they are now. What it is
//! told between two questions is bounded: beyond that it looks at all of them. A guest that makes up
//! sources is bounded by the table of addresses, and wakes a watcher once for each of its questions.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::port_id::PortId;
use crate::station::Station;
use crate::switch::Switch;

/// Stations that a watcher is told of at most.
const MOST: usize = 4096;

/// Wakes a watcher. Called while the switch is locked, so it must not ask anything.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A watcher of one switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatcherId(u64);

/// Whether a station is at a port of this host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Presence {
    /// It is not.
    Away,
    /// It is, until its frames come from elsewhere.
    Learned,
    /// It is, and cannot be elsewhere: its address is locked to the port.
    Locked,
}

/// What has changed since the last question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sighted {
    /// These stations, and where each is now.
    Some(Vec<(Station, Presence)>),
    /// Too many to be told one by one. All stations that are at ports of this host.
    All(Vec<(Station, Presence)>),
}

struct Watcher {
    id: WatcherId,
    wake: Wake,
    /// `None`: too many.
    changed: Option<HashSet<Station>>,
}

#[derive(Default)]
pub(crate) struct Sightings {
    watchers: Vec<Watcher>,
    next: u64,
    /// Stations of locked ports, which are not learned, and when each last sent something that was
    /// looked up. Empty while nobody watches.
    heard: HashMap<Station, u32>,
}

impl Sightings {
    /// Something has changed about a station.
    pub fn note(&mut self, station: Station) {
        for Watcher { wake, changed, .. } in &mut self.watchers {
            let Some(stations) = changed else { continue };
            // Whoever is awake already asks anyway.
            if stations.is_empty() {
                wake();
            }
            stations.insert(station);
            if stations.len() > MOST {
                *changed = None;
            }
        }
    }

    /// A station has sent a frame at the port that is locked to it.
    pub fn hear(&mut self, now: u32, station: Station) {
        if !self.watchers.is_empty() && self.heard.insert(station, now).is_none() {
            self.note(station);
        }
    }

    /// Forgets the stations of locked ports for which `is_gone` holds.
    pub fn forget(&mut self, is_gone: impl Fn(&Station, u32) -> bool) {
        let gone = self.heard.iter().filter(|(station, seen)| is_gone(station, **seen));
        let gone: Vec<Station> = gone.map(|(station, _)| *station).collect();
        for station in gone {
            self.heard.remove(&station);
            self.note(station);
        }
    }
}

impl Switch {
    /// From now on, `wake` is called when there is something new about stations of this host, once
    /// until [`sighted`](Self::sighted) is asked. There is at once: all stations.
    pub fn watch(&mut self, wake: Wake) -> WatcherId {
        let sightings = &mut self.table.sightings;
        let id = WatcherId(sightings.next);
        sightings.next += 1;
        wake();
        sightings.watchers.push(Watcher { id, wake, changed: None });
        id
    }

    /// Forgets a watcher.
    pub fn unwatch(&mut self, id: WatcherId) {
        let sightings = &mut self.table.sightings;
        sightings.watchers.retain(|watcher| watcher.id != id);
        if sightings.watchers.is_empty() {
            sightings.heard.clear();
        }
    }

    /// What is new to a watcher.
    pub fn sighted(&mut self, id: WatcherId) -> Sighted {
        let mut watchers = self.table.sightings.watchers.iter_mut();
        let watcher = watchers.find(|watcher| watcher.id == id);
        let changed = watcher.map(|watcher| watcher.changed.replace(HashSet::new()));
        match changed.flatten() {
            Some(stations) => Sighted::Some(
                stations.into_iter().map(|station| (station, self.presence(station))).collect(),
            ),
            None => Sighted::All(self.stations_here()),
        }
    }

    /// The IP addresses that a port may claim have changed: watchers are told of the stations that
    /// are locked to the port.
    pub fn readdressed(&mut self, port: PortId) {
        for station in self.locked_to(port) {
            self.table.sightings.note(station);
        }
    }

    /// Whether a station has been heard at a port of this host, and is there still.
    fn presence(&self, station: Station) -> Presence {
        if self.owner(station).is_some() {
            return match self.table.sightings.heard.contains_key(&station) {
                true => Presence::Locked,
                false => Presence::Away,
            };
        }
        let is_end = |port: PortId| self.tunnels.contains_key(&port);
        let is_learned = self.table.get(station).is_some_and(|port| !is_end(port));
        match self.pinned(station).is_none() && is_learned {
            true => Presence::Learned,
            false => Presence::Away,
        }
    }

    fn stations_here(&self) -> Vec<(Station, Presence)> {
        let heard = self.table.sightings.heard.keys().copied();
        let learned = self.table.iter().map(|(station, _)| station);
        let all = heard.chain(learned).map(|station| (station, self.presence(station)));
        all.filter(|(_, presence)| *presence != Presence::Away).collect()
    }
}

#[cfg(test)]
mod tests;
