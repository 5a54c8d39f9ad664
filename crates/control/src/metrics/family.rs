//! Families of metrics: a name, its meaning, and the value in a report.

/// How a value develops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// The value only grows, and restarts at zero with the daemon.
    Counter,
    /// The value goes up and down.
    Gauge,
    /// The value counts durations by their length.
    Histogram,
}

impl Type {
    /// The word of the text format.
    pub fn word(self) -> &'static str {
        match self {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        }
    }
}

/// A family whose value is read out of a `T`.
pub struct Family<T: 'static> {
    /// The name, with the unit; counters end in `_total`.
    pub name: &'static str,
    /// How values develop.
    pub kind: Type,
    /// What is counted.
    pub help: &'static str,
    /// The value; `None`: there is none now.
    pub value: fn(&T) -> Option<f64>,
}

/// A family that counts.
pub const fn counter<T>(
    name: &'static str,
    help: &'static str,
    value: fn(&T) -> Option<f64>,
) -> Family<T> {
    Family { name, kind: Type::Counter, help, value }
}

/// A family that goes up and down.
pub const fn gauge<T>(
    name: &'static str,
    help: &'static str,
    value: fn(&T) -> Option<f64>,
) -> Family<T> {
    Family { name, kind: Type::Gauge, help, value }
}

/// A number. Beyond 2^53, the text format has no exact numbers either.
pub fn number(value: u64) -> Option<f64> {
    Some(value as f64)
}

/// Nanoseconds as seconds.
pub fn nanoseconds(value: u64) -> Option<f64> {
    Some(value as f64 / 1e9)
}

/// Microseconds as seconds.
pub fn microseconds(value: u64) -> Option<f64> {
    Some(value as f64 / 1e6)
}
