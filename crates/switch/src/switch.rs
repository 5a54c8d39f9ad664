//! The switch: makes one verdict per flow.

mod addresses;
mod requests;
mod tunnels;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use frame::{Headers, Mac};

use crate::generation::Generations;
use crate::given::Given;
use crate::mac::{Limits, MacTable};
use crate::mirror::{FloodList, Mirrors};
use crate::neighbour::Neighbours;
use crate::port_id::PortId;
use crate::port_rule::{PortRule, RuleError};
use crate::reason::DropReason;
use crate::station::Station;
use crate::tunnel::Tunnels;
use crate::verdict::{Decision, Target, Verdict};
use crate::vlan::{Form, Network};

/// Flood lists kept at most. Beyond that, lists are computed again, so a guest that sends into all
/// VLANs of a wide trunk costs time, not memory.
const FLOOD_LISTS: usize = 4096;

/// One line of the address table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The address and its network.
    pub station: Station,
    /// The station's port.
    pub port: PortId,
    /// Seconds since it was last noted, or `None` for an address that the configuration locks or
    /// pins to the port.
    pub idle: Option<u32>,
}

/// Where a frame goes, and its mirrors.
type Routed = (Result<Decision, DropReason>, Option<Arc<[Target]>>);

/// Learns the ports of stations and decides where frames go. A verdict depends only on the ingress
/// port and the frame's outermost tag, destination and source.
pub struct Switch {
    ports: BTreeMap<PortId, PortRule>,
    /// Ports that are locked to an address; several only when they share no network.
    locked: HashMap<Mac, Vec<PortId>>,
    table: MacTable,
    /// Ports that are ends of tunnels, and stations that are pinned to ports.
    tunnels: Tunnels,
    floods: HashMap<(PortId, Network, Form), FloodList>,
    mirrors: Mirrors,
    /// IP addresses of stations on other hosts.
    neighbours: Neighbours,
    /// IP addresses that the configuration gives to ports.
    given: Given,
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
            tunnels: Tunnels::default(),
            floods: HashMap::new(),
            mirrors: Mirrors::default(),
            neighbours: Neighbours::default(),
            given: Given::default(),
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
        self.mirrors.forget(port);
        self.given.take(port);
        self.uninstall(port)
    }

    /// Sets which ports are mirrored, and which are mirrors. Stations learned on mirrors are
    /// forgotten.
    pub fn set_mirrors(&mut self, mirrors: Mirrors) {
        if mirrors == self.mirrors {
            return;
        }
        for port in &mirrors.ports {
            self.table.forget_port(*port);
        }
        self.mirrors = mirrors;
        self.reconfigured();
    }

    /// Decides where a frame with these headers from this port goes, and learns its source. `now`
    /// is in seconds of any monotonic clock.
    pub fn decide(&mut self, now: u32, ingress: PortId, headers: &Headers) -> Verdict {
        let (network, form) = match self.admit(ingress, headers) {
            Ok(admitted) => admitted,
            Err(reason) => {
                let nowhere = |mac| Station { network: Network::UNTAGGED, mac };
                let stamp = self.generations.stamp(nowhere(headers.src), nowhere(headers.dst));
                return Verdict { decision: Decision::Drop(reason), mirrors: None, stamp };
            }
        };
        let src = Station { network, mac: headers.src };
        let dst = Station { network, mac: headers.dst };
        if self.owner(src).is_some() {
            self.table.sightings.hear(now, src);
        } else if self.learns(ingress, src) {
            self.table.learn(now, src, ingress);
        }
        // The stamp is taken after learning, which may itself bump a generation, and before the
        // look-up, although nothing can come between under `&mut`.
        let stamp = self.generations.stamp(src, dst);
        let (routed, mirrors) = self.route(ingress, dst, form);
        Verdict { decision: routed.unwrap_or_else(Decision::Drop), mirrors, stamp }
    }

    /// Learns a station that another switch knew behind the same port, if a frame from that port
    /// would be admitted.
    pub fn learn(&mut self, now: u32, station: Station, port: PortId) {
        let Some(rule) = self.ports.get(&port) else { return };
        let is_inside = rule.vlan.networks().any(|network| network == station.network);
        let is_free = rule.mac.is_none() && self.owner(station).is_none();
        if is_inside && is_free && !station.mac.is_multicast() && station.mac != Mac([0; 6]) {
            self.table.learn(now, station, port);
        }
    }

    /// Forgets stations that have been silent for too long, and those that left; returns how many
    /// of the former. To be called every second or so.
    pub fn age(&mut self, now: u32) -> usize {
        self.expire_left(now);
        self.table.sightings.age_addresses(now);
        self.table.age(now)
    }

    /// The address table: locked, pinned and learned stations, sorted by network and address.
    pub fn table(&self, now: u32) -> Vec<Row> {
        let locked = self.ports.iter().flat_map(|(port, rule)| {
            rule.locked().map(|station| Row { station, port: *port, idle: None })
        });
        let learned = self.table.iter().map(|(station, entry)| Row {
            station,
            port: entry.port,
            idle: Some(now.saturating_sub(entry.seen)),
        });
        let pinned = self.tunnels.pins();
        let pinned = pinned.map(|(station, port)| Row { station, port, idle: None });
        let mut rows: Vec<Row> = locked.chain(pinned).chain(learned).collect();
        rows.sort_by_key(|row| row.station);
        rows
    }

    /// The network that the frame enters and its form, or the reason why it may not enter.
    fn admit(&self, ingress: PortId, headers: &Headers) -> Result<(Network, Form), DropReason> {
        let rule = self.ports.get(&ingress).ok_or(DropReason::NoPort)?;
        if self.mirrors.has(ingress) {
            return Err(DropReason::MirrorPort);
        }
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

    fn route(&mut self, ingress: PortId, dst: Station, form: Form) -> Routed {
        let known = if dst.mac.is_multicast() {
            None
        } else {
            self.owner(dst).or_else(|| self.tunnels.pinned(dst)).or_else(|| self.table.get(dst))
        };
        let Some(port) = known else { return self.flood(ingress, dst.network, form) };
        let target = self.unicast(ingress, port, dst, form);
        let mirrors = self.mirrors.copies(ingress, &target);
        (target.map(Decision::To), mirrors)
    }

    fn unicast(
        &self,
        ingress: PortId,
        port: PortId,
        dst: Station,
        form: Form,
    ) -> Result<Target, DropReason> {
        if port == ingress {
            return Err(DropReason::Reflection);
        }
        if self.tunnels.are_split(ingress, port) && !self.tunnels.has_just_left(dst) {
            return Err(DropReason::SplitHorizon);
        }
        let rule = self.ports.get(&port).filter(|_| !self.mirrors.has(port));
        let rule = rule.ok_or(DropReason::NoReceiver)?;
        let tag = rule.vlan.edit(dst.network, form).ok_or(match form {
            Form::Nested => DropReason::TaggedOnAccess,
            _ => DropReason::NoReceiver,
        })?;
        Ok(Target { port, tag })
    }

    fn flood(&mut self, ingress: PortId, network: Network, form: Form) -> Routed {
        if self.floods.len() >= FLOOD_LISTS {
            self.floods.clear();
        }
        let key = (ingress, network, form);
        let FloodList { targets, mirrors } = match self.floods.get(&key) {
            Some(list) => list.clone(),
            None => {
                let others = self.ports.iter().filter(|(port, _)| **port != ingress);
                let others = others.filter(|(port, _)| {
                    !self.mirrors.has(**port) && self.tunnels.floods_to(ingress, **port)
                });
                let target = |(port, rule): (&PortId, &PortRule)| {
                    Some(Target { port: *port, tag: rule.vlan.edit(network, form)? })
                };
                let targets: Arc<[Target]> = others.filter_map(target).collect();
                let mirrors = self.mirrors.copies(ingress, targets.iter());
                self.floods.entry(key).or_insert(FloodList { targets, mirrors }).clone()
            }
        };
        let empty = targets.is_empty();
        let decision =
            if empty { Err(DropReason::NoReceiver) } else { Ok(Decision::Flood(targets)) };
        (decision, mirrors)
    }

    /// The port that the station is locked to.
    pub fn owner(&self, station: Station) -> Option<PortId> {
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
        let owner =
            rule.locked().filter_map(|station| self.owner(station)).find(|owner| *owner != port);
        match owner {
            Some(owner) => Err(RuleError::Taken { mac, port: owner }),
            None => Ok(rule),
        }
    }

    fn install(&mut self, port: PortId, rule: PortRule) {
        if let Some(mac) = rule.mac {
            self.locked.entry(mac).or_default().push(port);
            // The address may have been learned elsewhere while no port owned it.
            rule.locked().for_each(|station| self.table.forget(station));
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
        if let Some(mac) = rule.mac {
            let is_gone =
                |station: &Station, _| station.mac == mac && rule.vlan.is_in(station.network);
            self.table.sightings.forget(is_gone);
        }
        self.table.forget_port(port);
        self.tunnels.remove(port);
        self.reconfigured();
        true
    }

    /// The stations that are locked to a port.
    fn locked_to(&self, port: PortId) -> Vec<Station> {
        self.ports.get(&port).into_iter().flat_map(PortRule::locked).collect()
    }

    /// Whether the port is in the network.
    fn is_in(&self, port: PortId, network: Network) -> bool {
        self.ports.get(&port).is_some_and(|rule| rule.vlan.is_in(network))
    }

    fn reconfigured(&mut self) {
        self.floods.clear();
        self.generations.bump_all();
    }
}

#[cfg(test)]
mod tests;
