//! Hosts of Ringmain. The guests are vhost-user ports.

use std::path::{Path, PathBuf};

use vhost_user::net::feature::bit;

use super::point::OverlayPoint;
use super::station_guests::StationGuests;
use super::traffic::{self, Carried, Payers};
use super::underlay::{self, Transport, Underlay, VNI, Wire};
use crate::bench::BenchError;
use crate::daemon::Daemon;
use crate::guest::Namespace;

/// The name of a host's port.
const PORT: &str = "guest";

/// Two hosts.
pub(super) struct RingmainHosts {
    // Dropped in this order: the daemons run in the namespaces.
    daemons: Vec<Daemon>,
    sockets: [PathBuf; 2],
    _namespaces: Vec<Namespace>,
}

impl RingmainHosts {
    /// Makes the hosts, whose workers share CPU `cpu`, as one thread of OVS-DPDK serves both of its
    /// hosts there. A worker beside the generator would poll while that runs, and the polling would
    /// count as work.
    pub(super) fn start(
        binary: &Path,
        wire: Wire,
        transport: Transport,
        cpu: usize,
    ) -> Result<RingmainHosts, BenchError> {
        match transport {
            Transport::Xdp => RingmainHosts::in_one(binary, cpu),
            Transport::Udp | Transport::Tap => RingmainHosts::apart(binary, wire, transport, cpu),
        }
    }

    /// A daemon for each host.
    fn apart(
        binary: &Path,
        wire: Wire,
        transport: Transport,
        cpu: usize,
    ) -> Result<RingmainHosts, BenchError> {
        let underlay = Underlay::lay(wire)?;
        if transport == Transport::Tap {
            underlay.forward()?;
        }
        let [a, b] = &underlay.hosts;
        let start = |namespace, number: usize| {
            let config = |dir: &Path| workers(cpu) + &host(dir, number, transport, None);
            Daemon::start(binary, config, Some(namespace))
        };
        let daemons = vec![start(a, 0)?, start(b, 1)?];
        let sockets = [0, 1].map(|number| socket(daemons[number].dir(), number));
        Ok(RingmainHosts { daemons, sockets, _namespaces: underlay.hosts.into() })
    }

    /// One daemon that is both hosts, each in a VLAN of its own, with one end of the wire each. The
    /// kernel's network stack takes no part, so one namespace is enough.
    fn in_one(binary: &Path, cpu: usize) -> Result<RingmainHosts, BenchError> {
        let namespace = underlay::both_ends()?;
        let host = |dir: &Path, number: usize| host(dir, number, Transport::Xdp, Some(number + 1));
        let config = |dir: &Path| workers(cpu) + &host(dir, 0) + &host(dir, 1);
        let daemons = vec![Daemon::start(binary, config, Some(&namespace))?];
        let sockets = [0, 1].map(|number| socket(daemons[0].dir(), number));
        Ok(RingmainHosts { daemons, sockets, _namespaces: vec![namespace] })
    }

    /// Carries the frames of a point. An error is one line.
    pub(super) fn carry(
        &self,
        overlay: &OverlayPoint,
        seconds: f64,
        cpu: usize,
    ) -> Result<Carried, String> {
        let features = bit::CSUM | bit::HOST_TSO4 | bit::GUEST_CSUM | bit::GUEST_TSO4;
        let mut guests = StationGuests::connect(&self.sockets, overlay.traffic, features)?;
        let payers = Payers::Daemons(self.daemons.iter().map(Daemon::id).collect());
        traffic::carry(&mut guests, overlay.traffic, payers, seconds, cpu)
    }
}

/// The socket of the port of host `number`.
fn socket(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("{PORT}{number}.sock"))
}

fn workers(cpu: usize) -> String {
    format!("[workers]\ncount = 1\ncpus = [{cpu}]\n")
}

/// The port and the overlay of host `number`, in a VLAN.
fn host(dir: &Path, number: usize, transport: Transport, vlan: Option<usize>) -> String {
    let addresses = transport.addresses();
    let vlan = vlan.map(|vlan| format!("vlan = {vlan}\n")).unwrap_or_default();
    format!(
        "[[port]]\nname = \"{PORT}{number}\"\nkind = \"vhost-user\"\nsocket = \"{}\"\n{vlan}\
         [[overlay]]\nname = \"net{number}\"\nvni = {VNI}\nlocal = \"{}\"\npeers = [\"{}\"]\n{}\
         {vlan}",
        socket(dir, number).display(),
        addresses[number],
        addresses[1 - number],
        transport.config(number),
    )
}
