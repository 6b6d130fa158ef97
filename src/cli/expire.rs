//! `icechunkfs expire`: removes old commits from histories.

use clap::Args;
use serde_json::json;
use tokio::runtime::Runtime;
use tracing::warn;

use super::confirm::ConfirmArgs;
use super::repo_args::RepoArgs;
use super::{open, print_result, ref_commands};
use icechunkfs_base::error::Result;
use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_base::times::{format_time, parse_older_than, system_clock};
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::expire::{ExpireOptions, Expired, expire};

#[derive(Debug, Args)]
pub(crate) struct ExpireArgs {
    /// Expire commits older than this: an age such as 30d (s, m, h, d, w), a time (RFC 3339), or a
    /// date (its beginning, UTC).
    #[arg(long, value_name = "AGE")]
    older_than: String,
    /// Delete tags that point to a commit older than AGE.
    #[arg(long)]
    delete_expired_tags: bool,
    /// Delete branches whose newest commit is older than AGE; never `main`.
    #[arg(long)]
    delete_expired_branches: bool,
    /// Show the result without changing anything.
    #[arg(long)]
    dry_run: bool,
    /// Print {"older_than", "dry_run", "released": [ID], "edited": [ID], "deleted_branches": {NAME:
    /// ID}, "deleted_tags": {NAME: ID}}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Expires commits, after confirmation.
pub(crate) fn run(arguments: &ExpireArgs) -> Result<()> {
    open::run_on(|runtime| run_on(runtime, arguments))
}

fn run_on(runtime: &Runtime, arguments: &ExpireArgs) -> Result<()> {
    let older_than = parse_older_than(&arguments.older_than, system_clock()).map_err(|e| e.context("--older-than"))?;
    let wanted = ExpireOptions {
        older_than,
        delete_tags: arguments.delete_expired_tags,
        delete_branches: arguments.delete_expired_branches,
        dry_run: true,
    };
    let repository = runtime.block_on(arguments.repo.open())?;
    let mut expired = runtime.block_on(expire(&repository, wanted, system_clock))?;
    let in_use = runtime.block_on(branches_in_use(&repository, &expired))?;
    // Without a question, the log has it: the user may not know of the mount.
    if arguments.dry_run || arguments.confirm.yes {
        in_use.iter().for_each(|line| warn!("{line}"));
    }
    if !arguments.dry_run && !expired.is_empty() {
        let in_use: String = in_use.into_iter().map(|line| line + "\n").collect();
        let question = format!("{}{in_use}This cannot be undone.", text(&expired, older_than, true));
        arguments.confirm.confirm(question.trim_end())?;
        let wanted = ExpireOptions { dry_run: false, ..wanted };
        expired = runtime.block_on(async {
            let repository = arguments.repo.open().await?;
            expire(&repository, wanted, system_clock).await
        })?;
    }
    let value = json!({
        "older_than": format_time(older_than),
        "dry_run": arguments.dry_run,
        "released": expired.released,
        "edited": expired.edited,
        "deleted_branches": expired.branches,
        "deleted_tags": expired.tags,
    });
    print_result(arguments.json, &value, || text(&expired, older_than, arguments.dry_run))
}

/// Describes the mounts and the uncommitted work on this machine of branches that will be deleted,
/// or of which commits expire that this work may be based on; one line for a branch.
async fn branches_in_use(repository: &Repository, expired: &Expired) -> Result<Vec<String>> {
    // Version 2 remembers what became of a commit.
    let is_forgotten = repository.version() == SpecVersion::V1 && !expired.released.is_empty();
    let refs = repository.refs().await?;
    let in_use = |name: &String| {
        let becomes = if expired.branches.contains_key(name) {
            "will be deleted."
        } else if is_forgotten {
            "loses commits. Changes that are based on one of them cannot be committed then."
        } else {
            return None;
        };
        let mounted = ref_commands::mounted(repository, name)?;
        Some(format!("Branch `{}` {becomes} {mounted}", printable::line(name)))
    };
    Ok(refs.branches.keys().filter_map(in_use).collect())
}

fn text(expired: &Expired, older_than: u64, would: bool) -> String {
    if expired.is_empty() {
        return format!("nothing to remove: no commit older than {} can expire\n", format_time(older_than));
    }
    let [delete, remove, reparent] =
        if would { ["would delete", "would remove", "re-parent"] } else { ["deleted", "removed", "re-parented"] };
    let mut text = String::new();
    for (kind, refs) in [("branch", &expired.branches), ("tag", &expired.tags)] {
        for (name, id) in refs {
            text += &format!("{delete} {kind} `{}` ({id})\n", printable::line(name));
        }
    }
    let released = size::counted(expired.released.len() as u64, "commit");
    let edited = size::counted(expired.edited.len() as u64, "commit");
    let time = format_time(older_than);
    text + &format!("{remove} {released} older than {time} from the history and {reparent} {edited}\n")
}
