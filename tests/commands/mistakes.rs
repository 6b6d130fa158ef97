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
        let is_left = refs(here)["branches"].as_object().unwrap().keys().any(|name| name.starts_with("mine-"));
        assert!(!is_left, "the branch in between is gone");
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
    for words in [&["push"][..], &["push", "--force"], &["pull"]] {
        let why = run_on(&one, &[words, &[text(&other)]].concat()).all();
        assert!(why.contains("different first commits") && !why.contains("damaged"), "{why}");
        assert!(!why.contains("To merge both"), "{why}");
    }
}

/// Only the group itself is in both: what is below it, on either side, is not.
#[test]
fn a_group_that_two_mounts_made_is_settled_by_the_command_that_is_told() {
    let (directory, place, _reference) = empty(SpecVersionBin::V2);
    let mounts = ["one", "two"].map(|name| Writable::placed(&place, &directory.path().join(name), &[]));
    for (name, mount) in ["a", "b"].iter().zip(&mounts) {
        let root = mount.root();
        std::fs::write(root.join("zarr.json"), GROUP).unwrap();
        std::fs::create_dir_all(root.join("g").join(name).join("c")).unwrap();
        std::fs::write(root.join("g/zarr.json"), GROUP).unwrap();
        std::fs::write(root.join("g").join(name).join("zarr.json"), raw_array(&[4], &[2])).unwrap();
        std::fs::write(root.join("g").join(name).join("c/0"), name.repeat(2)).unwrap();
    }
    let [one, two] = &mounts;
    one.commit("one").unwrap();
    let refused = run_on(two.root(), &["commit", "-m", "two"]).failure();
    assert!(refused.contains("2 conflicts"), "{refused}");
    let told = two.read_control("conflicts");
    let commands =
        told.lines().filter_map(|line| Some(line.split_once("icechunkfs discard ")?.1.split_once(", then")?.0));
    let commands: Vec<&str> = commands.collect();
    assert_eq!(commands.len(), 2, "{told}");
    for command in commands {
        shell(&format!("{} discard {command}", program())).success();
    }
    assert!(!two.read_control("status").contains("conflict"), "{}", two.read_control("status"));
    assert_eq!(two.read_control("conflicts"), "no conflicts\n");
    let done = run_on(two.root(), &["commit", "--strict", "-m", "two"]).text();
    assert!(!done.contains("belong to a group") && done.contains("rebased onto 1 concurrent commit"), "{done}");
    let keys = Reference::open(&place).keys();
    assert_eq!([&keys["g/a/c/0"][..], &keys["g/b/c/0"]], [b"aa", b"bb"]);
}

/// More than the document is in conflict where the group took the place of another one, or was
/// moved there: a discard of the document would do nothing, or be refused.
#[test]
fn a_group_that_was_replaced_or_moved_is_settled_by_the_command_that_is_told() {
    for is_moved in [false, true] {
        let (directory, place, reference) = empty(SpecVersionBin::V2);
        reference.commit(&[("zarr.json", GROUP.as_bytes()), ("g/zarr.json", GROUP.as_bytes())], "a group");
        let mounts = ["one", "two"].map(|name| Writable::placed(&place, &directory.path().join(name), &[]));
        let [one, two] = mounts.each_ref().map(Writable::root);
        if is_moved {
            std::fs::create_dir(one.join("h")).unwrap();
            std::fs::write(one.join("h/zarr.json"), GROUP).unwrap();
            std::fs::rename(two.join("g"), two.join("h")).unwrap();
        } else {
            for root in [&one, &two] {
                std::fs::remove_dir_all(root.join("g")).unwrap();
                std::fs::create_dir(root.join("g")).unwrap();
                std::fs::write(root.join("g/zarr.json"), GROUP).unwrap();
            }
        }
        mounts[0].commit("one").unwrap();
        let refused = run_on(&two, &["commit", "-m", "two"]).failure();
        let told = refused.split("icechunkfs discard ").nth(1).unwrap().split(", then").next().unwrap();
        assert!(!told.contains("zarr.json") && refused.contains("with all below"), "{refused}");
        shell(&format!("{} discard {told}", program())).success();
        run_on(&two, &["commit", "-m", "two"]).success();
    }
}

#[test]
fn a_removed_group_in_which_others_made_a_node_is_named() {
    let (directory, place, reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes()), ("g/zarr.json", GROUP.as_bytes())], "a group");
    let mount = Writable::placed(&place, &directory.path().join("scratch"), &[]);
    let root = mount.root();
    for name in ["removed", "moved"] {
        match name {
            "removed" => std::fs::remove_dir_all(root.join("g")).unwrap(),
            _ => std::fs::rename(root.join("g"), root.join("h")).unwrap(),
        }
        let key = format!("g/{name}/zarr.json");
        Reference::open(&place).commit(&[(&key, GROUP.as_bytes())], "a node");
        let refused = run_on(&root, &["commit", "-m", "less"]).failure();
        let told = refused.split("icechunkfs discard ").nth(1).unwrap().split(", then").next().unwrap();
        assert!(
            refused.contains(&format!("/g/{name}")) && refused.contains("to keep what the other side added"),
            "{refused}"
        );
        shell(&format!("{} discard {told}", program())).success();
        run_on(&root, &["refresh"]).success();
        assert_eq!(mount.read_control("conflicts"), "no conflicts\n");
        assert!(root.join(&key).exists() && !root.join("h").exists(), "{name}");
    }
}

#[test]
fn a_merge_names_the_commit_that_made_the_change() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    let document = raw_array(&[4], &[2]);
    reference.commit(&[("zarr.json", GROUP.as_bytes()), ("a/zarr.json", document.as_bytes())], "an array");
    reference.create_branch("side");
    Reference::open(&place).on("side").commit(&[("a/c/0", b"xx")], "theirs");
    reference.commit(&[("a/c/0", b"yy")], "ours");
    let ours = reference.history()[0].0.clone();
    reference.commit(&[("g/zarr.json", GROUP.as_bytes())], "nothing to do with it");
    let why = run_on(&place, &["merge", "side"]).failure();
    assert!(why.contains(&format!("(commit {ours} \"ours\")")), "{why}");
}

#[test]
fn changes_that_cannot_be_committed_are_counted() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    std::fs::create_dir(root.join("bad")).unwrap();
    std::fs::write(root.join("bad/zarr.json"), "{").unwrap();
    let listed = icechunkfs(["list"]).text();
    let line = listed.lines().find(|line| line.contains(text(&root))).unwrap();
    assert!(line.contains("1 that cannot be committed"), "{listed}");
    let said = icechunkfs(["unmount", text(&root)]).all();
    assert!(said.contains("uncommitted changes: 1 that cannot be committed"), "{said}");
}

#[test]
fn what_a_commit_deletes_and_leaves_out_is_said() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    std::fs::write(root.join("zarr.json"), GROUP).unwrap();
    std::fs::create_dir_all(root.join("a/c")).unwrap();
    std::fs::write(root.join("a/zarr.json"), raw_array(&[4], &[2])).unwrap();
    std::fs::write(root.join("a/0.0"), "data").unwrap();
    std::fs::write(root.join("a/notes.txt"), "text").unwrap();
    let status = mount.read_control("status");
    assert!(status.contains("/a/0.0: chunks of /a are named like c/0") && !status.contains("notes.txt:"), "{status}");
    mount.commit("an array").unwrap();
    let made = std::fs::File::create(mount.control("comit"));
    assert_eq!(made.unwrap_err().raw_os_error(), Some(libc::EPERM));
    let errors = mount.read_control("errors");
    assert!(errors.contains("no such control file; did you mean `commit`"), "{errors}");
    std::fs::remove_file(mount.control("status")).unwrap_err();
    assert_eq!(mount.read_control("errors"), errors);
    std::fs::remove_dir_all(root.join("a")).unwrap();
    std::fs::write(root.join("zarr.json"), GROUP.replace('}', " }")).unwrap();
    let done = run_on(&root, &["commit", "-m", "less"]).text();
    assert!(done.contains("2 nodes (1 deleted)") && !done.contains("nothing is left"), "{done}");
    std::fs::remove_file(root.join("zarr.json")).unwrap();
    let done = run_on(&root, &["commit", "-m", "nothing"]).text();
    assert!(done.contains("1 node deleted") && done.contains("nothing is left"), "{done}");
    run_on(mount.repository(), &["undo", "--yes"]).success();
    assert!(Reference::open(mount.repository()).keys().contains_key("zarr.json"));
}

#[test]
fn a_mount_or_its_parent_is_taken_for_the_repository_where_that_is_meant() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    std::fs::write(root.join("zarr.json"), GROUP).unwrap();
    mount.commit("a group").unwrap();
    let checked = run_on(&root, &["verify"]).text();
    assert!(checked.contains("checked 2 snapshots"), "{checked}");
    let repository = mount.repository();
    let above = repository.parent().unwrap();
    assert!(repository.ends_with("repo"));
    let why = run_on(above, &["log"]).failure();
    assert!(why.contains(&format!("{} is a repository: name that", text(repository))), "{why}");
    let held = std::fs::File::open(root.join("zarr.json")).unwrap();
    let busy = icechunkfs(["unmount", text(&root)]).failure();
    let told = commands_in(&busy);
    assert_eq!(told.len(), 1, "{busy}");
    drop(held);
    shell(&told[0]).success();
}

#[test]
fn a_revert_that_no_side_can_win_tells_the_commits_to_take_back_first() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    let document = raw_array(&[4], &[2]);
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "the root");
    reference.commit(&[("a/zarr.json", document.as_bytes())], "an array");
    let array = reference.history()[0].0.clone();
    reference.commit(&[("a/c/0", b"xx")], "a chunk");
    let written = reference.history()[0].0.clone();
    // The tip has nothing to do with it.
    reference.commit(&[("g/zarr.json", GROUP.as_bytes())], "a group");
    let why = run_on(&place, &["revert", &array]).failure();
    let told = why.lines().skip_while(|line| !line.contains("take back the later commits first"));
    let told: Vec<&str> = told.map(str::trim).filter(|line| line.starts_with("icechunkfs revert ")).collect();
    assert!(told.len() == 2 && told[0].contains(&written) && told[1].contains(&array), "{why}");
    assert!(why.contains(&format!("last by commit {written}")), "{why}");
    shell(&told.join(" ").replace("icechunkfs ", &format!("{} ", program()))).success();
    assert!(!Reference::open(&place).keys().contains_key("a/zarr.json"));
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
    let told = refused.split("to continue with it: icechunkfs ").nth(1).unwrap().lines().next().unwrap();
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
    // The advice works. Names tell milliseconds: two copies of one have any order.
    let mut earlier: Vec<_> =
        std::fs::read_dir(source.join("overwritten")).unwrap().map(|one| one.unwrap().path()).collect();
    earlier.sort();
    let is_it = |copy: &std::path::PathBuf| {
        std::fs::copy(copy, source.join("repo")).unwrap();
        refs(&source)["branches"]["main"] == before["branches"]["main"]
    };
    assert!(earlier.iter().take(2).any(is_it));
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
    run_on(&place, &["tag", "create", "v1"]).success();
    for (line, told) in [
        ("import netcdf", "icechunkfs import SRC REPO"),
        ("import netcdf new", "2026.nc is a NetCDF file"),
        ("import nothing new", "it is empty"),
        ("import zarr2 new", "zarr2: .zgroup: missing field"),
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
        ("tag REPO create main~1", "already means a commit"),
        ("tag REPO create 1CECHNKREP0F1RSTCMT0", "already means a commit"),
        ("ls REPO --snapshot 1CE", "at least the first 4"),
        ("ls REPO --snapshot main", "--branch"),
        ("revert REPO 1CECHNKREP0F1RSTCMT0", ""),
        ("log http://127.0.0.1:99999/x", "invalid port"),
        ("tag REPO delete main", "it is a branch, not a tag"),
        ("branch REPO delete v1", "it is a tag, not a branch"),
        ("branch REPO reset v1 --to main", "tags never change"),
        ("branch REPO create main", "`icechunkfs branch REPO reset 'main' --to REF`"),
        ("branch REPO checkout dev", "icechunkfs mount REPO MOUNTPOINT --branch NAME"),
        ("branch newb", "the repository comes first: icechunkfs branch REPO create 'newb'"),
        ("branch ./newb", "no such directory"),
        ("tag REPO remove v1", "icechunkfs tag REPO delete NAME"),
        ("branch REPO delete x --foo", "Usage: icechunkfs branch <REPO> delete"),
        ("create new", "icechunkfs init"),
        ("diff REPO v1...main", "icechunkfs diff REPO v1 main"),
        ("commit REPO -m ", "the message is empty"),
        ("delete REPO", "icechunkfs branch REPO delete NAME"),
        ("clone REPO copy --branch main", "Usage: icechunkfs clone [OPTIONS] <REPO> <DEST>"),
        ("clone REPO copy --branch main", "all branches"),
        ("mount REPO nothing -o readonly", "Did you mean `ro`?"),
        ("mount REPO nothing -o brnach=main", "Did you mean `branch`?"),
        ("log REPO --as-of yesterday", "an age as in 3d"),
        ("merge REPO main --into v1", "--tag 'v1' for commands that read"),
    ] {
        let words: Vec<String> = line.split(' ').map(|word| word.replace("REPO", repo)).collect();
        let said = run(Command::new(program()).args(&words).current_dir(directory.path())).failure();
        // The words that are told name the repository of the mistake, or any.
        assert!(said.contains(&told.replace("REPO", repo)) || said.contains(told), "{line}: {said}");
    }
    assert!(!at("new").exists());
}
