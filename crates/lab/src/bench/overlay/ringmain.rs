//! Hosts with a daemon each. The guests are vhost-user ports.

use std::path::Path;

use vhost_user::net::feature::bit;

use super::point::OverlayPoint;
use super::station_guests::StationGuests;
use super::traffic::{self, Carried, Payers};
use super::underlay::{Transport, Underlay, VNI, Wire};
use crate::bench::BenchError;
use crate::daemon::Daemon;

/// The name of a host's port.
const PORT: &str = "guest";

/// Two hosts.
pub(super) struct RingmainHosts {
    // Dropped in this order: the daemons run in the hosts.
    daemons: [Daemon; 2],
    _underlay: Underlay,
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
        let underlay = Underlay::lay(wire)?;
        if transport == Transport::Tap {
            underlay.forward()?;
        }
        let [a, b] = &underlay.hosts;
        let start = |host, number: usize| {
            Daemon::start(binary, |dir| config(dir, number, cpu, transport), Some(host))
        };
        let daemons = [start(a, 0)?, start(b, 1)?];
        Ok(RingmainHosts { daemons, _underlay: underlay })
    }

    /// Carries the frames of a point. An error is one line.
    pub(super) fn carry(
        &self,
        overlay: &OverlayPoint,
        seconds: f64,
        cpu: usize,
    ) -> Result<Carried, String> {
        let features = bit::CSUM | bit::HOST_TSO4 | bit::GUEST_CSUM | bit::GUEST_TSO4;
        let sockets =
            [0, 1].map(|host: usize| self.daemons[host].dir().join(PORT).with_extension("sock"));
        let mut guests = StationGuests::connect(&sockets, overlay.traffic, features)?;
        let payers = Payers::Daemons(self.daemons.iter().map(Daemon::id).collect());
        traffic::carry(&mut guests, overlay.traffic, payers, seconds, cpu)
    }
}

fn config(dir: &Path, number: usize, cpu: usize, transport: Transport) -> String {
    let addresses = transport.addresses();
    let socket = dir.join(PORT).with_extension("sock");
    format!(
        "[workers]\ncount = 1\ncpus = [{cpu}]\n\
         [[port]]\nname = \"{PORT}\"\nkind = \"vhost-user\"\nsocket = \"{}\"\n\
         [[overlay]]\nname = \"net\"\nvni = {VNI}\nlocal = \"{}\"\npeers = [\"{}\"]\n{}",
        socket.display(),
        addresses[number],
        addresses[1 - number],
        transport.config(),
    )
}
