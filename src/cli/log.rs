//! `icechunkfs log`: prints or draws the history of a snapshot.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, ColorChoice};
use serde::Serialize;
use serde_json::{Map, Value};

use super::graph::terminal::TerminalStyle;
use super::mount_options::parse_root;
use super::repo_args::{RefArgs, RepoArgs};
use super::{graph, open, print_raw, print_result};
use crate::compare::path_history::{self, Region};
use crate::error::{Error, Result};
use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::printable;
use crate::repo::refs::{DEFAULT_BRANCH, Refs};
use crate::times::format_time;

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Show only commits that touched this node, or one below it. It is followed through moves; a path that was deleted is found, too.
    #[arg(index = 2, value_name = "PATH", value_parser = parse_root, conflicts_with_all = ["all", "graph", "svg"])]
    path: Option<String>,
    /// Of the array PATH, show only commits that touched chunks at these positions of the chunk grid, such as 0:10,: or 3,2:5.
    #[arg(long, value_name = "RANGES", requires = "path", value_parser = parse_region)]
    chunks: Option<Ranges>,
    #[command(flatten)]
    pub(super) reference: RefArgs,
    /// Show the commits of all branches and tags. Without --graph or --svg, each branch or tag follows the other.
    #[arg(long, conflicts_with_all = ["branch", "tag", "snapshot", "as_of"])]
    all: bool,
    /// Draw the commits and their parents, with branches and tags.
    #[arg(long)]
    graph: bool,
    /// Draw them as a picture (SVG).
    #[arg(long, conflicts_with = "graph")]
    svg: bool,
    /// Write the picture into this file instead of standard output.
    #[arg(short, long, value_name = "FILE", requires = "svg")]
    output: Option<PathBuf>,
    /// Use colors in --graph: auto (on a terminal), always or never.
    #[arg(long, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
    /// Print a list of {"id", "parent_id", "message", "written_at", "metadata"}; with PATH also "path", as the node was called then, with --all "refs": ["branch/NAME", ...,
    /// "tag/NAME", ...].
    #[arg(long, conflicts_with_all = ["graph", "svg"])]
    json: bool,
    /// Show at most this many commits.
    #[arg(short = 'n', value_name = "N")]
    count: Option<usize>,
    #[command(flatten)]
    repo: RepoArgs,
}

#[derive(Serialize)]
struct Commit {
    id: ObjectId,
    parent_id: Option<ObjectId>,
    message: String,
    written_at: String,
    metadata: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refs: Option<Vec<String>>,
    /// Path of the node then.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

/// Ranges of positions in the chunk grid.
#[derive(Clone, Debug)]
pub(crate) struct Ranges(Region);

/// Parses ranges of chunks, one for each dimension: `N`, `A:B` without B, or `:` for all.
fn parse_region(text: &str) -> Result<Ranges> {
    let wrong = || Error::invalid(format!("`{text}` is no list of ranges of chunks, such as 0:10,: or 3,2:5"));
    let number = |text: &str, otherwise: u32| match text.trim() {
        "" => Ok(otherwise),
        text => text.parse::<u32>().map_err(|_| wrong()),
    };
    let range = |part: &str| match part.split_once(':') {
        Some((from, to)) => Ok(number(from, 0)?..number(to, u32::MAX)?),
        None if part.trim().is_empty() => Err(wrong()),
        None => number(part, 0).map(|at| at..at.saturating_add(1)),
    };
    text.split(',').map(range).collect::<Result<Region>>().map(Ranges)
}

/// Prints the history, newest first, or draws it.
pub(crate) fn run(arguments: &LogArgs) -> Result<()> {
    let spec = arguments.reference.spec()?;
    let limit = arguments.count.unwrap_or(usize::MAX);
    let is_drawn = arguments.graph || arguments.svg;
    let runtime = open::runtime()?;
    let repository = runtime.block_on(arguments.repo.open())?;
    let refs = match arguments.all || is_drawn {
        true => runtime.block_on(repository.refs())?,
        false => Refs::default(),
    };
    let mut paths = Vec::new();
    let history = runtime.block_on(async {
        if arguments.all {
            return repository.histories(refs.branches.values().chain(refs.tags.values()).copied()).await;
        }
        let tip = repository.resolve(&spec).await?;
        if let Some(path) = &arguments.path {
            let history = repository.history(tip, usize::MAX).await?;
            let region = arguments.chunks.as_ref().map(|ranges| &ranges.0);
            let touches = path_history::touches(&repository, &history, &format!("/{path}"), region, limit).await?;
            paths = touches.iter().map(|touch| touch.path.clone()).collect();
            return Ok(touches.into_iter().map(|touch| touch.commit).collect());
        }
        // One commit more than is drawn: the last line leads to it.
        repository.history(tip, limit.saturating_add(usize::from(is_drawn))).await
    })?;
    if is_drawn {
        let main = refs.branches.get(DEFAULT_BRANCH).copied();
        let commits = graph::with_labels(history, &refs);
        let rows = graph::layout::rows(&commits, main, limit);
        if arguments.svg {
            let of = if arguments.all { "all branches and tags".to_owned() } else { spec.to_string() };
            let title = format!("{}: {of}", repository.storage().location());
            return write_picture(&graph::svg::draw(&commits, &rows, &title), arguments.output.as_deref());
        }
        return print_raw(graph::terminal::draw(&commits, &rows, terminal_style(arguments.color)).as_bytes());
    }
    let mut names: BTreeMap<ObjectId, Vec<String>> = BTreeMap::new();
    for (kind, refs) in [("branch", &refs.branches), ("tag", &refs.tags)] {
        refs.iter().for_each(|(name, id)| names.entry(*id).or_default().push(format!("{kind}/{name}")));
    }
    let mut paths = paths.into_iter();
    let commit = |info: SnapshotInfo| Commit {
        id: info.id,
        parent_id: info.parent,
        message: info.message,
        written_at: format_time(info.flushed_at),
        metadata: info.metadata,
        refs: arguments.all.then(|| names.remove(&info.id).unwrap_or_default()),
        path: paths.next(),
    };
    let commits: Vec<Commit> = history.into_iter().take(limit).map(commit).collect();
    print_result(arguments.json, &commits, || to_text(&commits))
}

fn to_text(commits: &[Commit]) -> String {
    let mut text = String::new();
    for commit in commits {
        text += &format!("snapshot {}\n    date  {}\n", commit.id, commit.written_at);
        if let Some(refs) = commit.refs.as_ref().filter(|refs| !refs.is_empty()) {
            text += &format!(
                "    refs  {}\n",
                refs.iter().map(|name| printable::line(name)).collect::<Vec<_>>().join(", ")
            );
        }
        if let Some(path) = &commit.path {
            text += &format!("    path  {}\n", printable::line(path));
        }
        for (name, value) in &commit.metadata {
            text += &format!("    {}\n", printable::line(&format!("{name}: {value}")));
        }
        text.push('\n');
        for line in commit.message.lines() {
            // The message is untrusted text.
            text += &format!("    {}\n", printable::line(line));
        }
        text.push('\n');
    }
    text
}

/// Returns the capabilities of standard output.
fn terminal_style(color: ColorChoice) -> TerminalStyle {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let is_terminal = std::io::stdout().is_terminal();
    let colors = match color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        // Conventions: https://no-color.org, and terminals without colors.
        ColorChoice::Auto => {
            is_terminal && variable("NO_COLOR").is_none() && variable("TERM").is_none_or(|term| term != "dumb")
        }
    };
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable).unwrap_or_default().to_lowercase();
    let width = terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0));
    TerminalStyle {
        unicode: locale.contains("utf-8") || locale.contains("utf8"),
        colors,
        width: width.filter(|_| is_terminal),
    }
}

/// Writes a picture to standard output, or atomically to the file `path`.
fn write_picture(picture: &str, path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return print_raw(picture.as_bytes()) };
    let failed = |e| Error::io(path.display(), e);
    // A device or a pipe is written to directly.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return std::fs::write(path, picture).map_err(failed);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let permissions = std::fs::Permissions::from_mode(0o666);
    let made = tempfile::Builder::new().permissions(permissions).tempfile_in(folder);
    let mut file = made.map_err(failed)?;
    file.write_all(picture.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}
