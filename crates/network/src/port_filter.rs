//! The filter of a port with security groups, which all workers that serve the port share, and each
//! queue's cache of its answers.
//!
//! The connections of a port are in one table behind a lock: the two directions of a connection may
//! be on queues of different workers. The lock is taken for frames that open or end a connection,
//! and once in [`REMEMBERED`] seconds for each other tuple; all other frames find their tuple in
//! the [`ConnectionCache`] of their queue. A lookup in the table is charged as much as one in the
//! switch.
//!
//! A hostile station can use tuples that displace each other in a cache. The station's port, or the
//! sender of the frames, pays for the lookups that follow.

use std::sync::Arc;
use std::time::Instant;

use frame::Headers;
use parking_lot::Mutex;
use switch::DropReason;
use switch::filter::{Direction, Filter, Packet, RuleSet, Tuple};

/// For how many seconds an answer is remembered: less than any connection lives without a frame.
const REMEMBERED: u32 = 5;

/// Entries of a cache.
const ENTRIES: usize = 1024;

/// The filter of a port.
#[derive(Debug)]
pub struct PortFilter {
    /// What seconds are counted from.
    start: Instant,
    filter: Mutex<Filter>,
}

impl PortFilter {
    /// A filter with these rules, and without connections.
    pub fn new(rules: Arc<RuleSet>) -> Self {
        PortFilter { start: Instant::now(), filter: Mutex::new(Filter::new(rules)) }
    }

    /// The rules.
    pub fn rules(&self) -> Arc<RuleSet> {
        Arc::clone(self.filter.lock().rules())
    }

    /// Other rules from now on. Queues forget former answers when they follow the next topology.
    pub fn set_rules(&self, rules: Arc<RuleSet>) {
        self.filter.lock().set_rules(rules);
    }

    /// How many connections are known.
    pub fn connections(&self) -> usize {
        self.filter.lock().connections()
    }
}

/// The filter of a port, as a queue of the port uses it.
#[derive(Debug)]
pub struct QueueFilter {
    port: Arc<PortFilter>,
    cache: ConnectionCache,
    /// The second of the present burst.
    now: u32,
    /// Lookups in the table that were not charged yet.
    asked: u64,
}

impl QueueFilter {
    /// The filter of `port`, with an empty cache.
    pub fn new(port: Arc<PortFilter>) -> Self {
        QueueFilter { port, cache: ConnectionCache::default(), now: 0, asked: 0 }
    }

    /// Frames are checked at this time from now on.
    pub fn set_time(&mut self, now: Instant) {
        self.now = now.saturating_duration_since(self.port.start).as_secs() as u32;
    }

    /// Whether the frame that starts with `head`, whose parsed headers are these, passes.
    ///
    /// # Errors
    /// The reason for which it is dropped.
    pub fn check(
        &mut self,
        direction: Direction,
        head: &[u8],
        headers: &Headers,
    ) -> Result<(), DropReason> {
        let packet = Packet::parse(head, headers)?;
        let plain = packet.is_plain();
        if plain.is_some_and(|tuple| self.cache.has(direction, tuple, self.now)) {
            return Ok(());
        }
        self.asked += 1;
        let passed = self.port.filter.lock().check(direction, &packet, self.now)?;
        if let Some(tuple) = plain.filter(|_| passed.lasts) {
            self.cache.insert(direction, *tuple, self.now + REMEMBERED);
        }
        Ok(())
    }

    /// How often the table was asked since the last call.
    pub fn take_asked(&mut self) -> u64 {
        std::mem::take(&mut self.asked)
    }
}

/// Tuples that passed lately. A tuple has one place, which the latest one takes.
#[derive(Debug)]
struct ConnectionCache(Vec<Option<Remembered>>);

#[derive(Clone, Copy, Debug)]
struct Remembered {
    tuple: Tuple,
    direction: Direction,
    until: u32,
}

impl Default for ConnectionCache {
    fn default() -> Self {
        ConnectionCache(vec![None; ENTRIES])
    }
}

impl ConnectionCache {
    fn has(&self, direction: Direction, tuple: &Tuple, now: u32) -> bool {
        let entry = self.0.get(place(direction, tuple)).and_then(Option::as_ref);
        entry.is_some_and(|it| now < it.until && it.direction == direction && it.tuple == *tuple)
    }

    fn insert(&mut self, direction: Direction, tuple: Tuple, until: u32) {
        if let Some(entry) = self.0.get_mut(place(direction, &tuple)) {
            *entry = Some(Remembered { tuple, direction, until });
        }
    }
}

/// The place of a tuple.
#[inline]
fn place(direction: Direction, tuple: &Tuple) -> usize {
    // Digits of pi.
    const FACTOR: u64 = 0x243f_6a88_85a3_08d3;
    let fold = |address: u128| (address >> 64) as u64 ^ address as u64;
    let ports = u64::from(tuple.source_port) << 16 | u64::from(tuple.destination_port);
    let rest = ports << 16 | u64::from(tuple.protocol) << 1 | u64::from(direction == Direction::In);
    let mixed = fold(tuple.source).wrapping_mul(FACTOR).rotate_left(23)
        ^ fold(tuple.destination).wrapping_mul(FACTOR)
        ^ rest;
    (mixed.wrapping_mul(FACTOR) >> (u64::BITS - ENTRIES.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use switch::filter::SecurityGroup;

    use super::*;

    /// A frame with a datagram of UDP from this port.
    fn datagram(source_port: u16) -> (Vec<u8>, Headers) {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 28];
        frame.extend([0, 9, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 10, 0, 0, 2]);
        frame.extend(source_port.to_be_bytes());
        frame.extend([0, 53, 0, 8, 0, 0]);
        let headers = frame::parse(&frame).unwrap();
        (frame, headers)
    }

    fn rules(rules: &[&str]) -> Arc<RuleSet> {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let group = SecurityGroup { name: "g".into(), rules };
        Arc::new(RuleSet::new(&[group], &BTreeMap::new()).unwrap())
    }

    #[test]
    fn the_table_is_asked_once_in_some_seconds_for_each_tuple() {
        let port = Arc::new(PortFilter::new(rules(&["in udp 53"])));
        let mut queue = QueueFilter::new(Arc::clone(&port));
        let check = |queue: &mut QueueFilter, source_port| {
            let (frame, headers) = datagram(source_port);
            queue.check(Direction::In, &frame, &headers)
        };
        let passed = |queue: &mut QueueFilter, seconds| {
            queue.set_time(port.start + Duration::from_secs(seconds));
            for _ in 0..10 {
                assert_eq!(check(queue, 5000), Ok(()));
                assert_eq!(check(queue, 5001), Ok(()));
            }
            queue.take_asked()
        };
        assert_eq!(passed(&mut queue, 7), 2);
        assert_eq!(passed(&mut queue, 11), 0);
        assert_eq!(passed(&mut queue, 12), 2, "so that the connection is known to be in use");
        assert_eq!(port.connections(), 2);
        // A tuple that does not pass is looked up each time: rules and connections may have
        // changed.
        port.set_rules(rules(&["in tcp"]));
        let mut queue = QueueFilter::new(Arc::clone(&port));
        for _ in 0..3 {
            assert_eq!(check(&mut queue, 5000), Err(DropReason::NotAllowed));
        }
        assert_eq!((queue.take_asked(), port.connections()), (3, 1));
    }

    #[test]
    fn tuples_are_spread_over_the_cache() {
        let tuple = |frame: &(Vec<u8>, Headers)| match Packet::parse(&frame.0, &frame.1).unwrap() {
            Packet::Flow { tuple, .. } => tuple,
            other => panic!("{other:?}"),
        };
        let mut places: Vec<usize> =
            (1..=1024).map(|port| place(Direction::In, &tuple(&datagram(port)))).collect();
        places.sort_unstable();
        places.dedup();
        // Thrown at random, 1024 tuples have 647 places.
        assert!(places.len() > 550, "{}", places.len());
    }
}
