//! All rules of a port: those of its security groups, with the addresses of the groups that they
//! name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::address_set::AddressSet;
use super::connections::Key;
use super::rule::{Direction, Remote, Rule};

/// Most rules of a security group: the first frame of a connection is compared with all of them.
pub const MAX_RULES: usize = 256;

/// A named list of rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SecurityGroup {
    /// Its name.
    pub name: String,
    /// Connections that it allows.
    pub rules: Vec<Rule>,
}

/// The rules of a port. A frame is allowed if any of them allows it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RuleSet(Vec<Compiled>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Compiled {
    /// The security group that the rule is in.
    group: String,
    rule: Rule,
    /// The addresses of the remote station; `None`: any.
    remote: Option<Arc<AddressSet>>,
}

/// A rule names an address group that does not exist.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no address group {0:?}")]
pub struct UnknownGroup(pub String);

impl RuleSet {
    /// The rules of these security groups.
    ///
    /// # Errors
    /// When a rule names an address group that `addresses` does not have.
    pub fn new<'a>(
        groups: impl IntoIterator<Item = &'a SecurityGroup>,
        addresses: &BTreeMap<String, Arc<AddressSet>>,
    ) -> Result<RuleSet, UnknownGroup> {
        let rules = groups.into_iter().flat_map(|it| it.rules.iter().map(move |rule| (it, rule)));
        let compiled = |(group, rule): (&SecurityGroup, &Rule)| {
            let remote = match &rule.remote {
                Remote::Any => None,
                Remote::Prefix(prefix) => Some(Arc::new(AddressSet::new(&[*prefix]))),
                Remote::Group(name) => {
                    Some(addresses.get(name).cloned().ok_or_else(|| UnknownGroup(name.clone()))?)
                }
            };
            Ok(Compiled { group: group.name.clone(), rule: rule.clone(), remote })
        };
        rules.map(compiled).collect::<Result<_, _>>().map(RuleSet)
    }

    /// The rules, each with the name of its security group.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Rule)> {
        self.0.iter().map(|it| (it.group.as_str(), &it.rule))
    }

    /// The first rule that allows a connection to be opened, with the name of its security group.
    pub fn find(&self, key: Key) -> Option<(&str, &Rule)> {
        let found = self.0.iter().find(|it| it.allows(key))?;
        Some((&found.group, &found.rule))
    }

    /// Whether a rule allows a connection to be opened.
    pub fn allows(&self, key: Key) -> bool {
        self.0.iter().any(|it| it.allows(key))
    }
}

impl Compiled {
    fn allows(&self, Key { tuple, direction }: Key) -> bool {
        let remote = match direction {
            Direction::In => tuple.source,
            Direction::Out => tuple.destination,
        };
        let port = tuple.destination_port;
        self.rule.direction == direction
            && self.rule.protocol.includes(tuple.protocol)
            && (self.rule.ports.is_empty() || self.rule.ports.iter().any(|it| it.contains(&port)))
            && self.remote.as_ref().is_none_or(|addresses| addresses.contains(remote))
    }
}
