//! What attaches a port to its peer. This is the place where kinds of ports are listed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use hostlink::tap::{Tap, TapConfig, TapError};
use hostlink::xdp::{Uplink, XdpError};
use hypervisor::DomId;
use hypervisor::embedded::server::{Server, ServerConfig, ServerError};
use hypervisor::embedded::{CopyUsage, Design, Machine, Version};
use hypervisor::xen::OpenError;
use network::count::QueueCounters;
use network::fabric::Fabric;
use switch::{PortId, Vlan};
use vhost_user::net::{self, PortConfig, StartError};
use vhost_user::transport::server;
use vhost_user::transport::status::State;
use xen::netif::extensions::Extensions;
use xen::netif::options::PortOptions;
use xen::netif::service::{Service, ServiceConfig, ServiceError};
use xen::netif::settings::SCRIPT;
use xen::netif::status::VifStatus;

use crate::api::PortState;
use crate::config::{Mode, PortKind, PortSpec, extensions};
use crate::profile::{PATIENCE, Subject};
use crate::uplink::Device;

/// Why a port cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No directory for its socket.
    #[error("cannot create {}: {error}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The vhost-user side refuses.
    #[error(transparent)]
    VhostUser(#[from] StartError),
    /// The TAP side refuses.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// There is no Xen here, or we may not use it.
    #[error("Xen can't be used: {0}")]
    Xen(#[from] OpenError),
    /// The vifs can't be served.
    #[error(transparent)]
    Vifs(#[from] ServiceError),
    /// Guests can't come.
    #[error(transparent)]
    Guests(#[from] ServerError),
    /// A device gives no queues.
    #[error(transparent)]
    Uplink(#[from] XdpError),
    /// There are no addresses left to map their pages at.
    #[error("mapping guests' pages: {0}")]
    Pages(io::Error),
}

/// How long a frontend may post no buffers, while frames for it come, before it counts as stalled;
/// as with Linux' backend.
const STALL: Duration = Duration::from_secs(10);

/// A port in service. Dropping it takes it out of the fabric, and its socket away.
pub enum Link {
    /// A guest.
    VhostUser(net::Port),
    /// The host.
    Tap(Tap),
    /// All vifs of this domain.
    Xen(Service),
    /// Processes as guests. First nobody comes any more, then nobody is served.
    Embedded(Server, Service),
}

/// A port that another stands for.
pub struct Vif {
    /// What it is called.
    pub name: String,
    /// Its kind, in configurations.
    pub kind: &'static str,
    /// The process behind it, if that is known.
    pub peer: Option<i32>,
    /// What it has had the hypervisor do, if that is one of ours.
    pub spent: Option<CopyUsage>,
    /// How it is doing.
    pub status: VifStatus,
}

/// How a link is doing.
pub struct Condition {
    /// How it stands with its peer.
    pub state: PortState,
    /// Why it is stopped, or what ended its last session.
    pub reason: Option<String>,
    /// Names of negotiated features.
    pub features: Vec<&'static str>,
    /// Process id of the peer.
    pub peer: Option<i32>,
    /// Connections so far.
    pub connections: u64,
    /// Connections that ended because the peer broke the protocol.
    pub violations: u64,
}

impl Condition {
    /// Nothing but a state.
    fn of(state: PortState) -> Condition {
        Condition {
            state,
            reason: None,
            features: Vec::new(),
            peer: None,
            connections: 0,
            violations: 0,
        }
    }
}

impl Link {
    /// Puts a port into service in a daemon with so many workers.
    pub fn start(fabric: &Arc<Fabric>, spec: &PortSpec, workers: usize) -> Result<Link, LinkError> {
        let fabric = Arc::clone(fabric);
        let queues = spec.queue_pairs(workers);
        match &spec.kind {
            PortKind::VhostUser { socket, mode } => {
                let mode = match mode {
                    Mode::Server => {
                        make_room(socket)?;
                        server::Mode::Server
                    }
                    Mode::Client => server::Mode::Client,
                };
                let (name, socket) = (spec.name.clone(), socket.clone());
                let (rule, PortOptions { coalescing, policy, .. }) = (spec.rule(), spec.options);
                let config = PortConfig {
                    name,
                    socket,
                    mode,
                    queues,
                    mtu: spec.mtu,
                    rule,
                    coalescing,
                    policy,
                };
                Ok(Link::VhostUser(net::Port::start(fabric, config)?))
            }
            PortKind::Tap { device } => {
                let (device, policy) = (device.clone(), spec.options.policy);
                let config = TapConfig { device, queues, rule: spec.rule(), mtu: spec.mtu, policy };
                Ok(Link::Tap(Tap::start(fabric, config)?))
            }
            PortKind::Xen => {
                let config = ServiceConfig { queues, stall: STALL, options: spec.options };
                Ok(Link::Xen(Service::start(fabric, hypervisor::xen::open()?, config)?))
            }
            PortKind::Embedded { socket, design, extensions, device_queue } => {
                let uplink = device_queue.as_deref().map(uplink).transpose()?;
                embedded(fabric, spec, socket, (*design, *extensions), (queues, uplink))
            }
        }
    }

    /// The port's number in the fabric. `None`: it is no port itself, but stands for many.
    pub fn id(&self) -> Option<PortId> {
        match self {
            Link::VhostUser(device) => Some(device.port()),
            Link::Tap(tap) => Some(tap.port()),
            Link::Xen(_) | Link::Embedded(..) => None,
        }
    }

    /// The vifs that it stands for; `name` is its own.
    pub fn vifs(&self, name: &str) -> Vec<Vif> {
        match self {
            Link::VhostUser(_) | Link::Tap(_) => Vec::new(),
            Link::Xen(service) => {
                let vif = |status: VifStatus| Vif {
                    name: status.id.to_string(),
                    kind: "xen",
                    peer: None,
                    spent: None,
                    status,
                };
                service.vifs().into_iter().map(vif).collect()
            }
            Link::Embedded(server, service) => {
                let guest_processes = server.guest_processes();
                let vif = |status: VifStatus| {
                    // One that has just gone has a number only.
                    let guest_process = guest_processes.get(&status.id.domain);
                    let own = guest_process.map_or_else(
                        || status.id.to_string(),
                        |guest_process| guest_process.name.clone(),
                    );
                    let peer = guest_process.map(|guest_process| guest_process.process);
                    let spent = guest_process.map(|guest_process| guest_process.copy_usage);
                    Vif { name: format!("{name}/{own}"), kind: "embedded", peer, spent, status }
                };
                service.vifs().into_iter().map(vif).collect()
            }
        }
    }

    /// The ports that it is or stands for, and what their guests say of their time when they are
    /// asked under this number.
    pub fn subjects(&self, name: &str, kind: &'static str, number: u64) -> Vec<Subject> {
        if let Some(port) = self.id() {
            return vec![Subject { name: name.to_owned(), kind, port, guest: None }];
        }
        let said = match self {
            Link::Embedded(_, service) => service.request_times(number, PATIENCE),
            // A stock frontend says nothing.
            _ => BTreeMap::new(),
        };
        let subject = |Vif { name, kind, status, .. }: Vif| {
            let guest = said.get(&status.id).copied();
            Some(Subject { name, kind, port: status.port?, guest })
        };
        self.vifs(name).into_iter().filter_map(subject).collect()
    }

    /// What was counted on vifs that are gone, to be taken out. While it is held no vif goes.
    pub fn gone(&self) -> Option<MutexGuard<'_, Vec<Arc<QueueCounters>>>> {
        match self {
            Link::VhostUser(_) | Link::Tap(_) => None,
            Link::Xen(service) | Link::Embedded(_, service) => Some(service.removed()),
        }
    }

    /// Takes the port out of service; what was counted on it and not taken before.
    pub fn end(self, fabric: &Fabric) -> Vec<Arc<QueueCounters>> {
        let counters = self.id().map(|id| fabric.counters(id)).unwrap_or_default();
        match self {
            Link::Xen(service) => service.end(),
            Link::Embedded(server, service) => {
                // Guests go first, so that none comes to a port that is being left.
                drop(server);
                service.end()
            }
            // They are still counted on while it is dropped.
            Link::VhostUser(_) | Link::Tap(_) => counters,
        }
    }

    /// Why the port is out of service for good.
    pub fn failure(&self) -> Option<String> {
        match self {
            // It meets its next front-end by itself.
            Link::VhostUser(_) => None,
            Link::Tap(tap) => tap.stopped().map(|breach| breach.to_string()),
            // It meets its frontends by itself, too.
            Link::Xen(_) | Link::Embedded(..) => None,
        }
    }

    /// How it is doing.
    pub fn condition(&self) -> Condition {
        match self {
            Link::VhostUser(device) => {
                let status = device.status();
                let state = match status.state {
                    State::Listening => PortState::Listening,
                    State::Connecting => PortState::Connecting,
                    State::Connected => PortState::Connected,
                    State::Removed => PortState::Stopped,
                };
                Condition {
                    state,
                    reason: status.reason,
                    features: net::feature::names(status.features),
                    peer: status.peer,
                    connections: status.connections,
                    violations: status.violations,
                }
            }
            Link::Tap(_) => {
                let reason = self.failure();
                let state =
                    if reason.is_some() { PortState::Stopped } else { PortState::Connected };
                Condition { state, reason, ..Condition::of(state) }
            }
            Link::Xen(_) | Link::Embedded(..) => Condition::of(PortState::Listening),
        }
    }
}

/// A device whose receive queues guests can have.
fn uplink(device: &str) -> Result<Arc<dyn xen::netif::device_queue::Uplink>, XdpError> {
    Ok(Arc::new(Device(Uplink::open(device)?)))
}

/// Serves processes as guests of a host of their own.
fn embedded(
    fabric: Arc<Fabric>,
    spec: &PortSpec,
    socket: &Path,
    (design, extensions): (Design, Extensions),
    (queues, uplink): (u16, Option<Arc<dyn xen::netif::device_queue::Uplink>>),
) -> Result<Link, LinkError> {
    make_room(socket)?;
    let machine = Machine::new(design);
    let hypervisor = machine.hypervisor(DomId(0)).map_err(LinkError::Pages)?;
    let config = ServiceConfig { queues, stall: STALL, options: spec.options };
    let service = Service::start_with(fabric, hypervisor, config, uplink)?;
    let mut keys = vec![("script".to_owned(), SCRIPT.to_owned())];
    match &spec.vlan {
        Vlan::None => {}
        Vlan::Access(vlan) => keys.push(("ringmain/vlan".into(), vlan.to_string())),
        Vlan::Trunk(list) => {
            let list: Vec<String> = list.iter().map(u16::to_string).collect();
            keys.push(("ringmain/trunk".into(), list.join(":")));
        }
    }
    keys.extend(spec.mtu.map(|mtu| ("ringmain/mtu".to_owned(), mtu.to_string())));
    keys.extend(
        extensions::words(extensions)
            .map(|(key, value)| (format!("ringmain/{key}"), value.to_owned())),
    );
    let version = if extensions.ranges { Version::V2 } else { Version::V1 };
    let server = Server::start(machine, ServerConfig { socket: socket.to_owned(), keys, version })?;
    Ok(Link::Embedded(server, service))
}

/// Creates the directory that a socket is to be in.
fn make_room(socket: &Path) -> Result<(), LinkError> {
    let Some(directory) = socket.parent().filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(());
    };
    let failed = |error| LinkError::Directory { path: directory.to_owned(), error };
    std::fs::create_dir_all(directory).map_err(failed)
}
