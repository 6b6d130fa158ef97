//! The short help, `-h`: the options that most people need. `--help` has all.

use clap::{Arg, Command, CommandFactory};

use super::args::Arguments;

/// Options of `mount` in its short help.
const OF_MOUNT: [&str; 26] = [
    "location",
    "mountpoint",
    "branch",
    "tag",
    "snapshot",
    "as_of",
    "read_only",
    "follow",
    "view",
    "root",
    "subdir",
    "create",
    "from",
    "scratch",
    "discard",
    "refuse_uncommitted",
    "ephemeral",
    "foreground",
    "allow_other",
    "options",
    "region",
    "endpoint_url",
    "profile",
    "anonymous",
    "cache",
    "offline",
];
/// Options for stores that few need, of all commands.
const OF_STORES: [&str; 15] = [
    "requester_pays",
    "addressing",
    "access_key_id",
    "credentials",
    "account",
    "secrets",
    "ca_bundle",
    "timeout",
    "min_rate",
    "max_listed",
    "max_requests",
    "cache_size",
    "upload_limit",
    "unsafe_single_writer",
    "error_format",
];

/// Returns the parser with short helps, which say how many options they leave out.
pub(super) fn shortened() -> Command {
    let mut program = Arguments::command();
    for command in program.get_subcommands_mut() {
        // A build finds out whether a command has two helps, and its arguments get theirs later.
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        *command = std::mem::take(command).after_long_help(help);
    }
    let mut program = Arguments::build(program);
    for command in program.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        *command = shortened_command(std::mem::take(command));
    }
    program
}

fn shortened_command(command: Command) -> Command {
    let is_mount = command.get_name() == "mount";
    let is_rare = |arg: &Arg| {
        let id = arg.get_id().as_str();
        OF_STORES.contains(&id) || (is_mount && !OF_MOUNT.contains(&id) && !arg.is_global_set())
    };
    let left_out = command.get_arguments().filter(|arg| is_rare(arg) && !arg.is_hide_set()).count();
    let command = command.mut_args(|arg| if is_rare(&arg) { arg.hide_short_help(true) } else { first_sentence(arg) });
    if left_out == 0 {
        return command;
    }
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let short = format!("{help}\n\n--help explains these options, and {left_out} more.");
    command.after_long_help(help).after_help(short.trim_start().to_owned())
}

/// Returns `arg` with the first sentence of its help in the short one.
fn first_sentence(arg: Arg) -> Arg {
    let Some(help) = arg.get_long_help().or(arg.get_help()).map(ToString::to_string) else { return arg };
    let first = help.split_once(". ").map_or(help.as_str(), |(first, _)| first);
    let first = first.split_once(", with modifiers").map_or(first, |(first, _)| first).to_owned();
    arg.help(first).long_help(help)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn short_help_fits_a_screen_and_names_options_that_there_are() {
        let program = shortened();
        let mount = program.find_subcommand("mount").unwrap();
        for id in OF_MOUNT {
            assert!(mount.get_arguments().any(|arg| arg.get_id() == id), "{id}");
        }
        for id in OF_STORES {
            assert!(mount.get_arguments().any(|arg| arg.get_id() == id), "{id}");
        }
        // As it is asked for: what is rendered from here may be another text.
        let asked =
            |word: &str| shortened().try_get_matches_from(["icechunkfs", "mount", word]).unwrap_err().to_string();
        let short = asked("-h");
        let long = asked("--help");
        let options = |help: &str| help.lines().filter(|line| line.trim_start().starts_with('-')).count();
        assert!(options(&short) < 32 && options(&long) > 55 && short.lines().count() < 85, "{short}");
        assert!(short.contains("more.") && !long.contains("more.\n\n"), "{short}");
    }
}
