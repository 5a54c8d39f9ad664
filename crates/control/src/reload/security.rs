//! Changes of address groups and security groups.

use super::{Change, Running};
use crate::api::{ReloadAction, ReloadSubject};
use crate::config::{AddressGroupSpec, Config, SecuritySpec};

/// The reasons against a reload: a line for each port that stays although one of its security
/// groups is removed.
pub(super) fn conflicts(running: &Running, wanted: &Config) -> Vec<String> {
    let known = wanted.security.names();
    let mut conflicts = Vec::new();
    for port in running.kept(wanted) {
        let gone = port.settings.security_groups.iter().filter(|name| !known.contains(name));
        conflicts.extend(gone.map(|name| {
            format!(
                "security group {name:?} is not there any more, and port {:?} is in it; set its \
                 security-groups first",
                port.name
            )
        }));
    }
    conflicts
}

/// The changes from the groups of `present` to those of `wanted`.
pub(super) fn changes(present: &SecuritySpec, wanted: &SecuritySpec) -> Vec<Change> {
    let addresses = differences(
        ReloadSubject::AddressGroup,
        (&present.address_groups, &wanted.address_groups),
        |group| &group.name,
        address_keys,
    );
    let rules = differences(
        ReloadSubject::SecurityGroup,
        (&present.security_groups, &wanted.security_groups),
        |group| &group.name,
        |_, _| vec!["rules".to_owned()],
    );
    addresses.into_iter().chain(rules).collect()
}

fn address_keys(present: &AddressGroupSpec, wanted: &AddressGroupSpec) -> Vec<String> {
    let addresses = (present.addresses != wanted.addresses).then_some("addresses");
    let file = (&present.file, &present.members) != (&wanted.file, &wanted.members);
    addresses.into_iter().chain(file.then_some("file")).map(str::to_owned).collect()
}

/// Additions and changes in the order of the file, and then removals.
fn differences<T: PartialEq>(
    subject: ReloadSubject,
    (present, wanted): (&[T], &[T]),
    name: impl Fn(&T) -> &String,
    keys: impl Fn(&T, &T) -> Vec<String>,
) -> Vec<Change> {
    let find = |groups: &'_ [T], group: &T| groups.iter().position(|it| name(it) == name(group));
    let change =
        |action, group: &T, keys| Change::Group(action, subject, name(group).clone(), keys);
    let mut changes = Vec::new();
    for group in wanted {
        match find(present, group).map(|at| &present[at]) {
            None => changes.push(change(ReloadAction::Add, group, Vec::new())),
            Some(before) if before == group => {}
            Some(before) => changes.push(change(ReloadAction::Set, group, keys(before, group))),
        }
    }
    let gone = present.iter().filter(|group| find(wanted, group).is_none());
    changes.extend(gone.map(|group| change(ReloadAction::Remove, group, Vec::new())));
    changes
}
