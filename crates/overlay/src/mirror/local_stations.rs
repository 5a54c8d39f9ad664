//! A network's stations of this host, and what the kernel is to be told of them.

use std::collections::{BTreeSet, HashMap, HashSet};

use frame::Mac;

use super::kernel_rows::{KernelRows, Place};
use super::{ADOPTED_MS, Announcement, Presence};

/// Stations of this host.
#[derive(Default)]
pub(super) struct LocalStations {
    /// None is away.
    known: HashMap<Mac, Presence>,
    unannounced: BTreeSet<Mac>,
    /// What an earlier process has announced, and until when that stays.
    adopted: Option<(u64, HashSet<Mac>)>,
}

impl LocalStations {
    /// All of them; none is away.
    pub fn known(&self) -> &HashMap<Mac, Presence> {
        &self.known
    }

    /// A station is at a port of this host, or is there no more.
    pub fn set(&mut self, mac: Mac, presence: Presence) {
        match presence {
            Presence::Away => _ = self.known.remove(&mac),
            _ => _ = self.known.insert(mac, presence),
        }
        // What is said again is announced again: another host may have taken it meanwhile.
        self.unannounced.insert(mac);
    }

    /// The bridge has a station no more: what was announced is announced again.
    pub fn lost(&mut self, mac: Mac) {
        if self.known.contains_key(&mac) {
            self.unannounced.insert(mac);
        }
    }

    /// All rows are known: what is missing is announced. What is announced already belongs to an
    /// earlier process the first time, and perhaps to a station that will speak soon.
    pub fn compare(&mut self, now: u64, kernel: &KernelRows) {
        let missing = self.known.keys().filter(|mac| kernel.place(**mac).is_none());
        self.unannounced.extend(missing);
        let announced: HashSet<Mac> = kernel.announced().collect();
        match &self.adopted {
            None => self.adopted = Some((now + ADOPTED_MS, announced)),
            Some((_, adopted)) => self.unannounced.extend(announced.difference(adopted)),
        }
    }

    /// Whether an earlier process has announced the station, which has not spoken since.
    pub fn is_adopted(&self, mac: Mac) -> bool {
        self.adopted.as_ref().is_some_and(|(_, macs)| macs.contains(&mac))
            && !self.known.contains_key(&mac)
    }

    /// What an earlier process has announced goes when its time is over. Returns whether it is.
    pub fn end_adoption(&mut self, now: u64) -> bool {
        let Some((_, adopted)) = self.adopted.as_mut().filter(|(until, _)| *until <= now) else {
            return false;
        };
        self.unannounced.extend(adopted.drain());
        true
    }

    /// When what an earlier process has announced goes, if there is any of it.
    pub fn deadline(&self) -> Option<u64> {
        self.adopted.as_ref().filter(|(_, macs)| !macs.is_empty()).map(|(until, _)| *until)
    }

    /// Where what the kernel has differs from what it is to have; `here` is the port of the bridge
    /// that stands for this host.
    pub fn announcements(&mut self, here: u32, kernel: &KernelRows) -> Vec<Announcement> {
        let mut writes = Vec::new();
        for mac in std::mem::take(&mut self.unannounced) {
            let announced = match kernel.place(mac) {
                Some(Place::Here { sticky: true }) => Presence::Sticky,
                Some(Place::Here { sticky: false }) => Presence::Moves,
                // A row that is another's is never taken away.
                _ => Presence::Away,
            };
            let presence = self.known.get(&mac).copied().unwrap_or(Presence::Away);
            if presence != announced {
                writes.push(Announcement { here, mac, presence });
            }
        }
        writes
    }
}
