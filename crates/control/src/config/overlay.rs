//! The description of one overlay: virtual networks, and the tunnels that carry them.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use frame::{Mac, Vni};
use hostlink::underlay::Transport;
use toml::Spanned;

use super::overlay_table::{
    ControlPlane, OverlayTable, StaticMac, UdpPort, UnderlayKind, VlanMap, VniValue, Vtep,
};
use super::port::PortSpec;
use super::port_table::{Interface, Name, Vid};
use super::source::{Place, Problems, VALUE};
use super::value::{Amount, FromText, Number, Text};

/// The configuration of an overlay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OverlaySpec {
    /// The name, unique among overlays and ports.
    pub name: String,
    /// The virtual networks, each with its VLAN on this host; `None`: the untagged network.
    pub networks: Vec<(Vni, Option<u16>)>,
    /// This host's VTEP: address and UDP port.
    pub local: SocketAddr,
    /// What carries datagrams.
    pub transport: Transport,
    /// The source of hosts and stations.
    pub control: ControlPlane,
    /// The other hosts, each a peer of all networks.
    pub peers: Vec<IpAddr>,
    /// Stations whose host is known, with their VTEP.
    pub macs: Vec<(Mac, IpAddr)>,
    /// Whether the hosts of other stations are learned from their frames.
    pub learning: bool,
    /// Whether EVPN announces the IP addresses that ports are locked to.
    pub announce_addresses: bool,
    /// Longest IP packet of the networks; `None`: the longest that the underlay can carry.
    pub mtu: Option<u16>,
}

impl OverlaySpec {
    /// The keys that `other` has with another value, in snake case.
    pub fn changed_keys(&self, other: &OverlaySpec) -> Vec<String> {
        // All fields are named, so that a new one is not overlooked.
        let OverlaySpec {
            name: _,
            networks,
            local,
            transport,
            control,
            peers,
            macs,
            learning,
            announce_addresses,
            mtu,
        } = other;
        let single = |networks: &[(Vni, Option<u16>)]| networks.len() == 1;
        let network_key = if single(networks) { "vni" } else { "vlans" };
        let differs = [
            (network_key, *networks != self.networks),
            ("local", local.ip() != self.local.ip()),
            ("port", local.port() != self.local.port()),
            ("underlay", transport.name() != self.transport.name()),
            ("device", transport.device() != self.transport.device()),
            ("control", *control != self.control),
            ("peers", *peers != self.peers),
            ("macs", *macs != self.macs),
            ("learning", *learning != self.learning),
            ("announce_addresses", *announce_addresses != self.announce_addresses),
            ("mtu", *mtu != self.mtu),
        ];
        let differing = differs.into_iter().filter(|(_, differs)| *differs);
        differing.map(|(key, _)| key.to_owned()).collect()
    }

    /// Whether an overlay in service can become the other one without losing frames.
    pub fn can_become(&self, other: &OverlaySpec) -> bool {
        let (peers, macs) = (other.peers.clone(), other.macs.clone());
        OverlaySpec { peers, macs, ..self.clone() } == *other
    }
}

/// Names and addresses that an overlay must not share.
pub(super) struct Neighbours<'a> {
    /// All ports.
    pub ports: Vec<&'a PortSpec>,
    /// Overlays before it.
    pub overlays: &'a [OverlaySpec],
}

/// Makes a description of `table`; `None` if it lacks what every description has.
pub(super) fn read(
    table: OverlayTable,
    place: &Place<'_>,
    neighbours: &Neighbours<'_>,
    problems: &mut Problems<'_>,
) -> Option<OverlaySpec> {
    let mut reader = Reader { place, neighbours, problems };
    reader.read(table)
}

struct Reader<'a, 'b> {
    place: &'a Place<'a>,
    neighbours: &'a Neighbours<'a>,
    problems: &'a mut Problems<'b>,
}

impl Reader<'_, '_> {
    fn read(&mut self, table: OverlayTable) -> Option<OverlaySpec> {
        let name = self.name(table.name);
        let single = table.vni.is_some();
        let given = [
            ("peers", table.peers.as_ref().map(Spanned::span)),
            ("macs", table.macs.as_ref().map(Spanned::span)),
            ("learning", table.learning.as_ref().map(Spanned::span)),
        ];
        let networks = self.networks(table.vni, table.vlan, table.vlans);
        let local = self.local(table.local, table.port)?;
        let transport = self.transport(table.underlay, table.device);
        let peers = self.peers(table.peers, local.ip());
        let macs = self.macs(table.macs, &peers, single);
        let control = self.control(table.control, &given);
        let learning = match control {
            ControlPlane::Static => table.learning.is_none_or(Spanned::into_inner),
            ControlPlane::Evpn => false,
        };
        if let (ControlPlane::Static, Some(given)) = (control, &table.announce_addresses) {
            let problem = "only with control = \"evpn\" is anything announced; leave it out";
            self.problems.add(self.place.path, "announce-addresses", &given.span(), problem);
        }
        let announce_addresses = table.announce_addresses.is_some_and(Spanned::into_inner);
        let mtu = table.mtu.map(|given| given.into_inner().0);
        Some(OverlaySpec {
            name: name?,
            networks,
            local,
            transport: transport?,
            control,
            peers,
            macs,
            learning,
            announce_addresses,
            mtu,
        })
    }

    /// The control plane. Keys whose information comes from EVPN are refused beside it.
    fn control(
        &mut self,
        given: Option<Spanned<Text<ControlPlane>>>,
        others: &[(&str, Option<Range<usize>>)],
    ) -> ControlPlane {
        let control = given.map_or(ControlPlane::Static, |given| given.into_inner().0);
        if control == ControlPlane::Evpn {
            let given = others.iter().filter_map(|(key, span)| Some((key, span.as_ref()?)));
            for (key, span) in given {
                let problem = "with control = \"evpn\", FRR says this; leave it out";
                self.problems.add(self.place.path, key, span, problem);
            }
        }
        control
    }

    fn missing(&mut self, key: &str, right: &str) {
        self.problems.add_missing(self.place.path, key, self.place.at, right);
    }

    fn name(&mut self, given: Option<Spanned<Text<Name>>>) -> Option<String> {
        let Some(given) = given else {
            self.missing("name", &Name::right());
            return None;
        };
        let (span, Text(Name(name))) = (given.span(), given.into_inner());
        let others = self.neighbours.overlays.iter().map(|other| other.name.as_str());
        if others
            .chain(self.neighbours.ports.iter().map(|port| port.name.as_str()))
            .any(|other| other == name)
        {
            let problem =
                format!("there is a port or an overlay {VALUE} already; give another name");
            self.problems.add(self.place.path, "name", &span, problem);
        }
        Some(name)
    }

    fn networks(
        &mut self,
        vni: Option<Spanned<Amount<VniValue>>>,
        vlan: Option<Spanned<Number<Vid>>>,
        vlans: Option<Spanned<Vec<Spanned<Text<VlanMap>>>>>,
    ) -> Vec<(Vni, Option<u16>)> {
        let vid = vlan.as_ref().map(|vlan| vlan.get_ref().0);
        match (vni, vlans) {
            (Some(vni), None) => vec![(vni.get_ref().0.0, vid)],
            (None, Some(vlans)) => {
                if let Some(vlan) = vlan {
                    let problem = "vlans names the VLANs already; leave it out";
                    self.problems.add(self.place.path, "vlan", &vlan.span(), problem);
                }
                self.mapped(vlans)
            }
            (Some(vni), Some(_)) => {
                let problem = "an overlay has one network or several; give vni or vlans, not both";
                self.problems.add(self.place.path, "vni", &vni.span(), problem);
                Vec::new()
            }
            (None, None) => {
                self.missing("vni", &VniValue::right());
                Vec::new()
            }
        }
    }

    fn mapped(&mut self, vlans: Spanned<Vec<Spanned<Text<VlanMap>>>>) -> Vec<(Vni, Option<u16>)> {
        let span = vlans.span();
        let mut networks: Vec<(Vni, Option<u16>)> = Vec::new();
        for item in vlans.into_inner() {
            let (at, Text(VlanMap { vlan, vni })) = (item.span(), item.into_inner());
            if networks.iter().any(|other| other.0 == vni || other.1 == Some(vlan)) {
                let problem = format!("VLAN {vlan} or VNI {vni} is listed twice; give each once");
                self.problems.add(self.place.path, "vlans", &at, problem);
            }
            networks.push((vni, Some(vlan)));
        }
        if networks.is_empty() {
            let problem = format!("the list is empty; give {}", VlanMap::right());
            self.problems.add(self.place.path, "vlans", &span, problem);
        }
        networks
    }

    fn local(
        &mut self,
        given: Option<Spanned<Text<Vtep>>>,
        port: Option<Spanned<Number<UdpPort>>>,
    ) -> Option<SocketAddr> {
        let Some(given) = given else {
            self.missing("local", &Vtep::right());
            return None;
        };
        let port = port.map_or(frame::vxlan::PORT, |port| port.get_ref().0);
        let local = SocketAddr::new(given.get_ref().0.0, port);
        if let Some(other) = self.neighbours.overlays.iter().find(|other| other.local == local) {
            let problem = format!(
                "overlay {:?} has {VALUE} and this port already; give its networks together, in \
                 vlans, or another port",
                other.name
            );
            self.problems.add(self.place.path, "local", &given.span(), problem);
        }
        Some(local)
    }

    /// What carries datagrams; `None`: the device has no name.
    fn transport(
        &mut self,
        given: Option<Spanned<Text<UnderlayKind>>>,
        device: Option<Spanned<Text<Interface>>>,
    ) -> Option<Transport> {
        let kind = given.map_or(UnderlayKind::Udp, |given| given.into_inner().0);
        match (kind, device) {
            (UnderlayKind::Udp, None) => Some(Transport::Sockets),
            (UnderlayKind::Udp, Some(device)) => {
                let problem = "only with underlay = \"tap\" or \"xdp\" is there a device; leave it \
                               out";
                self.problems.add(self.place.path, "device", &device.span(), problem);
                Some(Transport::Sockets)
            }
            (_, Some(given)) => {
                let (span, Text(Interface(device))) = (given.span(), given.into_inner());
                let ports = self.neighbours.ports.iter().filter_map(|port| port.kind.device());
                let overlays = self.neighbours.overlays.iter();
                let mut taken = ports.chain(overlays.filter_map(|other| other.transport.device()));
                if taken.any(|other| other == device) {
                    let problem = format!("a port or an overlay has {VALUE} already; give another");
                    self.problems.add(self.place.path, "device", &span, problem);
                }
                match kind {
                    UnderlayKind::Xdp => Some(Transport::Card(device)),
                    UnderlayKind::Udp | UnderlayKind::Tap => Some(Transport::Tap(device)),
                }
            }
            (UnderlayKind::Tap | UnderlayKind::Xdp, None) => {
                self.missing("device", &Interface::right());
                None
            }
        }
    }

    fn peers(
        &mut self,
        given: Option<Spanned<Vec<Spanned<Text<Vtep>>>>>,
        local: IpAddr,
    ) -> Vec<IpAddr> {
        let mut peers = Vec::new();
        for item in given.map(Spanned::into_inner).unwrap_or_default() {
            let (span, Text(Vtep(peer))) = (item.span(), item.into_inner());
            let problem = if peer == local {
                Some(format!("{VALUE} is this host's own address; leave it out"))
            } else if peer.is_ipv4() != local.is_ipv4() {
                Some(format!("{VALUE} is of another family than local; give addresses of one"))
            } else if peers.contains(&peer) {
                Some(format!("{VALUE} is listed twice; give each address once"))
            } else {
                None
            };
            match problem {
                Some(problem) => self.problems.add(self.place.path, "peers", &span, problem),
                None => peers.push(peer),
            }
        }
        peers
    }

    fn macs(
        &mut self,
        given: Option<Spanned<Vec<Spanned<Text<StaticMac>>>>>,
        peers: &[IpAddr],
        single: bool,
    ) -> Vec<(Mac, IpAddr)> {
        let Some(given) = given else { return Vec::new() };
        if !single {
            let problem = "only an overlay with one vni can have it; leave it out";
            self.problems.add(self.place.path, "macs", &given.span(), problem);
        }
        let mut macs: Vec<(Mac, IpAddr)> = Vec::new();
        for item in given.into_inner() {
            let (span, Text(StaticMac { mac, vtep })) = (item.span(), item.into_inner());
            if !peers.contains(&vtep) {
                let problem = format!("{vtep} is none of the peers; add it to peers");
                self.problems.add(self.place.path, "macs", &span, problem);
            } else if macs.iter().any(|(other, _)| *other == mac) {
                let problem = format!("{mac} is listed twice; give each address once");
                self.problems.add(self.place.path, "macs", &span, problem);
            } else {
                macs.push((mac, vtep));
            }
        }
        macs
    }
}

#[cfg(test)]
mod tests;
