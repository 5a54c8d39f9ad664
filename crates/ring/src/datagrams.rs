//! Datagrams of an unprivileged socket, many per system call. They are sent straight from their
//! senders' memory, and received into private memory.
//!
//! A pushed datagram stays in its sender's memory until it is sent. A [`SendBatch`] points there,
//! so it keeps that memory mapped, as a [`Gather`](crate::gather::Gather) does, and forgets
//! addresses and memories together. A sender that truncates its memory meanwhile makes the kernel
//! refuse the datagram: the kernel's copy faults, not this process.

mod receive;
mod send;

pub use receive::{ReceiveBatch, Received};
pub use send::{DATAGRAMS, LANES, Outcome, SendBatch};

use std::net::{IpAddr, SocketAddr};

/// The address of the other end, as the kernel takes it.
#[derive(Clone, Copy)]
pub struct Peer {
    storage: libc::sockaddr_in6,
    len: libc::socklen_t,
}

// An IPv4 address is kept in the beginning of the longer one's room.
const _: () = assert!(
    size_of::<libc::sockaddr_in>() <= size_of::<libc::sockaddr_in6>()
        && align_of::<libc::sockaddr_in>() <= align_of::<libc::sockaddr_in6>()
);

impl Peer {
    const EMPTY: libc::sockaddr_in6 = libc::sockaddr_in6 {
        sin6_family: 0,
        sin6_port: 0,
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
        sin6_scope_id: 0,
    };

    /// The peer at this address.
    pub fn new(address: SocketAddr) -> Peer {
        let mut storage = Peer::EMPTY;
        match address {
            SocketAddr::V4(v4) => {
                let bytes = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: there is room for it, aligned, as asserted above.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(bytes) };
                Peer { storage, len: size_of::<libc::sockaddr_in>() as libc::socklen_t }
            }
            SocketAddr::V6(v6) => {
                storage.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                storage.sin6_port = v6.port().to_be();
                storage.sin6_addr.s6_addr = v6.ip().octets();
                storage.sin6_scope_id = v6.scope_id();
                Peer { storage, len: size_of::<libc::sockaddr_in6>() as libc::socklen_t }
            }
        }
    }

    /// The IP address; `None`: it is of another family.
    fn ip(storage: &libc::sockaddr_in6) -> Option<IpAddr> {
        match i32::from(storage.sin6_family) {
            libc::AF_INET6 => Some(IpAddr::V6(storage.sin6_addr.s6_addr.into())),
            libc::AF_INET => {
                // SAFETY: all bytes are initialised, and the family shows that it is an IPv4
                // address.
                let v4 = unsafe { (&raw const *storage).cast::<libc::sockaddr_in>().read() };
                Some(IpAddr::V4(u32::from_be(v4.sin_addr.s_addr).into()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
