//! Sizes of memory in text form: `512MiB`.

use std::fmt;

use vhost_user::net::port::DEFAULT_MEMORY;

use super::source::VALUE;
use super::value::FromText;

/// Bytes of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemorySize(pub u64);

/// The units, the largest first.
const UNITS: [(&str, u64); 4] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl MemorySize {
    /// The least size: less is not enough for the rings and buffers of a guest.
    const LEAST: u64 = 1 << 20;
    /// The largest size: no guest has more memory.
    const MOST: u64 = 1 << 40;
}

impl Default for MemorySize {
    fn default() -> Self {
        MemorySize(DEFAULT_MEMORY)
    }
}

impl FromText for MemorySize {
    fn right() -> String {
        r#"bytes with a unit, "1MiB" to "1TiB", like "512MiB""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let number = |(unit, bytes): &(&str, u64)| {
            let number = text.strip_suffix(unit)?.trim_end_matches(' ').parse::<u64>().ok()?;
            number.checked_mul(*bytes)
        };
        let bytes = UNITS.iter().find_map(number);
        let bytes = bytes.filter(|bytes| (Self::LEAST..=Self::MOST).contains(bytes));
        bytes
            .map(MemorySize)
            .ok_or_else(|| format!("{VALUE} is no size of memory; give {}", Self::right()))
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, bytes) =
            UNITS.into_iter().find(|(_, bytes)| self.0.is_multiple_of(*bytes)).unwrap_or(("B", 1));
        f.pad(&format!("{}{unit}", self.0 / bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units_and_written_back() {
        for text in ["1MiB", "1536KiB", "512MiB", "16GiB", "1TiB"] {
            assert_eq!(MemorySize::from_text(text).unwrap().to_string(), text);
        }
        assert_eq!(MemorySize::from_text("1024 MiB").unwrap(), MemorySize(1 << 30));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in
            ["", "512", "512MB", "-1MiB", "1.5GiB", "1023KiB", "2TiB", "MiB", "99999999999999TiB"]
        {
            assert!(MemorySize::from_text(text).is_err(), "{text}");
        }
    }
}
