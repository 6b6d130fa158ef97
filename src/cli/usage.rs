//! Answer to a command line that is not understood: what the user may have meant, and the nearest
//! examples.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Error};

use super::args::Arguments;
use icechunkfs_base::printable;
use icechunkfs_store::storage::location::Location;

/// Examples that are shown.
const EXAMPLES: usize = 2;

/// Commands of git, jj, restic and others, and what does here what they do there.
const FOREIGN: [(&[&str], &str); 16] = [
    (
        &["checkout", "switch", "co", "edit", "worktree"],
        "`icechunkfs mount REPO MOUNTPOINT --branch NAME` shows a branch, and --create makes it",
    ),
    (
        &["add", "stage", "save"],
        "a mount keeps all that is written; `icechunkfs commit MOUNTPOINT -m MESSAGE` commits it",
    ),
    (&["stash", "shelve"], "changes wait in the scratch directory of their branch: unmount, and mount another branch"),
    (
        &["rebase", "update", "sync"],
        "`icechunkfs refresh MOUNTPOINT` moves a mount and its changes to the newest commit",
    ),
    (
        &["reset"],
        "`icechunkfs discard MOUNTPOINT` drops changes; `icechunkfs branch REPO reset NAME --to REF` moves a branch",
    ),
    (
        &["describe", "inspect", "info"],
        "`icechunkfs show REPO PATH` describes a group or an array, `icechunkfs diff REPO REF~1 REF` shows a commit",
    ),
    (&["snapshots", "history", "snapshot"], "`icechunkfs log REPO` lists snapshots"),
    (&["prune", "forget", "vacuum"], "`icechunkfs expire` and `icechunkfs gc` remove what is not needed any more"),
    (&["check", "fsck"], "`icechunkfs verify REPO` checks a repository"),
    (&["fetch"], "`icechunkfs pull REPO SOURCE` brings commits"),
    (&["backup"], "`icechunkfs push REPO DEST` and `icechunkfs clone REPO DEST` copy a repository"),
    (&["remote"], "`push` and `pull` take the other repository as an argument"),
    (
        &["rm", "mv", "cp", "mkdir", "touch"],
        "use the programs of the system in a mount: `icechunkfs mount REPO MOUNTPOINT`",
    ),
    (&["blame", "annotate"], "`icechunkfs log REPO PATH` lists the commits that changed a path"),
    (
        &["reflog", "op", "operations"],
        "`icechunkfs ops REPO` lists operations, `icechunkfs undo REPO` takes back the newest",
    ),
    (
        &["abandon", "rollback"],
        "`icechunkfs undo REPO` takes back the newest operation, `icechunkfs revert` older commits",
    ),
];

/// Options that people type, and what to write here; of any command if that is empty.
const OPTIONS: [(&str, &str, &str); 12] = [
    ("branch", "-d", "a branch is deleted by: icechunkfs branch REPO delete NAME"),
    ("branch", "-D", "a branch is deleted by: icechunkfs branch REPO delete NAME --yes"),
    ("branch", "-m", "there is no renaming: create the new name with --at OLD-NAME, then delete the old one"),
    ("tag", "-d", "a tag is deleted by: icechunkfs tag REPO delete NAME"),
    ("mount", "-b", "a branch is mounted with: --branch NAME"),
    ("mount", "-t", "the type of the file system is not needed"),
    ("commit", "-a", "all changes of the mount are committed: -a is not needed"),
    ("commit", "-am", "all changes of the mount are committed: write -m MESSAGE"),
    ("push", "--branch", "branches are named after DEST: icechunkfs push REPO DEST NAME"),
    ("pull", "--branch", "branches are named after SRC: icechunkfs pull REPO SRC NAME"),
    ("merge", "--ours", "write --on-conflict ours"),
    ("", "--at", "write --branch NAME, --tag NAME or --snapshot ID"),
];

/// Prints `error` for a command line of `words`, and returns the status to exit with. Help and the
/// version are such errors, too.
pub(super) fn report(error: Error, words: &[OsString]) -> ExitCode {
    let code = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
    let is_wrong = error.use_stderr();
    let command = command_of(words);
    let examples = if is_wrong { nearest_examples(command.as_deref(), words) } else { Vec::new() };
    let error = if is_wrong { with_tip(error, command.as_deref(), words) } else { error };
    // A reader that is gone needs nothing.
    let _ = error.print();
    if !examples.is_empty() {
        eprintln!("\nExamples:\n{}", examples.join("\n"));
    }
    code
}

/// Returns the name of the command in `words`, which begin with the program's name.
fn command_of(words: &[OsString]) -> Option<String> {
    let program = Arguments::command();
    let mut words = words.iter().skip(1).filter_map(|word| word.to_str());
    words.find(|word| !word.starts_with('-')).filter(|word| program.find_subcommand(word).is_some()).map(str::to_owned)
}

/// Replaces the parser's guess of what was meant by what is known.
fn with_tip(mut error: Error, command: Option<&str>, words: &[OsString]) -> Error {
    if let Some(tip) = missing(&error, command, words) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![printable::line(&tip).into()]));
        return error;
    }
    let given =
        [ContextKind::InvalidArg, ContextKind::InvalidSubcommand].into_iter().find_map(|kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.clone()),
            _ => None,
        });
    let Some(given) = given else { return error };
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand => foreign(&given).or_else(|| forgotten_mount(&given, words)),
        ErrorKind::UnknownArgument => command.and_then(|command| meant(command, &given, words)),
        _ => return error,
    };
    // That an option is meant as a value is unlikely, and so is one that begins otherwise.
    error.remove(ContextKind::Suggested);
    let is_near = |guess: &ContextValue| match guess {
        ContextValue::String(guess) => given.len() > 2 && guess.get(..3) == given.get(..3),
        ContextValue::Strings(all) => all.iter().any(|guess| guess.get(..2) == given.get(..2)),
        _ => false,
    };
    for kind in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand] {
        if tip.is_some() || !error.get(kind).is_some_and(is_near) {
            error.remove(kind);
        }
    }
    if let Some(tip) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![printable::line(&tip).into()]));
    }
    error
}

/// Returns the tip for an argument that is missing.
fn missing(error: &Error, command: Option<&str>, words: &[OsString]) -> Option<String> {
    if error.kind() != ErrorKind::MissingRequiredArgument {
        return None;
    }
    let Some(ContextValue::Strings(all)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_missing = |name: &str| all.iter().any(|arg| arg == name);
    let range = words.iter().filter_map(|word| word.to_str()?.split_once(".."));
    let mut range = range.filter(|(from, to)| !from.is_empty() && !to.is_empty() && !to.starts_with('/'));
    match command {
        Some("diff") if is_missing("<TO>") => {
            let (from, to) = range.next()?;
            Some(format!("two arguments: icechunkfs diff REPO {from} {to}"))
        }
        Some(name @ ("branch" | "tag")) if is_missing("<NAME>") => {
            Some(format!("the repository is needed, too: icechunkfs {name} REPO create NAME"))
        }
        _ if is_missing("<REPO>") => {
            Some("the repository comes first: a path, a URL, or `.` in a mount of it".to_owned())
        }
        _ => None,
    }
}

fn foreign(given: &str) -> Option<String> {
    FOREIGN.iter().find(|(names, _)| names.contains(&given)).map(|(_, tip)| (*tip).to_owned())
}

/// Returns the tip for a repository in the place of a command.
fn forgotten_mount(given: &str, words: &[OsString]) -> Option<String> {
    let is_place =
        given.contains("://") || std::path::Path::new(given).exists() || Location::url_meant_by(given).is_some();
    let rest: Vec<_> = words.iter().skip(1).map(|word| word.to_string_lossy()).collect();
    (is_place && rest.len() == 2).then(|| format!("did you mean: icechunkfs mount {}", rest.join(" ")))
}

/// Returns the tip for argument `given` of `command`.
fn meant(command: &str, given: &str, words: &[OsString]) -> Option<String> {
    if let Some((.., tip)) =
        OPTIONS.iter().find(|(of, option, _)| (of.is_empty() || *of == command) && given == *option)
    {
        return Some((*tip).to_owned());
    }
    let has = |name: &str| words.iter().any(|word| word == name);
    let is_word = !given.starts_with('-');
    match command {
        "branch" if is_word && ["move", "rename"].contains(&given) => {
            Some("create the new name with --at OLD-NAME, then delete the old one".to_owned())
        }
        "tag" if is_word && ["move", "rename", "reset"].contains(&given) => {
            Some("tags never change: create another one".to_owned())
        }
        "config" if is_word => Some(format!("to show it: icechunkfs config REPO get {given}")),
        "branch" | "tag" if is_word && has("reset") => Some(format!("the target follows --to: --to {given}")),
        "branch" | "tag" if is_word && has("create") => Some(format!("the target follows --at: --at {given}")),
        "branch" | "tag" if is_word => Some(format!("to create it: icechunkfs {command} REPO create {given}")),
        "mount" if is_word => Some(format!("to mount a branch or a tag: --branch {given}, --tag {given}")),
        "commit" if is_word => Some("the message follows -m: -m MESSAGE".to_owned()),
        "run" if is_word => Some(format!("the command follows `--`: -- {given}")),
        "restore" | "revert" | "resolve" if is_word => Some("the mountpoint or the repository comes first".to_owned()),
        _ => None,
    }
}

/// Returns the examples of `command`, or of the program, that have most in common with `words`.
fn nearest_examples(command: Option<&str>, words: &[OsString]) -> Vec<String> {
    let program = Arguments::command();
    let command = command.and_then(|name| program.find_subcommand(name)).unwrap_or(&program);
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut examples: Vec<&str> = help.lines().filter(|line| line.starts_with("  ")).collect();
    let common = |example: &&str| words.iter().filter(|word| example.split(' ').any(|other| *word == other)).count();
    examples.sort_by_key(|example| std::cmp::Reverse(common(example)));
    examples.into_iter().take(EXAMPLES).map(str::to_owned).collect()
}
