//! Changes of ports, budgets and disks in service: as words of a command, and as requests on the
//! control socket.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use super::disk::DiskKind;
use super::disk_settings::DiskSettings;
use super::error::{ConfigError, ConfigErrors};
use super::key_table::KeyTable;
use super::port_reader::misplaced;
use super::port_settings::PortSettings;
use super::rates::RateLimits;
use super::setting_keys::{
    Key, Known, Settings, apply, budget_keys, disk_keys, port_keys, take_cleared,
};
use super::source::Source;
use super::value::{Table, TableName};
use crate::kind::Kind;

/// The word that removes a limit.
const NONE: &str = "none";

/// Reads the words of `ringmain port set`, as in `tx-rate=100Mbit budget=none`. Returns the object
/// of a `port.set` request.
///
/// # Errors
/// All problems of the words.
pub fn port_changes(words: &[String]) -> Result<Map<String, Json>, ConfigErrors> {
    read_words(&port_keys(), words)
}

/// Reads the words of `ringmain budget set`. Returns the object of a `budget.set` request.
///
/// # Errors
/// All problems of the words.
pub fn budget_changes(words: &[String]) -> Result<Map<String, Json>, ConfigErrors> {
    read_words(&budget_keys(), words)
}

/// Reads the words of `ringmain disk set`. Returns the object of a `disk.set` request.
///
/// # Errors
/// All problems of the words.
pub fn disk_changes(words: &[String]) -> Result<Map<String, Json>, ConfigErrors> {
    read_words(&disk_keys(), words)
}

impl PortSettings {
    /// These settings with the changes of a `port.set` request.
    ///
    /// The request has the keys and values of a `[[port]]` table, in snake case; null removes a
    /// setting. `kind` is the port's kind, and `known` has the names of existing objects.
    ///
    /// # Errors
    /// All problems of the request. Nothing may be changed then.
    pub fn changed(
        &self,
        kind: Kind,
        object: &Map<String, Json>,
        known: Known<'_>,
    ) -> Result<PortSettings, ConfigErrors> {
        refuse_misplaced(&port_keys(), object, |key| misplaced(key, kind))?;
        changed(&port_keys(), self, object, known)
    }
}

impl RateLimits {
    /// These limits with the changes of a `budget.set` request.
    ///
    /// # Errors
    /// All problems of the request. Nothing may be changed then.
    pub fn changed(&self, object: &Map<String, Json>) -> Result<RateLimits, ConfigErrors> {
        changed(&budget_keys(), self, object, Known::default())
    }
}

impl DiskSettings {
    /// These settings, of a disk of this kind, with the changes of a `disk.set` request.
    ///
    /// # Errors
    /// All problems of the request. Nothing may be changed then.
    pub fn changed(
        &self,
        kind: DiskKind,
        object: &Map<String, Json>,
    ) -> Result<DiskSettings, ConfigErrors> {
        refuse_misplaced(&disk_keys(), object, |key| kind.misplaced(key).map(str::to_owned))?;
        changed(&disk_keys(), self, object, Known::default())
    }
}

/// Refuses the keys in `object` that the kind of the port or disk does not have.
fn refuse_misplaced<T, S>(
    keys: &[Key<T, S>],
    object: &Map<String, Json>,
    misplaced: impl Fn(&str) -> Option<String>,
) -> Result<(), ConfigErrors> {
    let keys = keys.iter().map(|key| (key.name, key.name.replace('-', "_")));
    let given = keys.filter(|(_, place)| object.contains_key(place));
    let problem = |(key, place)| Some(ConfigError { problem: misplaced(key)?, place });
    let misplaced: Vec<ConfigError> = given.filter_map(problem).collect();
    if misplaced.is_empty() { Ok(()) } else { Err(ConfigErrors(misplaced)) }
}

fn changed<T, S: Settings>(
    keys: &[Key<T, S>],
    current: &S,
    object: &Map<String, Json>,
    known: Known<'_>,
) -> Result<S, ConfigErrors>
where
    T: DeserializeOwned + Default + TableName + KeyTable,
{
    let entries = object.iter().map(|(key, value)| (key.replace('_', "-"), value.clone()));
    let mut object: Map<String, Json> = entries.collect();
    let (mut settings, fixed) = (current.clone(), take_fixed(keys, &mut object));
    take_cleared(keys, &mut object).into_iter().for_each(|clear| clear(&mut settings));
    settings.drop_bursts();
    let source = Source::request(&object);
    let (Table(mut table), mut problems) = source.read::<Table<T>>();
    for key in fixed {
        problems.add("", &key, &(0..0), fixed_problem(S::NOUN));
    }
    apply(keys, (&mut table, ""), &mut settings, known, &mut problems);
    problems.finish(Some(settings))
}

/// The error for a key that cannot be changed.
fn fixed_problem(noun: &str) -> String {
    format!("this cannot change in service; remove the {noun}, and add it anew")
}

/// Takes known keys that cannot change out of the object.
fn take_fixed<T: KeyTable, S>(keys: &[Key<T, S>], object: &mut Map<String, Json>) -> Vec<String> {
    let can_change = |name: &str| keys.iter().any(|key| key.name == name);
    let fixed = T::KEYS.iter().filter(|key| !can_change(key));
    fixed.filter(|key| object.remove(**key).is_some()).map(|key| (*key).to_owned()).collect()
}

/// Reads words of the form `KEY=VALUE`, and checks the values.
fn read_words<T, S>(keys: &[Key<T, S>], words: &[String]) -> Result<Map<String, Json>, ConfigErrors>
where
    S: Settings,
    T: DeserializeOwned + Default + TableName + KeyTable,
{
    let mut object = Map::new();
    for word in words {
        let wrong = |problem: &str| {
            let error = ConfigError { place: format!("{word:?}"), problem: problem.to_owned() };
            ConfigErrors(vec![error])
        };
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| wrong(&format!("give a key and a value, like {}", S::EXAMPLE)))?;
        let value = match value {
            NONE => Json::Null,
            list if matches!(key, "addresses" | "security-groups") => list.split(',').collect(),
            text => text.into(),
        };
        if object.insert(key.replace('_', "-"), value).is_some() {
            return Err(wrong("the key is given twice"));
        }
    }
    let mut given = object.clone();
    let (fixed, _) = (take_fixed(keys, &mut given), take_cleared(keys, &mut given));
    // A null must not hide an unknown key.
    given.values_mut().filter(|value| value.is_null()).for_each(|value| *value = NONE.into());
    let source = Source::words(&given);
    let (_, mut problems) = source.read::<Table<T>>();
    for key in fixed {
        problems.add("", &key, &(0..0), fixed_problem(S::NOUN));
    }
    let snake = object.into_iter().map(|(key, value)| (key.replace('-', "_"), value));
    problems.finish(Some(snake.collect()))
}
