//! Columns of text.

use std::ops::Range;

/// Formats rows as lines of columns as wide as their contents. Columns in `right` are aligned
/// right, all others left.
pub(super) fn lines(rows: &[Vec<String>], right: Range<usize>) -> Vec<String> {
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..).map_while(width).collect();
    let line = |row: &Vec<String>| {
        let padded = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            at if right.contains(&at) => format!("{cell:>width$}"),
            at if at + 1 == row.len() => cell.clone(),
            _ => format!("{cell:<width$}"),
        });
        padded.collect::<Vec<_>>().join("  ")
    };
    rows.iter().map(line).collect()
}

/// Columns before the last one, which is of any length, of rows that are printed one by one.
pub(super) struct Columns {
    widths: Vec<usize>,
    right: Range<usize>,
}

impl Columns {
    /// Creates columns that have room for `head`. Those in `right` are aligned right, all others
    /// left.
    pub(super) fn new(head: &[&str], right: Range<usize>) -> Self {
        let mut columns = Columns { widths: vec![0; head.len()], right };
        columns.fit(head);
        columns
    }

    /// Makes room for `row`.
    pub(super) fn fit<S: AsRef<str>>(&mut self, row: &[S]) {
        for (width, cell) in self.widths.iter_mut().zip(row) {
            *width = (*width).max(cell.as_ref().chars().count());
        }
    }

    /// Formats `row`, up to the beginning of the last column.
    pub(super) fn padded<S: AsRef<str>>(&self, row: &[S]) -> String {
        let cells = row.iter().zip(&self.widths).enumerate();
        let padded = cells.map(|(at, (cell, &width))| {
            let cell = cell.as_ref();
            if self.right.contains(&at) { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") }
        });
        padded.collect()
    }
}
