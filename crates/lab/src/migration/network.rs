//! The network between two hosts, with a place in it to which guests send.

use serde::Serialize;

use super::LIMIT;
use crate::frr::{Frr, Programs};
use crate::guest::{Deadline, GuestError, Namespace};

/// The address of the hosts' network, to which guests send.
pub const HOST: &str = "10.77.0.100";
/// The addresses of the hosts, and of the kernel's host, on the underlay.
const UNDERLAY: [&str; 3] = ["10.9.0.1", "10.9.0.2", "10.9.0.3"];
/// The number of the kernel's host.
const KERNEL: usize = 2;
/// The VXLAN network identifier.
const VNI: u32 = 100;
/// The longest packet that fits into a tunnel over Ethernet, in bytes.
const TUNNEL_MTU: u16 = 1450;

/// What is between the hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Between {
    /// A bridge, with a TAP device of each daemon.
    #[default]
    Bridge,
    /// VXLAN with static peers. Guests send to a third host, whose VXLAN device and bridge are the
    /// kernel's.
    Vxlan,
    /// The same with EVPN by FRR on all three hosts.
    Evpn,
}

/// The network.
#[derive(Debug)]
pub struct Network {
    between: Between,
    /// FRR of all hosts.
    frr: Vec<Frr>,
    /// The hosts with daemons, unless they are in the same place as the end.
    hosts: Vec<Namespace>,
    end: Namespace,
    _wire: Option<Namespace>,
}

impl Network {
    /// Makes all of it that does not need the daemons.
    ///
    /// # Errors
    /// When namespaces or devices cannot be made.
    pub fn lay(between: Between) -> Result<Network, GuestError> {
        let end = Namespace::new()?;
        end.ip("link add br0 type bridge")?;
        let mut network = Network { between, frr: Vec::new(), hosts: Vec::new(), end, _wire: None };
        if between != Between::Bridge {
            network.hosts = vec![Namespace::new()?, Namespace::new()?];
            network._wire = Some(Namespace::wire(network.on_wire())?);
            network.make_tunnels()?;
        }
        network.end.ip(&format!("addr add {HOST}/24 dev br0\nlink set br0 up"))?;
        Ok(network)
    }

    /// The hosts on the wire, and their addresses there.
    fn on_wire(&self) -> Vec<(&Namespace, &'static str)> {
        self.hosts.iter().chain([&self.end]).zip(UNDERLAY).collect()
    }

    /// Makes the devices of the kernel's host.
    fn make_tunnels(&self) -> Result<(), GuestError> {
        let local = UNDERLAY[KERNEL];
        // With EVPN, FRR says where addresses are, and neither device learns from frames.
        let (learning, bridge_learning) = match self.between {
            Between::Evpn => ("nolearning", "off"),
            Between::Bridge | Between::Vxlan => ("learning", "on"),
        };
        self.end.ip(&format!(
            "link set br0 addrgenmode none\n\
             link add vx0 type vxlan id {VNI} dstport 4789 local {local} {learning}\n\
             link set vx0 addrgenmode none\nlink set vx0 master br0 up\n\
             link set vx0 type bridge_slave learning {bridge_learning}"
        ))?;
        if self.between == Between::Vxlan {
            for peer in &UNDERLAY[..KERNEL] {
                let row = ["fdb", "append", "00:00:00:00:00:00", "dev", "vx0", "dst", peer];
                self.end.run("bridge", row)?;
            }
        }
        Ok(())
    }

    /// The place in which the daemon of a host runs.
    pub fn host(&self, number: usize) -> &Namespace {
        self.hosts.get(number).unwrap_or(&self.end)
    }

    /// The place to which guests send.
    pub fn end(&self) -> &Namespace {
        &self.end
    }

    /// The longest packet that guests may send, in bytes.
    pub fn mtu(&self) -> u16 {
        if self.between == Between::Bridge { 1500 } else { TUNNEL_MTU }
    }

    /// What connects a host to the network, in the configuration of its daemon.
    pub fn uplink(&self, number: usize) -> String {
        let local = UNDERLAY[number];
        let overlay = format!("[[overlay]]\nname = \"net\"\nvni = {VNI}\nlocal = \"{local}\"\n");
        match self.between {
            Between::Bridge => format!(
                "[[port]]\nname = \"uplink\"\nkind = \"tap\"\ndevice = \"{}\"\n",
                tap(number)
            ),
            Between::Vxlan => {
                let peers = [UNDERLAY[1 - number], UNDERLAY[KERNEL]];
                format!("{overlay}peers = {peers:?}\n")
            }
            Between::Evpn => format!("{overlay}control = \"evpn\"\n"),
        }
    }

    /// Completes the network once both daemons run.
    ///
    /// # Errors
    /// When devices are missing, or FRR does not start.
    pub fn connect(&mut self) -> Result<(), GuestError> {
        match self.between {
            Between::Bridge => {
                for name in [0, 1].map(tap) {
                    self.end.ip(&format!("link set {name} master br0\nlink set {name} up"))?;
                }
            }
            Between::Vxlan => {}
            Between::Evpn => self.frr = Frr::mesh(&Programs::installed()?, &self.on_wire())?,
        }
        Ok(())
    }

    /// Waits until the network reaches a guest. A bridge does at once.
    ///
    /// # Errors
    /// When the guest does not answer in time.
    pub fn reaches(&self, guest: &str) -> Result<(), GuestError> {
        if self.between == Between::Bridge {
            return Ok(());
        }
        let mut deadline = Deadline::new(LIMIT);
        loop {
            match self.end.run("ping", ["-n", "-c", "1", "-W", "1", guest]) {
                Ok(_) => return Ok(()),
                Err(error) if deadline.is_over() => return Err(error),
                Err(_) => {}
            }
        }
    }
}

/// The TAP device of a host.
fn tap(number: usize) -> &'static str {
    ["rm0", "rm1"][number]
}
