//! A TAP device to which the host routes the datagrams of a VTEP with an address of its own.
//!
//! The kernel segments frames behind outer headers as late as it can, and hands over those that
//! were not segmented on their way. So a long TCP frame crosses the underlay in one piece where the
//! link allows this. The device has no ARP: whatever the host routes there has the device's own
//! address, and whatever comes from there is for the host.

pub(super) mod receiver;
pub(super) mod sender;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use frame::Mac;
use frame::vnet::tunnel::TUNNEL_LEN;

use super::UnderlayError;
use crate::{route_socket, tun};

/// The device's address.
const MAC: Mac = Mac([0x02, 0x52, 0x4d, 0, 0, 1]);
/// The longest packet that a TAP device takes: the underlay's own MTU is the limit.
const MTU: u16 = 65_521;

/// Opens `count` queues of the device, and routes the address of `local` there. A device that does
/// not exist is created, and exists as long as a queue is open.
pub(super) fn open(
    device: &str,
    local: SocketAddr,
    count: usize,
) -> Result<Vec<Arc<OwnedFd>>, UnderlayError> {
    let failed =
        |what| move |error| UnderlayError::Device { device: device.to_owned(), what, error };
    let name = tun::if_name(device).ok_or(io::ErrorKind::InvalidInput.into());
    let name = name.map_err(failed("use"))?;
    let mut queues = Vec::new();
    for _ in 0..count {
        let queue = tun::open_queue_with(name, TUNNEL_LEN).map_err(failed("open"))?;
        tun::set_tunnel_offloads(&queue).map_err(failed("find tunnel offloads (Linux 6.17) in"))?;
        queues.push(Arc::new(queue));
    }
    let index = tun::index(name).map_err(failed("find"))?;
    tun::set_mac(name, MAC).map_err(failed("set the address of"))?;
    tun::set_mtu(name, MTU).map_err(failed("set the MTU of"))?;
    route_socket::without_addresses(index).map_err(failed("configure"))?;
    route_socket::set_up(index).map_err(failed("set up"))?;
    route_socket::route(local.ip(), index).map_err(failed("route datagrams to"))?;
    Ok(queues)
}
