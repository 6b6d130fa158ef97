//! `pull` and `push` without a second repository: a clone remembers where it came from.

use std::path::Path;
use std::process::Command;

use icechunk::format::format_constants::SpecVersionBin;

use super::sync::{add_chunks, assert_is_copy, clone, refs, repository};
use crate::common::writing::Reference;
use crate::common::{Output, icechunkfs, moto, place, program, run, run_on};

/// Runs the program with `words` in `directory`.
fn within(directory: &Path, words: &[&str]) -> Output {
    run(Command::new(program()).args(words).current_dir(directory))
}

#[test]
fn a_clone_is_pulled_and_pushed_without_arguments() {
    if !place::needs_directory() {
        return;
    }
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let directory = tempfile::tempdir().unwrap();
        let source = repository(directory.path(), version);
        // The name of the source is one of this directory only.
        within(directory.path(), &["clone", "source", "copy"]).success();
        let copy = directory.path().join("copy");
        add_chunks(&Reference::open(&source), 7);
        let said = within(&copy, &["pull"]).all();
        assert!(said.contains(&format!("pulling from {}", source.display())), "{said}");
        assert_is_copy("pulled", &copy, &source);
        add_chunks(&Reference::open(&copy), 8);
        let said = run_on(&copy, &["push", "--dry-run"]).text();
        assert!(said.contains("nothing was changed"), "{said}");
        assert_ne!(refs(&copy), refs(&source));
        assert_eq!(run_on(&copy, &["push", "--json"]).json()["commits"], 1);
        assert_is_copy("pushed", &source, &copy);
    }
}

#[test]
fn only_a_clone_that_is_where_it_was_made_has_an_origin() {
    if !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V2);
    let copy = directory.path().join("copy");
    clone(&source, &copy).success();
    for command in ["pull", "push"] {
        let why = run_on(&source, &[command]).failure();
        assert!(why.contains("you did not clone it") && why.contains(&format!("icechunkfs {command} ")), "{why}");
    }
    // Another repository in the same place is not this clone.
    std::fs::rename(&copy, directory.path().join("moved")).unwrap();
    icechunkfs(["init", copy.to_str().unwrap()]).success();
    let why = run_on(&copy, &["pull"]).failure();
    assert!(why.contains("you did not clone it"), "{why}");
    let why = run_on(directory.path().join("moved"), &["pull"]).failure();
    assert!(why.contains("you did not clone it"), "{why}");
    run_on(directory.path().join("moved"), &["pull", source.to_str().unwrap()]).success();
}

#[test]
fn the_options_of_the_store_are_remembered_and_its_secrets_are_not() {
    if !place::needs_directory() {
        return;
    }
    let Some(server) = moto::s3() else { return };
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V2);
    let url = moto::repository("remembered");
    moto::icechunkfs(server.port, &["clone", source.to_str().unwrap(), &url]).success();
    let with_keys = |words: &[&str]| {
        let mut command = moto::command(server.port, words);
        run(command.env_remove("AWS_ENDPOINT_URL").env_remove("AWS_REGION"))
    };
    let copy = directory.path().join("copy");
    let place = copy.to_str().unwrap();
    let endpoint = format!("http://127.0.0.1:{}", server.port);
    with_keys(&["clone", &url, place, "--endpoint-url", &endpoint, "--region", "us-east-1"]).success();
    add_chunks(&Reference::open(&source), 7);
    moto::icechunkfs(server.port, &["push", source.to_str().unwrap(), &url]).success();
    with_keys(&["pull", place]).success();
    assert_is_copy("pulled from the store", &copy, &source);
    // Options that are given are those that count.
    let why = with_keys(&["pull", place, "--endpoint-url", "http://127.0.0.1:1", "--timeout", "1"]).failure();
    assert!(why.contains("127.0.0.1:1"), "{why}");
}
