//! `icechunkfs show`: describes one group or array.

use std::fmt::Write;

use clap::Args;
use serde_json::{Map, Value, json};

use super::repo_args::{RefArgs, RepoArgs};
use super::{ls, open, print, print_json};
use icechunkfs_base::error::{Context, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_base::times::{format_local_time, format_time};
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::json;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_repo::compare::path_history;
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::refs::RefSpec;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeIndex;

/// Commits of a repository of version 1 that are searched for the last change: each is a request.
const SEARCHED_V1: usize = 100;
/// Longest value of an attribute in the text, in characters.
const LONGEST: usize = 100;
/// Width of the names of what is described.
const NAMES: usize = 13;

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The group or array [default: the root].
    #[arg(index = 2, default_value = "")]
    path: String,
    #[command(flatten)]
    reference: RefArgs,
    /// Print {"path", "kind", "zarr_json", "chunks", "all_chunks", "bytes", "last_change"}: the
    /// stored chunks, those of the whole grid, bytes, and the commit ({"id", "message",
    /// "written_at"}) that changed it last, null if it is not known.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Description of a node.
struct Shown {
    path: String,
    document: Value,
    /// Stored chunks, all chunks of the grid, and bytes of an array.
    chunks: Option<(u64, u64, u64)>,
    /// Groups and arrays in a group.
    members: (u64, u64),
    last_change: Option<SnapshotInfo>,
}

/// Describes a node.
pub(crate) fn run(arguments: &ShowArgs) -> Result<()> {
    let spec = arguments.reference.spec()?;
    open::run(async {
        let repository = arguments.repo.open().await?;
        let tree = open::tree(&repository, &spec, open::MemoryLimits::default()).await?;
        let found = ls::node_at(&tree, &arguments.path).await;
        let node = open::or_ref(&repository, &arguments.path, found).await?;
        let path = format!("/{}", tree.table().path(node));
        let mut meter = Meter::new("the document of a node");
        let document = match tree.zarr_json(node) {
            Some(bytes) => json::parse::<Value>(bytes, &mut meter).context(|| format!("{path}: zarr.json"))?,
            None => Value::Null,
        };
        let chunks = match (ls::totals(&tree, node).await?, tree.table().array(node)) {
            (Some((stored, bytes)), Some(array)) => {
                let all = array.grid.iter().fold(1_u64, |all, count| all.saturating_mul(u64::from(*count)));
                Some((stored, all, bytes))
            }
            _ => None,
        };
        let last_change = last_change(&repository, &spec, &path).await?;
        let shown = Shown { members: members(&tree, node), path, document, chunks, last_change };
        if arguments.json { print_json(&shown.as_json()) } else { print(&shown.as_text()) }
    })
}

/// Counts the groups and arrays right in a node.
fn members(tree: &Tree, node: NodeIndex) -> (u64, u64) {
    let children = tree.table().children(node);
    let arrays = children.iter().filter(|child| tree.table().array(**child).is_some()).count();
    ((children.len() - arrays) as u64, arrays as u64)
}

/// Returns the newest commit that changed the node at `path`, or one below it.
async fn last_change(repository: &Repository, spec: &RefSpec, path: &str) -> Result<Option<SnapshotInfo>> {
    let tip = repository.resolve(spec).await?;
    let most = if repository.version() == SpecVersion::V1 { SEARCHED_V1 } else { usize::MAX };
    let history = repository.ancestors(tip, most).await?;
    let mut newest = None;
    let touched = path_history::touches(repository, &history, path, None, 1, async |id, _| {
        newest = Some(repository.commit(id).await?);
        Ok(())
    });
    match touched.await {
        // A part of the history does not have it, or a log is gone.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => Ok(None),
        touched => touched.map(|()| newest),
    }
}

impl Shown {
    fn kind(&self) -> &'static str {
        match (&self.chunks, &self.document) {
            (Some(_), _) => "array",
            (None, Value::Null) => "implicit",
            (None, _) => "group",
        }
    }

    fn as_json(&self) -> Value {
        let (chunks, all, bytes) = match self.chunks {
            Some((chunks, all, bytes)) => (Some(chunks), Some(all), Some(bytes)),
            None => (None, None, None),
        };
        let last = self.last_change.as_ref().map(|commit| {
            let written_at = format_time(commit.flushed_at);
            json!({"id": commit.id, "message": commit.message(), "written_at": written_at})
        });
        json!({
            "path": self.path,
            "kind": self.kind(),
            "zarr_json": self.document,
            "chunks": chunks,
            "all_chunks": all,
            "bytes": bytes,
            "last_change": last,
        })
    }

    fn as_text(&self) -> String {
        let member = |name: &str| self.document.get(name).filter(|value| !value.is_null());
        let mut text = printable::line(&self.path);
        let mut line = |name: &str, value: String| {
            let _ = write!(text, "\n  {name:<NAMES$} {value}");
        };
        match self.kind() {
            "array" => line("array of", member("data_type").map(named).unwrap_or_default()),
            "group" => line("group of", self.counted()),
            _ => line("directory of", format!("{}, without zarr.json", self.counted())),
        }
        if let Some(shape) = member("shape") {
            let names = member("dimension_names").map(|names| format!("  {}", list(names))).unwrap_or_default();
            line("shape", format!("{}{names}", list(shape)));
        }
        if let Some((stored, all, bytes)) = self.chunks {
            let chunk = self.document.pointer("/chunk_grid/configuration/chunk_shape").map(list).unwrap_or_default();
            line(
                "chunks",
                format!("{chunk}  {stored} of {} stored, {}", size::counted(all, "chunk"), size::text(bytes)),
            );
        }
        if let Some(codecs) = member("codecs").and_then(Value::as_array) {
            line("codecs", codecs.iter().map(named).collect::<Vec<_>>().join(", "));
        }
        if let Some(value) = member("fill_value") {
            line("fill value", short(value));
        }
        let empty = Map::new();
        let attributes = member("attributes").and_then(Value::as_object).unwrap_or(&empty);
        for (at, (name, value)) in attributes.iter().enumerate() {
            let name = printable::line(name);
            line(if at == 0 { "attributes" } else { "" }, format!("{name}: {}", short(value)));
        }
        if let Some(commit) = &self.last_change {
            let title = printable::line(commit.title().trim());
            line("last change", format!("{}  {}  {title}", commit.id, format_local_time(commit.flushed_at)));
        }
        text + "\n"
    }

    fn counted(&self) -> String {
        let (groups, arrays) = self.members;
        format!("{}, {}", size::counted(groups, "group"), size::counted(arrays, "array"))
    }
}

/// Formats a data type or a codec: its name, with its short settings.
fn named(value: &Value) -> String {
    let Some(name) = value.get("name").and_then(Value::as_str) else {
        return value.as_str().map_or_else(|| short(value), printable::line);
    };
    let settings = value.get("configuration").and_then(Value::as_object).into_iter().flatten();
    let simple = settings.filter(|(_, value)| !value.is_object() && !value.is_array());
    let settings: Vec<String> =
        simple.map(|(name, value)| format!("{}: {}", printable::line(name), short(value))).collect();
    let name = printable::line(name);
    if settings.is_empty() { name } else { format!("{name} ({})", settings.join(", ")) }
}

fn list(value: &Value) -> String {
    match value.as_array() {
        Some(items) => format!("[{}]", items.iter().map(short).collect::<Vec<_>>().join(", ")),
        None => short(value),
    }
}

/// Formats a value in one line of limited length; text without quotes.
fn short(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut shown: String = text.chars().take(LONGEST).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    printable::line(&shown)
}
