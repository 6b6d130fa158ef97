//! Arguments of the command line. Scripts depend on them: they are extended, never changed.

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
use super::open::MemoryLimits;
use super::ops::OpsArgs;
use super::rewrite_manifests::RewriteManifestsArgs;
use super::squash::SquashArgs;
use super::stats::StatsArgs;
use super::tag::TagArgs;
use super::verify::VerifyArgs;
use super::virtual_args::VirtualArgs;
use crate::error::{Error, Result};
use crate::fuse::io_mode::IoOption;
use crate::operations::UploadMode;
use crate::repo::refs::{DEFAULT_BRANCH, RefSpec};
use crate::size;
use crate::storage::settings::Settings;
use crate::times::parse_time;

/// Mount Icechunk repositories as plain directories of Zarr files.
#[derive(Debug, Parser)]
#[command(name = "icechunkfs", version, propagate_version = true, max_term_width = 100)]
pub struct Arguments {
    /// Limit for everything held in memory, such as 256M [default: 512M, or a quarter of the memory if that is less].
    #[arg(long, global = true, value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mount a branch, tag or snapshot of a repository as a directory.
    ///
    /// Returns when the mount answers; a daemon serves it until it is unmounted with `icechunkfs unmount`, `umount`,
    /// SIGTERM or SIGINT. A branch is writable unless the mount is read-only: uncommitted changes are kept in a scratch
    /// directory until `touch MOUNTPOINT/.icechunk/commit` or `icechunkfs commit` commits them.
    Mount(MountArgs),
    /// Remove a mount, even if its daemon has died.
    #[command(visible_alias = "umount")]
    Unmount(UnmountArgs),
    /// Commit the changes in a mount.
    Commit(CommitArgs),
    /// Show a summary of the uncommitted changes in a mount.
    Status(MountpointArgs),
    /// Show differences node by node: the uncommitted changes in a mount, or those between two snapshots of a repository.
    #[command(override_usage = super::diff::USAGE)]
    Diff(Box<DiffArgs>),
    /// Replace the message or metadata of a branch's newest commit (version 2). The old commit stays until garbage is
    /// collected.
    Amend(Box<AmendArgs>),
    /// Combine the newest commits of a branch into one with the contents of the last (version 2). The old commits stay until
    /// garbage is collected.
    SquashOptions(Box<SquashArgs>),
    /// Rewrite all manifests of a branch in a commit that changes nothing else: split by other rules, or merged where many
    /// commits have left many.
    RewriteManifests(Box<RewriteManifestsArgs>),
    /// Discard the uncommitted changes in a mount. Untracked files stay.
    Discard(DiscardArgs),
    /// Move a mount to its branch's newest commit. Uncommitted changes stay; a conflict refuses the move.
    Refresh(MountpointArgs),
    /// Read everything below a path of a mount into the mount's cache (--cache), for fast or offline use.
    Prefetch(PrefetchArgs),
    /// Create an empty repository (format version 2).
    Init(InitArgs),
    /// List branches and tags with their snapshot ids.
    Refs(RefsArgs),
    /// List, create, delete and reset branches.
    Branch(BranchArgs),
    /// List, create and delete tags.
    Tag(TagArgs),
    /// Show and change the configuration stored in a repository, which applies to all programs that open it.
    Config(ConfigArgs),
    /// Show the operations log of a repository, newest first: commits, branches, tags, configuration, maintenance.
    Ops(OpsArgs),
    /// Show the history of a branch, tag or snapshot, newest first.
    Log(LogArgs),
    /// List groups and arrays with shape, stored chunks and bytes.
    Ls(LsArgs),
    /// Migrate an older repository to format version 2. Version 1 is migrated in place: the data stay where they are, and programs
    /// that support only version 1 can no longer open it. With --to, a new repository is created elsewhere.
    Migrate(MigrateArgs),
    /// Remove old commits from histories. Branches and tags keep their contents. Run `icechunkfs gc` afterwards to free the space.
    Expire(ExpireArgs),
    /// Remove garbage: commits that no branch or tag leads to, with their manifests and chunks, and leftovers of failed commits.
    ///
    /// Keeps everything that branches and tags lead to, that uncommitted changes on this machine are based on (in its mounts, and
    /// in scratch directories in their default locations), and that is younger than --older-than. Only their age protects
    /// running commits of other programs, scratch directories elsewhere, and uncommitted changes of users other than root and the
    /// user who runs this: choose a time before they began, or name the scratch directories with --keep-scratch.
    Gc(GcArgs),
    /// Check a repository: every rule of its format, and that every object exists with its length.
    ///
    /// Severities: an error is lost or unreadable data or history; a warning is a violated rule while everything can be read, as old
    /// releases caused it; a note is an object that nothing needs (`icechunkfs gc` removes it).
    ///
    /// Exit status: 0 if there are only notes, 3 if there are warnings, 4 if there are errors; 1 if the repository could not be
    /// checked, 2 for usage errors.
    Verify(VerifyArgs),
    /// Export the files of a branch, tag or snapshot, as a mount shows them, into a directory, without mounting.
    ///
    /// Each file is written whole or not at all. An interrupted export continues when it is run again. When the command
    /// succeeds, everything is on the disk. Files have the commit's time.
    Export(ExportArgs),
    /// Commit the files of a directory to a branch, or to a new repository, without mounting.
    ///
    /// Works like `cp -r` into a mount and a commit: SRC replaces what is at the same path, everything else stays (--delete
    /// makes the branch a mirror), files that Zarr has no place for are listed and left out, and a node that cannot be committed
    /// refuses the whole import. The commit is atomic. SRC stays unchanged.
    Import(ImportArgs),
    /// Show the storage use of a repository: by kind, by ref, by array, and unreachable objects.
    Stats(StatsArgs),
    /// Write the bytes of one Zarr key to standard output, without mounting.
    Cat(CatArgs),
}

/// Selection of one snapshot; branch `main` by default.
#[derive(Clone, Debug, Default, Args)]
pub struct RefArgs {
    /// Newest commit of this branch [default: main].
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tag", "snapshot"])]
    pub branch: Option<String>,
    /// Snapshot that this tag points to.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["snapshot", "as_of"])]
    pub tag: Option<String>,
    /// Snapshot with this id.
    #[arg(long, value_name = "ID", conflicts_with = "as_of")]
    pub snapshot: Option<String>,
    /// Newest commit of the branch that is not after this time: RFC 3339, or a date (the end of that day, UTC).
    #[arg(long, value_name = "TIME")]
    pub as_of: Option<String>,
}

impl RefArgs {
    /// Returns the selected ref. Fails if the arguments contradict each other.
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

/// Arguments of every command.
#[derive(Clone, Debug, Default, Args)]
pub struct CommonArgs {
    /// Log more; twice logs everything.
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

/// Default interval between checks of a followed branch, in seconds; each check is a small request.
pub const DEFAULT_FOLLOW_INTERVAL: &str = "10";
/// Allowed intervals, in seconds: shorter ones are of no use, and longer ones hardly follow.
const INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

/// Parses the interval between checks of a followed branch, in seconds.
pub fn parse_interval(text: &str) -> Result<Duration> {
    let wrong = || Error::invalid(format!("`{text}` is no number of seconds: from 0.1 to 86400"));
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if !INTERVALS.contains(&seconds) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Arguments of `icechunkfs mount`.
#[derive(Clone, Debug, Args)]
pub struct MountArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, https://, file://).
    pub repo: String,
    /// The mountpoint: an empty directory.
    pub mountpoint: PathBuf,
    /// Snapshot to mount.
    #[command(flatten)]
    pub reference: RefArgs,
    /// Mount read-only. Tags, snapshots and past times always are.
    #[arg(long)]
    pub read_only: bool,
    /// Follow the branch: check for a newer commit every SECONDS [default: 10] and move to it. Open files keep their
    /// contents. Read-only.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = DEFAULT_FOLLOW_INTERVAL, value_parser = parse_interval)]
    pub follow: Option<Duration>,
    /// Keep uncommitted changes in this directory [default: one per branch below /var/lib/icechunkfs (root) or
    /// $XDG_STATE_HOME/icechunkfs]. Other users must neither own it nor be able to write to it or to a directory above it, except
    /// sticky ones such as /tmp and those that ICECHUNKFS_SAFE_DIRECTORY lists, separated by `:`.
    #[arg(long, value_name = "DIR", conflicts_with = "ephemeral")]
    pub scratch: Option<PathBuf>,
    /// Discard the uncommitted changes of earlier mounts.
    #[arg(long)]
    pub discard: bool,
    /// Keep uncommitted changes in a temporary directory, which is removed at the end if everything was committed.
    #[arg(long)]
    pub ephemeral: bool,
    /// List the directory .icechunk at the root. It exists in any case.
    #[arg(long)]
    pub show_control: bool,
    /// Pack chunks smaller than this into objects of some MiB.
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size::parse)]
    pub pack_below: u64,
    /// Time at which chunks are uploaded to an object store: eager (as soon as they are closed, so that a commit has little left
    /// to do) or commit.
    #[arg(long, value_name = "WHEN", default_value = "eager", value_parser = str::parse::<UploadMode>)]
    pub upload: UploadMode,
    /// Stay in the foreground and log to standard error.
    #[arg(short, long)]
    pub foreground: bool,
    /// Memory limit of `-o memory=`, in bytes.
    #[arg(skip)]
    pub memory: Option<u64>,
    /// Prefetch at most this much for a program that reads chunk after chunk from an object store; 0 prefetches nothing
    /// [default: 1/16 of the memory].
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub ahead: Option<u64>,
    /// I/O mode of files: auto, cached (never ask the daemon on open) or passthrough (the kernel reads chunk files; needs root).
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = str::parse::<IoOption>)]
    pub io: IoOption,
    /// Allow access by other users; the kernel checks file modes.
    #[arg(long)]
    pub allow_other: bool,
    /// Options in the form of mount(8), such as ro,allow_other,tag=v1,memory=256M,nonempty.
    #[arg(short = 'o', value_name = "OPT[,OPT...]")]
    pub options: Vec<String>,
    /// Log to this file instead of the system log. Other users must neither own it nor be able to write to it.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Store settings. Last, because their help heading applies to all later options.
    #[command(flatten)]
    pub store: Settings,
    /// Virtual chunks. Their help heading applies to all later options, too.
    #[command(flatten)]
    pub virtuals: VirtualArgs,
}

impl MountArgs {
    /// Returns the memory limits.
    pub fn limits(&self) -> MemoryLimits {
        MemoryLimits { ahead: self.ahead }
    }
}

/// Arguments of `icechunkfs unmount`.
#[derive(Debug, Args)]
pub struct UnmountArgs {
    /// The mountpoint.
    pub mountpoint: PathBuf,
    /// Refuse if there are uncommitted changes. Otherwise they stay in the scratch directory, for the next mount.
    #[arg(long)]
    pub require_clean: bool,
    /// Detach the mount now, without asking its daemon, which may hang. Programs keep their open files, and the daemon ends
    /// with the last of them. Uncommitted changes stay in the scratch directory.
    #[arg(long, conflicts_with = "require_clean")]
    pub force: bool,
}

/// Arguments of `icechunkfs commit`.
#[derive(Debug, Args)]
pub struct CommitArgs {
    /// The mountpoint of the branch.
    pub mountpoint: PathBuf,
    /// The commit message.
    #[arg(short, long, value_name = "TEXT", default_value = "")]
    pub message: String,
    /// Set a metadata item of the commit; VALUE is JSON, otherwise text. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub metadata: Vec<String>,
    /// Replace the branch's newest commit.
    #[arg(long)]
    pub amend: bool,
    /// Resolve conflicts between chunks: ours keeps the chunks of this mount, theirs those of concurrent commits [default: refuse].
    #[arg(long, value_name = "WHOSE", value_parser = ["ours", "theirs"])]
    pub on_conflict: Option<String>,
    /// Print {"snapshot", "rebased_over", "nodes", "chunks"}; snapshot is null if there was nothing to commit.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `icechunkfs status` and `refresh`, and of `diff` of a mount.
#[derive(Debug, Args)]
pub struct MountpointArgs {
    /// The mountpoint of the branch.
    pub mountpoint: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `icechunkfs discard`.
#[derive(Debug, Args)]
pub struct DiscardArgs {
    /// The mountpoint of the branch.
    pub mountpoint: PathBuf,
    /// A path in the mount: discard what is at and below it [default: everything].
    pub path: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `icechunkfs prefetch`.
#[derive(Debug, Args)]
pub struct PrefetchArgs {
    /// The mountpoint of the repository.
    pub mountpoint: PathBuf,
    /// A path in the mount: read what is at and below it [default: everything].
    pub path: Option<String>,
    /// Read only this part of the array at PATH, in Python's notation: 0:100,:,-5 (elements, not chunks).
    #[arg(long, value_name = "SLICES", allow_hyphen_values = true)]
    pub slice: Option<String>,
    /// Number of files to read at a time.
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,
}

/// Arguments of `icechunkfs init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// The location: a path or a URL (s3://, gs://, az://, abfs://, file://). It must be empty or not exist.
    pub repo: String,
    /// Add a first commit with a root group.
    #[arg(long)]
    pub zarr_group: bool,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Store settings. Last, because their help heading applies to all later options.
    #[command(flatten)]
    pub store: Settings,
}

/// Arguments of `icechunkfs refs`.
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
    /// Store settings. Last, because their help heading applies to all later options.
    #[command(flatten)]
    pub store: Settings,
}

/// Arguments of `icechunkfs log`.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, https://, file://).
    pub repo: String,
    /// Snapshot to begin with.
    #[command(flatten)]
    pub reference: RefArgs,
    /// Show the commits of all branches and tags. Without --graph or --svg, each branch or tag follows the other.
    #[arg(long, conflicts_with_all = ["branch", "tag", "snapshot", "as_of"])]
    pub all: bool,
    /// Draw the commits and their parents, with branches and tags.
    #[arg(long)]
    pub graph: bool,
    /// Draw them as a picture (SVG).
    #[arg(long, conflicts_with = "graph")]
    pub svg: bool,
    /// Write the picture into this file instead of standard output.
    #[arg(short, long, value_name = "FILE", requires = "svg")]
    pub output: Option<PathBuf>,
    /// Use colors in --graph: auto (on a terminal), always or never.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "always", "never"])]
    pub color: String,
    /// Print a list of {"id", "parent_id", "message", "written_at", "metadata"}; with --all also "refs": ["branch/NAME", ...,
    /// "tag/NAME", ...].
    #[arg(long, conflicts_with_all = ["graph", "svg"])]
    pub json: bool,
    /// Show at most this many commits.
    #[arg(short = 'n', value_name = "N")]
    pub count: Option<usize>,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Store settings. Last, because their help heading applies to all later options.
    #[command(flatten)]
    pub store: Settings,
}

/// Arguments of `icechunkfs ls`.
#[derive(Debug, Args)]
pub struct LsArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, https://, file://).
    pub repo: String,
    /// The group to list, or an array, or with --shards a chunk; the root by default.
    #[arg(default_value = "")]
    pub path: String,
    /// Snapshot to list.
    #[command(flatten)]
    pub reference: RefArgs,
    /// List the inner chunks of shards instead: in an array, in all arrays of a group, or in one chunk. The indexes are
    /// read and checked; an invalid one is a failure. With --json a list of {"path", "bytes", "index": {"offset",
    /// "bytes", "location", "byte_order", "checksum"}, "grid", "inner_shape", "inner_chunks": [{"coords", "offset", "bytes"}],
    /// "faults"}; an inner chunk that is a shard also has "index" and the members after it. Offsets count from the file's beginning.
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
    /// Store settings. Last, because their help heading applies to all later options.
    #[command(flatten)]
    pub store: Settings,
    /// Virtual chunks, for --shards. Their help heading applies to all later options, too.
    #[command(flatten)]
    pub virtuals: VirtualArgs,
}

/// Arguments of `icechunkfs cat`.
#[derive(Debug, Args)]
pub struct CatArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, https://, file://).
    pub repo: String,
    /// The key as a path in the mount, such as group/array/zarr.json or group/array/c/0/1.
    pub key: String,
    /// Snapshot to read.
    #[command(flatten)]
    pub reference: RefArgs,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Store settings. Last, because their help heading applies to all later options.
    #[command(flatten)]
    pub store: Settings,
    /// Virtual chunks. Their help heading applies to all later options, too.
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
