//! Mistakes that are easily made: nothing is harmed, and the next command that is told works.

use std::path::Path;
use std::process::Command;

use icechunk::format::format_constants::SpecVersionBin;
use serde_json::{Value, json};

use super::restore::empty;
use super::sync::{add_chunks, assert_is_copy, clone, refs, repository};
use crate::common::writing::{GROUP, Reference, Writable, raw_array};
use crate::common::{self, assert_same, icechunkfs, place, program, read_files, run, run_on};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn shell(line: &str) -> common::Output {
    run(Command::new("sh").args(["-c", line]))
}

/// Returns the commands between backticks in `text`, with this program.
fn commands_in(text: &str) -> Vec<String> {
    let commands = text.split('`').filter(|part| part.starts_with("icechunkfs "));
    commands.map(|command| command.replace("icechunkfs ", &format!("{} ", program()))).collect()
}

#[test]
fn a_command_file_that_is_emptied_gives_no_command_and_says_so() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    std::fs::write(root.join("zarr.json"), GROUP).unwrap();
    let before = Reference::open(mount.repository()).history();
    for name in ["commit", "discard", "refresh"] {
        let file = mount.control(name);
        for line in [": >", "printf '' >", "cp /dev/null", "false >", "truncate -s 0"] {
            shell(&format!("{line} '{}'", file.display()));
            let told = mount.read_control("commit");
            assert!(told.contains("nothing was done") && told.contains(name), "{line}: {told}");
        }
        assert!(mount.read_control("errors").contains("nothing was written"), "{name}");
    }
    assert_eq!(Reference::open(mount.repository()).history(), before);
    assert!(mount.read_control("status").contains("added"), "{}", mount.read_control("status"));
    // These do give one.
    shell(&format!("touch '{}'", mount.control("commit").display())).success();
    std::fs::create_dir(root.join("g")).unwrap();
    std::fs::write(root.join("g/zarr.json"), GROUP).unwrap();
    shell(&format!("echo 'a group' > '{}'", mount.control("commit").display())).success();
    assert_eq!(Reference::open(mount.repository()).history().len(), before.len() + 2);
}

#[test]
fn arrays_that_no_program_opens_are_warned_of_and_refused_with_strict() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    std::fs::write(root.join("zarr.json"), GROUP).unwrap();
    std::fs::create_dir(root.join("a")).unwrap();
    let with = |name: &str, value: Value| {
        let mut document: Value = serde_json::from_str(&raw_array(&[4], &[2])).unwrap();
        document[name] = value;
        std::fs::write(root.join("a/zarr.json"), document.to_string()).unwrap();
    };
    for (name, value, told) in [
        ("codecs", json!([]), "codecs is empty"),
        ("codecs", json!([{"name": "nosuch"}]), "`nosuch`"),
        ("fill_value", json!("abc"), "is not a value of uint8"),
        ("data_type", json!("float31"), "`float31`"),
        ("chunk_grid", json!({"name": "regular", "configuration": {"chunk_shape": [0]}}), "must be at least 1"),
        ("understood", json!({"must_understand": true}), "`understood`"),
    ] {
        with(name, value);
        let status = run_on(&root, &["status"]).text();
        assert!(status.contains(told) && status.contains("--strict"), "{name}: {status}");
        let strict = run_on(&root, &["commit", "--strict", "-m", name]);
        assert!(strict.all().contains(told) && strict.all().contains("/a: "), "{name}: {}", strict.all());
        // A library may know what is no part of Zarr.
        assert_eq!(strict.status.success(), told.contains('`'), "{name}: {}", strict.all());
    }
    with("shape", json!([-4]));
    let refused = run_on(&root, &["commit", "-m", "x"]).failure();
    assert!(refused.contains("/a/zarr.json") && refused.contains("shape [-4] is not a list of"), "{refused}");
    with("attributes", json!({"a": 1}));
    run_on(&root, &["commit", "--strict", "-m", "x"]).success();
    std::fs::write(root.join("a/.zarray"), "{}").unwrap();
    assert!(run_on(&root, &["status"]).text().contains("write version 3"));
    let refused = run_on(&root, &["commit", "--strict", "-m", "x"]).failure();
    assert!(refused.contains("/a/.zarray is of Zarr version 2"), "{refused}");
}

#[test]
fn no_repository_goes_into_a_mount_and_no_export_into_a_repository() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    std::fs::write(root.join("zarr.json"), GROUP).unwrap();
    mount.commit("a group").unwrap();
    let repo = mount.repository();
    let inside = root.join("x");
    for words in [&["init", text(&inside)][..], &["init", text(&root)], &["clone", text(repo), text(&inside)]] {
        let why = icechunkfs(words).failure();
        assert!(why.contains("inside the mount"), "{words:?}: {why}");
    }
    assert!(!inside.exists());
    let directory = tempfile::tempdir().unwrap();
    // A directory that is there and empty is no way around it.
    let plain = directory.path().join("plain");
    std::fs::create_dir(&plain).unwrap();
    std::fs::write(plain.join("zarr.json"), GROUP).unwrap();
    for place in [inside.clone(), repo.join("chunks/new")] {
        std::fs::create_dir_all(&place).unwrap();
        let why = icechunkfs(["import", text(&plain), text(&place)]).failure();
        assert!(why.contains("is inside the"), "{why}");
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
        std::fs::remove_dir(&place).unwrap();
    }
    let other = directory.path().join("other");
    clone(repo, &other).success();
    let files = read_files(&other);
    for place in [&other, &other.join("snapshots"), &other.join("new")] {
        for words in [&["--force"][..], &["--force", "--delete", "--yes"], &["--force", "--dry-run"]] {
            let why = icechunkfs([&["export", text(repo), text(place)], words].concat()).failure();
            assert!(why.contains("name another directory"), "{why}");
        }
    }
    assert_same("the other repository", &read_files(&other), &files);
    for place in [other.join("snapshots"), other.join("empty")] {
        std::fs::create_dir_all(&place).unwrap();
        let why = icechunkfs(["mount", text(repo), text(&place)]).failure();
        assert!(why.contains("inside the repository"), "{why}");
    }
    let full = directory.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("a file"), "").unwrap();
    let why = icechunkfs(["mount", text(repo), text(&full)]).failure();
    assert!(why.contains("(a file): name an empty directory"), "{why}");
}

#[test]
fn branches_that_have_parted_are_brought_together_by_the_commands_that_are_told() {
    if !place::needs_directory() {
        return;
    }
    for (version, is_pull) in [SpecVersionBin::V1, SpecVersionBin::V2].into_iter().zip([false, true]) {
        let directory = tempfile::tempdir().unwrap();
        let source = repository(directory.path(), version);
        let copy = directory.path().join("copy");
        clone(&source, &copy).success();
        Reference::open(&source).commit(&[("a/c/300", b"here")], "here");
        Reference::open(&copy).commit(&[("a/c/301", b"there")], "there");
        let [here, there] = if is_pull { [&copy, &source] } else { [&source, &copy] };
        let command = if is_pull { "pull" } else { "push" };
        let refused = run_on(here, &[command, text(there)]);
        assert_eq!(refused.status.code(), Some(1));
        let commands = commands_in(&refused.all());
        assert_eq!(commands.len(), 1, "{}", refused.all());
        let before = refs(there);
        commands.iter().for_each(|command| drop(shell(command).success()));
        assert_eq!(refs(there), before, "the other repository is only read");
        run_on(here, &["push", text(there), "main"]).success();
        let keys = Reference::open(there).keys();
        assert_eq!([&keys["a/c/300"][..], &keys["a/c/301"]], [b"here".as_slice(), b"there"]);
        // A branch with newer commits needs nothing.
        add_chunks(&Reference::open(here), 7);
        let pulled = run_on(here, &["pull", text(there), "main", "--json"]);
        assert_eq!(pulled.json()["refs"][0]["change"], "newer");
        assert!(run_on(here, &["pull", text(there), "main"]).text().contains("newer      branch main"));
        let pushed = run_on(there, &["push", text(here), "main"]);
        assert_eq!(pushed.status.code(), Some(1));
        commands_in(&pushed.all()).iter().for_each(|command| drop(shell(command).success()));
        assert_eq!(refs(here)["branches"]["main"], refs(there)["branches"]["main"]);
        let kept = refs(here)["branches"].as_object().unwrap().keys().find(|name| name.starts_with("mine-")).cloned();
        run_on(here, &["branch", "delete", &kept.unwrap(), "--yes"]).success();
        assert_is_copy(command, there, here);
    }
}

#[test]
fn repositories_without_a_common_commit_are_not_taken_for_damaged() {
    if !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let one = repository(&directory.path().join("one"), SpecVersionBin::V2);
    let other = repository(&directory.path().join("other"), SpecVersionBin::V2);
    let why = run_on(&one, &["push", text(&other), "--force"]).failure();
    assert!(why.contains("different first commits") && !why.contains("damaged"), "{why}");
}

#[test]
fn a_mount_that_fails_leaves_no_scratch_directory() {
    let (directory, place, reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "a group");
    let scratch = directory.path().join("scratch");
    let mountpoint = directory.path().join("mnt");
    std::fs::create_dir(&mountpoint).unwrap();
    let words = ["mount", text(&place), text(&mountpoint), "--branch", "nosuch", "--scratch", text(&scratch)];
    assert!(icechunkfs(words).failure().contains("no branch"));
    assert!(!scratch.exists());
    assert_eq!(icechunkfs(["mount", text(&place), text(&mountpoint), "--branch", ""]).status.code(), Some(2));
}

#[test]
fn what_a_job_has_left_is_mounted_by_the_command_that_is_told() {
    let (directory, place, reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "a group");
    run_on(&place, &["branch", "create", "trial"]).success();
    let job = |line: &str| run_on(&place, &["run", "--branch", "trial", "-m", "x", "--", "sh", "-c", line]);
    let refused = job("echo '{' > zarr.json").failure();
    assert_eq!(refused.matches("not committed").count(), 1, "{refused}");
    let told = refused.split("to go on with it: icechunkfs ").nth(1).unwrap().lines().next().unwrap();
    let mountpoint = directory.path().join("mnt");
    std::fs::create_dir(&mountpoint).unwrap();
    let _mount = common::Unmounted(vec![mountpoint.clone()]);
    shell(&format!("{} {}", program(), told.replace("DIR", text(&mountpoint)))).success();
    assert_eq!(std::fs::read_to_string(mountpoint.join("zarr.json")).unwrap(), "{\n");
    run_on(&mountpoint, &["discard"]).success();
    let missing = run_on(&place, &["run", "-m", "x", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(missing.stderr.contains("no-such-program: command not found"), "{}", missing.stderr);
    icechunkfs(["unmount", text(&mountpoint)]).success();
    common::remove_default_scratch(directory.path());
}

#[test]
fn what_is_lost_is_named_with_what_needs_it() {
    if !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V2);
    let first_of = |folder: &str| std::fs::read_dir(source.join(folder)).unwrap().next().unwrap().unwrap().path();
    let manifest = first_of("manifests");
    std::fs::rename(&manifest, directory.path().join("manifest")).unwrap();
    let found = run_on(&source, &["verify"]).all();
    assert!(found.contains("it is missing; needed by /a, among others in snapshot"), "{found}");
    std::fs::rename(directory.path().join("manifest"), &manifest).unwrap();
    let chunk = first_of("chunks");
    std::fs::rename(&chunk, directory.path().join("chunk")).unwrap();
    let lost: Vec<String> = (0..120)
        .map(|n| run_on(&source, &["cat", &format!("a/c/{n}")]))
        .filter(|ran| !ran.status.success())
        .map(|ran| ran.stderr)
        .collect();
    assert!(!lost.is_empty() && lost.iter().all(|why| why.contains("verify REPO --chunks")), "{lost:?}");
    std::fs::rename(directory.path().join("chunk"), &chunk).unwrap();
    let before = refs(&source);
    std::fs::remove_file(source.join("repo")).unwrap();
    let why = run_on(&source, &["log"]).failure();
    assert!(why.contains("no `repo`") && why.contains("newest first by name"), "{why}");
    // The advice works.
    let mut earlier: Vec<_> =
        std::fs::read_dir(source.join("overwritten")).unwrap().map(|one| one.unwrap().path()).collect();
    earlier.sort();
    std::fs::copy(&earlier[0], source.join("repo")).unwrap();
    assert_eq!(refs(&source)["branches"]["main"], before["branches"]["main"]);
}

/// A directory beside the tests, in which each of `lines` is typed.
#[test]
fn command_lines_with_a_mistake_are_answered_with_what_was_meant() {
    let (directory, place, reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "a group");
    let at = |name: &str| directory.path().join(name);
    for name in ["netcdf", "nothing", "zarr2"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    std::fs::write(at("netcdf/2026.nc"), b"CDF\x02rest").unwrap();
    std::fs::write(at("zarr2/.zgroup"), "{}").unwrap();
    let repo = place.file_name().unwrap().to_str().unwrap();
    for (line, told) in [
        ("import netcdf", "icechunkfs import SRC REPO"),
        ("import netcdf new", "2026.nc is a NetCDF file"),
        ("import nothing new", "it is empty"),
        ("import zarr2 new", "version 2"),
        ("import REPO new", "icechunkfs clone 'REPO' 'new'"),
        ("branch REPO rename trial foo", "--at OLD-NAME"),
        ("branch REPO delete", "icechunkfs branch REPO delete NAME"),
        ("branch -b x REPO", "REPO create NAME"),
        ("restore mnt v1.0 sst", "--from REF"),
        ("config REPO compression.level=5", "set compression.level 5"),
        ("config set compression.level 5", "config REPO set NAME VALUE"),
        ("config REPO set compression.level 99", "from 0 to 22"),
        ("merge REPO a --branch b", "--into NAME"),
        ("merge REPO --abort", "nothing to abort"),
        ("diff --cached", "icechunkfs diff MOUNTPOINT"),
        ("commit --allow-empty", "icechunkfs amend"),
        ("tag REPO create v1 --force", "tags never change"),
        ("cherry-pick x", "icechunkfs restore"),
        ("clean", "icechunkfs discard"),
        ("version", "--version"),
        ("open REPO", "icechunkfs mount"),
        ("log REPO -n many", "not a whole number"),
        ("log REPO -3", "-n 3"),
        ("log REPO --memory -5", "positive"),
        ("log main REPO", "are the arguments swapped?"),
        ("diff v1 main REPO", "are the arguments swapped?"),
        ("import none zarr2", "are the arguments swapped?"),
        ("cat REPO none", "icechunkfs ls"),
        ("push REPO origin main", "icechunkfs clone"),
        ("pull REPO", "icechunkfs pull REPO OTHER"),
        ("log REPO/snapshots", "inside the repository"),
        ("log REPO:main", "--branch 'main'"),
        ("log REPO@v1", "--tag 'v1'"),
        ("log file:/no/such/place", "file:///no/such/place"),
        ("tag REPO create main~1", "means a commit already"),
        ("tag REPO create 1CECHNKREP0F1RSTCMT0", "means a commit already"),
        ("ls REPO --snapshot 1CE", "at least 4 of them"),
        ("ls REPO --snapshot main", "--branch"),
        ("revert REPO 1CECHNKREP0F1RSTCMT0", ""),
        ("log http://127.0.0.1:99999/x", "invalid port"),
    ] {
        let words: Vec<String> = line.split(' ').map(|word| word.replace("REPO", repo)).collect();
        let said = run(Command::new(program()).args(&words).current_dir(directory.path())).failure();
        // The words that are told name the repository of the mistake, or any.
        assert!(said.contains(&told.replace("REPO", repo)) || said.contains(told), "{line}: {said}");
    }
    assert!(!at("new").exists());
}
