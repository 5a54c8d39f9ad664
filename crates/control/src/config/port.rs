//! The description of one port.

use std::fmt;
use std::path::{Path, PathBuf};

use frame::Mac;
use hypervisor::embedded::Design;
use serde_json::{Map, Value as Json, json};
use switch::{PortRule, Vlan};
use xen::netif::extensions::Extensions;
use xen::netif::options::PortOptions;

use super::document::{ConfigError, Fields, Value};
use super::{defaults, extensions, options, socket_path};

/// Most queue pairs that a port may have.
pub const MAX_QUEUES: u16 = 16;

/// Inner designs of the embedded hypervisor, which only comparisons use.
const DESIGN: [&str; 4] = ["locking", "maptrack", "flush", "copying"];
const DESIGN_IS_FOR_THE_LAB: &str =
    "only the laboratory has older designs (ringmain-lab serve --help); leave it out";

/// Smallest MTU: what IPv4 asks of every link (RFC 791).
const MIN_MTU: u16 = 68;
/// Largest MTU of a TAP: the kernel takes 65535 less the Ethernet header.
const MAX_TAP_MTU: u16 = 65521;
/// Longest name of a network interface in bytes (IFNAMSIZ less its final zero).
const DEVICE: usize = 15;
/// Longest name of a port in bytes.
const NAME: usize = 32;

const RIGHT_NAME: &str = r#"1 to 32 letters, digits, "_", "." or "-""#;
const RIGHT_KIND: &str = r#""vhost-user", "tap", "xen" or "embedded""#;
const RIGHT_MODE: &str = r#""server" or "client""#;
const RIGHT_SOCKET: &str = r#"the path of a socket, like "/run/ringmain/vm.sock""#;
const RIGHT_DEVICE: &str = r#"the name of an interface, 1 to 15 letters, digits, "_", "." or "-""#;
const RIGHT_MAC: &str = r#"the address of one station, like "52:54:00:00:00:01""#;
const RIGHT_TRUNK: &str = "a list of VLANs from 1 to 4094, like [10, 20]";

/// What the operator wants a port to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSpec {
    /// Its name, unique in the daemon.
    pub name: String,
    /// What it attaches to.
    pub kind: PortKind,
    /// Queue pairs; `None`: as many as there are workers.
    pub queues: Option<u16>,
    /// The only source address that is let in.
    pub mac: Option<Mac>,
    /// The VLANs that it is in.
    pub vlan: Vlan,
    /// Longest IP packet in bytes; `None`: no limit of its own.
    pub mtu: Option<u16>,
    /// How it is served, where there is a choice.
    pub options: PortOptions,
}

/// What a port attaches to.
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
    /// comes.
    Embedded {
        /// Where they come from.
        socket: PathBuf,
        /// What the hypervisor is like inside; configurations have the newest.
        design: Design,
        /// What its guests do beyond Xen's protocol.
        extensions: Extensions,
        /// A device whose receive queues guests can have.
        device_queue: Option<String>,
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

impl PortKind {
    /// The name in configurations.
    pub fn name(&self) -> &'static str {
        match self {
            PortKind::VhostUser { .. } => "vhost-user",
            PortKind::Tap { .. } => "tap",
            PortKind::Xen => "xen",
            PortKind::Embedded { .. } => "embedded",
        }
    }
}

impl PortSpec {
    /// Reads the flags of `ringmain port add`, by long names without dashes.
    pub fn from_flags(
        flags: impl IntoIterator<Item = (&'static str, Vec<String>)>,
    ) -> Result<PortSpec, ConfigError> {
        read(Fields::of_flags(flags), std::iter::empty(), Path::new(""))
    }

    /// Reads the object of a `port.add` request: the keys and values of a `[[port]]` table. The
    /// port must get along with those that are `there`, and with the control socket.
    pub fn from_request<'a>(
        object: &Map<String, Json>,
        there: impl Iterator<Item = &'a PortSpec>,
        control: &Path,
    ) -> Result<PortSpec, ConfigError> {
        let there: Vec<(&PortSpec, String)> =
            there.map(|port| (port, format!("port {:?}", port.name))).collect();
        read(
            Fields::of_request(object),
            there.iter().map(|(port, place)| (*port, place.as_str())),
            control,
        )
    }

    /// The object of a `port.add` request that asks for this port.
    pub fn to_request(&self) -> Map<String, Json> {
        let mut object = Map::new();
        let mut put = |key: &str, value: Json| object.insert(key.to_owned(), value);
        put("name", json!(self.name));
        put("kind", json!(self.kind.name()));
        match &self.kind {
            PortKind::VhostUser { socket, mode } => {
                put("socket", json!(socket));
                put("mode", json!(mode.name()));
            }
            PortKind::Tap { device } => {
                put("device", json!(device));
            }
            PortKind::Xen => {}
            PortKind::Embedded { socket, device_queue, .. } => {
                put("socket", json!(socket));
                if let Some(device) = device_queue {
                    put("device-queue", json!(device));
                }
            }
        }
        match &self.vlan {
            Vlan::None => {}
            Vlan::Access(vid) => drop(put("vlan", json!(vid))),
            Vlan::Trunk(list) => drop(put("trunk", json!(list))),
        }
        if let Some(queues) = self.queues {
            put("queues", json!(queues));
        }
        if let Some(mac) = self.mac {
            put("mac", json!(mac.to_string()));
        }
        if let Some(mtu) = self.mtu {
            put("mtu", json!(mtu));
        }
        for (key, value) in options::keys(&self.kind, &self.options) {
            if let Some(value) = value {
                put(key, value);
            }
        }
        object
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

/// Reads one port. It must get along with the ports that are `there` (each with what errors call
/// it) and with the control socket.
pub(super) fn read<'a>(
    mut fields: Fields,
    there: impl Iterator<Item = (&'a PortSpec, &'a str)>,
    control: &Path,
) -> Result<PortSpec, ConfigError> {
    let there: Vec<_> = there.collect();
    let name = name(&mut fields, &there)?;
    let mut kind = kind(&mut fields, &there, control)?;
    let largest = if let PortKind::Tap { .. } = kind { MAX_TAP_MTU } else { u16::MAX };
    let queues = fields.number("queues", 1..=MAX_QUEUES)?.map(|(queues, _)| queues);
    let mtu = fields.number("mtu", MIN_MTU..=largest)?.map(|(mtu, _)| mtu);
    let vlan = vlan(&mut fields)?;
    if let PortKind::Embedded { device_queue: device, .. } = &mut kind {
        *device = device_queue(&mut fields, &vlan, &there)?;
    } else {
        foreign(&mut fields, "device-queue", "embedded")?;
    }
    let mac = mac(&mut fields, &vlan, &there)?;
    let options = options::read(&mut fields, &kind)?;
    fields.finish()?;
    Ok(PortSpec { name, kind, queues, mac, vlan, mtu, options })
}

fn is_plain(text: &str, longest: usize) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    (1..=longest).contains(&text.len()) && text.bytes().all(plain)
}

fn name(fields: &mut Fields, there: &[(&PortSpec, &str)]) -> Result<String, ConfigError> {
    let (name, value) =
        fields.text("name", RIGHT_NAME)?.ok_or_else(|| fields.missing("name", RIGHT_NAME))?;
    // A leading dash would look like a flag on the command line.
    if !is_plain(&name, NAME) || name.starts_with('-') {
        return Err(fields.wrong(
            "name",
            &value,
            format_args!("{value} cannot be a name; give {RIGHT_NAME}"),
        ));
    }
    match there.iter().find(|(port, _)| port.name == name) {
        Some((_, place)) => Err(taken(fields, "name", &value, place, "name")),
        None => Ok(name),
    }
}

fn taken(fields: &Fields, key: &str, value: &Value, place: &str, what: &str) -> ConfigError {
    fields.wrong(
        key,
        value,
        format_args!("{value} belongs to {place} already; give another {what}"),
    )
}

fn kind(
    fields: &mut Fields,
    there: &[(&PortSpec, &str)],
    control: &Path,
) -> Result<PortKind, ConfigError> {
    let (name, value) =
        fields.text("kind", RIGHT_KIND)?.ok_or_else(|| fields.missing("kind", RIGHT_KIND))?;
    match name.as_str() {
        "vhost-user" => {
            let kind = vhost_user(fields, there, control)?;
            foreign(fields, "device", "tap")?;
            Ok(kind)
        }
        "tap" => {
            let kind = tap(fields, there)?;
            foreign(fields, "socket", "vhost-user")?;
            foreign(fields, "mode", "vhost-user")?;
            Ok(kind)
        }
        "xen" => {
            xen(fields, &value, there)?;
            Ok(PortKind::Xen)
        }
        "embedded" => embedded(fields, there, control),
        _ => Err(fields.wrong(
            "kind",
            &value,
            format_args!("{value} is not a kind of port; give {RIGHT_KIND}"),
        )),
    }
}

fn xen(fields: &mut Fields, value: &Value, there: &[(&PortSpec, &str)]) -> Result<(), ConfigError> {
    foreign(fields, "socket", "vhost-user")?;
    foreign(fields, "mode", "vhost-user")?;
    foreign(fields, "device", "tap")?;
    for key in ["mtu", "vlan", "trunk", "mac"] {
        if let Some(value) = fields.take(key) {
            let problem = "each vif has its own, in the keys of its hotplug script; leave it out";
            return Err(fields.wrong(key, &value, problem));
        }
    }
    match there.iter().find(|(port, _)| port.kind == PortKind::Xen) {
        Some((_, place)) => {
            Err(fields.wrong("kind", value, format_args!("{place} serves all vifs already")))
        }
        None => Ok(()),
    }
}

fn embedded(
    fields: &mut Fields,
    there: &[(&PortSpec, &str)],
    control: &Path,
) -> Result<PortKind, ConfigError> {
    let socket = socket(fields, there, control)?;
    foreign(fields, "mode", "vhost-user")?;
    foreign(fields, "device", "tap")?;
    if let Some(value) = fields.take("mac") {
        return Err(fields.wrong("mac", &value, "each guest has its own; leave it out"));
    }
    for key in DESIGN {
        if let Some(value) = fields.take(key) {
            return Err(fields.wrong(key, &value, DESIGN_IS_FOR_THE_LAB));
        }
    }
    Ok(PortKind::Embedded {
        socket,
        design: Design::NEW,
        extensions: extensions::read(fields)?,
        device_queue: None,
    })
}

/// The device whose receive queues guests can have. What comes that way comes past the switch, so
/// there can be no VLANs.
fn device_queue(
    fields: &mut Fields,
    vlan: &Vlan,
    there: &[(&PortSpec, &str)],
) -> Result<Option<String>, ConfigError> {
    let Some((device, value)) = fields.text("device-queue", RIGHT_DEVICE)? else { return Ok(None) };
    let wrong = |problem: fmt::Arguments<'_>| Err(fields.wrong("device-queue", &value, problem));
    if !is_device(&device) {
        return wrong(format_args!("{value} cannot be an interface; give {RIGHT_DEVICE}"));
    }
    if *vlan != Vlan::None {
        return wrong(format_args!(
            "frames come past the switch and its VLANs; leave out vlan and trunk, or this"
        ));
    }
    let same = |port: &PortSpec| matches!(&port.kind, PortKind::Embedded { device_queue: Some(other), .. } if *other == device);
    match there.iter().find(|(port, _)| same(port)) {
        Some((_, place)) => Err(taken(fields, "device-queue", &value, place, "interface")),
        None => Ok(Some(device)),
    }
}

/// Whether it can be the name of an interface.
fn is_device(name: &str) -> bool {
    is_plain(name, DEVICE) && name != "." && name != ".."
}

/// Refuses a key that belongs to ports of another kind.
fn foreign(fields: &mut Fields, key: &'static str, kind: &str) -> Result<(), ConfigError> {
    match fields.take(key) {
        Some(value) => Err(fields.wrong(
            key,
            &value,
            format_args!("only a port of kind {kind:?} has one; leave it out"),
        )),
        None => Ok(()),
    }
}

/// A socket that nobody else has.
fn socket(
    fields: &mut Fields,
    there: &[(&PortSpec, &str)],
    control: &Path,
) -> Result<PathBuf, ConfigError> {
    let (text, value) = fields
        .text("socket", RIGHT_SOCKET)?
        .ok_or_else(|| fields.missing("socket", RIGHT_SOCKET))?;
    let socket = socket_path(fields, &text, &value)?;
    if socket == control {
        return Err(taken(fields, "socket", &value, "control.socket", "path"));
    }
    let same = |port: &PortSpec| match &port.kind {
        PortKind::VhostUser { socket: other, .. } | PortKind::Embedded { socket: other, .. } => {
            *other == socket
        }
        PortKind::Tap { .. } | PortKind::Xen => false,
    };
    match there.iter().find(|(port, _)| same(port)) {
        Some((_, place)) => Err(taken(fields, "socket", &value, place, "path")),
        None => Ok(socket),
    }
}

fn vhost_user(
    fields: &mut Fields,
    there: &[(&PortSpec, &str)],
    control: &Path,
) -> Result<PortKind, ConfigError> {
    let socket = socket(fields, there, control)?;
    let mode = match fields.text("mode", RIGHT_MODE)? {
        None => Mode::Server,
        Some((mode, _)) if mode == Mode::Server.name() => Mode::Server,
        Some((mode, _)) if mode == Mode::Client.name() => Mode::Client,
        Some((_, value)) => {
            return Err(fields.wrong(
                "mode",
                &value,
                format_args!("{value} is not a mode; give {RIGHT_MODE}"),
            ));
        }
    };
    Ok(PortKind::VhostUser { socket, mode })
}

fn tap(fields: &mut Fields, there: &[(&PortSpec, &str)]) -> Result<PortKind, ConfigError> {
    let (device, value) = fields
        .text("device", RIGHT_DEVICE)?
        .ok_or_else(|| fields.missing("device", RIGHT_DEVICE))?;
    if !is_device(&device) {
        return Err(fields.wrong(
            "device",
            &value,
            format_args!("{value} cannot be an interface; give {RIGHT_DEVICE}"),
        ));
    }
    let same =
        |port: &PortSpec| matches!(&port.kind, PortKind::Tap { device: other } if *other == device);
    match there.iter().find(|(port, _)| same(port)) {
        Some((_, place)) => Err(taken(fields, "device", &value, place, "interface")),
        None => Ok(PortKind::Tap { device }),
    }
}

fn vlan(fields: &mut Fields) -> Result<Vlan, ConfigError> {
    let access = fields.number("vlan", 1..=4094)?;
    let trunk = fields.numbers("trunk", 1..=4094, RIGHT_TRUNK)?;
    match (access, trunk) {
        (None, None) => Ok(Vlan::None),
        (Some((vid, _)), None) => Ok(Vlan::Access(vid)),
        (None, Some((list, _))) => {
            let mut list: Vec<u16> = list.into_iter().map(|(vid, _)| vid).collect();
            list.sort_unstable();
            list.dedup();
            Ok(Vlan::Trunk(list))
        }
        (Some(_), Some((_, value))) => Err(fields.wrong(
            "trunk",
            &value,
            "a port has either one VLAN or a trunk; give vlan or trunk, not both",
        )),
    }
}

fn mac(
    fields: &mut Fields,
    vlan: &Vlan,
    there: &[(&PortSpec, &str)],
) -> Result<Option<Mac>, ConfigError> {
    let Some((text, value)) = fields.text("mac", RIGHT_MAC)? else { return Ok(None) };
    let wrong = |problem: &str| {
        fields.wrong("mac", &value, format_args!("{value} is {problem}; give {RIGHT_MAC}"))
    };
    let mac: Mac = text.parse().map_err(|_| wrong("not a MAC address"))?;
    if mac.is_multicast() {
        return Err(wrong("a group address"));
    }
    if mac.is_zero() {
        return Err(wrong("nobody's address"));
    }
    match there.iter().find(|(port, _)| port.mac == Some(mac) && port.vlan.meets(vlan)) {
        Some((_, place)) => Err(taken(fields, "mac", &value, place, "address")),
        None => Ok(Some(mac)),
    }
}
