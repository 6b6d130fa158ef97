//! `icechunkfs ls`: lists groups and arrays with shape, stored chunks and bytes.

use clap::Args;
use serde::Serialize;

use super::output::{Lines, print_json_list};
use super::repo_args::{RefArgs, RepoArgs};
use super::table::Columns;
use super::view_args::ViewArgs;
use super::virtual_args::VirtualArgs;
use super::{ls_view, ls_virtual, open, shards};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace};

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// The group or array to list, or with --shards a chunk [default: the root].
    #[arg(index = 2, default_value = "")]
    pub(super) path: String,
    #[command(flatten)]
    pub(super) reference: RefArgs,
    /// List the inner chunks of shards instead: of an array, of all arrays of a group, or of one
    /// chunk. The indexes are checked; an invalid one is a failure. With --json a list of {"path",
    /// "bytes", "index": {"offset", "bytes", "location", "byte_order", "checksum"}, "grid",
    /// "inner_shape", "inner_chunks": [{"coords", "offset", "bytes"}], "faults"}; an inner chunk
    /// that is a shard also has "index" and the members after it. Offsets count from the beginning
    /// of the file.
    #[arg(long)]
    pub(super) shards: bool,
    /// List the files of the virtual chunks below PATH instead. With --json a list of {"location",
    /// "chunks", "bytes"}.
    #[arg(long = "virtual", conflicts_with_all = ["shards", "recursive", "view"])]
    files: bool,
    #[command(flatten)]
    pub(super) view: ViewArgs,
    /// Print a list of {"path", "kind", "shape", "chunks", "bytes"}; of a view a list of files,
    /// {"path", "kind", "bytes"}.
    #[arg(long)]
    pub(super) json: bool,
    /// List everything below, too.
    #[arg(short, long)]
    pub(super) recursive: bool,
    #[command(flatten)]
    pub(super) repo: RepoArgs,
    #[command(flatten)]
    pub(super) virtuals: VirtualArgs,
}

#[derive(Serialize)]
struct Row {
    path: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// Node to list, with the number and size of its chunks if it is an array.
type Listed = (NodeIndex, Option<(u64, u64)>);

/// Prints the nodes in a group, or one array.
pub(crate) fn run(arguments: &LsArgs) -> Result<()> {
    if arguments.shards {
        return shards::run(arguments);
    }
    if arguments.files {
        return ls_virtual::run(arguments);
    }
    if !arguments.view.options()?.is_native() {
        return ls_view::run(arguments);
    }
    let spec = arguments.reference.spec()?;
    open::run(async {
        let repository = arguments.repo.open().await?;
        let tree = open::tree(&repository, &spec, open::MemoryLimits::default()).await?;
        let found = node_at(&tree, &arguments.path).await;
        let start = open::or_ref(&repository, &arguments.path, found).await?;
        let mut listed: Vec<Listed> = Vec::new();
        for node in nodes(&tree, start, arguments.recursive) {
            listed.push((node, totals(&tree, node).await?));
        }
        if !arguments.json {
            return print_text(&tree, &listed);
        }
        // Paths of nested groups are long: no two rows are there at a time.
        let rows = async |print: &mut dyn FnMut(&Row) -> Result<()>| {
            listed.iter().try_for_each(|one| print(&row(&tree, *one)))
        };
        print_json_list(rows).await
    })
}

/// Returns the group or array at `path`.
pub(super) async fn node_at(tree: &Tree, path: &str) -> Result<NodeIndex> {
    let found = tree.resolve(path).await?;
    match tree.table().place(found.inode) {
        Some(TreePlace::Directory(node)) => Ok(node),
        _ => Err(Error::new(
            ErrorKind::InvalidInput,
            format!("`{path}` is not a group or array: `icechunkfs show` of the array above describes its chunks"),
        )),
    }
}

/// Returns the nodes to list: the children of a group, or everything below it; an array itself.
pub(super) fn nodes(tree: &Tree, start: NodeIndex, recursive: bool) -> Vec<NodeIndex> {
    let table = tree.table();
    let children = table.children(start);
    if recursive {
        table.subtree(start).collect()
    } else if table.array(start).is_some() {
        std::iter::once(start).chain(children.iter().copied()).collect()
    } else {
        children.to_vec()
    }
}

/// Returns the number and the bytes of the stored chunks of an array; none for a group.
pub(super) async fn totals(tree: &Tree, node: NodeIndex) -> Result<Option<(u64, u64)>> {
    let Some(chunks) = tree.chunks(node) else { return Ok(None) };
    chunks.totals().await.map(Some).context(|| format!("/{}", tree.table().path(node)))
}

fn row(tree: &Tree, (node, totals): Listed) -> Row {
    let path = format!("/{}", tree.table().path(node));
    let Some((chunks, bytes)) = totals else {
        let explicit = tree.zarr_json(node).is_some();
        let kind = if explicit { "group" } else { "implicit" };
        return Row { path, kind, shape: None, chunks: None, bytes: None };
    };
    let shape = tree.table().array(node).map(|array| array.shape.to_vec());
    Row { path, kind: "array", shape, chunks: Some(chunks), bytes: Some(bytes) }
}

fn print_text(tree: &Tree, listed: &[Listed]) -> Result<()> {
    let number = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
    let cells = |row: &Row| {
        let shape = row.shape.as_ref().map(|shape| format!("{shape:?}")).unwrap_or_default();
        [row.kind.to_owned(), shape, number(row.chunks), number(row.bytes)]
    };
    let head = ["kind", "shape", "chunks", "bytes"];
    let mut columns = Columns::new(&head, 2..4);
    listed.iter().for_each(|one| columns.fit(&cells(&row(tree, *one))));
    let mut out = Lines::new();
    out.line(format_args!("{}path", columns.padded(&head)))?;
    for one in listed {
        let row = row(tree, *one);
        out.line(format_args!("{}{}", columns.padded(&cells(&row)), row.path))?;
    }
    out.end()
}
