//! The plan of the sandbox for a daemon with a certain configuration.

use std::path::{Path, PathBuf};

use hostlink::route_socket::{LinkKind, link_kind};
use sandbox::{
    Access, Capability, CapabilitySet, Extras, Group, Layer, LayerReport, LayerState,
    Path as Needed, Plan, User,
};
use unix_socket::Permissions;

use crate::config::{Config, LiveNeed, MetricsSpec, Mode, PortKind, PortSpec};
use crate::disks::OpenImages;

mod overlays;

pub use overlays::refuses_overlay;
use overlays::{needs_card, needs_evpn, needs_overlays, needs_tap};

/// The user for the daemon, where the system has one.
const USER: &str = "ringmain";
/// The number of root. Others cannot change their user.
const ROOT: u32 = 0;
/// The user that owns nothing, for systems without a user for the daemon.
const NOBODY: &str = "nobody";
/// The number of that user, where the system has no list of users.
const NOBODY_NUMBER: &str = "65534";

/// A sandbox that the process has entered.
#[derive(Debug, Default)]
pub struct Confinement {
    /// The layers, and which of them are active.
    pub layers: Vec<LayerReport>,
    /// The user that the process has changed to, if it has. Other programs may run as the same
    /// user, and must not command the daemon.
    pub user: Option<u32>,
    /// Images that were opened before.
    pub images: OpenImages,
}

impl Confinement {
    /// The sandbox of a process that was started by a user, has opened `images`, and has entered
    /// `plan`.
    pub fn new(
        started_by: u32,
        plan: &Plan,
        layers: Vec<LayerReport>,
        images: OpenImages,
    ) -> Confinement {
        let changed = layers.iter().any(|report| {
            report.layer == Layer::User && matches!(report.state, LayerState::Active(_))
        });
        let other = |user: &&User| changed && started_by == ROOT && user.uid != ROOT;
        let user = plan.user.as_ref().ok().filter(other).map(|user| user.uid);
        Confinement { layers, user, images }
    }
}

/// Whether a daemon with this configuration serves disks, now or later.
pub fn needs_disks(config: &Config) -> bool {
    !config.disks.is_empty()
        || config.xen_disks.is_some()
        || config.sandbox.live.contains(&LiveNeed::Disk)
}

/// The permissions that the sandbox leaves to a daemon with this configuration, which was read from
/// `file`.
pub fn plan(config: &Config, file: &Path) -> Plan {
    let needs = Needs { config, user: user(config) };
    let mut paths = needs.folders();
    paths.push(Needed { path: "/proc".into(), access: Access::Read });
    let folder = absolute(file).parent().map(Path::to_owned);
    // A configuration in the root folder would open everything.
    let folder = folder.filter(|folder| folder.parent().is_some());
    paths.extend(folder.map(|path| Needed { path, access: Access::Read }));
    let taps = needs.has(LiveNeed::Tap) || needs_tap(config);
    let cards = needs_card(config);
    if taps {
        paths.push(Needed { path: "/dev/net/tun".into(), access: Access::Device });
    }
    if needs.has(LiveNeed::Xen) {
        paths.push(Needed { path: "/dev/xen".into(), access: Access::Device });
        paths.push(Needed { path: "/run/xenstored".into(), access: Access::Read });
    }
    let extras = Extras {
        interfaces: taps,
        device_queues: needs.has(LiveNeed::DeviceQueue) || cards,
        disks: needs_disks(config),
        overlays: needs_overlays(config),
        routing: needs_evpn(config) || needs_tap(config) || cards,
    };
    let (capabilities, groups) = (needs.capabilities(), needs.groups());
    let without = config.sandbox.without.clone();
    Plan { user: needs.user, groups, capabilities, paths: unique(paths), extras, without }
}

/// Why a port cannot be added to a daemon that was started with `config`, and whose sandbox has
/// these layers: the calls of such a port would end the process.
pub fn refusal(config: &Config, layers: &[LayerReport], port: &PortSpec) -> Option<String> {
    let filters = |report: &LayerReport| {
        report.layer == Layer::Seccomp && !matches!(report.state, LayerState::Missing(_))
    };
    let need = need_of(port).filter(|_| layers.iter().any(filters))?;
    let needs = Needs { config, user: user(config) };
    let word = match need {
        LiveNeed::Tap => "tap",
        LiveNeed::DeviceQueue => "device-queue",
        // The system refuses these without their paths and capabilities.
        LiveNeed::Client | LiveNeed::Xen | LiveNeed::Disk | LiveNeed::Overlay => return None,
    };
    (!needs.has(need)).then(|| {
        format!(
            "port {:?}: the sandbox leaves nothing for it; give sandbox.live = [{word:?}], and \
             restart the daemon",
            port.name
        )
    })
}

/// The user to run as, or why the daemon stays root.
fn user(config: &Config) -> Result<User, String> {
    if let Some(user) = &config.sandbox.user {
        return Ok(user.clone());
    }
    if config.ports.iter().any(|port| port.kind == PortKind::Xen)
        || config.xen_disks.is_some()
        || config.sandbox.live.contains(&LiveNeed::Xen)
    {
        return Err("Xen's devices belong to root; sandbox.user names another user".to_owned());
    }
    let found = [USER, NOBODY, NOBODY_NUMBER].into_iter().find_map(|name| User::find(name).ok());
    found.ok_or_else(|| "this host has no user for it; give sandbox.user".to_owned())
}

/// The needs of ports.
struct Needs<'a> {
    config: &'a Config,
    user: Result<User, String>,
}

impl Needs<'_> {
    /// Whether configured ports or those that may be added need something. A daemon without ports
    /// gets all of them later, and interfaces of the host are usual then.
    fn has(&self, need: LiveNeed) -> bool {
        let configured = self.config.ports.iter().any(|port| need_of(port) == Some(need))
            || (need == LiveNeed::Xen && self.config.xen_disks.is_some());
        let empty = self.is_empty() && need == LiveNeed::Tap;
        configured || empty || self.config.sandbox.live.contains(&need)
    }

    /// Whether nothing is configured, so that everything is added later.
    fn is_empty(&self) -> bool {
        let Config { ports, overlays, disks, xen_disks, .. } = self.config;
        ports.is_empty() && overlays.is_empty() && disks.is_empty() && xen_disks.is_none()
    }

    /// Folders of sockets and of images.
    fn folders(&self) -> Vec<Needed> {
        let sockets = self.config.ports.iter().filter_map(|port| port.kind.socket());
        let sockets = sockets.chain(self.config.disks.iter().map(|disk| &disk.socket));
        let metrics = self.config.metrics.as_ref().and_then(MetricsSpec::path);
        let own = [&self.config.socket].into_iter().chain(metrics);
        let parents = sockets.chain(own).filter_map(|socket| {
            let socket = absolute(socket);
            socket.parent().map(Path::to_owned)
        });
        let images = self.config.xen_disks.iter().flat_map(|xen| &xen.folders);
        let images = images.map(|path| (path.clone(), Access::Images));
        let of_live = if needs_disks(self.config) { Access::Images } else { Access::Sockets };
        let live = self.config.sandbox.folders.iter().map(|path| (path.clone(), of_live));
        let sockets = parents.map(|path| (path, Access::Sockets));
        // The first entry of a duplicate folder counts.
        let all = images.chain(live).chain(sockets);
        all.map(|(path, access)| Needed { path, access }).collect()
    }

    /// The users that may use each socket.
    fn permissions(&self) -> impl Iterator<Item = Permissions> {
        let ports = self.config.ports.iter().map(|port| port.permissions);
        let disks = self.config.disks.iter().map(|disk| disk.permissions);
        let metrics = self.config.metrics.iter().map(|metrics| metrics.permissions);
        ports.chain(disks).chain(metrics).chain([self.config.permissions])
    }

    /// The groups of sockets: members can give their files to them.
    fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<u32> = self.permissions().filter_map(|socket| socket.group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.into_iter().map(Group).collect()
    }

    fn capabilities(&self) -> Vec<Capability> {
        let mut needed = Vec::new();
        let mut need = |set, reason: String| needed.push(Capability { set, reason });
        for port in &self.config.ports {
            if let PortKind::Tap { device } = &port.kind
                && !self.is_ready(device, port)
            {
                need(CapabilitySet::NET_ADMIN, format!("port {} creates {device}", port.name));
            }
        }
        if needs_evpn(self.config) {
            need(
                CapabilitySet::NET_ADMIN,
                "EVPN: guests are announced by the kernel's tables".to_owned(),
            );
        }
        if needs_tap(self.config) {
            need(
                CapabilitySet::NET_ADMIN,
                "underlay = \"tap\": the device, its route, and its address".to_owned(),
            );
        }
        let live = |wanted| self.config.sandbox.live.contains(&wanted);
        if live(LiveNeed::Tap) || self.is_empty() {
            need(CapabilitySet::NET_ADMIN, "TAPs of ports that are added later".to_owned());
        }
        if self.has(LiveNeed::Client) {
            need(CapabilitySet::DAC_OVERRIDE, "sockets of other users".to_owned());
        }
        if self.has(LiveNeed::DeviceQueue) || needs_card(self.config) {
            let network = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW;
            let set = network | CapabilitySet::BPF | CapabilitySet::IPC_LOCK;
            need(set, "queues of cards".to_owned());
        }
        if self.gives_files_away() {
            need(CapabilitySet::CHOWN, "owners of sockets".to_owned());
        }
        needed
    }

    /// Whether a socket gets another owner.
    fn gives_files_away(&self) -> bool {
        let own = self.user.as_ref().map_or(0, |user| user.uid);
        self.permissions().filter_map(|socket| socket.owner).any(|owner| owner != own)
    }

    /// Whether an interface exists already, and the user may open its queues without any
    /// capability. Setting the MTU always needs a capability.
    fn is_ready(&self, device: &str, port: &PortSpec) -> bool {
        let Ok(Some(LinkKind::MultiQueueTap(access))) = link_kind(device) else { return false };
        let (user, group) = self.user.as_ref().map_or((0, 0), |user| (user.uid, user.gid));
        port.mtu.is_none() && access.allows(user, group)
    }
}

/// The need of a port that the sandbox does not meet otherwise.
fn need_of(port: &PortSpec) -> Option<LiveNeed> {
    match &port.kind {
        PortKind::Tap { .. } => Some(LiveNeed::Tap),
        PortKind::VhostUser { mode: Mode::Client, .. } => Some(LiveNeed::Client),
        PortKind::Xen => Some(LiveNeed::Xen),
        PortKind::Embedded { device_queue: Some(_), .. } => Some(LiveNeed::DeviceQueue),
        PortKind::VhostUser { .. } | PortKind::Embedded { .. } => None,
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Each path once. A folder of sockets can also be read.
fn unique(paths: Vec<Needed>) -> Vec<Needed> {
    let mut all: Vec<Needed> = Vec::new();
    for path in paths {
        if all.iter().all(|other| other.path != path.path) {
            all.push(path);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Host;

    fn plan_of(text: &str) -> Plan {
        let host = Host { cpus: vec![0] };
        let config = Config::parse("test", text, &host).unwrap();
        plan(&config, Path::new("/etc/ringmain/ringmain.toml"))
    }

    fn capabilities(plan: &Plan) -> CapabilitySet {
        plan.capabilities.iter().fold(CapabilitySet::empty(), |all, one| all | one.set)
    }

    const GUEST: &str = "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"/run/vms/a\"\n";

    #[test]
    fn a_guest_over_a_socket_needs_no_capability() {
        let plan = plan_of(GUEST);
        assert_eq!(capabilities(&plan), CapabilitySet::empty());
        assert_eq!(plan.extras, Extras::default());
        let path = |path: &str, access| Needed { path: path.into(), access };
        let want = [
            path("/run/vms", Access::Sockets),
            path("/run/ringmain", Access::Sockets),
            path("/proc", Access::Read),
            path("/etc/ringmain", Access::Read),
        ];
        assert_eq!(plan.paths, want);
    }

    #[test]
    fn each_kind_of_port_adds_what_it_needs() {
        let with = |rest: &str| plan_of(&format!("{GUEST}{rest}"));
        let tap = with("[[port]]\nname = \"b\"\nkind = \"tap\"\ndevice = \"rm-nowhere\"\n");
        assert_eq!(capabilities(&tap), CapabilitySet::NET_ADMIN);
        assert!(tap.extras.interfaces && !tap.extras.device_queues);
        let client = with("mode = \"client\"\n");
        assert_eq!(capabilities(&client), CapabilitySet::DAC_OVERRIDE);
        let owner = with("socket-owner = \"4000123\"\nsocket-group = \"4000124\"\n");
        assert_eq!(capabilities(&owner), CapabilitySet::CHOWN);
        assert_eq!(owner.groups, [Group(4_000_124)]);
        let xen = with("[[port]]\nname = \"b\"\nkind = \"xen\"\n");
        assert!(xen.user.is_err() && capabilities(&xen).is_empty());
        assert!(xen.paths.iter().any(|path| path.path == Path::new("/dev/xen")));
        let overlay = "[[overlay]]\nname = \"n\"\nvni = 1\nlocal = \"10.0.0.1\"\n";
        let fixed = with(overlay);
        assert!(capabilities(&fixed).is_empty() && fixed.extras.overlays && !fixed.extras.routing);
        let evpn = with(&format!("{overlay}control = \"evpn\"\n"));
        assert!(capabilities(&evpn) == CapabilitySet::NET_ADMIN && evpn.extras.routing);
        let tap = with(&format!("{overlay}underlay = \"tap\"\ndevice = \"rm0\"\n"));
        assert!(capabilities(&tap) == CapabilitySet::NET_ADMIN && tap.extras.interfaces);
        assert!(tap.extras.routing && !tap.extras.device_queues);
        let card = with(&format!("{overlay}underlay = \"xdp\"\ndevice = \"lo\"\n"));
        assert!(capabilities(&card).contains(CapabilitySet::BPF) && card.extras.device_queues);
        let disks = with("[[disk]]\nname = \"v\"\nkind = \"xen\"\nimages = [\"/srv/images\"]\n");
        assert!(disks.user.is_err() && disks.extras.disks);
        for (path, access) in [("/dev/xen", Access::Device), ("/srv/images", Access::Images)] {
            let wanted = Needed { path: path.into(), access };
            assert!(disks.paths.contains(&wanted), "{path}");
        }
    }

    #[test]
    fn the_configuration_allows_for_ports_that_come_later() {
        let plan = plan_of(&format!(
            "[sandbox]\nuser = \"0\"\nfolders = [\"/srv/x\"]\nlive = [\"tap\", \"client\"]\n\
             without = [\"landlock\"]\n{GUEST}"
        ));
        let want = CapabilitySet::NET_ADMIN | CapabilitySet::DAC_OVERRIDE;
        assert_eq!(capabilities(&plan), want);
        assert_eq!(
            (plan.user.as_ref().unwrap().uid, &plan.without[..]),
            (0, &[Layer::Landlock][..])
        );
        let folder = |access| Needed { path: "/srv/x".into(), access };
        assert!(plan.paths.contains(&folder(Access::Sockets)));
        let plan = plan_of("[sandbox]\nfolders = [\"/srv/x\"]\nlive = [\"disk\"]\n");
        assert!(plan.paths.contains(&folder(Access::Images)), "devices can be images");
        // The ports that an empty configuration gets later are unknown.
        assert_eq!(capabilities(&plan_of("")), CapabilitySet::NET_ADMIN);
    }
}
