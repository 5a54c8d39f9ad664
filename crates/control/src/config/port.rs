//! The description of one port.

use std::path::PathBuf;

use frame::Mac;
use hypervisor::embedded::Design;
use switch::{PortRule, Vlan};
use unix_socket::Permissions;
use xen::netif::extensions::Extensions;
use xen::netif::options::PortOptions;

use super::defaults;
use super::port_settings::PortSettings;
use crate::kind::Kind;

/// The value of `mac` by which each guest is locked to its own address.
pub(super) const OWN_MAC: &str = "own";

/// What the operator has configured a port to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSpec {
    /// The name, unique in the daemon.
    pub name: String,
    /// What the port attaches to.
    pub kind: PortKind,
    /// Queue pairs; `None`: as many as there are workers.
    pub queues: Option<u16>,
    /// The only source address that is let in.
    pub mac: Option<Mac>,
    /// The VLANs that the port is in.
    pub vlan: Vlan,
    /// Longest IP packet in bytes; `None`: no limit of its own.
    pub mtu: Option<u16>,
    /// Who may use its socket, where it has one and listens.
    pub permissions: Permissions,
    /// How the port is served, where there is a choice.
    pub options: PortOptions,
    /// What can change while it is in service.
    pub settings: PortSettings,
}

/// What a port attaches to, with all that ports of this kind have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// A guest, over a vhost-user socket.
    VhostUser {
        /// The socket.
        socket: PathBuf,
        /// Who listens on it.
        mode: Mode,
    },
    /// The host, over a TAP interface.
    Tap {
        /// The interface.
        device: String,
    },
    /// The vifs of this Xen domain: each becomes a port by itself, when the toolstack creates it.
    Xen,
    /// Processes as guests, of a hypervisor in the daemon: each becomes a port by itself, when it
    /// connects.
    Embedded {
        /// Where guests connect.
        socket: PathBuf,
        /// The inner design of the hypervisor; configurations have the newest.
        design: Design,
        /// What its guests do beyond Xen's protocol.
        extensions: Extensions,
        /// A device whose receive queues guests can have.
        device_queue: Option<String>,
        /// Whether each guest is locked to the address that it names when it connects: the port's
        /// `mac`, if it has one.
        lock_mac: bool,
    },
}

/// Who listens on a vhost-user socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Ringmain listens.
    Server,
    /// Ringmain connects, and keeps trying.
    Client,
}

impl Mode {
    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Server => "server",
            Mode::Client => "client",
        }
    }
}

/// What ports of a kind attach to. Two ports can't attach to the same.
#[derive(Default)]
struct Attachment<'a> {
    socket: Option<&'a PathBuf>,
    mode: Option<Mode>,
    device: Option<&'a str>,
    device_queue: Option<&'a str>,
}

impl PortKind {
    /// The kind alone.
    pub fn kind(&self) -> Kind {
        match self {
            PortKind::VhostUser { .. } => Kind::VhostUser,
            PortKind::Tap { .. } => Kind::Tap,
            PortKind::Xen => Kind::Xen,
            PortKind::Embedded { .. } => Kind::Embedded,
        }
    }

    /// What it attaches to, by the keys of the configuration.
    fn attachment(&self) -> Attachment<'_> {
        match self {
            PortKind::VhostUser { socket, mode } => {
                Attachment { socket: Some(socket), mode: Some(*mode), ..Attachment::default() }
            }
            PortKind::Tap { device } => {
                Attachment { device: Some(device), ..Attachment::default() }
            }
            PortKind::Xen => Attachment::default(),
            PortKind::Embedded { socket, device_queue, .. } => Attachment {
                socket: Some(socket),
                device_queue: device_queue.as_deref(),
                ..Attachment::default()
            },
        }
    }

    /// The path of its socket.
    pub fn socket(&self) -> Option<&PathBuf> {
        self.attachment().socket
    }

    /// Who listens on its socket, where that is a choice.
    pub fn mode(&self) -> Option<Mode> {
        self.attachment().mode
    }

    /// The interface of the host that it is.
    pub fn device(&self) -> Option<&str> {
        self.attachment().device
    }

    /// The device whose receive queues its guests can have.
    pub fn device_queue(&self) -> Option<&str> {
        self.attachment().device_queue
    }
}

impl PortSpec {
    /// What the port is locked to, as one writes it.
    pub(super) fn mac_lock(&self) -> Option<String> {
        let own = matches!(self.kind, PortKind::Embedded { lock_mac: true, .. });
        let address = self.mac.map(|mac| mac.to_string());
        address.or_else(|| own.then(|| OWN_MAC.to_owned()))
    }

    /// Queue pairs that the port has in a daemon with so many workers.
    pub fn queue_pairs(&self, workers: usize) -> u16 {
        self.queues.unwrap_or_else(|| defaults::offered(workers))
    }

    /// The part that the switch must know.
    pub fn rule(&self) -> PortRule {
        PortRule { vlan: self.vlan.clone(), mac: self.mac }
    }
}
