//! A network's stations of this host, and the announcements of them to the kernel.

use std::collections::{BTreeSet, HashMap, HashSet};

use frame::Mac;

use super::kernel_rows::{KernelRows, Place};
use super::{ADOPTED_MS, Announcement, Presence};

/// Stations of this host.
#[derive(Default)]
pub(super) struct LocalStations {
    /// Stations that are present; none of them is `Away`.
    known: HashMap<Mac, Presence>,
    unannounced: BTreeSet<Mac>,
    /// Announcements of an earlier process, and the time until which they are kept.
    adopted: Option<(u64, HashSet<Mac>)>,
}

impl LocalStations {
    /// All stations; none of them is `Away`.
    pub fn known(&self) -> &HashMap<Mac, Presence> {
        &self.known
    }

    /// Sets whether a station is at a port of this host.
    pub fn set(&mut self, mac: Mac, presence: Presence) {
        match presence {
            Presence::Away if self.known.remove(&mac).is_some() => self.disown(mac),
            Presence::Away => {}
            _ => _ = self.known.insert(mac, presence),
        }
        // A repeated report is announced again, because another host may have taken over the
        // station meanwhile.
        self.unannounced.insert(mac);
    }

    /// Announces a station again, because the bridge has lost it.
    pub fn lost(&mut self, mac: Mac) {
        if self.known.contains_key(&mac) {
            self.unannounced.insert(mac);
        }
    }

    /// Compares with the kernel's rows, all of which are known: missing stations are announced. The
    /// first time, other announcements are those of an earlier process, perhaps for stations that
    /// will send soon.
    pub fn compare(&mut self, now: u64, kernel: &KernelRows) {
        let missing = self.known.keys().filter(|mac| kernel.place(**mac).is_none());
        self.unannounced.extend(missing);
        let announced: HashSet<Mac> = kernel.announced().collect();
        match &self.adopted {
            None => self.adopted = Some((now + ADOPTED_MS, announced)),
            Some((_, adopted)) => self.unannounced.extend(announced.difference(adopted)),
        }
    }

    /// Whether an earlier process has announced the station, which has sent nothing since.
    pub fn is_adopted(&self, mac: Mac) -> bool {
        self.adopted.as_ref().is_some_and(|(_, macs)| macs.contains(&mac))
            && !self.known.contains_key(&mac)
    }

    /// A station has left, so it is not expected to send, as those of an earlier process are.
    fn disown(&mut self, mac: Mac) {
        if let Some((_, adopted)) = &mut self.adopted {
            adopted.remove(&mac);
        }
    }

    /// Drops the announcements of an earlier process when their time is over. Returns whether it
    /// is.
    pub fn end_adoption(&mut self, now: u64) -> bool {
        let Some((_, adopted)) = self.adopted.as_mut().filter(|(until, _)| *until <= now) else {
            return false;
        };
        self.unannounced.extend(adopted.drain());
        true
    }

    /// The time at which announcements of an earlier process are dropped, if there are any.
    pub fn deadline(&self) -> Option<u64> {
        self.adopted.as_ref().filter(|(_, macs)| !macs.is_empty()).map(|(until, _)| *until)
    }

    /// The differences between the kernel's rows and the stations. `here` is the port of the bridge
    /// that stands for this host.
    pub fn announcements(&mut self, here: u32, kernel: &KernelRows) -> Vec<Announcement> {
        let mut writes = Vec::new();
        for mac in std::mem::take(&mut self.unannounced) {
            let announced = match kernel.place(mac) {
                Some(Place::Here { sticky: true }) => Presence::Sticky,
                Some(Place::Here { sticky: false }) => Presence::Moves,
                // A row of another host is never removed.
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
