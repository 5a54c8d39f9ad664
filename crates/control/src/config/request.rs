//! Descriptions of single ports: as flags of a command, and as requests on the control socket.

use std::path::Path;

use serde_json::{Map, Value as Json, json};
use switch::Vlan;

use super::changed_keys::changed_keys;
use super::error::ConfigErrors;
use super::options::options;
use super::port::{Mode, PortSpec};
use super::port_reader::{self, Neighbours};
use super::port_table::PortTable;
use super::setting_keys::{Known, port_settings};
use super::source::{Place, Source};
use super::value::Table;

impl PortSpec {
    /// Reads the flags of `ringmain port add`, by long names without dashes. Their values have the
    /// types of the configuration file if they can be parsed so, and are texts otherwise.
    ///
    /// # Errors
    /// All problems of the flags.
    pub fn from_flags(flags: &Map<String, Json>) -> Result<PortSpec, ConfigErrors> {
        read(
            &Source::flags(flags),
            &Neighbours { control: Path::new(""), ports: Vec::new(), known: Known::default() },
        )
    }

    /// Reads the object of a `port.add` request: the keys and values of a `[[port]]` table, in
    /// snake case. The port must not conflict with the ports in `there`, with the budgets, or with
    /// the control socket.
    ///
    /// # Errors
    /// All problems of the request.
    pub fn from_request<'a>(
        object: &Map<String, Json>,
        there: impl Iterator<Item = &'a PortSpec>,
        known: Known<'_>,
        control: &Path,
    ) -> Result<PortSpec, ConfigErrors> {
        let ports: Vec<_> = there.map(|port| (port, format!("port {:?}", port.name))).collect();
        let can_mirror = ports.iter().filter(|(port, _)| port.kind.kind().can_mirror());
        let mirrors: Vec<String> = can_mirror.map(|(port, _)| port.name.clone()).collect();
        let known = Known { mirrors: Some(&mirrors), ..known };
        read(&Source::request(object), &Neighbours { control, ports, known })
    }

    /// The keys that differ from `other`, in snake case: those with another value, and those that
    /// only one of both has.
    pub fn changed_keys(&self, other: &PortSpec) -> Vec<String> {
        changed_keys(&self.to_request(), &other.to_request())
    }

    /// The object of a `port.add` request for this port.
    pub fn to_request(&self) -> Map<String, Json> {
        let mut object = Map::new();
        let mut put = |key: &str, value: Json| {
            if !value.is_null() {
                object.insert(key.replace('-', "_"), value);
            }
        };
        put("name", json!(self.name));
        put("kind", json!(self.kind.kind()));
        put("socket", json!(self.kind.socket()));
        put("device", json!(self.kind.device()));
        put("device-queue", json!(self.kind.device_queue()));
        put("mode", json!(self.kind.mode().map(Mode::name)));
        // Numbers are sent instead of names, because the daemon may see no list of users.
        put("socket-mode", json!(self.permissions.mode.map(|mode| format!("{:03o}", mode.bits()))));
        put("socket-owner", json!(self.permissions.owner.map(|owner| owner.to_string())));
        put("socket-group", json!(self.permissions.group.map(|group| group.to_string())));
        match &self.vlan {
            Vlan::None => {}
            Vlan::Access(vid) => put("vlan", json!(vid)),
            Vlan::Trunk(list) => put("trunk", json!(list)),
        }
        put("queues", json!(self.queues));
        put("mac", json!(self.mac_lock()));
        put("mtu", json!(self.mtu));
        options(&self.kind, &self.options).into_iter().for_each(|(key, value)| put(key, value));
        port_settings(&self.settings).into_iter().for_each(|(key, value)| put(key, value));
        object
    }
}

fn read(source: &Source, neighbours: &Neighbours<'_>) -> Result<PortSpec, ConfigErrors> {
    let (Table(table), mut problems) = source.read::<Table<PortTable>>();
    let place = Place { path: "", at: 0 };
    let port = port_reader::read(table, place, neighbours, &mut problems);
    problems.finish(port)
}
