//! `icechunkfs pull`: brings the refs of this repository to where another has them.

use clap::Args;

use super::sync_args::{Pushing, TwoRepos, in_working_directory};
use icechunkfs_base::error::Result;

#[derive(Debug, Args)]
#[command(mut_arg("location", in_working_directory))]
pub(crate) struct PullArgs {
    /// The repository that has the commits: a path or a URL [default: the one that REPO was cloned
    /// from].
    #[arg(index = 2, value_name = "SRC")]
    source: Option<String>,
    /// The branches and tags to get [default: all].
    #[arg(index = 3, value_name = "REF")]
    refs: Vec<String>,
    /// Move branches of REPO even if they have commits that are not in SRC. No branch here has
    /// these commits then.
    #[arg(long)]
    force: bool,
    /// Only show what the pull would do.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print the same as `push --json`; a branch that has newer commits here is "newer".
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repos: TwoRepos,
}

/// Pulls refs.
pub(crate) fn run(arguments: &PullArgs) -> Result<()> {
    let (destination, source) = arguments.repos.with_origin(arguments.source.as_deref(), "pull")?;
    Pushing {
        source,
        destination,
        refs: &arguments.refs,
        is_pull: true,
        force: arguments.force,
        dry_run: arguments.dry_run,
        json: arguments.json,
    }
    .run()
}
