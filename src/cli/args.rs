//! The words of the command line. Scripts depend on them: they only grow.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};

use super::amend::AmendArgs;
use super::branch::BranchArgs;
use super::config::ConfigArgs;
use super::diff::DiffArgs;
use super::expire::ExpireArgs;
use super::export::ExportArgs;
use super::gc::GcArgs;
use super::import::ImportArgs;
use super::migrate::MigrateArgs;
use super::open::Limits;
use super::ops::OpsArgs;
use super::rewrite_manifests::RewriteManifestsArgs;
use super::squash::SquashArgs;
use super::stats::StatsArgs;
use super::tag::TagArgs;
use super::verify::VerifyArgs;
use super::virtual_args::VirtualArgs;
use crate::error::{Error, Result};
use crate::fuse::io_mode::IoOption;
use crate::repo::history::parse_time;
use crate::repo::refs::{DEFAULT_BRANCH, RefSpec};
use crate::session::Upload;
use crate::size;
use crate::storage::settings::Settings;

/// Mount Icechunk repositories as plain directories of Zarr files.
#[derive(Debug, Parser)]
#[command(name = "icechunkfs", version, propagate_version = true, max_term_width = 100)]
pub struct Arguments {
    /// Bound for everything held in memory, such as 256M [default: 512M, or a quarter of what there is].
    #[arg(long, global = true, value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a branch, tag or snapshot of a repository as a directory.
    ///
    /// Returns when the mount answers; a daemon serves it until it is unmounted with `icechunkfs unmount`, `umount`,
    /// SIGTERM or SIGINT. A branch can be written to, unless the mount is read-only: what programs change waits in a scratch
    /// directory until `touch MOUNTPOINT/.icechunk/commit` or `icechunkfs commit` makes one commit of it.
    Mount(MountArgs),
    /// Take a mount away, also one whose daemon has died.
    #[command(visible_alias = "umount")]
    Unmount(UnmountArgs),
    /// Commit what was changed in a mount.
    Commit(CommitArgs),
    /// Show what was changed in a mount and is not committed, counted.
    Status(LookArgs),
    /// Show what differs, node by node: what was changed in a mount and is not committed, or what is not the same in two
    /// snapshots of a repository.
    #[command(override_usage = super::diff::USAGE)]
    Diff(Box<DiffArgs>),
    /// Give a branch's newest commit another message or other metadata (version 2). Another commit takes its place; the old one
    /// stays until garbage is collected.
    Amend(Box<AmendArgs>),
    /// Make one commit of a branch's newest ones (version 2). It shows what the last of them shows; the old ones stay until
    /// garbage is collected.
    Squash(Box<SquashArgs>),
    /// Write all manifests of a branch anew, as one commit that changes nothing else: cut by other rules, or put together where
    /// many commits have left many.
    RewriteManifests(Box<RewriteManifestsArgs>),
    /// Give up what was changed in a mount. Files that no commit would take stay.
    Discard(DiscardArgs),
    /// Move a mount to its branch's newest commit. What was changed stays, if others did not change the same things.
    Refresh(LookArgs),
    /// Read what is below a path of a mount, so that the mount's cache (--cache) has it, for programs in a hurry and for mounts
    /// that are offline.
    Prefetch(PrefetchArgs),
    /// Create an empty repository (format version 2).
    Init(InitArgs),
    /// List branches and tags with their snapshot ids.
    Refs(RefsArgs),
    /// List, make, delete and reset branches.
    Branch(BranchArgs),
    /// List, make and delete tags.
    Tag(TagArgs),
    /// Show and change the configuration that is stored in a repository, for all programs that open it.
    Config(ConfigArgs),
    /// Show what was done to a repository, newest first: commits, branches, tags, configuration, maintenance.
    Ops(OpsArgs),
    /// Show the commits that led to a branch, tag or snapshot, newest first.
    Log(LogArgs),
    /// List groups and arrays, with shape, chunks stored and bytes.
    Ls(LsArgs),
    /// Make a repository of an older generation one of the newest (version 2). Version 1 is migrated in place: data stay where they
    /// are, and programs that know version 1 only cannot open it any more. With --to, a new repository is made elsewhere.
    Migrate(MigrateArgs),
    /// Forget old commits: histories become shorter. What branches and tags point to stays as it is. `icechunkfs gc` then gives back the
    /// room.
    Expire(ExpireArgs),
    /// Remove what nothing needs any more: commits that no branch or tag leads to, with their manifests and chunks, and what
    /// commits that failed have left.
    Gc(GcArgs),
    /// Check a repository: every rule of its format, and that every object is there with its length.
    Verify(VerifyArgs),
    /// Write the files of a branch, tag or snapshot, as a mount shows them, into a directory, without mounting.
    ///
    /// Each file is there whole or not at all. An export that was ended goes on when it is given again. When the command has
    /// returned well, all is on the disk. Files have the commit's time.
    Export(ExportArgs),
    /// Commit the files of a directory to a branch, or to a new repository, without mounting.
    ///
    /// As with `cp -r` into a mount and a commit: what SRC has replaces what is at the same path, everything else stays (--delete
    /// makes the branch a mirror), files that Zarr has no place for are listed and left out, and what cannot be committed refuses all
    /// of it. The commit is there as a whole or not at all. SRC stays as it is.
    Import(ImportArgs),
    /// Show what a repository's bytes are for: by kind, by ref, by array, and what no ref leads to.
    Stats(StatsArgs),
    /// Write the bytes of one Zarr key to standard output, without mounting.
    Cat(CatArgs),
}

/// Picks one snapshot: branch `main` when nothing is said.
#[derive(Clone, Debug, Default, Args)]
pub struct RefArgs {
    /// Newest commit of this branch [default: main].
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tag", "snapshot"])]
    pub branch: Option<String>,
    /// What this tag points to.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["snapshot", "as_of"])]
    pub tag: Option<String>,
    /// The snapshot with this id.
    #[arg(long, value_name = "ID", conflicts_with = "as_of")]
    pub snapshot: Option<String>,
    /// Newest commit of the branch that is not after this time: RFC 3339, or a date (its whole day, UTC).
    #[arg(long, value_name = "TIME")]
    pub as_of: Option<String>,
}

impl RefArgs {
    /// The ref that the words mean.
    pub fn spec(&self) -> Result<RefSpec> {
        let branch = || self.branch.clone().unwrap_or_else(|| DEFAULT_BRANCH.to_owned());
        match (&self.tag, &self.snapshot, &self.as_of) {
            (None, None, None) => Ok(RefSpec::Branch(branch())),
            (None, None, Some(time)) => {
                Ok(RefSpec::AsOf { branch: branch(), time: parse_time(time).map_err(|e| e.context("--as-of"))? })
            }
            (Some(tag), None, None) if self.branch.is_none() => Ok(RefSpec::Tag(tag.clone())),
            (None, Some(id), None) if self.branch.is_none() => {
                Ok(RefSpec::Snapshot(id.parse().map_err(|e: Error| e.context("--snapshot"))?))
            }
            _ => Err(Error::invalid(
                "name one of a branch, a tag and a snapshot; a time (as of) goes with a branch only",
            )),
        }
    }
}

/// What every command takes.
#[derive(Clone, Debug, Default, Args)]
pub struct CommonArgs {
    /// Say more; twice says everything.
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

/// How often a followed branch is looked at, in seconds: a small request each time.
pub const FOLLOW_EVERY: &str = "10";
/// Seconds between two looks: more often is no use, and less often hardly following.
const INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

/// Seconds between two looks at a branch, as a user says them.
pub fn parse_interval(text: &str) -> Result<Duration> {
    let wrong = || Error::invalid(format!("`{text}` is no number of seconds: from 0.1 to 86400"));
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if !INTERVALS.contains(&seconds) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// `icechunkfs mount`
#[derive(Clone, Debug, Args)]
pub struct MountArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, https://, file://).
    pub repo: String,
    /// An empty directory.
    pub mountpoint: PathBuf,
    /// Which snapshot.
    #[command(flatten)]
    pub reference: RefArgs,
    /// Mount read-only. Tags, snapshots and times of the past always are.
    #[arg(long)]
    pub read_only: bool,
    /// Show the branch's newest commit, whichever it is: look for one every so many seconds [default: 10]. Files that are open
    /// are read to their end as they were. Read-only.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = FOLLOW_EVERY, value_parser = parse_interval)]
    pub follow: Option<Duration>,
    /// Keep uncommitted changes in this directory [default: one for each branch below /var/lib/icechunkfs (root) or
    /// $XDG_STATE_HOME/icechunkfs]. Other users may neither own it nor write to it or to a directory above it, except sticky ones
    /// such as /tmp and those that ICECHUNKFS_SAFE_DIRECTORY names, with `:` between them.
    #[arg(long, value_name = "DIR", conflicts_with = "ephemeral")]
    pub scratch: Option<PathBuf>,
    /// Give up uncommitted changes of earlier mounts.
    #[arg(long)]
    pub discard: bool,
    /// Keep uncommitted changes in a temporary directory, which is removed at the end if all were committed.
    #[arg(long)]
    pub ephemeral: bool,
    /// List the directory .icechunk at the root. It is there in any case.
    #[arg(long)]
    pub show_control: bool,
    /// Store chunks smaller than this together in objects of some MiB.
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size::parse)]
    pub pack_below: u64,
    /// When chunks are uploaded to an object store: eager (as soon as they are closed, so that a commit has little left to do)
    /// or commit.
    #[arg(long, value_name = "WHEN", default_value = "eager", value_parser = str::parse::<Upload>)]
    pub upload: Upload,
    /// Stay in the foreground and log to standard error.
    #[arg(short, long)]
    pub foreground: bool,
    /// What `-o memory=` says.
    #[arg(skip)]
    pub memory: Option<u64>,
    /// Fetch at most so much ahead of a program that reads chunk after chunk from an object store; 0 fetches nothing that is
    /// not asked for [default: 1/16 of the memory].
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub ahead: Option<u64>,
    /// How files are opened: auto, cached (never ask on open) or passthrough (the kernel reads chunk files; needs root).
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = str::parse::<IoOption>)]
    pub io: IoOption,
    /// Let other users in; the kernel checks file modes.
    #[arg(long)]
    pub allow_other: bool,
    /// Options as mount(8) takes them, such as ro,allow_other,tag=v1,memory=256M,nonempty.
    #[arg(short = 'o', value_name = "OPT[,OPT...]")]
    pub options: Vec<String>,
    /// Log into this file instead of the system's log. Other users may neither own it nor write to it.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to reach the repository. Last, since its heading goes for all that follows.
    #[command(flatten)]
    pub store: Settings,
    /// Virtual chunks. Its heading goes for all that follows, too.
    #[command(flatten)]
    pub virtuals: VirtualArgs,
}

impl MountArgs {
    /// What they say about memory.
    pub fn limits(&self) -> Limits {
        Limits { ahead: self.ahead }
    }
}

/// `icechunkfs unmount`
#[derive(Debug, Args)]
pub struct UnmountArgs {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Refuse if there are uncommitted changes. Otherwise they stay in the scratch directory, for the next mount.
    #[arg(long)]
    pub require_clean: bool,
    /// Take the mount out of the tree now, without asking its daemon: it may stand still. Programs keep what they have open, and the daemon
    /// ends with the last of them. Uncommitted changes stay in the scratch directory.
    #[arg(long, conflicts_with = "require_clean")]
    pub force: bool,
}

/// `icechunkfs commit`
#[derive(Debug, Args)]
pub struct CommitArgs {
    /// Where the branch is mounted.
    pub mountpoint: PathBuf,
    /// The commit message.
    #[arg(short, long, value_name = "TEXT", default_value = "")]
    pub message: String,
    /// A metadata item of the commit; VALUE is JSON, or else taken as text. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub metadata: Vec<String>,
    /// Replace the branch's newest commit.
    #[arg(long)]
    pub amend: bool,
    /// Chunks that others changed too: ours replaces theirs, theirs keeps theirs. Without it they refuse the commit.
    #[arg(long, value_name = "WHOSE", value_parser = ["ours", "theirs"])]
    pub on_conflict: Option<String>,
    /// Print {"snapshot", "rebased_over", "nodes", "chunks"}; snapshot is null if there was nothing to commit.
    #[arg(long)]
    pub json: bool,
}

/// `icechunkfs status` and `refresh`, and `diff` of a mount
#[derive(Debug, Args)]
pub struct LookArgs {
    /// Where the branch is mounted.
    pub mountpoint: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `icechunkfs discard`
#[derive(Debug, Args)]
pub struct DiscardArgs {
    /// Where the branch is mounted.
    pub mountpoint: PathBuf,
    /// What to give up, with everything below: a path in the mount. Everything if it is not given.
    pub path: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `icechunkfs prefetch`
#[derive(Debug, Args)]
pub struct PrefetchArgs {
    /// Where the repository is mounted.
    pub mountpoint: PathBuf,
    /// What to read, with everything below: a path in the mount. Everything if it is not given.
    pub path: Option<String>,
    /// Only this part of the array at PATH, as Python programs write it: 0:100,:,-5 (elements, not chunks).
    #[arg(long, value_name = "SLICES", allow_hyphen_values = true)]
    pub slice: Option<String>,
    /// Files that are read at a time.
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,
}

/// `icechunkfs init`
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Where: a path or a URL (s3://, gs://, az://, abfs://, file://). Nothing may be there but an empty directory.
    pub repo: String,
    /// Add a first commit with a root group.
    #[arg(long)]
    pub zarr_group: bool,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to reach the repository. Last, since its heading goes for all that follows.
    #[command(flatten)]
    pub store: Settings,
}

/// `icechunkfs refs`
#[derive(Debug, Args)]
pub struct RefsArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, https://, file://).
    pub repo: String,
    /// Print {"branches": {NAME: ID}, "tags": {NAME: ID}}.
    #[arg(long)]
    pub json: bool,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to reach the repository. Last, since its heading goes for all that follows.
    #[command(flatten)]
    pub store: Settings,
}

/// `icechunkfs log`
#[derive(Debug, Args)]
pub struct LogArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, https://, file://).
    pub repo: String,
    /// Where to begin.
    #[command(flatten)]
    pub reference: RefArgs,
    /// The commits of all branches and tags. Without --graph or --svg they come a branch or tag after the other.
    #[arg(long, conflicts_with_all = ["branch", "tag", "snapshot", "as_of"])]
    pub all: bool,
    /// Draw which commit led to which, with branches and tags beside them.
    #[arg(long)]
    pub graph: bool,
    /// Write that as a picture (SVG).
    #[arg(long, conflicts_with = "graph")]
    pub svg: bool,
    /// Write the picture into this file instead of standard output.
    #[arg(short, long, value_name = "FILE", requires = "svg")]
    pub output: Option<PathBuf>,
    /// When --graph has colours: auto (on a terminal), always or never.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "always", "never"])]
    pub color: String,
    /// Print a list of {"id", "parent_id", "message", "written_at", "metadata"}; with --all also "refs": ["branch/NAME", ...,
    /// "tag/NAME", ...].
    #[arg(long, conflicts_with_all = ["graph", "svg"])]
    pub json: bool,
    /// At most this many commits.
    #[arg(short = 'n', value_name = "N")]
    pub count: Option<usize>,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to reach the repository. Last, since its heading goes for all that follows.
    #[command(flatten)]
    pub store: Settings,
}

/// `icechunkfs ls`
#[derive(Debug, Args)]
pub struct LsArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, https://, file://).
    pub repo: String,
    /// The group to list, or an array, or with --shards a chunk; the root when nothing is said.
    #[arg(default_value = "")]
    pub path: String,
    /// Which snapshot.
    #[command(flatten)]
    pub reference: RefArgs,
    /// List what is in shards instead: of an array's chunks, of those of all arrays in a group, or of one chunk. Their indexes are
    /// read and looked at; if one is wrong, so is the exit status. With --json a list of {"path", "bytes", "index": {"offset",
    /// "bytes", "location", "byte_order", "checksum"}, "grid", "inner_shape", "inner_chunks": [{"coords", "offset", "bytes"}],
    /// "faults"}; an inner chunk that is a shard has "index" and what follows, too. Offsets count from the file's beginning.
    #[arg(long)]
    pub shards: bool,
    /// Print a list of {"path", "kind", "shape", "chunks", "bytes"}.
    #[arg(long)]
    pub json: bool,
    /// List everything below, too.
    #[arg(short, long)]
    pub recursive: bool,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to reach the repository. Last, since its heading goes for all that follows.
    #[command(flatten)]
    pub store: Settings,
    /// Virtual chunks, which --shards looks into. Its heading goes for all that follows, too.
    #[command(flatten)]
    pub virtuals: VirtualArgs,
}

/// `icechunkfs cat`
#[derive(Debug, Args)]
pub struct CatArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, https://, file://).
    pub repo: String,
    /// The key as a path in the mount, such as group/array/zarr.json or group/array/c/0/1.
    pub key: String,
    /// Which snapshot.
    #[command(flatten)]
    pub reference: RefArgs,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to reach the repository. Last, since its heading goes for all that follows.
    #[command(flatten)]
    pub store: Settings,
    /// Virtual chunks. Its heading goes for all that follows, too.
    #[command(flatten)]
    pub virtuals: VirtualArgs,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::ffi::OsString;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn refs_are_picked() {
        let spec = |text: &str| match Arguments::try_parse_from(words(text)).unwrap().command {
            Command::Log(log) => log.reference.spec(),
            _ => unreachable!("not a log command"),
        };
        assert_eq!(spec("icechunkfs log r").unwrap(), RefSpec::Branch("main".into()));
        assert_eq!(spec("icechunkfs log r --tag v1").unwrap(), RefSpec::Tag("v1".into()));
        assert!(
            matches!(spec("icechunkfs log r --branch b --as-of 2026-01-01").unwrap(), RefSpec::AsOf { branch, .. } if branch == "b")
        );
        assert!(spec("icechunkfs log r --snapshot nonsense").is_err());
        assert!(Arguments::try_parse_from(words("icechunkfs log r --tag v1 --branch b")).is_err());
    }
}
