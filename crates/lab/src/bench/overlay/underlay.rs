//! Two hosts and the wire between them.

use crate::guest::{GuestError, Namespace};

/// The addresses of the hosts.
pub(super) const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
/// The VXLAN network identifier.
pub(super) const VNI: u32 = 100;

/// The interface of a host.
const INTERFACE: &str = "e0";

/// How the wire takes long frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    /// A frame to be segmented passes in one piece, as a virtual interface lets it.
    Unsegmented,
    /// Frames are segmented by the sender's kernel at the latest, and may be merged by the
    /// receiver's, as with a card that has no segmentation.
    Segmented,
}

/// Two hosts: network namespaces with an address each.
#[derive(Debug)]
pub(super) struct Underlay {
    pub(super) hosts: [Namespace; 2],
}

impl Underlay {
    /// Makes the hosts, and lays the wire.
    pub(super) fn lay(wire: Wire) -> Result<Underlay, GuestError> {
        let hosts = [Namespace::new()?, Namespace::new()?];
        let far = hosts[1].id();
        hosts[0]
            .ip(&format!("link add {INTERFACE} type veth peer name {INTERFACE} netns {far}"))?;
        for (host, address) in hosts.iter().zip(ADDRESSES) {
            if wire == Wire::Segmented {
                host.run("ethtool", segmented())?;
            }
            host.ip(&format!("address add {address}/24 dev {INTERFACE}\nlink set {INTERFACE} up"))?;
        }
        Ok(Underlay { hosts })
    }
}

/// Words for `ethtool`.
fn segmented() -> Vec<&'static str> {
    let off =
        ["tso", "tx-udp-segmentation", "tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"];
    let mut words = vec!["-K", INTERFACE];
    words.extend(off.into_iter().flat_map(|feature| [feature, "off"]));
    words.extend(["gro", "on"]);
    words
}
