//! Two runs of an experiment, side by side.

use std::fmt::Write as _;

use super::place::place;
use super::results::Results;
use super::significance::{SIGNIFICANT, least, two_sided};
use super::{About, Figure, LabError, Point, Record};
use crate::statistics::{Centre, Summary};

/// One figure of one point in both.
#[derive(Clone, Debug)]
struct Row {
    place: String,
    a: Summary,
    b: Summary,
    p: Option<f64>,
    /// Others were at work in all repetitions of one of them.
    disturbed: bool,
}

impl Row {
    /// Whether the difference is significant.
    fn significant(&self) -> bool {
        !self.disturbed && self.p.is_some_and(|p| p < SIGNIFICANT)
    }

    /// Whether this number of repetitions can show significance at all.
    fn can_be(&self) -> bool {
        least(self.a.count(), self.b.count()).is_some_and(|p| p < SIGNIFICANT)
    }

    fn mark(&self) -> &'static str {
        match (self.disturbed, self.significant()) {
            (true, _) => " disturbed",
            (false, true) => " *",
            (false, false) => "",
        }
    }
}

/// A table of what differs from `a` to `b`: medians, the change, and the probability that chance
/// alone makes so much of it (Mann-Whitney, two-sided, exact).
///
/// # Errors
/// When they are not of the same experiment and platform, or have no point in common.
pub fn table(a: &Record, b: &Record, about: &About) -> Result<String, LabError> {
    let of = |record: &Record| {
        (record.configuration.experiment.clone(), record.configuration.platform.name())
    };
    if of(a) != of(b) {
        let ((a, on_a), (b, on_b)) = (of(a), of(b));
        return Err(LabError::Unlike(format!(
            "{a} on {on_a} and {b} on {on_b} have nothing to compare"
        )));
    }
    let mut text = differences(a, b);
    let mut rows = Vec::new();
    for figure in about.figures {
        let found = compared(a, b, (about, figure));
        if !found.is_empty() {
            show(&mut text, figure, &found);
        }
        rows.extend(found);
    }
    match rows.as_slice() {
        [] => Err(LabError::Unlike("the two records have no point with figures in common".into())),
        rows => Ok(text + &footnote(rows)),
    }
}

fn compared(a: &Record, b: &Record, (about, figure): (&About, &Figure)) -> Vec<Row> {
    let (left, right) = (Results::new(a), Results::new(b));
    let row = |(number, point): (usize, &Point)| {
        let (other, _) = right.points(&point.series).find(|(_, other)| other.x == point.x)?;
        let (a, b) = (left.at(number, figure.name)?, right.at(other, figure.name)?);
        let p = two_sided(&a.values, &b.values);
        let place = format!("{}, {}", point.series, place(about, &left, number));
        Some(Row { place, a, b, p, disturbed: left.disturbed(number) || right.disturbed(other) })
    };
    a.configuration.points.iter().enumerate().filter_map(row).collect()
}

/// Differences between the runs other than chance.
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
    for (name, version) in
        other.versions.iter().filter(|(name, _)| !one.versions.contains_key(*name))
    {
        let _ = writeln!(text, "{name}: none, and {version}");
    }
    if one.size != other.size {
        let _ =
            writeln!(text, "one is a {} run, and one a {} one", one.size.name(), other.size.name());
    }
    if one.seconds != other.seconds {
        let _ =
            writeln!(text, "each repetition measures {} s, and {} s", one.seconds, other.seconds);
    }
    for point in &one.points {
        let same =
            other.points.iter().find(|other| (&other.series, other.x) == (&point.series, point.x));
        if same.is_some_and(|same| same.settings != point.settings) {
            let _ = writeln!(text, "{point}: the settings differ");
        }
    }
    text
}

fn show(text: &mut String, figure: &Figure, rows: &[Row]) {
    let width = rows.iter().map(|row| row.place.chars().count()).max().unwrap_or_default();
    let _ = writeln!(text, "\n{}, {}", figure.title, figure.unit);
    let _ = writeln!(
        text,
        "{:width$}  {:>20}  {:>20}  {:>8}  {:>7}  {:>7}",
        "", "A", "B", "change", "p", "n"
    );
    for row in rows {
        let Row { place, a, b, p, .. } = row;
        let change = match a.median {
            0.0 => "-".into(),
            from => format!("{:+.1} %", (b.median / from - 1.0) * 100.0),
        };
        let p = p.map_or("-".into(), |p| format!("{p:.3}"));
        let n = format!("{}+{}", a.count(), b.count());
        let [a, b] = [a, b].map(|side| side.said(Centre::Median));
        let _ = writeln!(
            text,
            "{place:width$}  {a:>20}  {b:>20}  {change:>8}  {p:>7}  {n:>7}{}",
            row.mark()
        );
    }
}

fn footnote(rows: &[Row]) -> String {
    let mut text = format!(
        "\nmedians (range); * p < {SIGNIFICANT}: Mann-Whitney U, two-sided, exact; n: repetitions that count; \
        disturbed: others took CPU time in all of them\n"
    );
    let count = |of: fn(&Row) -> bool| rows.iter().filter(|row| of(row)).count();
    let (able, marked) = (count(|row| row.can_be() && !row.disturbed), count(Row::significant));
    if able > 0 {
        let chance = able as f64 * SIGNIFICANT;
        let _ = writeln!(
            text,
            "{marked} of {able} are marked; if nothing differed, chance would mark up to {chance:.1} of them"
        );
    }
    let few = count(|row| !row.can_be());
    if few > 0 {
        let _ = writeln!(
            text,
            "{few} of {} have too few repetitions for a p below {SIGNIFICANT}: measure more often",
            rows.len()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::Plot;
    use super::super::record::tests::{ABOUT as BLANK, empty, repetition};
    use super::super::{Platform, Size};
    use super::*;
    use crate::plot::{Axis, Shape};

    const ABOUT: About = About {
        figures: &[Figure { name: "throughput", title: "throughput", unit: "Gb/s" }],
        plots: &[Plot {
            name: "",
            title: "",
            shape: Shape::Columns,
            x: Axis { title: "", log: false, labels: &["none", "1 stream"] },
            y: Axis::linear(""),
            figures: &["throughput"],
        }],
        ..BLANK
    };

    fn record(values: &[f64]) -> Record {
        let mut record = empty();
        record.configuration.rounds = values.len() as u32;
        record.repetitions =
            (0..).zip(values).map(|(round, value)| repetition(0, round, *value)).collect();
        record
    }

    #[test]
    fn a_clear_difference_is_marked() {
        let (a, b) = (record(&[1.0, 1.1, 1.2, 1.3, 1.4]), record(&[2.4, 2.5, 2.6, 2.4, 2.5]));
        let table = table(&a, &b, &ABOUT).unwrap();
        assert!(
            table.contains("+108.3 %") && table.contains("0.008") && table.contains("5+5 *"),
            "{table}"
        );
        assert!(
            table.contains("one, 1 stream")
                && table.contains("1 of 1 are marked")
                && !table.contains("differ\n"),
            "{table}"
        );
    }

    #[test]
    fn too_few_repetitions_are_reported() {
        let table = table(&record(&[1.0, 2.0, 3.0]), &record(&[4.0, 5.0, 6.0]), &ABOUT).unwrap();
        assert!(
            table.contains("1 of 1 have too few repetitions") && !table.contains("3+3 *"),
            "{table}"
        );
        // The options of a record are not compared, only what was in effect.
        let mut asked = record(&[1.0, 2.0, 3.0]);
        asked.configuration.rounds = u32::MAX;
        assert!(self::table(&asked, &asked, &ABOUT).unwrap().contains("3+3"));
    }

    #[test]
    fn disturbed_points_show_no_difference() {
        let (a, mut b) = (record(&[1.0, 1.1, 1.2, 1.3, 1.4]), record(&[2.4, 2.5, 2.6, 2.4, 2.5]));
        b.repetitions.iter_mut().for_each(|one| one.disturbed = true);
        let table = table(&a, &b, &ABOUT).unwrap();
        assert!(table.contains("5+5 disturbed") && !table.contains("5+5 *"), "{table}");
    }

    #[test]
    fn differences_in_the_configuration_are_reported() {
        let (a, mut b) = (record(&[1.0]), record(&[1.0]));
        b.configuration.size = Size::Full;
        b.configuration.points[0] = Point::new("one", 1).with("queues", 2);
        let table = table(&a, &b, &ABOUT).unwrap();
        assert!(
            table.contains("a tiny run, and one a full one")
                && table.contains("one, 1: the settings differ"),
            "{table}"
        );
    }

    #[test]
    fn different_configurations_are_not_compared() {
        let mut other = record(&[1.0]);
        other.configuration.platform = Platform::Qemu;
        assert!(matches!(table(&record(&[1.0]), &other, &ABOUT), Err(LabError::Unlike(_))));
        assert!(matches!(table(&record(&[]), &record(&[]), &ABOUT), Err(LabError::Unlike(_))));
    }
}
