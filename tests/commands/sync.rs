//! `icechunkfs clone`, `push` and `pull`: the reference implementation and the files themselves
//! tell whether a copy is one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::repo::Repository;
use icechunkfs::sync::push::Change;
use icechunkfs::times::system_clock;
use icechunkfs::{storage, sync};
use serde_json::{Value, json};

use crate::common::distant::Distant;
use crate::common::failing::run_with_failing_calls;
use crate::common::faulty::{Line, five_of_a_hundred};
use crate::common::lengths::{length, number};
use crate::common::origin::Origin;
use crate::common::random::Random;
use crate::common::writing::{GROUP, Reference, array};
use crate::common::{
    Files, FixtureSet, Output, assert_same, block_on, copy_tree, icechunkfs, lab, moto, place, program, project,
    read_files, run_on, watchdog,
};

const VERSIONS: [SpecVersionBin; 2] = [SpecVersionBin::V1, SpecVersionBin::V2];
/// Folders of objects, which never change.
const OBJECTS: [&str; 4] = ["chunks/", "manifests/", "snapshots/", "transactions/"];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(super) fn clone(from: &Path, to: &Path) -> Output {
    icechunkfs(["clone", text(from), text(to)])
}

pub(super) fn push(from: &Path, to: &Path, words: &[&str]) -> Output {
    run_on(from, &[&["push", text(to)], words].concat())
}

pub(super) fn refs(place: &Path) -> Value {
    run_on(place, &["refs", "--json"]).json()
}

fn history(place: &Path) -> Value {
    run_on(place, &["log", "--all", "--json"]).json()
}

pub(super) fn objects(place: &Path) -> Files {
    // A killed process leaves files with temporary names, which are no objects.
    let is_object = |name: &String| OBJECTS.iter().any(|folder| name.starts_with(folder)) && !name.contains('#');
    read_files(place).into_iter().filter(|(name, _)| is_object(name)).collect()
}

/// Fails unless `copy` has refs, history and bytes of `original`, and no damage.
pub(super) fn assert_is_copy(what: &str, copy: &Path, original: &Path) {
    assert_eq!(refs(copy), refs(original), "{what}");
    assert_eq!(history(copy), history(original), "{what}");
    let known = objects(original);
    let found = objects(copy);
    let of_original: Files =
        known.iter().filter(|(name, _)| found.contains_key(*name)).map(|(n, b)| (n.clone(), b.clone())).collect();
    assert_same(what, &found, &of_original);
    let verified = run_on(copy, &["verify", "--json"]);
    assert!(verified.status.success(), "{what}: {}", verified.all());
}

/// A repository of some commits: groups, arrays, chunks in manifests, packed and alone, branches
/// and tags.
pub(super) fn repository(directory: &Path, version: SpecVersionBin) -> PathBuf {
    let place = directory.join("source");
    block_on(lab::create(&place, version, RepositoryConfig::default()));
    let reference = Reference::open(&place);
    let document = array(&[400], &[1]);
    reference.commit(&[("zarr.json", GROUP.as_bytes()), ("a/zarr.json", document.as_bytes())], "arrays");
    reference.create_tag("v1");
    for n in 0..6 {
        add_chunks(&reference, n);
    }
    reference.create_branch("dev");
    place
}

pub(super) fn add_chunks(reference: &Reference, round: usize) {
    let chunks: Vec<(String, Vec<u8>)> = (0..20)
        .map(|n| (format!("a/c/{}", 20 * round + n), vec![n as u8; [10, 3000, 40_000][n % 3] + round]))
        .collect();
    let keys: Vec<(&str, &[u8])> = chunks.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    reference.commit(&keys, &format!("round {round}"));
}

#[test]
fn a_clone_of_every_fixture_has_its_refs_history_and_bytes() {
    if !place::needs_directory() {
        return;
    }
    for set in FixtureSet::each() {
        let fixtures = set.all();
        assert!(fixtures.len() > 8);
        for fixture in fixtures {
            let directory = tempfile::tempdir().unwrap();
            let copy = directory.path().join("copy");
            clone(&fixture.repository, &copy).success();
            assert_eq!(refs(&copy), refs(&fixture.repository), "{}", fixture.name);
            assert_eq!(history(&copy), history(&fixture.repository), "{}", fixture.name);
            let known = objects(&fixture.repository);
            let found = objects(&copy);
            for (name, bytes) in &found {
                assert!(known.get(name) == Some(bytes), "{}: {name}", fixture.name);
            }
            // The same findings, such as chunks beyond a grid, and no others.
            let findings = |place: &Path| {
                let report = run_on(place, &["verify", "--json"]);
                let found: Value = serde_json::from_slice(&report.stdout).unwrap();
                // A clone leaves out what no ref reaches: all notes are about that, and some
                // warnings.
                let mut findings = found["findings"].as_array().unwrap().clone();
                let is_copied = |finding: &Value| copy.join(finding["object"].as_str().unwrap()).exists();
                findings.retain(|finding| finding["severity"] != "note" && is_copied(finding));
                (report.status.code(), findings)
            };
            assert_eq!(findings(&copy), findings(&fixture.repository), "{}", fixture.name);
            let config = |place: &Path| icechunkfs(["config", text(place), "get"]).text();
            assert_eq!(config(&copy), config(&fixture.repository), "{}", fixture.name);
        }
    }
}

#[test]
fn a_damaged_ref_is_not_left_out_of_a_clone_or_a_push_of_all() {
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V1);
    let copy = directory.path().join("copy");
    let other = directory.path().join("other");
    clone(&source, &other).success();
    add_chunks(&Reference::open(&source), 7);
    for damaged in ["refs/branch.dev/ref.json", "refs/tag.v1/ref.json"] {
        let file = std::fs::read(source.join(damaged)).unwrap();
        std::fs::write(source.join(damaged), "").unwrap();
        let before = read_files(&other);
        let pull = run_on(&other, &["pull", text(&source)]);
        for said in [clone(&source, &copy).failure(), push(&source, &other, &[]).failure(), pull.failure()] {
            assert!(said.contains(damaged) && said.contains("put the file back"), "{said}");
        }
        assert_eq!(read_files(&other), before);
        assert!(!copy.exists() || read_files(&copy).is_empty());
        std::fs::write(source.join(damaged), &file).unwrap();
    }
    // One that is not asked for does not matter.
    std::fs::write(source.join("refs/branch.dev/ref.json"), "").unwrap();
    push(&source, &other, &["main"]).success();
    assert_eq!(refs(&other)["branches"]["main"], refs(&source)["branches"]["main"]);
}

#[test]
fn pushes_and_pulls_bring_what_the_reference_committed() {
    if !place::needs_directory() {
        return;
    }
    for version in VERSIONS {
        let directory = tempfile::tempdir().unwrap();
        let source = repository(directory.path(), version);
        let copy = directory.path().join("copy");
        clone(&source, &copy).success();
        assert_is_copy("the clone", &copy, &source);
        assert_same("by the reference", &Reference::open(&copy).keys(), &Reference::open(&source).keys());
        assert_eq!(Reference::open(&copy).node_ids(), Reference::open(&source).node_ids());

        add_chunks(&Reference::open(&source), 7);
        Reference::open(&source).on("dev").commit(&[("a/c/399", b"dev")], "dev");
        Reference::open(&source).create_tag("v2");
        Reference::open(&source).create_branch("new");
        let said = push(&source, &copy, &["--json"]).json();
        let changes: BTreeMap<&str, &str> = said["refs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|found| (found["name"].as_str().unwrap(), found["change"].as_str().unwrap()))
            .collect();
        let expected =
            [("dev", "forward"), ("main", "forward"), ("new", "created"), ("v1", "unchanged"), ("v2", "created")];
        assert_eq!(changes, expected.into());
        assert_eq!(said["commits"], 2);
        // Two snapshots, two logs, two manifests, and the chunks of that round that are not in the
        // manifest; nothing else again.
        let copied = said["objects"].as_u64().unwrap();
        assert!((6..=6 + 14).contains(&copied), "{version:?}: {copied}");
        assert_is_copy("after the push", &copy, &source);
        assert_same("by the reference", &Reference::open(&copy).keys(), &Reference::open(&source).keys());
        assert_eq!(push(&source, &copy, &[]).text(), "all refs are there already\n");

        // The other way round, after commits by both programs.
        add_chunks(&Reference::open(&copy), 8);
        let said = run_on(&source, &["pull", text(&copy), "main"]).text();
        assert!(said.contains("forward    branch main"), "{said}");
        assert_is_copy("after the pull", &source, &copy);
        add_chunks(&Reference::open(&source), 9);
        assert_eq!(Reference::open(&source).history().len(), Reference::open(&copy).history().len() + 1);
    }
}

#[test]
fn what_would_lose_commits_or_move_tags_is_refused() {
    if !place::needs_directory() {
        return;
    }
    for version in VERSIONS {
        let directory = tempfile::tempdir().unwrap();
        let source = repository(directory.path(), version);
        let copy = directory.path().join("copy");
        clone(&source, &copy).success();
        Reference::open(&source).commit(&[("a/c/300", b"here")], "here");
        Reference::open(&copy).commit(&[("a/c/301", b"there")], "there");
        Reference::open(&source).create_tag("both");
        Reference::open(&copy).create_tag("both");
        Reference::open(&source).on("dev").commit(&[("a/c/302", b"dev")], "dev");
        let keys = Reference::open(&copy).keys();
        let before = refs(&copy);
        let pushed = push(&source, &copy, &["--dry-run"]);
        assert_eq!((pushed.status.code(), refs(&copy)), (Some(1), before.clone()));
        let pushed = push(&source, &copy, &[]);
        assert_eq!(pushed.status.code(), Some(1));
        assert!(pushed.all().contains("refused    branch main: the destination has other commits"), "{}", pushed.all());
        assert!(pushed.all().contains("refused    tag both: it is at"), "{}", pushed.all());
        // A branch that nothing speaks against has moved.
        assert!(pushed.all().contains("forward    branch dev"), "{}", pushed.all());
        assert_same("main there", &Reference::open(&copy).keys(), &keys);
        assert_eq!(refs(&copy)["tags"], before["tags"]);

        let pushed = push(&source, &copy, &["--force", "main", "both"]);
        assert_eq!(pushed.status.code(), Some(1), "a tag never moves");
        assert_eq!(refs(&copy)["branches"]["main"], refs(&source)["branches"]["main"]);
        assert_eq!(refs(&copy)["tags"], before["tags"]);
        // A destination that is ahead.
        Reference::open(&copy).commit(&[("a/c/303", b"there")], "there");
        let pushed = push(&source, &copy, &["main"]);
        assert!(pushed.all().contains("the destination has newer commits"), "{}", pushed.all());
        assert!(run_on(&copy, &["verify"]).status.success());
    }
}

#[test]
fn a_dry_run_is_refused_where_a_push_would_be() {
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V2);
    let copy = directory.path().join("copy");
    clone(&source, &copy).success();
    Reference::open(&source).commit(&[("a/c/300", b"here")], "here");
    let dry = push(&source, &copy, &["--dry-run"]).text();
    assert!(dry.contains("forward    branch main"), "{dry}");
    run_on(&copy, &["config", "status", "read-only", "--reason", "archived"]).success();
    for words in [&["--dry-run"][..], &[]] {
        let refused = push(&source, &copy, words);
        assert!(!refused.status.success() && refused.all().contains("archived"), "{words:?}: {}", refused.all());
        assert!(!refused.all().contains("forward"), "{words:?}: {}", refused.all());
    }
}

/// Commits that have expired in the source stay where they have not.
#[test]
fn a_push_after_an_expiration_keeps_the_history_of_the_destination() {
    if !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V2);
    let copy = directory.path().join("copy");
    clone(&source, &copy).success();
    let before = Reference::open(&copy).history();
    for round in [7, 8] {
        add_chunks(&Reference::open(&source), round);
    }
    let newest = Reference::open(&source).history()[0].0.clone();
    std::thread::sleep(Duration::from_millis(1100));
    add_chunks(&Reference::open(&source), 9);
    let commits = run_on(&source, &["log", "--json"]).json();
    let time = commits[1]["written_at"].as_str().unwrap().to_owned();
    assert_eq!(commits[1]["id"], newest);
    icechunkfs(["tag", text(&source), "delete", "v1", "--yes"]).success();
    icechunkfs(["branch", text(&source), "delete", "dev", "--yes"]).success();
    let expected = icechunkfs(["diff", text(&source), &before[0].0, "main", "--json"]).text();
    // The last two stay: the one of this time is not older.
    run_on(&source, &["expire", "--older-than", &time, "--yes"]).success();
    assert_eq!(Reference::open(&source).history().len(), 3);
    push(&source, &copy, &["main"]).success();
    let after = Reference::open(&copy).history();
    assert_eq!(after[2..], before[..], "the commits that expired are still there");
    assert_eq!(after[..2], Reference::open(&source).history()[..2]);
    assert_same("by the reference", &Reference::open(&copy).keys(), &Reference::open(&source).keys());
    let verified = run_on(&copy, &["verify"]);
    assert!(verified.status.success(), "{}", verified.all());
    // The difference over the commit that never came is complete: its log has come.
    let changed = icechunkfs(["diff", text(&copy), &before[0].0, "main", "--json"]).text();
    assert_eq!(changed, expected);
}

/// Both migrations of one repository keep the ids of its commits, and only one of them keeps their
/// files: they are not the same commits.
#[test]
fn a_push_between_two_migrations_of_one_repository_is_refused() {
    for is_from_new in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let old = repository(directory.path(), SpecVersionBin::V1);
        let new = directory.path().join("new");
        run_on(&old, &["migrate", "--to", text(&new), "--yes"]).success();
        run_on(&old, &["migrate", "--yes"]).success();
        let (source, destination) = if is_from_new { (&new, &old) } else { (&old, &new) };
        Reference::open(source).commit(&[("b/zarr.json", array(&[4], &[1]).as_bytes()), ("b/c/1", b"new")], "another");
        let before = read_files(destination);
        let why = push(source, destination, &[]).failure();
        assert!(why.contains("No ref was moved"), "{why}");
        let kept: Files = read_files(destination).into_iter().filter(|(name, _)| before.contains_key(name)).collect();
        assert_same("the destination", &kept, &before);
    }
}

#[test]
fn names_of_deleted_tags_are_not_used_again() {
    if !place::needs_directory() {
        return;
    }
    for version in VERSIONS {
        let directory = tempfile::tempdir().unwrap();
        let source = repository(directory.path(), version);
        let copy = directory.path().join("copy");
        clone(&source, &copy).success();
        icechunkfs(["tag", text(&copy), "delete", "v1", "--yes"]).success();
        let pushed = push(&source, &copy, &[]);
        assert!(pushed.all().contains("refused    tag v1: it was deleted there"), "{}", pushed.all());
        assert!(refs(&copy)["tags"].as_object().unwrap().is_empty());
        // A clone of it has neither the tag nor the name.
        let second = directory.path().join("second");
        clone(&copy, &second).success();
        assert_is_copy("the second", &second, &copy);
        let made = icechunkfs(["tag", text(&second), "create", "v1"]);
        assert!(made.failure().contains("names of deleted tags"));
    }
}

#[test]
fn a_place_with_anything_else_is_refused() {
    if !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V2);
    let other = directory.path().join("other");
    for name in ["notes.txt", "refs/branch.main/ref.json", "overwritten/x"] {
        let file = other.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "mine").unwrap();
        let why = clone(&source, &other).failure();
        assert!(why.contains(name) || (why.contains("a repository already") && name.starts_with("refs/")), "{why}");
        assert_eq!(read_files(&other).len(), 1);
        std::fs::remove_dir_all(&other).unwrap();
    }
    clone(&source, &other).success();
    assert!(clone(&source, &other).failure().contains("icechunkfs push"));
    assert!(push(&source, &source, &[]).failure().contains("both source and destination"));
    assert!(clone(&directory.path().join("nothing"), &directory.path().join("new")).failure().contains("nothing"));
    assert!(!directory.path().join("new").exists());
    // Other versions, and releases before 0.2.
    let old = repository(&directory.path().join("old"), SpecVersionBin::V1);
    assert!(push(&old, &other, &[]).failure().contains("migrate"));
    let alpha = FixtureSet::own().alphas().remove(0);
    let alpha = clone(&alpha.repository, &directory.path().join("alpha")).failure();
    assert!(alpha.contains("icechunkfs migrate"), "{alpha}");
}

#[test]
fn no_repository_is_made_inside_another() {
    let directory = tempfile::tempdir().unwrap();
    for version in VERSIONS {
        let source = repository(&directory.path().join(version.to_string()), version);
        let link = directory.path().join(format!("link to {version}"));
        std::os::unix::fs::symlink(source.join("chunks"), &link).unwrap();
        let before = read_files(&source);
        let places = ["chunks/copy", "refs/a/b", "snapshots", "other", "other/deep"].map(|name| source.join(name));
        for inner in places.into_iter().chain([link.join("copy")]) {
            for words in [&["clone", text(&source), text(&inner)][..], &["init", text(&inner)]] {
                let why = icechunkfs(words).failure();
                assert!(why.contains("is inside the repository"), "{words:?}: {why}");
            }
        }
        assert!(["chunks/copy", "refs/a", "other"].iter().all(|name| !source.join(name).exists()));
        assert_same("files", &read_files(&source), &before);
    }
}

/// A clone takes for its own only what a clone leaves: whatever else is there would be garbage of
/// the new repository, or be replaced.
#[test]
fn a_clone_leaves_no_file_of_another_program_in_its_repository() {
    if !place::needs_directory() {
        return;
    }
    for version in VERSIONS {
        let directory = tempfile::tempdir().unwrap();
        let source = repository(directory.path(), version);
        icechunkfs(["tag", text(&source), "create", "old"]).success();
        icechunkfs(["tag", text(&source), "delete", "old", "--yes"]).success();
        run_on(&source, &["config", "set", "inline_chunk_threshold_bytes", "100"]).success();
        let copy = directory.path().join("copy");
        let mut refused = vec![
            ("chunks/mydata.nc", "mine"),
            ("chunks/1CECHNKREP0F1RSTCMT0.bak", "mine"),
            ("chunks/1cechnkrep0f1rstcmt0", "mine"),
            ("snapshots/holiday/1CECHNKREP0F1RSTCMT0", "mine"),
            ("manifests/cargo.txt", "mine"),
            ("transactions/2026.csv", "mine"),
            ("config.yaml", "mine: true\n"),
            ("refs/notes.txt", "mine"),
            ("refs/branch.dev/ref.json", "mine"),
            ("refs/branch.dev/ref.json.bak", "mine"),
            // A ref that the source has not would be one of the clone.
            ("refs/branch.other/ref.json", r#"{"snapshot":"1CECHNKREP0F1RSTCMT0"}"#),
            ("refs/tag.v1/ref.json.deleted", ""),
            ("refs/tag.old/ref.json.deleted", "mine"),
        ];
        let config = std::fs::read(source.join("config.yaml")).unwrap_or_default();
        let leftovers = [
            ("chunks/1CECHNKREP0F1RSTCMT0", "left"),
            // A file that a killed process was writing on a local disk.
            ("chunks/1CECHNKREP0F1RSTCMT0#12", "left"),
            ("config.yaml", std::str::from_utf8(&config).unwrap()),
            ("refs/branch.dev/ref.json", r#"{"snapshot":"1CECHNKREP0F1RSTCMT0"}"#),
            ("refs/tag.v1/ref.json", r#"{"snapshot":"1CECHNKREP0F1RSTCMT0"}"#),
            ("refs/tag.old/ref.json.deleted", ""),
        ];
        let accepted = if version == SpecVersionBin::V1 { &leftovers[..] } else { &leftovers[..2] };
        if version == SpecVersionBin::V2 {
            // Only version 1 has them.
            refused.extend(&leftovers[2..]);
        }
        for (name, content) in refused {
            let file = copy.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, content).unwrap();
            let why = clone(&source, &copy).failure();
            assert!(why.contains(&format!("there is `{name}`: move it away")), "{version:?} {name}: {why}");
            assert_eq!(read_files(&copy), Files::from([(name.to_owned(), content.as_bytes().to_vec())]));
            std::fs::remove_dir_all(&copy).unwrap();
        }
        for (name, content) in accepted {
            let file = copy.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, content).unwrap();
        }
        clone(&source, &copy).success();
        std::fs::remove_file(copy.join("chunks/1CECHNKREP0F1RSTCMT0")).unwrap();
        assert_is_copy("over what a killed clone left", &copy, &source);
    }
}

/// A change of one ref at the destination during a push concerns that ref alone.
#[test]
fn refs_that_change_there_during_a_push_are_refused_and_the_rest_moves() {
    if !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V2);
    for name in ["aaa", "bbb", "ccc"] {
        Reference::open(&source).create_branch(name);
    }
    let copy = directory.path().join("copy");
    clone(&source, &copy).success();
    for name in ["aaa", "bbb", "ccc", "main"] {
        Reference::open(&source).on(name).commit(&[("a/c/300", name.as_bytes())], name);
    }
    icechunkfs(["tag", text(&source), "create", "early", "--at", "aaa"]).success();
    icechunkfs(["tag", text(&source), "create", "late"]).success();
    let pushed = block_on(async {
        let open = async |place: &Path| Repository::open(storage::open_directory(place).unwrap()).await.unwrap();
        // In version 2, a repository is what it was when it was opened: the changes come after the
        // push has read the refs.
        let from = open(&source).await;
        let to = open(&copy).await;
        let there = copy.clone();
        let changed = tokio::task::spawn_blocking(move || {
            Reference::open(&there).on("aaa").commit(&[("a/c/301", b"there")], "there");
            icechunkfs(["branch", text(&there), "delete", "bbb", "--yes"]).success();
            icechunkfs(["tag", text(&there), "create", "early"]).success();
        });
        changed.await.unwrap();
        let options = sync::push::PushOptions { force: true, memory: 64 << 20, ..Default::default() };
        sync::push::push(from, to, &options, &sync::Counters::default(), system_clock).await.unwrap()
    });
    let changes: BTreeMap<&str, &Change> =
        pushed.refs.iter().map(|found| (found.name.as_str(), &found.change)).collect();
    for (name, expected) in [
        ("aaa", "it changed there during the push"),
        ("bbb", "it was deleted there during the push"),
        ("early", "it changed there during the push"),
    ] {
        assert!(matches!(changes[name], Change::Refused(why) if why.contains(expected)), "{name}: {:?}", changes[name]);
    }
    assert_eq!(
        (changes["ccc"], changes["main"], changes["late"]),
        (&Change::Forward, &Change::Forward, &Change::Created)
    );
    let here = refs(&source);
    let now = refs(&copy);
    for (kind, name) in [("branches", "ccc"), ("branches", "main"), ("tags", "late")] {
        assert_eq!(now[kind][name], here[kind][name], "{name}");
    }
    assert_ne!(now["branches"]["aaa"], here["branches"]["aaa"]);
    assert!(now["branches"]["bbb"].is_null());
    run_on(&copy, &["verify"]).success();
    // The next one says what is left, and moves what it may.
    let again = push(&source, &copy, &[]);
    assert!(again.all().contains("refused    branch aaa") && again.all().contains("branch bbb"), "{}", again.all());
}

/// A process that is killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command and kills it after some time; returns true if it had not ended.
fn killed_after(words: &[&str], time: Duration) -> bool {
    let mut command = Command::new(program());
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    std::thread::sleep(time);
    let ended = running.0.try_wait().unwrap();
    ended.is_none()
}

/// Copies that are killed at any moment: refs are as before or as after, and the next attempt
/// completes it.
#[test]
fn copies_that_are_killed_continue() {
    if !place::needs_directory() {
        return;
    }
    watchdog();
    let kills = length("ICECHUNKFS_KILLS", 15, 50);
    let mut random = Random::new(number("ICECHUNKFS_SEED", 1) as u64);
    let mut interrupted = 0;
    for life in 0..kills.div_ceil(10) {
        let version = VERSIONS[life % 2];
        let directory = tempfile::tempdir().unwrap();
        let source = repository(directory.path(), version);
        let copy = directory.path().join("copy");
        for _ in 0..5 {
            let time = Duration::from_micros(random.next() % 80_000);
            interrupted += usize::from(killed_after(&["clone", text(&source), text(&copy)], time));
            if ["repo", "refs/branch.main/ref.json"].iter().any(|name| copy.join(name).exists()) {
                assert_is_copy("a clone that was complete", &copy, &source);
                break;
            }
        }
        let cloned = clone(&source, &copy);
        assert!(cloned.status.success() || cloned.stderr.contains("icechunkfs push"), "{}", cloned.all());
        assert_is_copy("a clone that was continued", &copy, &source);
        for round in 7..12 {
            add_chunks(&Reference::open(&source), round);
            let before = refs(&copy);
            let after = refs(&source);
            let time = Duration::from_micros(random.next() % 80_000);
            interrupted += usize::from(killed_after(&["push", text(&source), text(&copy)], time));
            let now = refs(&copy);
            assert!(now == before || now == after, "{now}");
            let verified = run_on(&copy, &["verify"]);
            assert!(verified.status.success(), "{}", verified.all());
        }
        push(&source, &copy, &[]).success();
        assert_is_copy("a push that was continued", &copy, &source);
        assert_same("by the reference", &Reference::open(&copy).keys(), &Reference::open(&source).keys());
    }
    println!("{interrupted} interrupted");
    assert!(interrupted > kills / 4, "{interrupted} of {kills}");
}

/// The kernel reports a failed write once: the next flush succeeds, and the lost bytes seem to be
/// there.
#[test]
fn a_copy_whose_flush_fails_leaves_none_of_the_chunks_that_it_stored() {
    if !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V2);
    let chunks =
        |place: &Path| objects(place).into_keys().filter(|name| name.starts_with("chunks/")).collect::<Vec<_>>();
    let stored = chunks(&source);
    let copy = directory.path().join("copy");
    // A chunk that was there before stays.
    std::fs::create_dir_all(copy.join("chunks")).unwrap();
    std::fs::copy(source.join(&stored[0]), copy.join(&stored[0])).unwrap();
    let words = ["clone", text(&source), text(&copy)];
    let Some(failed) = run_with_failing_calls(&["syncfs:error=EIO"], &words) else { return };
    failed.failure();
    assert_eq!(chunks(&copy), stored[..1]);
    clone(&source, &copy).success();
    assert_is_copy("after a failed flush", &copy, &source);

    // The same for a push.
    let before = chunks(&copy);
    add_chunks(&Reference::open(&source), 6);
    let words = ["push", text(&source), text(&copy)];
    run_with_failing_calls(&["syncfs:error=EIO"], &words).unwrap().failure();
    assert_eq!(chunks(&copy), before);
    push(&source, &copy, &[]).success();
    assert_is_copy("after a failed push", &copy, &source);
}

/// Chunks that are there half or longer than the original, and a source that lacks one.
#[test]
fn objects_that_are_not_whole_are_not_used() {
    if !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V2);
    let chunks: Vec<PathBuf> =
        objects(&source).into_keys().filter(|name| name.starts_with("chunks/")).map(PathBuf::from).collect();
    let copy = directory.path().join("copy");
    for (n, bytes) in [(0, "half"), (1, "")] {
        std::fs::create_dir_all(copy.join("chunks")).unwrap();
        std::fs::write(copy.join(&chunks[n]), bytes).unwrap();
    }
    clone(&source, &copy).success();
    assert_is_copy("over halves", &copy, &source);

    let copy = directory.path().join("longer");
    std::fs::create_dir_all(copy.join("chunks")).unwrap();
    std::fs::write(copy.join(&chunks[0]), vec![0; 1_000_000]).unwrap();
    clone(&source, &copy).success();
    assert_is_copy("over a longer one", &copy, &source);

    let broken = directory.path().join("broken");
    copy_tree(&source, &broken);
    let cut = std::fs::read(broken.join(&chunks[0])).unwrap();
    std::fs::write(broken.join(&chunks[0]), &cut[..cut.len() - 1]).unwrap();
    let why = clone(&broken, &directory.path().join("c1")).failure();
    assert!(why.contains(text(&chunks[0])) && why.contains("a manifest refers to"), "{why}");
    std::fs::remove_file(broken.join(&chunks[0])).unwrap();
    let why = clone(&broken, &directory.path().join("c2")).failure();
    assert!(why.contains("icechunkfs verify") && why.contains(text(&chunks[0])), "{why}");
    assert!(!directory.path().join("c1/repo").exists() && !directory.path().join("c2/repo").exists());
}

/// In version 1, an expiration writes snapshots again, with another parent and about the same
/// length.
#[test]
fn a_killed_clone_continues_after_an_expiration_of_its_source() {
    if !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V1);
    let copy = directory.path().join("copy");
    copy_tree(&source.join("snapshots"), &copy.join("snapshots"));
    let log = run_on(&source, &["log", "--json"]).json();
    run_on(&source, &["expire", "--older-than", log[2]["written_at"].as_str().unwrap(), "--yes"]).success();
    run_on(&source, &["gc", "--older-than", "0s", "--yes"]).success();
    let is_kept = |name: &String| name.starts_with("snapshots/") && source.join(name).exists();
    let before = objects(&copy);
    let now = objects(&source);
    assert!(before.iter().any(|(name, bytes)| is_kept(name) && now[name] != *bytes));
    clone(&source, &copy).success();
    // Files of other commits that the killed clone left are garbage.
    run_on(&copy, &["gc", "--older-than", "0s", "--yes"]).success();
    assert_is_copy("after an expiration", &copy, &source);
}

/// A source in which others commit, tag and collect garbage: each clone is one state of it.
#[test]
fn a_clone_of_a_changing_source_is_one_state_of_it() {
    if !place::needs_directory() {
        return;
    }
    watchdog();
    for version in VERSIONS {
        let directory = tempfile::tempdir().unwrap();
        let source = repository(directory.path(), version);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 8..19 {
                    add_chunks(&Reference::open(&source), round);
                    Reference::open(&source).create_tag(&format!("tag-{round}"));
                    if version == SpecVersionBin::V2 && round % 4 == 0 {
                        let _ = run_on(&source, &["gc", "--older-than", "0s", "--yes"]);
                    }
                }
            });
            let mut count = 0;
            while !writer.is_finished() || count < 3 {
                let copy = directory.path().join(format!("copy-{count}"));
                clone(&source, &copy).success();
                let verified = run_on(&copy, &["verify"]);
                assert!(verified.status.success(), "{}", verified.all());
                // A tag is made at the newest commit: the branch has it, too.
                let main = Reference::open(&copy).history();
                for target in refs(&copy)["tags"].as_object().unwrap().values() {
                    assert!(main.iter().any(|(id, _)| json!(id) == *target), "{target} is on no branch");
                }
                count += 1;
            }
            writer.join().unwrap();
        });
    }
}

/// A first commit of version 1 has no log, and a log may be lost: neither means that a source which
/// changes all the time is collected.
#[test]
fn a_source_without_a_log_is_cloned_beside_changes() {
    for name in ["own-v1-basic", "own-v2-basic"] {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        let copy = directory.path().join("copy");
        copy_tree(&project("tests/fixtures/repos").join(name), &source);
        if name == "own-v2-basic" {
            let tip = run_on(&source, &["log", "-n", "1", "--json"]).json()[0]["id"].as_str().unwrap().to_owned();
            std::fs::remove_file(source.join("transactions").join(tip)).unwrap();
        }
        let distant = Distant::new(storage::open_directory(&source).unwrap(), Duration::from_millis(40));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let opened = runtime.block_on(Repository::open(Arc::new(distant))).unwrap();
        std::fs::create_dir(&copy).unwrap();
        let destination = storage::open_directory(&copy).unwrap();
        let is_copied = AtomicBool::new(false);
        let changes = std::thread::scope(|scope| {
            let tags = scope.spawn(|| {
                let mut count = 0;
                while !is_copied.load(Ordering::Relaxed) {
                    icechunkfs(["tag", text(&source), "create", &format!("made-{count}")]).success();
                    count += 1;
                    std::thread::sleep(Duration::from_millis(100));
                }
                count
            });
            let counters = sync::Counters::default();
            let options = sync::clone::CloneOptions { memory: 64 << 20, notes: None };
            let copied = runtime.block_on(sync::clone::clone(opened, &destination, &options, &counters, system_clock));
            is_copied.store(true, Ordering::Relaxed);
            copied.unwrap_or_else(|error| panic!("{name}: {error}"));
            tags.join().unwrap()
        });
        assert!(changes >= 3, "{name}: the source changed {changes} times only");
        assert!(Reference::open(&copy).history().len() > 2, "{name}");
    }
}

/// Two machines push different work to one branch at once: one of them is refused, or follows the
/// other.
#[test]
fn of_two_pushes_at_once_none_loses_commits() {
    if !place::needs_directory() {
        return;
    }
    for version in VERSIONS {
        let directory = tempfile::tempdir().unwrap();
        let shared = repository(directory.path(), version);
        let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
        for round in 0..4 {
            for (place, name) in [(&one, "one"), (&other, "other")] {
                let _ = std::fs::remove_dir_all(place);
                clone(&shared, place).success();
                Reference::open(place).commit(&[("a/c/350", name.as_bytes())], &format!("{name} {round}"));
            }
            let before = Reference::open(&shared).history().len();
            let done: Vec<Output> = std::thread::scope(|scope| {
                let runs = [&one, &other].map(|place| scope.spawn(|| push(place, &shared, &["main"])));
                runs.into_iter().map(|run| run.join().unwrap()).collect()
            });
            let succeeded = done.iter().filter(|output| output.status.success()).count();
            assert_eq!(succeeded, 1, "{} {}", done[0].all(), done[1].all());
            assert_eq!(Reference::open(&shared).history().len(), before + 1);
            assert!(run_on(&shared, &["verify"]).status.success());
        }
    }
}

/// Two programs copy the same objects at once, and one of them may be killed: the other one's work
/// is whole.
#[test]
fn two_copies_of_the_same_objects_do_not_harm_each_other() {
    if !place::needs_directory() {
        return;
    }
    watchdog();
    let mut random = Random::new(3);
    for round in 0..12 {
        let version = VERSIONS[round % 2];
        let directory = tempfile::tempdir().unwrap();
        let source = repository(directory.path(), version);
        let copy = directory.path().join("copy");
        clone(&source, &copy).success();
        for more in 7..10 {
            add_chunks(&Reference::open(&source), more);
        }
        let time = Duration::from_micros(random.next() % 120_000);
        let pushed = std::thread::scope(|scope| {
            let killed = scope.spawn(|| killed_after(&["push", text(&source), text(&copy)], time));
            let pushed = push(&source, &copy, &[]);
            killed.join().unwrap();
            pushed
        });
        // The other one may have come first with a ref.
        assert!(pushed.status.success() || pushed.stderr.contains("concurrently"), "{}", pushed.all());
        push(&source, &copy, &[]).success();
        assert_is_copy(&format!("round {round}"), &copy, &source);
    }
}

#[test]
fn stores_are_sources_and_destinations() {
    if !place::needs_directory() {
        return;
    }
    let Some(server) = moto::s3() else { return };
    for version in VERSIONS {
        let directory = tempfile::tempdir().unwrap();
        let source = repository(directory.path(), version);
        let url = moto::repository(&format!("published-{version:?}"));
        moto::icechunkfs(server.port, &["clone", text(&source), &url]).success();
        add_chunks(&Reference::open(&source), 7);
        moto::icechunkfs(server.port, &["push", text(&source), &url]).success();
        let back = directory.path().join("back");
        moto::icechunkfs(server.port, &["clone", &url, text(&back)]).success();
        assert_is_copy("there and back", &back, &source);
        assert_same("by the reference", &Reference::open(&back).keys(), &Reference::open(&source).keys());
        // From store to store, over a line that fails and loses answers; keys of the second one are
        // given for it.
        let line = Line::to(server.port);
        line.decide(five_of_a_hundred(7));
        let second = moto::repository(&format!("second-{version:?}"));
        let endpoint = format!("--other=endpoint-url=http://127.0.0.1:{}", line.port);
        let other = [endpoint.as_str(), "--other=region=us-east-1"];
        moto::icechunkfs(server.port, &[&["clone", &url, &second], &other[..]].concat()).success();
        assert!(line.counts().1 > 0, "no request failed");
        add_chunks(&Reference::open(&source), 8);
        let line_port = line.port;
        moto::icechunkfs(line_port, &["push", text(&source), &second]).success();
        moto::icechunkfs(line_port, &["pull", text(&back), &second]).success();
        assert_is_copy("over a bad line", &back, &source);
    }
}

#[test]
fn a_web_server_is_a_source_that_is_never_listed() {
    if !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V2);
    let origin = Origin::of(directory.path());
    let copy = directory.path().join("copy");
    icechunkfs(["clone", &origin.url("source"), text(&copy)]).success();
    assert_is_copy("from a web server", &copy, &source);
    assert!(origin.take().len() > 20);
    add_chunks(&Reference::open(&source), 7);
    run_on(&copy, &["pull", &origin.url("source")]).success();
    assert_is_copy("pulled from a web server", &copy, &source);
    let why = push(&copy, Path::new(&origin.url("source")), &[]).failure();
    assert!(why.contains("repositories on web servers are read-only"), "{why}");
}

/// Histories go to the store of this run, or to a directory, and come back from there:
/// `scripts/with-server` runs this with each kind.
#[test]
fn histories_go_to_a_store_and_come_back() {
    watchdog();
    for name in ["own-v1-basic", "own-v1-migrated", "own-v2-basic"] {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        let back = directory.path().join("back");
        copy_tree(&project("tests/fixtures/repos").join(name), &source);
        let remote = place::place(directory.path());
        let assert_same_history = |what: &str| {
            assert_eq!((refs(&remote), history(&remote)), (refs(&source), history(&source)), "{name} {what}");
            run_on(&remote, &["verify"]).success();
        };
        clone(&source, &remote).success();
        assert_same_history("in the store");
        clone(&remote, &back).success();
        assert_is_copy(&format!("{name} back again"), &back, &source);
        // A commit goes the same way, and nothing but that.
        Reference::open(&source).commit(&[("pushed/zarr.json", GROUP.as_bytes())], "pushed");
        assert!(push(&source, &remote, &[]).success().len() > 10);
        assert_same_history("after a push");
        run_on(&back, &["pull", text(&remote)]).success();
        assert_is_copy(&format!("{name} after a pull"), &back, &source);
        // A branch of the store that has moved on is not overwritten.
        Reference::open(&source).commit(&[("here/zarr.json", GROUP.as_bytes())], "here");
        Reference::open(&back).commit(&[("there/zarr.json", GROUP.as_bytes())], "there");
        push(&source, &remote, &[]).success();
        let before = (refs(&remote), history(&remote));
        push(&back, &remote, &[]).failure();
        assert_eq!((refs(&remote), history(&remote)), before, "{name} after a push that was refused");
    }
}
