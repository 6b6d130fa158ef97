//! `icechunkfs ls --virtual`: lists the files outside the repository that have chunks of it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::ls::{self, LsArgs};
use super::open;
use super::output::{Lines, print_json_list};
use super::table::Columns;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::Meter;
use icechunkfs_base::printable;

/// Bytes of memory that a file takes, besides its location.
const FILE_COST: u64 = 128;

#[derive(Serialize)]
struct Row<'a> {
    location: &'a str,
    chunks: u64,
    bytes: u64,
}

/// Prints the files with virtual chunks of an array, or of all arrays in a group.
pub(super) fn run(arguments: &LsArgs) -> Result<()> {
    let spec = arguments.reference.spec()?;
    open::run(async {
        let repository = arguments.repo.open().await?;
        let tree = open::tree(&repository, &spec, open::MemoryLimits::default()).await?;
        let found = ls::node_at(&tree, &arguments.path).await;
        let start = open::or_ref(&repository, &arguments.path, found).await?;
        let mut meter = Meter::new("the files with virtual chunks");
        let mut files: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        tree.each_virtual(start, |chunk| {
            let cost = FILE_COST + chunk.location.len() as u64;
            let (chunks, bytes) = files.entry(chunk.location).or_default();
            if *chunks == 0 {
                meter.count(cost)?;
            }
            *chunks += 1;
            *bytes = bytes.saturating_add(chunk.length);
            Ok(())
        })
        .await?;
        let rows = || files.iter().map(|(location, (chunks, bytes))| Row { location, chunks: *chunks, bytes: *bytes });
        if arguments.json {
            return print_json_list(async |print| rows().try_for_each(|row| print(&row))).await;
        }
        print_text(rows)
    })
}

fn print_text<'a, R: Iterator<Item = Row<'a>>>(rows: impl Fn() -> R) -> Result<()> {
    let cells = |row: &Row<'_>| [row.chunks.to_string(), row.bytes.to_string()];
    let head = ["chunks", "bytes"];
    let mut columns = Columns::new(&head, 0..2);
    rows().for_each(|row| columns.fit(&cells(&row)));
    let mut out = Lines::new();
    out.line(format_args!("{}file", columns.padded(&head)))?;
    for row in rows() {
        out.line(format_args!("{}{}", columns.padded(&cells(&row)), printable::line(row.location)))?;
    }
    out.end()
}
