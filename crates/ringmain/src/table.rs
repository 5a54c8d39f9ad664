//! Tables for people: with columns as wide as their content, and numbers on the right.

/// A table under construction.
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with these headings. Columns whose heading starts with `>` are set to the right.
    pub fn new(headings: &[&str]) -> Table {
        let right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let heading =
            headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
        Table { rows: vec![heading], right }
    }

    /// Adds a row; empty cells become `-`.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let filled = |cell: String| if cell.is_empty() { "-".to_owned() } else { cell };
        self.rows.push(cells.into_iter().map(filled).collect());
    }

    /// Whether there are no rows but the headings.
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    /// The table as lines.
    pub fn render(&self) -> String {
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        };
        let widths: Vec<usize> =
            (0..self.right.len()).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).zip(&self.right);
            let cells = cells.map(|((cell, width), right)| {
                if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["NAME", ">FRAMES", "STATE"]);
        assert!(table.is_empty());
        table.row(["vm-a", "7", ""].map(str::to_owned));
        table.row(["b", "12345678", "connected"].map(str::to_owned));
        let want = "NAME    FRAMES  STATE\nvm-a         7  -\nb     12345678  connected\n";
        assert_eq!(table.render(), want);
    }
}
