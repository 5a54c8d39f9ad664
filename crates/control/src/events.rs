//! The last events of the daemon's log, for clients that cannot read the log.

use std::collections::VecDeque;
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::api::EventReport;

/// Events that are kept.
const MOST: usize = 100;
/// Longest text of an event, in bytes. Names in it may come from peers.
const LONGEST: usize = 500;

/// The last events of the log, bounded in number and in bytes.
#[derive(Debug, Default)]
pub struct RecentEvents(Mutex<VecDeque<EventReport>>);

impl RecentEvents {
    /// Keeps an event with the present time. `level` is the name of its severity.
    pub fn add(&self, level: &str, text: &str) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let is_end = |at: &usize| text.is_char_boundary(*at);
        let end = (0..=LONGEST.min(text.len())).rev().find(is_end).unwrap_or(0);
        let event = EventReport {
            unix_ms: since.as_millis() as u64,
            level: level.to_owned(),
            text: text.get(..end).unwrap_or_default().to_owned(),
        };
        let mut events = self.0.lock();
        if events.len() >= MOST {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// The events, the oldest first.
    pub fn list(&self) -> Vec<EventReport> {
        self.0.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_events_are_kept_and_long_ones_are_cut() {
        let events = RecentEvents::default();
        for number in 0..MOST + 5 {
            events.add("INFO", &format!("event {number}"));
        }
        let list = events.list();
        assert_eq!((list.len(), &*list[0].text), (MOST, "event 5"));
        assert!(list[0].unix_ms > 0 && list.is_sorted_by_key(|event| event.unix_ms));
        // Not within a character.
        events.add("WARN", &format!("x{}", "ä".repeat(LONGEST)));
        let last = events.list().pop().unwrap();
        assert_eq!((last.text.len(), &*last.level), (LONGEST - 1, "WARN"));
    }
}
