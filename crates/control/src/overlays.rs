//! The overlays of the daemon.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use frame::Vni;
use frame::vxlan::outer::{OVERHEAD_V4, OVERHEAD_V6};
use hostlink::shadow;
use hostlink::underlay::{PeerSpec, Underlay, UnderlayError, path_mtu, peer_name};
use network::fabric::Fabric;
use switch::{PinKind, PortId, Station, Tunnel};
use tracing::{info, warn};

use crate::api::{
    Counts, OverlayNetwork, OverlayPeer, OverlayReport, PortReport, PortState, ReloadAction,
    ReloadChange, ReloadSubject,
};
use crate::config::{ControlPlane, OverlaySpec};
use crate::evpn::{Evpn, Status};
use crate::kind::Kind;
use crate::overlay_network::{TUNNELS, network};
use crate::reload::Change;
use crate::report;

/// MTU of an underlay without a known route: that of Ethernet.
const ETHERNET: u16 = 1500;

/// The overlays of a daemon, in the order of their configuration.
pub struct Overlays {
    fabric: Arc<Fabric>,
    overlays: Vec<Overlay>,
    /// The counts of ports that are gone.
    removed: Counts,
}

/// An overlay of the configuration.
struct Overlay {
    spec: OverlaySpec,
    /// Its sockets and ports, or why there are none. Missing ones are tried again.
    service: Result<Service, String>,
}

/// An overlay in service.
struct Service {
    /// The source of peers and stations, if it is not the configuration. It must end before the
    /// sockets.
    evpn: Option<Evpn>,
    underlay: Arc<Underlay>,
    mtu: u16,
    /// The problem with a peer or a station, if there is one.
    trouble: Option<String>,
}

impl Overlays {
    /// No overlays.
    pub fn new(fabric: Arc<Fabric>) -> Overlays {
        Overlays { fabric, overlays: Vec::new(), removed: report::no_counts() }
    }

    /// Adds an overlay. One that cannot be put into service is stopped, and tried again.
    pub fn add(&mut self, spec: OverlaySpec) {
        let service = start(&self.fabric, &spec);
        match &service {
            Ok(service) => {
                let (peers, mtu) = (spec.peers.len(), service.mtu);
                let underlay = spec.transport.name();
                info!(overlay = %spec.name, local = %spec.local, underlay, peers, mtu, "added");
            }
            Err(reason) => {
                warn!(overlay = %spec.name, %reason, "not in service; trying again until it is");
            }
        }
        self.overlays.push(Overlay { spec, service });
    }

    /// Tries again to start overlays that are not in service. True: there are overlays.
    pub fn maintain(&mut self) -> bool {
        for overlay in self.overlays.iter_mut().filter(|overlay| overlay.service.is_err()) {
            overlay.service = start(&self.fabric, &overlay.spec);
            if overlay.service.is_ok() {
                info!(overlay = %overlay.spec.name, "in service now");
            }
        }
        for (_, service) in self.in_service() {
            service.underlay.refresh();
        }
        !self.overlays.is_empty()
    }

    /// The descriptions of all overlays.
    pub fn specs(&self) -> Vec<OverlaySpec> {
        self.overlays.iter().map(|overlay| overlay.spec.clone()).collect()
    }

    /// Makes the changes of overlays, and notes in `reports` those that are not in service
    /// afterwards.
    pub fn reload(&mut self, changes: &[Change], reports: &mut [ReloadChange]) {
        // Addresses of those that are removed can be used by those that are added.
        for change in changes {
            match change {
                Change::RemoveOverlay(name) => self.remove(name, None),
                Change::ReplaceOverlay(spec, _) => self.remove(&spec.name, Some(spec)),
                _ => {}
            }
        }
        for change in changes {
            match change {
                Change::AddOverlay(spec) | Change::ReplaceOverlay(spec, _) => {
                    self.add(spec.clone());
                }
                Change::SetOverlay(spec, _) => self.set(spec),
                _ => {}
            }
        }
        let ours = reports.iter_mut().filter(|report| report.subject == ReloadSubject::Overlay);
        for report in ours.filter(|report| report.action != ReloadAction::Remove) {
            report.reason = self.find(&report.name).and_then(Overlay::reason);
        }
    }

    fn find(&self, name: &str) -> Option<&Overlay> {
        self.overlays.iter().find(|overlay| overlay.spec.name == name)
    }

    /// Removes an overlay. `next` replaces it.
    fn remove(&mut self, name: &str, next: Option<&OverlaySpec>) {
        let Some(at) = self.overlays.iter().position(|it| it.spec.name == name) else { return };
        let overlay = self.overlays.remove(at);
        if let Ok(Service { underlay, evpn, .. }) = overlay.service {
            if let Some(evpn) = evpn {
                evpn.add_removed(&mut self.removed);
                drop(evpn);
                remove_shadows(&overlay.spec, next);
            }
            let peers = underlay.peers().into_iter().map(|(.., port)| port);
            let ports: Vec<PortId> = peers.chain([underlay.port()]).collect();
            report::add_removed(&mut self.removed, &self.fabric, &ports, || drop(underlay));
        }
        info!(overlay = %name, "removed");
    }

    /// Gives an overlay in service other peers and stations. Everything else is left alone.
    fn set(&mut self, spec: &OverlaySpec) {
        let Some(at) = self.overlays.iter().position(|it| it.spec.name == spec.name) else {
            return;
        };
        let before = std::mem::replace(&mut self.overlays[at].spec, spec.clone());
        if let Ok(service) = &mut self.overlays[at].service {
            let (fabric, removed) = (&self.fabric, &mut self.removed);
            let gone = |(_, vtep, _): &(Vni, _, PortId)| !spec.peers.contains(vtep);
            for (vni, vtep, port) in service.underlay.peers().into_iter().filter(gone) {
                report::add_removed(removed, fabric, &[port], || {
                    service.underlay.remove_peer(vni, vtep);
                });
            }
            for (mac, _) in before.macs.iter().filter(|mac| !spec.macs.contains(mac)) {
                for (_, vlan) in &spec.networks {
                    fabric.unpin(Station { network: network(*vlan), mac: *mac });
                }
            }
            service.trouble = service.fill(fabric, spec).err();
        }
        info!(overlay = %spec.name, peers = spec.peers.len(), "changed");
    }

    /// The names of all ports of overlays.
    pub fn names(&self) -> HashMap<PortId, String> {
        self.in_service().flat_map(|(spec, service)| names(spec, service)).collect()
    }

    /// The counts of removed ports.
    pub fn removed(&self) -> Counts {
        let mut removed = self.removed.clone();
        for (_, service) in self.in_service() {
            service.evpn.iter().for_each(|evpn| evpn.add_removed(&mut removed));
        }
        removed
    }

    fn in_service(&self) -> impl Iterator<Item = (&OverlaySpec, &Service)> {
        let all = self.overlays.iter();
        all.filter_map(|overlay| Some((&overlay.spec, overlay.service.as_ref().ok()?)))
    }

    /// The ports of all overlays.
    pub fn ports(&self) -> Vec<PortReport> {
        let mut ports = Vec::new();
        for (spec, service) in self.in_service() {
            for (id, name) in names(spec, service) {
                let (queues, total, waits) = report::of_overlay(&self.fabric, id);
                let peers = service.underlay.peers();
                let peer = peers.iter().find(|(.., port)| *port == id);
                let vlan = peer.and_then(|(vni, ..)| {
                    let known = spec.networks.iter().find(|(own, _)| own == vni);
                    known.and_then(|(_, vlan)| *vlan)
                });
                let device = peer
                    .map_or(spec.local, |(_, vtep, _)| SocketAddr::new(*vtep, spec.local.port()));
                ports.push(PortReport {
                    name,
                    kind: Kind::Overlay,
                    device: Some(device.to_string()),
                    state: PortState::Connected,
                    vlan,
                    mtu: Some(service.mtu),
                    queue_pairs: queues.len() as u16,
                    total,
                    waits,
                    queues,
                    ..PortReport::default()
                });
            }
        }
        ports
    }

    /// All overlays, by name.
    pub fn report(&self) -> Vec<OverlayReport> {
        let rows = self.fabric.table();
        let at = |port: PortId| rows.iter().filter(|row| row.port == port).count();
        let mut all: Vec<_> =
            self.overlays.iter().map(|overlay| overlay.report(&self.fabric, at)).collect();
        all.sort_by(|a, b| crate::natural::compare(&a.name, &b.name));
        all
    }
}

impl Overlay {
    fn reason(&self) -> Option<String> {
        match &self.service {
            Err(reason) => Some(reason.clone()),
            Ok(Service { underlay, evpn, trouble, .. }) => {
                let stopped = underlay.stopped().map(|error| error.to_string());
                let stopped = stopped.or_else(|| trouble.clone());
                stopped.or_else(|| evpn.as_ref()?.status().trouble)
            }
        }
    }

    fn report(&self, fabric: &Fabric, macs: impl Fn(PortId) -> usize) -> OverlayReport {
        let spec = &self.spec;
        let networks =
            spec.networks.iter().map(|(vni, vlan)| OverlayNetwork { vni: vni.get(), vlan: *vlan });
        let mut report = OverlayReport {
            name: spec.name.clone(),
            networks: networks.collect(),
            local: spec.local.ip().to_string(),
            port: spec.local.port(),
            underlay: spec.transport.name().to_owned(),
            device: spec.transport.device().map(str::to_owned),
            control: spec.control.name().to_owned(),
            learning: spec.learning,
            state: PortState::Stopped,
            reason: self.reason(),
            macs: spec.macs.len(),
            ..OverlayReport::default()
        };
        let Ok(Service { underlay, evpn, mtu, .. }) = &self.service else { return report };
        let status = evpn.as_ref().map(Evpn::status).unwrap_or_default();
        let Status { peers: said, neighbours, announced, learned, .. } = status;
        (report.neighbours, report.announced, report.learned) = (neighbours, announced, learned);
        if underlay.stopped().is_none() {
            report.state = PortState::Connected;
        }
        report.mtu = Some(*mtu);
        let counts = underlay.counts();
        report.datagrams_received = counts.received;
        report.receive_calls = counts.receive_calls;
        report.datagrams_sent = counts.sent;
        report.send_calls = counts.send_calls;
        report.drops =
            counts.drops.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        let peer = |(vni, vtep, port): (Vni, std::net::IpAddr, PortId)| {
            let (_, total, _) = report::of_overlay(fabric, port);
            let said = said.get(&(vni, vtep));
            OverlayPeer {
                vtep: vtep.to_string(),
                vni: vni.get(),
                port: peer_name(&spec.name, vni, vtep),
                flood: said.is_none_or(|peer| peer.floods),
                stale: said.is_some_and(|peer| peer.stale),
                macs: macs(port),
                frames: total.rx_frames,
                bytes: total.rx_bytes,
                dropped: total.dropped(),
            }
        };
        report.peers = underlay.peers().into_iter().map(peer).collect();
        report
    }
}

fn names(spec: &OverlaySpec, service: &Service) -> Vec<(PortId, String)> {
    let peers = service.underlay.peers().into_iter();
    let peers = peers.map(|(vni, vtep, port)| (port, peer_name(&spec.name, vni, vtep)));
    peers.chain([(service.underlay.port(), spec.name.clone())]).collect()
}

/// Longest IP packet of the networks: the part of the narrowest path's MTU that is left by the
/// headers.
fn inner_mtu(spec: &OverlaySpec) -> u16 {
    if let Some(mtu) = spec.mtu {
        return mtu;
    }
    let (local, port) = (spec.local.ip(), spec.local.port());
    let overhead = if local.is_ipv4() { OVERHEAD_V4 } else { OVERHEAD_V6 };
    let ways =
        spec.peers.iter().filter_map(|peer| path_mtu(local, SocketAddr::new(*peer, port)).ok());
    // Frames longer than those of guests need not be carried, and a frame must fit into a datagram.
    ways.min().unwrap_or(ETHERNET).saturating_sub(overhead).max(68)
}

fn start(fabric: &Arc<Fabric>, spec: &OverlaySpec) -> Result<Service, String> {
    let underlay = Underlay::start(Arc::clone(fabric), &spec.name, spec.local, &spec.transport);
    let underlay = underlay.map_err(|error| error.to_string())?;
    let (underlay, mtu) = (Arc::new(underlay), inner_mtu(spec));
    let mut service = Service { evpn: None, underlay, mtu, trouble: None };
    service.trouble = service.fill(fabric, spec).err();
    if spec.control == ControlPlane::Evpn {
        let evpn = Evpn::start(fabric, &service.underlay, spec, mtu);
        service.evpn = Some(evpn.map_err(|error| format!("EVPN: {error}"))?);
    }
    Ok(service)
}

/// Removes the kernel's devices of an overlay that is gone, except those that `next` needs.
fn remove_shadows(spec: &OverlaySpec, next: Option<&OverlaySpec>) {
    let next = next
        .filter(|next| next.control == ControlPlane::Evpn && next.local.ip() == spec.local.ip());
    let stays =
        |vni: Vni| next.is_some_and(|next| next.networks.iter().any(|(own, _)| *own == vni));
    for (vni, _) in spec.networks.iter().filter(|(vni, _)| !stays(*vni)) {
        if let Err(error) = shadow::remove(*vni) {
            warn!(overlay = %spec.name, %error, "cannot remove the devices of a network");
        }
    }
}

impl Service {
    /// Adds the networks, peers and stations that are not there yet.
    fn fill(&self, fabric: &Fabric, spec: &OverlaySpec) -> Result<(), String> {
        let tunnel = Tunnel { group: TUNNELS, learns: spec.learning, floods: true };
        let mtu = self.mtu;
        for &(vni, vlan) in &spec.networks {
            self.underlay.add_network(vni);
            let there = self.underlay.peers();
            let new = |vtep: &&std::net::IpAddr| {
                !there.iter().any(|(own, other, _)| (*own, other) == (vni, *vtep))
            };
            for &vtep in spec.peers.iter().filter(new) {
                let added = self.underlay.add_peer(&PeerSpec { vni, vtep, vlan, mtu, tunnel });
                added.map_err(|error: UnderlayError| format!("peer {vtep}: {error}"))?;
            }
            let ports: HashMap<_, _> = self
                .underlay
                .peers()
                .into_iter()
                .filter_map(|(own, vtep, port)| (own == vni).then_some((vtep, port)))
                .collect();
            for (mac, vtep) in &spec.macs {
                let Some(port) = ports.get(vtep) else { continue };
                let station = Station { network: network(vlan), mac: *mac };
                fabric.pin(station, *port, PinKind::Sticky).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}
