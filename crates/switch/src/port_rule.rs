//! The configuration of a port, and why the switch refuses one.

use frame::Mac;

use crate::port_id::PortId;
use crate::station::Station;
use crate::vlan::Vlan;

/// The configuration of a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortRule {
    /// The networks that it is in.
    pub vlan: Vlan,
    /// The only source address that the port may use, and that no other port of its networks may
    /// use.
    pub mac: Option<Mac>,
}

impl PortRule {
    /// The stations that are locked to the port: its address, in each of its networks.
    pub(crate) fn locked(&self) -> impl Iterator<Item = Station> {
        let networks = move |mac| self.vlan.networks().map(move |network| Station { network, mac });
        self.mac.into_iter().flat_map(networks)
    }
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
