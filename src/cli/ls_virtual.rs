//! `icechunkfs ls --virtual`: lists the files outside the repository that chunks refer to.

use std::collections::BTreeMap;

use serde::Serialize;

use super::ls::{self, LsArgs};
use super::open;
use super::output::{Lines, print_json_list};
use super::table::Columns;
use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_base::printable;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeIndex;

/// Bytes of memory that a file takes, besides its location.
const FILE_COST: u64 = 128;

/// Files by their locations, each with the number and the bytes of the chunks that it has.
type Files = BTreeMap<String, (u64, u64)>;

#[derive(Serialize)]
struct Row<'a> {
    location: &'a str,
    chunks: u64,
    bytes: u64,
}

/// Prints the files that chunks of an array, or of all arrays in a group, refer to.
pub(super) fn run(arguments: &LsArgs) -> Result<()> {
    let spec = arguments.reference.spec()?;
    open::run(async {
        let repository = arguments.repo.open().await?;
        let tree = open::tree(&repository, &spec, open::MemoryLimits::default()).await?;
        let found = ls::node_at(&tree, &arguments.path).await;
        let start = open::or_ref(&repository, &arguments.path, found).await?;
        let mut meter = Meter::new("the files that chunks refer to");
        let mut files = Files::new();
        for node in tree.table().subtree(start) {
            collect(&tree, node, &mut files, &mut meter).await.context(|| format!("/{}", tree.table().path(node)))?;
        }
        let rows = || files.iter().map(|(location, (chunks, bytes))| Row { location, chunks: *chunks, bytes: *bytes });
        if arguments.json {
            return print_json_list(async |print| rows().try_for_each(|row| print(&row))).await;
        }
        print_text(rows)
    })
}

/// Adds the files of the chunks of one array.
async fn collect(tree: &Tree, node: NodeIndex, files: &mut Files, meter: &mut Meter) -> Result<()> {
    let Some(chunks) = tree.chunks(node) else { return Ok(()) };
    let mut failed = Ok(());
    let mut add = |location: String, length: u64| {
        if !files.contains_key(&location) {
            meter.count(FILE_COST + location.len() as u64)?;
        }
        let (chunks, bytes) = files.entry(location).or_default();
        *chunks += 1;
        *bytes = bytes.saturating_add(length);
        Ok(())
    };
    chunks
        .each(|refs, at| {
            if failed.is_err() {
                return;
            }
            failed = match refs.payload(at) {
                Ok(ChunkPayload::Virtual { location, length, .. }) => add(location, length),
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
        })
        .await?;
    failed
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
