//! Examples of commands, for `--help`, the manual pages and the reference pages.
//! `tests/commands/reference_pages.rs` checks that the program accepts each of them.

use clap::builder::StyledStr;
use clap::{Command, Subcommand};

use super::args;

pub(super) const MOUNT: &str = "\
Examples:
  icechunkfs mount repo mnt                                   # the branch main, writable
  icechunkfs mount s3://bucket/ocean mnt --tag v1.0           # a tag, read-only
  icechunkfs mount s3://bucket/ocean mnt --follow --anonymous # always the newest commit
  icechunkfs mount repo mnt --as-of 2026-08-20                # the branch at the end of that day
  icechunkfs mount repo mnt --branch job-42 --create          # its own branch, created if it does not exist
  icechunkfs mount repo mnt --view netcdf                     # groups as NetCDF files";

pub(super) const UNMOUNT: &str = "\
Examples:
  icechunkfs unmount mnt                 # uncommitted changes stay for the next mount
  icechunkfs unmount mnt --require-clean # refuse if there are any";

pub(super) const RUN: &str = "\
Examples:
  icechunkfs run s3://bucket/ocean -m 'Night of 27 November' -- python3 nightly.py
  icechunkfs run repo --branch trial --create -m 'Trial 7' -- sh -c 'cp -r /data/new/* .'
  icechunkfs run repo --keep -m 'Salinity of May' -- ./model";

pub(super) const REVERT: &str = "\
Examples:
  icechunkfs revert repo main                      # the newest commit
  icechunkfs revert repo main~2 main~1 --dry-run   # two commits before it, and what would change
  icechunkfs revert mnt YQ9YAPJWJW4YC7YC093G       # as an uncommitted change";

pub(super) const UNDO: &str = "\
Examples:
  icechunkfs undo repo --dry-run      # shows the newest operation on a branch or tag
  icechunkfs undo repo --branch trial # takes back the newest one on this branch";

pub(super) const COMMIT: &str = "\
Examples:
  icechunkfs commit mnt -m 'Salinity of May' --metadata run=7
  icechunkfs commit mnt -m 'Mine counts' --on-conflict ours";

pub(super) const STATUS: &str = "\
Example:
  icechunkfs status mnt --json";

pub(super) const DIFF: &str = "\
Examples:
  icechunkfs diff mnt                       # uncommitted changes
  icechunkfs diff repo v1.0 main --patch    # nodes, chunks by array, lines of zarr.json
  icechunkfs diff repo v1.0 main ocean/temp # only what is there, or was
  icechunkfs diff repo main~1 main --stat   # counts
  icechunkfs diff repo main~1 main --values # elements of chunks, and by how much";

pub(super) const AMEND: &str = "\
Example:
  icechunkfs amend repo -m 'Salinity of May, corrected'";

pub(super) const SQUASH: &str = "\
Examples:
  icechunkfs squash repo --last 5 -m 'One day'
  icechunkfs squash repo --since v1.0";

pub(super) const MERGE: &str = "\
Examples:
  icechunkfs merge repo trial --dry-run           # what would change, and conflicts
  icechunkfs merge repo trial -m 'Salinity of May' --delete-source
  icechunkfs merge repo trial --keep-commits      # a commit for each of its own
  icechunkfs merge repo main --into trial         # the other way round";

pub(super) const CLONE: &str = "\
Examples:
  icechunkfs clone ocean s3://bucket/ocean          # publish
  icechunkfs clone https://data.example.org/ocean ocean
  icechunkfs clone s3://a/ocean s3://b/ocean --profile a --other profile=b --other region=eu-west-1";

pub(super) const PUSH: &str = "\
Examples:
  icechunkfs push ocean s3://bucket/ocean           # all branches and tags
  icechunkfs push ocean /backup/ocean main v1.0     # some";

pub(super) const PULL: &str = "\
Examples:
  icechunkfs pull ocean                             # from where it was cloned
  icechunkfs pull ocean s3://bucket/ocean main --dry-run";

pub(super) const RESTORE: &str = "\
Examples:
  icechunkfs restore mnt salinity --from main~3     # uncommitted: commit or discard it
  icechunkfs restore mnt salinity/c/0/0 --from v1   # one chunk
  icechunkfs restore repo g --from 2026-05-01 -m 'As of May' --dry-run";

pub(super) const DISCARD: &str = "\
Examples:
  icechunkfs discard mnt salinity   # what is at and below one path
  icechunkfs discard mnt            # everything";

pub(super) const RESOLVE: &str = "\
Examples:
  cat mnt/.icechunk/conflicts
  icechunkfs resolve mnt salinity --ours
  icechunkfs resolve mnt temperature/c/0/0 temperature/zarr.json --theirs
  icechunkfs commit mnt -m 'Salinity of May'";

pub(super) const PREFETCH: &str = "\
Example:
  icechunkfs prefetch mnt 2026";

pub(super) const INIT: &str = "\
Examples:
  icechunkfs init repo --zarr-group
  icechunkfs init s3://bucket/ocean --region eu-west-1";

pub(super) const BRANCH: &str = "\
Examples:
  icechunkfs branch repo list --long
  icechunkfs branch repo create trial --at v1.0
  icechunkfs branch repo reset trial --to main~2";

pub(super) const TAG: &str = "\
Examples:
  icechunkfs tag repo create v1.0 --at main~1
  icechunkfs tag repo delete v1.0";

pub(super) const CONFIG: &str = "\
Examples:
  icechunkfs config repo get --all
  icechunkfs config repo set inline_chunk_threshold_bytes 1024
  icechunkfs config repo status read-only --reason 'moved to s3://bucket/repo'";

pub(super) const LOG: &str = "\
Examples:
  icechunkfs log repo -n 10
  icechunkfs log repo ocean/temperature --chunks 0:10,:  # commits that touched these chunks
  icechunkfs log s3://bucket/ocean --all --graph
  icechunkfs log repo --tag v1.0 --json";

pub(super) const LS: &str = "\
Example:
  icechunkfs ls repo --tag v1.0";

pub(super) const EXPIRE: &str = "\
Examples:
  icechunkfs expire repo --older-than 30d --dry-run
  icechunkfs expire repo --older-than 30d";

pub(super) const GC: &str = "\
Examples:
  icechunkfs gc repo --older-than 7d --dry-run
  icechunkfs gc repo --older-than 7d";

pub(super) const VERIFY: &str = "\
Examples:
  icechunkfs verify repo            # metadata only: a lost chunk is not noticed
  icechunkfs verify repo --chunks   # chunk objects, too";

pub(super) const EXPORT: &str = "\
Examples:
  icechunkfs export repo plain v1.0
  icechunkfs export s3://bucket/ocean netcdf-files --view netcdf";

pub(super) const IMPORT: &str = "\
Examples:
  icechunkfs import plain repo -m 'First data'
  icechunkfs import sst.nc repo --path sst
  icechunkfs import sst.nc repo --path there --virtual --set-container
  icechunkfs import 's3://bucket/era5/*.nc' era5 --append-dim time --virtual --set-container";

pub(super) const SHOW: &str = "\
Examples:
  icechunkfs show repo ocean/temperature
  icechunkfs show s3://bucket/ocean --tag v1.0 --json";

pub(super) const CAT: &str = "\
Example:
  icechunkfs cat repo salinity/zarr.json";

/// Commands by what they are for. Each command that is not hidden is in one group: a test checks
/// that.
const GROUPS: [(&str, &[&str]); 7] = [
    (
        "Mount and write",
        &[
            "mount", "unmount", "commit", "status", "diff", "discard", "restore", "revert", "resolve", "refresh",
            "prefetch", "run",
        ],
    ),
    ("See what happens", &["list", "top", "doctor"]),
    ("Look at a repository", &["refs", "log", "ls", "show", "cat", "stats", "verify"]),
    ("Create and change", &["init", "branch", "tag", "merge", "undo", "config", "amend", "squash"]),
    ("Copy in and out", &["clone", "push", "pull", "import", "export"]),
    ("Maintain", &["expire", "gc"]),
    ("Advanced", &["ops", "rewrite-manifests", "rewrite-locations", "migrate"]),
];

/// Returns the template of the program's own help: clap lists commands in one list only.
pub(super) fn help_template() -> StyledStr {
    use std::fmt::Write;
    let commands = args::Command::augment_subcommands(Command::new("icechunkfs"));
    let mut template = StyledStr::from("{about-with-newline}\n{usage-heading} {usage}\n");
    let header = clap::builder::Styles::styled().get_header().to_owned();
    for (heading, names) in GROUPS {
        // Writing into a string does not fail.
        let _ = write!(template, "\n{header}{heading}:{header:#}\n");
        for name in names {
            let about = commands.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let short = about.split_once(". ").map_or(about.as_str(), |(first, _)| first);
            let short = short.split_once(": ").map_or(short, |(first, _)| first).trim_end_matches('.');
            let _ = writeln!(template, "  {name:<18} {short}");
        }
    }
    let _ = write!(template, "\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    template
}

pub(super) const PROGRAM: &str = "\
`icechunkfs COMMAND --help` explains a command, and shows examples.

Examples:
  icechunkfs init repo --zarr-group
  icechunkfs mount repo mnt
  touch mnt/.icechunk/commit
  icechunkfs unmount mnt";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let commands = args::Command::augment_subcommands(Command::new("icechunkfs"));
        let shown = commands.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name);
        let mut shown: Vec<&str> = shown.collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(shown, grouped);
    }
}
