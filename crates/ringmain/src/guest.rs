//! A command as a guest.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use control::api::{Reply, Request};
use control::client::Client;
use netns_guest::GuestConfig;

use crate::cli::Guest;
use crate::failure::Failure;

/// `ringmain guest`. The exit code of the command.
pub fn run(control: &Path, guest: Guest) -> Result<u8, Failure> {
    let socket = match guest.socket {
        Some(socket) => socket,
        None => find(control)?,
    };
    let shell = || std::env::var_os("SHELL").unwrap_or_else(|| OsString::from("/bin/sh"));
    let command = if guest.command.is_empty() { vec![shell()] } else { guest.command };
    let config = GuestConfig {
        socket,
        name: guest.name,
        queues: guest.queues,
        vcpus: guest.vcpus.unwrap_or(guest.queues),
        interface: guest.interface,
        mac: guest.mac.map(frame::Mac),
        address: guest.address,
        mtu: guest.mtu,
        device_queue: guest.device_queue,
        single_channel: guest.single_channel,
        command,
    };
    Ok(netns_guest::run(&config)?)
}

/// Where the daemon takes guests.
fn find(control: &Path) -> Result<PathBuf, Failure> {
    let Reply::Ports(ports) = Client::new(control).ask(&Request::PortList)? else {
        return Err(Failure::Surprised);
    };
    let port = ports.into_iter().find(|port| port.kind == "embedded" && port.socket.is_some());
    port.and_then(|port| port.socket).map(PathBuf::from).ok_or(Failure::NoGuests)
}
