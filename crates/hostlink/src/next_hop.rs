//! The link-layer address of the next hop to another host, by the kernel's routes and neighbours
//! (linux/rtnetlink.h, linux/neighbour.h).

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use frame::Mac;

use crate::route_socket::{attribute, encoded, octets, request};

/// `struct rtmsg` and `struct ndmsg`, in bytes.
const HEADER: usize = 12;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// States of a neighbour whose address may be used: reachable, stale, delay, probe, noarp,
/// permanent.
const USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// States in which the kernel knows that the address is still right: reachable, noarp, permanent.
const CONFIRMED: u16 = 0x02 | 0x40 | 0x80;
/// The port of "discard" (RFC 863).
const DISCARD: u16 = 9;

/// What the kernel knows of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextHop {
    /// Its address.
    pub mac: Mac,
    /// Whether the address is confirmed.
    pub is_confirmed: bool,
}

/// The next hop to `peer` through interface number `device`; `None`: it is not known yet.
///
/// # Errors
/// When there is no route, or the route leads through another interface.
pub(crate) fn find(peer: IpAddr, device: u32) -> io::Result<Option<NextHop>> {
    let (family, bytes) = octets(peer);
    let mut body = vec![family, (bytes.len() * 8) as u8];
    body.resize(HEADER, 0);
    body.extend(encoded(RTA_DST, &bytes));
    let reply = request(libc::RTM_GETROUTE, libc::NLM_F_REQUEST, &body)?;
    let attributes = reply.get(HEADER..).unwrap_or_default();
    let through = attribute(attributes, RTA_OIF).and_then(|value| value.first_chunk());
    if through.map(|index| u32::from_ne_bytes(*index)) != Some(device) {
        return Err(io::Error::other("the route leads through another interface"));
    }
    let gateway = attribute(attributes, RTA_GATEWAY).unwrap_or(&bytes).to_vec();
    neighbour(family, &gateway, device)
}

fn neighbour(family: u8, address: &[u8], device: u32) -> io::Result<Option<NextHop>> {
    let mut body = vec![family, 0, 0, 0];
    body.extend(device.to_ne_bytes());
    body.resize(HEADER, 0);
    body.extend(encoded(NDA_DST, address));
    let reply = match request(libc::RTM_GETNEIGH, libc::NLM_F_REQUEST, &body) {
        Ok(reply) => reply,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    let state = reply.get(8..10).map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    let attributes = reply.get(HEADER..).unwrap_or_default();
    let mac = attribute(attributes, NDA_LLADDR).and_then(|value| value.first_chunk());
    let usable = mac.filter(|_| state & USABLE != 0);
    Ok(usable.map(|mac| NextHop { mac: Mac(*mac), is_confirmed: state & CONFIRMED != 0 }))
}

/// Has the kernel look up, or confirm, the next hop to a peer: an empty datagram does.
///
/// # Errors
/// When the kernel cannot send it.
pub(crate) fn ask(local: IpAddr, peer: IpAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(SocketAddr::new(local, 0))?;
    socket.set_nonblocking(true)?;
    socket.send_to(&[], SocketAddr::new(peer, DISCARD)).map(drop)
}
