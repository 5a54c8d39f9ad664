//! What attaches a port to its peer. This is the place where the kinds of ports are listed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use hostlink::tap::{Tap, TapConfig, TapError};
use hostlink::xdp::{Uplink, XdpError};
use hypervisor::DomId;
use hypervisor::embedded::server::{Server, ServerConfig};
use hypervisor::embedded::{Machine, Version};
use hypervisor::xen::OpenError;
use network::count::QueueCounters;
use network::fabric::Fabric;
use switch::{PortId, Vlan};
use unix_socket::SocketError;
use vhost_user::net::{self, PortConfig, StartError};
use vhost_user::transport::server;
use vhost_user::transport::status::State;
use xen::netif::extensions::Extensions;
use xen::netif::options::PortOptions;
use xen::netif::service::{Service, ServiceConfig, ServiceError};
use xen::netif::settings::SCRIPT;
use xen::netif::status::VifStatus;

use crate::api::PortState;
use crate::config::{Mode, PortKind, PortSpec, extension_words};
use crate::kind::Kind;
use crate::profile::{GUEST_TIMEOUT, Subject};
use crate::uplink::Device;
use crate::vif::Vif;

/// Why a port cannot be put into service.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The directory of its socket cannot be created.
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
    /// There is no Xen here, or this process may not use it.
    #[error("Xen can't be used: {0}")]
    Xen(#[from] OpenError),
    /// The vifs cannot be served.
    #[error(transparent)]
    Vifs(#[from] ServiceError),
    /// Guests cannot connect.
    #[error(transparent)]
    Guests(#[from] SocketError),
    /// A device gives no queues.
    #[error(transparent)]
    Uplink(#[from] XdpError),
    /// There are no addresses left to map the guests' pages at.
    #[error("cannot map guests' pages: {0}")]
    Pages(io::Error),
}

/// How long a frontend may post no buffers, while there are frames for it, before it counts as
/// stalled; Linux' backend has the same limit.
const STALL: Duration = Duration::from_secs(10);

/// A port in service. Dropping it takes the port out of the fabric, and removes its socket.
pub enum Backend {
    /// A guest.
    VhostUser(net::Port),
    /// The host.
    Tap {
        /// The interface's name.
        device: String,
        /// The interface.
        tap: Tap,
    },
    /// All vifs of this domain.
    Xen(Service),
    /// Processes as guests. The server is dropped first: then no guest connects any more.
    Embedded(Server, Service),
}

/// The state of a port's backend.
pub struct Condition {
    /// The state with respect to the peer.
    pub state: PortState,
    /// Why the port is stopped or down, or what ended its last session.
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
    /// A state, and a reason for it.
    pub fn new(state: PortState, reason: Option<String>) -> Condition {
        let features = Vec::new();
        Condition { state, reason, features, peer: None, connections: 0, violations: 0 }
    }
}

impl Backend {
    /// Puts a port into service in a daemon with so many workers.
    pub fn start(
        fabric: &Arc<Fabric>,
        spec: &PortSpec,
        workers: usize,
    ) -> Result<Backend, BackendError> {
        let queues = spec.queue_pairs(workers);
        match &spec.kind {
            PortKind::VhostUser { socket, mode } => vhost_user(fabric, spec, socket, *mode, queues),
            PortKind::Tap { device } => {
                let (rule, policy) = (spec.rule(), spec.options.policy);
                let config =
                    TapConfig { device: device.clone(), queues, rule, mtu: spec.mtu, policy };
                let tap = Tap::start(Arc::clone(fabric), config)?;
                Ok(Backend::Tap { device: device.clone(), tap })
            }
            PortKind::Xen => {
                let config = ServiceConfig { queues, stall: STALL, options: spec.options };
                let hypervisor = hypervisor::xen::open()?;
                Ok(Backend::Xen(Service::start(Arc::clone(fabric), hypervisor, config)?))
            }
            PortKind::Embedded { socket, design, extensions, device_queue } => {
                let uplink = device_queue.as_deref().map(uplink).transpose()?;
                create_directory(socket)?;
                let machine = Machine::new(*design);
                let hypervisor = machine.hypervisor(DomId(0)).map_err(BackendError::Pages)?;
                let config = ServiceConfig { queues, stall: STALL, options: spec.options };
                let fabric = Arc::clone(fabric);
                let service = Service::start_with(fabric, hypervisor, config, uplink)?;
                let version = if extensions.ranges { Version::V2 } else { Version::V1 };
                let keys = guest_keys(spec, *extensions);
                let config = ServerConfig { socket: socket.clone(), keys, version };
                Ok(Backend::Embedded(Server::start(machine, config)?, service))
            }
        }
    }

    /// The port's number in the fabric. `None`: this is no port itself, but stands for many.
    pub fn id(&self) -> Option<PortId> {
        match self {
            Backend::VhostUser(device) => Some(device.port()),
            Backend::Tap { tap, .. } => Some(tap.port()),
            Backend::Xen(_) | Backend::Embedded(..) => None,
        }
    }

    /// The vifs that the port stands for; `name` is the port's own.
    pub fn vifs(&self, name: &str) -> Vec<Vif> {
        match self {
            Backend::VhostUser(_) | Backend::Tap { .. } => Vec::new(),
            Backend::Xen(service) => {
                let vif = |status: VifStatus| {
                    let name = status.id.to_string();
                    Vif { name, kind: Kind::Xen, peer: None, copy_usage: None, status }
                };
                service.vifs().into_iter().map(vif).collect()
            }
            Backend::Embedded(server, service) => {
                let guests = server.guest_processes();
                let vif = |status: VifStatus| {
                    // A guest that has just gone has a number only.
                    let guest = guests.get(&status.id.domain);
                    let own =
                        guest.map_or_else(|| status.id.to_string(), |guest| guest.name.clone());
                    let peer = guest.map(|guest| guest.process);
                    let copy_usage = guest.map(|guest| guest.copy_usage);
                    let name = format!("{name}/{own}");
                    Vif { name, kind: Kind::Embedded, peer, copy_usage, status }
                };
                service.vifs().into_iter().map(vif).collect()
            }
        }
    }

    /// The ports to profile: this one, or those that it stands for. Guests that report their own
    /// time are asked under this number.
    pub fn subjects(&self, name: &str, kind: Kind, number: u64) -> Vec<Subject> {
        if let Some(port) = self.id() {
            return vec![Subject { name: name.to_owned(), kind, port, guest: None }];
        }
        let reported = match self {
            Backend::Embedded(_, service) => service.request_times(number, GUEST_TIMEOUT),
            // A stock frontend reports nothing.
            _ => BTreeMap::new(),
        };
        let subject = |Vif { name, kind, status, .. }: Vif| {
            let guest = reported.get(&status.id).copied();
            Some(Subject { name, kind, port: status.port?, guest })
        };
        self.vifs(name).into_iter().filter_map(subject).collect()
    }

    /// Counters of vifs that are gone, to be taken out. No vif goes while this is locked.
    pub fn removed_counters(&self) -> Option<MutexGuard<'_, Vec<Arc<QueueCounters>>>> {
        match self {
            Backend::VhostUser(_) | Backend::Tap { .. } => None,
            Backend::Xen(service) | Backend::Embedded(_, service) => Some(service.removed()),
        }
    }

    /// Takes the port out of service. Returns the counters that were not taken out before.
    pub fn end(self, fabric: &Fabric) -> Vec<Arc<QueueCounters>> {
        let counters = self.id().map(|id| fabric.counters(id)).unwrap_or_default();
        match self {
            Backend::Xen(service) => service.end(),
            Backend::Embedded(server, service) => {
                // Guests go first, so that none comes to a port that is being removed.
                drop(server);
                service.end()
            }
            // Workers go on counting while it is dropped.
            Backend::VhostUser(_) | Backend::Tap { .. } => counters,
        }
    }

    /// Why the port is out of service for good.
    pub fn failure(&self) -> Option<String> {
        match self {
            Backend::Tap { tap, .. } => tap.stopped().map(|error| error.to_string()),
            // They serve their next front-end.
            Backend::VhostUser(_) | Backend::Xen(_) | Backend::Embedded(..) => None,
        }
    }

    /// The present state.
    pub fn condition(&self) -> Condition {
        match self {
            Backend::VhostUser(device) => {
                let status = device.status();
                let state = match status.state {
                    State::Listening => PortState::Listening,
                    State::Connecting => PortState::Connecting,
                    State::Connected => PortState::Connected,
                    State::Removed => PortState::Stopped,
                };
                Condition {
                    features: net::feature::names(status.features),
                    peer: status.peer,
                    connections: status.connections,
                    violations: status.violations,
                    ..Condition::new(state, status.reason)
                }
            }
            Backend::Tap { device, tap } => match self.failure() {
                Some(reason) => Condition::new(PortState::Stopped, Some(reason)),
                // An interface that cannot be asked has moved to another namespace.
                None if tap.is_up().unwrap_or(true) => Condition::new(PortState::Connected, None),
                None => {
                    let reason =
                        format!("the interface is down: `ip link set {device} up` sets it up");
                    Condition::new(PortState::Down, Some(reason))
                }
            },
            Backend::Xen(_) | Backend::Embedded(..) => Condition::new(PortState::Listening, None),
        }
    }
}

fn vhost_user(
    fabric: &Arc<Fabric>,
    spec: &PortSpec,
    socket: &Path,
    mode: Mode,
    queues: u16,
) -> Result<Backend, BackendError> {
    let mode = match mode {
        Mode::Server => {
            create_directory(socket)?;
            server::Mode::Server
        }
        Mode::Client => server::Mode::Client,
    };
    let PortOptions { coalescing, policy, .. } = spec.options;
    let config = PortConfig {
        name: spec.name.clone(),
        socket: socket.to_owned(),
        mode,
        queues,
        mtu: spec.mtu,
        rule: spec.rule(),
        coalescing,
        policy,
    };
    Ok(Backend::VhostUser(net::Port::start(Arc::clone(fabric), config)?))
}

/// The keys of the store that an embedded guest's vif is served by, as a toolstack would write them.
fn guest_keys(spec: &PortSpec, extensions: Extensions) -> Vec<(String, String)> {
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
    let words = extension_words(extensions);
    keys.extend(words.map(|(key, value)| (format!("ringmain/{key}"), value.to_owned())));
    keys
}

/// A device whose receive queues guests can have.
fn uplink(device: &str) -> Result<Arc<dyn xen::netif::device_queue::Uplink>, XdpError> {
    Ok(Arc::new(Device(Uplink::open(device)?)))
}

/// Creates the directory of a socket.
fn create_directory(socket: &Path) -> Result<(), BackendError> {
    let Some(directory) = socket.parent().filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(());
    };
    let failed = |error| BackendError::Directory { path: directory.to_owned(), error };
    std::fs::create_dir_all(directory).map_err(failed)
}
