//! `icechunkfs clone`: makes a repository with everything that the refs of another reach.

use clap::Args;
use serde_json::json;

use super::sync_args::{TwoRepos, notes, watched};
use super::{note, open, print_result};
use icechunkfs_base::error::Result;
use icechunkfs_base::size;
use icechunkfs_base::times::system_clock;
use icechunkfs_repo::sync::Counters;
use icechunkfs_repo::sync::clone::{self, CloneOptions};
use icechunkfs_repo::sync::notes::Origin;

#[derive(Debug, Args)]
pub(crate) struct CloneArgs {
    /// The new repository: an empty path or URL, or one with an unfinished clone of REPO.
    #[arg(index = 2, value_name = "DEST")]
    dest: String,
    /// Print {"branches", "tags", "commits", "objects", "bytes"}: counts of the new repository, and
    /// of what was copied now.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repos: TwoRepos,
}

/// Clones a repository.
pub(crate) fn run(arguments: &CloneArgs) -> Result<()> {
    let ((repo, of_repo), (dest, of_dest)) = arguments.repos.places(&arguments.dest)?;
    let counters = Counters::default();
    let options = CloneOptions { memory: open::MemoryLimits::default().uploads(), notes: notes() };
    let cloned = watched(&counters, || {
        open::run(async {
            // The source is there before a directory is made for the copy.
            let source = open::repository(&repo, &of_repo).await?;
            let origin = Origin { location: source.storage().location().to_owned(), options: of_repo.of_access() };
            let destination = open::new_place(&dest, &of_dest).await?;
            let cloned = clone::clone(source, &destination, &options, &counters, system_clock).await?;
            let remembered = options.notes.as_ref().map_or(Ok(()), |notes| notes.set_origin(&*destination, origin));
            if let Err(error) = remembered {
                note(&format!("later pulls need the location of REPO, which could not be remembered: {error}"));
            }
            Ok(cloned)
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
        let [branches, tags, commits] = [(cloned.branches, "branch"), (cloned.tags, "tag"), (cloned.commits, "commit")]
            .map(|(count, noun)| size::counted(count as u64, noun));
        let objects = size::counted(objects, "object");
        format!("cloned {branches}, {tags} and {commits}: copied {objects}, {}\n", size::text(bytes))
    })
}
