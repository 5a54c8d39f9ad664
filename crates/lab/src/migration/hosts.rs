//! Two hosts for guests that migrate, each with a daemon of its own, and a network between them.

use std::path::{Path, PathBuf};

use crate::daemon::{Daemon, DaemonError};
use crate::guest::{
    Accel, Emulator, Guest, GuestError, Image, Link, Mac, Migrated, Namespace, Nic, Shell, Spec,
};

use super::LIMIT;
use super::network::{Between, Network};

/// The address of the guest.
pub const GUEST: &str = "10.77.0.1";
/// The hardware address of the guest.
pub const MAC: Mac = Mac([0x52, 0x54, 0, 0x77, 0, 1]);
/// Queue pairs of the guest.
const QUEUES: u16 = 2;
/// Virtual CPUs of the guest.
const CPUS: u16 = 2;
/// Memory of the guest in MiB.
const MEMORY: u32 = 256;

/// The hosts.
#[derive(Debug)]
pub struct Hosts {
    // Dropped before the network, in which they run.
    daemons: [Daemon; 2],
    network: Network,
    machine: Machine,
}

/// The machine that runs a guest.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The image that the guest boots.
    pub image: Image,
    /// The accelerator that QEMU uses.
    pub accel: Accel,
    /// The QEMU.
    pub emulator: Emulator,
    /// QEMU's properties of the guest's interface.
    pub options: Vec<String>,
}

/// An error of the hosts or the guest.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// A daemon could not be started.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The guest, or the network between the hosts, failed.
    #[error(transparent)]
    Guest(#[from] GuestError),
}

impl Hosts {
    /// Starts two daemons of the program in the file `binary`, with such a network between them.
    ///
    /// # Errors
    /// When a daemon or the network fails. Needs root.
    pub fn start(binary: &Path, machine: Machine, between: Between) -> Result<Hosts, HostsError> {
        let mut network = Network::lay(between)?;
        let serve = |number| {
            let config = |dir: &Path| format!("{}{}", port(dir), network.uplink(number));
            Daemon::start(binary, config, Some(network.host(number)))
        };
        let daemons = [serve(0)?, serve(1)?];
        network.connect()?;
        Ok(Hosts { daemons, network, machine })
    }

    /// The place in the network to which guests send.
    pub fn network(&self) -> &Namespace {
        self.network.end()
    }

    /// The daemon of a host.
    pub fn daemon(&self, host: usize) -> &Daemon {
        &self.daemons[host]
    }

    /// The socket of the guest's port at a host.
    pub fn socket(&self, host: usize) -> PathBuf {
        socket(self.daemons[host].dir())
    }

    /// Boots the guest at host 0, reached over `socket`, and gives it its address.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn boot(&self, socket: PathBuf) -> Result<Guest, HostsError> {
        let guest = self.begin(socket, None, false)?;
        guest.ready(LIMIT)?;
        let mtu = self.network.mtu();
        guest.must(
            &format!("ip addr add {GUEST}/24 dev eth0 && ip link set eth0 mtu {mtu} up"),
            LIMIT,
        )?;
        self.network.reaches(GUEST)?;
        Ok(guest)
    }

    /// Migrates the guest to another host, and gives it back as it runs there.
    ///
    /// # Errors
    /// When the migration fails.
    pub fn migrate(&self, source: Guest, to: usize) -> Result<(Guest, Migrated), HostsError> {
        let (target, migrated) = self.copy(&source, to, false)?;
        drop(source);
        Ok((target, migrated))
    }

    /// Migrates the guest, and gives both its ends: the source, which is stopped, and the target,
    /// which is stopped as well if so asked.
    ///
    /// # Errors
    /// When the migration fails.
    pub fn copy(
        &self,
        source: &Guest,
        to: usize,
        stopped: bool,
    ) -> Result<(Guest, Migrated), HostsError> {
        let incoming = self.daemons[to].dir().join("incoming.sock");
        let target = self.begin(self.socket(to), Some(incoming.clone()), stopped)?;
        let migrated = source.migrate(&target, &incoming, LIMIT)?;
        target.arrived(LIMIT)?;
        // The socket may already be gone.
        let _ = std::fs::remove_file(&incoming);
        Ok((target, migrated))
    }

    fn begin(
        &self,
        socket: PathBuf,
        incoming: Option<PathBuf>,
        stopped: bool,
    ) -> Result<Guest, GuestError> {
        let Machine { image, accel, emulator, options } = &self.machine;
        let nic = Nic {
            link: Link::VhostUser { socket, listens: false },
            mac: MAC,
            queues: QUEUES,
            options: options.clone(),
        };
        let spec = Spec {
            cpus: CPUS,
            memory: MEMORY,
            nics: vec![nic],
            incoming,
            stopped,
            emulator: emulator.clone(),
            ..Spec::new("guest")
        };
        Guest::start(image, *accel, &spec)
    }
}

/// The guest's port.
fn port(dir: &Path) -> String {
    format!(
        "[[port]]\nname = \"guest\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nqueues = 4\n",
        socket(dir).display()
    )
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("guest.sock")
}
