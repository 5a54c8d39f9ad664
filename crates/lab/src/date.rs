//! Dates, in UTC.

/// A time in seconds since 1970, like `2026-11-22 01:54`.
pub fn utc(seconds: u64) -> String {
    let (days, left) = (seconds / 86400, seconds % 86400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", left / 3600, left % 3600 / 60)
}

/// Year, month and day of a day counted from 1970. Years begin in March here, so that the leap day
/// is the last one, and come in eras of 400.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00");
        assert_eq!(utc(951_868_799), "2000-02-29 23:59");
        assert_eq!(utc(1_709_251_200), "2024-03-01 00:00");
        assert_eq!(utc(1_795_312_440), "2026-11-22 01:54");
        assert_eq!(utc(4_102_444_799), "2099-12-31 23:59");
    }
}
