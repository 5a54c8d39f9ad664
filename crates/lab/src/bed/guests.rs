//! A daemon with processes as guests, each a station.

use std::path::Path;
use std::time::Duration;

use hypervisor::embedded::Design;

use super::station::{Station, Task, launch_in, listens_in};
use crate::daemon::{Daemon, DaemonError};
use crate::guest::{GuestError, Namespace};
use crate::guest_process::{GuestProcess, GuestProcessSpec};

/// Longest start of a guest, when many start at once.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the daemon is to be like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wants<'a> {
    /// Worker threads; one for each CPU if none are named.
    pub workers: Option<usize>,
    /// Queues that a guest may have.
    pub queues: u16,
    /// Further lines of the guests' port.
    pub keys: &'a str,
    /// The hypervisor's inner design, for which the laboratory's own daemon serves; `None`:
    /// `ringmain` serves, with the newest.
    pub design: Option<Design>,
    /// Further tables of the configuration.
    pub more: &'a str,
    /// Where it runs, if not where we do.
    pub namespace: Option<&'a Namespace>,
}

/// What a guest is to be like.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Its name.
    pub name: String,
    /// Its address in a network of 24 bits.
    pub address: String,
    /// Queues of its interface.
    pub queues: u16,
    /// Threads that drive them.
    pub vcpus: u16,
    /// Whether a queue has one event channel for both directions.
    pub single_channel: bool,
    /// Whether it asks for a receive queue of a device.
    pub device_queue: bool,
}

/// The daemon and its guests.
#[derive(Debug)]
pub struct Bed {
    // In this order: guests go before what serves them.
    members: Vec<Member>,
    daemon: Daemon,
}

/// A guest.
#[derive(Debug)]
pub struct Member {
    guest_process: GuestProcess,
    /// What it is like.
    pub wish: Wish,
}

impl Bed {
    /// Starts a daemon, and these guests, all at once.
    ///
    /// # Errors
    /// When one of them does not start.
    pub fn start<E: From<DaemonError> + From<GuestError>>(
        binary: &Path,
        wants: Wants<'_>,
        guests: Vec<Wish>,
    ) -> Result<Bed, E> {
        let config = |dir: &Path| config(dir, wants);
        let daemon = match wants.design {
            Some(design) => Daemon::with_design(design, config, wants.namespace)?,
            None => Daemon::start(binary, config, wants.namespace)?,
        };
        let mut members = guests
            .into_iter()
            .map(|wish| admit(binary, &daemon, wish))
            .collect::<Result<Vec<_>, _>>()?;
        members
            .iter_mut()
            .try_for_each(|member| member.guest_process.wait_for("ready", PATIENCE))?;
        Ok(Bed { members, daemon })
    }

    /// The daemon.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// The guests, in the order in which they were asked for.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The guests' processes.
    pub fn ids(&self) -> Vec<u32> {
        self.members.iter().flat_map(|member| member.guest_process.ids()).collect()
    }
}

impl Member {
    /// The name of its port.
    pub fn port(&self) -> String {
        format!("guests/{}", self.wish.name)
    }

    /// A process in its namespace.
    pub fn id(&self) -> u32 {
        self.guest_process.id()
    }
}

impl Station for Member {
    fn launch(&self, command: &str) -> Result<Task, GuestError> {
        launch_in(self.id(), command)
    }

    fn listens(&self, port: u16) -> Result<bool, GuestError> {
        Ok(listens_in(self.id(), port))
    }
}

fn config(dir: &Path, wants: Wants<'_>) -> String {
    let workers =
        wants.workers.map(|count| format!("[workers]\ncount = {count}\n")).unwrap_or_default();
    let socket = dir.join("guests.sock");
    let port = format!("name = \"guests\"\nkind = \"embedded\"\nsocket = \"{}\"", socket.display());
    format!(
        "{workers}[[port]]\n{port}\nqueues = {}\n{}\n{}\n",
        wants.queues, wants.keys, wants.more
    )
}

fn admit(binary: &Path, daemon: &Daemon, wish: Wish) -> Result<Member, GuestError> {
    let (socket, dir) = (&daemon.dir().join("guests.sock"), daemon.dir());
    let Wish { ref name, ref address, queues, vcpus, single_channel, device_queue } = wish;
    let spec = GuestProcessSpec {
        binary,
        socket,
        dir,
        name,
        address,
        queues,
        vcpus,
        device_queue,
        single_channel,
    };
    // It is there as long as its command runs; what is to be done in it comes later, from outside.
    let guest_process =
        GuestProcess::start(&spec, &["sh", "-c", "echo ready; exec sleep infinity"])?;
    Ok(Member { guest_process, wish })
}
