//! The differences of two descriptions.

use serde_json::{Map, Value as Json};

/// The keys whose values differ, or that only one object has.
pub(super) fn changed_keys(one: &Map<String, Json>, other: &Map<String, Json>) -> Vec<String> {
    let mut keys: Vec<&String> = one.keys().chain(other.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().filter(|key| one.get(*key) != other.get(*key)).cloned().collect()
}
