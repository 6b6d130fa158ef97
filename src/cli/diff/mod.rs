//! `icechunkfs diff`: the uncommitted changes in a mount, or the differences between two snapshots.
//!
//! This module has the arguments and computes the differences; [`text`] and [`json`] print them,
//! [`values`] compares elements, [`logs`] prints transaction logs.

mod json;
mod logs;
mod text;
#[cfg(feature = "netcdf")]
mod values;
#[cfg(not(feature = "netcdf"))]
#[path = "no_values.rs"]
mod values;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use clap::Args;

use self::values::Outcome;
use super::control_client::MountpointArgs;
use super::mount_options::parse_root;
use super::open::MemoryLimits;
use super::virtual_args::VirtualArgs;
use super::{control_client, open, print};
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_format::format::snapshot::{Node, Snapshot};
use icechunkfs_repo::compare::scope::ComparisonScope;
use icechunkfs_repo::compare::{self, ChunkCounts, CompareOptions, NodeDifference};
use icechunkfs_repo::reader::Reader;
use icechunkfs_store::storage::settings::Settings;
use icechunkfs_working::operations::request;

/// The two forms of usage.
pub(crate) const USAGE: &str =
    "icechunkfs diff [--json] [MOUNTPOINT]\n       icechunkfs diff [OPTIONS] REPO FROM TO [PATH]";

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The mountpoint of a branch, to show its uncommitted changes [default: the mount of the
    /// current directory]. With FROM and TO, a repository: a path or a URL.
    #[arg(value_name = "MOUNTPOINT|REPO")]
    place: Option<OsString>,
    /// The old snapshot: a branch, a tag, an id, or an earlier commit such as main~2.
    #[arg(requires = "to")]
    from: Option<String>,
    /// The new snapshot. Neither needs to be an ancestor of the other.
    to: Option<String>,
    /// Show only this node and those below it, by its path in either snapshot. Moves are followed.
    #[arg(value_parser = parse_root, conflicts_with = "logs")]
    path: Option<String>,
    /// Show the lines of zarr.json that differ, one member per line.
    #[arg(short, long, requires = "from", conflicts_with_all = ["stat", "logs", "json"])]
    patch: bool,
    /// List each chunk, not only their number.
    #[arg(long, requires = "from")]
    chunks: bool,
    /// Show only counts.
    #[arg(long, requires = "from", conflicts_with_all = ["chunks", "logs"])]
    stat: bool,
    /// Read chunks that were written again, and leave out those with the same bytes. Without it,
    /// only chunks in the same place are the same. Chunks outside the repository are read if that
    /// is allowed.
    #[arg(long, requires = "from", conflicts_with = "logs")]
    content: bool,
    /// Decode the chunks that differ, and show for each array how many elements differ, the largest
    /// difference, and the first ten. Chunks outside the repository are read if that is allowed.
    #[arg(long, requires = "from", conflicts_with_all = ["stat", "logs"])]
    values: bool,
    /// Show everything that the transaction logs of the commits after FROM up to TO list as
    /// changed, as the Icechunk library does. FROM must be an ancestor of TO.
    #[arg(long, requires = "from")]
    logs: bool,
    /// Print JSON. For two snapshots: {"from", "to", "nodes", "summary"}; each node has "path",
    /// "kind" (group or array), "what" (a list of added, removed, moved, changed, chunks) and,
    /// where it applies, "from" (its path before), "before" and "after" (its zarr.json), "chunks"
    /// ({"added", "changed", "removed"}, each with "count" and "bytes", changed also with
    /// "bytes_before"), with --chunks "coords", with --values "values" ({"compared", "differing",
    /// "largest", "fill_value_differs", "codecs_differ", "first" (a list of "index", "before",
    /// "after")}, or {"not_compared": REASON}). With --logs: {"from", "to", "new_groups",
    /// "new_arrays", "deleted_groups", "deleted_arrays", "updated_groups", "updated_arrays",
    /// "updated_chunks" ({PATH: [COORDS]}), "moved_nodes" ([{"from", "to"}]), "nodes_in_neither",
    /// "missing_logs"}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    virtuals: VirtualArgs,
    #[command(flatten)]
    store: Settings,
}

/// Two snapshots and their differences.
struct Compared {
    old: Snapshot,
    new: Snapshot,
    nodes: Metered<Vec<NodeDifference>>,
    /// Results of comparing values, by the position of the array in `nodes`.
    values: BTreeMap<usize, Outcome>,
}

/// Counts of differences.
#[derive(Clone, Copy, Debug, Default)]
struct Summary {
    /// Groups and arrays, in this order.
    added: [u64; 2],
    removed: [u64; 2],
    moved: [u64; 2],
    changed: [u64; 2],
    chunks: ChunkCounts,
}

/// Prints the differences.
pub(crate) fn run(arguments: &DiffArgs) -> Result<()> {
    let (Some(from), Some(to)) = (&arguments.from, &arguments.to) else {
        let mount = MountpointArgs { mountpoint: arguments.place.as_ref().map(Into::into), json: arguments.json };
        return control_client::run(&mount, &request::Command::Diff);
    };
    let repo = arguments
        .place
        .as_deref()
        .and_then(OsStr::to_str)
        .ok_or_else(|| Error::invalid("the repository's name is not UTF-8"))?;
    open::run(async {
        let repository = arguments.virtuals.open(repo, &arguments.store).await?;
        let from = repository.resolve_revision(from).await?.id;
        let to = repository.resolve_revision(to).await?.id;
        if arguments.logs {
            return logs::run(&repository, from, to, arguments).await;
        }
        let wanted = CompareOptions { coords: arguments.chunks, content: arguments.content };
        let limits = MemoryLimits::default();
        let limit = limits.max_snapshot_size()?;
        let old = repository.snapshot(from, limit).await?;
        let new = repository.snapshot(to, limit).await?;
        let budget = limits.budget((old.size() + new.size()) as u64)?;
        let reader = Reader::new(Arc::clone(repository.storage()), budget);
        let reader = Arc::new(reader.with_virtuals(repository.virtuals().await));
        let scope = match &arguments.path {
            Some(path) => ComparisonScope::of(&format!("/{path}"), &old, &new)
                .context(|| repository.storage().location().to_owned())?,
            None => ComparisonScope::default(),
        };
        let nodes = compare::snapshots(&reader, &old, &new, wanted, &scope).await;
        let nodes = nodes.context(|| repository.storage().location().to_owned())?;
        let mut compared = Compared { old, new, nodes, values: BTreeMap::new() };
        if arguments.values {
            compared.values =
                values::compare(&reader, &compared).await.context(|| repository.storage().location().to_owned())?;
        }
        if arguments.json {
            return json::print(&compared);
        }
        if arguments.stat {
            return print(&text::summary(&compared));
        }
        text::print(&compared, arguments.patch)
    })
}

impl Compared {
    /// Returns a node before and after.
    fn node(&self, difference: &NodeDifference) -> (Option<Node<'_>>, Option<Node<'_>>) {
        (difference.before.and_then(|at| self.old.node(at)), difference.after.and_then(|at| self.new.node(at)))
    }

    fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for difference in &*self.nodes {
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
            summary.chunks = summary.chunks.and(difference.chunks);
        }
        summary
    }
}
