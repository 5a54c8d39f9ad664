//! The last lines of the log, kept for the dashboard.

use std::fmt;
use std::sync::Arc;

use control::events::RecentEvents;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::quoted;

/// The layer that keeps logged lines.
pub struct RecentLines(pub Arc<RecentEvents>);

impl<S: Subscriber> Layer<S> for RecentLines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        let Line { message, fields } = line;
        self.0.add(event.metadata().level().as_str(), &format!("{message}{fields}"));
    }
}

/// A line as the log has it: the message, and ` key=value` for each field.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}");
        match field.name() {
            "message" => self.message = value,
            name => self.fields.push_str(&format!(" {name}={}", quoted(value))),
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::{info, warn};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn lines_are_kept_as_the_log_has_them() {
        let events = Arc::new(RecentEvents::default());
        let recent = RecentLines(Arc::clone(&events));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(recent), || {
            info!(port = "vm-a", reason = "it is gone", "stopped");
            warn!("no ports");
        });
        let lines: Vec<_> = events.list().into_iter().map(|it| (it.level, it.text)).collect();
        let want = [("INFO", "stopped port=vm-a reason=\"it is gone\""), ("WARN", "no ports")];
        assert_eq!(lines, want.map(|(level, text)| (level.to_owned(), text.to_owned())));
    }
}
