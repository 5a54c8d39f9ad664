//! The daemon's log: one line for each event, on standard error.
//!
//! Only the log's own thread waits for standard error ([`line_queue`]). A rate limit keeps peers
//! from filling the log ([`port_limit`]).

mod line_queue;
mod port_limit;
mod recent;

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::thread::{self, Builder};

use control::events::RecentEvents;
use rustix::fs::fstat;
use tracing::field::Field;
use tracing::{Event, Level, Metadata, Subscriber, error, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::LogFormat;
use crate::failure::Failure;
use line_queue::{LineQueue, Next};
use port_limit::PortLimit;
use recent::RecentLines;

/// The lines of the process.
static LINES: LineQueue = LineQueue::new();

/// Starts logging the events that pass the filter.
///
/// Lines are written at once until there is a [`LogWriter`]. The last lines are also kept in
/// `recent`.
pub fn start(
    filter: &str,
    chosen: Option<LogFormat>,
    recent: Option<Arc<RecentEvents>>,
) -> Result<(), Failure> {
    let recent = recent.map(RecentLines);
    let filter = EnvFilter::try_new(filter).map_err(|error| Failure::System {
        what: "understand --log",
        error: io::Error::other(error.to_string()),
    })?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(QueuedLines)
        .with_ansi(has_colours())
        .with_target(false);
    let usual = if is_journal() { LogFormat::Journal } else { LogFormat::Text };
    match chosen.unwrap_or(usual) {
        LogFormat::Text => {
            let fields = format::debug_fn(write_field).delimited(" ");
            subscriber.fmt_fields(fields).finish().with(recent).with(PortLimit).init();
        }
        LogFormat::Json => {
            subscriber.json().flatten_event(true).finish().with(recent).with(PortLimit).init();
        }
        LogFormat::Journal => subscriber
            .with_ansi(false)
            .fmt_fields(format::debug_fn(write_field).delimited(" "))
            .event_format(JournalLine)
            .finish()
            .with(recent)
            .with(PortLimit)
            .init(),
    }
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Logs a panic. The standard library's report would wait for standard error.
fn log_panic(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let reason = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let current = thread::current();
    error!(
        thread = current.name().unwrap_or("unnamed"),
        place = info.location().map(ToString::to_string).unwrap_or_default(),
        reason = reason.unwrap_or("unknown"),
        "a thread panicked"
    );
}

/// The thread that writes lines.
///
/// Dropping this value waits until the lines so far are written, but at most a second.
pub struct LogWriter(());

impl LogWriter {
    /// Starts the thread. Must be called once.
    pub fn start() -> io::Result<LogWriter> {
        Builder::new().name("rm-log".into()).spawn(write_lines)?;
        LINES.begin();
        Ok(LogWriter(()))
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        port_limit::report();
        LINES.drain();
    }
}

fn write_lines() {
    sandbox::enter_thread(sandbox::Role::Helper);
    loop {
        match LINES.next() {
            Next::Line(line) => {
                // An error of standard error cannot be reported anywhere.
                let _ = io::stderr().write_all(&line);
                LINES.written();
            }
            Next::Lost(lines) => warn!(lines, "log lines lost: standard error was full"),
            Next::Alarm => port_limit::report(),
        }
    }
}

/// The destination of lines.
struct QueuedLines;

/// The destination of one line. The daemon may end after an error, so a thread that logs an error
/// waits for the line to be written, but at most a second.
struct QueuedLine {
    is_error: bool,
}

impl<'a> MakeWriter<'a> for QueuedLines {
    type Writer = QueuedLine;

    fn make_writer(&'a self) -> QueuedLine {
        QueuedLine { is_error: false }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> QueuedLine {
        QueuedLine { is_error: *metadata.level() == Level::ERROR }
    }
}

impl Write for QueuedLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LINES.push(line)?;
        if self.is_error {
            LINES.drain();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether lines are coloured: on terminals, unless the user disables colours
/// (<https://no-color.org>).
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

/// The value, in quotes if it holds spaces or is empty.
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
