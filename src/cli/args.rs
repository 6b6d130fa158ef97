//! The parser of the command line. Scripts depend on its arguments: they are extended, never
//! changed.

use clap::builder::Resettable;
use clap::{ArgAction, CommandFactory, Parser, Subcommand, ValueEnum};

use super::amend::AmendArgs;
use super::branch::BranchArgs;
use super::cat::CatArgs;
use super::clone::CloneArgs;
use super::config::ConfigArgs;
use super::control_client::{CommitArgs, DiscardArgs, MountpointArgs, ResolveArgs};
use super::diff::DiffArgs;
use super::doctor::DoctorArgs;
use super::examples;
use super::expire::ExpireArgs;
use super::export::ExportArgs;
use super::gc::GcArgs;
use super::generate::GenerateArgs;
use super::import::ImportArgs;
use super::init::InitArgs;
use super::list::ListArgs;
use super::log::LogArgs;
use super::ls::LsArgs;
use super::merge::MergeArgs;
use super::migrate::MigrateArgs;
use super::mount_options::MountArgs;
use super::ops::OpsArgs;
use super::prefetch::PrefetchArgs;
use super::pull::PullArgs;
use super::push::PushArgs;
use super::refs::RefsArgs;
use super::restore::RestoreArgs;
use super::revert::RevertArgs;
use super::rewrite_locations::RewriteLocationsArgs;
use super::rewrite_manifests::RewriteManifestsArgs;
use super::run::RunArgs;
use super::show::ShowArgs;
use super::squash::SquashArgs;
use super::stats::StatsArgs;
use super::tag::TagArgs;
use super::top::TopArgs;
use super::undo::UndoArgs;
use super::unmount::UnmountArgs;
use super::verify::VerifyArgs;
use icechunkfs_base::size;

/// Mount Icechunk repositories as plain directories of Zarr files.
#[derive(Debug, Parser)]
#[command(
    name = crate::PROGRAM,
    version,
    propagate_version = true,
    max_term_width = 100,
    help_template = examples::help_template(),
    after_help = examples::PROGRAM
)]
pub struct Arguments {
    /// Limit for everything held in memory, such as 256M [default: 512M, or a quarter of the memory
    /// if that is less].
    #[arg(long, global = true, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) memory: Option<u64>,
    /// Log more; twice logs everything.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Form of a failure on standard error: text, or json (one line, {"errno", "message"}). Usage
    /// errors are always text.
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        env = "ICECHUNKFS_ERROR_FORMAT",
        hide_env = true,
        hide_possible_values = true
    )]
    pub(crate) error_format: ErrorFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// Returns the parser with the arguments of all commands. Otherwise they are made for the
    /// command that is parsed, and its description is then that of one of its arguments.
    pub fn built() -> clap::Command {
        Self::build(<Self as CommandFactory>::command())
    }

    /// Makes the arguments of all commands of `program`.
    pub(super) fn build(mut program: clap::Command) -> clap::Command {
        let describe = |command: &clap::Command| {
            [command.get_about(), command.get_long_about()].map(|text| Resettable::from(text.cloned()))
        };
        let described: Vec<_> = program.get_subcommands().map(describe).collect();
        program.build();
        for (command, [about, long_about]) in program.get_subcommands_mut().zip(described) {
            *command = std::mem::take(command).about(about).long_about(long_about);
        }
        program
    }
}

/// Form of a failure on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ErrorFormat {
    Text,
    Json,
}

// Each start would pay for the arguments of 40 commands.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum Command {
    /// Mount a branch, tag or snapshot of a repository as a directory.
    ///
    /// Returns when the mount answers; a daemon serves it until `icechunkfs unmount`, `umount`,
    /// SIGTERM or SIGINT. A branch is writable unless the mount is read-only: uncommitted changes
    /// stay in a scratch directory until `icechunkfs commit` or `touch MOUNTPOINT/.icechunk/commit`
    /// commits them.
    #[command(after_help = examples::MOUNT)]
    Mount(Box<MountArgs>),
    /// Remove a mount, even if its daemon has died.
    #[command(visible_alias = "umount", after_help = examples::UNMOUNT)]
    Unmount(UnmountArgs),
    /// Run a command in its own mount, and commit what it wrote if it succeeds.
    ///
    /// For cron(8) and timers: the mount has its own scratch directory, so a job never commits what
    /// an earlier one left. If the command fails, there is no commit, and what it wrote is
    /// discarded (--keep keeps it). If the commit fails, for instance because of a conflict, the
    /// work is kept, and the message says where. Signals are passed to the command. Nothing stays
    /// mounted.
    ///
    /// Exit status: that of the command; 128 plus the number of the signal that ended it; 127 or
    /// 126 if it is not found or cannot be started; 1 if the mount or the commit failed.
    #[command(after_help = examples::RUN)]
    Run(Box<RunArgs>),
    /// Commit the changes in a mount.
    #[command(after_help = examples::COMMIT)]
    Commit(CommitArgs),
    /// Show a summary of the uncommitted changes in a mount.
    #[command(after_help = examples::STATUS)]
    Status(MountpointArgs),
    /// Show differences node by node: the uncommitted changes in a mount, or those between two
    /// snapshots.
    #[command(override_usage = super::diff::USAGE, after_help = examples::DIFF)]
    Diff(Box<DiffArgs>),
    /// Replace the message or metadata of a branch's newest commit (version 2). The old commit
    /// stays until garbage is collected.
    #[command(after_help = examples::AMEND)]
    Amend(Box<AmendArgs>),
    /// Combine the newest commits of a branch into one with the contents of the last (version 2).
    /// The old commits stay until garbage is collected.
    #[command(after_help = examples::SQUASH)]
    Squash(Box<SquashArgs>),
    /// Copy everything that the branches and tags of a repository reach to a new one, under the
    /// same ids.
    ///
    /// Objects are copied byte for byte, and checked. An interrupted clone continues when it is run
    /// again. The configuration, metadata and feature flags are copied; the operations log is new.
    /// Later, `pull` and `push` of this user know REPO and its options, but no secrets.
    #[command(after_help = examples::CLONE)]
    Clone(Box<CloneArgs>),
    /// Bring branches and tags of another repository to where this one has them, and copy the
    /// missing objects.
    ///
    /// Branches only move forward, unless --force is given. Tags never move, and tags that were
    /// deleted there stay deleted. Each ref moves when everything that it needs is stored. Refs
    /// that REPO does not have stay. An interrupted push continues when it is run again.
    ///
    /// Exit status: 0 if all refs are there now, 1 if any was refused.
    #[command(after_help = examples::PUSH)]
    Push(Box<PushArgs>),
    /// Bring branches and tags of this repository to where another one has them.
    ///
    /// Exit status: 0 if all refs are here now, 1 if any was refused.
    #[command(after_help = examples::PULL)]
    Pull(Box<PullArgs>),
    /// Merge a branch, tag or snapshot into a branch: its changes since the common ancestor become
    /// one commit.
    ///
    /// No chunk is copied. Nodes and chunks that only one side changed are taken; those that both
    /// sides changed differently are conflicts, and then nothing is merged. The commit records the
    /// merge, so that the branch can be merged again later.
    ///
    /// Exit status: 0 if the branch has all changes now, or had them before; 1 after a conflict.
    #[command(after_help = examples::MERGE)]
    Merge(Box<MergeArgs>),
    /// Make a path what it was in an older snapshot, in a mount or on a branch. No chunk is read or
    /// copied.
    ///
    /// Everything at and below PATH becomes as in REF: nodes and chunks that are not in REF are
    /// removed, nodes that were moved below PATH are moved back, and everything else stays. A group
    /// or array that had another name in REF is found under that name. In a mount the result is an
    /// uncommitted change, which replaces other uncommitted changes below PATH. Without a mount it
    /// is one commit on a branch.
    ///
    /// Exit status: 0 if PATH is as in REF now, or was before; 1 after a conflict.
    #[command(after_help = examples::RESTORE)]
    Restore(Box<RestoreArgs>),
    /// Take commits back, in a mount or on a branch. No chunk is read or copied.
    ///
    /// One new commit makes what the commits changed as it was before them; later changes stay. If
    /// later commits changed the same things, nothing is taken back, and the conflicts are listed.
    /// In a mount the result is an uncommitted change.
    ///
    /// Exit status: 0 if nothing is left of what the commits changed; 1 after a conflict.
    #[command(after_help = examples::REVERT)]
    Revert(Box<RevertArgs>),
    /// Take back the newest operation on a branch (version 2).
    ///
    /// A branch goes back to where it was before a commit, an amendment or a reset; a created
    /// branch is deleted, and a deleted branch is restored. The newest operation may be another
    /// user's: the command shows it and asks. Nothing is lost until garbage is collected; another
    /// `undo` takes the undo back. For older commits, use `revert`.
    #[command(after_help = examples::UNDO)]
    Undo(Box<UndoArgs>),
    /// Rewrite all manifests of a branch, split by other rules or merged, in a commit that changes
    /// nothing else.
    RewriteManifests(Box<RewriteManifestsArgs>),
    /// Change the locations of virtual chunks after files were moved, in a commit that changes
    /// nothing else.
    ///
    /// `ls --virtual` lists the files. Earlier commits keep the old locations: mount them with
    /// --virtual-map FROM=TO.
    RewriteLocations(Box<RewriteLocationsArgs>),
    /// Discard the uncommitted changes in a mount. Untracked files stay.
    #[command(after_help = examples::DISCARD)]
    Discard(DiscardArgs),
    /// Settle conflicts of a mount one by one, by taking one side's chunks and members of
    /// zarr.json.
    ///
    /// A commit that conflicts with concurrent commits changes nothing, and lists the conflicts in
    /// .icechunk/conflicts. The next commit takes what is settled; if other commits change the same
    /// things again, they conflict again. If one side deleted or moved what the other changed,
    /// neither side can be taken: `discard` drops the change of the mount.
    ///
    /// Exit status: 1 if there is no such conflict, or neither side can be taken.
    #[command(after_help = examples::RESOLVE)]
    Resolve(ResolveArgs),
    /// Move a mount to its branch's newest commit. Uncommitted changes stay; a conflict refuses the
    /// move.
    Refresh(MountpointArgs),
    /// List the icechunkfs mounts of this machine: what they show, their uncommitted changes,
    /// daemon and health.
    ///
    /// Never hangs: a mount that does not answer within four seconds is listed as hanging, and one
    /// of another user as private, for root too. Mounts in other mount namespaces (containers) are
    /// not visible.
    List(ListArgs),
    /// Check everything that a mount needs: kernel, /dev/fuse, fusermount3, limits, space and other
    /// mounts; with REPO also the store: its clock, the credentials, and what they allow.
    ///
    /// Each line is ok, warn or fail, and says what to do. Exit status: 1 if any line is fail. Only
    /// --write writes: one temporary object, which is removed again.
    Doctor(Box<DoctorArgs>),
    /// Read everything below a path of a mount into the mount's cache (--cache), for fast or
    /// offline use.
    #[command(after_help = examples::PREFETCH)]
    Prefetch(PrefetchArgs),
    /// Create an empty repository (format version 2).
    #[command(after_help = examples::INIT)]
    Init(InitArgs),
    /// List branches and tags with their snapshot ids.
    Refs(RefsArgs),
    /// List, create, delete and reset branches.
    #[command(after_help = examples::BRANCH)]
    Branch(BranchArgs),
    /// List, create and delete tags.
    #[command(after_help = examples::TAG)]
    Tag(TagArgs),
    /// Show and change the configuration stored in a repository, which applies to all programs that
    /// open it.
    #[command(after_help = examples::CONFIG)]
    Config(ConfigArgs),
    /// Show the operations log of a repository, newest first: commits, branches, tags,
    /// configuration, maintenance.
    Ops(OpsArgs),
    /// Show the history of a branch, tag or snapshot, newest first.
    #[command(after_help = examples::LOG)]
    Log(LogArgs),
    /// List groups and arrays with shape, stored chunks and bytes.
    #[command(after_help = examples::LS)]
    Ls(LsArgs),
    /// Describe one group or array: type, shape, chunks, codecs, attributes, stored bytes, and the
    /// commit that changed it last.
    #[command(after_help = examples::SHOW)]
    Show(Box<ShowArgs>),
    /// Migrate an older repository to format version 2. Version 1 is migrated in place: the data
    /// stay where they are, and programs that support only version 1 can no longer open it. With
    /// --to, a new repository is created elsewhere.
    Migrate(MigrateArgs),
    /// Remove old commits from histories. Branches and tags keep their contents. Run
    /// `icechunkfs gc` afterwards to free the space.
    #[command(after_help = examples::EXPIRE)]
    Expire(ExpireArgs),
    /// Remove garbage: commits that no branch or tag leads to, with their manifests and chunks, and
    /// leftovers of failed commits.
    ///
    /// Keeps what branches and tags lead to, what uncommitted changes in the mounts and default
    /// scratch directories of this machine are based on, and what is younger than --older-than.
    /// Only their age protects running commits of other programs, scratch directories elsewhere,
    /// and uncommitted changes of users other than root and the user who runs this. Choose a time
    /// before they began, or name the scratch directories with --keep-scratch.
    #[command(after_help = examples::GC)]
    Gc(GcArgs),
    /// Check a repository: every rule of its format, and that all metadata exist; with --chunks,
    /// also that chunk objects exist with their lengths. The bytes of chunks are not looked at.
    ///
    /// An error is lost or unreadable data or history. A warning is a violated rule while
    /// everything can be read. A note is an object that nothing needs (`icechunkfs gc` removes it).
    ///
    /// Exit status: 0 if there are only notes, 3 for warnings, 4 for errors, 1 if the repository
    /// could not be checked, 2 for usage errors.
    #[command(after_help = examples::VERIFY)]
    Verify(VerifyArgs),
    /// Export the files of a branch, tag or snapshot, as a mount shows them, into a directory,
    /// without mounting.
    ///
    /// Each file is written whole or not at all. An interrupted export continues when it is run
    /// again. After success, everything is on the disk. Files have the commit's time.
    #[command(after_help = examples::EXPORT)]
    Export(ExportArgs),
    /// Commit the files of a directory, or a NetCDF file, to a branch or to a new repository,
    /// without mounting.
    ///
    /// Works like `cp -r` into a mount and a commit: SRC replaces what is at the same path, and
    /// everything else stays (--delete makes the branch a mirror). Files that Zarr has no place for
    /// are listed and left out; a node that cannot be committed refuses the whole import. The
    /// commit is atomic.
    ///
    /// A NetCDF or HDF5 file becomes a group, and its variables become arrays with the same values
    /// in xarray. A Zarr 2 hierarchy, also as kerchunk references, becomes version 3. Compressed
    /// chunks are copied as they are. Differences are listed.
    #[command(after_help = examples::IMPORT)]
    Import(ImportArgs),
    /// Show the storage use of a repository: by kind, by ref, by array, and unreachable objects.
    Stats(StatsArgs),
    /// Write the bytes of one Zarr key to standard output, without mounting.
    #[command(after_help = examples::CAT)]
    Cat(CatArgs),
    /// Show what a mount does now: requests, bytes by source, and open files, as top(1) does for
    /// processes.
    Top(TopArgs),
    /// Write manual pages and the completions of bash, zsh and fish, for packages.
    #[command(hide = true)]
    Generate(GenerateArgs),
    /// Read a file for an import: the process that it starts for that.
    #[command(hide = true)]
    PlanFile,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_repo::repo::refs::RefSpec;

    #[test]
    fn built_commands_have_their_own_descriptions() {
        let described = |program: &clap::Command| -> Vec<(String, [Option<String>; 2])> {
            let texts = |command: &clap::Command| {
                [command.get_about(), command.get_long_about()].map(|text| text.map(ToString::to_string))
            };
            program.get_subcommands().map(|command| (command.get_name().to_owned(), texts(command))).collect()
        };
        let expected = described(&Arguments::command());
        let built = described(&Arguments::built());
        assert_eq!(built.get(..expected.len()), Some(&expected[..]));
        assert!(expected.iter().any(|(name, [about, _])| name == "merge" && about.is_some()));
    }

    #[test]
    fn refs_are_picked() {
        let spec = |text: &str| match Arguments::try_parse_from(text.split(' ')).unwrap().command {
            Command::Log(log) => log.reference.spec(),
            _ => unreachable!("not a log command"),
        };
        assert_eq!(spec("icechunkfs log r").unwrap(), RefSpec::Branch("main".into()));
        assert_eq!(spec("icechunkfs log r --tag v1").unwrap(), RefSpec::Tag("v1".into()));
        assert!(
            matches!(spec("icechunkfs log r --branch b --as-of 2026-01-01").unwrap(), RefSpec::AsOf { branch, .. } if branch == "b")
        );
        for wrong in ["--snapshot nonsense", "--tag v1 --branch b", "--tag v1 --as-of 2026-01-01"] {
            assert!(spec(&format!("icechunkfs log r {wrong}")).is_err(), "{wrong}");
        }
    }
}
