//! The VTEPs of each network, and the port that stands for each.

use std::collections::HashMap;
use std::net::IpAddr;

use frame::Vni;
use frame::vxlan::read_header;
use switch::PortId;

use crate::refusal::Refusal;

/// Most VTEPs of all networks together. Each is a port of the switch.
pub const MAX_VTEPS: usize = 2048;

/// Why a VTEP was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VtepError {
    /// It is this host's own.
    #[error("{0} is this host's own address")]
    Own(IpAddr),
    /// Its address family differs from that of this host's VTEP.
    #[error("{0} is no address of the family of the local one")]
    Family(IpAddr),
    /// No host has such an address.
    #[error("{0} is not the address of one host")]
    NotUnicast(IpAddr),
    /// The network has it already.
    #[error("{0} is a peer of the network already")]
    Taken(IpAddr),
    /// There are as many as there can be.
    #[error("there are {MAX_VTEPS} peers already")]
    Full,
}

/// The VTEPs of all networks of one underlay.
#[derive(Clone, Debug)]
pub struct VtepTable {
    local: IpAddr,
    // The default hasher is keyed, so a hostile host cannot cause collisions.
    ports: HashMap<(Vni, IpAddr), PortId>,
    /// Peers of each network.
    networks: HashMap<Vni, usize>,
}

impl VtepTable {
    /// A table without networks; `local` is this host's own VTEP.
    pub fn new(local: IpAddr) -> VtepTable {
        VtepTable { local, ports: HashMap::new(), networks: HashMap::new() }
    }

    /// This host's own VTEP.
    pub fn local(&self) -> IpAddr {
        self.local
    }

    /// Adds a network, which may have no peer yet.
    pub fn add_network(&mut self, vni: Vni) {
        self.networks.entry(vni).or_insert(0);
    }

    /// Adds a peer of a network; `port` stands for it.
    ///
    /// # Errors
    /// When the address cannot be that of a peer, or there are too many.
    pub fn add(&mut self, vni: Vni, vtep: IpAddr, port: PortId) -> Result<(), VtepError> {
        self.check(vni, vtep)?;
        self.ports.insert((vni, vtep), port);
        *self.networks.entry(vni).or_insert(0) += 1;
        Ok(())
    }

    /// Whether a peer could be added.
    ///
    /// # Errors
    /// The reason why it could not be added.
    pub fn check(&self, vni: Vni, vtep: IpAddr) -> Result<(), VtepError> {
        let broadcast = matches!(vtep, IpAddr::V4(v4) if v4.is_broadcast());
        if vtep.is_unspecified() || vtep.is_multicast() || broadcast {
            return Err(VtepError::NotUnicast(vtep));
        }
        if vtep.is_ipv4() != self.local.is_ipv4() {
            return Err(VtepError::Family(vtep));
        }
        if vtep == self.local {
            return Err(VtepError::Own(vtep));
        }
        if self.ports.contains_key(&(vni, vtep)) {
            return Err(VtepError::Taken(vtep));
        }
        if self.ports.len() >= MAX_VTEPS { Err(VtepError::Full) } else { Ok(()) }
    }

    /// Removes a peer. Returns the port that stood for it, if there was one.
    pub fn remove(&mut self, vni: Vni, vtep: IpAddr) -> Option<PortId> {
        let port = self.ports.remove(&(vni, vtep))?;
        if let Some(peers) = self.networks.get_mut(&vni) {
            *peers -= 1;
        }
        Some(port)
    }

    /// The port that a datagram of a network came in on.
    ///
    /// # Errors
    /// [`Refusal::UnknownVni`], [`Refusal::UnknownVtep`].
    pub fn ingress(&self, vni: Vni, source: IpAddr) -> Result<PortId, Refusal> {
        match self.ports.get(&(vni, source)) {
            Some(port) => Ok(*port),
            None if self.networks.contains_key(&vni) => Err(Refusal::UnknownVtep),
            None => Err(Refusal::UnknownVni),
        }
    }

    /// The port that a datagram of `len` bytes from `source` came in on, which starts with `head`.
    ///
    /// # Errors
    /// The reason why it is refused.
    pub fn admit(&self, source: IpAddr, head: &[u8], len: usize) -> Result<PortId, Refusal> {
        self.ingress(read_header(head, len)?, source)
    }
}

#[cfg(test)]
mod tests;
