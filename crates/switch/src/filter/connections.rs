//! The connections of a port.
//!
//! A connection is found by the tuple of its first frame, and by the reverse of that tuple. A
//! silent connection is forgotten after a time that depends on its state. Connections of one state
//! are in a list in the order of their last frames, so expiry needs no search: each call forgets at
//! most [`EXPIRED_AT_ONCE`] connections, from the heads of the lists.

use std::collections::HashMap;

use slab::Slab;

use super::rule::Direction;
use super::tuple::{TCP, Tuple, UDP};
use crate::reason::DropReason;

/// Most connections of a port.
pub const MAX_CONNECTIONS: usize = 65_536;

/// Most connections that are forgotten in one call.
const EXPIRED_AT_ONCE: usize = 4;

/// The end of a list.
const NONE: usize = usize::MAX;

/// A tuple, and the direction in which its packets go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    /// The tuple.
    pub tuple: Tuple,
    /// The direction.
    pub direction: Direction,
}

impl Key {
    fn reversed(&self) -> Key {
        Key { tuple: self.tuple.reversed(), direction: self.direction.reversed() }
    }
}

/// The effect of a frame on its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Nothing: the connection goes on.
    Data,
    /// TCP: the connection begins.
    Open,
    /// TCP: a side ends the connection.
    Close,
}

/// The state of a connection. Connections in an earlier state make room for others in a full table
/// first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
enum State {
    /// The later fragments of a datagram.
    Fragments,
    /// A connection of TCP that a side has ended.
    Closing,
    /// Frames went in one direction only so far.
    UdpOpening,
    OtherOpening,
    TcpOpening,
    /// Frames went in both directions.
    UdpOpen,
    OtherOpen,
    TcpOpen,
}

impl State {
    const ALL: [State; 8] = [
        State::Fragments,
        State::Closing,
        State::UdpOpening,
        State::OtherOpening,
        State::TcpOpening,
        State::UdpOpen,
        State::OtherOpen,
        State::TcpOpen,
    ];

    /// After how many silent seconds a connection is forgotten. RFC 5382 (REQ-5) asks for two hours
    /// and four minutes for TCP, and RFC 4787 (REQ-5) for two minutes for UDP.
    fn timeout(self) -> u32 {
        match self {
            State::Fragments | State::UdpOpening | State::OtherOpening => 30,
            State::TcpOpening | State::Closing => 60,
            State::UdpOpen => 180,
            State::OtherOpen => 600,
            State::TcpOpen => 7440,
        }
    }

    /// Whether a full table may forget a connection in this state to make room for another.
    fn gives_way(self) -> bool {
        !matches!(self, State::UdpOpen | State::OtherOpen | State::TcpOpen)
    }

    /// The state of a connection whose first frame this is.
    fn first(protocol: u8, event: Event) -> State {
        match (protocol, event) {
            (TCP, Event::Close) => State::Closing,
            (TCP, _) => State::TcpOpening,
            (UDP, _) => State::UdpOpening,
            _ => State::OtherOpening,
        }
    }

    /// The state after a frame.
    fn next(self, is_reply: bool, event: Event) -> State {
        match (self, event, is_reply) {
            (State::Fragments, ..) => State::Fragments,
            (State::TcpOpening | State::TcpOpen | State::Closing, Event::Close, _) => {
                State::Closing
            }
            // A new connection uses the same ports.
            (State::Closing, Event::Open, false) => State::TcpOpening,
            (State::TcpOpening, _, true) => State::TcpOpen,
            (State::UdpOpening, _, true) => State::UdpOpen,
            (State::OtherOpening, _, true) => State::OtherOpen,
            (state, ..) => state,
        }
    }
}

/// A connection that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    at: usize,
    /// The frame goes against the direction in which the connection was opened.
    is_reply: bool,
}

/// How a connection was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The tuple and direction of the frame that opened it.
    pub key: Key,
    /// The version of the rules that allowed it.
    pub version: u32,
}

#[derive(Debug)]
struct Connection {
    opened: Opened,
    state: State,
    /// The second in which it is forgotten.
    expires: u32,
    previous: usize,
    next: usize,
}

/// A list of connections: its first, and its last.
#[derive(Clone, Copy, Debug)]
struct List {
    first: usize,
    last: usize,
}

/// The connections of a port.
#[derive(Debug)]
pub struct Connections {
    entries: Slab<Connection>,
    /// By the frame that opened them. The hash is keyed, since remote stations choose tuples.
    index: HashMap<Key, usize>,
    lists: [List; State::ALL.len()],
    limit: usize,
}

impl Connections {
    /// No connections, and room for `limit`. Memory is taken as it is needed.
    pub fn new(limit: usize) -> Connections {
        Connections {
            entries: Slab::new(),
            index: HashMap::new(),
            lists: [List { first: NONE, last: NONE }; State::ALL.len()],
            limit,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The connection that a frame belongs to.
    pub(super) fn find(&self, key: &Key) -> Option<Found> {
        let opened = |key: &Key, is_reply| Some(Found { at: *self.index.get(key)?, is_reply });
        opened(key, false).or_else(|| opened(&key.reversed(), true))
    }

    /// How a connection was opened.
    pub(super) fn opened(&self, found: Found) -> Opened {
        self.entries[found.at].opened
    }

    /// Notes a frame of a connection that rules of this version allow.
    pub(super) fn touch(&mut self, found: Found, event: Event, version: u32, now: u32) {
        self.unlink(found.at);
        let entry = &mut self.entries[found.at];
        entry.opened.version = version;
        entry.state = entry.state.next(found.is_reply, event);
        self.append(found.at, now);
    }

    /// Adds a connection, which rules of this version allow.
    ///
    /// # Errors
    /// When the table is full of connections that are in use.
    pub(super) fn open(
        &mut self,
        key: Key,
        event: Event,
        version: u32,
        now: u32,
    ) -> Result<(), DropReason> {
        let state = State::first(key.tuple.protocol, event);
        self.insert(Opened { key, version }, state, now)
    }

    /// Lets later fragments of a datagram pass.
    ///
    /// # Errors
    /// When the table is full of connections that are in use.
    pub(super) fn touch_fragment(
        &mut self,
        key: Key,
        version: u32,
        now: u32,
    ) -> Result<(), DropReason> {
        match self.index.get(&key) {
            Some(&at) => {
                self.touch(Found { at, is_reply: false }, Event::Data, version, now);
                Ok(())
            }
            None => self.insert(Opened { key, version }, State::Fragments, now),
        }
    }

    /// Whether a first fragment of the datagram passed the rules of this version.
    pub(super) fn has_fragment(&self, key: &Key, version: u32) -> bool {
        let at = self.index.get(key).and_then(|at| self.entries.get(*at));
        at.is_some_and(|entry| entry.opened.version == version)
    }

    /// Forgets a connection.
    pub(super) fn remove(&mut self, found: Found) {
        self.forget(found.at);
    }

    /// Forgets some of the connections that have been silent for too long.
    pub(super) fn expire(&mut self, now: u32) {
        let mut left = EXPIRED_AT_ONCE;
        for state in State::ALL {
            while left > 0
                && let Some(first) = self.entries.get(self.lists[state as usize].first)
                && first.expires <= now
            {
                self.forget(self.lists[state as usize].first);
                left -= 1;
            }
        }
    }

    fn insert(&mut self, opened: Opened, state: State, now: u32) -> Result<(), DropReason> {
        if self.entries.len() >= self.limit {
            let full = State::ALL.into_iter().filter(|state| state.gives_way());
            let oldest = full.map(|state| self.lists[state as usize].first);
            let oldest = oldest.into_iter().find(|first| *first != NONE);
            self.forget(oldest.ok_or(DropReason::ConnectionsFull)?);
        }
        let entry = Connection { opened, state, expires: 0, previous: NONE, next: NONE };
        let at = self.entries.insert(entry);
        self.index.insert(opened.key, at);
        self.append(at, now);
        Ok(())
    }

    fn forget(&mut self, at: usize) {
        self.unlink(at);
        let entry = self.entries.remove(at);
        self.index.remove(&entry.opened.key);
    }

    /// Puts a connection at the end of the list of its state.
    fn append(&mut self, at: usize, now: u32) {
        let entry = &mut self.entries[at];
        let list = &mut self.lists[entry.state as usize];
        entry.expires = now.saturating_add(entry.state.timeout());
        (entry.previous, entry.next) = (list.last, NONE);
        let last = std::mem::replace(&mut list.last, at);
        match self.entries.get_mut(last) {
            Some(last) => last.next = at,
            None => list.first = at,
        }
    }

    /// Takes a connection out of its list.
    fn unlink(&mut self, at: usize) {
        let Connection { state, previous, next, .. } = self.entries[at];
        let list = &mut self.lists[state as usize];
        match self.entries.get_mut(previous) {
            Some(entry) => entry.next = next,
            None => list.first = next,
        }
        match self.entries.get_mut(next) {
            Some(entry) => entry.previous = previous,
            None => list.last = previous,
        }
    }
}
