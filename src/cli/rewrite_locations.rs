//! `icechunkfs rewrite-locations`: a commit in which virtual chunks are where their files were
//! moved.

use clap::Args;
use serde_json::{Value, json};

use super::replace_commits::{self, listed_conflicts};
use super::repo_args::RepoArgs;
use super::{open, print_result, progress};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_base::times::system_clock;
use icechunkfs_repo::commit::engine::{CommitOutcome, Request};
use icechunkfs_repo::commit::progress::CommitProgress;
use icechunkfs_repo::repo::refs::{DEFAULT_BRANCH, RefSpec};
use icechunkfs_store::storage::virtuals::address::Address;
use icechunkfs_store::storage::virtuals::permissions::prefix_or_path;
use icechunkfs_working::transfer::containers::{self, MissingContainers};
use icechunkfs_working::transfer::relocate::{self, Relocation};

#[derive(Debug, Args)]
pub(crate) struct RewriteLocationsArgs {
    /// The prefix of the locations: a path, or a URL (file:///data, s3://bucket/data).
    #[arg(index = 2)]
    from: String,
    /// The new prefix, where the files are now. Local files must have the times that they had. A
    /// store does not keep times: chunks that are checked by them stay.
    #[arg(index = 3)]
    to: String,
    /// The branch that gets the commit.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_BRANCH)]
    branch: String,
    /// Add a container for the directory TO to the configuration if there is none.
    #[arg(long)]
    set_container: bool,
    /// Also accept files that are older than those that were there.
    #[arg(long)]
    allow_older: bool,
    /// The commit message [default: Locations rewritten].
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Set a metadata item; VALUE is JSON or text. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Show the result without changing anything.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print {"branch", "snapshot", "files", "chunks", "bytes"}; snapshot is null if nothing was
    /// committed.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Changes the locations of virtual chunks of a branch.
pub(crate) fn run(arguments: &RewriteLocationsArgs) -> Result<()> {
    let [from, to] = [&arguments.from, &arguments.to].map(|text| prefix_or_path(text));
    let relocation = Relocation { from: from?, to: to?, allow_older: arguments.allow_older };
    let metadata = replace_commits::metadata(&arguments.metadata)?;
    replace_commits::check_not_reserved(metadata.keys())?;
    let branch = arguments.branch.clone();
    open::run(async {
        let repository = arguments.repo.open().await?;
        repository.check_changes_allowed().await?;
        let place = || repository.storage().location().to_owned();
        let containers = repository.config().await?.virtual_containers();
        let spec = RefSpec::Branch(branch.clone());
        let tree = open::tree(&repository, &spec, open::MemoryLimits::default()).await?;
        let bar = progress::begin("looking at virtual chunks");
        let moved = relocate::relocate(&tree, &relocation).await;
        drop(bar);
        let moved = moved.context(place)?;
        let without = |directory: &&Address| !containers::is_in_any(directory, &containers);
        let missing = moved.directories.iter().find(without).map(|first| {
            let is_below = relocation.to.rest_of(first).is_some();
            if is_below { relocation.to.clone() } else { first.clone() }
        });
        let missing = missing.map(|prefix| (prefix.clone(), prefix)).into_iter().collect();
        let missing = MissingContainers::of(missing, arguments.set_container, None).await?;
        let mut snapshot = None;
        if moved.chunks > 0 && !arguments.dry_run {
            missing.add(&repository, system_clock).await?;
            let (_, engine) = open::engine(&repository)?;
            let message = arguments.message.clone().unwrap_or_else(|| "Locations rewritten".to_owned());
            let request = Request { branch: branch.clone(), message, metadata, ..Request::default() };
            let progress = CommitProgress::default();
            match engine.commit(tree.snapshot(), &moved.changes, &request, &progress).await.context(place)? {
                CommitOutcome::Committed { snapshot: committed, .. } => snapshot = Some(committed),
                CommitOutcome::Nothing => {}
                CommitOutcome::Conflicts(conflicts) => {
                    let text = format!(
                        "commits to branch `{}` changed the same chunks meanwhile: nothing was committed; run it again\n{}",
                        printable::line(&branch),
                        listed_conflicts(&conflicts)
                    );
                    return Err(Error::multi_line(ErrorKind::Stale, &text));
                }
            }
        }
        let report: Value = json!({
            "branch": branch, "snapshot": snapshot, "files": moved.files, "chunks": moved.chunks, "bytes": moved.bytes,
        });
        print_result(arguments.json, &report, || {
            let what = format!(
                "{} of {}, {}",
                size::counted(moved.chunks, "chunk"),
                size::counted(moved.files as u64, "file"),
                size::text(moved.bytes)
            );
            let branch = printable::line(&branch);
            match snapshot {
                Some(snapshot) => format!("committed snapshot {snapshot} to branch {branch}: {what}\n"),
                None if moved.chunks > 0 => format!("would commit to branch {branch}: {what}\n"),
                None => format!("branch {branch} has no chunk in files below {}\n", relocation.from.as_prefix()),
            }
        })
    })
}
