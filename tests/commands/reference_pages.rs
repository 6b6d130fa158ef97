//! `docs/reference/mount.md` and `docs/reference/commands.md` are generated from the definition of
//! the command line, and every command in the README, in `docs/how-do-i` and in the reference pages
//! is one that the program takes.
//!
//! `ICECHUNKFS_WRITE_REFERENCE=1 cargo test --test commands reference_pages` writes the pages.

use clap::{Arg, ArgAction, Command, Parser};
use icechunkfs::cli::args::Arguments;

use crate::common::{entries, project};

/// Options that belong to the program or are explained once for all commands.
const COMMON: [&str; 5] = ["help", "version", "memory", "verbose", "error_format"];

fn program() -> Command {
    Arguments::built()
}

/// Returns the text of a command or an option on one line, as a cell of a table takes it.
fn text(styled: Option<&clap::builder::StyledStr>) -> String {
    let text = styled.map(ToString::to_string).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn usage(arg: &Arg) -> String {
    let names: Vec<String> = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let values = names.iter().map(|name| format!("<{name}>")).collect::<Vec<_>>().join(" ");
    let takes = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let is_optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
    let value = match (takes, is_optional) {
        (false, _) => String::new(),
        (true, true) => format!(" [{values}]"),
        (true, false) => format!(" {values}"),
    };
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    let shown = if flags.is_empty() { values } else { format!("{}{value}", flags.join("`, `")) };
    format!("`{}`", shown.replace('|', "\\|"))
}

fn row(arg: &Arg) -> String {
    let mut meaning = text(arg.get_long_help().or(arg.get_help()));
    if !meaning.ends_with(['.', ']']) {
        meaning.push('.');
    }
    let choices: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if !choices.is_empty() && arg.get_action().takes_values() {
        meaning.push_str(&format!(" One of: {}.", choices.join(", ")));
    }
    let default: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    if default.iter().any(|value| !value.is_empty()) && arg.get_action().takes_values() {
        meaning.push_str(&format!(" [default: {}]", default.join(",")));
    }
    format!("| {} | {meaning} |\n", usage(arg))
}

fn is_shown(arg: &Arg) -> bool {
    !arg.is_hide_set() && !COMMON.contains(&arg.get_id().as_str())
}

/// Returns a heading without its part in brackets.
fn short(heading: &str) -> &str {
    heading.split(" (").next().unwrap_or(heading)
}

/// Rows that the section of a command does not repeat.
#[derive(Default)]
struct KnownRows {
    /// Rows of the page of `mount`.
    of_mount: Vec<String>,
    /// Rows of the table of options that several commands have.
    shared: Vec<String>,
}

/// Returns the tables of a command's arguments, one for each heading. Arguments whose rows are
/// `known`, and those below the headings `elsewhere`, are only named.
fn tables(command: &Command, elsewhere: &[&str], known: &KnownRows) -> String {
    let mut arguments: Vec<&Arg> = command.get_arguments().filter(|arg| is_shown(arg)).collect();
    // Positional ones first, in their order on the command line.
    arguments.sort_by_key(|arg| arg.get_index().unwrap_or(usize::MAX));
    let mut headings: Vec<Option<&str>> = vec![None];
    for arg in &arguments {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    let mut out = String::new();
    let mut also: Vec<String> = Vec::new();
    for heading in headings {
        let name = heading.map(short);
        if let Some(name) = name.filter(|name| elsewhere.contains(name)) {
            also.push(format!("[{name}](mount.md)"));
            continue;
        }
        let mut rows = String::new();
        for arg in arguments.iter().filter(|arg| arg.get_help_heading() == heading) {
            let row = row(arg);
            if known.of_mount.contains(&row) {
                also.push(format!("[{}](mount.md)", usage(arg)));
            } else if known.shared.contains(&row) {
                also.push(usage(arg));
            } else {
                rows.push_str(&row);
            }
        }
        if rows.is_empty() {
            continue;
        }
        if let Some(heading) = heading {
            out.push_str(&format!("## {heading}\n\n"));
        }
        out.push_str(&format!("| option | meaning |\n|---|---|\n{rows}\n"));
    }
    if !also.is_empty() {
        out.push_str(&format!("Also: {}.\n\n", also.join(", ")));
    }
    out
}

fn about(command: &Command) -> String {
    text(command.get_long_about().or(command.get_about()))
}

fn usage_of(command: &mut Command) -> String {
    let usage = command.render_usage().to_string();
    format!("```\n{}\n```\n\n", usage.trim_start_matches("Usage: ").trim())
}

/// Returns the examples of a command, which its `--help` ends with.
fn examples(command: &Command) -> String {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    if lines.is_empty() { String::new() } else { format!("Examples:\n\n```\n{}\n```\n\n", lines.join("\n")) }
}

const GENERATED: &str =
    "<!-- Generated by tests/commands/reference_pages.rs from the definition of the command line. -->\n\n";

fn mount_page() -> String {
    let mut program = program();
    let of_all = |arg: &&Arg| ["memory", "verbose", "error_format"].contains(&arg.get_id().as_str());
    let of_all: String = program.get_arguments().filter(of_all).map(row).collect();
    let mount = program.find_subcommand_mut("mount").unwrap();
    let mut page = format!("# icechunkfs mount\n\n{GENERATED}{}\n\n{}", about(mount), usage_of(mount));
    page.push_str(&examples(mount));
    page.push_str(&tables(mount, &[], &KnownRows::default()));
    page.push_str(&format!("## Every command\n\n| option | meaning |\n|---|---|\n{of_all}"));
    page
}

/// Headings of arguments that the page of `mount` explains.
const OF_MOUNT: [&str; 2] = ["Object stores", "Virtual chunks"];
/// Number of commands that share an argument which the page explains once.
const SHARED_BY: usize = 2;

fn is_on_page(command: &Command) -> bool {
    !command.is_hide_set() && !["mount", "help"].contains(&command.get_name())
}

fn collect_rows(command: &Command, rows: &mut Vec<String>) {
    let is_here = |arg: &&Arg| arg.get_help_heading().is_none_or(|heading| !OF_MOUNT.contains(&short(heading)));
    rows.extend(command.get_arguments().filter(|arg| is_shown(arg)).filter(is_here).map(row));
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        collect_rows(below, rows);
    }
}

/// Returns the first cell of a row.
fn first_cell(row: &str) -> &str {
    row.split(" | ").next().unwrap_or(row)
}

/// Returns the rows that are on the page of `mount`, and those that several commands have, in the
/// order of their first use, one for an option.
fn known_rows(program: &Command) -> KnownRows {
    let mount = program.find_subcommand("mount").unwrap();
    let of_mount: Vec<String> =
        mount.get_arguments().filter(|arg| is_shown(arg) && !arg.is_positional()).map(row).collect();
    let mut all: Vec<String> = Vec::new();
    for command in program.get_subcommands().filter(|command| is_on_page(command)) {
        collect_rows(command, &mut all);
    }
    all.retain(|row| !of_mount.contains(row));
    let mut shared: Vec<String> = Vec::new();
    for row in &all {
        let uses = all.iter().filter(|other| *other == row).count();
        let is_known = shared.iter().any(|other| first_cell(other) == first_cell(row));
        if uses >= SHARED_BY && !is_known {
            shared.push(row.clone());
        }
    }
    KnownRows { of_mount, shared }
}

fn section(command: &mut Command, level: usize, known: &KnownRows, page: &mut String) {
    let path = command.get_bin_name().unwrap_or_default().to_owned();
    page.push_str(&format!("{} {path}\n\n{}\n\n{}", "#".repeat(level), about(command), usage_of(command)));
    page.push_str(&examples(command));
    page.push_str(&tables(command, &OF_MOUNT, known));
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        section(below, level + 1, known, page);
    }
}

fn commands_page() -> String {
    let mut program = program();
    let known = known_rows(&program);
    let mut page = format!("# Commands\n\n{GENERATED}[`icechunkfs mount`](mount.md) has a page of its own.\n\n");
    page.push_str("## Options of several commands\n\nEach command names those that it takes after \"Also\".\n\n");
    page.push_str(&format!("| option | meaning |\n|---|---|\n{}\n", known.shared.concat()));
    for command in program.get_subcommands_mut().filter(|command| is_on_page(command)) {
        section(command, 2, &known, &mut page);
    }
    page.trim_end().to_owned() + "\n"
}

#[test]
fn generated_pages_match_the_command_line() {
    for (name, page) in [("mount.md", mount_page()), ("commands.md", commands_page())] {
        let path = project("docs/reference").join(name);
        if std::env::var_os("ICECHUNKFS_WRITE_REFERENCE").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_default();
        let differs = stored.lines().zip(page.lines()).find(|(stored, page)| stored != page);
        assert!(
            stored == page,
            "{name} is stale ({differs:?}): run ICECHUNKFS_WRITE_REFERENCE=1 cargo test --test commands reference_pages"
        );
    }
}

/// Splits a line as a shell does, up to a comment: spaces, single and double quotes, backslashes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = None::<String>;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '\\') => word.get_or_insert_default().extend(chars.next()),
            (None, '#') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn every_command_in_the_documents_is_accepted() {
    let folders = ["docs/reference", "docs/how-do-i"];
    let pages = folders.iter().flat_map(|folder| entries(&project(folder))).chain([project("README.md")]);
    let mut taken = 0;
    for page in pages {
        let mut text = std::fs::read_to_string(&page).unwrap();
        if page.ends_with("commands.md") || page.ends_with("mount.md") {
            // Of generated pages the examples, not the usage.
            let blocks = text.split("Examples:\n\n").skip(1).filter_map(|part| part.split("```").nth(1));
            text = blocks.map(|block| format!("```{block}```\n")).collect();
        }
        // Other tests run the commands with a prompt of `docs/how-do-i`.
        let is_run = page.parent().is_some_and(|folder| folder.ends_with("docs/how-do-i"));
        // Every second part is between fences.
        for line in text.split("```").skip(1).step_by(2).flat_map(str::lines) {
            if is_run && line.starts_with("$ ") {
                continue;
            }
            let line = line.strip_prefix("$ ").unwrap_or(line);
            if line.starts_with("icechunkfs ") {
                // The picture of the README has two columns.
                let words = words(line.split("      ").next().unwrap());
                let parsed = Arguments::try_parse_from(&words);
                assert!(parsed.is_ok(), "{}: {line}\n{}", page.display(), parsed.unwrap_err());
                taken += 1;
            }
        }
    }
    assert!(taken > 30, "{taken}");
}
