//! The networks of overlays in the switch.

use switch::Network;

/// The group of all ends of tunnels. No frame goes from one tunnel into another, in any overlay.
pub const TUNNELS: u16 = 0;

/// The switch's network of a virtual network. `vlan` is `None` for the untagged one.
pub fn network(vlan: Option<u16>) -> Network {
    vlan.and_then(Network::vlan).unwrap_or(Network::UNTAGGED)
}
