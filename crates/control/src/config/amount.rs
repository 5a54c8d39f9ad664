//! Rates and bursts as people write them: `100Mbit`, `50k` frames, `64KiB`. An ambiguous amount,
//! such as `100M` for a rate of bits, is refused with a hint.

use std::fmt;
use std::ops::RangeInclusive;

use super::source::VALUE;
use super::value::FromText;

/// Bits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BitRate(pub u64);

/// Frames, or frames per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Frames(pub u64);

/// Bytes that may go at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BurstBytes(pub u64);

/// A unit, and its factor.
pub(super) type Unit = (&'static str, u64);

/// The units of bit rates, the largest last.
const BIT_RATES: &[Unit] = &[
    ("bit", 1),
    ("kbit", 1_000),
    ("Mbit", 1_000_000),
    ("Gbit", 1_000_000_000),
    ("Tbit", 1_000_000_000_000),
];
/// The units of frames and requests.
pub(super) const COUNTS: &[Unit] = &[("", 1), ("k", 1_000), ("M", 1_000_000)];
/// The decimal units of bytes.
pub(super) const BYTES: &[Unit] =
    &[("B", 1), ("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000)];
/// The binary units of bytes.
pub(super) const BINARY_BYTES: &[Unit] = &[("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

impl BitRate {
    const RANGE: RangeInclusive<u64> = 1_000..=1_000_000_000_000;
}

impl Frames {
    const RANGE: RangeInclusive<u64> = 1..=1_000_000_000;
}

impl BurstBytes {
    /// The allowed bursts. The least is the longest frame without jumbo frames, because frames
    /// would exceed a shorter burst.
    const RANGE: RangeInclusive<u64> = 1514..=1 << 30;
}

/// A number and the text behind it. `None`: the text does not begin with a number.
fn split(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| (1..=12).contains(&digits.len());
    let is_one = is_number(whole) && is_number(part) && !part.contains('.');
    is_one.then_some((number, unit.trim_start_matches(' ')))
}

/// `number` times `unit`. `None`: the product is no whole number, or too large.
pub(super) fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let part = part.trim_end_matches('0');
    let digits: u128 = format!("{whole}{part}").parse().ok()?;
    let (product, scale) = (digits * u128::from(unit), 10u128.pow(part.len() as u32));
    (product % scale == 0).then(|| u64::try_from(product / scale).ok())?
}

/// Reads a number with one of these units. Another unit is given to `other`, which describes the
/// problem.
pub(super) fn read(
    text: &str,
    units: &[&[Unit]],
    range: RangeInclusive<u64>,
    right: &str,
    other: impl Fn(&str, &str) -> Option<String>,
) -> Result<u64, String> {
    let unknown = || format!("{VALUE} is not known; give {right}");
    let (number, unit) = split(text).ok_or_else(unknown)?;
    let known = units.iter().copied().flatten().find(|(name, _)| *name == unit);
    let Some((_, factor)) = known else {
        return Err(other(number, unit).unwrap_or_else(unknown));
    };
    let value = scaled(number, *factor).filter(|value| range.contains(value));
    value.ok_or_else(|| format!("{VALUE} is out of range; give {right}"))
}

/// The number in the largest unit that leaves at most three decimals.
pub(super) fn write(f: &mut fmt::Formatter<'_>, value: u64, units: &[Unit]) -> fmt::Result {
    let fits =
        |(_, factor): &&Unit| value >= *factor && value.is_multiple_of((factor / 1000).max(1));
    let (name, factor) = units.iter().rev().find(fits).copied().unwrap_or(("", 1));
    let (whole, rest) = (value / factor, value % factor);
    let thousandths = format!("{:03}", rest / (factor / 1000).max(1));
    match thousandths.trim_end_matches('0') {
        "" => f.pad(&format!("{whole}{name}")),
        part => f.pad(&format!("{whole}.{part}{name}")),
    }
}

impl FromText for BitRate {
    fn right() -> String {
        r#"bits per second, "1kbit" to "1Tbit", like "100Mbit""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let text = text.strip_suffix("/s").unwrap_or(text);
        read(text, &[BIT_RATES], Self::RANGE, &Self::right(), not_a_bit_rate).map(BitRate)
    }
}

/// The problem with a rate whose unit is unknown, and the text to write instead.
fn not_a_bit_rate(number: &str, unit: &str) -> Option<String> {
    if unit.is_empty() {
        let (bits, megabits) = (format!("{number}bit"), format!("{number}Mbit"));
        return Some(format!("{VALUE} has no unit; write {bits:?}, or {megabits:?}"));
    }
    let lower = unit.to_ascii_lowercase();
    let prefix = lower.chars().next().filter(|c| "kmgt".contains(*c));
    let prefixes = ["", "k", "M", "G", "T"];
    let prefix = prefixes
        .into_iter()
        .find(|known| known.to_ascii_lowercase() == prefix.map(String::from).unwrap_or_default())?;
    let bits = format!("{number}{prefix}bit");
    let octets = scaled(number, 8).map(|eight| format!("{eight}{prefix}bit"));
    let rest = lower.strip_prefix(&prefix.to_ascii_lowercase())?;
    let is_bytes = unit.ends_with('B') || unit.ends_with("B/s");
    match rest {
        "bit" => Some(format!("{VALUE} has an unknown unit; write {bits:?}")),
        "b" | "byte" | "bytes" if is_bytes || rest != "b" => {
            Some(format!("{VALUE} is in bytes, and rates are in bits; write {:?}", octets?))
        }
        "" | "b" | "bps" => {
            let octets = octets?;
            Some(format!("{VALUE} may be bits or bytes; write {bits:?}, or {octets:?} for bytes"))
        }
        _ => None,
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, BIT_RATES)
    }
}

impl FromText for Frames {
    fn right() -> String {
        r#"a number of frames, 1 to "1000M", like 200 or "50k""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let other = |number: &str, unit: &str| match unit {
            "K" | "Ki" | "ki" | "kpps" | "Kpps" => Some(format!("{number}k")),
            "m" | "Mi" | "Mpps" | "mpps" => Some(format!("{number}M")),
            "pps" => Some(number.to_owned()),
            _ => None,
        };
        let other = |number: &str, unit: &str| {
            let right = other(number, unit)?;
            Some(format!("{VALUE} has an unknown unit; write {right:?}"))
        };
        read(text, &[COUNTS], Self::RANGE, &Self::right(), other).map(Frames)
    }
}

impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, COUNTS)
    }
}

impl FromText for BurstBytes {
    fn right() -> String {
        r#"bytes, "1514B" to "1GiB", like "64KiB" or "256kB""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        read(text, &[BYTES, BINARY_BYTES], Self::RANGE, &Self::right(), not_bytes).map(BurstBytes)
    }
}

/// The problem with a number of bytes whose unit is unknown, and the text to write instead.
fn not_bytes(number: &str, unit: &str) -> Option<String> {
    if unit.is_empty() {
        return Some(format!("{VALUE} has no unit; write {:?}", format!("{number}B")));
    }
    let (decimal, binary) = match unit.to_ascii_lowercase().chars().next()? {
        'k' => ("kB", "KiB"),
        'm' => ("MB", "MiB"),
        _ => return None,
    };
    if unit.to_ascii_lowercase().ends_with("bit") {
        return Some(format!(
            "{VALUE} is in bits, and bursts are in bytes; give {}",
            BurstBytes::right()
        ));
    }
    let (decimal, binary) = (format!("{number}{decimal}"), format!("{number}{binary}"));
    Some(format!("{VALUE} may be {decimal} or {binary}; write {decimal:?} or {binary:?}"))
}

impl fmt::Display for BurstBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bytes(f, self.0)
    }
}

/// The number in the largest binary unit that divides it, or else in a decimal one.
pub(super) fn write_bytes(f: &mut fmt::Formatter<'_>, value: u64) -> fmt::Result {
    let is_binary = value >= 1024 && value.is_multiple_of(1024);
    let binary = BINARY_BYTES.iter().rev().find(|(_, factor)| value.is_multiple_of(*factor));
    match binary.filter(|_| is_binary) {
        Some((name, factor)) => f.pad(&format!("{}{name}", value / factor)),
        None => write(f, value, BYTES),
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
        for (text, bits) in [
            ("100Mbit", 100_000_000),
            ("1.5Gbit", 1_500_000_000),
            ("2500 kbit/s", 2_500_000),
            ("1000bit", 1000),
            ("0.001Mbit", 1000),
            ("1Tbit", 1_000_000_000_000),
        ] {
            assert_eq!(BitRate::from_text(text), Ok(BitRate(bits)), "{text}");
        }
        for (text, frames) in
            [("200", 200), ("50k", 50_000), ("1.25M", 1_250_000), ("1000M", 1_000_000_000)]
        {
            assert_eq!(Frames::from_text(text), Ok(Frames(frames)), "{text}");
        }
        for (text, bytes) in
            [("64KiB", 65_536), ("256kB", 256_000), ("1.5MiB", 3 << 19), ("1514B", 1514)]
        {
            assert_eq!(BurstBytes::from_text(text), Ok(BurstBytes(bytes)), "{text}");
        }
    }

    #[test]
    fn rates_that_may_be_bits_or_bytes_are_refused() {
        let both = "; write \"100Mbit\", or \"800Mbit\" for bytes";
        for text in ["100M", "100Mb", "100Mbps", "100mb"] {
            refused::<BitRate>(text, &format!("{text:?} may be bits or bytes{both}"));
        }
        let bytes = "\"100MB\" is in bytes, and rates are in bits; write \"800Mbit\"";
        refused::<BitRate>("100MB", bytes);
        refused::<BitRate>(
            "1.5GB",
            "\"1.5GB\" is in bytes, and rates are in bits; write \"12Gbit\"",
        );
        refused::<BitRate>("100", "\"100\" has no unit; write \"100bit\", or \"100Mbit\"");
        refused::<BitRate>("100mbit", "\"100mbit\" has an unknown unit; write \"100Mbit\"");
        let right = BitRate::right();
        for text in ["", "fast", "-1Mbit", "1e3kbit", "100Mibit", "1.2.3Mbit", ".5Mbit", "1 Mbit x"]
        {
            refused::<BitRate>(text, &format!("{text:?} is not known; give {right}"));
        }
        for text in ["999bit", "1.1Tbit", "0Mbit", "1000.5bit", "999999999999Tbit"] {
            refused::<BitRate>(text, &format!("{text:?} is out of range; give {right}"));
        }
    }

    #[test]
    fn frames_and_bytes_of_unclear_size_are_refused() {
        refused::<Frames>("50K", "\"50K\" has an unknown unit; write \"50k\"");
        refused::<Frames>("50kpps", "\"50kpps\" has an unknown unit; write \"50k\"");
        refused::<Frames>("0", &format!("\"0\" is out of range; give {}", Frames::right()));
        refused::<BurstBytes>("64K", "\"64K\" may be 64kB or 64KiB; write \"64kB\" or \"64KiB\"");
        refused::<BurstBytes>("64KB", "\"64KB\" may be 64kB or 64KiB; write \"64kB\" or \"64KiB\"");
        refused::<BurstBytes>("65536", "\"65536\" has no unit; write \"65536B\"");
        let right = BurstBytes::right();
        refused::<BurstBytes>(
            "1kbit",
            &format!("\"1kbit\" is in bits, and bursts are in bytes; give {right}"),
        );
        refused::<BurstBytes>("1500B", &format!("\"1500B\" is out of range; give {right}"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            bits in BitRate::RANGE,
            frames in Frames::RANGE,
            bytes in BurstBytes::RANGE,
            zeros in 0u32..9,
        ) {
            // Round numbers are also tested.
            let ten = 10u64.pow(zeros);
            let round = |value: u64, least: u64| (value / ten * ten).max(least);
            for bits in [bits, round(bits, 1000)] {
                prop_assert_eq!(BitRate::from_text(&BitRate(bits).to_string()), Ok(BitRate(bits)));
            }
            for frames in [frames, round(frames, 1)] {
                prop_assert_eq!(Frames::from_text(&Frames(frames).to_string()), Ok(Frames(frames)));
            }
            let binary = bytes.next_multiple_of(1 << zeros).min(1 << 30);
            for bytes in [bytes, round(bytes, 1514), binary] {
                let text = BurstBytes(bytes).to_string();
                prop_assert_eq!(BurstBytes::from_text(&text), Ok(BurstBytes(bytes)), "{}", text);
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = BitRate::from_text(&text);
            let _ = Frames::from_text(&text);
            let _ = BurstBytes::from_text(&text);
        }
    }
}
