//! Two hosts in one switch: each has a bridge with a guest, and a bridge with one end of a wire. A
//! VXLAN tunnel goes over the wire, and the switch itself encapsulates.
//!
//! The switch takes addresses of its bridges from the kernel. An address of the other host is one
//! of the same kernel, so both hosts reach each other by a gateway that does not exist.

use super::{Appctl, OvsError, Vsctl};
use crate::guest::Namespace;

/// The ports of both guests, and the names of their sockets.
pub(super) const GUESTS: [&str; 2] = ["guest0", "guest1"];

/// A host's bridge with the guest, its bridge with the end of the wire, and the device that is the
/// end of the wire.
const INSIDE: &str = "inside";
const OUTSIDE: &str = "outside";
const WIRE: &str = "wire";

/// A host.
struct Host {
    number: usize,
}

impl Host {
    /// The name of its bridge, port or device of this kind.
    fn named(&self, kind: &str) -> String {
        format!("{kind}{}", self.number)
    }

    /// The tunnel's end.
    fn address(&self) -> String {
        format!("10.9.{}.1", self.number)
    }

    /// The way to the other host.
    fn gateway(&self) -> String {
        format!("10.9.{}.254", self.number)
    }

    fn mac(&self) -> String {
        format!("52:54:00:00:09:0{}", self.number)
    }

    /// Makes the bridges and their ports, without addresses.
    fn make(&self, far: &Host, vsctl: &Vsctl) -> Result<(), OvsError> {
        let (inside, outside, number) = (self.named(INSIDE), self.named(OUTSIDE), self.number);
        vsctl.add_bridge(&outside)?;
        let mac = format!("other_config:hwaddr=\"{}\"", self.mac());
        vsctl.run(&["set", "bridge", &outside, &mac])?;
        let driver = format!("options:dpdk-devargs=net_af_xdp{number},iface={}", self.named(WIRE));
        vsctl.add_port(&outside, &self.named("end"), &["type=dpdk", &driver])?;
        vsctl.add_bridge(&inside)?;
        vsctl.add_port(&inside, GUESTS[number], &["type=dpdkvhostuser"])?;
        let remote = format!("options:remote_ip={}", far.address());
        let tunnel = ["type=vxlan", &remote, "options:key=100"];
        vsctl.add_port(&inside, &self.named("tunnel"), &tunnel)
    }

    /// The commands of `ip` that give the host its address. Without the kernel's local route, the
    /// switch sends frames for the address over the wire.
    fn addressing(&self) -> String {
        let (outside, address) = (self.named(OUTSIDE), self.address());
        format!(
            "address add {address}/24 dev {outside}\n\
             link set {outside} up\n\
             route del local {address} dev {outside} table local\n"
        )
    }

    /// Tells the switch how this host reaches the other one.
    fn route(&self, far: &Host, appctl: &Appctl) -> Result<(), OvsError> {
        let (outside, gateway, remote) = (self.named(OUTSIDE), self.gateway(), far.address());
        appctl.run(&["ovs/route/add", &format!("{remote}/32"), &outside, &gateway])?;
        appctl.run(&["tnl/neigh/set", &outside, &gateway, &far.mac()])
    }
}

/// Makes the hosts, the wire and the tunnel.
pub(super) fn configure(
    vsctl: &Vsctl,
    appctl: &Appctl,
    namespace: &Namespace,
) -> Result<(), OvsError> {
    let hosts = [Host { number: 0 }, Host { number: 1 }];
    let [near, far] = [0, 1].map(|number| hosts[number].named(WIRE));
    namespace.ip(&format!(
        "link add {near} type veth peer name {far}\nlink set {near} up\nlink set {far} up"
    ))?;
    let [a, b] = &hosts;
    for (host, other) in [(a, b), (b, a)] {
        host.make(other, vsctl)?;
    }
    namespace.ip(&(a.addressing() + &b.addressing()))?;
    a.route(b, appctl).and_then(|()| b.route(a, appctl))
}
