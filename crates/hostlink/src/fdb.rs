//! The kernel's forwarding tables of bridges and VXLAN devices, and its neighbours, by its routing
//! socket: reading their rows, watching changes, and writing rows of our own (linux/neighbour.h,
//! linux/rtnetlink.h).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use frame::{Mac, Owner};
use overlay::mirror::{Presence, Row};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
};

use crate::route_socket::{HEADER, attribute, encoded, message, request, unless_unsupported};

/// `struct ndmsg`, in bytes.
const NEIGHBOUR: usize = 12;
/// Longer than what the kernel hands over at once, in bytes.
const LONGEST: usize = 64 << 10;
/// Room for unread changes, in bytes: enough for some ten thousand stations.
const BACKLOG: usize = 8 << 20;
/// The group of changes of neighbours and of rows of bridges, as a bit (`RTNLGRP_NEIGH`).
const NEIGHBOURS: u32 = 1 << 2;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_MASTER: u16 = 9;
const NTF_MASTER: u8 = 4;
const NTF_EXT_LEARNED: u8 = 1 << 4;
const NTF_STICKY: u8 = 1 << 6;
const NTF_ROUTER: u8 = 1 << 7;
const NUD_REACHABLE: u16 = 0x02;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;

/// A watch of changes to the tables, from when it was opened.
pub struct FdbWatch {
    socket: OwnedFd,
    bytes: Vec<u8>,
}

/// Whether all changes have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// No further changes have come.
    All,
    /// The kernel has dropped some: the tables have to be read again.
    Lost,
}

impl FdbWatch {
    /// Begins to watch all tables of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel provides no such socket.
    pub fn open() -> io::Result<FdbWatch> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, BACKLOG)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, BACKLOG));
        bind(&socket, &SocketAddrNetlink::new(0, NEIGHBOURS))?;
        Ok(FdbWatch { socket, bytes: vec![0; LONGEST] })
    }

    /// Gives each change that has come to `each`: a row, and whether it is there now.
    ///
    /// # Errors
    /// When the socket cannot be used any more.
    pub fn receive(&mut self, mut each: impl FnMut(Row, bool)) -> io::Result<Heard> {
        loop {
            match recv(&self.socket, &mut self.bytes[..], RecvFlags::empty()) {
                Ok((got, _)) => _ = read(self.bytes.get(..got).unwrap_or_default(), &mut each)?,
                Err(Errno::AGAIN) => return Ok(Heard::All),
                Err(Errno::NOBUFS) => return Ok(Heard::Lost),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for FdbWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Gives each row of all tables to `each`.
///
/// # Errors
/// When the kernel refuses.
pub fn dump(mut each: impl FnMut(Row)) -> io::Result<()> {
    let families = [libc::AF_BRIDGE, libc::AF_INET, libc::AF_INET6];
    families.into_iter().try_for_each(|family| dump_family(family as u8, &mut each))
}

fn dump_family(family: u8, each: &mut impl FnMut(Row)) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    let mut body = [0; NEIGHBOUR];
    body[0] = family;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    send(&socket, &message(libc::RTM_GETNEIGH, flags, &body), SendFlags::empty())?;
    let mut bytes = vec![0; LONGEST];
    loop {
        let (got, _) = recv(&socket, &mut bytes[..], RecvFlags::empty())?;
        let rows = bytes.get(..got).unwrap_or_default();
        if read(rows, &mut |row, _| each(row))? || got == 0 {
            return Ok(());
        }
    }
}

/// Writes or removes a row of a bridge: a station is behind one of its ports.
///
/// The row has no time limit. Removing a missing row is no error.
///
/// # Errors
/// When the kernel refuses.
pub fn set(port: u32, mac: Mac, presence: Presence) -> io::Result<()> {
    let present = presence != Presence::Away;
    let sticky = if presence == Presence::Sticky { NTF_STICKY } else { 0 };
    let mut body = vec![libc::AF_BRIDGE as u8, 0, 0, 0];
    body.extend(port.to_ne_bytes());
    body.extend((NUD_NOARP | NUD_REACHABLE).to_ne_bytes());
    body.extend([NTF_MASTER | sticky, 0]);
    body.extend(encoded(NDA_LLADDR, &mac.0));
    write(&body, present)
}

/// Writes or removes a row of a bridge's neighbours: a station has an IP address.
///
/// Removing a missing row is no error.
///
/// # Errors
/// When the kernel refuses.
pub fn set_address(bridge: u32, address: IpAddr, mac: Option<Mac>) -> io::Result<()> {
    let (family, bytes) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let mut body = vec![family as u8, 0, 0, 0];
    body.extend(bridge.to_ne_bytes());
    body.extend(NUD_PERMANENT.to_ne_bytes());
    body.extend([0, 0]);
    body.extend(encoded(NDA_DST, &bytes));
    body.extend(mac.into_iter().flat_map(|mac| encoded(NDA_LLADDR, &mac.0)));
    unless_unsupported(write(&body, mac.is_some()))
}

/// Writes or removes a row.
fn write(body: &[u8], present: bool) -> io::Result<()> {
    let ack = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
    let done = match present {
        true => {
            let flags = ack | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
            request(libc::RTM_NEWNEIGH, flags, body)
        }
        false => request(libc::RTM_DELNEIGH, ack, body),
    };
    match done {
        Err(error) if !present && error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        done => done.map(drop),
    }
}

/// Gives the rows in the kernel's messages to `each`. Returns whether a dump ends with them.
fn read(mut messages: &[u8], each: &mut impl FnMut(Row, bool)) -> io::Result<bool> {
    while let Some(header) = messages.first_chunk::<HEADER>() {
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let Some(body) = messages.get(HEADER..len) else { break };
        match kind {
            libc::RTM_NEWNEIGH => row(body).into_iter().for_each(|row| each(row, true)),
            libc::RTM_DELNEIGH => row(body).into_iter().for_each(|row| each(row, false)),
            _ if kind == libc::NLMSG_DONE as u16 => return Ok(true),
            _ if kind == libc::NLMSG_ERROR as u16 => {
                let error = body.first_chunk().map_or(0, |error| i32::from_ne_bytes(*error));
                return Err(io::Error::from_raw_os_error(error.saturating_neg()));
            }
            _ => {}
        }
        messages = messages.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// The row in a message about a neighbour.
///
/// A row of a bridge or a VXLAN device says where a station is. A row of a control plane says which
/// station has an IP address.
fn row(body: &[u8]) -> Option<Row> {
    let header = body.first_chunk::<NEIGHBOUR>()?;
    let attributes = &body[NEIGHBOUR..];
    let interface = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let state = u16::from_ne_bytes([header[8], header[9]]);
    let mac = attribute(attributes, NDA_LLADDR).and_then(|mac| mac.first_chunk().copied().map(Mac));
    if header[0] != libc::AF_BRIDGE as u8 {
        // A row that is removed may have lost its station before.
        let address = address(attribute(attributes, NDA_DST)?)?;
        let learned = header[10] & NTF_EXT_LEARNED != 0;
        let is_router = header[10] & NTF_ROUTER != 0;
        let owner = Owner { mac: mac.unwrap_or_default(), is_router };
        let row = Row::Neighbour { device: interface, address, owner, learned };
        return (!address.is_multicast()).then_some(row);
    }
    let mac = mac?;
    if let Some(bridge) = attribute(attributes, NDA_MASTER) {
        // Permanent rows are addresses of the bridge's own ports.
        let is_station = state & NUD_PERMANENT == 0 && !mac.is_multicast();
        let bridge = u32::from_ne_bytes(*bridge.first_chunk()?);
        let sticky = header[10] & NTF_STICKY != 0;
        return is_station.then_some(Row::Bridge { bridge, port: interface, mac, sticky });
    }
    let vtep = address(attribute(attributes, NDA_DST)?)?;
    Some(Row::Tunnel { device: interface, mac, vtep })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes {
        &[a, b, c, d] => Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d))),
        other => Some(IpAddr::V6(Ipv6Addr::from(*other.first_chunk::<16>()?))),
    }
}

#[cfg(test)]
mod tests;
