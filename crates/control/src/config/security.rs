//! Address groups and security groups, which allow the connections of ports.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use frame::Prefix;
use switch::filter::{AddressSet, MAX_RULES, Remote, Rule, RuleSet, SecurityGroup};
use toml::Spanned;

use super::error::{ConfigError, ConfigErrors};
use super::port_table::Name;
use super::security_tables::{AddressGroupTable, MemberFile, SecurityGroupTable};
use super::source::{Place, Problems, VALUE};
use super::value::{FromText, List, Table, Tables, Text};

/// Most addresses and networks of a group, those of its file included.
pub const MAX_MEMBERS: usize = 65_536;

/// Longest file of a group, in bytes.
const LONGEST_FILE: u64 = 4 << 20;

/// A named set of addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressGroupSpec {
    /// The name, unique among address groups.
    pub name: String,
    /// Addresses of the configuration.
    pub addresses: Vec<Prefix>,
    /// A file with more addresses.
    pub file: Option<PathBuf>,
    /// The addresses in the file at the last reading.
    pub members: Vec<Prefix>,
}

/// All groups of a configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SecuritySpec {
    /// The address groups, in the order of the file.
    pub address_groups: Vec<AddressGroupSpec>,
    /// The security groups, in the order of the file.
    pub security_groups: Vec<SecurityGroup>,
}

impl SecuritySpec {
    /// The names of the security groups.
    pub fn names(&self) -> Vec<String> {
        self.security_groups.iter().map(|group| group.name.clone()).collect()
    }

    /// The rules of a port in these security groups; `None`: the port is in none. A group that does
    /// not exist allows nothing.
    pub fn rules(&self, groups: &[String]) -> Option<Arc<RuleSet>> {
        if groups.is_empty() {
            return None;
        }
        let addresses: BTreeMap<String, Arc<AddressSet>> = self
            .address_groups
            .iter()
            .map(|it| (it.name.clone(), Arc::new(AddressSet::new(&it.all_members()))))
            .collect();
        let groups = groups
            .iter()
            .filter_map(|name| self.security_groups.iter().find(|group| group.name == *name));
        // The configuration was checked for unknown groups; without rules, nothing is allowed.
        Some(Arc::new(RuleSet::new(groups, &addresses).unwrap_or_default()))
    }

    /// Reads the files of address groups. Relative paths start at `folder`.
    ///
    /// # Errors
    /// All problems of the files.
    pub fn read_members(&mut self, folder: &Path) -> Result<(), ConfigErrors> {
        let mut errors = Vec::new();
        for group in &mut self.address_groups {
            let Some(file) = &group.file else { continue };
            match members(&folder.join(file)) {
                Ok(members) => group.members = members,
                Err(found) => errors.extend(found),
            }
            if group.addresses.len() + group.members.len() > MAX_MEMBERS {
                let problem =
                    format!("the group {:?} has more than {MAX_MEMBERS} members", group.name);
                errors.push(ConfigError { place: file.display().to_string(), problem });
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
    }
}

impl AddressGroupSpec {
    /// All addresses of the group, from the configuration and the file.
    fn all_members(&self) -> Vec<Prefix> {
        self.addresses.iter().chain(&self.members).copied().collect()
    }
}

/// The addresses in a file: one in each line, with comments behind `#`.
fn members(path: &Path) -> Result<Vec<Prefix>, Vec<ConfigError>> {
    let error = |line: Option<usize>, problem: String| {
        let path = path.display();
        let place = line.map_or(path.to_string(), |line| format!("{path}:{line}"));
        ConfigError { place, problem }
    };
    let readable = fs::metadata(path).and_then(|metadata| match metadata.len() > LONGEST_FILE {
        true => Err(std::io::Error::other(format!("longer than {LONGEST_FILE} bytes"))),
        false => fs::read_to_string(path),
    });
    let text = readable.map_err(|why| vec![error(None, format!("cannot be read: {why}"))])?;
    let (mut members, mut errors) = (Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let entry = line.split('#').next().unwrap_or_default().trim();
        match entry.parse() {
            _ if entry.is_empty() => {}
            Ok(prefix) => members.push(prefix),
            Err(why) => errors.push(error(Some(number + 1), format!("{entry:?}: {why}"))),
        }
    }
    if errors.is_empty() { Ok(members) } else { Err(errors) }
}

/// The tables of a file.
pub(super) struct SecurityTables {
    pub address_groups: Tables<AddressGroupTable>,
    pub security_groups: Tables<SecurityGroupTable>,
}

/// Makes the groups of a configuration. All mistakes are added to the problems.
pub(super) fn read(tables: SecurityTables, problems: &mut Problems<'_>) -> SecuritySpec {
    let mut security = SecuritySpec::default();
    for (index, table) in tables.address_groups.0.into_iter().enumerate() {
        let path = format!("address-group[{index}]");
        let place = Place { path: &path, at: table.span().start };
        let Table(table) = table.into_inner();
        let others = security.address_groups.iter().map(|it| it.name.as_str());
        if let Some(group) = address_group(table, &place, others, problems) {
            security.address_groups.push(group);
        }
    }
    for (index, table) in tables.security_groups.0.into_iter().enumerate() {
        let path = format!("security-group[{index}]");
        let place = Place { path: &path, at: table.span().start };
        let Table(table) = table.into_inner();
        if let Some(group) = security_group(table, &place, &security, problems) {
            security.security_groups.push(group);
        }
    }
    security
}

fn address_group<'a>(
    table: AddressGroupTable,
    place: &Place<'_>,
    others: impl Iterator<Item = &'a str>,
    problems: &mut Problems<'_>,
) -> Option<AddressGroupSpec> {
    let name = name(table.name, place, others, problems);
    if table.addresses.is_none() && table.file.is_none() {
        problems.add_missing(place.path, "addresses", place.at, "addresses, or a file with some");
    }
    let file = table.file.map(|file| {
        let Text(MemberFile(path)) = file.into_inner();
        path
    });
    let addresses = table.addresses.map(list).unwrap_or_default();
    let addresses = addresses.into_iter().map(Spanned::into_inner).collect();
    Some(AddressGroupSpec { name: name?, addresses, file, members: Vec::new() })
}

fn security_group(
    table: SecurityGroupTable,
    place: &Place<'_>,
    security: &SecuritySpec,
    problems: &mut Problems<'_>,
) -> Option<SecurityGroup> {
    let others = security.security_groups.iter().map(|it| it.name.as_str());
    let name = name(table.name, place, others, problems);
    let rules = table.rules.map(list).unwrap_or_default();
    if rules.len() > MAX_RULES
        && let Some(rule) = rules.get(MAX_RULES)
    {
        let problem = format!("there are more than {MAX_RULES} rules; make two groups");
        problems.add(place.path, "rules", &rule.span(), problem);
    }
    for rule in &rules {
        if let Remote::Group(group) = &rule.get_ref().remote
            && !security.address_groups.iter().any(|it| it.name == *group)
        {
            let problem = format!("there is no address group {group:?}; add [[address-group]]");
            problems.add(place.path, "rules", &rule.span(), problem);
        }
    }
    let rules: Vec<Rule> = rules.into_iter().map(Spanned::into_inner).collect();
    Some(SecurityGroup { name: name?, rules })
}

/// The name of a group, which must be unique.
fn name<'a>(
    given: Option<Spanned<Text<Name>>>,
    place: &Place<'_>,
    mut others: impl Iterator<Item = &'a str>,
    problems: &mut Problems<'_>,
) -> Option<String> {
    let Some(given) = given else {
        problems.add_missing(place.path, "name", place.at, &Name::right());
        return None;
    };
    let span = given.span();
    let Text(Name(name)) = given.into_inner();
    if others.any(|other| other == name) {
        let problem = format!("there is a group {VALUE} already; give another name");
        problems.add(place.path, "name", &span, problem);
    }
    Some(name)
}

/// The items of a list, each with its place.
fn list<T>(list: Spanned<List<Text<T>>>) -> Vec<Spanned<T>> {
    let List(items) = list.into_inner();
    let item = |item: Spanned<Text<T>>| {
        let span = item.span();
        Spanned::new(span, item.into_inner().0)
    };
    items.into_iter().map(item).collect()
}
