//! Arguments and output that `clone`, `push` and `pull` share: two repositories, and how to reach
//! each.

use std::sync::Arc;

use clap::{Arg, Args, Command, FromArgMatches};
use serde_json::{Value, json};

use super::progress::State;
use super::repo_args::RepoArgs;
use super::{open, print, print_json, progress, ref_commands};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_base::times::system_clock;
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::change_refs::RefKind;
use icechunkfs_repo::sync::Counters;
use icechunkfs_repo::sync::notes::{CopyNotes, Origin};
use icechunkfs_repo::sync::push::{Change, Hints, PushOptions, Pushed};
use icechunkfs_store::storage::location::{Location, StorePlace};
use icechunkfs_store::storage::settings::{Settings, Source};
use icechunkfs_working::scratch::directory::state_directory;

/// The first repository, and how to reach it and the second one.
#[derive(Clone, Debug, Args)]
pub(crate) struct TwoRepos {
    /// Set an option for the second repository if both are in object stores, such as
    /// region=eu-west-1 or anonymous. The options below then apply to the first one, otherwise to
    /// the one in an object store. Repeatable.
    #[arg(long, value_name = "OPTION[=VALUE]")]
    other: Vec<String>,
    #[command(flatten)]
    repo: RepoArgs,
}

impl TwoRepos {
    /// Returns both repositories, of which the second is at `second`, with the settings to reach
    /// them.
    pub(crate) fn places(&self, second: &str) -> Result<(Place, Place)> {
        let (of_first, of_second) = self.settings(second)?;
        Ok(((self.repo.location.clone(), of_first), (second.to_owned(), of_second)))
    }

    /// Returns both repositories. Without a `second` it is the one that the first was cloned from,
    /// which the `command` tells.
    pub(crate) fn with_origin(&self, second: Option<&str>, command: &str) -> Result<(Place, Place)> {
        if let Some(second) = second {
            return self.places(second);
        }
        let location = &self.repo.location;
        let of_first = if is_remote(location)? { self.repo.store.clone() } else { Settings::default() };
        let origin = open::run(async {
            let repository = open::repository(location, &of_first).await?;
            Ok(notes().and_then(|notes| notes.origin(&**repository.storage())))
        })?;
        let Some(Origin { location: second, options }) = origin else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "{0}: you did not clone it, so the second repository is not known: name one, as in `icechunkfs \
                     {command} {0} OTHER`",
                    printable::line(location)
                ),
            ));
        };
        let doing = if command == "pull" { "pulling from" } else { "pushing to" };
        super::note(&format!("{doing} {second}"));
        let (first, (second, given)) = self.places(&second)?;
        let remembered = Settings::parse(&options, Source::CommandLine)?;
        Ok((first, (second, given.or_of_access(remembered))))
    }

    fn settings(&self, second: &str) -> Result<(Settings, Settings)> {
        let given = &self.repo.store;
        let first = is_remote(&self.repo.location)?;
        let both = first && is_remote(second)?;
        if !both && !self.other.is_empty() {
            return Err(Error::invalid(
                "--other is for two repositories in object stores: with one, its options are given as they are",
            ));
        }
        if !first {
            return Ok((Settings::default(), given.clone()));
        }
        let words = self.other.iter().map(|option| format!("--{option}"));
        let command = Settings::augment_args(Command::new("--other").no_binary_name(true).disable_help_flag(true));
        let parsed = command.try_get_matches_from(words).and_then(|found| Settings::from_arg_matches(&found));
        let other = parsed.map_err(|e| Error::invalid(format!("--other: {}", one_line(&e.to_string()))))?;
        Ok((given.clone(), other))
    }
}

fn is_remote(place: &str) -> Result<bool> {
    Location::parse(place).map(|found| !matches!(found.place, StorePlace::Local(_)))
}

/// Makes the first repository optional.
pub(crate) fn in_working_directory(location: Arg) -> Arg {
    location.required(false).default_value(".")
}

/// Returns the first line of a message of several.
fn one_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_start_matches("error: ")
}

/// Runs `work` with a bar that shows its counters.
pub(crate) fn watched<T>(counters: &Counters, work: impl FnOnce() -> T) -> T {
    let state = || {
        let (all, done) = counters.progress();
        State::of("copying", (done, all), "objects").with_bytes(counters.copied().1)
    };
    progress::watched(state, work)
}

/// Returns this user's notes on what repositories were compared; none without a home directory.
pub(crate) fn notes() -> Option<CopyNotes> {
    Some(CopyNotes::new(state_directory().ok()?.join(".compared")))
}

/// Location of a repository, and the settings to reach it.
pub(crate) type Place = (String, Settings);

/// Source and destination of a push, which a pull has the other way round.
pub(crate) struct Pushing<'a> {
    pub(crate) source: Place,
    pub(crate) destination: Place,
    pub(crate) refs: &'a [String],
    pub(crate) is_pull: bool,
    pub(crate) force: bool,
    pub(crate) dry_run: bool,
    pub(crate) json: bool,
}

impl Pushing<'_> {
    /// Copies what the destination lacks, moves its refs and reports that. Fails if any ref was
    /// refused.
    pub(crate) fn run(self) -> Result<()> {
        let counters = Counters::default();
        let options = PushOptions {
            refs: self.refs.to_vec(),
            is_pull: self.is_pull,
            hints: Hints { of_source: self.source.1.of_access(), of_destination: self.destination.1.of_access() },
            force: self.force,
            dry_run: self.dry_run,
            memory: open::MemoryLimits::default().uploads(),
            notes: notes(),
        };
        let pushed = watched(&counters, || {
            open::run(async {
                let (place, settings) = &self.source;
                let source = open::repository(place, settings).await?;
                let (place, settings) = &self.destination;
                let destination = open::repository(place, settings).await.map_err(|error| match error.kind() {
                    ErrorKind::NotARepository | ErrorKind::NotFound => {
                        Error::new(error.kind(), format!("{error}; `icechunkfs clone` makes a repository there"))
                    }
                    _ => error,
                })?;
                refuse_same(&source, &destination)?;
                icechunkfs_repo::sync::push::push(source, destination, &options, &counters, system_clock).await
            })
        })?;
        let refused = pushed.refs.iter().filter(|found| matches!(found.change, Change::Refused(_))).count();
        if pushed.refs.iter().any(|found| found.change == Change::Forced) {
            // The refs have moved: a note is not worth a failure.
            let _ = self.note_mounts(&pushed);
        }
        if self.json {
            print_json(&report(&pushed, &counters))?;
        } else {
            print(&self.describe(&pushed, &counters))?;
        }
        match refused {
            0 => Ok(()),
            count => Err(Error::new(
                ErrorKind::Stale,
                format!("{count} of {} refs were refused, and stay as they are there", pushed.refs.len()),
            )),
        }
    }

    /// Says where branches are mounted that have lost commits.
    fn note_mounts(&self, pushed: &Pushed) -> Result<()> {
        open::run(async {
            let (place, settings) = &self.destination;
            let repository = open::repository(place, settings).await?;
            let forced =
                pushed.refs.iter().filter(|found| found.change == Change::Forced && found.kind == RefKind::Branch);
            for found in forced {
                if let Some(mounted) = ref_commands::mounted(&repository, &found.name) {
                    super::note(&format!("branch {}: {mounted}", found.name));
                }
            }
            Ok(())
        })
    }

    fn describe(&self, pushed: &Pushed, counters: &Counters) -> String {
        let mut text = String::new();
        for found in &pushed.refs {
            let name = printable::line(&format!("{} {}", found.kind, found.name));
            let from = found.from.map(|id| id.to_string()).unwrap_or_default();
            text += &match &found.change {
                Change::Unchanged => continue,
                Change::Newer => format!(
                    "newer      {name}, up to {from}: only here; if these commits were taken back there, --force follows\n"
                ),
                Change::Created => format!("new        {name} at {}\n", found.to),
                Change::Forward => format!("forward    {name} from {from} to {}\n", found.to),
                Change::Forced => format!("forced     {name} from {from} to {}\n", found.to),
                Change::Refused(why) => format!("refused    {name}: {why}\n"),
            };
        }
        let (objects, bytes) = counters.copied();
        if self.dry_run {
            return text
                + &format!(
                    "{} would be copied; nothing was changed\n",
                    size::counted(pushed.commits as u64, "commit")
                );
        }
        if text.is_empty() {
            return "all refs are there already\n".to_owned();
        }
        let [commits, objects] =
            [(pushed.commits as u64, "commit"), (objects, "object")].map(|(count, noun)| size::counted(count, noun));
        text + &format!("copied {commits}, {objects}, {}\n", size::text(bytes))
    }
}

fn report(pushed: &Pushed, counters: &Counters) -> Value {
    let refs: Vec<Value> = pushed.refs.iter().map(|found| {
        let (change, why) = match &found.change {
            Change::Unchanged => ("unchanged", None),
            Change::Newer => ("newer", None),
            Change::Created => ("created", None),
            Change::Forward => ("forward", None),
            Change::Forced => ("forced", None),
            Change::Refused(why) => ("refused", Some(why)),
        };
        json!({"kind": found.kind.to_string(), "name": found.name, "from": found.from, "to": found.to, "change": change, "why": why})
    }).collect();
    let (objects, bytes) = counters.copied();
    json!({"refs": refs, "commits": pushed.commits, "objects": objects, "bytes": bytes})
}

/// Fails if both are the same place.
fn refuse_same(source: &Repository, destination: &Repository) -> Result<()> {
    let one = source.storage();
    let other = destination.storage();
    let is_same = match (one.local_path(), other.local_path()) {
        (Some(one), Some(other)) => one == other,
        _ => Arc::ptr_eq(one, other),
    };
    if is_same {
        return Err(Error::invalid(format!("{} is both source and destination", one.location())));
    }
    Ok(())
}
