//! `icechunkfs clone`: makes a repository with everything that the refs of another reach.

use clap::Args;
use indicatif::HumanBytes;
use serde_json::json;

use super::sync_args::{TwoRepos, agreements, watched};
use super::{open, print_result};
use icechunkfs_base::error::Result;
use icechunkfs_base::times::system_clock;
use icechunkfs_repo::sync::Counters;
use icechunkfs_repo::sync::clone::{self, CloneOptions};
use icechunkfs_store::storage;

#[derive(Debug, Args)]
pub(crate) struct CloneArgs {
    /// The new repository: a path or a URL of an empty place, or one with an unfinished clone of
    /// REPO, which then continues.
    #[arg(index = 2, value_name = "DEST")]
    dest: String,
    /// Print {"branches", "tags", "commits", "objects", "bytes"}: counts of what the new repository
    /// has, and of what was copied now.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repos: TwoRepos,
}

/// Clones a repository.
pub(crate) fn run(arguments: &CloneArgs) -> Result<()> {
    let ((repo, of_repo), (dest, of_dest)) = arguments.repos.places(&arguments.dest)?;
    let counters = Counters::default();
    let options = CloneOptions { memory: open::MemoryLimits::default().uploads(), agreements: agreements() };
    let cloned = watched(&counters, || {
        open::run(async {
            // The source is there before a directory is made for the copy.
            let source = open::repository(repo, &of_repo).await?;
            let destination = storage::open_new(dest, &of_dest).await?;
            clone::clone(source, &destination, &options, &counters, system_clock).await
        })
    })?;
    let (objects, bytes) = counters.copied();
    let report = json!({
        "branches": cloned.branches,
        "tags": cloned.tags,
        "commits": cloned.commits,
        "objects": objects,
        "bytes": bytes,
    });
    print_result(arguments.json, &report, || {
        let of = |count: usize, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
        format!(
            "cloned {}, {} and {}: copied {objects} objects, {}\n",
            of(cloned.branches, "branch", "branches"),
            of(cloned.tags, "tag", "tags"),
            of(cloned.commits, "commit", "commits"),
            HumanBytes(bytes)
        )
    })
}
