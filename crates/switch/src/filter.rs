//! The filter of a port with security groups: which connections its guest may open and accept.
//!
//! Rules decide about the first frame of a connection. The filter is stateful: later frames in
//! either direction belong to the connection and pass, and so do ICMP errors about it. A frame that
//! no rule allows is dropped; a port without security groups has no filter.
//!
//! Some frames are never filtered, since no guest works without them: ARP, neighbour discovery,
//! reports of multicast listeners, the guest's DHCP requests and the answers to them, and router
//! advertisements to the guest. The [source guard](crate::guard) decides what the guest may claim
//! in those.
//!
//! # What a hostile guest or peer could try
//!
//! - To fill the table of connections ([`Connections`]): each port has its own, of bounded size, in
//!   which connections without an answer make room for others.
//! - To hide ports behind fragments: a first fragment is judged by its ports, later ones pass only
//!   behind a first one that passed, and none may begin where it could overwrite ports.
//! - To hide ports behind extension headers: a frame whose headers cannot be read does not pass.
//! - To close the connections of others: flags of TCP change how soon a silent connection is
//!   forgotten, never whether its frames pass.

mod address_set;
mod connections;
mod packet;
mod rule;
mod rule_set;
mod tuple;

use std::sync::Arc;

pub use address_set::AddressSet;
pub use connections::{Connections, Key, MAX_CONNECTIONS};
pub use packet::Packet;
pub use rule::{BadRule, Direction, Protocol, Remote, Rule};
pub use rule_set::{MAX_RULES, RuleSet, SecurityGroup, UnknownGroup};
pub use tuple::Tuple;

use crate::reason::DropReason;
use connections::{Event, Found};
use tuple::{DHCP_CLIENT, DHCP_SERVER, DHCPV6_CLIENT, DHCPV6_SERVER};

/// The filter of one port: its rules, and the connections that passed them.
#[derive(Debug)]
pub struct Filter {
    rules: Arc<RuleSet>,
    /// Raised with each change of the rules. Connections that older rules allowed are checked
    /// again.
    version: u32,
    connections: Connections,
}

/// A frame that passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passed {
    /// Frames of the same tuple and direction may pass for a few seconds without another check,
    /// unless they [change](Packet::is_plain) the connection.
    pub lasts: bool,
}

impl Filter {
    /// A filter without connections.
    pub fn new(rules: Arc<RuleSet>) -> Filter {
        Filter { rules, version: 0, connections: Connections::new(MAX_CONNECTIONS) }
    }

    /// The rules.
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Replaces the rules. Connections that the new rules allow continue.
    pub fn set_rules(&mut self, rules: Arc<RuleSet>) {
        self.rules = rules;
        self.version = self.version.wrapping_add(1);
    }

    /// How many connections are known.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Decides about a frame. `now` is in whole seconds, and never goes back.
    ///
    /// # Errors
    /// The reason for which the frame is dropped.
    pub fn check(
        &mut self,
        direction: Direction,
        packet: &Packet,
        now: u32,
    ) -> Result<Passed, DropReason> {
        self.connections.expire(now);
        match packet {
            Packet::Control => Ok(Passed { lasts: false }),
            Packet::Other => Err(DropReason::NotAllowed),
            Packet::Flow { tuple, event } => {
                if is_configuration(direction, tuple) {
                    return Ok(Passed { lasts: false });
                }
                self.flow(Key { tuple: *tuple, direction }, *event, now)?;
                Ok(Passed { lasts: *event == Event::Data })
            }
            Packet::Error { tuple, about } => {
                let about = about.map(|tuple| Key { tuple, direction: direction.reversed() });
                if !about.is_some_and(|about| self.is_known(about)) {
                    self.flow(Key { tuple: *tuple, direction }, Event::Data, now)?;
                }
                Ok(Passed { lasts: false })
            }
            Packet::FirstFragment { tuple, datagram } => {
                self.flow(Key { tuple: *tuple, direction }, Event::Data, now)?;
                self.connections.touch_fragment(
                    Key { tuple: *datagram, direction },
                    self.version,
                    now,
                )?;
                Ok(Passed { lasts: false })
            }
            Packet::LaterFragment { datagram } => {
                let key = Key { tuple: *datagram, direction };
                match self.connections.has_fragment(&key, self.version) {
                    true => Ok(Passed { lasts: false }),
                    false => Err(DropReason::NotAllowed),
                }
            }
        }
    }

    /// Decides about a frame that belongs to a connection or opens one.
    fn flow(&mut self, key: Key, event: Event, now: u32) -> Result<(), DropReason> {
        if let Some(found) = self.connections.find(&key) {
            if self.is_allowed(found) {
                self.connections.touch(found, event, self.version, now);
                return Ok(());
            }
            self.connections.remove(found);
        }
        if !self.rules.allows(key) {
            return Err(DropReason::NotAllowed);
        }
        self.connections.open(key, event, self.version, now)
    }

    /// Whether there is a connection, which the present rules allow, to which a frame would belong.
    fn is_known(&self, key: Key) -> bool {
        self.connections.find(&key).is_some_and(|found| self.is_allowed(found))
    }

    /// Whether the present rules allow a connection.
    fn is_allowed(&self, found: Found) -> bool {
        let opened = self.connections.opened(found);
        opened.version == self.version || self.rules.allows(opened.key)
    }
}

/// Whether the frame configures the guest: its DHCP requests, answers to them, and router
/// advertisements.
fn is_configuration(direction: Direction, tuple: &Tuple) -> bool {
    if tuple.protocol == tuple::ICMPV6 {
        return direction == Direction::In && tuple.is_router_advertisement();
    }
    let (client, server) =
        if tuple.is_v4() { (DHCP_CLIENT, DHCP_SERVER) } else { (DHCPV6_CLIENT, DHCPV6_SERVER) };
    let (from, to) = match direction {
        Direction::Out => (client, server),
        Direction::In => (server, client),
    };
    tuple.protocol == tuple::UDP && (tuple.source_port, tuple.destination_port) == (from, to)
}

#[cfg(test)]
mod tests;
