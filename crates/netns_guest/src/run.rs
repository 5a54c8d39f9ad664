//! A guest: its namespace, its interface, and the command that runs in it.

use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::mpsc;

use frame::Mac;
use hostlink::inside::{Inside, enter_own_namespace};
use hostlink::tap::TapError;
use hypervisor::embedded::Version;
use hypervisor::embedded::client::{GuestRequest, is_name};
use rustix::event::{EventfdFlags, eventfd};
use thiserror::Error;
use xen::netif::frontend::{DeviceQueue, Frontend, Sender};

use crate::interface::{ConnectionError, Interface};
use crate::profiler::Account;
use crate::program;

/// The settings of a guest.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// The hypervisor's socket.
    pub socket: PathBuf,
    /// Its name.
    pub name: String,
    /// Queues of its interface.
    pub queues: u16,
    /// Threads that serve them.
    pub vcpus: u16,
    /// The interface's name inside.
    pub interface: String,
    /// Its address; derived from the guest's name if there is none.
    pub mac: Option<Mac>,
    /// Its IPv4 address, and how many of its bits are the network's.
    pub address: Option<(Ipv4Addr, u8)>,
    /// Its MTU. `None`: the default.
    pub mtu: Option<u16>,
    /// Whether it requests a receive queue of a device.
    pub device_queue: bool,
    /// Whether both directions of a queue share one event channel.
    pub single_channel: bool,
    /// The command that runs in it, with its arguments.
    pub command: Vec<OsString>,
}

/// Why a guest could not be created, or run.
#[derive(Debug, Error)]
pub enum GuestError {
    /// The name is not valid.
    #[error("a guest can't be called {0:?}: 1 to 32 letters, digits, \"_\", \".\" or \"-\"")]
    Name(String),
    /// The kernel refuses a network namespace.
    #[error("no network namespace of its own: {error}{}", hint(.error))]
    Namespace {
        /// The kernel's error.
        error: io::Error,
    },
    /// The TAP device cannot be created.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The hypervisor or the backend cannot be reached.
    #[error("{0}")]
    Connect(String),
    /// The program cannot be started.
    #[error("{program}: {error}")]
    Program {
        /// Its name.
        program: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// No threads or descriptors are left.
    #[error(transparent)]
    Os(#[from] io::Error),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; ordinary users may make no user namespaces here: run as root"
        }
        _ => "",
    }
}

/// Runs a command as a guest, and returns its exit code.
///
/// The code is that of a shell: 128 plus the signal's number for a command that a signal ended.
/// `connected` is called before the command starts, with the number of queues in use: the backend
/// may offer fewer than `config` asks for.
///
/// The process must have no other thread yet, and is in another network namespace afterwards.
///
/// # Errors
/// See [`GuestError`].
pub fn run(config: &GuestConfig, connected: impl FnOnce(usize)) -> Result<u8, GuestError> {
    if !is_name(&config.name) {
        return Err(GuestError::Name(config.name.clone()));
    }
    let mac = config.mac.unwrap_or_else(|| address_of(&config.name));
    enter_own_namespace().map_err(|error| GuestError::Namespace { error })?;
    let inside = Inside {
        name: config.interface.clone(),
        queues: config.queues,
        mac,
        mtu: config.mtu,
        longest: Sender::LONGEST as u32,
        address: config.address,
    };
    let stop =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
    let device_queue_pages = if config.device_queue { DeviceQueue::PAGES } else { 0 };
    let pages = Frontend::pages(config.queues.max(1)) + device_queue_pages;
    let interface = Interface {
        socket: config.socket.clone(),
        admission: GuestRequest {
            pages,
            version: Version::V1,
            mac: mac.0,
            name: config.name.clone(),
        },
        device_queue_pages,
        taps: inside.open()?,
        vcpus: config.vcpus.into(),
        split: !config.single_channel,
        stop,
        account: Account::new(),
    };
    std::thread::scope(|scope| {
        let (report, first) = mpsc::channel();
        let thread = std::thread::Builder::new().name("interface".into());
        let running = &interface;
        thread.spawn_scoped(scope, move || running.run(&report))?;
        let outcome = match first.recv() {
            Ok(Ok(queues)) => {
                connected(queues);
                execute(config)
            }
            Ok(Err(error)) => Err(GuestError::Connect(described(&config.socket, &error))),
            Err(_) => Err(GuestError::Connect("the interface's thread is gone".into())),
        };
        let _ = rustix::io::write(&interface.stop, &1u64.to_ne_bytes());
        outcome
    })
}

fn described(socket: &std::path::Path, error: &ConnectionError) -> String {
    match error {
        ConnectionError::Connect(error) => error.to_string(),
        error => format!("{}: {error}", socket.display()),
    }
}

fn execute(config: &GuestConfig) -> Result<u8, GuestError> {
    let status = program::run(&config.command).map_err(|error| {
        let program = config.command.first().map(|program| program.to_string_lossy().into_owned());
        GuestError::Program { program: program.unwrap_or_default(), error }
    })?;
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128 + signal as u8,
        (None, None) => 1,
    })
}

/// A locally administered address, the same each time for one name.
fn address_of(name: &str) -> Mac {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [a, b, c, d, e, ..] = hash.to_le_bytes();
    Mac([2, a, b, c, d, e])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_its_own_address() {
        assert_eq!(address_of("a"), address_of("a"));
        assert_ne!(address_of("a"), address_of("b"));
        assert!(!address_of("guest").is_multicast());
    }
}
