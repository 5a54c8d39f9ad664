//! Hosts with a daemon each. The guests are vhost-user ports.

use std::path::Path;

use ring::driver::Piece;
use vhost_user::net::feature::bit;

use super::frames::{NUMBERS, Traffic, VARYING};
use super::guests::Guests;
use super::point::OverlayPoint;
use super::traffic::{self, Carried, Payers};
use super::underlay::{ADDRESSES, Underlay, VNI, Wire};
use crate::bench::BenchError;
use crate::daemon::Daemon;
use crate::isolation::neighbour;
use crate::isolation::station::{Station, StationSpec, VNET};

/// The name of a host's port.
const PORT: &str = "guest";
/// Descriptors of a ring.
const RING: u16 = 1024;

/// Two hosts.
pub(super) struct RingmainHosts {
    // Dropped in this order: the daemons run in the hosts.
    daemons: [Daemon; 2],
    _underlay: Underlay,
}

/// The guests of a run.
struct StationGuests {
    sender: Station,
    receiver: Station,
    /// Bytes of a frame, `virtio_net_hdr` included.
    len: u32,
    /// The frame that is being received.
    incoming: Incoming,
}

/// A frame that may fill several buffers.
#[derive(Default)]
struct Incoming {
    /// Buffers that are still to come.
    buffers: u16,
    /// Whether the frame is one of the sender's.
    counts: bool,
}

impl RingmainHosts {
    /// Makes the hosts. `cpus`: of the worker of the sending host, and of the receiving one.
    pub(super) fn start(
        binary: &Path,
        wire: Wire,
        cpus: [usize; 2],
    ) -> Result<RingmainHosts, BenchError> {
        let underlay = Underlay::lay(wire)?;
        let [a, b] = &underlay.hosts;
        let start = |host, number: usize| {
            Daemon::start(binary, |dir| config(dir, number, cpus[number]), Some(host))
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
        let frame = overlay.traffic.frame();
        let spec = StationSpec {
            ring: RING,
            tx_buffer: frame.len() as u64,
            tx_buffers: overlay.traffic.window() as u16,
            features: bit::CSUM | bit::HOST_TSO4 | bit::GUEST_CSUM | bit::GUEST_TSO4,
            rx_buffer: if overlay.traffic.tso { 4096 } else { 2048 },
            ..StationSpec::default()
        };
        let connect = |host: usize| {
            let socket = self.daemons[host].dir().join(PORT).with_extension("sock");
            Station::connect(&socket, &spec)
        };
        let prepare = || {
            let [mut sender, mut receiver] = [connect(0)?, connect(1)?];
            receiver.post(0, usize::MAX);
            neighbour::announce(&mut receiver, NUMBERS[1])?;
            neighbour::announce(&mut sender, NUMBERS[0])?;
            sender.fill(&frame);
            let len = frame.len() as u32;
            Ok(StationGuests { sender, receiver, len, incoming: Incoming::default() })
        };
        let mut guests = prepare().map_err(in_a_line)?;
        let payers = Payers::Daemons([self.daemons[0].id(), self.daemons[1].id()]);
        traffic::carry(&mut guests, overlay.traffic, payers, seconds, cpu)
    }
}

fn config(dir: &Path, number: usize, cpu: usize) -> String {
    let socket = dir.join(PORT).with_extension("sock");
    format!(
        "[workers]\ncount = 1\ncpus = [{cpu}]\n\
         [[port]]\nname = \"{PORT}\"\nkind = \"vhost-user\"\nsocket = \"{}\"\n\
         [[overlay]]\nname = \"net\"\nvni = {VNI}\nlocal = \"{}\"\npeers = [\"{}\"]\n",
        socket.display(),
        ADDRESSES[number],
        ADDRESSES[1 - number],
    )
}

fn in_a_line(error: vhost_user_driver::DriverError) -> String {
    error.to_string()
}

impl Guests for StationGuests {
    fn send(&mut self, traffic: Traffic, first: u64, count: usize) -> Result<usize, String> {
        self.sender.reclaim(0).map_err(in_a_line)?;
        let mut sent = 0;
        while sent < count {
            let Some(addr) = self.sender.buffer(0) else { break };
            let (bytes, len) = traffic.varying(first + sent as u64);
            self.sender.write(addr + VARYING as u64, &bytes[..len]);
            if !self.sender.send(0, addr, &[Piece { addr, len: self.len }]) {
                break;
            }
            sent += 1;
        }
        if sent > 0 {
            self.sender.publish(0);
        }
        Ok(sent)
    }

    fn receive(&mut self, traffic: Traffic) -> Result<u64, String> {
        let (incoming, mut payload) = (&mut self.incoming, 0);
        let count = self.receiver.receive(0, |guest, addr, len| {
            if incoming.buffers > 0 {
                incoming.buffers -= 1;
                payload += if incoming.counts { u64::from(len) } else { 0 };
                return;
            }
            let mut head = [0; VNET + 6];
            if guest.memory().read(addr, &mut head).is_err() {
                return;
            }
            *incoming = Incoming {
                buffers: u16::from_le_bytes([head[10], head[11]]).saturating_sub(1),
                counts: head[VNET..] == neighbour::address(NUMBERS[1]),
            };
            let data = u64::from(len).saturating_sub((VNET + traffic.headers()) as u64);
            payload += if incoming.counts { data } else { 0 };
        });
        if count.map_err(in_a_line)? > 0 {
            self.receiver.post(0, usize::MAX);
        }
        Ok(payload)
    }
}
