//! The arguments of several commands: which repository, and which snapshot of it.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::open;
use super::virtual_args::VirtualArgs;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::times::{parse_past, system_clock};
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::refs::{DEFAULT_BRANCH, RefSpec};
use icechunkfs_repo::repo::revision::{MIN_PREFIX, is_abbreviation};
use icechunkfs_store::storage::settings::Settings;

/// A day, in microseconds.
const DAY: u64 = 24 * 3600 * 1_000_000;

/// A repository, and the settings to reach it. Flattened last, because the help heading of the
/// settings applies to all later options.
#[derive(Clone, Debug, Args)]
pub(crate) struct RepoArgs {
    /// The repository: a path, a URL (s3://, gs://, az://, abfs://, https://), or a path in a
    /// mount.
    #[arg(index = 1, value_name = "REPO", help_heading = None)]
    pub(crate) location: String,
    #[command(flatten)]
    pub(crate) store: Settings,
}

impl RepoArgs {
    /// Opens the repository.
    pub(crate) async fn open(&self) -> Result<Repository> {
        open::repository(&self.location, &self.store).await
    }

    /// Opens the repository for a command that reads chunks: virtual ones as far as `virtuals`
    /// allow it.
    pub(crate) async fn open_with(&self, virtuals: &VirtualArgs) -> Result<Repository> {
        virtuals.open(&self.location, &self.store).await
    }
}

/// Selection of one snapshot; branch `main` by default.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RefArgs {
    /// Newest commit of this branch [default: main].
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) branch: Option<String>,
    /// Snapshot that this tag points to.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) tag: Option<String>,
    /// Snapshot with this id, or the beginning of its id.
    #[arg(long, value_name = "ID")]
    pub(crate) snapshot: Option<String>,
    /// Newest commit in the branch's history that is not younger than this time:
    /// 2026-08-20T14:30:00Z, '2026-08-20 14:30' (UTC), a date (its end, UTC), or an age such as 3d.
    /// Commits that a reset or an amend has removed are not found.
    #[arg(long, value_name = "TIME")]
    pub(crate) as_of: Option<String>,
}

impl RefArgs {
    /// Returns the selected ref. Fails if the arguments contradict each other.
    pub(crate) fn spec(&self) -> Result<RefSpec> {
        let branch = || self.branch.clone().unwrap_or_else(|| DEFAULT_BRANCH.to_owned());
        match (&self.tag, &self.snapshot, &self.as_of) {
            (None, None, None) => Ok(RefSpec::Branch(branch())),
            (None, None, Some(text)) => {
                let time = parse_past(text, system_clock()).map_err(|e| e.context("--as-of"))?;
                // The end of this day is often meant.
                if time > system_clock() + DAY {
                    super::note(&format!("--as-of {text} is in the future: later commits will belong to it, too"));
                }
                Ok(RefSpec::AsOf { branch: branch(), time })
            }
            (Some(tag), None, None) if self.branch.is_none() => Ok(RefSpec::Tag(tag.clone())),
            (None, Some(id), None) if self.branch.is_none() => match id.parse() {
                Ok(id) => Ok(RefSpec::Snapshot(id)),
                Err(_) if is_abbreviation(id) => Ok(RefSpec::Abbreviated(id.clone())),
                Err(_) => Err(Error::invalid(format!(
                    "--snapshot {id}: this is not a valid id: write its 20 letters and digits, or at least the first \
                     {MIN_PREFIX}; a branch is --branch NAME, a tag --tag NAME"
                ))),
            },
            _ => Err(Error::invalid("name only one of a branch, a tag and a snapshot; a time (as of) needs a branch")),
        }
    }
}
