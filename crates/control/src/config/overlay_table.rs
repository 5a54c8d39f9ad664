//! An `[[overlay]]` table as written.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use frame::{Mac, Vni};

use super::key_table::key_table;
use super::port_table::{Interface, Mtu, Name, Vid};
use super::source::VALUE;
use super::value::{Amount, FromText, Limits, Number, TableName, Text};

key_table! {
    /// An `[[overlay]]` table.
    OverlayTable {
        "name" name: Text<Name>,
        "vni" vni: Amount<VniValue>,
        "vlan" vlan: Number<Vid>,
        "vlans" vlans: Vec<toml::Spanned<Text<VlanMap>>>,
        "local" local: Text<Vtep>,
        "port" port: Number<UdpPort>,
        "underlay" underlay: Text<UnderlayKind>,
        "device" device: Text<Interface>,
        "control" control: Text<ControlPlane>,
        "peers" peers: Vec<toml::Spanned<Text<Vtep>>>,
        "macs" macs: Vec<toml::Spanned<Text<StaticMac>>>,
        "learning" learning: bool,
        "announce-addresses" announce_addresses: bool,
        "mtu" mtu: Number<Mtu>,
    }
}

impl TableName for OverlayTable {
    const EXPECTED: &'static str = "a list of tables; write [[overlay]]";
}

/// A VXLAN network identifier.
#[derive(Clone, Copy, Debug)]
pub(in crate::config) struct VniValue(pub(super) Vni);

impl FromText for VniValue {
    fn right() -> String {
        format!("a number from 1 to {}", Vni::MAX)
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let known = text.parse().ok().and_then(Vni::new).filter(|vni| vni.get() > 0);
        known.map(VniValue).ok_or_else(|| format!("{VALUE} is not a VNI; give {}", Self::right()))
    }
}

/// A VLAN that is a virtual network.
#[derive(Clone, Copy, Debug)]
pub(in crate::config) struct VlanMap {
    pub(super) vlan: u16,
    pub(super) vni: Vni,
}

impl FromText for VlanMap {
    fn right() -> String {
        r#"a list of VLANs with their VNIs, like ["10=10010", "20=10020"]"#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let read = || {
            let (vlan, vni) = text.split_once('=')?;
            let vlan = vlan.trim().parse().ok().filter(|vlan| Vid::RANGE.contains(vlan))?;
            let VniValue(vni) = VniValue::from_text(vni.trim()).ok()?;
            Some(VlanMap { vlan, vni })
        };
        read().ok_or_else(|| format!("{VALUE} is not VLAN=VNI; give {}", Self::right()))
    }
}

/// The address of a host on the underlay.
#[derive(Clone, Copy, Debug)]
pub(in crate::config) struct Vtep(pub(super) IpAddr);

impl FromText for Vtep {
    fn right() -> String {
        r#"the address of a host, like "10.0.0.1" or "2001:db8::1""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let unicast = |ip: &IpAddr| {
            let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
            !(ip.is_unspecified() || ip.is_multicast() || broadcast)
        };
        let known = text.parse().ok().filter(unicast);
        known
            .map(Vtep)
            .ok_or_else(|| format!("{VALUE} is not an address of one host; give {}", Self::right()))
    }
}

/// A station whose host is known.
#[derive(Clone, Copy, Debug)]
pub(in crate::config) struct StaticMac {
    pub(super) mac: Mac,
    pub(super) vtep: IpAddr,
}

impl FromText for StaticMac {
    fn right() -> String {
        r#"a list of MAC addresses with their peers, like ["52:54:00:00:00:01=10.0.0.2"]"#
            .to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let read = || {
            let (mac, vtep) = text.split_once('=')?;
            let mac: Mac = mac.trim().parse().ok()?;
            let Vtep(vtep) = Vtep::from_text(vtep.trim()).ok()?;
            (!mac.is_multicast() && !mac.is_zero()).then_some(StaticMac { mac, vtep })
        };
        read().ok_or_else(|| format!("{VALUE} is not MAC=PEER; give {}", Self::right()))
    }
}

/// The UDP port of all VTEPs.
#[derive(Clone, Copy, Debug)]
pub(in crate::config) struct UdpPort;

impl Limits for UdpPort {
    // Lower ports need a privilege.
    const RANGE: RangeInclusive<u16> = 1024..=u16::MAX;
}

/// What carries datagrams, as written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::config) enum UnderlayKind {
    /// UDP sockets.
    Udp,
    /// A TAP device.
    Tap,
    /// Queues of a card.
    Xdp,
}

impl FromText for UnderlayKind {
    fn right() -> String {
        r#""udp", "tap" or "xdp""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "udp" => Ok(UnderlayKind::Udp),
            "tap" => Ok(UnderlayKind::Tap),
            "xdp" => Ok(UnderlayKind::Xdp),
            _ => Err(format!("{VALUE} is not an underlay; give {}", Self::right())),
        }
    }
}

/// The source of hosts and stations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlPlane {
    /// The configuration.
    Static,
    /// EVPN, by FRR and the kernel's tables.
    Evpn,
}

impl ControlPlane {
    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            ControlPlane::Static => "static",
            ControlPlane::Evpn => "evpn",
        }
    }
}

impl FromText for ControlPlane {
    fn right() -> String {
        r#""static" or "evpn""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "static" => Ok(ControlPlane::Static),
            "evpn" => Ok(ControlPlane::Evpn),
            _ => Err(format!("{VALUE} is not a control plane; give {}", Self::right())),
        }
    }
}
