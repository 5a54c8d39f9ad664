//! Ports of kind `embedded`: one stands for all processes that connect to it as guests.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, MutexGuard};

use hostlink::xdp::{Uplink, XdpError};
use hypervisor::DomId;
use hypervisor::embedded::server::{Server, ServerConfig};
use hypervisor::embedded::{Design, Machine, Version};
use network::count::QueueCounters;
use network::fabric::Fabric;
use switch::{PortId, Vlan};
use xen::netif::extensions::Extensions;
use xen::netif::guest_times::GuestTimes;
use xen::netif::service::{Service, ServiceConfig};
use xen::netif::settings::SCRIPT;
use xen::netif::status::VifStatus;
use xen::xenbus::DeviceId;

use super::xen::STALL;
use super::{Backend, BackendError, Condition, create_directory};
use crate::api::PortState;
use crate::config::{PortSpec, extension_words};
use crate::kind::Kind;
use crate::profile::GUEST_TIMEOUT;
use crate::uplink::Device;
use crate::vif::Vif;

/// Processes as guests.
struct Guests {
    /// Dropped first: then no guest connects any more.
    server: Server,
    service: Service,
}

/// Puts a port into service.
pub(super) fn start(
    fabric: &Arc<Fabric>,
    spec: &PortSpec,
    socket: &Path,
    (design, extensions): (Design, Extensions),
    device: Option<&str>,
    queues: u16,
) -> Result<Box<dyn Backend>, BackendError> {
    let uplink = device.map(uplink).transpose()?;
    create_directory(socket)?;
    let machine = Machine::new(design);
    let hypervisor = machine.hypervisor(DomId(0)).map_err(BackendError::Pages)?;
    let config =
        ServiceConfig { queues, stall: STALL, options: spec.options, ..ServiceConfig::default() };
    let service = Service::start_with(Arc::clone(fabric), hypervisor, config, uplink)?;
    let version = if extensions.ranges { Version::V2 } else { Version::V1 };
    let keys = guest_keys(spec, extensions);
    let permissions = spec.permissions;
    let config = ServerConfig { socket: socket.to_owned(), permissions, keys, version };
    Ok(Box::new(Guests { server: Server::start(machine, config)?, service }))
}

impl Backend for Guests {
    fn id(&self) -> Option<PortId> {
        None
    }

    fn condition(&self) -> Condition {
        Condition::new(PortState::Listening, None)
    }

    fn vifs(&self, name: &str) -> Vec<Vif> {
        let guests = self.server.guest_processes();
        let vif = |status: VifStatus| {
            // A guest that has just gone has a number only.
            let guest = guests.get(&status.id.domain);
            let own = guest.map_or_else(|| status.id.to_string(), |guest| guest.name.clone());
            let peer = guest.map(|guest| guest.process);
            let copy_usage = guest.map(|guest| guest.copy_usage);
            let name = format!("{name}/{own}");
            Vif { name, kind: Kind::Embedded, peer, copy_usage, status }
        };
        self.service.vifs().into_iter().map(vif).collect()
    }

    fn request_times(&self, number: u64) -> BTreeMap<DeviceId, GuestTimes> {
        self.service.request_times(number, GUEST_TIMEOUT)
    }

    fn removed_counters(&self) -> Option<MutexGuard<'_, Vec<Arc<QueueCounters>>>> {
        Some(self.service.removed())
    }

    fn end(self: Box<Self>, _: &Fabric) -> Vec<Arc<QueueCounters>> {
        let Guests { server, service } = *self;
        // Guests go first, so that none comes to a port that is being removed.
        drop(server);
        service.end()
    }
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
