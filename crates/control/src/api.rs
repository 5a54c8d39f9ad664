//! The protocol of the control socket: one JSON object on each line, in both directions.
//!
//! A request is `{"version":2,"do":"port.show","name":"vm-a"}`, the answer
//! `{"version":2,"ok":{"port":{...}}}` or `{"version":2,"error":"..."}`. Fields may be added within
//! a version; none is renamed, left out, or changes its meaning. An unknown or unset value is null.

mod capture;
mod disk;
mod durations;
mod limits;
mod overlay;
mod port;
mod profile;
mod reload;
mod rules;
mod stats;
mod take_over;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

pub use xen::netif::guest_times::GuestTimes;

pub use capture::CaptureRequest;
pub use disk::{DiskCounts, DiskLimitsReport, DiskQueueReport, DiskReport};
pub use durations::Durations;
pub use limits::{BudgetReport, DirectionReport, LimitsReport};
pub use overlay::{OverlayNetwork, OverlayPeer, OverlayReport};
pub use port::{
    CacheReport, Counts, GuestCopies, MemoryReport, PortReport, PortState, QueueReport, StoreReport,
};
pub use profile::{PortProfile, Profile, QueueFlows, WorkerProfile};
pub use reload::{ReloadAction, ReloadChange, ReloadReport, ReloadSubject};
pub use rules::{PacketQuery, RuleReport, RuleVerdict};
pub use stats::{
    CopyMethod, EventReport, MacRow, PollingReport, SandboxLayer, Stats, WorkerReport,
};
pub use take_over::{Manifest, ManifestPort};

/// The version of the protocol.
pub const VERSION: u32 = 2;

/// A request to the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", deny_unknown_fields)]
pub enum Request {
    /// Add a port.
    #[serde(rename = "port.add")]
    PortAdd {
        /// Keys and values as in a `[[port]]` table of the configuration, the keys in snake case.
        port: Map<String, Json>,
    },
    /// Remove a port.
    #[serde(rename = "port.remove")]
    PortRemove {
        /// Its name.
        name: String,
    },
    /// Change a port in service.
    #[serde(rename = "port.set")]
    PortSet {
        /// Its name.
        name: String,
        /// Keys and new values as in a `[[port]]` table, the keys in snake case; null removes a
        /// setting.
        set: Map<String, Json>,
    },
    /// All ports.
    #[serde(rename = "port.list")]
    PortList,
    /// One port.
    #[serde(rename = "port.show")]
    PortShow {
        /// Its name.
        name: String,
    },
    /// Add a budget.
    #[serde(rename = "budget.add")]
    BudgetAdd {
        /// Keys and values as in a `[[budget]]` table, the keys in snake case.
        budget: Map<String, Json>,
    },
    /// Change a budget, for all ports that share it.
    #[serde(rename = "budget.set")]
    BudgetSet {
        /// Its name.
        name: String,
        /// Keys and new values as in a `[[budget]]` table, the keys in snake case; null removes a
        /// setting.
        set: Map<String, Json>,
    },
    /// Remove a budget that no port shares.
    #[serde(rename = "budget.remove")]
    BudgetRemove {
        /// Its name.
        name: String,
    },
    /// All budgets.
    #[serde(rename = "budget.list")]
    BudgetList,
    /// One budget.
    #[serde(rename = "budget.show")]
    BudgetShow {
        /// Its name.
        name: String,
    },
    /// Add a disk.
    #[serde(rename = "disk.add")]
    DiskAdd {
        /// Keys and values as in a `[[disk]]` table of the configuration, the keys in snake case.
        disk: Map<String, Json>,
    },
    /// Remove a disk.
    #[serde(rename = "disk.remove")]
    DiskRemove {
        /// Its name.
        name: String,
    },
    /// All disks.
    #[serde(rename = "disk.list")]
    DiskList,
    /// One disk.
    #[serde(rename = "disk.show")]
    DiskShow {
        /// Its name.
        name: String,
    },
    /// Give the image of a disk a new length, and tell the guest.
    #[serde(rename = "disk.resize")]
    DiskResize {
        /// Its name.
        name: String,
        /// The new length; null: the length that the image has now.
        bytes: Option<u64>,
    },
    /// Change a disk in service.
    #[serde(rename = "disk.set")]
    DiskSet {
        /// Its name.
        name: String,
        /// Keys and new values as in a `[[disk]]` table, the keys in snake case; null removes a
        /// setting.
        set: Map<String, Json>,
    },
    /// The rules of a port's security groups.
    #[serde(rename = "rules.show")]
    RulesShow {
        /// Its name.
        name: String,
    },
    /// Whether the rules of a port let a connection be opened.
    #[serde(rename = "rules.test")]
    RulesTest {
        /// Its name.
        name: String,
        /// The first packet.
        packet: PacketQuery,
    },
    /// All overlays.
    #[serde(rename = "overlay.list")]
    OverlayList,
    /// All counters.
    #[serde(rename = "stats")]
    Stats,
    /// The address table.
    #[serde(rename = "mac")]
    Mac,
    /// Read the configuration file again, and apply the changes.
    #[serde(rename = "reload")]
    Reload {
        /// Only report the changes, and apply none.
        #[serde(default)]
        dry_run: bool,
    },
    /// Requests a profile. Profiling starts, or continues, for this number of seconds; the reply
    /// holds the counts so far.
    #[serde(rename = "profile")]
    Profile {
        /// For how long.
        seconds: u32,
    },
    /// Capture frames. The connection carries the capture after the reply, as pcapng, and no
    /// further requests. It ends when the client closes its side.
    #[serde(rename = "capture")]
    Capture(CaptureRequest),
    /// Take over the daemon's ports. The connection carries the state after the reply, and no
    /// further requests.
    #[serde(rename = "take-over")]
    TakeOver {
        /// Formats of state that the client understands.
        formats: Vec<u32>,
    },
}

/// An answer of the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The request was carried out.
    Done,
    /// The ports, sorted by name.
    Ports(Vec<PortReport>),
    /// One port.
    Port(Box<PortReport>),
    /// The budgets, sorted by name.
    Budgets(Vec<BudgetReport>),
    /// One budget.
    Budget(Box<BudgetReport>),
    /// The disks, sorted by name.
    Disks(Vec<DiskReport>),
    /// One disk.
    Disk(Box<DiskReport>),
    /// The rules of a port, in the order in which they are asked.
    Rules(Vec<RuleReport>),
    /// Whether a packet passes.
    Verdict(Box<RuleVerdict>),
    /// The overlays, sorted by name.
    Overlays(Vec<OverlayReport>),
    /// All counters.
    Stats(Box<Stats>),
    /// The address table, sorted by VLAN and address.
    Macs(Vec<MacRow>),
    /// The changes that were made, or would be.
    Reload(ReloadReport),
    /// The profile of time.
    Profile(Box<Profile>),
    /// The list of what the daemon serves and is about to hand over.
    TakeOver(Manifest),
}

/// One line from the daemon: a reply or an error.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Reply>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_look_as_documented() {
        let cases = [
            (Request::PortList, r#"{"do":"port.list"}"#),
            (Request::PortShow { name: "a".into() }, r#"{"do":"port.show","name":"a"}"#),
            (Request::PortRemove { name: "a".into() }, r#"{"do":"port.remove","name":"a"}"#),
            (
                Request::PortSet { name: "a".into(), set: Map::new() },
                r#"{"do":"port.set","name":"a","set":{}}"#,
            ),
            (Request::BudgetList, r#"{"do":"budget.list"}"#),
            (Request::BudgetShow { name: "b".into() }, r#"{"do":"budget.show","name":"b"}"#),
            (Request::BudgetRemove { name: "b".into() }, r#"{"do":"budget.remove","name":"b"}"#),
            (Request::BudgetAdd { budget: Map::new() }, r#"{"do":"budget.add","budget":{}}"#),
            (
                Request::BudgetSet { name: "b".into(), set: Map::new() },
                r#"{"do":"budget.set","name":"b","set":{}}"#,
            ),
            (Request::RulesShow { name: "a".into() }, r#"{"do":"rules.show","name":"a"}"#),
            (Request::Stats, r#"{"do":"stats"}"#),
            (Request::Mac, r#"{"do":"mac"}"#),
            (Request::Reload { dry_run: true }, r#"{"do":"reload","dry_run":true}"#),
            (Request::Profile { seconds: 5 }, r#"{"do":"profile","seconds":5}"#),
            (Request::DiskList, r#"{"do":"disk.list"}"#),
            (Request::OverlayList, r#"{"do":"overlay.list"}"#),
            (Request::DiskShow { name: "a".into() }, r#"{"do":"disk.show","name":"a"}"#),
            (Request::DiskRemove { name: "a".into() }, r#"{"do":"disk.remove","name":"a"}"#),
            (Request::DiskAdd { disk: Map::new() }, r#"{"do":"disk.add","disk":{}}"#),
            (
                Request::DiskSet { name: "a".into(), set: Map::new() },
                r#"{"do":"disk.set","name":"a","set":{}}"#,
            ),
            (
                Request::DiskResize { name: "a".into(), bytes: Some(512) },
                r#"{"do":"disk.resize","name":"a","bytes":512}"#,
            ),
            (
                Request::Capture(CaptureRequest {
                    ports: vec!["a".into()],
                    snaplen: Some(96),
                    filter: Some(vec![(6, 0, 0, 1)]),
                }),
                r#"{"do":"capture","ports":["a"],"snaplen":96,"filter":[[6,0,0,1]]}"#,
            ),
            (Request::TakeOver { formats: vec![1] }, r#"{"do":"take-over","formats":[1]}"#),
            (Request::PortAdd { port: Map::new() }, r#"{"do":"port.add","port":{}}"#),
        ];
        for (request, json) in cases {
            assert_eq!(serde_json::to_string(&request).unwrap(), json);
            assert_eq!(serde_json::from_str::<Request>(json).unwrap(), request);
        }
    }
}
