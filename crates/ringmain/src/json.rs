//! Output for programs: one JSON object, with the version of the interface.

use std::io;

use control::api::VERSION;
use serde::Serialize;
use serde_json::{Value, json};

use crate::failure::Failure;

/// An object over several lines.
pub fn pretty(value: &impl Serialize) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(&versioned(value)?).map_err(io::Error::from)?;
    text.push('\n');
    Ok(text)
}

/// An object in one line.
pub fn line(value: &impl Serialize) -> Result<String, Failure> {
    Ok(format!("{}\n", versioned(value)?))
}

/// A list under a name.
pub fn list(name: &str, items: &impl Serialize) -> Result<String, Failure> {
    pretty(&json!({ name: items }))
}

fn versioned(value: &impl Serialize) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(value).map_err(io::Error::from)?;
    if let Value::Object(object) = &mut value {
        object.insert("version".to_owned(), VERSION.into());
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_has_the_version() {
        let text = list("ports", &[1, 2]).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value, json!({ "version": VERSION, "ports": [1, 2] }));
        assert_eq!(line(&json!({ "a": null })).unwrap(), "{\"a\":null,\"version\":2}\n");
    }
}
