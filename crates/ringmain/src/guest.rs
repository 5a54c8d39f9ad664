//! `ringmain guest`: a command as a guest.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use control::api::{Reply, Request};
use control::client::Client;
use control::kind::Kind;
use netns_guest::GuestConfig;

use crate::cli::Guest;
use crate::failure::Failure;
use crate::units;

/// Runs the command. Returns its exit code.
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
    Ok(netns_guest::run(&config, |queues| warn_of_missing_queues(&config, queues))?)
}

/// Warns if the port offers fewer queues than the command line asks for.
fn warn_of_missing_queues(config: &GuestConfig, queues: usize) {
    if queues < usize::from(config.queues) {
        eprintln!(
            "ringmain: the port allows {} for a guest, so {:?} does not get {}; change `queues` of \
             the port",
            units::count(queues as u64, "queue pair"),
            config.name,
            config.queues,
        );
    }
}

/// The socket where the daemon's guests connect.
fn find(control: &Path) -> Result<PathBuf, Failure> {
    let Reply::Ports(ports) = Client::new(control).ask(&Request::PortList)? else {
        return Err(Failure::Mismatch);
    };
    // Guests are also ports of this kind, but have no socket.
    let port = ports.into_iter().find(|port| port.kind == Kind::Embedded && port.socket.is_some());
    let port = port.ok_or(Failure::NoGuests)?;
    port.socket.map(PathBuf::from).ok_or(Failure::NoGuests)
}
