//! The networks of overlays, as the switch knows them.

use switch::Network;

/// The group of all ends of tunnels: nothing goes from one into another, whatever their overlay.
pub const TUNNELS: u16 = 0;

/// The network of the switch that a virtual network is; `None`: the untagged one.
pub fn network(vlan: Option<u16>) -> Network {
    vlan.and_then(Network::vlan).unwrap_or(Network::UNTAGGED)
}
