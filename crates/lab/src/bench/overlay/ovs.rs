//! Two hosts of OVS-DPDK, which encapsulates by itself. The guests are vhost-user ports.
//!
//! The switch reads and writes the wire by AF_XDP. Guests have to segment for themselves:
//! this version of the switch carries no long frames through tunnels.

use super::frames::Traffic;
use super::point::OverlayPoint;
use super::station_guests::StationGuests;
use super::traffic::{self, Carried, Payers};
use crate::bench::BenchError;
use crate::ovs::Ovs;

/// Two hosts, which are suspended except while they carry frames: the switch polls.
pub(super) struct OvsHosts(Ovs);

impl OvsHosts {
    /// Makes the hosts, which one thread on CPU `worker` serves.
    pub(super) fn start(worker: usize, other: usize) -> Result<OvsHosts, BenchError> {
        let ovs = Ovs::start_tunnel(worker, other)?;
        ovs.let_run(false);
        Ok(OvsHosts(ovs))
    }

    /// Carries the frames of a point. An error is one line.
    pub(super) fn carry(
        &self,
        overlay: &OverlayPoint,
        seconds: f64,
        cpu: usize,
    ) -> Result<Carried, String> {
        self.0.let_run(true);
        let carried = self.carry_now(overlay.traffic, seconds, cpu);
        self.0.let_run(false);
        carried
    }

    fn carry_now(&self, traffic: Traffic, seconds: f64, cpu: usize) -> Result<Carried, String> {
        let own = if traffic.tso { Traffic::SEGMENTED } else { traffic };
        let sockets = self.0.sockets().try_into().map_err(|_| "the tunnel has two guests")?;
        let mut guests = StationGuests::connect(&sockets, own, 0)?;
        let payers = Payers::Daemons(vec![self.0.id()]);
        let carried = traffic::carry(&mut guests, own, payers, seconds, cpu)?;
        Ok(carried.counted_as(own, traffic))
    }
}
