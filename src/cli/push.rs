//! `icechunkfs push`: brings the refs of another repository to where this one has them.

use clap::Args;

use super::sync_args::{Pushing, TwoRepos, in_working_directory};
use icechunkfs_base::error::Result;

#[derive(Debug, Args)]
#[command(mut_arg("location", in_working_directory))]
pub(crate) struct PushArgs {
    /// The repository that gets commits: a path or a URL [default: the one that REPO was cloned
    /// from].
    #[arg(index = 2, value_name = "DEST")]
    dest: Option<String>,
    /// The branches and tags to bring there [default: all].
    #[arg(index = 3, value_name = "REF")]
    refs: Vec<String>,
    /// Move branches of DEST even if they have commits that are not in REPO. No branch there has
    /// these commits then.
    #[arg(long)]
    force: bool,
    /// Only show what the push would do.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print {"refs": [{"kind", "name", "from", "to", "change", "why"}], "commits", "objects",
    /// "bytes"}: of each ref its old target (null if it is new) and that in the source, the change
    /// (unchanged, created, forward, forced or refused) and the reason of a refusal; counts of what
    /// was copied.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repos: TwoRepos,
}

/// Pushes refs.
pub(crate) fn run(arguments: &PushArgs) -> Result<()> {
    let (source, destination) = arguments.repos.with_origin(arguments.dest.as_deref(), "push")?;
    Pushing {
        source,
        destination,
        refs: &arguments.refs,
        is_pull: false,
        force: arguments.force,
        dry_run: arguments.dry_run,
        json: arguments.json,
    }
    .run()
}
