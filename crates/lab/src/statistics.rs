//! Many repetitions in a few numbers.

/// The value that represents the repetitions of a point in plots and tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Centre {
    /// Their median; bars reach from the least to the most.
    Median,
    /// Their mean; bars reach one standard deviation to either side.
    Mean,
}

/// The summary of a point's repetitions.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// All of them, in the order in which they were made.
    pub values: Vec<f64>,
    /// The one in the middle.
    pub median: f64,
    /// Their mean.
    pub mean: f64,
    /// The standard deviation of the sample; 0 of a single one.
    pub deviation: f64,
    /// The lowest.
    pub least: f64,
    /// The highest.
    pub most: f64,
}

impl Summary {
    /// The summary of these values; none if there are none.
    pub fn of(values: Vec<f64>) -> Option<Summary> {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let n = sorted.len();
        let median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0;
        let mean = values.iter().sum::<f64>() / n as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 };
        Some(Summary { values, median, mean, deviation, least, most })
    }

    /// The summary with every value multiplied by `times`, which is not negative.
    #[must_use]
    pub fn times(&self, times: f64) -> Summary {
        let by = |value: &f64| value * times;
        let [median, mean, deviation] =
            [self.median, self.mean, self.deviation].map(|value| value * times);
        let (least, most) = (by(&self.least), by(&self.most));
        Summary {
            values: self.values.iter().map(by).collect(),
            median,
            mean,
            deviation,
            least,
            most,
        }
    }

    /// The value that represents them, and the ends of its bar.
    pub fn shown(&self, centre: Centre) -> (f64, [f64; 2]) {
        match centre {
            Centre::Median => (self.median, [self.least, self.most]),
            Centre::Mean => (self.mean, [self.low(), self.mean + self.deviation]),
        }
    }

    /// One standard deviation below the mean, but not below 0 where no value is: rates and times
    /// have no negative values.
    fn low(&self) -> f64 {
        let low = self.mean - self.deviation;
        if self.least >= 0.0 { low.max(0.0) } else { low }
    }

    /// The same for people.
    pub fn said(&self, centre: Centre) -> String {
        match centre {
            _ if self.count() == 1 => digits(self.median),
            Centre::Median => {
                format!("{} ({}-{})", digits(self.median), digits(self.least), digits(self.most))
            }
            Centre::Mean => format!("{} ± {}", digits(self.mean), digits(self.deviation)),
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.values.len()
    }
}

/// The part of each in the sum of all.
pub fn parts(all: impl IntoIterator<Item = u64>) -> Vec<f64> {
    let all: Vec<u64> = all.into_iter().collect();
    let sum = all.iter().sum::<u64>().max(1) as f64;
    all.iter().map(|part| *part as f64 / sum).collect()
}

/// All that take part in a round, in the order of their turns. Every second round has the reverse
/// order, so that a slow change of the machine favours nobody.
pub fn turns<T>(mut all: Vec<T>, round: u32) -> Vec<T> {
    if !round.is_multiple_of(2) {
        all.reverse();
    }
    all
}

/// A number for people: three digits that mean something.
pub fn digits(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "-".into(),
        _ if size >= 99.95 || size == 0.0 => format!("{value:.0}"),
        _ if size >= 9.995 => format!("{value:.1}"),
        _ if size >= 0.0995 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// The interval that holds the median of all values such as these with a probability of 95 %,
/// whatever their distribution is: between two of them, by rank. `None`: there are none.
pub fn median_interval(mut values: Vec<f64>) -> Option<[f64; 2]> {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    // The number of values below the median is binomial: half of them, with a standard deviation of
    // half the root of their number.
    let low = ((count as f64 - 1.96 * (count as f64).sqrt()) / 2.0).max(0.0) as usize;
    let high = count.checked_sub(low + 1)?;
    Some([*values.get(low)?, *values.get(high)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_round_has_the_reverse_order() {
        assert_eq!(turns(vec!['a', 'b', 'c'], 0), ['a', 'b', 'c']);
        assert_eq!(turns(vec!['a', 'b', 'c'], 1), ['c', 'b', 'a']);
    }

    #[test]
    fn summaries_of_odd_even_and_none() {
        let odd = Summary::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            (odd.median, odd.mean, odd.deviation, odd.least, odd.most),
            (2.0, 2.0, 1.0, 1.0, 3.0)
        );
        assert_eq!(Summary::of(vec![4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(vec![7.0]).unwrap().deviation, 0.0);
        assert_eq!(Summary::of(vec![]), None);
        assert_eq!(Some(odd.times(2.0)), Summary::of(vec![6.0, 2.0, 4.0]));
    }

    #[test]
    fn bars_show_the_centre_of_the_values() {
        let three = Summary::of(vec![1.0, 2.0, 6.0]).unwrap();
        assert_eq!(three.shown(Centre::Median), (2.0, [1.0, 6.0]));
        let (mean, [low, high]) = three.shown(Centre::Mean);
        assert!(mean == 3.0 && (high - low - 2.0 * 7f64.sqrt()).abs() < 1e-9);
        let (_, [low, _]) = Summary::of(vec![0.0, 0.0, 9.0]).unwrap().shown(Centre::Mean);
        assert_eq!(low, 0.0);
        assert_eq!(
            (three.said(Centre::Median), three.said(Centre::Mean)),
            ("2.00 (1.00-6.00)".into(), "3.00 ± 2.65".into())
        );
        assert_eq!(Summary::of(vec![7.0]).unwrap().said(Centre::Mean), "7.00");
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown: Vec<String> = [0.0, 0.01234, 1.234, 12.34, 123.4, f64::NAN].map(digits).into();
        assert_eq!(shown, ["0", "0.0123", "1.23", "12.3", "123", "-"]);
    }

    #[test]
    fn the_interval_of_the_median_becomes_narrow_with_many_values() {
        let of = |count: u32| median_interval((0..count).rev().map(f64::from).collect());
        assert_eq!(of(0), None);
        assert_eq!(of(1), Some([0.0, 0.0]));
        assert_eq!(of(5), Some([0.0, 4.0]), "all of them");
        assert_eq!(of(9), Some([1.0, 7.0]));
        assert_eq!(of(100), Some([40.0, 59.0]));
    }
}
