//! The flow cache: a worker's own copy of the switch's recent decisions.
//!
//! An entry is keyed by everything that a decision depends on: the port and the Ethernet header. An
//! entry carries the stamp under which the switch decided. A change that could alter the decision
//! bumps a generation in that stamp, so the entry becomes stale at that instant, on every worker,
//! without a message. The table is of fixed size and set-associative: a flood of new addresses can
//! evict entries but never grow the table, and the set that an address falls into depends on a
//! secret of this process. An entry that was found again is evicted only if all entries of its set
//! were, so flows of one packet evict each other.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use frame::Headers;
use switch::{Generations, PortId, Stamp};

use crate::action::Action;

/// All that a decision of the switch depends on, in 128 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FlowKey(u128);

impl FlowKey {
    /// The key of no frame: no port has such a number. It marks entries that are not in use.
    pub const NONE: FlowKey = FlowKey(u128::MAX);

    /// The key of a frame that came in on `ingress`.
    #[inline]
    pub fn new(ingress: PortId, headers: &Headers) -> Self {
        let (low, addresses) = headers.addresses();
        let (tag, tags) = match headers.tag {
            None => (0, 0),
            Some(tag) => (tag, 1 | u16::from(headers.has_inner_tag()) << 1),
        };
        let port = ingress.0 << 2 | tags;
        let high = u64::from(addresses) | u64::from(tag) << 32 | u64::from(port) << 48;
        FlowKey(u128::from(low) | u128::from(high) << 64)
    }

    /// The last byte of the destination's address, which tells the guests of most hosts apart.
    #[inline]
    pub fn destination(self) -> usize {
        self.0.to_le_bytes()[5].into()
    }

    #[inline]
    fn hash(self, secret: u64) -> u64 {
        let low = self.0 as u64 ^ secret;
        let high = (self.0 >> 64) as u64 ^ secret.rotate_left(32);
        let product = u128::from(low | 1) * u128::from(high ^ 0x9e37_79b9_7f4a_7c15);
        (product >> 64) as u64 ^ product as u64
    }
}

const WAYS: usize = 4;
const SETS: usize = 1024;

struct Entry {
    stamp: Stamp,
    action: Action,
    /// The second when it was last used.
    touched: u32,
    /// The entry has been found since it was made.
    found: bool,
}

/// Seconds after an entry was last found for which other entries are evicted first.
const FRESH: u32 = 2;

/// Fixed-size, set-associative, exact-match.
pub struct FlowCache {
    keys: Box<[[FlowKey; WAYS]]>,
    entries: Box<[[Option<Entry>; WAYS]]>,
    generations: Arc<Generations>,
    secret: u64,
}

/// A decision found in the cache.
pub struct Hit<'a> {
    /// The decision.
    pub action: &'a Action,
    /// True once a second: the switch must be told that the learned source address is alive.
    pub touch: bool,
}

impl FlowCache {
    /// An empty cache over the generations of one switch.
    pub fn new(generations: Arc<Generations>) -> Self {
        FlowCache {
            keys: vec![[FlowKey::NONE; WAYS]; SETS].into_boxed_slice(),
            entries: (0..SETS).map(|_| [const { None }; WAYS]).collect(),
            generations,
            secret: RandomState::new().hash_one(0),
        }
    }

    /// The decision for `key`, if there is an entry that is still valid.
    #[inline]
    pub fn get(&mut self, key: FlowKey, now: u32) -> Option<Hit<'_>> {
        let set = key.hash(self.secret) as usize % SETS;
        let way = self.keys[set].iter().position(|other| *other == key)?;
        let entry = self.entries[set][way].as_mut()?;
        if !self.generations.holds(&entry.stamp) {
            return None;
        }
        let touch = entry.touched != now;
        (entry.touched, entry.found) = (now, true);
        Some(Hit { action: &entry.action, touch })
    }

    /// Inserts a decision. The entry that it replaces is a stale one, or else one that was never
    /// found, or else the least recently used one of the set.
    pub fn insert(&mut self, key: FlowKey, stamp: Stamp, action: Action, now: u32) {
        let set = key.hash(self.secret) as usize % SETS;
        let own = self.keys[set].iter().position(|other| *other == key);
        let way = own.unwrap_or_else(|| self.victim(set, now));
        self.keys[set][way] = key;
        // An entry that is asked for again, because it was stale or once a second, was found.
        let found = own.is_some();
        self.entries[set][way] = Some(Entry { stamp, action, touched: now, found });
    }

    fn victim(&self, set: usize, now: u32) -> usize {
        let worth = |entry: &Option<Entry>| match entry {
            Some(e) if self.generations.holds(&e.stamp) => {
                (true, e.found && now.wrapping_sub(e.touched) <= FRESH, e.touched)
            }
            _ => (false, false, 0),
        };
        (0..WAYS).min_by_key(|&way| worth(&self.entries[set][way])).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use frame::Mac;
    use switch::{Limits, PortRule, Switch};

    use super::*;
    use crate::count::DropReason;

    fn key(number: u32) -> FlowKey {
        let [a, b, c, d] = number.to_be_bytes();
        FlowKey::new(PortId(1), &Headers { dst: Mac([2, 0, a, b, c, d]), ..Headers::default() })
    }

    /// A cache whose secret is fixed, so that keys fall into the same sets in every run, and the
    /// stamp of a decision that holds.
    fn cache() -> (FlowCache, Stamp) {
        let mut switch = Switch::new(Limits::default());
        switch.add_port(PortId(1), PortRule::default()).unwrap();
        let stamp = switch
            .decide(0, PortId(1), &Headers { src: Mac([2, 0, 0, 0, 0, 9]), ..Headers::default() })
            .stamp;
        let mut cache = FlowCache::new(Arc::clone(switch.generations()));
        cache.secret = 0x0123_4567_89ab_cdef;
        (cache, stamp)
    }

    fn keep(cache: &mut FlowCache, number: u32, stamp: Stamp) {
        cache.insert(key(number), stamp, Action::Drop(DropReason::NoReceiver), 5);
    }

    #[test]
    fn flows_of_one_packet_evict_each_other() {
        let (mut cache, stamp) = cache();
        let lasting: Vec<u32> = (0..SETS as u32 / 2).collect();
        for &number in &lasting {
            keep(&mut cache, number, stamp);
            cache.get(key(number), 5);
        }
        // Up to WAYS lasting flows of a set stay. In sets with more, lasting flows evict each
        // other.
        let there = |cache: &mut FlowCache| {
            lasting.iter().filter(|&&n| cache.get(key(n), 6).is_some()).count()
        };
        let before = there(&mut cache);
        for number in 0..200_000 {
            keep(&mut cache, 1_000_000 + number, stamp);
        }
        let crowded = before - there(&mut cache);
        assert!(before > SETS / 2 - 20 && crowded < 20, "{before} before, {crowded} of them lost");
    }

    #[test]
    fn what_is_not_used_any_more_makes_room() {
        let (mut cache, stamp) = cache();
        for number in 0..(SETS * WAYS * 4) as u32 {
            keep(&mut cache, number, stamp);
            cache.get(key(number), 5);
        }
        cache.insert(key(u32::MAX), stamp, Action::Drop(DropReason::NoReceiver), 5 + FRESH + 1);
        assert!(cache.get(key(u32::MAX), 5 + FRESH + 1).is_some());
    }
}
