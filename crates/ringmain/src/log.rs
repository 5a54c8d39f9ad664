//! The daemon's log: one line an event, to standard error.

use std::fmt;
use std::io::{self, IsTerminal};

use rustix::fs::fstat;
use tracing::field::Field;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::cli::LogFormat;
use crate::failure::Failure;

/// Starts logging what passes the filter.
pub fn start(filter: &str, chosen: Option<LogFormat>) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter).map_err(|error| Failure::System {
        what: "understand --log",
        error: io::Error::other(error.to_string()),
    })?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(has_colours())
        .with_target(false);
    let usual = if is_journal() { LogFormat::Journal } else { LogFormat::Text };
    match chosen.unwrap_or(usual) {
        LogFormat::Text => {
            subscriber.fmt_fields(format::debug_fn(write_field).delimited(" ")).init();
        }
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
        LogFormat::Journal => subscriber
            .with_ansi(false)
            .fmt_fields(format::debug_fn(write_field).delimited(" "))
            .event_format(JournalLine)
            .init(),
    }
    Ok(())
}

/// Colours are for terminals, unless the user does without them (<https://no-color.org>).
fn has_colours() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
}

/// Whether standard error is the journal. The variable alone is not enough: children of a service
/// inherit it, and may write elsewhere.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(own) = fstat(io::stderr()) else { return false };
    stream == format!("{}:{}", own.st_dev, own.st_ino)
}

/// Writes a field as `key=value`; the message has no key.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(writer, "{value:?}"),
        name => write!(writer, "{name}={}", quoted(format!("{value:?}"))),
    }
}

/// A value in quotes if it holds spaces or is empty, and else without.
fn quoted(value: String) -> String {
    let inner = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let special = |text: &str| text.is_empty() || text.contains([' ', '\t', '\n', '"', '\\', '=']);
    match inner {
        Some(inner) if special(inner) => value,
        Some(inner) => inner.to_owned(),
        None if special(&value) => format!("{value:?}"),
        None => value,
    }
}

/// A line that begins with the priority of its event, as sd-daemon(3) describes. The journal has
/// its own clock.
struct JournalLine;

impl<S, N> FormatEvent<S, N> for JournalLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// The priority of a level, as syslog(3) counts.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_spaces_are_quoted() {
        let cases = [
            ("vm-a", "vm-a"),
            ("\"vm-a\"", "vm-a"),
            ("two words", "\"two words\""),
            ("\"two words\"", "\"two words\""),
            ("", "\"\""),
            ("a=b", "\"a=b\""),
            ("17", "17"),
        ];
        for (value, want) in cases {
            assert_eq!(quoted(value.to_owned()), want);
        }
    }
}
