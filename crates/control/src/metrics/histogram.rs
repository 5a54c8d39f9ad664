//! The samples of a histogram: cumulative buckets, the sum and the number of durations.

use runtime::histogram::bound;

use super::labels::labels;
use crate::api::Durations;

/// All samples of `durations` with these labels. Each begins with the text that follows the
/// family's name. Empty if nothing is measured yet.
pub fn samples(own: &[(&str, &str)], durations: &Durations) -> Vec<(String, f64)> {
    if durations.counts.is_empty() {
        return Vec::new();
    }
    let mut below = 0;
    let buckets = durations.counts.iter().enumerate().map(|(class, count)| {
        below += count;
        let le = bound(class).map_or("+Inf".to_owned(), |it| it.as_secs_f64().to_string());
        (format!("_bucket{}", labels(&[own, &[("le", &le)]].concat())), below as f64)
    });
    let mut samples: Vec<_> = buckets.collect();
    let own = labels(own);
    samples.push((format!("_sum{own}"), durations.sum_ns as f64 / 1e9));
    samples.push((format!("_count{own}"), below as f64));
    samples
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime::Histogram;

    use super::*;

    #[test]
    fn buckets_are_cumulative_and_in_seconds() {
        let histogram = Histogram::default();
        for micros in [1, 3, 4, 900, 100_000_000] {
            histogram.record(Duration::from_micros(micros));
        }
        let samples =
            samples(&[("disk", "a"), ("operation", "read")], &Durations::from(&histogram));
        let value = |text: &str| {
            let found = samples.iter().find(|(behind, _)| behind == text);
            found.unwrap_or_else(|| panic!("no {text} in {samples:?}")).1
        };
        let bucket =
            |le: &str| value(&format!(r#"_bucket{{disk="a",operation="read",le="{le}"}}"#));
        assert_eq!(bucket("0.000001"), 1.0);
        assert_eq!(bucket("0.000002"), 1.0);
        assert_eq!(bucket("0.000004"), 3.0);
        assert_eq!(bucket("0.001024"), 4.0);
        assert_eq!(bucket("16.777216"), 4.0);
        assert_eq!(bucket("+Inf"), 5.0);
        assert_eq!(value(r#"_count{disk="a",operation="read"}"#), 5.0);
        assert_eq!(value(r#"_sum{disk="a",operation="read"}"#), 100.000908);
        assert!(samples.windows(2).take(25).all(|two| two[0].1 <= two[1].1));
    }
}
