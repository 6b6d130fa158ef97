//! Answer to a command line that is not understood: what the user may have meant, and the nearest
//! examples.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Error};

use super::args::Arguments;
use icechunkfs_base::error::{Error as Failure, ErrorKind as Kind};
use icechunkfs_base::{printable, shell, trust};
use icechunkfs_store::recognize;
use icechunkfs_store::storage::location::Location;

/// Examples that are shown.
const EXAMPLES: usize = 2;

/// Commands of git, jj, restic and others, and what does here what they do there.
const FOREIGN: [(&[&str], &str); 22] = [
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
    (&["clean"], "`icechunkfs discard MOUNTPOINT` drops uncommitted changes; rm removes untracked files"),
    (&["version"], "`icechunkfs --version` prints it"),
    (&["open", "attach"], "`icechunkfs mount REPO MOUNTPOINT` shows a repository"),
    (&["cherry-pick", "graft"], "`icechunkfs restore PLACE PATH --from REF` takes a path as a commit has it"),
    (&["create", "new"], "`icechunkfs init REPO` makes a repository, `icechunkfs branch REPO create NAME` a branch"),
    (
        &["delete", "remove", "destroy"],
        "`icechunkfs branch REPO delete NAME` deletes a branch; a repository is its directory or prefix: delete that",
    ),
    (
        &["abandon", "rollback"],
        "`icechunkfs undo REPO` takes back the newest operation, `icechunkfs revert` older commits",
    ),
];

/// Options that people type, and what to write here; of any command if that is empty.
const OPTIONS: [(&str, &str, &str); 25] = [
    ("branch", "-d", "a branch is deleted by: icechunkfs branch REPO delete NAME"),
    ("branch", "-D", "a branch is deleted by: icechunkfs branch REPO delete NAME --yes"),
    ("branch", "-b", "a branch is made by: icechunkfs branch REPO create NAME"),
    ("branch", "-m", "a branch cannot be renamed: create the new name with --at OLD-NAME, then delete the old one"),
    ("tag", "-m", "a tag has no message: icechunkfs tag REPO create NAME --at REF"),
    ("tag", "-a", "a tag has no message: icechunkfs tag REPO create NAME --at REF"),
    ("tag", "-f", "tags never change: create another one"),
    ("tag", "--force", "tags never change: create another one"),
    ("tag", "-d", "a tag is deleted by: icechunkfs tag REPO delete NAME"),
    ("mount", "-b", "a branch is mounted with: --branch NAME"),
    ("mount", "-t", "the type of the file system is not needed"),
    ("commit", "-a", "all changes of the mount are committed: -a is not needed"),
    ("commit", "-am", "all changes of the mount are committed: write -m MESSAGE"),
    ("commit", "--allow-empty", "without changes there is no commit; `icechunkfs amend` replaces a message"),
    ("diff", "--cached", "icechunkfs diff MOUNTPOINT shows what a commit would change"),
    ("diff", "--staged", "icechunkfs diff MOUNTPOINT shows what a commit would change"),
    ("run", "--scratch", "a job has a scratch directory of its own, which --keep keeps"),
    ("clone", "--branch", "a clone has all branches and tags: mount one of them with --branch NAME"),
    ("push", "--branch", "branches are named after DEST: icechunkfs push REPO DEST NAME"),
    ("pull", "--branch", "branches are named after SRC: icechunkfs pull REPO SRC NAME"),
    ("merge", "--ours", "write --on-conflict ours"),
    ("merge", "--branch", "the branch that gets the commit follows --into: --into NAME"),
    ("merge", "--abort", "a merge with conflicts changes nothing: there is nothing to abort"),
    ("expire", "--branch", "the history of all branches and tags expires"),
    ("", "--at", "write --branch NAME, --tag NAME or --snapshot ID"),
];

/// Prints `error` for a command line of `words`, and returns the status to exit with. Help and the
/// version are such errors, too.
pub(super) fn report(error: Error, words: &[OsString]) -> ExitCode {
    let code = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
    // The help, which is printed if nothing else was typed, has all examples.
    let is_wrong = error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    let command = command_of(words);
    let examples = if is_wrong { nearest_examples(command.as_deref(), words) } else { Vec::new() };
    let error = if is_wrong { with_tip(error, command.as_deref(), words) } else { error };
    let text = error.render();
    // A reader that is gone needs nothing.
    let _ = match in_plain_words(&text.to_string()) {
        Some(plain) => io::stderr().write_all(plain.as_bytes()),
        None => error.print(),
    };
    if !examples.is_empty() {
        eprintln!("\nExamples:\n{}", examples.join("\n"));
    }
    code
}

/// Returns the message `text` without the words of Rust's parsers for numbers; none if it has none
/// of them.
fn in_plain_words(text: &str) -> Option<String> {
    const NUMBERS: [(&str, &str); 3] = [
        ("invalid digit found in string", "it is not a whole number"),
        ("cannot parse integer from empty string", "it is empty, and a number is expected"),
        ("number too large to fit in target type", "the number is too large"),
    ];
    let (said, plain) = NUMBERS.iter().find(|(said, _)| text.contains(said))?;
    Some(text.replace(said, plain))
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
        ErrorKind::InvalidSubcommand => match command {
            Some(command) => meant(command, &given, words),
            None => foreign(&given).or_else(|| forgotten_mount(&given, words)),
        },
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
    // The parser's usage has the argument that it guessed.
    if command.is_some() {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage_of(words)));
    }
    error
}

/// Returns the usage of the command, or of its own command, that `words` name.
fn usage_of(words: &[OsString]) -> clap::builder::StyledStr {
    let mut program = Arguments::command();
    program.build();
    let words = words.iter().skip(1).filter_map(|word| word.to_str());
    let named = words.fold(&program, |at, word| at.find_subcommand(word).unwrap_or(at));
    named.clone().render_usage()
}

/// Returns the tip for an argument that is missing.
fn missing(error: &Error, command: Option<&str>, words: &[OsString]) -> Option<String> {
    if error.kind() != ErrorKind::MissingRequiredArgument {
        return None;
    }
    let Some(ContextValue::Strings(all)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_missing = |name: &str| all.iter().any(|arg| arg == name);
    let range = words.iter().filter_map(|word| word.to_str()?.split_once(".."));
    // Three dots mean the same here: both are compared as they are.
    let range = range.map(|(from, to)| (from, to.trim_start_matches('.')));
    let mut range = range.filter(|(from, to)| !from.is_empty() && !to.is_empty() && !to.starts_with('/'));
    match command {
        Some("diff") if is_missing("<TO>") => Some(match range.next() {
            Some((from, to)) => format!("two arguments: icechunkfs diff REPO {from} {to}"),
            None => {
                "two commits are compared: icechunkfs diff REPO FROM TO [PATH]. `icechunkfs commit MNT --detach` makes \
                     one of uncommitted changes, which no branch leads to"
                    .to_owned()
            }
        }),
        Some(name @ ("branch" | "tag")) if is_missing("<NAME>") => {
            let is_typed = |action: &&&str| words.iter().any(|word| word == **action);
            let action = ["delete", "reset", "create"].iter().find(is_typed).unwrap_or(&"create");
            Some(format!("repository and name: icechunkfs {name} REPO {action} NAME"))
        }
        Some("config") if is_missing("<VALUE>") => {
            Some("the repository is needed, too: icechunkfs config REPO set NAME VALUE".to_owned())
        }
        // A single word is taken for the repository.
        Some("import") if is_missing("<REPO>") || is_missing("<SRC>...") => {
            Some("the repository follows what is imported: icechunkfs import SRC REPO".to_owned())
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
    if given.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        let before = words.iter().zip(words.iter().skip(1)).find(|(_, word)| *word == given).map(|(before, _)| before);
        let option = before.and_then(|before| before.to_str()).filter(|before| before.starts_with('-'));
        return Some(match (command, option) {
            (_, Some(option)) => format!("a number behind {option} must be positive"),
            ("log", None) => format!("to show {0} commits: -n {0}", given.trim_start_matches('-')),
            (_, None) => "a number must be positive here".to_owned(),
        });
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
        "config" if is_word && given.contains('=') => {
            Some(format!("to set it: icechunkfs config REPO set {}", given.replacen('=', " ", 1)))
        }
        "config" if is_word => Some(format!("to show it: icechunkfs config REPO get {given}")),
        "branch" | "tag" if is_word && has("reset") => Some(format!("the target follows --to: --to {given}")),
        "branch" | "tag" if is_word && has("create") => Some(format!("the target follows --at: --at {given}")),
        "branch" | "tag" if is_word && ["new", "add", "make"].contains(&given) => {
            Some(format!("icechunkfs {command} REPO create NAME"))
        }
        "branch" | "tag" if is_word && ["remove", "rm", "drop"].contains(&given) => {
            Some(format!("icechunkfs {command} REPO delete NAME"))
        }
        "branch" | "tag" if is_word && foreign(given).is_some() => foreign(given),
        "branch" | "tag" if is_word => Some(format!("to create it: icechunkfs {command} REPO create {given}")),
        "mount" if is_word => Some(format!("to mount a branch or a tag: --branch {given}, --tag {given}")),
        "commit" if is_word => Some("the message follows -m: -m MESSAGE".to_owned()),
        "run" if is_word => Some(format!("the command follows `--`: -- {given}")),
        "restore" if is_word => {
            Some("the ref follows --from: icechunkfs restore MOUNTPOINT PATH --from REF".to_owned())
        }
        "revert" | "resolve" if is_word => Some("the mountpoint or the repository comes first".to_owned()),
        _ => None,
    }
}

/// Returns the error of a command, with a question if its first argument is nothing, and its second
/// one a repository.
pub(super) fn with_swapped(error: Failure, words: &[OsString]) -> Failure {
    let is_place = |word: &&OsString| !word.to_str().is_some_and(|word| word.starts_with('-'));
    let places: Vec<&OsString> = words.iter().skip(1).filter(is_place).skip(1).collect();
    let [first, ref rest @ ..] = places[..] else { return error };
    let said = format!("{}: no such directory", first.to_string_lossy());
    let is_missing = error.kind() == Kind::NotFound && error.to_string().contains(&said) && !Path::new(first).exists();
    if !is_missing {
        return error;
    }
    let name = first.to_string_lossy();
    // The action that is meant without one has been added.
    let is_name = !name.contains('/') && !name.starts_with('.') && rest.iter().all(|word| *word == "list");
    if let (Some(command @ ("branch" | "tag")), true) = (command_of(words).as_deref(), is_name) {
        let name = shell::quote(&name);
        let message = format!("{error}; the repository comes first: icechunkfs {command} REPO create {name}");
        return Failure::new(error.kind(), message);
    }
    // A file system of another user is not asked.
    let is_repository = |word: &&&OsString| {
        let place = trust::place_of(Path::new(word));
        place.is_ok_and(|place| recognize::at(&place) == Some(recognize::Kind::Repository))
    };
    match rest.iter().find(is_repository) {
        Some(other) => {
            let other = other.to_string_lossy();
            Failure::new(error.kind(), format!("{error}; {other} is a repository: are the arguments swapped?"))
        }
        None => error,
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
