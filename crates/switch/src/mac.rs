//! The table of learned stations: bounded, shared out between ports, ageing.
//!
//! Invariants: at most `entries` stations in all and `per_port` on one port; `held` has exactly the
//! stations of each port, and `sizes` how many; every change of a station's port bumps the
//! station's generation. No operation on one station looks at all others: a port that floods the
//! table with sources does not hold the lock for longer than others.
//!
//! A port that floods the table with sources can fill it, but cannot keep others out. When the
//! table is full, a port that holds at least two stations fewer than the biggest holder takes the
//! place of that holder's least recently heard station. The difference of two makes every such
//! exchange even out the shares, so two flooding ports cannot evict each other for ever.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::generation::Generations;
use crate::port_id::PortId;
use crate::sightings::Sightings;
use crate::station::Station;

/// Bounds of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Learned stations in all.
    pub entries: usize,
    /// Learned stations on one port.
    pub per_port: usize,
    /// How long a silent station stays, in whole seconds.
    pub age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { entries: 8192, per_port: 2048, age: Duration::from_secs(300) }
    }
}

/// The port of a learned station.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub port: PortId,
    /// When a frame from it was last looked up, in seconds.
    pub seen: u32,
}

/// The stations of one port, the least recently heard first.
type ByLastSeen = BTreeSet<(u32, Station)>;

pub(crate) struct MacTable {
    // The default hasher is keyed: a guest cannot build a table of collisions.
    entries: HashMap<Station, Entry>,
    held: HashMap<PortId, ByLastSeen>,
    /// How many stations each port holds, the biggest holder last.
    sizes: BTreeSet<(usize, PortId)>,
    limits: Limits,
    generations: Arc<Generations>,
    pub sightings: Sightings,
}

impl MacTable {
    pub fn new(limits: Limits, generations: Arc<Generations>) -> Self {
        let (entries, held, sizes) = (HashMap::new(), HashMap::new(), BTreeSet::new());
        MacTable { entries, held, sizes, limits, generations, sightings: Sightings::default() }
    }

    pub fn get(&self, station: Station) -> Option<PortId> {
        self.entries.get(&station).map(|entry| entry.port)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Station, Entry)> {
        self.entries.iter().map(|(station, entry)| (*station, *entry))
    }

    /// Learns a station that sent a frame on the port, moves it to that port, or updates its time.
    /// If there is no room, the station stays unknown.
    pub fn learn(&mut self, now: u32, station: Station, port: PortId) {
        if self.get(station) == Some(port) {
            self.remove(station);
            self.insert(station, Entry { port, seen: now });
            return;
        }
        if self.held_by(port) >= self.limits.per_port {
            return;
        }
        if self.entries.contains_key(&station) {
            self.forget(station);
        } else if self.entries.len() >= self.limits.entries && !self.evict_for(port) {
            return;
        }
        self.insert(station, Entry { port, seen: now });
        self.generations.bump(station);
        self.sightings.note(station);
    }

    /// Removes a station, if it is there.
    pub fn forget(&mut self, station: Station) {
        if self.remove(station) {
            self.generations.bump(station);
            self.sightings.note(station);
        }
    }

    /// Removes all stations of a port.
    pub fn forget_port(&mut self, port: PortId) {
        while let Some(station) = self.oldest(port) {
            self.forget(station);
        }
    }

    /// Removes the stations that have been silent for longer than the limit; returns how many. Only
    /// those, and one more of each port, are looked at.
    pub fn age(&mut self, now: u32) -> usize {
        let limit = self.limits.age.as_secs();
        let is_old = |seen: u32| u64::from(now.saturating_sub(seen)) > limit;
        let old = |held: &ByLastSeen| {
            let old = held.iter().take_while(|(seen, _)| is_old(*seen));
            old.map(|(_, station)| *station).collect::<Vec<_>>()
        };
        let stations: Vec<Station> = self.held.values().flat_map(old).collect();
        for station in &stations {
            self.forget(*station);
        }
        self.sightings.forget(|_, seen| is_old(seen));
        stations.len()
    }

    fn insert(&mut self, station: Station, entry: Entry) {
        self.entries.insert(station, entry);
        self.change_held(entry.port, |held| held.insert((entry.seen, station)));
    }

    /// Removes a station. False: the table does not have it.
    fn remove(&mut self, station: Station) -> bool {
        let Some(entry) = self.entries.remove(&station) else { return false };
        self.change_held(entry.port, |held| held.remove(&(entry.seen, station)));
        true
    }

    fn change_held(&mut self, port: PortId, change: impl FnOnce(&mut ByLastSeen) -> bool) {
        let held = self.held.entry(port).or_default();
        self.sizes.remove(&(held.len(), port));
        change(held);
        match held.len() {
            0 => _ = self.held.remove(&port),
            len => _ = self.sizes.insert((len, port)),
        }
    }

    fn held_by(&self, port: PortId) -> usize {
        self.held.get(&port).map_or(0, BTreeSet::len)
    }

    fn oldest(&self, port: PortId) -> Option<Station> {
        self.held.get(&port)?.first().map(|(_, station)| *station)
    }

    /// Makes room for a station of `port` at the cost of the biggest holder, if that is fair.
    fn evict_for(&mut self, port: PortId) -> bool {
        let Some(&(most, holder)) = self.sizes.last() else { return false };
        if most < self.held_by(port) + 2 {
            return false;
        }
        let Some(station) = self.oldest(holder) else { return false };
        self.forget(station);
        true
    }
}

#[cfg(test)]
mod tests {
    use frame::Mac;

    use super::*;
    use crate::vlan::Network;

    fn station(n: u32) -> Station {
        let [a, b, c, d] = n.to_be_bytes();
        Station { network: Network::UNTAGGED, mac: Mac([2, 0, a, b, c, d]) }
    }

    fn table(entries: usize, per_port: usize) -> MacTable {
        let limits = Limits { entries, per_port, age: Duration::from_secs(300) };
        MacTable::new(limits, Arc::new(Generations::new()))
    }

    #[test]
    fn one_port_cannot_hold_more_than_its_limit() {
        let mut table = table(100, 10);
        for n in 0..1000 {
            table.learn(0, station(n), PortId(1));
        }
        assert_eq!(table.entries.len(), 10);
        assert_eq!(table.get(station(9)), Some(PortId(1)));
        assert_eq!(table.get(station(10)), None);
    }

    #[test]
    fn a_full_table_makes_room_until_shares_are_even_and_then_stands_still() {
        let mut table = table(100, 100);
        for n in 0..1000 {
            table.learn(n, station(n), PortId(1));
        }
        assert_eq!(table.held_by(PortId(1)), 100);
        for n in 0..1000 {
            table.learn(2000, station(10_000 + n), PortId(2));
        }
        assert_eq!((table.held_by(PortId(1)), table.held_by(PortId(2))), (50, 50));
        assert_eq!(table.get(station(0)), None, "the longest unheard went first");
        assert_eq!(table.get(station(99)), Some(PortId(1)));

        let before: Vec<_> = (0..100).map(station).filter(|s| table.get(*s).is_some()).collect();
        for n in 0..1000 {
            table.learn(3000, station(20_000 + n), PortId(1));
            table.learn(3000, station(30_000 + n), PortId(2));
        }
        assert!(before.iter().all(|s| table.get(*s).is_some()), "even shares evict nothing");
        assert_eq!(table.entries.len(), 100);
    }

    #[test]
    fn silent_stations_age_out_and_heard_ones_stay() {
        let mut table = table(100, 100);
        table.learn(1000, station(1), PortId(1));
        table.learn(1000, station(2), PortId(1));
        table.learn(1200, station(2), PortId(1));
        assert_eq!(table.age(1300), 0);
        assert_eq!(table.age(1301), 1);
        assert_eq!((table.get(station(1)), table.get(station(2))), (None, Some(PortId(1))));
        assert_eq!(table.held_by(PortId(1)), 1);
    }

    #[test]
    fn a_move_counts_for_the_new_port() {
        let mut table = table(100, 1);
        table.learn(0, station(1), PortId(1));
        table.learn(0, station(1), PortId(2));
        assert_eq!((table.held_by(PortId(1)), table.held_by(PortId(2))), (0, 1));
        table.learn(0, station(2), PortId(1));
        table.learn(0, station(1), PortId(1));
        assert_eq!(table.get(station(1)), Some(PortId(2)), "no move to a port without room");
    }

    #[test]
    fn a_removed_port_leaves_nothing() {
        let mut table = table(100, 100);
        for n in 0..20 {
            table.learn(0, station(n), PortId((n % 2) as u16));
        }
        table.forget_port(PortId(0));
        assert_eq!(table.entries.len(), 10);
        assert!(table.iter().all(|(_, entry)| entry.port == PortId(1)));
        assert!(!table.held.contains_key(&PortId(0)));
    }

    #[test]
    fn orders_and_sizes_follow_each_change() {
        let mut table = table(64, 32);
        let mut random = 1u32;
        for now in 0..20_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (n, port) = (random >> 8 & 127, PortId((random >> 20 & 3) as u16));
            match random >> 28 {
                0 => table.forget(station(n)),
                1 if now % 50 == 0 => table.forget_port(port),
                2 => _ = table.age(now),
                _ => table.learn(now, station(n), port),
            }
        }
        let held = |port: PortId| table.iter().filter(|(_, entry)| entry.port == port).count();
        for port in (0..4).map(PortId) {
            assert_eq!(table.held_by(port), held(port));
            assert_eq!(table.sizes.contains(&(held(port), port)), held(port) > 0);
            let seen = table.iter().filter(|(_, entry)| entry.port == port);
            let oldest = seen.min_by_key(|(station, entry)| (entry.seen, *station));
            assert_eq!(table.oldest(port), oldest.map(|(station, _)| station));
        }
        assert!(table.entries.len() <= 64 && table.sizes.len() == table.held.len());
    }

    #[test]
    fn time_that_runs_backwards_ages_nothing() {
        let mut table = table(10, 10);
        table.learn(1000, station(1), PortId(1));
        assert_eq!(table.age(10), 0);
    }
}
