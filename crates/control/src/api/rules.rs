//! Rules of security groups.

use serde::{Deserialize, Serialize};

/// A rule that applies to a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RuleReport {
    /// The security group that the rule is in.
    pub group: String,
    /// The rule, as the configuration has it.
    pub rule: String,
}

/// A query about the first packet of a connection: whether it passes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketQuery {
    /// `in`: to the guest; `out`: from it.
    pub direction: String,
    /// `tcp`, `udp`, `sctp`, `icmp`, or a number.
    pub protocol: String,
    /// The source address, with a port if the protocol has ports: `192.0.2.1:4000`.
    pub source: String,
    /// The destination address, in the same form.
    pub destination: String,
}

/// Whether the first packet of a connection passes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RuleVerdict {
    /// Whether it passes.
    pub passes: bool,
    /// The first rule that allows it; null: none does, or the port has no security groups.
    pub rule: Option<RuleReport>,
    /// The reason, as a sentence for people.
    pub reason: String,
}
