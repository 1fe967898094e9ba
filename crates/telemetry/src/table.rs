//! Tables of text with aligned columns.

use std::fmt;

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Left, for text.
    Left,
    /// Right, for numbers.
    Right,
}

/// A table with aligned columns, two spaces apart, without borders.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns.
    #[must_use]
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            columns: columns.iter().map(|&(name, align)| (name.to_owned(), align)).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Missing cells are empty, and cells beyond the last column are dropped.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) -> &mut Self {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
        self
    }

    /// Returns whether the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let widths: Vec<usize> = (0..header.len())
            .map(|column| {
                let cells = std::iter::once(&header).chain(&self.rows);
                cells
                    .filter_map(|row| row.get(column))
                    .map(|cell| console::measure_text_width(cell))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                let gap = " ".repeat(width.saturating_sub(console::measure_text_width(cell)));
                match align {
                    Align::Left => line.extend([cell, gap.as_str(), "  "]),
                    Align::Right => line.extend([gap.as_str(), cell, "  "]),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_the_width_of_their_text() {
        let mut table = Table::new(&[("model", Align::Left), ("perplexity", Align::Right)]);
        table.row(["dense", "41.2"]).row(["routed 2×2", "9.87"]).row(["short"]);
        assert_eq!(
            table.to_string(),
            "model       perplexity\ndense             41.2\nrouted 2×2        9.87\nshort\n"
        );
    }
}
