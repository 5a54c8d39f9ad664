//! Tables of demonstrations as text, and the mark of figures that others disturbed.

/// CPUs that others may take before a figure is marked.
const DISTURBED: f64 = 0.1;

/// The remark below a table with marked figures.
pub const REMARK: &str =
    "* others took more than a tenth of a CPU meanwhile: the figure is too low";

/// Whether a figure is marked, during which others took this number of CPUs.
pub fn is_disturbed(others: f64) -> bool {
    others > DISTURBED
}

/// The mark behind a figure.
pub fn mark(disturbed: bool) -> &'static str {
    if disturbed { "*" } else { "" }
}

/// Lines with columns as wide as they need to be, set to the right.
pub fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    };
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        for (cell, width) in row.iter().zip(widths) {
            text.push_str(&format!("  {cell:>width$}"));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let rows = [["a", "bcd"], ["12", "3"]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows), "   a  bcd\n  12    3\n");
        assert!(aligned::<0>(&[]).is_empty());
    }
}
