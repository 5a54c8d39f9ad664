//! Whether two samples differ by more than chance: the Mann-Whitney U test, exact, ties included.

/// The probability below which a difference counts as more than chance.
pub const SIGNIFICANT: f64 = 0.05;
/// Most values in both samples together for which all divisions are counted.
const MOST: usize = 200;

/// The probability that two samples out of the same population differ in rank by as much as these,
/// or more, in either direction. None if one of them is empty, or they are too large to be counted
/// out.
pub fn two_sided(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.is_empty() || b.is_empty() || a.len() + b.len() > MOST {
        return None;
    }
    let ranks = doubled_ranks(a, b);
    let sum: usize = ranks.iter().take(a.len()).sum();
    let ways = divisions(&ranks, a.len());
    let all: f64 = ways.iter().sum();
    // Ranks are doubled: the mean of a sample's sum is n1 (n1 + n2 + 1), in this scale.
    let middle = a.len() * (ranks.len() + 1);
    let far = sum.abs_diff(middle);
    let as_far: f64 = ways
        .iter()
        .enumerate()
        .filter(|(sum, _)| sum.abs_diff(middle) >= far)
        .map(|(_, ways)| ways)
        .sum();
    Some(as_far / all)
}

/// The least that [`two_sided`] can give for samples of these sizes: whether they could show
/// anything at all.
pub fn least(a: usize, b: usize) -> Option<f64> {
    // Before anything is made: a file may ask for any number.
    if a.saturating_add(b) > MOST {
        return None;
    }
    let low: Vec<f64> = (0..a).map(|n| n as f64).collect();
    let high: Vec<f64> = (a..a + b).map(|n| n as f64).collect();
    two_sided(&low, &high)
}

/// Twice the rank of each value among all, `a` first; equal values share the mean of their ranks.
fn doubled_ranks(a: &[f64], b: &[f64]) -> Vec<usize> {
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let rank = |value: &f64| {
        let below = all.iter().filter(|other| other.total_cmp(value).is_lt()).count();
        let equal = all.iter().filter(|other| other.total_cmp(value).is_eq()).count();
        2 * below + equal + 1
    };
    all.iter().map(rank).collect()
}

/// The number of ways in which `count` of the ranks have each sum.
fn divisions(ranks: &[usize], count: usize) -> Vec<f64> {
    let most: usize = ranks.iter().sum();
    let mut ways = vec![vec![0.0; most + 1]; count + 1];
    ways[0][0] = 1.0;
    for rank in ranks {
        // The order is descending, so that each rank is taken at most once.
        for taken in (0..count).rev() {
            for sum in (0..=most - rank).rev() {
                let add = ways[taken][sum];
                ways[taken + 1][sum + rank] += add;
            }
        }
    }
    ways.swap_remove(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(p: Option<f64>, expected: f64) {
        let p = p.unwrap();
        assert!((p - expected).abs() < 1e-6, "{p} is not {expected}");
    }

    #[test]
    fn as_in_the_tables() {
        // Three below three others: one division of twenty at each end.
        near(two_sided(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 0.1);
        // U = 3 of five and five (R: wilcox.test(c(1,2,3,4,8), c(5,6,7,9,10))$p.value).
        near(two_sided(&[1.0, 2.0, 3.0, 4.0, 8.0], &[5.0, 6.0, 7.0, 9.0, 10.0]), 14.0 / 252.0);
        near(two_sided(&[1.0, 4.0], &[2.0, 3.0]), 1.0);
    }

    #[test]
    fn neither_order_nor_direction_matters() {
        let (a, b) = ([3.0, 1.0, 2.5], [2.0, 9.0, 7.0, 8.0]);
        assert_eq!(two_sided(&a, &b), two_sided(&b, &a));
        assert_eq!(two_sided(&a, &b), two_sided(&a.map(|x| -x), &b.map(|x| -x)));
    }

    #[test]
    fn ties_are_no_difference() {
        near(two_sided(&[1.0, 1.0, 1.0], &[1.0, 1.0, 1.0]), 1.0);
        near(two_sided(&[1.0, 1.0], &[2.0, 2.0]), 1.0 / 3.0);
    }

    #[test]
    fn few_values_show_no_significance() {
        near(least(3, 3), 0.1);
        near(least(1, 1), 1.0);
        assert!(least(5, 5).unwrap() < 0.05);
        assert_eq!(two_sided(&[], &[1.0]), None);
        assert_eq!((least(usize::MAX, 1), least(MOST, 1)), (None, None));
    }
}
