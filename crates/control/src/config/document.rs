//! Values as somebody wrote them, each with the place where it stands, so that whatever is wrong
//! with one can be said in one line.
//!
//! The same description of a port can come from three places: the configuration file, the flags of
//! `ringmain port add`, and a request on the control socket. All three become [`Fields`] and are
//! read by the same code; only the place in an error differs.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Longest piece of somebody's input that an error repeats, in characters.
const QUOTED: usize = 60;

/// What is wrong with a configuration: one line that says where, what, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct ConfigError {
    place: String,
    problem: String,
}

/// Where a table stands.
#[derive(Clone)]
enum Origin {
    /// A table of a file.
    File(Rc<File>),
    /// The flags of a command.
    Flags,
    /// A request on the control socket.
    Request,
}

struct File {
    name: String,
    text: String,
}

impl File {
    fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|b| *b == b'\n').count()
    }
}

/// One value.
#[derive(Clone)]
pub(super) struct Value {
    /// As it was written, shortened.
    written: String,
    /// Byte offset in the file.
    at: usize,
    is: Is,
}

#[derive(Clone)]
enum Is {
    Text(String),
    /// Saturated to 64 bits; nothing configurable comes near.
    Number(i64),
    Switch(bool),
    List(Vec<Value>),
    Table(BTreeMap<String, Value>),
    Other,
}

/// The numbers of a list, each with where it stands.
type Numbers = Vec<(u16, Value)>;

/// A table that is being read: keys are taken out one by one, and what is left is unknown.
pub(super) struct Fields {
    origin: Origin,
    path: String,
    at: usize,
    values: BTreeMap<String, Value>,
    known: Vec<&'static str>,
}

impl Fields {
    /// The top table of a TOML file.
    pub fn of_file(name: &str, text: &str) -> Result<Fields, ConfigError> {
        let file = Rc::new(File { name: name.to_owned(), text: text.to_owned() });
        let table = DeTable::parse(text).map_err(|error| {
            let line = file.line(error.span().map_or(0, |span| span.start));
            ConfigError {
                place: format!("{name}:{line}"),
                problem: error.message().trim().replace('\n', ", "),
            }
        })?;
        let values = of_toml(text, table.get_ref());
        Ok(Fields {
            origin: Origin::File(file),
            path: String::new(),
            at: 0,
            values,
            known: Vec::new(),
        })
    }

    /// Flags of a command, by their long names without dashes. Several values of one flag are a
    /// list.
    pub fn of_flags(flags: impl IntoIterator<Item = (&'static str, Vec<String>)>) -> Fields {
        let value =
            |text: String| Value { written: shortened(&quoted(&text)), at: 0, is: Is::Text(text) };
        let values = flags.into_iter().filter_map(|(flag, mut texts)| {
            let is_list = flag == "trunk";
            let one = if is_list {
                let written = shortened(&quoted(&texts.join(",")));
                Value { written, at: 0, is: Is::List(texts.into_iter().map(value).collect()) }
            } else {
                value(texts.pop()?)
            };
            Some((flag.to_owned(), one))
        });
        Fields {
            origin: Origin::Flags,
            path: String::new(),
            at: 0,
            values: values.collect(),
            known: Vec::new(),
        }
    }

    /// An object out of a request.
    pub fn of_request(object: &serde_json::Map<String, Json>) -> Fields {
        let values = object.iter().map(|(key, json)| (key.clone(), of_json(json))).collect();
        Fields { origin: Origin::Request, path: String::new(), at: 0, values, known: Vec::new() }
    }

    /// An error about one key of this table.
    pub fn wrong(&self, key: &str, at: &Value, problem: impl fmt::Display) -> ConfigError {
        self.error(key, at.at, problem)
    }

    /// An error about a key that is not there.
    pub fn missing(&self, key: &str, right: &str) -> ConfigError {
        self.error(key, self.at, format_args!("missing; give {right}"))
    }

    fn error(&self, key: &str, at: usize, problem: impl fmt::Display) -> ConfigError {
        let dot = if self.path.is_empty() { "" } else { "." };
        let path = &self.path;
        let place = match &self.origin {
            Origin::File(file) => format!("{}:{}: {path}{dot}{key}", file.name, file.line(at)),
            // The one that stands without a flag.
            Origin::Flags if key == "name" => "NAME".to_owned(),
            Origin::Flags => format!("--{key}"),
            Origin::Request => key.to_owned(),
        };
        ConfigError { place, problem: problem.to_string() }
    }

    /// Takes a key out, whatever its value is.
    pub fn take(&mut self, key: &'static str) -> Option<Value> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.values.remove(key)
    }

    /// Takes a string out. `right` says what would be right.
    pub fn text(
        &mut self,
        key: &'static str,
        right: &str,
    ) -> Result<Option<(String, Value)>, ConfigError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match &value.is {
            Is::Text(text) => Ok(Some((text.clone(), value))),
            _ => {
                Err(self.wrong(key, &value, format_args!("{value} is not a string; give {right}")))
            }
        }
    }

    /// Takes something out that is on or off.
    pub fn switch(&mut self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match &value.is {
            Is::Switch(on) => Ok(Some(*on)),
            Is::Text(text) if matches!(self.origin, Origin::Flags) && text == "true" => {
                Ok(Some(true))
            }
            Is::Text(text) if matches!(self.origin, Origin::Flags) && text == "false" => {
                Ok(Some(false))
            }
            _ => Err(self.wrong(
                key,
                &value,
                format_args!("{value} is neither true nor false; give one of them"),
            )),
        }
    }

    /// Takes a number within `range` out.
    pub fn number(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u16>,
    ) -> Result<Option<(u16, Value)>, ConfigError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let right = format!("{} to {}", range.start(), range.end());
        Ok(Some((self.as_number(key, &value, range, &right)?, value)))
    }

    /// Reads a value as a number within `range`.
    pub fn as_number(
        &self,
        key: &str,
        value: &Value,
        range: RangeInclusive<u16>,
        right: &str,
    ) -> Result<u16, ConfigError> {
        let number = match &value.is {
            Is::Number(number) => Some(*number),
            // A flag is always text.
            Is::Text(text) if matches!(self.origin, Origin::Flags) => text.trim().parse().ok(),
            _ => None,
        };
        let Some(number) = number else {
            return Err(self.wrong(
                key,
                value,
                format_args!("{value} is not a number; give {right}"),
            ));
        };
        match u16::try_from(number) {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => {
                Err(self.wrong(key, value, format_args!("{number} is out of range; give {right}")))
            }
        }
    }

    /// Takes a list of numbers within `range` out.
    pub fn numbers(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u16>,
        right: &str,
    ) -> Result<Option<(Numbers, Value)>, ConfigError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let Is::List(items) = &value.is else {
            return Err(self.wrong(
                key,
                &value,
                format_args!("{value} is not a list; give {right}"),
            ));
        };
        if items.is_empty() {
            return Err(self.wrong(key, &value, format_args!("the list is empty; give {right}")));
        }
        let numbers = items
            .iter()
            .map(|item| Ok((self.as_number(key, item, range.clone(), right)?, item.clone())));
        let numbers = numbers.collect::<Result<_, ConfigError>>()?;
        Ok(Some((numbers, value)))
    }

    /// Takes a table out; a missing one is empty.
    pub fn table(&mut self, key: &'static str) -> Result<Fields, ConfigError> {
        let Some(value) = self.take(key) else {
            return Ok(self.child(key.to_owned(), self.at, BTreeMap::new()));
        };
        match value.is {
            Is::Table(values) => Ok(self.child(key.to_owned(), value.at, values)),
            _ => {
                Err(self.wrong(key, &value, format_args!("{value} is not a table; write [{key}]")))
            }
        }
    }

    /// Takes a list of tables out; a missing one is empty.
    pub fn tables(&mut self, key: &'static str) -> Result<Vec<Fields>, ConfigError> {
        let Some(value) = self.take(key) else { return Ok(Vec::new()) };
        let wrong = |value: &Value| {
            self.wrong(key, value, format_args!("{value} is not a list of tables; write [[{key}]]"))
        };
        let Is::List(items) = &value.is else { return Err(wrong(&value)) };
        let tables = items.iter().enumerate().map(|(index, item)| match &item.is {
            Is::Table(values) => Ok(self.child(format!("{key}[{index}]"), item.at, values.clone())),
            _ => Err(wrong(item)),
        });
        tables.collect()
    }

    fn child(&self, path: String, at: usize, values: BTreeMap<String, Value>) -> Fields {
        Fields { origin: self.origin.clone(), path, at, values, known: Vec::new() }
    }

    /// Where the table stands among its like, as in `port[1]`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Refuses what was not taken.
    pub fn finish(&self) -> Result<(), ConfigError> {
        let Some((key, value)) = self.values.iter().min_by_key(|(_, value)| value.at) else {
            return Ok(());
        };
        let near = self.known.iter().map(|known| (distance(key, known), *known)).min();
        let problem = match near {
            Some((far, known)) if far <= 1 + known.len() / 4 => {
                format!("unknown key; did you mean {known:?}?")
            }
            _ => format!("unknown key; known here: {}", self.known.join(", ")),
        };
        Err(self.wrong(&shortened(key), value, problem))
    }
}

impl Value {
    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        if let Is::Text(text) = &self.is { Some(text) } else { None }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

fn of_toml(text: &str, table: &DeTable<'_>) -> BTreeMap<String, Value> {
    let value = |key: &Spanned<_>, value: &Spanned<DeValue<'_>>| {
        let mut value = of_toml_value(text, value);
        // A key stands where it is written, also if its value is a table that goes on elsewhere.
        if !matches!(value.is, Is::List(_)) {
            value.at = key.span().start;
        }
        value
    };
    table.iter().map(|(key, spanned)| (key.get_ref().to_string(), value(key, spanned))).collect()
}

fn of_toml_value(text: &str, value: &Spanned<DeValue<'_>>) -> Value {
    let Range { start, end } = value.span();
    let is = match value.get_ref() {
        DeValue::String(text) => Is::Text(text.to_string()),
        DeValue::Integer(number) => Is::Number(saturated(number.as_str(), number.radix())),
        DeValue::Boolean(on) => Is::Switch(*on),
        DeValue::Array(items) => {
            Is::List(items.iter().map(|item| of_toml_value(text, item)).collect())
        }
        DeValue::Table(table) => Is::Table(of_toml(text, table)),
        _ => Is::Other,
    };
    let written = match &is {
        Is::Text(text) => quoted(text),
        _ => text.get(start..end).unwrap_or("this").to_owned(),
    };
    Value { written: shortened(&written), at: start, is }
}

fn saturated(digits: &str, radix: u32) -> i64 {
    let limit = if digits.starts_with('-') { i64::MIN } else { i64::MAX };
    i64::from_str_radix(digits, radix).unwrap_or(limit)
}

fn of_json(json: &Json) -> Value {
    let is = match json {
        Json::String(text) => Is::Text(text.clone()),
        Json::Number(number) => number.as_i64().map_or(Is::Other, Is::Number),
        Json::Bool(on) => Is::Switch(*on),
        Json::Array(items) => Is::List(items.iter().map(of_json).collect()),
        _ => Is::Other,
    };
    Value { written: shortened(&json.to_string()), at: 0, is }
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// One line of at most [`QUOTED`] characters, without control characters.
fn shortened(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(QUOTED).map(clean).collect();
    if text.chars().count() > QUOTED {
        short.push_str("...");
    }
    short
}

/// Levenshtein distance: how many characters must change to make one word the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(QUOTED).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(QUOTED).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
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
