//! Ports of kind `embedded`: one stands for all processes that connect to it as guests.

use std::path::Path;
use std::sync::Arc;

use hostlink::xdp::{Uplink, XdpError};
use hypervisor::DomId;
use hypervisor::embedded::server::{Server, ServerConfig};
use hypervisor::embedded::{Design, Machine, Version};
use network::count::QueueCounters;
use network::fabric::Fabric;
use network::restrictions::RestrictionsTemplate;
use parking_lot::MutexGuard;
use switch::{PortId, Vlan};
use xen::netif::extensions::Extensions;
use xen::netif::guest_times::Answers;
use xen::netif::service::{Service, ServiceConfig};
use xen::netif::settings::SCRIPT;
use xen::netif::status::VifStatus;

use super::xen::STALL;
use super::{Backend, BackendError, Condition, create_directory};
use crate::api::PortState;
use crate::config::{PortSpec, extension_words};
use crate::kind::Kind;
use crate::uplink::Device;
use crate::vif::Vif;

/// The environment of the guests of a port.
pub(super) struct Guests<'a> {
    /// Where they connect.
    pub socket: &'a Path,
    /// The inner design of their hypervisor, and its extensions of Xen's protocol.
    pub design: (Design, Extensions),
    /// A device whose receive queues they can have.
    pub device: Option<&'a str>,
    /// Whether each guest is locked to its address.
    pub lock_mac: bool,
}

/// A port in service.
struct GuestsPort {
    /// The server is dropped first, so that no guest connects any more.
    server: Server,
    service: Service,
}

/// Puts a port into service.
pub(super) fn start(
    fabric: &Arc<Fabric>,
    spec: &PortSpec,
    Guests { socket, design: (design, extensions), device, lock_mac }: Guests<'_>,
    restrictions: &RestrictionsTemplate,
    queues: u16,
) -> Result<Box<dyn Backend>, BackendError> {
    let uplink = device.map(uplink).transpose()?;
    create_directory(socket)?;
    let machine = Machine::new(design).map_err(BackendError::Machine)?;
    let hypervisor = machine.hypervisor(DomId(0)).map_err(BackendError::Pages)?;
    let (options, restrictions) = (spec.options, restrictions.clone());
    let config = ServiceConfig { queues, stall: STALL, options, restrictions };
    let service = Service::start_with(Arc::clone(fabric), hypervisor, config, uplink)?;
    let version = if extensions.ranges { Version::V2 } else { Version::V1 };
    let keys = guest_keys(spec, extensions, lock_mac);
    let permissions = spec.permissions;
    let (socket, mac) = (socket.to_owned(), spec.mac.map(|mac| mac.0));
    let config = ServerConfig { socket, permissions, keys, version, mac };
    Ok(Box::new(GuestsPort { server: Server::start(machine, config)?, service }))
}

impl Backend for GuestsPort {
    fn id(&self) -> Option<PortId> {
        None
    }

    fn condition(&self) -> Condition {
        Condition::new(PortState::Listening, None)
    }

    fn restrict(&self, _: &Fabric, restrictions: &RestrictionsTemplate) {
        self.service.set_restrictions(restrictions.clone());
    }

    fn vifs(&self, name: &str) -> Vec<Vif> {
        let guests = self.server.guest_processes();
        let vif = |status: VifStatus| {
            // A guest that has just left has only a number.
            let guest = guests.get(&status.id.domain);
            let own = guest.map_or_else(|| status.id.to_string(), |guest| guest.name.clone());
            let peer = guest.map(|guest| guest.process);
            let copy_usage = guest.map(|guest| guest.copy_usage);
            let store_usage = guest.map(|guest| guest.store_usage);
            let name = format!("{name}/{own}");
            Vif { name, kind: Kind::Embedded, peer, copy_usage, store_usage, status }
        };
        self.service.vifs().into_iter().map(vif).collect()
    }

    fn request_times(&self, number: u64) {
        self.service.request_times(number);
    }

    fn answers(&self, number: u64) -> Answers {
        self.service.answers(number)
    }

    fn removed_counters(&self) -> Option<MutexGuard<'_, Vec<Arc<QueueCounters>>>> {
        Some(self.service.removed())
    }

    fn end(self: Box<Self>, _: &Fabric) -> Vec<Arc<QueueCounters>> {
        let GuestsPort { server, service } = *self;
        // The server ends first, so that no guest connects to a port that is being removed.
        drop(server);
        service.end()
    }
}

/// The store's keys for an embedded guest's vif, as a toolstack would write them.
fn guest_keys(spec: &PortSpec, extensions: Extensions, lock_mac: bool) -> Vec<(String, String)> {
    let mut keys = vec![("script".to_owned(), SCRIPT.to_owned())];
    keys.extend(lock_mac.then(|| ("ringmain/lock-mac".to_owned(), "1".to_owned())));
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
