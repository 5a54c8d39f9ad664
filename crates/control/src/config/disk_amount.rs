//! Rates of disks in text form: `20k` requests, `200MB` per second.

use std::fmt;
use std::ops::RangeInclusive;

use super::amount::{BINARY_BYTES, BYTES, COUNTS, read, scaled, write, write_bytes};
use super::source::VALUE;
use super::value::FromText;

/// Requests, or requests per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Requests(pub u64);

/// Bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteRate(pub u64);

impl Requests {
    const RANGE: RangeInclusive<u64> = 1..=1_000_000_000;
}

impl ByteRate {
    const RANGE: RangeInclusive<u64> = 1_000..=1 << 40;
}

impl FromText for Requests {
    fn right() -> String {
        r#"a number of requests, 1 to "1000M", like 500 or "20k""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let text = text.strip_suffix("/s").unwrap_or(text);
        let other = |number: &str, unit: &str| {
            let right = match unit {
                "K" | "Ki" | "ki" => format!("{number}k"),
                "m" | "Mi" => format!("{number}M"),
                _ => return None,
            };
            Some(format!("{VALUE} has an unknown unit; write {right:?}"))
        };
        read(text, &[COUNTS], Self::RANGE, &Self::right(), other).map(Requests)
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, COUNTS)
    }
}

impl FromText for ByteRate {
    fn right() -> String {
        r#"bytes per second, "1kB" to "1024GiB", like "200MB""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let text = text.strip_suffix("/s").unwrap_or(text);
        read(text, &[BYTES, BINARY_BYTES], Self::RANGE, &Self::right(), not_bytes).map(ByteRate)
    }
}

/// The problem with a rate whose unit is unknown, and the text to write instead.
fn not_bytes(number: &str, unit: &str) -> Option<String> {
    if unit.is_empty() {
        let [bytes, megabytes] = ["B", "MB"].map(|unit| format!("{number}{unit}"));
        return Some(format!("{VALUE} has no unit; write {bytes:?}, or {megabytes:?}"));
    }
    let letter = unit.chars().next()?.to_ascii_uppercase();
    let (decimal, binary) = match letter {
        'K' => ("kB", "KiB"),
        'M' => ("MB", "MiB"),
        'G' => ("GB", "GiB"),
        _ => return None,
    };
    if unit.to_ascii_lowercase().ends_with("bit") {
        let factor = BYTES.iter().find(|(name, _)| *name == decimal)?.1;
        let bytes = scaled(number, factor)? / 8;
        return Some(format!(
            "{VALUE} is in bits, and bandwidths of disks are in bytes; write {:?}",
            ByteRate(bytes).to_string()
        ));
    }
    let (decimal, binary) = (format!("{number}{decimal}"), format!("{number}{binary}"));
    Some(format!("{VALUE} may be {decimal} or {binary}; write {decimal:?} or {binary:?}"))
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bytes(f, self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn refused<T: FromText + fmt::Debug>(text: &str, want: &str) {
        let said = T::from_text(text).unwrap_err().replace(VALUE, &format!("{text:?}"));
        assert_eq!(said, want, "{text}");
    }

    #[test]
    fn rates_are_written_with_units() {
        for (text, requests) in [("500", 500), ("20k", 20_000), ("1.5M", 1_500_000), ("9/s", 9)] {
            assert_eq!(Requests::from_text(text), Ok(Requests(requests)), "{text}");
        }
        for (text, bytes) in [
            ("200MB", 200_000_000),
            ("200MB/s", 200_000_000),
            ("1.5GB", 1_500_000_000),
            ("64KiB", 65_536),
            ("1024GiB", 1 << 40),
        ] {
            assert_eq!(ByteRate::from_text(text), Ok(ByteRate(bytes)), "{text}");
        }
    }

    #[test]
    fn rates_of_unclear_size_are_refused() {
        refused::<Requests>("20K", "\"20K\" has an unknown unit; write \"20k\"");
        refused::<Requests>("0", &format!("\"0\" is out of range; give {}", Requests::right()));
        refused::<ByteRate>("200", "\"200\" has no unit; write \"200B\", or \"200MB\"");
        refused::<ByteRate>(
            "200M",
            "\"200M\" may be 200MB or 200MiB; write \"200MB\" or \"200MiB\"",
        );
        let bits = "\"800Mbit\" is in bits, and bandwidths of disks are in bytes; write \"100MB\"";
        refused::<ByteRate>("800Mbit", bits);
        for text in ["", "fast", "-1MB", "100 parsecs"] {
            let right = ByteRate::right();
            refused::<ByteRate>(text, &format!("{text:?} is not known; give {right}"));
        }
        refused::<ByteRate>("10B", &format!("\"10B\" is out of range; give {}", ByteRate::right()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            requests in Requests::RANGE,
            bytes in ByteRate::RANGE,
            zeros in 0u32..9,
        ) {
            // Round numbers are also tested.
            let ten = 10u64.pow(zeros);
            for requests in [requests, (requests / ten * ten).max(1)] {
                let text = Requests(requests).to_string();
                prop_assert_eq!(Requests::from_text(&text), Ok(Requests(requests)), "{}", text);
            }
            for bytes in [bytes, (bytes / ten * ten).max(1000), bytes >> zeros << zeros | 1024] {
                let text = ByteRate(bytes).to_string();
                prop_assert_eq!(ByteRate::from_text(&text), Ok(ByteRate(bytes)), "{}", text);
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = Requests::from_text(&text);
            let _ = ByteRate::from_text(&text);
        }
    }
}
