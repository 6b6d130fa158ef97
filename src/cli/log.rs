//! `icechunkfs log`: prints or draws the history of a snapshot.

use std::collections::{HashMap, HashSet};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::{Args, ColorChoice};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::graph::terminal::TerminalStyle;
use super::mount_options::parse_root;
use super::output::{Lines, print_json_list, print_raw, write_file};
use super::repo_args::{RefArgs, RepoArgs};
use super::{graph, open};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_base::times::{format_local_time, format_time};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_repo::commit::engine::RESERVED;
use icechunkfs_repo::compare::path_history::{self, Region};
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::history::walk_all;
use icechunkfs_repo::repo::refs::{DEFAULT_BRANCH, RefSpec, Refs};

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Show only commits that touched this node, or one below it. Moves are followed, and deleted
    /// nodes are found.
    #[arg(index = 2, value_name = "PATH", value_parser = parse_root, conflicts_with_all = ["all", "graph", "svg"])]
    path: Option<String>,
    /// Show only commits that touched these positions in the chunk grid of the array PATH, such as
    /// 0:10,: or 3,2:5.
    #[arg(long, value_name = "RANGES", requires = "path", value_parser = parse_region)]
    chunks: Option<Ranges>,
    #[command(flatten)]
    pub(super) reference: RefArgs,
    /// Show the commits of all branches and tags; without --graph or --svg, one ref after the
    /// other.
    #[arg(long, conflicts_with_all = ["branch", "tag", "snapshot", "as_of"])]
    all: bool,
    /// Print each commit on one line: id, branches, tags, and the first line of the message.
    #[arg(long, conflicts_with_all = ["graph", "svg", "json"])]
    oneline: bool,
    /// Draw the commits, their parents and merges, with branches and tags.
    #[arg(long)]
    graph: bool,
    /// Draw them as an SVG picture.
    #[arg(long, conflicts_with = "graph")]
    svg: bool,
    /// Write the picture into this file instead of standard output.
    #[arg(short, long, value_name = "FILE", requires = "svg")]
    output: Option<PathBuf>,
    /// Use colors in --graph: auto (on a terminal), always or never.
    #[arg(long, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
    /// Print a list of {"id", "parent_id", "message", "written_at", "metadata"}; with PATH also
    /// "path" (that of the node then), with --all "refs": ["branch/NAME", ..., "tag/NAME", ...].
    #[arg(long, conflicts_with_all = ["graph", "svg"])]
    json: bool,
    /// Show at most this many commits.
    #[arg(short = 'n', value_name = "N")]
    count: Option<usize>,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Commit as it is printed.
struct Row {
    info: SnapshotInfo,
    metadata: Metered<Map<String, Value>>,
    refs: Option<Vec<String>>,
    /// Path of the node then.
    path: Option<String>,
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Commit<'a> {
            id: ObjectId,
            parent_id: Option<ObjectId>,
            message: &'a str,
            written_at: String,
            metadata: &'a Map<String, Value>,
            #[serde(skip_serializing_if = "Option::is_none")]
            refs: Option<&'a [String]>,
            #[serde(skip_serializing_if = "Option::is_none")]
            path: Option<&'a str>,
        }
        let Row { info, metadata, refs, path } = self;
        let commit = Commit {
            id: info.id,
            parent_id: info.parent,
            message: info.message(),
            written_at: format_time(info.flushed_at),
            metadata,
            refs: refs.as_deref(),
            path: path.as_deref(),
        };
        commit.serialize(serializer)
    }
}

/// Ranges of positions in the chunk grid.
#[derive(Clone, Debug)]
pub(crate) struct Ranges(Region);

/// Parses ranges of chunks, one for each dimension: `N`, `A:B` without B, or `:` for all.
fn parse_region(text: &str) -> Result<Ranges> {
    let wrong =
        || Error::invalid(format!("`{text}` is not a valid list of chunk ranges: write ranges as in 0:10,: or 3,2:5"));
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
    open::run(async {
        let repository = arguments.repo.open().await?;
        let is_drawn = arguments.graph || arguments.svg;
        let refs = match (arguments.all || is_drawn, arguments.json) {
            (true, _) => repository.refs().await?,
            (false, true) => Refs::default(),
            // Their names are an addition, without which the commits are still shown.
            (false, false) => repository.refs().await.unwrap_or_default(),
        };
        let selection = Selection { repository: &repository, refs: &refs, spec: &spec, arguments };
        if is_drawn {
            return selection.draw().await;
        }
        if arguments.json {
            return print_json_list(async |print| selection.each(print).await).await;
        }
        let mut lines = Lines::new();
        let names = Names::of(&refs);
        let write = if arguments.oneline { write_line } else { write_row };
        let done = selection.each(&mut |row| write(&mut lines, row, &names)).await;
        lines.end().and(done)
    })
}

/// Commits to print or draw.
struct Selection<'a> {
    repository: &'a Repository,
    refs: &'a Refs,
    spec: &'a RefSpec,
    arguments: &'a LogArgs,
}

impl Selection<'_> {
    /// Calls `take` for each commit.
    async fn each(&self, take: &mut dyn FnMut(&Row) -> Result<()>) -> Result<()> {
        let Selection { repository, refs, spec, arguments } = self;
        let mut left = arguments.count.unwrap_or(usize::MAX);
        if left == 0 {
            return Ok(());
        }
        let mut take_one = |info: SnapshotInfo, refs: Option<Vec<String>>, path: Option<String>| {
            let metadata = info.metadata()?;
            take(&Row { info, metadata, refs, path })?;
            left -= 1;
            Ok(left > 0)
        };
        if arguments.all {
            let mut names = names_of(refs, ["branch/", "tag/"]);
            let visit = |info: SnapshotInfo| {
                let refs = names.remove(&info.id).unwrap_or_default();
                take_one(info, Some(refs), None)
            };
            let tips = refs.branches.values().chain(refs.tags.values()).copied();
            return walk_all(repository, tips, visit).await;
        }
        let tip = repository.resolve(spec).await?;
        let Some(path) = &arguments.path else {
            return repository.try_walk(tip, |info| take_one(info, None, None)).await;
        };
        let history = repository.ancestors(tip, usize::MAX).await?;
        let region = arguments.chunks.as_ref().map(|ranges| &ranges.0);
        let limit = arguments.count.unwrap_or(usize::MAX);
        let absolute = format!("/{path}");
        let found = path_history::touches(repository, &history, &absolute, region, limit, async |id, path| {
            take_one(repository.commit(id).await?, None, Some(path.to_owned())).map(drop)
        });
        open::or_ref(repository, path, found.await).await
    }

    /// Adds the selected commit and those before it to `commits`, with what its merges have merged,
    /// of which `limit` are drawn.
    async fn collect(&self, commits: &mut graph::Commits, limit: usize) -> Result<()> {
        let Selection { repository, spec, .. } = self;
        let tip = repository.resolve(spec).await?;
        let mut known = HashSet::new();
        let mut tips = vec![tip];
        while let Some(from) = tips.pop() {
            // One commit more than is drawn: the last line leads to it.
            let mut left = limit.saturating_add(1);
            let visit = |info: SnapshotInfo| {
                if !known.insert(info.id) {
                    return Ok(false);
                }
                tips.extend(commits.add(info)?);
                left -= 1;
                Ok(left > 0)
            };
            match repository.try_walk(from, visit).await {
                // A merged commit may have been collected with its branch; in version 1 that is as
                // if its snapshot was lost.
                Err(error) if from != tip && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Draws the commits.
    async fn draw(&self) -> Result<()> {
        let Selection { repository, refs, spec, arguments } = self;
        let limit = arguments.count.unwrap_or(usize::MAX);
        let mut commits = graph::Commits::new(refs);
        if arguments.all {
            let tips = refs.branches.values().chain(refs.tags.values()).copied();
            walk_all(repository, tips, |info| commits.add(info).map(|_| true)).await?;
        } else {
            self.collect(&mut commits, limit).await?;
        }
        let commits = commits.finish();
        let main = refs.branches.get(DEFAULT_BRANCH).copied();
        let rows = graph::layout::rows(&commits, main, limit)?;
        if arguments.svg {
            let of = if arguments.all { "all branches and tags".to_owned() } else { spec.to_string() };
            let title = format!("{}: {of}", repository.storage().location());
            return write_picture(&graph::svg::draw(&commits, &rows, &title), arguments.output.as_deref());
        }
        print_raw(graph::terminal::draw(&commits, &rows, terminal_style(arguments.color)).as_bytes())
    }
}

/// Returns the names of branches and tags, each kind with its prefix, by the commits that they
/// point to.
fn names_of(refs: &Refs, prefixes: [&str; 2]) -> HashMap<ObjectId, Vec<String>> {
    let mut names: HashMap<ObjectId, Vec<String>> = HashMap::new();
    for (prefix, refs) in std::iter::zip(prefixes, [&refs.branches, &refs.tags]) {
        refs.iter().for_each(|(name, id)| names.entry(*id).or_default().push(format!("{prefix}{name}")));
    }
    names
}

/// Branches and tags by the commits that they point to, as text behind an id.
struct Names(HashMap<ObjectId, String>);

impl Names {
    fn of(refs: &Refs) -> Self {
        let names = names_of(refs, ["", "tag "]).into_iter();
        Names(names.map(|(id, names)| (id, format!(" ({})", names.join(", ")))).collect())
    }

    fn get(&self, id: ObjectId) -> &str {
        self.0.get(&id).map_or("", String::as_str)
    }
}

/// Writes a commit as one line.
fn write_line(lines: &mut Lines, Row { info, .. }: &Row, names: &Names) -> Result<()> {
    let title = info.message().lines().next().unwrap_or_default().to_owned();
    lines.line(format_args!("{}{} {title}", info.id, names.get(info.id)))
}

/// Writes a commit as text. Names, metadata and the message are untrusted text.
fn write_row(lines: &mut Lines, Row { info, metadata, path, .. }: &Row, names: &Names) -> Result<()> {
    lines.line(format_args!("commit {}{}", info.id, names.get(info.id)))?;
    lines.line(format_args!("    date  {}", format_local_time(info.flushed_at)))?;
    if let Some(path) = path {
        lines.line(format_args!("    path  {path}"))?;
    }
    // Notes of implementations are for implementations; --json has them.
    for (name, value) in metadata.iter().filter(|(name, _)| *name != RESERVED) {
        lines.line(format_args!("    {name}: {value}"))?;
    }
    lines.line(format_args!(""))?;
    for line in info.message().lines() {
        lines.line(format_args!("    {line}"))?;
    }
    lines.line(format_args!(""))
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

/// Writes a picture to standard output, or to the file `path`.
fn write_picture(picture: &str, path: Option<&Path>) -> Result<()> {
    path.map_or_else(|| print_raw(picture.as_bytes()), |path| write_file(picture.as_bytes(), path))
}
