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

/// The configuration of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSpec {
    /// The name, unique in the daemon.
    pub name: String,
    /// The kind of attachment.
    pub kind: PortKind,
    /// Queue pairs; `None`: one for each worker.
    pub queues: Option<u16>,
    /// The only source address that the port accepts.
    pub mac: Option<Mac>,
    /// The VLANs that the port is in.
    pub vlan: Vlan,
    /// Longest IP packet in bytes; `None`: no limit of its own.
    pub mtu: Option<u16>,
    /// The users that may use its socket, where it has one and listens.
    pub permissions: Permissions,
    /// How the port is served, where there is a choice.
    pub options: PortOptions,
    /// Settings that can change while the port is in service.
    pub settings: PortSettings,
}

/// The kind of attachment of a port, with all keys of that kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// A guest, over a vhost-user socket.
    VhostUser {
        /// The socket.
        socket: PathBuf,
        /// The side that listens on it.
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
        /// The guests' extensions of Xen's protocol.
        extensions: Extensions,
        /// A device whose receive queues guests can have.
        device_queue: Option<String>,
        /// Whether each guest is locked to the address that it names when it connects: the port's
        /// `mac`, if it has one.
        lock_mac: bool,
    },
}

/// The side that listens on a vhost-user socket.
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

/// The end that a port attaches to. Two ports cannot attach to the same end.
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

    /// The end that the port attaches to, by the keys of the configuration.
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

    /// The kind and the end that the port attaches to, for people.
    pub fn describe(&self) -> String {
        let Attachment { socket, mode, device, .. } = self.attachment();
        let mode = mode.map(|mode| format!(" ({})", mode.name())).unwrap_or_default();
        let end = socket.map(|path| format!(" at {}", path.display()));
        let end = end.or_else(|| device.map(|device| format!(" {device}"))).unwrap_or_default();
        format!("{}{end}{mode}", self.kind().name())
    }

    /// The path of its socket.
    pub fn socket(&self) -> Option<&PathBuf> {
        self.attachment().socket
    }

    /// The side that listens on its socket, if there is a choice.
    pub fn mode(&self) -> Option<Mode> {
        self.attachment().mode
    }

    /// The port's interface of the host.
    pub fn device(&self) -> Option<&str> {
        self.attachment().device
    }

    /// The device whose receive queues its guests can have.
    pub fn device_queue(&self) -> Option<&str> {
        self.attachment().device_queue
    }
}

impl PortSpec {
    /// The port's address lock in text form.
    pub(super) fn mac_lock(&self) -> Option<String> {
        let own = matches!(self.kind, PortKind::Embedded { lock_mac: true, .. });
        let address = self.mac.map(|mac| mac.to_string());
        address.or_else(|| own.then(|| OWN_MAC.to_owned()))
    }

    /// Queue pairs of the port in a daemon with `workers` workers.
    pub fn queue_pairs(&self, workers: usize) -> u16 {
        self.queues.unwrap_or_else(|| defaults::offered(workers))
    }

    /// The part that the switch needs.
    pub fn rule(&self) -> PortRule {
        PortRule { vlan: self.vlan.clone(), mac: self.mac }
    }
}
