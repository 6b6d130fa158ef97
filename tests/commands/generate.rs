//! `icechunkfs generate` writes what packages contain: manual pages and completions of everything
//! that the command line has.

use std::path::Path;
use std::process::Command;

use icechunkfs::cli::args::Arguments;

use crate::common::{icechunkfs, run};

fn pages(command: &clap::Command, found: &mut Vec<String>) {
    found.push(format!("{}.1", command.get_display_name().unwrap_or_else(|| command.get_name())));
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        pages(below, found);
    }
}

fn read(directory: &Path, path: &str) -> String {
    std::fs::read_to_string(directory.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn every_command_has_a_manual_page_and_completions() {
    let directory = tempfile::tempdir().unwrap();
    icechunkfs(["generate".as_ref(), directory.path().as_os_str()]).success();
    let program = Arguments::built();
    let mut expected = Vec::new();
    pages(&program, &mut expected);
    assert!(expected.len() > 30 && expected.contains(&"icechunkfs-branch-create.1".to_owned()), "{expected:?}");
    let has_man = Command::new("man").arg("--version").output().is_ok_and(|output| output.status.success());
    for page in &expected {
        let text = read(directory.path(), &format!("man/man1/{page}"));
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{page}");
        if has_man {
            let path = directory.path().join("man/man1").join(page);
            let shown = run(Command::new("man").args(["--warnings", "-l"]).arg(path).env("MANWIDTH", "80"));
            assert_eq!(shown.stderr, "", "{page}");
        }
    }
    assert!(read(directory.path(), "man/man1/icechunkfs-mount.1").contains(".SH EXAMPLES"));
    let helper = read(directory.path(), "man/man8/mount.icechunkfs.8");
    let mount = program.find_subcommand("mount").unwrap();
    let options = mount.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(clap::Arg::get_long);
    for option in options.filter(|option| !["foreground", "help", "version"].contains(option)) {
        assert!(helper.contains(&option.replace('-', "_")), "{option}");
    }
    for shell in [
        "bash-completion/completions/icechunkfs",
        "zsh/site-functions/_icechunkfs",
        "fish/vendor_completions.d/icechunkfs.fish",
    ] {
        let script = read(directory.path(), shell);
        for word in ["rewrite-manifests", "netcdf-record-dimension", "on-conflict"] {
            assert!(script.contains(word), "{shell} has no {word}");
        }
    }
    // The shell itself reads it, and completes a word.
    let script = directory.path().join("bash-completion/completions/icechunkfs");
    let ask = format!(
        "source '{}'; COMP_WORDS=(icechunkfs mount --until); COMP_CWORD=2; _icechunkfs icechunkfs --until mount; echo ${{COMPREPLY[*]}}",
        script.display()
    );
    let answer = run(Command::new("bash").args(["--norc", "-c", &ask])).text();
    assert_eq!(answer.trim(), "--until-eof");
}

#[test]
fn failures_are_printed_as_json_on_request() {
    let text = icechunkfs(["refs", "/no/such/repository"]).failure();
    let json = icechunkfs(["refs", "/no/such/repository", "--error-format", "json"]).failure();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["errno"], libc::ENOENT);
    assert_eq!(text.trim_end(), format!("icechunkfs: {}", value["message"].as_str().unwrap()));
    // A mount's failure comes from the daemon.
    let empty = tempfile::tempdir().unwrap();
    let words = ["mount".as_ref(), "/no/such/repository".as_ref(), empty.path().as_os_str()];
    let failed = run(Command::new(crate::common::program()).args(words).env("ICECHUNKFS_ERROR_FORMAT", "json"));
    let value: serde_json::Value = serde_json::from_str(&failed.failure()).unwrap();
    assert_eq!(value["errno"], libc::ENOENT);
}
