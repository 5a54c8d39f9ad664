//! How long workers look before they sleep: the same key for all of them, and for a port.

use network::poll::Patience;

use super::document::{ConfigError, Fields};

/// The key.
pub(super) const KEY: &str = "polling";

/// Reads it. `None`: nothing was said.
pub(super) fn read(fields: &mut Fields) -> Result<Option<Patience>, ConfigError> {
    let Some((word, value)) = fields.text(KEY, Patience::WORDS)? else { return Ok(None) };
    let known = word.parse::<Patience>();
    known.map(Some).map_err(|_| {
        fields.wrong(KEY, &value, format_args!("{value} is not known; give {}", Patience::WORDS))
    })
}
