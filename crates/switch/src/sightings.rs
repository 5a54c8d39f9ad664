//! Where the stations of this host are, for a control plane that tells other hosts.
//!
//! A watcher is told which stations came, moved or went, and asks where they are now. What it is
//! told between two questions is bounded: beyond that it looks at all of them. A guest that makes up
//! sources is bounded by the table of addresses, and wakes a watcher once for each of its questions.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::station::Station;

/// Stations that a watcher is told of at most.
pub(crate) const MOST: usize = 4096;

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

    /// Whether a station of a locked port was heard.
    pub fn has_heard(&self, station: Station) -> bool {
        self.heard.contains_key(&station)
    }

    /// The stations of locked ports that were heard.
    pub fn heard(&self) -> impl Iterator<Item = Station> {
        self.heard.keys().copied()
    }

    /// A new watcher, to whom all stations are new.
    pub fn watch(&mut self, wake: Wake) -> WatcherId {
        let id = WatcherId(self.next);
        self.next += 1;
        wake();
        self.watchers.push(Watcher { id, wake, changed: None });
        id
    }

    /// Forgets a watcher.
    pub fn unwatch(&mut self, id: WatcherId) {
        self.watchers.retain(|watcher| watcher.id != id);
        if self.watchers.is_empty() {
            self.heard.clear();
        }
    }

    /// Takes the stations that are new to a watcher; `None`: all of them.
    pub fn take_changed(&mut self, id: WatcherId) -> Option<HashSet<Station>> {
        let watcher = self.watchers.iter_mut().find(|watcher| watcher.id == id)?;
        watcher.changed.replace(HashSet::new())
    }
}
