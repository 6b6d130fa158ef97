//! Words in the order in which people type them: `icechunkfs tag create REPO NAME`, as in git, and
//! `icechunkfs branch REPO` for a list.

use std::ffi::OsString;

use clap::CommandFactory;

use super::args::Arguments;

/// Commands that have actions, and which action is meant without one.
const COMMANDS: [(&str, &str); 3] = [("branch", "list"), ("tag", "list"), ("config", "get")];

/// Returns `words` with the repository before the action of a command, and with the action that is
/// meant if there is none. A repository that has the name of an action is named `./NAME`.
pub(super) fn as_expected(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_option = |word: &OsString| word.to_str().is_some_and(|word| word.starts_with('-'));
    let Some(at) = words.iter().skip(1).position(|word| !is_option(word)).map(|at| at + 1) else { return words };
    let known = COMMANDS.iter().find(|(name, _)| words.get(at).is_some_and(|word| word == name));
    let Some((name, default)) = known else { return words };
    let mut program = Arguments::command();
    let Some(command) = program.find_subcommand_mut(name) else { return words };
    command.build();
    let is_action = |word: &OsString| command.get_subcommands().any(|action| word == action.get_name());
    match (words.get(at + 1), words.get(at + 2)) {
        (Some(action), Some(repo)) if is_action(action) && !is_option(repo) && !is_action(repo) => {
            words.swap(at + 1, at + 2);
        }
        (Some(repo), next) if !is_option(repo) && !is_action(repo) && repo != "help" => {
            let asks_for_help = next.is_some_and(|word| word == "-h" || word == "--help");
            let has_action = words.iter().skip(at + 2).any(is_action);
            if next.is_none_or(is_option) && !asks_for_help && !has_action {
                words.insert(at + 2, (*default).into());
            }
        }
        _ => {}
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(line: &str) -> String {
        let words = as_expected(line.split(' ').map(OsString::from).collect());
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn actions_may_come_first_or_be_left_out() {
        for (typed, expected) in [
            ("icechunkfs tag create repo v1", "icechunkfs tag repo create v1"),
            ("icechunkfs -v branch delete repo x --yes", "icechunkfs -v branch repo delete x --yes"),
            ("icechunkfs branch repo", "icechunkfs branch repo list"),
            ("icechunkfs tag repo --json", "icechunkfs tag repo list --json"),
            ("icechunkfs config repo", "icechunkfs config repo get"),
        ] {
            assert_eq!(ordered(typed), expected);
        }
    }

    #[test]
    fn other_words_stay() {
        for line in [
            "icechunkfs",
            "icechunkfs branch",
            "icechunkfs tag repo create v1",
            "icechunkfs branch create list",
            "icechunkfs branch --help",
            "icechunkfs branch help",
            "icechunkfs branch repo --help",
            "icechunkfs branch create",
            "icechunkfs log branch repo",
            "icechunkfs config repo set a b",
            "icechunkfs branch repo -v create x",
            "icechunkfs config repo --error-format json set a b",
        ] {
            assert_eq!(ordered(line), line);
        }
    }
}
