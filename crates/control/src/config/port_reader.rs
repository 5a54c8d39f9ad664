//! The conversion of a port's table to its description, with checks of required keys, combinations,
//! and conflicts with other ports.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use frame::Mac;
use hypervisor::embedded::Design;
use network::coalescing::CoalescingLimits;
use switch::Vlan;
use toml::Spanned;
use unix_socket::Permissions;
use xen::netif::extensions::Extensions;
use xen::netif::options::PortOptions;

use super::access::permissions;
use super::key_table::KeyTable;
use super::port::{Mode, PortKind, PortSpec};
use super::port_settings::PortSettings;
use super::port_table::{
    CopySide, Grants, Interface, MacLock, Mtu, Name, PortTable, Socket, Trunk,
};
use super::setting_keys::{Known, apply, port_keys};
use super::source::{Place, Problems, VALUE};
use super::value::{FromText, Limits, List, Number, Text};
use crate::kind::Kind;

/// Largest MTU of a TAP: the kernel takes 65535 less the Ethernet header.
const MAX_TAP_MTU: u16 = 65521;

/// Ports, budgets and a control socket that a port must not conflict with.
pub(super) struct Neighbours<'a> {
    /// The control socket.
    pub control: &'a Path,
    /// Other ports, each with its name in errors.
    pub ports: Vec<(&'a PortSpec, String)>,
    /// The names that the port can refer to.
    pub known: Known<'a>,
}

impl Neighbours<'_> {
    /// The name in errors of the first port that has something.
    fn find(&self, has: impl Fn(&PortSpec) -> bool) -> Option<&str> {
        self.ports.iter().find(|(port, _)| has(port)).map(|(_, place)| place.as_str())
    }
}

/// Makes a description of `table`. All mistakes are added to the problems. `None`: a required part
/// is missing.
pub(super) fn read(
    table: PortTable,
    place: Place<'_>,
    neighbours: &Neighbours<'_>,
    problems: &mut Problems<'_>,
) -> Option<PortSpec> {
    Reader { place, neighbours, problems }.read(table)
}

struct Reader<'a, 'b> {
    place: Place<'a>,
    neighbours: &'a Neighbours<'a>,
    problems: &'a mut Problems<'b>,
}

type Given<T> = Option<Spanned<T>>;

/// The value alone.
fn value<T>(given: Given<Text<T>>) -> Option<T> {
    given.map(|given| given.into_inner().0)
}

/// The number alone.
fn number<L>(given: Given<Number<L>>) -> Option<u16> {
    given.map(|given| given.into_inner().0)
}

impl Reader<'_, '_> {
    fn read(&mut self, mut table: PortTable) -> Option<PortSpec> {
        let name = self.name(table.name.take());
        let kind = self.required("kind", table.kind.take());
        if let Some(kind) = &kind {
            self.refuse_misplaced(*kind.get_ref(), &table);
        }
        let vlan = self.vlan(number(table.vlan.take()), table.trunk.take());
        let options = self.options(&mut table, kind.as_ref().map(|kind| *kind.get_ref()));
        let settings = self.settings(&mut table, name.as_deref());
        let permissions = self.permissions(&mut table);
        let kind = kind?;
        let (mac, own_mac) = self.mac(table.mac.take(), *kind.get_ref(), &vlan);
        let mtu = self.mtu(table.mtu.take(), *kind.get_ref());
        let queues = number(table.queues.take());
        let mut kind = self.kind(kind, table, &vlan);
        if let Some(PortKind::Embedded { lock_mac, .. }) = &mut kind {
            *lock_mac = own_mac || mac.is_some();
        }
        let (name, kind) = (name?, kind?);
        Some(PortSpec { name, kind, queues, mac, vlan, mtu, permissions, options, settings })
    }

    fn add(&mut self, key: &str, span: &Range<usize>, problem: impl ToString) {
        self.problems.add(self.place.path, key, span, problem);
    }

    /// A required value.
    fn required<T: FromText>(&mut self, key: &str, given: Given<Text<T>>) -> Option<Spanned<T>> {
        let Some(given) = given else {
            self.problems.add_missing(self.place.path, key, self.place.at, &T::right());
            return None;
        };
        let span = given.span();
        Some(Spanned::new(span, given.into_inner().0))
    }

    /// Adds the problem that another port has the same value.
    fn refuse_taken(
        &mut self,
        key: &str,
        span: &Range<usize>,
        what: &str,
        has: impl Fn(&PortSpec) -> bool,
    ) {
        if let Some(place) = self.neighbours.find(has) {
            let problem = format!("{VALUE} belongs to {place} already; give another {what}");
            self.add(key, span, problem);
        }
    }

    /// Refuses keys that ports of this kind do not have.
    fn refuse_misplaced(&mut self, kind: Kind, table: &PortTable) {
        for (key, span) in table.given() {
            if let Some(problem) = misplaced(key, kind) {
                self.add(key, &span, format_args!("{problem}; leave it out"));
            }
        }
    }

    fn name(&mut self, given: Given<Text<Name>>) -> Option<String> {
        let name = self.required("name", given)?;
        let span = name.span();
        let Name(name) = name.into_inner();
        self.refuse_taken("name", &span, "name", |port| port.name == name);
        Some(name)
    }

    fn kind(&mut self, kind: Spanned<Kind>, mut table: PortTable, vlan: &Vlan) -> Option<PortKind> {
        match kind.get_ref() {
            Kind::VhostUser => {
                let socket = self.socket(table.socket.take());
                let mode = value(table.mode.take()).unwrap_or(Mode::Server);
                Some(PortKind::VhostUser { socket: socket?, mode })
            }
            Kind::Tap => {
                let device = self.required("device", table.device.take())?;
                let span = device.span();
                let Interface(device) = device.into_inner();
                let same = |port: &PortSpec| port.kind.device() == Some(device.as_str());
                self.refuse_taken("device", &span, "interface", same);
                Some(PortKind::Tap { device })
            }
            Kind::Xen => {
                if let Some(place) = self.neighbours.find(|port| port.kind == PortKind::Xen) {
                    let problem = format!("{place} serves all vifs already");
                    self.add("kind", &kind.span(), problem);
                }
                Some(PortKind::Xen)
            }
            Kind::Embedded => self.embedded(table, vlan),
            // No table can name this kind.
            Kind::Overlay => None,
        }
    }

    fn embedded(&mut self, mut table: PortTable, vlan: &Vlan) -> Option<PortKind> {
        let socket = self.socket(table.socket.take());
        let device_queue = self.device_queue(table.device_queue.take(), vlan);
        let extensions = self.extensions(value(table.copy.take()), table.grants.take());
        let (socket, design, lock_mac) = (socket?, Design::NEW, false);
        Some(PortKind::Embedded { socket, design, extensions, device_queue, lock_mac })
    }

    /// A socket that no other port or disk has.
    fn socket(&mut self, given: Given<Text<Socket>>) -> Option<PathBuf> {
        let socket = self.required("socket", given)?;
        let span = socket.span();
        let Socket(socket) = socket.into_inner();
        if socket == self.neighbours.control {
            let problem = format!("{VALUE} belongs to control.socket already; give another path");
            self.add("socket", &span, problem);
        } else {
            self.refuse_taken("socket", &span, "path", |port| port.kind.socket() == Some(&socket));
        }
        Some(socket)
    }

    /// The device whose receive queues guests can have. Such frames bypass the switch, so there can
    /// be no VLANs.
    fn device_queue(&mut self, given: Given<Text<Interface>>, vlan: &Vlan) -> Option<String> {
        let given = given?;
        let span = given.span();
        let Text(Interface(device)) = given.into_inner();
        if *vlan != Vlan::None {
            let problem = "its frames bypass the switch and its VLANs; leave out vlan and trunk, \
                           or this";
            self.add("device-queue", &span, problem);
        }
        let same = |port: &PortSpec| port.kind.device_queue() == Some(device.as_str());
        self.refuse_taken("device-queue", &span, "interface", same);
        Some(device)
    }

    /// The guests' extensions of Xen's protocol. Guests that copy for themselves reach everything
    /// that is granted of a page, so ranges must be granted then.
    fn extensions(&mut self, copy: Option<CopySide>, grants: Given<Text<Grants>>) -> Extensions {
        let guest_copy = copy == Some(CopySide::Guest);
        let ranges = match &grants {
            None => guest_copy,
            Some(grants) => grants.get_ref().0 == Grants::Range,
        };
        if let Some(grants) = grants.filter(|_| guest_copy && !ranges) {
            let problem =
                "guests that copy for themselves would reach whole pages of others; leave it out";
            self.add("grants", &grants.span(), problem);
        }
        Extensions { ranges, guest_copy }
    }

    fn mtu(&mut self, given: Given<Number<Mtu>>, kind: Kind) -> Option<u16> {
        let given = given?;
        let mtu = given.get_ref().0;
        if kind == Kind::Tap && mtu > MAX_TAP_MTU {
            let least = Mtu::RANGE.start();
            let problem = format!("{mtu} is out of range; give {least} to {MAX_TAP_MTU}");
            self.add("mtu", &given.span(), problem);
        }
        Some(mtu)
    }

    fn vlan(&mut self, access: Option<u16>, trunk: Given<List<Number<Trunk>>>) -> Vlan {
        let Some(trunk) = trunk else { return access.map_or(Vlan::None, Vlan::Access) };
        if access.is_some() {
            let problem = "a port has either one VLAN or a trunk; give vlan or trunk, not both";
            self.add("trunk", &trunk.span(), problem);
        }
        let mut vids: Vec<u16> = Vec::new();
        for item in &trunk.get_ref().0 {
            let vid = item.get_ref().0;
            if vids.contains(&vid) {
                let problem = format!("VLAN {vid} is listed twice; give {}", Trunk::right());
                self.add("trunk", &item.span(), problem);
            }
            vids.push(vid);
        }
        vids.sort_unstable();
        Vlan::Trunk(vids)
    }

    /// The address that the port is locked to, and whether each of its guests is locked to its own.
    fn mac(&mut self, given: Given<Text<MacLock>>, kind: Kind, vlan: &Vlan) -> (Option<Mac>, bool) {
        let Some(given) = given else { return (None, false) };
        match given.get_ref().0 {
            MacLock::Own if kind == Kind::Embedded => (None, true),
            MacLock::Own => {
                let problem = format!(
                    "only guests of a port of kind {:?} have their own; give {}",
                    Kind::Embedded.name(),
                    MacLock::right()
                );
                self.add("mac", &given.span(), problem);
                (None, false)
            }
            MacLock::Address(mac) => {
                let same = |port: &PortSpec| port.mac == Some(mac) && port.vlan.meets(vlan);
                self.refuse_taken("mac", &given.span(), "address", same);
                (Some(mac), false)
            }
        }
    }

    /// The users that may use the socket. A client uses the socket that its front-end has created.
    fn permissions(&mut self, table: &mut PortTable) -> Permissions {
        let is_client = table.mode.as_ref().is_some_and(|mode| mode.get_ref().0 == Mode::Client);
        if is_client {
            for (key, span) in table.given() {
                if matches!(key, "socket-mode" | "socket-owner" | "socket-group") {
                    let problem = "the front-end creates the socket of a client; leave it out";
                    self.add(key, &span, problem);
                }
            }
        }
        permissions(
            value(table.socket_mode.take()),
            value(table.socket_owner.take()),
            value(table.socket_group.take()),
        )
    }

    /// The settings that can change in service.
    fn settings(&mut self, table: &mut PortTable, name: Option<&str>) -> PortSettings {
        if let (Some(_), Some(groups)) = (&table.device_queue, &table.security_groups) {
            let problem =
                "frames of a device queue bypass filters; leave out device-queue, or this";
            self.add("security-groups", &groups.span(), problem);
        }
        let mut settings = PortSettings::default();
        let (keys, place) = (port_keys(), (table, self.place.path));
        let known = self.neighbours.known;
        let others = |all: &[String]| -> Vec<String> {
            all.iter().filter(|other| Some(other.as_str()) != name).cloned().collect()
        };
        let mirrors = known.mirrors.map(others);
        let known = Known { mirrors: mirrors.as_deref(), ..known };
        apply(&keys, place, &mut settings, known, self.problems);
        settings
    }

    fn options(&mut self, table: &mut PortTable, kind: Option<Kind>) -> PortOptions {
        let time = number(table.interrupt_microseconds.take());
        if let (Some(frames), None) = (&table.interrupt_frames, time)
            && !self.problems.concern(self.place.path, "interrupt-microseconds")
        {
            let problem = "the last frames would wait for ever; give interrupt-microseconds, too";
            self.problems.add(self.place.path, "interrupt-frames", &frames.span(), problem);
        }
        let frames = number(table.interrupt_frames.take()).map(u32::from);
        let coalescing =
            time.and_then(|time| CoalescingLimits::new(frames, Duration::from_micros(time.into())));
        let cache = kind.map_or(0, Kind::default_cache);
        PortOptions {
            coalescing,
            policy: value(table.polling.take()),
            cache: number(table.cache.take()).unwrap_or(cache),
            align: table.align.take().is_some_and(Spanned::into_inner),
        }
    }
}

/// Why a port of this kind does not have this key.
pub(super) fn misplaced(key: &str, kind: Kind) -> Option<String> {
    if kind.has_key(key) {
        return None;
    }
    let lacks = |what: &str| format!("a port of kind {:?} has no {what}", kind.name());
    Some(match (key, kind) {
        ("mtu" | "vlan" | "trunk" | "mac", Kind::Xen) => {
            "each vif has its own, in the keys of its hotplug script".to_owned()
        }
        // The host's kernel handles its own interrupts.
        ("interrupt-frames" | "interrupt-microseconds", _) => lacks("interrupts"),
        ("cache" | "align", _) => lacks("grants"),
        _ => {
            let kinds = Kind::choice(Kind::ALL.into_iter().filter(|kind| kind.has_key(key)));
            format!("only a port of kind {kinds} has one")
        }
    })
}
