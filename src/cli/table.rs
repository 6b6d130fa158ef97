//! Columns of text.

use std::ops::Range;

/// Formats rows as lines of columns as wide as their contents. Columns in `right` are aligned right, all others left.
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
