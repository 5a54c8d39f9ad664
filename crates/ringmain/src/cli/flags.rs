//! Flags that stand for the keys of a table of the configuration. Values are checked by the code
//! that reads the configuration file.

use serde_json::{Map, Value};

/// The flags that were given, by key.
pub(super) fn given<const N: usize>(flags: [(&str, Option<Value>); N]) -> Map<String, Value> {
    flags.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// A number, or the text if it is none: then the reader says so.
pub(super) fn number(text: String) -> Value {
    text.trim().parse::<i64>().map_or_else(|_| Value::from(text), Value::from)
}

/// A boolean, or the text if it is none.
pub(super) fn boolean(text: String) -> Value {
    text.parse::<bool>().map_or_else(|_| Value::from(text), Value::from)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Checks that `add`, which parses flags, has one for each key of a table. `unknown` is the
    /// error about an unknown key, which lists the keys.
    pub fn assert_a_flag_for_every_key(unknown: &str, add: impl Fn(&[&str]) -> Map<String, Value>) {
        let (_, keys) = unknown.lines().next().unwrap().split_once("known here: ").unwrap();
        let mut keys: Vec<&str> = keys.split(", ").collect();
        let flags: Vec<String> =
            keys.iter().filter(|key| **key != "name").map(|key| format!("--{key}=1")).collect();
        let given = add(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        keys.sort_unstable();
        assert_eq!(given.keys().map(String::as_str).collect::<Vec<_>>(), keys);
    }
}
