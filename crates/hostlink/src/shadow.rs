//! Devices of the kernel that exist for a control plane and carry no traffic: for each network a
//! bridge, a VXLAN device in it, and a port at which stations of this host are announced
//! (linux/if_link.h).
//!
//! The devices outlive the daemon, so that a control plane sees no change when it is restarted.
//! Existing devices are used as they are, and never recreated: FRR 8.4 exits when a device
//! reappears while one of its daemons is away.

use std::io;
use std::net::IpAddr;

use frame::Vni;
use overlay::mirror::Devices;

use crate::route_socket::{
    LINK_HEADER, NESTED, attribute, change, encoded, link_header, request, set_up,
    without_addresses,
};
use crate::tun;

/// The UDP port of the shadows. No datagram uses this port: the overlay has the real one.
pub const SHADOW_PORT: u16 = 14_789;

const IFLA_IFNAME: u16 = 3;
const IFLA_MASTER: u16 = 10;
const IFLA_PROTINFO: u16 = 12;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_LOCAL6: u16 = 17;
const VETH_INFO_PEER: u16 = 1;
const IFLA_BRPORT_LEARNING: u16 = 8;

/// The names of the devices of a network: bridge, VXLAN device, port, and the port's other end.
pub fn names(vni: Vni) -> [String; 4] {
    ["rmbr", "rmvx", "rmhere", "rmpeer"].map(|prefix| format!("{prefix}{vni}"))
}

/// The shadows of a network. Missing devices are created.
///
/// # Errors
/// When the kernel refuses, or a device of that name is of another kind.
pub fn ensure(vni: Vni, local: IpAddr) -> io::Result<Devices> {
    let [bridge_name, vxlan_name, here_name, peer_name] = names(vni);
    let bridge = find_or_make(&bridge_name, "bridge", &[], |_| true)?;
    let address = match local {
        IpAddr::V4(v4) => encoded(IFLA_VXLAN_LOCAL, &v4.octets()),
        IpAddr::V6(v6) => encoded(IFLA_VXLAN_LOCAL6, &v6.octets()),
    };
    let id = encoded(IFLA_VXLAN_ID, &vni.get().to_ne_bytes());
    let port = encoded(IFLA_VXLAN_PORT, &SHADOW_PORT.to_be_bytes());
    let learning = encoded(IFLA_VXLAN_LEARNING, &[0]);
    let data = [&id[..], &address, &port, &learning].concat();
    let is_ours = |found: &[u8]| {
        [&id, &address].into_iter().all(|wanted| {
            let kind = u16::from_ne_bytes([wanted[2], wanted[3]]);
            attribute(found, kind) == attribute(wanted, kind)
        })
    };
    let vxlan = find_or_make(&vxlan_name, "vxlan", &data, is_ours)?;
    let mut peer = vec![0; LINK_HEADER];
    peer.extend(encoded(IFLA_IFNAME, &terminated(&peer_name)));
    let here =
        find_or_make(&here_name, "veth", &encoded(VETH_INFO_PEER | NESTED, &peer), |_| true)?;
    let peer = index(&peer_name)?.ok_or_else(|| other(&peer_name, "is missing"))?;
    for device in [bridge, vxlan, here, peer] {
        without_addresses(device)?;
    }
    for port in [vxlan, here] {
        change(port, &encoded(IFLA_MASTER, &bridge.to_ne_bytes()))?;
        without_learning(port)?;
    }
    for device in [vxlan, peer, here, bridge] {
        set_up(device)?;
    }
    Ok(Devices { bridge, vxlan, here })
}

/// Removes the shadows of a network. Missing ones are no error.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(vni: Vni) -> io::Result<()> {
    // The other end of the pair is removed with the port.
    let [bridge, vxlan, here, _] = names(vni);
    for name in [vxlan, here, bridge] {
        if let Some(index) = index(&name)? {
            let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
            request(libc::RTM_DELLINK, flags, &link_header(index))?;
        }
    }
    Ok(())
}

fn other(name: &str, what: &str) -> io::Error {
    io::Error::other(format!("the interface {name} {what}"))
}

fn terminated(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

/// The number of an interface; `None`: there is none.
fn index(name: &str) -> io::Result<Option<u32>> {
    let name = tun::if_name(name).ok_or(io::ErrorKind::InvalidInput)?;
    match tun::index(name) {
        Ok(index) => Ok(Some(index)),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

fn find_or_make(
    name: &str,
    kind: &str,
    data: &[u8],
    is_ours: impl Fn(&[u8]) -> bool,
) -> io::Result<u32> {
    let Some(index) = index(name)? else {
        let info =
            [encoded(IFLA_INFO_KIND, kind.as_bytes()), encoded(IFLA_INFO_DATA | NESTED, data)];
        let mut body = link_header(0).to_vec();
        body.extend(encoded(IFLA_IFNAME, &terminated(name)));
        body.extend(encoded(IFLA_LINKINFO | NESTED, &info.concat()));
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        request(libc::RTM_NEWLINK, flags, &body)?;
        return self::index(name)?.ok_or_else(|| other(name, "is gone again"));
    };
    let reply = request(libc::RTM_GETLINK, libc::NLM_F_REQUEST, &link_header(index))?;
    let attributes = reply.get(LINK_HEADER..).unwrap_or_default();
    let info = attribute(attributes, IFLA_LINKINFO).unwrap_or_default();
    let found = attribute(info, IFLA_INFO_KIND).unwrap_or_default();
    let found_data = attribute(info, IFLA_INFO_DATA).unwrap_or_default();
    match found.strip_suffix(&[0]).unwrap_or(found) == kind.as_bytes() && is_ours(found_data) {
        true => Ok(index),
        false => Err(other(name, "is another one: remove it, or take another VNI")),
    }
}

/// Disables learning from the port's frames: its stations are announced by rows.
fn without_learning(port: u32) -> io::Result<()> {
    let mut body = link_header(port).to_vec();
    body[0] = libc::AF_BRIDGE as u8;
    body.extend(encoded(IFLA_PROTINFO | NESTED, &encoded(IFLA_BRPORT_LEARNING, &[0])));
    request(libc::RTM_SETLINK, libc::NLM_F_REQUEST | libc::NLM_F_ACK, &body).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_networks_fit_the_kernel() {
        for name in names(Vni::new(Vni::MAX).unwrap()) {
            assert!(tun::if_name(&name).is_some(), "{name}");
        }
    }
}
