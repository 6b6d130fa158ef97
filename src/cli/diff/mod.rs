//! `icechunkfs diff`: what was changed in a mount, or what is not the same in two snapshots.
//!
//! Here are the words and the way to the answer; [`text`] and [`json`] say it, [`logs`] says what transaction logs do.

mod json;
mod logs;
mod text;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::args::{CommonArgs, LookArgs};
use super::open::Limits;
use super::virtual_args::VirtualArgs;
use super::{logging, open, print, print_json, working};
use crate::compare::{self, Count, NodeDifference, Wanted};
use crate::error::{Context, Error, Result};
use crate::format::snapshot::{Node, Snapshot};
use crate::reader::Reader;
use crate::storage::settings::Settings;

/// The two ways to call it.
pub const USAGE: &str = "icechunkfs diff [--json] MOUNTPOINT\n       icechunkfs diff [OPTIONS] REPO FROM TO";

/// `icechunkfs diff`
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// Where a branch is mounted: what differs is what is not committed. With FROM and TO, a repository: a path or a URL
    /// (s3://, gs://, az://, abfs://, https://, file://).
    #[arg(value_name = "MOUNTPOINT|REPO")]
    pub place: OsString,
    /// The snapshot that is compared with: a branch, a tag, an id, or one of them and ~N for N commits before it.
    #[arg(requires = "to")]
    pub from: Option<String>,
    /// The snapshot in which things are added, changed or gone. Neither needs to be an ancestor of the other.
    pub to: Option<String>,
    /// Show the lines of zarr.json that differ, laid out one member a line.
    #[arg(short, long, requires = "from", conflicts_with_all = ["stat", "logs", "json"])]
    pub patch: bool,
    /// Name each chunk, not only their number.
    #[arg(long, requires = "from")]
    pub chunks: bool,
    /// Only count.
    #[arg(long, requires = "from", conflicts_with_all = ["chunks", "logs"])]
    pub stat: bool,
    /// Read chunks that were written anew, and leave out those that have the same bytes as before. Without it a chunk is the
    /// same if it is in the same place. Chunks in files outside the repository are read as far as that is allowed.
    #[arg(long, requires = "from", conflicts_with = "logs")]
    pub content: bool,
    /// Show what the transaction logs of the commits after FROM up to TO say was touched, whatever came of it, as the Icechunk
    /// library does. FROM must be an ancestor of TO.
    #[arg(long, requires = "from")]
    pub logs: bool,
    /// Print JSON. Of two snapshots: {"from", "to", "nodes", "summary"}; each node has "path", "kind" (group or array), "what"
    /// (a list of added, removed, moved, changed, chunks) and, as it applies, "from" (its path before), "before" and "after"
    /// (its zarr.json), "chunks" ({"added", "changed", "removed"}, each with "count" and "bytes", changed with "bytes_before"
    /// too), with --chunks "coords". With --logs: {"from", "to", "new_groups", "new_arrays", "deleted_groups", "deleted_arrays",
    /// "updated_groups", "updated_arrays", "updated_chunks" ({PATH: [COORDS]}), "moved_nodes" ([{"from", "to"}]),
    /// "nodes_in_neither", "missing_logs"}.
    #[arg(long)]
    pub json: bool,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Chunks in other people's files.
    #[command(flatten)]
    pub virtuals: VirtualArgs,
    /// How to reach the repository. Last, since its heading goes for all that follows.
    #[command(flatten)]
    pub store: Settings,
}

/// Two snapshots and what is not the same in them.
struct Compared {
    old: Snapshot,
    new: Snapshot,
    nodes: Vec<NodeDifference>,
}

/// What differs, counted.
#[derive(Clone, Copy, Debug, Default)]
struct Summary {
    /// Groups and arrays, in this order.
    added: [u64; 2],
    removed: [u64; 2],
    moved: [u64; 2],
    changed: [u64; 2],
    chunks_added: Count,
    chunks_replaced: Count,
    chunks_replacing: Count,
    chunks_removed: Count,
}

/// Prints what differs.
pub fn run(arguments: &DiffArgs) -> Result<()> {
    let (Some(from), Some(to)) = (&arguments.from, &arguments.to) else {
        return working::diff(&LookArgs { mountpoint: PathBuf::from(&arguments.place), json: arguments.json });
    };
    logging::to_stderr(arguments.common.verbose);
    let repo = arguments.place.to_str().ok_or_else(|| Error::invalid("the repository's name is not UTF-8"))?;
    open::runtime()?.block_on(async {
        let repository = open::repository_with(repo, &arguments.store, &arguments.virtuals).await?;
        let (from, to) = (repository.find(from).await?.id, repository.find(to).await?.id);
        if arguments.logs {
            return logs::run(&repository, from, to, arguments).await;
        }
        let wanted = Wanted { coords: arguments.chunks, content: arguments.content };
        let limits = Limits::default();
        let limit = limits.of_snapshot()?;
        let (old, new) = (repository.snapshot(from, limit).await?, repository.snapshot(to, limit).await?);
        let budget = limits.budget((old.size() + new.size()) as u64)?;
        let reader = Reader::new(Arc::clone(repository.storage()), budget);
        let reader = Arc::new(reader.with_virtuals(Arc::clone(repository.virtuals())));
        let nodes = compare::snapshots(&reader, &old, &new, wanted).await;
        let nodes = nodes.context(|| repository.storage().location().to_owned())?;
        let compared = Compared { old, new, nodes };
        if arguments.json {
            return print_json(&json::of(&compared));
        }
        let text = if arguments.stat { text::summary(&compared) } else { text::of(&compared, arguments.patch) };
        print(&text)
    })
}

impl Compared {
    /// A node as it was and as it is.
    fn node(&self, difference: &NodeDifference) -> (Option<Node<'_>>, Option<Node<'_>>) {
        (difference.before.and_then(|at| self.old.node(at)), difference.after.and_then(|at| self.new.node(at)))
    }

    fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for difference in &self.nodes {
            let (before, after) = self.node(difference);
            let is_array = after.as_ref().or(before.as_ref()).is_some_and(Node::is_array);
            let count = |counts: &mut [u64; 2]| {
                let [groups, arrays] = counts;
                *if is_array { arrays } else { groups } += 1;
            };
            match (&before, &after) {
                (None, _) => count(&mut summary.added),
                (_, None) => count(&mut summary.removed),
                _ => {}
            }
            if difference.is_moved {
                count(&mut summary.moved);
            }
            if difference.is_changed {
                count(&mut summary.changed);
            }
            summary.chunks_added = summary.chunks_added.and(difference.added);
            summary.chunks_replaced = summary.chunks_replaced.and(difference.replaced);
            summary.chunks_replacing = summary.chunks_replacing.and(difference.replacing);
            summary.chunks_removed = summary.chunks_removed.and(difference.removed);
        }
        summary
    }
}
