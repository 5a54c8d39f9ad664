//! Two hosts in one switch: each has a bridge with a guest, and a bridge with one end of a wire. A
//! VXLAN tunnel goes over the wire, and the switch itself encapsulates.
//!
//! The switch takes addresses of its bridges from the kernel. An address of the other host is one of
//! the same kernel, so both hosts reach each other by a gateway that does not exist.

use super::{Appctl, OvsError, Vsctl};
use crate::guest::Namespace;

/// The ports of both guests, and the names of their sockets.
pub(super) const GUESTS: [&str; 2] = ["guest0", "guest1"];

/// A host.
struct Host {
    number: usize,
}

impl Host {
    /// Its bridge with the guest.
    fn inside(&self) -> String {
        format!("inside{}", self.number)
    }

    /// Its bridge with the end of the wire.
    fn outside(&self) -> String {
        format!("outside{}", self.number)
    }

    /// The device that is its end of the wire.
    fn device(&self) -> String {
        format!("wire{}", self.number)
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
        let (inside, outside, number) = (self.inside(), self.outside(), self.number);
        vsctl.add_bridge(&outside)?;
        let mac = format!("other_config:hwaddr=\"{}\"", self.mac());
        vsctl.run(&["set", "bridge", &outside, &mac])?;
        let driver = format!("options:dpdk-devargs=net_af_xdp{number},iface={}", self.device());
        vsctl.add_port(&outside, &format!("end{number}"), &["type=dpdk", &driver])?;
        vsctl.add_bridge(&inside)?;
        vsctl.add_port(&inside, GUESTS[number], &["type=dpdkvhostuser"])?;
        let remote = format!("options:remote_ip={}", far.address());
        let tunnel = ["type=vxlan", &remote, "options:key=100"];
        vsctl.add_port(&inside, &format!("tunnel{number}"), &tunnel)
    }

    /// The commands of `ip` that give the host its address. Without the kernel's local route, the
    /// switch sends frames for the address over the wire.
    fn addressing(&self) -> String {
        let (outside, address) = (self.outside(), self.address());
        format!(
            "address add {address}/24 dev {outside}\n\
             link set {outside} up\n\
             route del local {address} dev {outside} table local\n"
        )
    }

    /// Tells the switch how this host reaches the other one.
    fn route(&self, far: &Host, appctl: &Appctl) -> Result<(), OvsError> {
        let (outside, gateway, remote) = (self.outside(), self.gateway(), far.address());
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
    let [near, far] = [0, 1].map(|number| hosts[number].device());
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
