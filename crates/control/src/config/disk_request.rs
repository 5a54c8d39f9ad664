//! Descriptions of disks as requests on the control socket.

use serde_json::{Map, Value as Json, json};

use super::changed_keys::changed_keys;
use super::disk::{DIRECT_WORDS, DiskSpec};
use super::disk_settings::DiskSettings;
use super::setting_keys::disk_settings;

impl DiskSpec {
    /// The object of a `disk.add` request for this disk.
    pub fn to_request(&self) -> Map<String, Json> {
        let direct = DIRECT_WORDS.iter().find(|(_, direct)| *direct == self.direct);
        let permissions = &self.permissions;
        let all = json!({
            "name": self.name,
            "kind": "vhost-user",
            "socket": self.socket,
            // Numbers are sent instead of names, because the daemon may see no list of users.
            "socket_mode": permissions.mode.map(|mode| format!("{:03o}", mode.bits())),
            "socket_owner": permissions.owner.map(|owner| owner.to_string()),
            "socket_group": permissions.group.map(|group| group.to_string()),
            "image": self.image,
            "format": self.format.name(),
            "queues": self.queues,
            "read_only": self.read_only,
            "direct": direct.map(|(word, _)| word),
            "sector_size": self.sector_size,
            "serial": self.serial,
            "polling": self.policy.map(|policy| policy.to_string()),
        });
        let Json::Object(all) = all else { return Map::new() };
        let all = all.into_iter().filter(|(_, value)| !value.is_null());
        all.chain(self.settings.to_request()).collect()
    }

    /// The keys that differ from `other`, in snake case: those with another value, and those that
    /// only one of both has.
    pub fn changed_keys(&self, other: &DiskSpec) -> Vec<String> {
        changed_keys(&self.to_request(), &other.to_request())
    }
}

impl DiskSettings {
    /// The keys that are set, in snake case, and their values, as in a `disk.set` request.
    pub(super) fn to_request(&self) -> Map<String, Json> {
        let set = disk_settings(self).into_iter().filter(|(_, value)| !value.is_null());
        set.map(|(key, value)| (key.replace('-', "_"), value)).collect()
    }

    /// The keys that differ from `other`, in snake case: those with another value, and those that
    /// only one of both has.
    pub fn changed_keys(&self, other: &DiskSettings) -> Vec<String> {
        changed_keys(&self.to_request(), &other.to_request())
    }
}
