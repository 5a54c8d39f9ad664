//! The operator's configuration: the configuration file, and descriptions of single ports.

mod access;
mod amount;
mod budget;
mod budget_table;
mod changed_keys;
mod changes;
pub mod defaults;
mod disk;
mod disk_amount;
mod disk_reader;
mod disk_request;
mod disk_settings;
mod disk_table;
mod error;
mod host;
mod key_table;
mod memory_size;
mod metrics;
mod options;
mod overlay;
mod overlay_table;
mod places;
mod port;
mod port_reader;
mod port_settings;
mod port_table;
mod rates;
mod request;
mod sandbox_table;
mod security;
mod security_tables;
mod setting_keys;
mod source;
mod value;
mod workers;
mod xen_disks;

use std::path::{Path, PathBuf};

use network::poll::PollingPolicy;
use toml::Spanned;
use unix_socket::Permissions;

use access::{SocketGroup, SocketMode, SocketOwner};
use budget_table::BudgetTable;
use disk_reader::{Described, Taken};
use disk_table::DiskTable;
use metrics::MetricsTable;
use overlay_table::OverlayTable;
use port_reader::Neighbours;
use port_table::PortTable;
use sandbox_table::SandboxTable;
use security::SecurityTables;
use security_tables::{AddressGroupTable, SecurityGroupTable};
use source::{Place, Problems, Source};
use value::{FromText, Table, TableName, Tables, Text};
use workers::{Workers, WorkersTable};

pub use amount::{BitRate, BurstBytes, Frames};
pub use budget::BudgetSpec;
pub use changes::{budget_changes, disk_changes, port_changes};
pub use defaults::MAX_QUEUES;
pub use disk::{DiskKind, DiskSpec};
pub use disk_amount::{ByteRate, Requests};
pub use disk_settings::{DiskLimits, DiskSettings};
pub use error::{ConfigError, ConfigErrors};
pub use host::Host;
pub use memory_size::MemorySize;
pub use metrics::{MetricsListen, MetricsSpec};
pub use options::{extension_words, options as port_options};
pub use overlay::OverlaySpec;
pub use overlay_table::ControlPlane;
pub use places::Places;
pub use port::{Mode, PortKind, PortSpec};
pub use port_settings::PortSettings;
pub use rates::{DirectionLimits, RateLimits};
pub use sandbox_table::{LiveNeed, SandboxSettings};
pub use security::{AddressGroupSpec, SecuritySpec};
pub use setting_keys::Known;
pub use xen_disks::XenDisksSpec;

/// The default path of the control socket.
pub const DEFAULT_SOCKET: &str = "/run/ringmain/control.sock";
/// The default path of the configuration.
pub const DEFAULT_FILE: &str = "/etc/ringmain/ringmain.toml";

/// A whole configuration, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// How many worker threads.
    pub workers: usize,
    /// The CPU that each worker is pinned to; empty when they are not pinned.
    pub cpus: Vec<u16>,
    /// The CPU of the thread that sends interrupts for the workers, if there shall be one.
    pub interrupt_cpu: Option<u16>,
    /// How workers wait for frames, unless a port sets it.
    pub policy: PollingPolicy,
    /// Whether queue pairs change workers when one is loaded and another is not.
    pub balance: bool,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// The users that may use the control socket; by default, the daemon's user.
    pub permissions: Permissions,
    /// Where metrics are served, if anywhere.
    pub metrics: Option<MetricsSpec>,
    /// The permissions that the sandbox leaves to the daemon.
    pub sandbox: SandboxSettings,
    /// The budgets, in the order of the file.
    pub budgets: Vec<BudgetSpec>,
    /// The address groups and security groups.
    pub security: SecuritySpec,
    /// The ports, in the order of the file.
    pub ports: Vec<PortSpec>,
    /// The overlays, in the order of the file.
    pub overlays: Vec<OverlaySpec>,
    /// The disks, in the order of the file.
    pub disks: Vec<DiskSpec>,
    /// The disks of Xen guests, if they are served.
    pub xen_disks: Option<XenDisksSpec>,
}

impl Config {
    /// Reads the text of a configuration file. `name` is what errors call the file.
    ///
    /// # Errors
    /// All problems of the configuration.
    pub fn parse(name: &str, text: &str, host: &Host) -> Result<Config, ConfigErrors> {
        Config::parse_beside(name, text, host, &Others::default())
    }

    /// Like [`parse`](Self::parse), for a daemon that also has `others`, which are not in the file.
    ///
    /// # Errors
    /// All problems of the configuration.
    pub fn parse_beside(
        name: &str,
        text: &str,
        host: &Host,
        others: &Others<'_>,
    ) -> Result<Config, ConfigErrors> {
        let source = Source::file(name, text);
        let (Table(file), mut problems) = source.read::<Table<File>>();
        let Table(workers) = file.workers.unwrap_or_default();
        let workers = workers::read(workers, host, &mut problems);
        let Table(control) = file.control.unwrap_or_default();
        let socket = control.socket.map_or_else(|| DEFAULT_SOCKET.into(), |Text(path)| path.0);
        let permissions = access::permissions(
            control.mode.map(|Text(mode)| mode),
            control.owner.map(|Text(owner)| owner),
            control.group.map(|Text(group)| group),
        );
        let sandbox =
            sandbox_table::read(file.sandbox.map_or_else(Default::default, |table| table.0));
        let budgets = budgets(file.budget.unwrap_or_default(), &mut problems);
        let names: Vec<String> = budgets.iter().map(|budget| budget.name.clone()).collect();
        let tables = SecurityTables {
            address_groups: file.address_group.unwrap_or_default(),
            security_groups: file.security_group.unwrap_or_default(),
        };
        let security = security::read(tables, &mut problems);
        let groups = security.names();
        let known =
            Known { budgets: Some(&names), security_groups: Some(&groups), ..Known::default() };
        let tables = file.port.unwrap_or_default();
        let ports = ports(tables, (&socket, known), &others.ports, &mut problems);
        let tables = file.overlay.unwrap_or_default();
        let overlays = overlays(tables, &ports, others, &mut problems);
        let tables = file.disk.unwrap_or_default();
        let (disks, xen_disks) = disks(tables, (&socket, &ports), others, &mut problems);
        let metrics = file.metrics.and_then(|table| {
            let at = table.span().start;
            let Table(table) = table.into_inner();
            let mut taken = sockets(&socket, ports.iter());
            let own = |disk: &DiskSpec| format!("disk {:?}", disk.name);
            taken.extend(disks.iter().map(|disk| (disk.socket.as_path(), own(disk))));
            metrics::read(table, at, &taken, &mut problems)
        });
        let Workers { count: workers, cpus, interrupt_cpu, policy, balance } = workers;
        let config = Config {
            workers,
            cpus,
            interrupt_cpu,
            policy,
            balance,
            socket,
            permissions,
            metrics,
            sandbox,
            budgets,
            security,
            ports,
            overlays,
            disks,
            xen_disks,
        };
        problems.finish(Some(config))
    }
}

/// Ports and disks that commands have added to a daemon, and that its file does not have.
#[derive(Clone, Debug, Default)]
pub struct Others<'a> {
    /// The ports.
    pub ports: Vec<&'a PortSpec>,
    /// The disks.
    pub disks: Vec<&'a DiskSpec>,
}

impl<'a> Others<'a> {
    /// The sockets of all of them, each with what errors call its owner.
    fn sockets(&self) -> impl Iterator<Item = (&'a Path, String)> {
        let name = |what, name| format!("{what} {name:?}, which a command has added,");
        let ports = self.ports.iter().filter_map(move |port| {
            Some((port.kind.socket()?.as_path(), name("port", &port.name)))
        });
        let disks =
            self.disks.iter().map(move |disk| (disk.socket.as_path(), name("disk", &disk.name)));
        ports.chain(disks)
    }
}

/// The whole file as written.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    workers: Option<Table<WorkersTable>>,
    control: Option<Table<ControlTable>>,
    metrics: Option<Spanned<Table<MetricsTable>>>,
    sandbox: Option<Table<SandboxTable>>,
    budget: Option<Tables<BudgetTable>>,
    #[serde(rename = "address-group")]
    address_group: Option<Tables<AddressGroupTable>>,
    #[serde(rename = "security-group")]
    security_group: Option<Tables<SecurityGroupTable>>,
    port: Option<Tables<PortTable>>,
    overlay: Option<Tables<OverlayTable>>,
    disk: Option<Tables<DiskTable>>,
}

impl TableName for File {
    const EXPECTED: &'static str = "a table";
}

/// The `[control]` table.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ControlTable {
    socket: Option<Text<ControlSocket>>,
    mode: Option<Text<SocketMode>>,
    owner: Option<Text<SocketOwner>>,
    group: Option<Text<SocketGroup>>,
}

impl TableName for ControlTable {
    const EXPECTED: &'static str = "a table; write [control]";
}

/// The path of the control socket.
#[derive(Clone, Debug)]
struct ControlSocket(PathBuf);

impl FromText for ControlSocket {
    fn right() -> String {
        format!("the path of a socket, like {DEFAULT_SOCKET:?}")
    }

    fn from_text(text: &str) -> Result<Self, String> {
        port_table::socket_path(text).map(ControlSocket)
    }
}

fn budgets(Tables(tables): Tables<BudgetTable>, problems: &mut Problems<'_>) -> Vec<BudgetSpec> {
    let (mut budgets, mut names) = (Vec::new(), Vec::new());
    for (index, table) in tables.into_iter().enumerate() {
        let (path, at) = (format!("budget[{index}]"), table.span().start);
        let Table(table) = table.into_inner();
        if let Some(budget) = budget::read(table, (&path, at), &names, problems) {
            names.push(budget.name.clone());
            budgets.push(budget);
        }
    }
    budgets
}

/// The sockets of ports and the control socket, each with its name in errors.
pub(crate) fn sockets<'a>(
    control: &'a Path,
    ports: impl Iterator<Item = &'a PortSpec>,
) -> Vec<(&'a Path, String)> {
    let own = |port: &'a PortSpec| Some((port.kind.socket()?, format!("port {:?}", port.name)));
    let mut all: Vec<_> =
        ports.filter_map(own).map(|(path, owner)| (path.as_path(), owner)).collect();
    all.push((control, "the control socket".to_owned()));
    all
}

fn disks(
    Tables(tables): Tables<DiskTable>,
    (control, ports): (&Path, &[PortSpec]),
    others: &Others<'_>,
    problems: &mut Problems<'_>,
) -> (Vec<DiskSpec>, Option<XenDisksSpec>) {
    let (mut disks, mut xen): (Vec<(DiskSpec, String)>, Option<XenDisksSpec>) = (Vec::new(), None);
    for (index, table) in tables.into_iter().enumerate() {
        let path = format!("disk[{index}]");
        let place = Place { path: &path, at: table.span().start };
        let mut sockets = sockets(control, ports.iter());
        sockets.extend(others.sockets());
        let mut taken = Taken { names: Vec::new(), sockets, xen: xen.is_some() };
        taken.names.extend(xen.as_ref().map(|xen| xen.name.as_str()));
        for (disk, owner) in &disks {
            taken.names.push(&disk.name);
            taken.sockets.push((&disk.socket, owner.clone()));
        }
        let Table(table) = table.into_inner();
        match disk_reader::read(table, &place, &taken, problems) {
            Some(Described::Disk(disk)) => disks.push((disk, path)),
            Some(Described::Xen(described)) => xen = Some(described),
            None => {}
        }
    }
    (disks.into_iter().map(|(disk, _)| disk).collect(), xen)
}

fn overlays(
    Tables(tables): Tables<OverlayTable>,
    ports: &[PortSpec],
    others: &Others<'_>,
    problems: &mut Problems<'_>,
) -> Vec<OverlaySpec> {
    let mut overlays: Vec<OverlaySpec> = Vec::new();
    for (index, table) in tables.into_iter().enumerate() {
        let path = format!("overlay[{index}]");
        let place = Place { path: &path, at: table.span().start };
        let live = others.ports.iter().copied();
        let ports = ports.iter().chain(live).collect();
        let neighbours = overlay::Neighbours { ports, overlays: &overlays };
        let Table(table) = table.into_inner();
        let overlay = overlay::read(table, &place, &neighbours, problems);
        overlays.extend(overlay);
    }
    overlays
}

fn ports(
    Tables(tables): Tables<PortTable>,
    (control, known): (&Path, Known<'_>),
    others: &[&PortSpec],
    problems: &mut Problems<'_>,
) -> Vec<PortSpec> {
    let mut ports: Vec<(PortSpec, String)> = Vec::new();
    let live = |port: &PortSpec| format!("port {:?}, which a command has added,", port.name);
    let own = tables.iter().filter_map(|table| table.get_ref().0.can_mirror());
    let added = others.iter().filter(|port| port.kind.kind().can_mirror());
    let mirrors: Vec<String> = own.chain(added.map(|port| port.name.clone())).collect();
    let live: Vec<_> = others.iter().map(|port| (*port, live(port))).collect();
    for (index, table) in tables.into_iter().enumerate() {
        let path = format!("port[{index}]");
        let place = Place { path: &path, at: table.span().start };
        let own = ports.iter().map(|(port, path)| (port, path.clone()));
        let all = own.chain(live.iter().cloned()).collect();
        let known = Known { mirrors: Some(&mirrors), ..known };
        let neighbours = Neighbours { control, ports: all, known };
        let Table(table) = table.into_inner();
        if let Some(port) = port_reader::read(table, place, &neighbours, problems) {
            ports.push((port, path));
        }
    }
    ports.into_iter().map(|(port, _)| port).collect()
}

#[cfg(test)]
mod tests;
