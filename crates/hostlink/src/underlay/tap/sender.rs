//! Frames to be segmented, which the TAP device takes whole.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use frame::vnet::tunnel;
use frame::vxlan::outer::{Covered, Ends, Prefix, Template, UDP_LEN};
use frame::vxlan::{VXLAN_LEN, source_port};
use frame::{Offload, Vni};
use network::packet::Packet;
use ring::GrantCopyBatch;
use ring::gather::Body;

use super::super::HOPS;
use super::MAC;
use crate::staging::Staging;

/// Sends to one VTEP in one network.
pub(in super::super) struct TapSender {
    fd: Arc<OwnedFd>,
    /// What its headers share.
    tunnel: Prefix,
    /// Created when first needed.
    staging: Option<Box<Staging>>,
}

impl TapSender {
    /// A sender from `local` to `peer`; `None`: they are of different families.
    pub fn new(fd: Arc<OwnedFd>, local: SocketAddr, peer: IpAddr, vni: Vni) -> Option<TapSender> {
        let ends = Ends::new(local.ip(), peer)?;
        // The frame is for the host itself, which routes the packet in it.
        let template = Template { link: (MAC, MAC), ends, port: local.port(), ttl: HOPS, vni };
        Some(TapSender { fd, tunnel: template.prefix(), staging: None })
    }

    /// Sends a frame to be segmented, of the flow with this hash.
    ///
    /// # Errors
    /// The kernel's error; `InvalidData`: the frame cannot be sent.
    pub fn send(
        &mut self,
        packet: &Packet<'_>,
        hash: u32,
        grant_copies: &mut GrantCopyBatch,
    ) -> io::Result<()> {
        if !packet.body.is_granted() {
            return self.write(packet, packet.body, hash);
        }
        let staging = self.staging.take().or_else(Staging::new);
        let mut staging = staging.ok_or(io::ErrorKind::OutOfMemory)?;
        let written = match staging.bring(packet.body) {
            Ok(body) => self.write(packet, body, hash),
            Err(status) => {
                grant_copies.fail_sender(status);
                Err(io::ErrorKind::InvalidData.into())
            }
        };
        self.staging = Some(staging);
        written
    }

    fn write(&self, packet: &Packet<'_>, body: Body<'_>, hash: u32) -> io::Result<()> {
        let outer = self.tunnel.headers(source_port(hash), packet.len() as usize, Covered::Open);
        let outer = outer.map_err(io::Error::other)?;
        let outer = outer.as_slice();
        let udp_at = outer.len() - UDP_LEN - VXLAN_LEN;
        let offload: &Offload = packet.offload;
        let (outer_len, udp_at) = (outer.len() as u16, udp_at as u16);
        let header =
            tunnel::encode(offload, packet.headers_len, outer_len, udp_at, self.tunnel.is_v6());
        body.write_to(self.fd.as_fd(), &[&header, outer, packet.head]).map(drop)
    }
}
