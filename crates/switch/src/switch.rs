//! The switch: makes one verdict per flow.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use frame::{Headers, Mac, TagEdit};

use crate::generation::{Generations, Stamp};
use crate::mac::{Limits, MacTable};
use crate::port_id::PortId;
use crate::reason::DropReason;
use crate::station::Station;
use crate::vlan::{Form, Network, Vlan};

/// Flood lists kept at most. Beyond that they are made anew, so a guest that sends into all VLANs
/// of a wide trunk costs time, not memory.
const FLOOD_LISTS: usize = 4096;

/// The configuration of a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortRule {
    /// The networks that it is in.
    pub vlan: Vlan,
    /// The only source address that it may use. No other port of its networks may use it then.
    pub mac: Option<Mac>,
}

/// Why a rule was refused. Nothing has changed then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RuleError {
    /// The id is in use.
    #[error("port {0} exists already")]
    Exists(PortId),
    /// The id is not in use.
    #[error("there is no port {0}")]
    Unknown(PortId),
    /// A VLAN id out of range.
    #[error("VLAN {0} is not between 1 and 4094")]
    Vlan(u16),
    /// A group address or zero as the port's source.
    #[error("{0} cannot be the address of a station")]
    Mac(Mac),
    /// Another port of the same network is locked to the same address.
    #[error("{mac} is locked to port {port} already")]
    Taken {
        /// The address.
        mac: Mac,
        /// The port that has it.
        port: PortId,
    },
}

/// One receiver of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// The port to deliver to.
    pub port: PortId,
    /// The change of the tag on the way.
    pub tag: TagEdit,
}

/// Where a frame goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Nowhere.
    Drop(DropReason),
    /// To one port.
    To(Target),
    /// To several, at least one. The list is shared between all decisions that flood alike.
    Flood(Arc<[Target]>),
}

/// A decision, and how long it is valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Where the frame goes.
    pub decision: Decision,
    /// The decision is valid while [`Generations::holds`] is true. A cache should still ask again
    /// every
    /// [`Limits::age`] / 4 or so, because each request keeps an active station from ageing out.
    pub stamp: Stamp,
}

/// One line of the address table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The address and its network.
    pub station: Station,
    /// Its port.
    pub port: PortId,
    /// Seconds since it was last noted, or `None` for an address that the configuration locks to
    /// the port.
    pub idle: Option<u32>,
}

/// Learns the ports of stations and decides where frames go. A verdict depends only on the ingress
/// port and the frame's outermost tag, destination and source.
pub struct Switch {
    ports: BTreeMap<PortId, PortRule>,
    /// Ports that are locked to an address; several only when they share no network.
    locked: HashMap<Mac, Vec<PortId>>,
    table: MacTable,
    floods: HashMap<(PortId, Network, Form), Arc<[Target]>>,
    generations: Arc<Generations>,
}

impl Switch {
    /// A switch without ports.
    pub fn new(limits: Limits) -> Self {
        let generations = Arc::new(Generations::new());
        Switch {
            ports: BTreeMap::new(),
            locked: HashMap::new(),
            table: MacTable::new(limits, Arc::clone(&generations)),
            floods: HashMap::new(),
            generations,
        }
    }

    /// The counters that show whether a verdict is still valid.
    pub fn generations(&self) -> &Arc<Generations> {
        &self.generations
    }

    /// Adds a port.
    pub fn add_port(&mut self, port: PortId, rule: PortRule) -> Result<(), RuleError> {
        if self.ports.contains_key(&port) {
            return Err(RuleError::Exists(port));
        }
        let rule = self.checked(port, rule)?;
        self.install(port, rule);
        Ok(())
    }

    /// Changes what the configuration says about a port. What was learned on it is forgotten.
    pub fn set_rule(&mut self, port: PortId, rule: PortRule) -> Result<(), RuleError> {
        if !self.ports.contains_key(&port) {
            return Err(RuleError::Unknown(port));
        }
        let rule = self.checked(port, rule)?;
        self.uninstall(port);
        self.install(port, rule);
        Ok(())
    }

    /// Locks a port to `mac`, unless it is locked already.
    pub fn lock_source(&mut self, port: PortId, mac: Mac) -> Result<(), RuleError> {
        let rule = self.ports.get(&port).ok_or(RuleError::Unknown(port))?;
        match rule.mac {
            Some(own) if own == mac => Ok(()),
            Some(_) => Err(RuleError::Taken { mac, port }),
            None => self.set_rule(port, PortRule { mac: Some(mac), ..rule.clone() }),
        }
    }

    /// Removes a port, and all stations that were learned on it. Returns whether there was such a
    /// port.
    pub fn remove_port(&mut self, port: PortId) -> bool {
        self.uninstall(port)
    }

    /// Says where a frame with these headers from this port goes, and learns its source. `now` in
    /// seconds of any monotonic clock.
    pub fn decide(&mut self, now: u32, ingress: PortId, headers: &Headers) -> Verdict {
        let (network, form) = match self.admit(ingress, headers) {
            Ok(admitted) => admitted,
            Err(reason) => {
                let nowhere = |mac| Station { network: Network::UNTAGGED, mac };
                let stamp = self.generations.stamp(nowhere(headers.src), nowhere(headers.dst));
                return Verdict { decision: Decision::Drop(reason), stamp };
            }
        };
        let src = Station { network, mac: headers.src };
        let dst = Station { network, mac: headers.dst };
        if self.owner(src).is_none() {
            self.table.learn(now, src, ingress);
        }
        // After learning, which may itself move a generation; before the look-up, though nothing
        // can come between under `&mut`.
        let stamp = self.generations.stamp(src, dst);
        let decision = self.route(ingress, dst, form).unwrap_or_else(Decision::Drop);
        Verdict { decision, stamp }
    }

    /// Forgets stations that have been silent for too long; returns how many. To be called every
    /// second or so.
    pub fn age(&mut self, now: u32) -> usize {
        self.table.age(now)
    }

    /// The address table: locked and learned stations, sorted by network and address.
    pub fn table(&self, now: u32) -> Vec<Row> {
        let locked = self.ports.iter().flat_map(|(port, rule)| {
            let mac = rule.mac.into_iter();
            mac.flat_map(move |mac| {
                rule.vlan.networks().map(move |network| Row {
                    station: Station { network, mac },
                    port: *port,
                    idle: None,
                })
            })
        });
        let learned = self.table.iter().map(|(station, entry)| Row {
            station,
            port: entry.port,
            idle: Some(now.saturating_sub(entry.seen)),
        });
        let mut rows: Vec<Row> = locked.chain(learned).collect();
        rows.sort_by_key(|row| row.station);
        rows
    }

    /// Whether the frame may enter, and where.
    fn admit(&self, ingress: PortId, headers: &Headers) -> Result<(Network, Form), DropReason> {
        let rule = self.ports.get(&ingress).ok_or(DropReason::NoPort)?;
        if headers.src.is_multicast() || headers.src.is_zero() {
            return Err(DropReason::BadSource);
        }
        if rule.mac.is_some_and(|own| own != headers.src) {
            return Err(DropReason::SourceLocked);
        }
        let (network, form) = rule.vlan.admit(headers.tag, headers.has_inner_tag())?;
        let src = Station { network, mac: headers.src };
        if self.owner(src).is_some_and(|owner| owner != ingress) {
            return Err(DropReason::SourceTaken);
        }
        if headers.dst.is_link_local() {
            return Err(DropReason::LinkLocal);
        }
        Ok((network, form))
    }

    fn route(&mut self, ingress: PortId, dst: Station, form: Form) -> Result<Decision, DropReason> {
        let known = if dst.mac.is_multicast() {
            None
        } else {
            self.owner(dst).or_else(|| self.table.get(dst))
        };
        match known {
            Some(port) if port == ingress => Err(DropReason::Reflection),
            Some(port) => {
                let rule = self.ports.get(&port).ok_or(DropReason::NoReceiver)?;
                let tag = rule.vlan.edit(dst.network, form).ok_or(match form {
                    Form::Nested => DropReason::TaggedOnAccess,
                    _ => DropReason::NoReceiver,
                })?;
                Ok(Decision::To(Target { port, tag }))
            }
            None => self.flood(ingress, dst.network, form),
        }
    }

    fn flood(
        &mut self,
        ingress: PortId,
        network: Network,
        form: Form,
    ) -> Result<Decision, DropReason> {
        if self.floods.len() >= FLOOD_LISTS {
            self.floods.clear();
        }
        let ports = &self.ports;
        let list = self.floods.entry((ingress, network, form)).or_insert_with(|| {
            let others = ports.iter().filter(|(port, _)| **port != ingress);
            others
                .filter_map(|(port, rule)| {
                    Some(Target { port: *port, tag: rule.vlan.edit(network, form)? })
                })
                .collect()
        });
        if list.is_empty() {
            Err(DropReason::NoReceiver)
        } else {
            Ok(Decision::Flood(Arc::clone(list)))
        }
    }

    /// The port that the station is locked to.
    fn owner(&self, station: Station) -> Option<PortId> {
        let ports = self.locked.get(&station.mac)?;
        ports
            .iter()
            .copied()
            .find(|port| self.ports.get(port).is_some_and(|rule| rule.vlan.is_in(station.network)))
    }

    fn checked(&self, port: PortId, rule: PortRule) -> Result<PortRule, RuleError> {
        let rule = PortRule { vlan: rule.vlan.checked().map_err(RuleError::Vlan)?, mac: rule.mac };
        let Some(mac) = rule.mac else { return Ok(rule) };
        if mac.is_multicast() || mac.is_zero() {
            return Err(RuleError::Mac(mac));
        }
        let stations = rule.vlan.networks().map(|network| Station { network, mac });
        let owner = stations.filter_map(|station| self.owner(station)).find(|owner| *owner != port);
        match owner {
            Some(owner) => Err(RuleError::Taken { mac, port: owner }),
            None => Ok(rule),
        }
    }

    fn install(&mut self, port: PortId, rule: PortRule) {
        if let Some(mac) = rule.mac {
            self.locked.entry(mac).or_default().push(port);
            // It may have been learned elsewhere while nobody owned it.
            for network in rule.vlan.networks() {
                self.table.forget(Station { network, mac });
            }
        }
        self.ports.insert(port, rule);
        self.reconfigured();
    }

    fn uninstall(&mut self, port: PortId) -> bool {
        let Some(rule) = self.ports.remove(&port) else {
            return false;
        };
        if let Some(mac) = rule.mac
            && let Some(owners) = self.locked.get_mut(&mac)
        {
            owners.retain(|owner| *owner != port);
            if owners.is_empty() {
                self.locked.remove(&mac);
            }
        }
        self.table.forget_port(port);
        self.reconfigured();
        true
    }

    fn reconfigured(&mut self) {
        self.floods.clear();
        self.generations.bump_all();
    }
}

#[cfg(test)]
mod tests;
