//! A worker's own memory of what the switch decided.
//!
//! An entry is keyed by everything that a decision depends on today: the port and the Ethernet header. It carries the
//! stamp under which the switch decided; a change that could alter the decision bumps a generation that the stamp
//! names, and the entry is stale at that instant, on every worker, without a message. The table is of fixed size and
//! set-associative: a flood of new addresses can evict entries, never grow it, and the set that an address falls into
//! depends on a secret of this process.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use frame::Headers;
use switch::{Decision, Generations, PortId, Stamp, Target};

use crate::count::Drop;

/// What happens to a frame.
#[derive(Clone, Debug, Default)]
pub enum Fate {
    /// Not classified yet.
    #[default]
    Undecided,
    /// Not delivered.
    Drop(Drop),
    /// To one port.
    To(Target),
    /// To several.
    Flood(Arc<[Target]>),
}

impl From<Decision> for Fate {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Drop(reason) => Fate::Drop(reason.into()),
            Decision::To(target) => Fate::To(target),
            Decision::Flood(targets) => Fate::Flood(targets),
        }
    }
}

/// All that a decision of the switch depends on, in 128 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FlowKey(u128);

impl FlowKey {
    /// The key of a frame that came in on `ingress`.
    #[inline]
    pub fn new(ingress: PortId, headers: &Headers) -> Self {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&headers.dst.0);
        bytes[6..12].copy_from_slice(&headers.src.0);
        bytes[12..14].copy_from_slice(&headers.tag.unwrap_or(0).to_le_bytes());
        let port = ingress.0 << 1 | u16::from(headers.tag.is_some());
        bytes[14..].copy_from_slice(&port.to_le_bytes());
        FlowKey(u128::from_le_bytes(bytes))
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
    fate: Fate,
    touched: u32,
}

/// Fixed-size, set-associative, exact-match.
pub struct FlowCache {
    keys: Box<[[Option<FlowKey>; WAYS]]>,
    entries: Box<[[Option<Entry>; WAYS]]>,
    generations: Arc<Generations>,
    secret: u64,
}

/// A decision found in the cache.
pub struct Hit<'a> {
    /// The decision.
    pub fate: &'a Fate,
    /// True once a second: the learned source address should be told to be alive.
    pub touch: bool,
}

impl FlowCache {
    /// An empty cache over the generations of one switch.
    pub fn new(generations: Arc<Generations>) -> Self {
        FlowCache {
            keys: vec![[None; WAYS]; SETS].into_boxed_slice(),
            entries: (0..SETS).map(|_| [const { None }; WAYS]).collect(),
            generations,
            secret: RandomState::new().hash_one(0),
        }
    }

    /// The decision for `key`, if one is kept and still holds.
    #[inline]
    pub fn get(&mut self, key: FlowKey, now: u32) -> Option<Hit<'_>> {
        let set = key.hash(self.secret) as usize % SETS;
        let way = self.keys[set].iter().position(|k| *k == Some(key))?;
        let entry = self.entries[set][way].as_mut()?;
        if !self.generations.holds(&entry.stamp) {
            return None;
        }
        let touch = entry.touched != now;
        entry.touched = now;
        Some(Hit { fate: &entry.fate, touch })
    }

    /// Keeps a decision, in place of a stale one or of the one in the set that was used least recently.
    pub fn insert(&mut self, key: FlowKey, stamp: Stamp, fate: Fate, now: u32) {
        let set = key.hash(self.secret) as usize % SETS;
        let way = self.victim(set, key);
        self.keys[set][way] = Some(key);
        self.entries[set][way] = Some(Entry { stamp, fate, touched: now });
    }

    fn victim(&self, set: usize, key: FlowKey) -> usize {
        if let Some(own) = self.keys[set].iter().position(|k| *k == Some(key)) {
            return own;
        }
        let age = |entry: &Option<Entry>| match entry {
            Some(e) if self.generations.holds(&e.stamp) => e.touched.max(1),
            _ => 0,
        };
        (0..WAYS).min_by_key(|&way| age(&self.entries[set][way])).unwrap_or(0)
    }
}
