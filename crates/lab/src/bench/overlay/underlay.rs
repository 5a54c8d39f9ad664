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
/// The interfaces at both ends of the wire, where they are in one namespace, and their addresses.
const ENDS: [&str; 2] = ["e0", "e1"];
const MACS: [&str; 2] = ["52:54:00:00:09:00", "52:54:00:00:09:01"];

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

    /// Lines of the configuration of host `number`'s overlay.
    pub(super) fn config(self, number: usize) -> String {
        match self {
            Transport::Udp => String::new(),
            Transport::Xdp => format!("underlay = \"xdp\"\ndevice = \"{}\"\n", ENDS[number]),
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

/// A namespace with both ends of a wire. Each end has the address of a host, and reaches the
/// other one over the wire: the kernel does not take the addresses for its own.
pub(super) fn both_ends() -> Result<Namespace, GuestError> {
    let namespace = Namespace::new()?;
    let [(a, a_mac), (b, b_mac)] = [0, 1].map(|end| (ENDS[end], MACS[end]));
    namespace
        .ip(&format!("link add {a} address {a_mac} type veth peer name {b} address {b_mac}"))?;
    for (end, address) in ENDS.iter().zip(ADDRESSES) {
        namespace.ip(&format!(
            "address add {address}/32 dev {end}\n\
             link set {end} up\n\
             route del local {address} dev {end} table local"
        ))?;
    }
    for (end, far) in [(0, 1), (1, 0)] {
        let (end, address, mac) = (ENDS[end], ADDRESSES[far], MACS[far]);
        namespace.ip(&format!(
            "route add {address}/32 dev {end}\n\
             neighbour add {address} lladdr {mac} nud permanent dev {end}"
        ))?;
    }
    Ok(namespace)
}

/// Words for `ethtool`.
fn segmented() -> [&'static str; 6] {
    ["-K", INTERFACE, "tx", "off", "gro", "on"]
}
