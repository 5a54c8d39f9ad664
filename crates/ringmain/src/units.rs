//! Numbers for people.

/// A number of things, such as `1 port` or `2 ports`.
pub fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A number in at most five characters: `999`, `12.3k`, `4.56M`.
pub fn scaled(number: f64) -> String {
    let mut value = number;
    for unit in ["", "k", "M", "G", "T"] {
        // Rounding must not produce four digits.
        if value < 999.5 || unit == "T" {
            let digits = match value {
                _ if unit.is_empty() => 0,
                ..9.995 => 2,
                ..99.95 => 1,
                _ => 0,
            };
            return format!("{value:.digits$}{unit}");
        }
        value /= 1000.0;
    }
    String::new()
}

/// Nanoseconds with a unit that suits them: `512 ns`, `4.1 us`, `131 ms`.
pub fn time(nanoseconds: u64) -> String {
    let mut value = nanoseconds as f64;
    for unit in ["ns", "us", "ms", "s"] {
        if value < 999.5 || unit == "s" {
            let digits = usize::from(value < 99.95 && unit != "ns");
            return format!("{value:.digits$} {unit}");
        }
        value /= 1000.0;
    }
    String::new()
}

/// A duration in its two largest units.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// The time of day, in UTC.
pub fn clock(since_epoch: std::time::Duration) -> String {
    let seconds = since_epoch.as_secs() % 86400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_agree_with_numbers() {
        assert_eq!((count(1, "port"), count(0, "port")), ("1 port".into(), "0 ports".into()));
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let cases = [
            (0.0, "0"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (12_345.0, "12.3k"),
            (123_456.0, "123k"),
            (999_600.0, "1.00M"),
            (9.87e9, "9.87G"),
            (5e15, "5000T"),
        ];
        for (number, want) in cases {
            assert_eq!(scaled(number), want);
        }
    }

    #[test]
    fn times_have_units() {
        for (ns, want) in [
            (64, "64 ns"),
            (8_000, "8.0 us"),
            (131_072, "131 us"),
            (1_073_741_824, "1.1 s"),
            (999_999, "1.0 ms"),
        ] {
            assert_eq!(time(ns), want);
        }
    }

    #[test]
    fn durations_have_two_units() {
        let cases =
            [(5.9, "5 s"), (61.0, "1 min 1 s"), (7260.0, "2 h 1 min"), (200_000.0, "2 d 7 h")];
        for (seconds, want) in cases {
            assert_eq!(duration(seconds), want);
        }
    }

    #[test]
    fn the_clock_shows_the_time_of_day() {
        assert_eq!(clock(std::time::Duration::from_secs(3 * 86400 + 3723)), "01:02:03 UTC");
    }
}
