//! The sockets of an underlay. Only those that send from an address that is none of this host's
//! need a privilege: `CAP_NET_ADMIN`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use super::Transport;
use ring::datagrams::LANES;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// Bytes of frames that a socket may hold, if the kernel allows it: about 3 ms at 10 Gb/s.
const BUFFER: usize = 4 << 20;

/// One worker's socket for receiving. Workers share the port, and the kernel spreads flows over
/// them.
pub(super) fn receiving(local: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new(local.ip())?;
    sockopt::set_socket_reuseport(&socket, true)?;
    // Kernels since 5.0 coalesce datagrams of a flow. Others deliver them one by one.
    let _ = set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, BUFFER));
    bind(&socket, &local)?;
    Ok(socket)
}

/// One worker's sockets for sending, each on a source port that the kernel chooses.
pub(super) fn sending(local: IpAddr, transport: &Transport) -> io::Result<[OwnedFd; LANES]> {
    let mut sockets = Vec::with_capacity(LANES);
    for _ in 0..LANES {
        let socket = new(local)?;
        if matches!(transport, Transport::Tap(_)) {
            send_from_any(&socket, local)?;
        }
        // Datagrams are never fragmented, so the whole path must carry them. The kernel ignores the
        // path MTU of ICMP messages: a forged one could make it refuse datagrams that the device
        // takes.
        match local {
            IpAddr::V4(_) => {
                set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
            }
            IpAddr::V6(_) => {
                let probe = libc::IPV6_PMTUDISC_PROBE;
                set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, probe)?;
            }
        }
        let _ = sockopt::set_socket_send_buffer_size_force(&socket, BUFFER)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, BUFFER));
        bind(&socket, &SocketAddr::new(local, 0))?;
        sockets.push(socket);
    }
    sockets.try_into().map_err(|_| io::ErrorKind::Other.into())
}

/// The longest IP packet that reaches a peer, by this host's routes and devices.
///
/// # Errors
/// When there is no route.
pub fn path_mtu(local: IpAddr, peer: SocketAddr) -> io::Result<u16> {
    let socket = new(local)?;
    // The address of a TAP device is none of this host's. The route is the same without it, unless
    // the host has rules for it.
    let _ = bind(&socket, &SocketAddr::new(local, 0));
    rustix::net::connect(&socket, &peer)?;
    let (level, option) = match local {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let (mut mtu, mut len): (libc::c_int, _) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes to `mtu`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut mtu).cast(), &raw mut len)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
}

/// Lets a socket have an address that is none of this host's.
fn send_from_any(socket: &OwnedFd, local: IpAddr) -> io::Result<()> {
    match local {
        IpAddr::V4(_) => set(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
        IpAddr::V6(_) => set(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1),
    }
}

fn new(local: IpAddr) -> io::Result<OwnedFd> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::DGRAM, flags, None)?)
}

fn set(socket: &OwnedFd, level: i32, option: i32, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `value`.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
