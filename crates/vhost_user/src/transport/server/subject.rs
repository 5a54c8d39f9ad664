//! The subject of a server, as the log names it.

use tracing::field::{DisplayValue, display};

/// The name of the port or disk that a server serves, in the log as `port=NAME` or `disk=NAME`.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A port.
    Port(String),
    /// A disk.
    Disk(String),
}

impl Subject {
    /// The name.
    pub(super) fn name(&self) -> &str {
        match self {
            Subject::Port(name) | Subject::Disk(name) => name,
        }
    }

    /// The value of the field `port`, if it has one.
    pub(super) fn port(&self) -> Option<DisplayValue<&str>> {
        match self {
            Subject::Port(name) => Some(display(name)),
            Subject::Disk(_) => None,
        }
    }

    /// The value of the field `disk`, if it has one.
    pub(super) fn disk(&self) -> Option<DisplayValue<&str>> {
        match self {
            Subject::Port(_) => None,
            Subject::Disk(name) => Some(display(name)),
        }
    }
}

/// Logs a line about a [`Subject`], as the macros of `tracing` do.
macro_rules! log {
    ($level:ident, $subject:expr, $($line:tt)+) => {
        tracing::$level!(port = $subject.port(), disk = $subject.disk(), $($line)+)
    };
}

pub(super) use log;
