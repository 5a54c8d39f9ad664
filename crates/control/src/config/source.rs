//! Reads tables into types, and finds the place of each mistake in the text.
//!
//! The description of a port can come from three places: the configuration file, the flags of
//! `ringmain port add`, and a request on the control socket. All three become TOML text and are
//! read into the same types; only the place that an error names differs.
//!
//! Serde ends at the first mistake. To find all of them, the entry with the mistake is taken out of
//! the document, and the rest is read again.

use std::ops::Range;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};
use toml::de::{DeTable, DeValue, Deserializer};

use super::error::{ConfigError, ConfigErrors};

/// A placeholder in messages for the value as written, which only the source knows.
pub(super) const VALUE: &str = "\0";

/// Longest piece of input that an error repeats, in characters.
const LONGEST_QUOTE: usize = 60;
/// Most mistakes that are reported at once.
const MAX_ERRORS: usize = 20;

/// Keys that the configuration no longer has: inner designs of the embedded hypervisor.
const DESIGNS: [&str; 4] = ["locking", "maptrack", "flush", "copying"];

/// The place of a table.
pub(super) struct Place<'a> {
    /// The path, as in `port[1]`.
    pub path: &'a str,
    /// Byte offset.
    pub at: usize,
}

/// The origin of a text.
enum Origin {
    /// A file of this name.
    File(String),
    /// The flags of a command.
    Flags,
    /// A request on the control socket.
    Request,
    /// Words of a command, of the form KEY=VALUE.
    Words,
}

/// A text with a configuration, or a part of one.
pub(super) struct Source {
    origin: Origin,
    text: String,
}

impl Source {
    /// A TOML file.
    pub fn file(name: &str, text: &str) -> Source {
        Source { origin: Origin::File(name.to_owned()), text: text.to_owned() }
    }

    /// The flags of a command, by their long names without dashes.
    pub fn flags(flags: &Map<String, Json>) -> Source {
        Source { origin: Origin::Flags, text: toml_text(flags) }
    }

    /// The words of a command, by their keys.
    pub fn words(words: &Map<String, Json>) -> Source {
        Source { origin: Origin::Words, text: toml_text(words) }
    }

    /// An object of a request. Its keys are written in snake case there.
    pub fn request(object: &Map<String, Json>) -> Source {
        let entries = object.iter().map(|(key, value)| (key.replace('_', "-"), value.clone()));
        Source { origin: Origin::Request, text: toml_text(&entries.collect()) }
    }

    /// Reads the text. A value that cannot be read keeps its default, and is one of the problems.
    pub fn read<T: DeserializeOwned + Default>(&self) -> (T, Problems<'_>) {
        let mut problems = Problems { source: self, found: Vec::new() };
        let (mut document, errors) = DeTable::parse_recoverable(&self.text);
        if !errors.is_empty() {
            errors.iter().for_each(|error| problems.add_syntax(error));
            return (T::default(), problems);
        }
        while problems.found.len() < MAX_ERRORS {
            match T::deserialize(Deserializer::from(document.clone())) {
                Ok(value) => return (value, problems),
                Err(error) => {
                    let span = error.span().unwrap_or_default();
                    let Some(entry) = take_out(document.get_mut(), &span, "") else {
                        problems.add("", "", &span, error.message());
                        break;
                    };
                    let problem = problem(error.message(), &entry);
                    problems.add(&entry.path, &entry.key, &entry.span, problem);
                }
            }
        }
        (T::default(), problems)
    }

    fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }

    /// A piece of the text as it was written.
    pub fn written(&self, span: &Range<usize>) -> String {
        shortened(self.text.get(span.clone()).unwrap_or("this"))
    }

    /// The name of a key in errors.
    fn place(&self, path: &str, key: &str, at: usize) -> String {
        match &self.origin {
            Origin::File(file) if key.is_empty() => format!("{file}:{}", self.line(at)),
            Origin::File(file) => format!("{file}:{}: {}", self.line(at), joined(path, key)),
            // The name is given without a flag.
            Origin::Flags if key == "name" => "NAME".to_owned(),
            Origin::Flags => format!("--{key}"),
            Origin::Request => key.replace('-', "_"),
            Origin::Words => key.to_owned(),
        }
    }
}

/// The mistakes in a source.
pub(super) struct Problems<'a> {
    source: &'a Source,
    found: Vec<Found>,
}

/// One mistake.
struct Found {
    /// The path and key with the mistake.
    about: String,
    /// Byte offset in the text.
    at: usize,
    error: ConfigError,
}

impl Problems<'_> {
    /// Adds a mistake in the value at `span`. [`VALUE`] stands for that value in the text.
    pub fn add(&mut self, path: &str, key: &str, span: &Range<usize>, problem: impl ToString) {
        let problem = problem.to_string().replace(VALUE, &self.source.written(span));
        self.push(path, key, span.start, problem);
    }

    /// Adds that a key is missing from the table at `at`, unless its value is a known mistake.
    pub fn add_missing(&mut self, path: &str, key: &str, at: usize, right: &str) {
        if !self.concern(path, key) {
            self.push(path, key, at, format!("missing; give {right}"));
        }
    }

    /// Whether one of the mistakes is about this key.
    pub fn concern(&self, path: &str, key: &str) -> bool {
        let about = joined(path, key);
        self.found.iter().any(|found| found.about == about)
    }

    /// Adds to the message about a key.
    pub fn append(&mut self, path: &str, key: &str, more: &str) {
        let about = joined(path, key);
        self.found
            .iter_mut()
            .filter(|found| found.about == about)
            .for_each(|found| found.error.problem.push_str(more));
    }

    fn add_syntax(&mut self, error: &toml::de::Error) {
        let at = error.span().map_or(0, |span| span.start);
        let line = self.source.line(at);
        // One mistake can also make the rest of its line look wrong.
        if self.found.len() < MAX_ERRORS
            && self.found.iter().all(|found| self.source.line(found.at) != line)
        {
            self.push("", "", at, error.message().trim().replace('\n', ", "));
        }
    }

    fn push(&mut self, path: &str, key: &str, at: usize, problem: String) {
        let place = self.source.place(path, &shortened(key), at);
        let error = ConfigError { place, problem };
        self.found.push(Found { about: joined(path, key), at, error });
    }

    /// Ends with the value, or with all mistakes in the order of the text.
    pub fn finish<T>(mut self, value: Option<T>) -> Result<T, ConfigErrors> {
        self.found.sort_by_key(|found| found.at);
        match value {
            Some(value) if self.found.is_empty() => Ok(value),
            _ => Err(ConfigErrors(self.found.into_iter().map(|found| found.error).collect())),
        }
    }
}

/// An entry of a table that cannot be read.
struct Entry {
    /// The table's path.
    path: String,
    key: String,
    /// The piece of text that the mistake is about.
    span: Range<usize>,
}

/// Takes the entry out of a document whose key or value contains the text at `span`.
fn take_out(table: &mut DeTable<'_>, span: &Range<usize>, path: &str) -> Option<Entry> {
    for (key, value) in table.iter_mut() {
        let path = joined(path, key.get_ref());
        let found = match value.get_mut() {
            DeValue::Table(table) => take_out(table, span, &path),
            DeValue::Array(items) => items.iter_mut().enumerate().find_map(|(index, item)| {
                let DeValue::Table(table) = item.get_mut() else { return None };
                take_out(table, span, &format!("{path}[{index}]"))
            }),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    let is_meant = |key: &Range<usize>, value: &Range<usize>| {
        key == span || (value.start <= span.start && span.end <= value.end)
    };
    let key = table.iter().find(|(key, value)| is_meant(&key.span(), &value.span()))?.0.clone();
    table.remove(&key);
    Some(Entry { path: path.to_owned(), key: key.get_ref().to_string(), span: span.clone() })
}

fn joined(path: &str, key: &str) -> String {
    let dot = if path.is_empty() || key.is_empty() { "" } else { "." };
    format!("{path}{dot}{key}")
}

/// The problem, from serde's message.
fn problem(message: &str, entry: &Entry) -> String {
    if message.starts_with("unknown field ") {
        // The unknown key comes first, and the expected ones follow.
        let known: Vec<&str> = message.split('`').skip(3).step_by(2).collect();
        return unknown(&entry.key, &known);
    }
    match message.rsplit_once(", expected ") {
        Some((unexpected, "a boolean")) if unexpected.starts_with("invalid type: ") => {
            format!("{VALUE} is not a boolean; give true or false")
        }
        Some((unexpected, expected)) if unexpected.starts_with("invalid type: ") => {
            format!("{VALUE} is not {expected}")
        }
        _ => message.to_owned(),
    }
}

fn unknown(key: &str, known: &[&str]) -> String {
    if DESIGNS.contains(&key) {
        let only = "only the laboratory has older designs (ringmain-lab serve --help)";
        return format!("{only}; leave it out");
    }
    match known.iter().map(|known| (distance(key, known), *known)).min() {
        Some((far, known)) if far <= 1 + known.len() / 4 => {
            format!("unknown key; did you mean {known:?}?")
        }
        _ => format!("unknown key; known here: {}", known.join(", ")),
    }
}

/// One line of at most [`LONGEST_QUOTE`] characters, without control characters.
fn shortened(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(LONGEST_QUOTE).map(clean).collect();
    if text.chars().count() > LONGEST_QUOTE {
        short.push_str("...");
    }
    short
}

/// Levenshtein distance: how many characters must change to make one word the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(LONGEST_QUOTE).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(LONGEST_QUOTE).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// The TOML text of an object. A null counts as a missing key.
fn toml_text(object: &Map<String, Json>) -> String {
    let entries = object.iter().filter(|(_, json)| !json.is_null());
    let table: toml::Table = entries.map(|(key, json)| (key.clone(), toml_value(json))).collect();
    // Every such value can be written.
    toml::to_string(&table).unwrap_or_default()
}

fn toml_value(json: &Json) -> toml::Value {
    match json {
        Json::Null => toml::Value::String("null".to_owned()),
        Json::Bool(on) => toml::Value::Boolean(*on),
        // No configurable number comes near the end of the range.
        Json::Number(number) if number.is_u64() => {
            toml::Value::Integer(number.as_i64().unwrap_or(i64::MAX))
        }
        Json::Number(number) => match number.as_i64() {
            Some(number) => toml::Value::Integer(number),
            None => toml::Value::Float(number.as_f64().unwrap_or_default()),
        },
        Json::String(text) => toml::Value::String(text.clone()),
        Json::Array(items) => toml::Value::Array(items.iter().map(toml_value).collect()),
        Json::Object(object) => toml::Value::Table(
            object.iter().map(|(key, json)| (key.clone(), toml_value(json))).collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, want) in [
            ("", "abc", 3),
            ("queues", "queues", 0),
            ("queus", "queues", 1),
            ("sockte", "socket", 2),
            ("x", "mac", 3),
        ] {
            assert_eq!(distance(a, b), want, "{a} {b}");
        }
    }

    #[test]
    fn input_is_repeated_in_one_short_line() {
        let long = shortened(&"x\ny".repeat(100));
        assert!(long.len() < 70 && !long.contains('\n'), "{long}");
    }
}
