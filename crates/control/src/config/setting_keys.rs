//! Settings of a port, a budget or a disk that can change while it is in service: the keys of
//! `ringmain port set`, `ringmain budget set` and `ringmain disk set`. A new key of ports is a
//! field of [`PortSettings`], a line of [`PortTable`], and an entry of [`port_keys`]; `port add`,
//! `port set` and the configuration file take it from there. A key that only some kinds of ports
//! have is listed with them in [`Kind`](crate::kind::Kind). The same holds for keys of budgets and
//! disks.

use serde_json::{Map, Value as Json};
use switch::guard::MAX_PREFIXES;

use super::budget_table::BudgetTable;
use super::disk_settings::DiskSettings;
use super::disk_table::DiskTable;
use super::key_table::KeyTable;
use super::memory_size::MemorySize;
use super::port_settings::PortSettings;
use super::port_table::{Name, PortTable};
use super::rates::{Conflict, RateLimits};
use super::source::Problems;
use super::value::{Amount, List, Text};
use crate::kind::Kind;

/// A key of tables `T` for a value in the settings `S`.
pub(super) struct Key<T, S> {
    /// The key.
    pub name: &'static str,
    /// Moves the value from the table, if it was given.
    pub take: fn(&mut T, &mut S),
    /// Sets the default.
    pub clear: fn(&mut S),
    /// The value in text form; null: nothing is set.
    pub show: fn(&S) -> Json,
}

macro_rules! key {
    ($name:literal, $field:ident, [$($place:tt)+], $read:ident, $show:ident) => {
        Key {
            name: $name,
            take: |table, settings| {
                if let Some(given) = table.$field.take() {
                    settings.$($place)+ = $read(given.into_inner());
                }
            },
            clear: |settings| settings.$($place)+ = Default::default(),
            show: |settings| $show(&settings.$($place)+),
        }
    };
}

macro_rules! rate_keys {
    ($($outer:ident.)*) => {
        vec![
            key!("tx-rate", tx_rate, [$($outer.)*tx.rate], amount, text),
            key!("tx-burst", tx_burst, [$($outer.)*tx.burst], amount, text),
            key!("tx-frames", tx_frames, [$($outer.)*tx.frames], amount, text),
            key!("tx-frames-burst", tx_frames_burst, [$($outer.)*tx.frames_burst], amount, text),
            key!("rx-rate", rx_rate, [$($outer.)*rx.rate], amount, text),
            key!("rx-burst", rx_burst, [$($outer.)*rx.burst], amount, text),
            key!("rx-frames", rx_frames, [$($outer.)*rx.frames], amount, text),
            key!("rx-frames-burst", rx_frames_burst, [$($outer.)*rx.frames_burst], amount, text),
        ]
    };
}

/// The keys of a port that can change.
pub(super) fn port_keys() -> Vec<Key<PortTable, PortSettings>> {
    let mut keys: Vec<Key<PortTable, PortSettings>> = rate_keys!(limits.);
    keys.push(key!("budget", budget, [budget], name, text));
    keys.push(key!("addresses", addresses, [addresses], list, texts));
    keys.push(key!("security-groups", security_groups, [security_groups], names, texts));
    keys.push(key!("memory", memory, [memory], size, unusual));
    keys.push(key!("mirror", mirror, [mirror], name, text));
    keys
}

/// The keys of a budget that can change.
pub(super) fn budget_keys() -> Vec<Key<BudgetTable, RateLimits>> {
    rate_keys!()
}

/// The keys of a disk that can change.
pub(super) fn disk_keys() -> Vec<Key<DiskTable, DiskSettings>> {
    vec![
        key!("iops", iops, [limits.iops], amount, text),
        key!("iops-burst", iops_burst, [limits.iops_burst], amount, text),
        key!("bandwidth", bandwidth, [limits.bandwidth], amount, text),
        key!("bandwidth-burst", bandwidth_burst, [limits.bandwidth_burst], amount, text),
        key!("memory", memory, [memory], some_size, text),
    ]
}

/// All keys and their values, in text form.
pub(super) fn disk_settings(settings: &DiskSettings) -> Vec<(&'static str, Json)> {
    disk_keys().iter().map(|key| (key.name, (key.show)(settings))).collect()
}

/// All keys and their values, in text form.
pub(super) fn port_settings(settings: &PortSettings) -> Vec<(&'static str, Json)> {
    port_keys().iter().map(|key| (key.name, (key.show)(settings))).collect()
}

fn amount<T>(Amount(amount): Amount<T>) -> Option<T> {
    Some(amount)
}

fn name(Text(Name(name)): Text<Name>) -> Option<String> {
    Some(name)
}

fn list<T>(List(items): List<Text<T>>) -> Vec<T> {
    items.into_iter().map(|item| item.into_inner().0).collect()
}

fn names(names: List<Text<Name>>) -> Vec<String> {
    list(names).into_iter().map(|Name(name)| name).collect()
}

fn size(Text(size): Text<MemorySize>) -> MemorySize {
    size
}

fn some_size(Text(size): Text<MemorySize>) -> Option<MemorySize> {
    Some(size)
}

/// The value, or null if it is the default.
fn unusual<T: ToString + Default + PartialEq>(value: &T) -> Json {
    (*value != T::default()).then(|| value.to_string()).into()
}

fn text<T: ToString>(value: &Option<T>) -> Json {
    value.as_ref().map(T::to_string).into()
}

fn texts<T: ToString>(values: &[T]) -> Json {
    if values.is_empty() { Json::Null } else { values.iter().map(T::to_string).collect() }
}

/// Settings that keys can change.
pub(super) trait Settings: Clone {
    /// The object with the settings, for errors.
    const NOUN: &'static str;
    /// How a change is written.
    const EXAMPLE: &'static str;

    /// Leaves out bursts without a rate: the rate was removed.
    fn drop_bursts(&mut self);

    /// Values that conflict, or that name missing objects.
    fn conflicts(&self, known: Known<'_>) -> Vec<Conflict>;
}

/// Most security groups of a port.
const MAX_GROUPS: usize = 16;

/// The objects that settings can name; `None`: not known here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// The budgets.
    pub budgets: Option<&'a [String]>,
    /// The security groups.
    pub security_groups: Option<&'a [String]>,
    /// The ports that can be mirrors.
    pub mirrors: Option<&'a [String]>,
}

/// A conflict if `name` is not known.
fn unknown(
    key: &'static str,
    what: &str,
    name: Option<&String>,
    known: Option<&[String]>,
) -> Option<Conflict> {
    let (name, known) = (name?, known?);
    if known.contains(name) {
        return None;
    }
    let known = match known {
        [] => "there are none".to_owned(),
        known => format!("known here: {}", known.join(", ")),
    };
    Some(Conflict { key, because: "", problem: format!("{name:?} is not {what}; {known}") })
}

impl Settings for RateLimits {
    const NOUN: &'static str = "budget";
    const EXAMPLE: &'static str = "tx-rate=100Mbit or tx-rate=none";

    fn drop_bursts(&mut self) {
        RateLimits::drop_bursts(self);
    }

    fn conflicts(&self, _: Known<'_>) -> Vec<Conflict> {
        RateLimits::conflicts(self)
    }
}

impl Settings for DiskSettings {
    const NOUN: &'static str = "disk";
    const EXAMPLE: &'static str = "iops=20k or iops=none";

    fn drop_bursts(&mut self) {
        self.limits.drop_bursts();
    }

    fn conflicts(&self, _: Known<'_>) -> Vec<Conflict> {
        self.limits.conflicts()
    }
}

impl Settings for PortSettings {
    const NOUN: &'static str = "port";
    const EXAMPLE: &'static str = "tx-rate=100Mbit or tx-rate=none";

    fn drop_bursts(&mut self) {
        self.limits.drop_bursts();
    }

    fn conflicts(&self, known: Known<'_>) -> Vec<Conflict> {
        let mut conflicts = self.limits.conflicts();
        conflicts.extend(unknown("budget", "a budget", self.budget.as_ref(), known.budgets));
        for group in &self.security_groups {
            let (what, known) = ("a security group", known.security_groups);
            conflicts.extend(unknown("security-groups", what, Some(group), known));
        }
        let kinds = Kind::choice(Kind::ALL.into_iter().filter(|kind| kind.can_mirror()));
        let mirror = format!("another port of kind {kinds}");
        conflicts.extend(unknown("mirror", &mirror, self.mirror.as_ref(), known.mirrors));
        if self.security_groups.len() > MAX_GROUPS {
            let problem = format!("the list is too long; give at most {MAX_GROUPS} groups");
            conflicts.push(Conflict { key: "security-groups", because: "", problem });
        }
        if self.addresses.len() > MAX_PREFIXES {
            let problem = format!("the list is too long; give at most {MAX_PREFIXES} entries");
            conflicts.push(Conflict { key: "addresses", because: "", problem });
        }
        conflicts
    }
}

/// Moves the given values from `table` into the settings, and adds conflicts to the problems.
pub(super) fn apply<T: KeyTable, S: Settings>(
    keys: &[Key<T, S>],
    (table, path): (&mut T, &str),
    settings: &mut S,
    known: Known<'_>,
    problems: &mut Problems<'_>,
) {
    let given = table.given();
    keys.iter().for_each(|key| (key.take)(table, settings));
    for Conflict { key, because, problem } in settings.conflicts(known) {
        let span = given.iter().find(|(name, _)| *name == key).map(|(_, span)| span.clone());
        if !problems.concern(path, because) {
            problems.add(path, key, &span.unwrap_or_default(), problem);
        }
    }
}

/// Takes the keys that are null out of `object`. They count as not given, and the others stay.
pub(super) fn take_cleared<T, S>(
    keys: &[Key<T, S>],
    object: &mut Map<String, Json>,
) -> Vec<fn(&mut S)> {
    let cleared = keys.iter().filter(|key| {
        let is_null = object.get(key.name).is_some_and(Json::is_null);
        is_null && object.remove(key.name).is_some()
    });
    cleared.map(|key| key.clear).collect()
}
