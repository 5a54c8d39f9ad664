//! The interface of a guest that is a process in a network namespace of its own: a TAP device, and
//! the namespace itself. The caller carries the frames.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use frame::Mac;
use rustix::process::{Signal, getegid, geteuid, set_parent_process_death_signal};

use crate::tap::TapError;
use crate::{route_socket, tun};

/// Properties of an interface.
#[derive(Clone, Debug)]
pub struct Inside {
    /// Its name.
    pub name: String,
    /// Its queues, at least one.
    pub queues: u16,
    /// Its address.
    pub mac: Mac,
    /// Its MTU in bytes; `None`: not set.
    pub mtu: Option<u16>,
    /// Longest frame that the kernel leaves to others to segment, in bytes.
    pub longest: u32,
    /// An IPv4 address, and the number of bits of its network.
    pub address: Option<(Ipv4Addr, u8)>,
}

impl Inside {
    /// Creates the interface in the network namespace of the calling thread, and sets it up.
    /// Returns its queues: each read or write transfers one frame behind a virtio-net header.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open(&self) -> Result<Vec<OwnedFd>, TapError> {
        let name = tun::if_name(&self.name).ok_or_else(|| TapError::Name(self.name.clone()))?;
        let failed = |error| TapError::Open { name: self.name.clone(), error };
        let unset = |what| move |error| TapError::Set { name: self.name.clone(), what, error };
        let mut queues = Vec::new();
        for _ in 0..self.queues.max(1) {
            let queue = tun::open_queue(name).map_err(failed)?;
            tun::set_plain_offloads(&queue).map_err(unset("offloads"))?;
            queues.push(queue);
        }
        tun::set_mac(name, self.mac).map_err(unset("the address"))?;
        route_socket::set_longest(name, self.longest).map_err(unset("the longest segment"))?;
        if let Some(mtu) = self.mtu {
            tun::set_mtu(name, mtu).map_err(unset("the MTU"))?;
        }
        if let Some((address, bits)) = self.address {
            tun::set_address(name, address, bits).map_err(unset("the IP address"))?;
        }
        tun::set_up(name).map_err(unset("the state"))?;
        Ok(queues)
    }
}

/// Moves the process into a network namespace of its own, and sets the loopback interface up there.
/// An unprivileged process also enters a user namespace, in which it is root. The process must have
/// no other thread.
///
/// # Errors
/// When the kernel refuses, most often because unprivileged user namespaces are disabled.
pub fn enter_own_namespace() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    if user == 0 {
        tun::unshare(libc::CLONE_NEWNET)?;
    } else {
        tun::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)?;
        // The kernel requires this before an unprivileged process may map groups.
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    }
    match tun::if_name("lo") {
        Some(lo) => tun::set_up(lo),
        None => Ok(()),
    }
}

/// Makes the kernel kill the process that `command` starts when the calling thread ends.
pub fn end_with_us(command: &mut Command) {
    let ask = || set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from);
    // SAFETY: the closure, which runs between fork and exec, makes one system call and no more.
    unsafe { command.pre_exec(ask) };
}
