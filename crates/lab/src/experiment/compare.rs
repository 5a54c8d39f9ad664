//! Two runs of an experiment, side by side.

use std::fmt::Write as _;

use super::results::Results;
use super::significance::{least, two_sided};
use super::statistics::{Summary, digits};
use super::{Figure, LabError, Record};

/// From which probability on a difference counts as more than chance.
const SIGNIFICANT: f64 = 0.05;

/// One figure of one point in both.
#[derive(Clone, Debug)]
struct Row {
    place: String,
    a: Summary,
    b: Summary,
    p: Option<f64>,
}

/// A table of what differs from `a` to `b`: medians, the change, and the probability that chance alone makes so much of it
/// (Mann-Whitney, two-sided, exact).
///
/// # Errors
/// When they are not of the same experiment and ground, or have no point in common.
pub fn table(a: &Record, b: &Record, figures: &[Figure]) -> Result<String, LabError> {
    let of = |record: &Record| (record.configuration.experiment.clone(), record.configuration.ground.name());
    if of(a) != of(b) {
        let ((a, on_a), (b, on_b)) = (of(a), of(b));
        return Err(LabError::Unlike(format!("{a} on {on_a} and {b} on {on_b} have nothing to compare")));
    }
    let mut text = differences(a, b);
    let mut rows = 0;
    for figure in figures {
        let found = compared(a, b, figure.name);
        rows += found.len();
        if !found.is_empty() {
            show(&mut text, figure, &found);
        }
    }
    match rows {
        0 => Err(LabError::Unlike("the two records have no point with figures in common".into())),
        _ => Ok(text + &footnote(a, b)),
    }
}

fn compared(a: &Record, b: &Record, figure: &str) -> Vec<Row> {
    let (left, right) = (Results::new(a), Results::new(b));
    let row = |point: &super::Point| {
        let of = |results: &Results| results.summary(&point.series, point.x, figure);
        let (a, b) = (of(&left)?, of(&right)?);
        let p = two_sided(&a.values, &b.values);
        Some(Row { place: point.to_string(), a, b, p })
    };
    a.configuration.points.iter().filter_map(row).collect()
}

/// What else than chance may make them differ.
fn differences(a: &Record, b: &Record) -> String {
    let mut text = String::new();
    let (one, other) = (&a.configuration, &b.configuration);
    if one.machine != other.machine {
        text.push_str("the machines differ\n");
    }
    for (name, version) in &one.versions {
        let theirs = other.versions.get(name).map_or("none", String::as_str);
        if theirs != version {
            let _ = writeln!(text, "{name}: {version}, and {theirs}");
        }
    }
    if one.seconds != other.seconds {
        let _ = writeln!(text, "each repetition measures {} s, and {} s", one.seconds, other.seconds);
    }
    text
}

fn show(text: &mut String, figure: &Figure, rows: &[Row]) {
    let width = rows.iter().map(|row| row.place.chars().count()).max().unwrap_or_default();
    let _ = writeln!(text, "\n{}, {}", figure.title, figure.unit);
    let _ = writeln!(text, "{:width$}  {:>20}  {:>20}  {:>8}  {:>7}  {:>7}", "", "A", "B", "change", "p", "n");
    for Row { place, a, b, p } in rows {
        let side = |side: &Summary| format!("{} ({}-{})", digits(side.median), digits(side.least), digits(side.most));
        let change = match a.median {
            0.0 => "-".into(),
            from => format!("{:+.1} %", (b.median / from - 1.0) * 100.0),
        };
        let mark = if p.is_some_and(|p| p < SIGNIFICANT) { " *" } else { "" };
        let p = p.map_or("-".into(), |p| format!("{p:.3}"));
        let n = format!("{}+{}", a.count(), b.count());
        let _ = writeln!(text, "{place:width$}  {:>20}  {:>20}  {change:>8}  {p:>7}  {n:>7}{mark}", side(a), side(b));
    }
}

fn footnote(a: &Record, b: &Record) -> String {
    let mut text =
        format!("\nmedians (range); * p < {SIGNIFICANT}: Mann-Whitney U, two-sided, exact; n: repetitions of each\n");
    let n = |record: &Record| record.configuration.rounds as usize;
    if let Some(p) = least(n(a), n(b)).filter(|p| *p >= SIGNIFICANT) {
        let _ =
            writeln!(text, "with {} and {} repetitions no p below {p:.3} is possible: measure more often", n(a), n(b));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::Ground;
    use super::super::record::tests::{empty, repetition};
    use super::*;

    const FIGURES: &[Figure] = &[Figure { name: "throughput", title: "throughput", unit: "Gb/s" }];

    fn record(values: &[f64]) -> Record {
        let mut record = empty();
        record.configuration.rounds = values.len() as u32;
        record.repetitions = (0..).zip(values).map(|(round, value)| repetition(0, round, *value)).collect();
        record
    }

    #[test]
    fn a_clear_difference_is_marked() {
        let (a, b) = (record(&[1.0, 1.1, 1.2, 1.3, 1.4]), record(&[2.4, 2.5, 2.6, 2.4, 2.5]));
        let table = table(&a, &b, FIGURES).unwrap();
        assert!(table.contains("+108.3 %") && table.contains("0.008") && table.contains("5+5 *"), "{table}");
    }

    #[test]
    fn a_few_repetitions_are_said_to_be_too_few() {
        let table = table(&record(&[1.0, 2.0, 3.0]), &record(&[4.0, 5.0, 6.0]), FIGURES).unwrap();
        assert!(table.contains("no p below 0.100 is possible") && !table.contains("3+3 *"), "{table}");
    }

    #[test]
    fn what_is_not_alike_is_refused() {
        let mut other = record(&[1.0]);
        other.configuration.ground = Ground::Qemu;
        assert!(matches!(table(&record(&[1.0]), &other, FIGURES), Err(LabError::Unlike(_))));
        assert!(matches!(table(&record(&[]), &record(&[]), FIGURES), Err(LabError::Unlike(_))));
    }
}
