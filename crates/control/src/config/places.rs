//! The places, in a configuration file, of the keys of tables that occur once.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

/// The lines of keys such as `workers.count`.
pub struct Places {
    file: String,
    lines: BTreeMap<String, usize>,
}

impl Places {
    /// Finds the keys in a text that is a configuration. `file` is its name in messages.
    pub fn read(file: &str, text: &str) -> Places {
        let line = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        let (document, _) = DeTable::parse_recoverable(text);
        let mut lines = BTreeMap::new();
        for (table, value) in document.get_ref().iter() {
            match value.get_ref() {
                DeValue::Table(keys) => lines.extend(keys.iter().map(|(key, _)| {
                    let name = format!("{}.{}", table.get_ref(), key.get_ref());
                    (name, line(key.span().start))
                })),
                DeValue::Array(disks) if table.get_ref() == "disk" => {
                    lines.extend(disks.iter().filter_map(|disk| {
                        let name = disk.get_ref().get("name")?.get_ref().as_str()?;
                        Some((Places::disk(name), line(disk.span().start)))
                    }));
                }
                _ => {}
            }
        }
        Places { file: file.to_owned(), lines }
    }

    /// The name of a `[[disk]]` in messages, instead of a key.
    pub fn disk(name: &str) -> String {
        format!("disk {name:?}")
    }

    /// The name of a key in messages: file, line and key, or only file and key where it is not
    /// given.
    pub fn of(&self, key: &str) -> String {
        match self.lines.get(key) {
            Some(line) => format!("{}:{line}: {key}", self.file),
            None => format!("{}: {key}", self.file),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_lines_however_they_are_written() {
        let text = "[workers]\n# two\ncount = 2\n\n[control]\nsocket = \"/x\"\n";
        let places = Places::read("f", text);
        assert_eq!(places.of("workers.count"), "f:3: workers.count");
        assert_eq!(places.of("control.socket"), "f:6: control.socket");
        assert_eq!(places.of("workers.cpus"), "f: workers.cpus");
        let disks = "[[disk]]\nname = \"a\"\n[[disk]]\nname = \"b\"\n";
        assert_eq!(Places::read("f", disks).of(&Places::disk("b")), "f:3: disk \"b\"");
        let dotted = Places::read("f", "workers.count = 2\ncontrol = { mode = \"600\" }\n");
        assert_eq!(dotted.of("workers.count"), "f:1: workers.count");
        assert_eq!(dotted.of("control.mode"), "f:2: control.mode");
    }
}
