//! How long workers look before they sleep: the same key for all of them, and for a port.

use network::poll::PollingPolicy;

use super::document::{ConfigError, Fields};

/// The key.
pub(super) const KEY: &str = "polling";

/// Reads it. `None`: nothing was said.
pub(super) fn read(fields: &mut Fields) -> Result<Option<PollingPolicy>, ConfigError> {
    let Some((word, value)) = fields.text(KEY, PollingPolicy::WORDS)? else { return Ok(None) };
    let known = word.parse::<PollingPolicy>();
    known.map(Some).map_err(|_| {
        fields.wrong(
            KEY,
            &value,
            format_args!("{value} is not known; give {}", PollingPolicy::WORDS),
        )
    })
}
