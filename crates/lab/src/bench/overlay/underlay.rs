//! Two hosts and the wire between them.

use crate::guest::{GuestError, Namespace};

/// The addresses of the hosts on the wire.
pub(super) const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
/// The addresses that each host routes to a TAP device.
const ROUTED: [&str; 2] = ["10.9.1.1", "10.9.1.2"];
/// The name of that device.
const DEVICE: &str = "rm-net";
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

/// What carries datagrams between Ringmain and the kernel of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// UDP sockets.
    Udp,
    /// A TAP device, which takes frames to be segmented whole.
    Tap,
    /// Queues of the interface, by AF_XDP.
    Xdp,
}

impl Transport {
    /// The addresses of the tunnel's ends.
    pub(super) fn addresses(self) -> [&'static str; 2] {
        match self {
            Transport::Udp | Transport::Xdp => ADDRESSES,
            Transport::Tap => ROUTED,
        }
    }

    /// Lines of an overlay's configuration.
    pub(super) fn config(self) -> String {
        match self {
            Transport::Udp => String::new(),
            Transport::Xdp => format!("underlay = \"xdp\"\ndevice = \"{INTERFACE}\"\n"),
            Transport::Tap => format!("underlay = \"tap\"\ndevice = \"{DEVICE}\"\n"),
        }
    }
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

    /// Makes the hosts forward packets between the wire and the devices that they route to.
    pub(super) fn forward(&self) -> Result<(), GuestError> {
        for (number, host) in self.hosts.iter().enumerate() {
            host.run("sysctl", ["-qw", "net.ipv4.ip_forward=1"])?;
            host.run("ethtool", ["-K", INTERFACE, "rx-udp-gro-forwarding", "on"])?;
            let [far, gateway] = [ROUTED[1 - number], ADDRESSES[1 - number]];
            host.ip(&format!("route add {far} via {gateway}"))?;
        }
        Ok(())
    }
}

/// Words for `ethtool`.
fn segmented() -> [&'static str; 6] {
    ["-K", INTERFACE, "tx", "off", "gro", "on"]
}
