//! Advice for a shell: pasted, it runs the intended command, and nothing else.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use icechunk::config::{ObjectStoreConfig, S3Options};

use crate::common::made::{container, reference, repository};
use crate::common::{icechunkfs, program, run};

/// Returns a command that leaves a mark, and its folder for `PATH`.
fn marking_command(home: &Path) -> String {
    let programs = home.join("programs");
    std::fs::create_dir(&programs).unwrap();
    let script = programs.join("made");
    std::fs::write(&script, format!("#!/bin/sh\necho x >> {}/mark\n", home.display())).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:/usr/bin:/bin", programs.display())
}

/// Runs the advice in `said` in a shell, from each option on and as far as a user might copy it.
/// Returns true if a command ran.
fn runs_a_command(output: &str, home: &Path, path: &str) -> bool {
    let begins: Vec<usize> = output.match_indices("--").map(|(at, _)| at).collect();
    assert!(!begins.is_empty(), "{output}");
    for begin in begins {
        let advice = &output[begin..];
        for (end, _) in advice.match_indices([' ', ',', ':', '\n']).chain([(advice.trim_end().len(), "")]) {
            let mut shell = Command::new("bash");
            shell.args(["-c", &format!("true {}", &advice[..end])]).current_dir(home).env("PATH", path);
            drop(run(&mut shell));
        }
    }
    home.join("mark").exists()
}

#[test]
fn pasted_advice_runs_no_command_from_the_repository() {
    let home = tempfile::tempdir().unwrap();
    let path = marking_command(home.path());
    let hostile = "'$(made)'`made`;made;\"$(made)";
    let endpoint = "https://host.example/'$(made)'";
    let store = || ObjectStoreConfig::S3Compatible(S3Options::default().with_endpoint_url(endpoint));
    for (n, (location, containers)) in [
        (format!("s3://bucket/{hostile}/x"), vec![]),
        (format!("file:///data/{hostile}/x"), vec![]),
        (format!("https://host/{hostile}/x"), vec![]),
        (format!("vcc://{hostile}/x"), vec![]),
        (format!("s3://bucket/{hostile}/x"), vec![container("c", "s3://bucket/", store())]),
    ]
    .into_iter()
    .enumerate()
    {
        let repository = repository(&home.path().join(n.to_string()), containers, &[reference(&location, 0, 1)]);
        let output = run(Command::new(program()).args(["cat", repository.to_str().unwrap(), "v/c/0"])).failure();
        assert!(!runs_a_command(&output, home.path(), &path), "{location}: {output}");
    }
}

/// A link that leads out is advised as a prefix, and a ref of another kind as an option.
#[test]
fn pasted_advice_runs_no_command_from_a_path_or_a_ref() {
    let home = tempfile::tempdir().unwrap();
    let path = marking_command(home.path());
    let data = home.path().join("data");
    let outside = home.path().join("out'$(made)'side");
    std::fs::create_dir(&data).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("x"), "x").unwrap();
    std::os::unix::fs::symlink(outside.join("x"), data.join("x")).unwrap();
    let location = format!("file://{}/x", data.display());
    let repository = repository(&home.path().join("repo"), vec![], &[reference(&location, 0, 1)]);
    let repo = repository.to_str().unwrap();
    let output = icechunkfs(["cat", repo, "v/c/0", "--allow-virtual", data.to_str().unwrap()]).failure();
    assert!(output.contains("--allow-virtual") && !runs_a_command(&output, home.path(), &path), "{output}");
    let name = "'$(made)'";
    icechunkfs(["tag", repo, "create", name]).success();
    let output = icechunkfs(["ls", repo, "--branch", name]).failure();
    assert!(output.contains("--tag") && !runs_a_command(&output, home.path(), &path), "{output}");
}
