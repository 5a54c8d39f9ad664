//! The sending rate of a vif, as the toolstack writes it: the key `rate`, with a number of bytes
//! and an interval in microseconds.

use network::token_bucket::Rate;

/// Least burst in bytes, whatever the rate: two of the longest frames.
const LEAST: u64 = 131_072;

/// Longest interval in microseconds: an hour.
const LONGEST: u64 = 3_600_000_000;

/// The rate that `bytes,microseconds` stands for. `None`: no limit, or no valid one.
pub fn parse(text: &str) -> Option<Rate> {
    let (bytes, micros) = text.split_once(',')?;
    let (bytes, micros): (u64, u64) = (bytes.trim().parse().ok()?, micros.trim().parse().ok()?);
    // All ones are the toolstack's way to write "no limit".
    if bytes == 0 || bytes >= u64::from(u32::MAX) || !(1..=LONGEST).contains(&micros) {
        return None;
    }
    Some(Rate { per_second: (bytes * 1_000_000 / micros).max(1), burst: bytes.max(LEAST) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_toolstacks_way_of_writing_it() {
        let rate = Rate { per_second: 12_500_000, burst: 625_000 };
        assert_eq!(parse("625000,50000"), Some(rate));
        assert_eq!(parse("1,3600000000"), Some(Rate { per_second: 1, burst: LEAST }));
        for text in ["", "1", "1,", "0,50000", "100,0", "4294967295,50000", "x,y", "-1,5"] {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
