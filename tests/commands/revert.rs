//! `icechunkfs revert`: what commits changed becomes as it was before them, in a mount and on a
//! branch, and everything since stays. The reference reads the results.

use std::path::Path;

use icechunk::format::format_constants::SpecVersionBin;
use serde_json::json;

use super::restore::empty;
use crate::common::random::Random;
use crate::common::writing::{GROUP, Reference, Writable, array};
use crate::common::{Files, Output, program, run, run_on};

/// A repository with commits that each change something else: an array, its chunk 1, a new array,
/// attributes, chunk 2.
struct Setup {
    place: std::path::PathBuf,
    /// Ids of the commits, oldest first.
    commits: Vec<String>,
    _directory: tempfile::TempDir,
}

/// Returns the document of an array with `attributes`.
fn document(attributes: &serde_json::Value) -> Vec<u8> {
    let mut document: serde_json::Value = serde_json::from_str(&array(&[4], &[1])).unwrap();
    document["attributes"] = attributes.clone();
    document.to_string().into_bytes()
}

fn setup(version: SpecVersionBin) -> Setup {
    let (directory, place, reference) = empty(version);
    let plain = document(&json!({}));
    reference.commit(
        &[("zarr.json", GROUP.as_bytes()), ("a/zarr.json", &plain), ("a/c/0", b"0"), ("a/c/1", b"1"), ("a/c/2", b"2")],
        "the array",
    );
    reference.commit(&[("a/c/1", b"wrong")], "a wrong chunk");
    reference.commit(&[("b/zarr.json", &plain), ("b/c/0", b"new")], "another array");
    reference.commit(&[("a/zarr.json", &document(&json!({"units": "K"})))], "units");
    reference.commit(&[("a/c/2", b"later")], "a later chunk");
    let mut commits: Vec<String> = reference.history().into_iter().map(|(id, _)| id).collect();
    commits.reverse();
    Setup { place, commits, _directory: directory }
}

impl Setup {
    fn reference(&self) -> Reference {
        Reference::open(&self.place)
    }

    fn keys(&self) -> Files {
        self.reference().keys()
    }
}

#[test]
fn a_commit_is_taken_back_and_later_ones_stay() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let setup = setup(version);
        let mut expected = setup.keys();
        let wrong = &setup.commits[2];
        let plan = run_on(&setup.place, &["revert", wrong, "--dry-run", "--json"]).json();
        assert_eq!((&plan["snapshot"], &plan["nodes"], &plan["chunks"]), (&json!(null), &json!(0), &json!(1)));
        assert_eq!(setup.keys(), expected, "a dry run");
        let done = run_on(&setup.place, &["revert", wrong, "--json"]).json();
        expected.insert("a/c/1".to_owned(), b"1".to_vec());
        assert_eq!(setup.keys(), expected);
        let history = setup.reference().history();
        assert_eq!(history.len(), setup.commits.len() + 1);
        assert_eq!(done["snapshot"], history[0].0);
        assert_eq!(history[0].1, format!("Revert \"a wrong chunk\"\n\nThis takes back commit {wrong}."));
        // Nothing is left of it.
        let again = run_on(&setup.place, &["revert", wrong]).text();
        assert!(again.contains("nothing to take back"), "{again}");
        // A revert can be taken back.
        run_on(&setup.place, &["revert", "main", "-m", "as it was"]).success();
        expected.insert("a/c/1".to_owned(), b"wrong".to_vec());
        assert_eq!(setup.keys(), expected);
        assert_eq!(setup.reference().history()[0].1, "as it was");
    }
}

#[test]
fn nodes_and_documents_are_taken_back() {
    let setup = setup(SpecVersionBin::V2);
    let mut expected = setup.keys();
    // Three commits, in any order; the last one stays.
    run_on(&setup.place, &["revert", "main~1", "main~3", "main~2", "-m", "three"]).success();
    expected.retain(|key, _| !key.starts_with("b/"));
    expected.insert("a/c/1".to_owned(), b"1".to_vec());
    expected.insert("a/zarr.json".to_owned(), document(&json!({})));
    assert_eq!(setup.keys(), expected);
    // A deleted node comes back, with its id.
    let before = setup.reference().node_ids();
    run_on(&setup.place, &["revert", "main"]).success();
    assert_eq!(setup.keys()["b/c/0"], b"new");
    let after = setup.reference().node_ids();
    assert!(before.iter().all(|(path, id)| after.get(path) == Some(id)));
}

/// A commit leaves out the chunks for which a smaller shape has no place; in a mount they have to
/// be deleted.
#[test]
fn an_append_is_taken_back_in_a_mount() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (_directory, place, reference) = empty(version);
        let [two, four] = [2, 4].map(|length| array(&[length], &[1]));
        let first: [(&str, &[u8]); 4] =
            [("zarr.json", GROUP.as_bytes()), ("a/zarr.json", two.as_bytes()), ("a/c/0", b"0"), ("a/c/1", b"1")];
        reference.commit(&first, "two");
        let before = reference.keys();
        reference.commit(&[("a/zarr.json", four.as_bytes()), ("a/c/2", b"2"), ("a/c/3", b"3")], "four");
        let after = Reference::open(&place).keys();
        let mount = Writable::of(&place, &[]);
        for expected in [&before, &after] {
            let text = run_on(mount.root(), &["revert", "main"]).text();
            assert!(text.contains("1 node, 2 chunks"), "{text}");
            assert_eq!(mount.root().join("a/c/3").exists(), expected.contains_key("a/c/3"));
            run_on(mount.root(), &["commit", "-m", "taken back"]).success();
            assert_eq!(Reference::open(&place).keys(), *expected);
        }
    }
}

#[test]
fn later_changes_of_the_same_things_are_conflicts() {
    let setup = setup(SpecVersionBin::V2);
    setup.reference().commit(&[("a/c/1", b"better")], "a better chunk");
    let before = setup.keys();
    let refused = run_on(&setup.place, &["revert", &setup.commits[2]]).failure();
    assert!(refused.contains("/a") && refused.contains("nothing was taken back"), "{refused}");
    // Nothing would be left to take back if this were kept.
    assert!(refused.contains("--on-conflict=theirs") && !refused.contains("--on-conflict=ours"), "{refused}");
    let listed = run_on(&setup.place, &["revert", &setup.commits[2], "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["conflicts"][0]["path"], "/a");
    assert_eq!((setup.keys(), setup.reference().history().len()), (before.clone(), setup.commits.len() + 1));
    let kept = run_on(&setup.place, &["revert", &setup.commits[2], "--on-conflict", "ours"]).text();
    assert!(kept.contains("--on-conflict=ours leaves as they are"), "{kept}");
    assert_eq!(setup.keys(), before);
    run_on(&setup.place, &["revert", &setup.commits[2], "--on-conflict", "theirs"]).success();
    assert_eq!(setup.keys()["a/c/1"], b"1");
}

/// Returns the titles of the commits that a refusal names to be taken back first.
fn titles_in(refused: &str) -> Vec<String> {
    let listed = refused.lines().skip_while(|line| !line.contains("take back the later commits first")).skip(1);
    let listed = listed.take_while(|line| !line.starts_with("    "));
    listed.map(|line| line.split('"').nth(1).unwrap().to_owned()).collect()
}

/// Returns a copy of the repository.
fn copied(place: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    run(std::process::Command::new("cp").arg("-rT").arg(place).arg(copy.path())).success();
    copy
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs the commands of the way out that takes back later commits first, in a copy of the
/// repository. Returns the copy.
fn after_the_later_ones(place: &Path, refused: &str) -> tempfile::TempDir {
    let copy = copied(place);
    run_way(refused.lines().skip_while(|line| !line.contains("take back the later commits first")), place, copy.path());
    copy
}

/// Runs the commands of the way out that begins the `lines`, in a copy of the repository.
fn run_way<'a>(lines: impl Iterator<Item = &'a str>, place: &Path, copy: &Path) {
    let commands: Vec<&str> =
        lines.skip_while(|line| !line.starts_with("    ")).take_while(|line| line.starts_with("    ")).collect();
    let script =
        commands.join("\n").replace(text(place), text(copy)).replace("icechunkfs ", &format!("{} ", program()));
    run(std::process::Command::new("sh").args(["-c", &script])).success();
}

/// Members of a document are followed one by one, and spaces are no change.
#[test]
fn a_member_is_taken_back_without_commits_that_changed_others() {
    let setup = setup(SpecVersionBin::V2);
    let commit = |attributes: serde_json::Value, message: &str| {
        let mut document = document(&attributes);
        document.push(b'\n');
        setup.reference().commit(&[("a/zarr.json", &document)], message);
        setup.reference().history()[0].0.clone()
    };
    commit(json!({"units": "K", "h": 1}), "two attributes");
    let first = commit(json!({"units": "km", "h": 1}), "kilometres");
    let second = commit(json!({"units": "cm", "h": 1}), "centimetres");
    commit(json!({"units": "cm", "h": 2}), "another attribute");
    let before = setup.keys();
    let refused = run_on(&setup.place, &["revert", &first]).failure();
    assert!(refused.contains(&format!("last by commit {second}")), "{refused}");
    assert_eq!(titles_in(&refused), ["centimetres"], "{refused}");
    let copy = after_the_later_ones(&setup.place, &refused);
    let document: serde_json::Value =
        serde_json::from_slice(&Reference::open(copy.path()).keys()["a/zarr.json"]).unwrap();
    assert_eq!(document["attributes"], json!({"units": "K", "h": 2}));
    // Nothing is left of the second commit if the units are kept.
    commit(json!({"units": "m", "h": 2}), "metres");
    let before_last = setup.keys();
    assert_ne!(before, before_last);
    let refused = run_on(&setup.place, &["revert", &second]).failure();
    assert!(!refused.contains("--on-conflict=ours"), "{refused}");
    let kept = run_on(&setup.place, &["revert", &second, "--on-conflict=ours"]).text();
    assert!(kept.contains("nothing to take back"), "{kept}");
    assert_eq!(setup.keys(), before_last);
}

/// A told command names what was moved since where it is now.
#[test]
fn what_was_moved_since_is_restored_where_it_is() {
    let setup = setup(SpecVersionBin::V2);
    setup.reference().commit(&[("b/c/0", b"wrong")], "a wrong chunk");
    let wrong = setup.reference().history()[0].0.clone();
    let mount = Writable::of(&setup.place, &[]);
    std::fs::rename(mount.root().join("b"), mount.root().join("moved")).unwrap();
    run_on(mount.root(), &["commit", "-m", "moved"]).success();
    let outcome = run_on(&setup.place, &["revert", &wrong]);
    if outcome.status.success() {
        // A chunk is taken back wherever its array is.
        assert_eq!(setup.keys()["moved/c/0"], b"new");
        return;
    }
    let refused = outcome.failure();
    let copy = copied(&setup.place);
    run_way(refused.lines().skip_while(|line| !line.contains("To make /moved")), &setup.place, copy.path());
    assert_eq!(Reference::open(copy.path()).keys()["moved/c/0"], b"new", "{refused}");
}

/// A commit that has to be taken back first may have others in its own way.
#[test]
fn the_commits_to_take_back_first_have_none_in_their_own_way() {
    let setup = setup(SpecVersionBin::V2);
    let commit = |files: &[(&str, &[u8])], message: &str| setup.reference().commit(files, message);
    commit(&[("a/c/0", b"one")], "first");
    let first = setup.reference().history()[0].0.clone();
    commit(&[("a/c/0", b"two"), ("b/c/0", b"two")], "both");
    commit(&[("b/c/0", b"three"), ("b/c/1", b"three")], "the other one");
    commit(&[("a/c/2", b"apart")], "apart");
    commit(&[("b/c/1", b"four")], "the last one");
    let refused = run_on(&setup.place, &["revert", &first]).failure();
    assert_eq!(titles_in(&refused), ["the last one", "the other one", "both"], "{refused}");
    let copy = after_the_later_ones(&setup.place, &refused);
    let keys = Reference::open(copy.path()).keys();
    assert_eq!((&keys["a/c/0"][..], &keys["b/c/0"][..], &keys["a/c/2"][..]), (&b"0"[..], &b"new"[..], &b"apart"[..]));
    assert!(!keys.contains_key("b/c/1"));
}

/// Whatever commits did, the told commands lead to the end, one way or the other.
#[test]
fn the_told_commands_of_random_histories_work() {
    let mut random = Random::new(9);
    let mut told = 0;
    for round in 0..crate::common::lengths::length("ICECHUNKFS_REVERTS", 6, 60) {
        let (_directory, place, reference) = empty(SpecVersionBin::V2);
        let plain = document(&json!({}));
        reference
            .commit(&[("zarr.json", GROUP.as_bytes()), ("x/zarr.json", &plain), ("y/zarr.json", &plain)], "arrays");
        for number in 0..8 {
            let bytes = format!("{number}").into_bytes();
            let units = document(&json!({"units": number}));
            let mut files: Vec<(String, &[u8])> = Vec::new();
            for _ in 0..1 + random.below(2) {
                let array = *random.pick(&["x", "y"]);
                match random.below(5) {
                    0 => files.push((format!("{array}/zarr.json"), &units)),
                    _ => files.push((format!("{array}/c/{}", random.below(3)), &bytes)),
                }
            }
            let files: Vec<(&str, &[u8])> = files.iter().map(|(key, bytes)| (key.as_str(), *bytes)).collect();
            reference.commit(&files, &format!("commit {number}"));
        }
        let revision = format!("main~{}", 1 + random.below(7));
        let outcome = run_on(&place, &["revert", &revision]);
        if outcome.status.success() {
            continue;
        }
        told += 1;
        let refused = outcome.failure();
        after_the_later_ones(&place, &refused);
        for side in ["theirs", "ours"] {
            let ending = format!("--on-conflict={side}");
            if let Some(command) = refused.lines().find(|line| line.ends_with(&ending)) {
                let copy = copied(&place);
                let done = run_line(&command.replace(text(&place), text(copy.path()))).text();
                assert!(done.contains("took back"), "round {round}: {done}");
            }
        }
    }
    assert!(told > 0);
}

/// Runs a told command as a shell reads it.
fn run_line(line: &str) -> Output {
    let line = line.trim().replacen("icechunkfs", program(), 1);
    run(std::process::Command::new("sh").args(["-c", &line]))
}

/// Each told command does what is said of it: one loses the later change, the other keeps it.
#[test]
fn a_revert_of_a_part_is_told_where_a_part_is_left() {
    for (side, expected) in [("theirs", "wrong"), ("ours", "better")] {
        let setup = setup(SpecVersionBin::V2);
        setup.reference().commit(&[("a/c/0", b"wrong"), ("a/c/1", b"worse")], "two chunks");
        let two = setup.reference().history()[0].0.clone();
        setup.reference().commit(&[("a/c/1", b"better")], "a better chunk");
        let refused = run_on(&setup.place, &["revert", &two]).failure();
        let ending = format!("--on-conflict={side}");
        let command = refused.lines().find(|line| line.ends_with(&ending)).unwrap();
        run_line(command).success();
        assert_eq!([&setup.keys()["a/c/0"][..], &setup.keys()["a/c/1"]], [b"0", expected.as_bytes()], "{refused}");
        // A mount tells the same.
        let mount = Writable::of(&setup.place, &[]);
        run_on(mount.root(), &["revert", "main"]).success();
        run_on(mount.root(), &["commit", "-m", "again"]).success();
        let refused = run_on(mount.root(), &["revert", &two]).failure();
        assert!(refused.contains(&ending), "{refused}");
    }
}

/// The told commands lead to the end, whatever was taken back before: no commit is named that
/// another one took back, nor one that took back another.
#[test]
fn the_told_commits_taken_back_first_leave_no_conflict() {
    let setup = setup(SpecVersionBin::V2);
    let wrong = setup.commits[2].clone();
    let commit = |bytes: &[u8], message: &str| setup.reference().commit(&[("a/c/1", bytes)], message);
    commit(b"second", "a second change");
    commit(b"third", "a third change");
    run_on(&setup.place, &["revert", "main"]).success();
    commit(b"fourth", "a fourth change");
    commit(b"fifth", "a fifth change");
    run_on(&setup.place, &["revert", "main"]).success();
    let told = || titles_in(&run_on(&setup.place, &["revert", &wrong]).failure());
    assert_eq!(told(), ["a fourth change", "a second change"]);
    let mount = Writable::of(&setup.place, &[]);
    let refused = run_on(mount.root(), &["revert", &wrong]).failure();
    let history = setup.reference().history();
    let id_of = |title: &str| history.iter().find(|(_, message)| message == title).unwrap().0.clone();
    let [fourth, second] = ["a fourth change", "a second change"].map(|title| (id_of(title), title));
    let expected = format!("({} \"{}\", {} \"{}\")", fourth.0, fourth.1, second.0, second.1);
    assert!(refused.contains(&expected), "{refused}");
    run_on(&setup.place, &["revert", &id_of("a fourth change")]).success();
    assert_eq!(setup.keys()["a/c/1"], b"second");
    assert_eq!(told(), ["a second change"]);
    run_on(&setup.place, &["revert", &id_of("a second change")]).success();
    run_on(&setup.place, &["revert", &wrong]).success();
    assert_eq!(setup.keys()["a/c/1"], b"1");
}

/// A commit's message is another person's, and not every shell takes what follows a `#` for a
/// comment.
#[test]
fn no_message_of_a_commit_is_a_command() {
    let setup = setup(SpecVersionBin::V2);
    setup.reference().commit(&[("a/c/1", b"better")], "x; echo run #");
    let refused = run_on(&setup.place, &["revert", &setup.commits[2]]).failure();
    let commands: Vec<&str> = refused.lines().filter(|line| line.starts_with("    ")).collect();
    assert!(!commands.is_empty() && commands.iter().all(|command| !command.contains("echo")), "{refused}");
    // In a mount it is the message of a told commit.
    let mount = Writable::of(&setup.place, &[]);
    let refused = run_on(mount.root(), &["revert", &setup.commits[2]]).failure();
    assert!(refused.contains("icechunkfs commit ") && refused.contains("-m 'Revert \"x; echo run #\"'"), "{refused}");
}

/// A later change of an array keeps its making from being taken back, and is named.
#[test]
fn a_new_array_that_later_commits_changed_is_not_deleted() {
    let setup = setup(SpecVersionBin::V2);
    setup.reference().commit(&[("b/c/2", b"wrong")], "a wrong one");
    setup.reference().commit(&[("b/c/1", b"more")], "more of b");
    // Another commit is between the two that cancel each other.
    run_on(&setup.place, &["revert", "main~1"]).success();
    let refused = run_on(&setup.place, &["revert", &setup.commits[3]]).failure();
    assert!(refused.contains("/b: taking the commit back would remove this"), "{refused}");
    assert_eq!(titles_in(&refused), ["more of b"], "{refused}");
    // That one, and this one again, also behind the removal.
    assert_eq!(refused.matches("icechunkfs revert ").count(), 3, "{refused}");
    assert!(!refused.contains("--on-conflict="), "{refused}");
    // The other way out leads there at once.
    let copy = copied(&setup.place);
    run_way(refused.lines().skip_while(|line| !line.contains("To remove /b")), &setup.place, copy.path());
    assert!(Reference::open(copy.path()).keys().keys().all(|key| !key.starts_with("b/")));
    run_on(&setup.place, &["revert", "main~1"]).success();
    run_on(&setup.place, &["revert", &setup.commits[3]]).success();
    assert!(setup.keys().keys().all(|key| !key.starts_with("b/")));
}

#[test]
fn a_mount_takes_commits_back_as_an_uncommitted_change() {
    let setup = setup(SpecVersionBin::V2);
    let mount = Writable::of(&setup.place, &[]);
    let root = mount.root();
    let read = |path: &str| std::fs::read(root.join(path)).ok();
    let place = root.display().to_string();
    let revert = |words: &[&str]| run_on(&place, &[&["revert"], words].concat());
    revert(&["main~3", "--dry-run"]).success();
    assert_eq!(read("a/c/1").unwrap(), b"wrong");
    revert(&["main~3", "main~2"]).success();
    assert_eq!(
        (read("a/c/1").unwrap(), read("b/zarr.json"), read("a/c/2").unwrap()),
        (b"1".to_vec(), None, b"later".to_vec())
    );
    assert_eq!(setup.reference().history().len(), setup.commits.len());
    // With uncommitted changes nothing is taken back.
    let refused = revert(&["main"]).failure();
    assert!(refused.contains("uncommitted"), "{refused}");
    run_on(&place, &["discard"]).success();
    assert_eq!(read("a/c/1").unwrap(), b"wrong");
    revert(&["main~3"]).success();
    run_on(&place, &["commit", "-m", "taken back"]).success();
    assert_eq!(setup.keys()["a/c/1"], b"1");
    // The chunk was changed since.
    let refused = revert(&[&setup.commits[1]]).failure();
    assert!(refused.contains("2 conflicts") && refused.lines().count() == 1, "{refused}");
    // A path in a mount may mean either.
    let inside = run_on(root.join("a"), &["revert", "main"]).failure();
    assert!(inside.contains("is in the mount"), "{inside}");
    assert!(mount.read_control("conflicts").contains("/a"));
}

#[test]
fn what_cannot_be_taken_back_is_told() {
    let setup = setup(SpecVersionBin::V2);
    let told = |words: &[&str]| run_on(&setup.place, &[&["revert"], words].concat()).failure();
    assert!(told(&["main", "main~2"]).contains("one after another"));
    assert!(told(&[&setup.commits[0]]).contains("is the first one of its history"));
    run_on(&setup.place, &["branch", "create", "old", "--at", "main~2"]).success();
    assert!(told(&["main", "--branch", "old"]).contains("not in the history"));
    assert!(told(&["no-such-thing"]).contains("no-such-thing"));
}

/// The commit before one that stays is another one after an expiration: what the expired ones
/// changed must not be taken back.
#[test]
fn what_expired_commits_changed_is_not_taken_back() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let setup = setup(version);
        let mount = Writable::of(&setup.place, &[]);
        run_on(&setup.place, &["expire", "--older-than", "0s", "--yes"]).success();
        let before = setup.keys();
        let history = setup.reference().history();
        assert!(history.len() < setup.commits.len(), "{history:?}");
        for place in [setup.place.clone(), mount.root()] {
            run_on(mount.root(), &["refresh"]).success();
            let refused = run_on(place, &["revert", "main"]).failure();
            assert!(refused.contains("removed from the history"), "{refused}");
        }
        assert_eq!((setup.keys(), setup.reference().history()), (before, history));
        assert!(run_on(mount.root(), &["diff"]).text().trim().is_empty());
    }
}

/// For any history, a revert of its newest commits is the snapshot before them; of older ones, what
/// one person would do by hand.
#[test]
fn reverts_of_random_histories_are_what_one_would_do_by_hand() {
    let mut random = Random::new(4);
    for round in 0..6 {
        let (_directory, place, reference) = empty(SpecVersionBin::V2);
        let mut states = vec![Files::new()];
        states[0].insert("zarr.json".to_owned(), GROUP.as_bytes().to_vec());
        for name in ["x", "y", "z"] {
            states[0].insert(format!("{name}/zarr.json"), document(&json!({})));
        }
        reference.change(&Files::new(), &states[0]);
        for commit in 1..8 {
            // Each commit has keys of its own, so that nothing conflicts.
            let mut state = states.last().unwrap().clone();
            let name = *random.pick(&["x", "y", "z"]);
            match random.below(3) {
                0 if random.chance(50) => {
                    state.insert(format!("{name}{commit}/zarr.json"), document(&json!({"made": commit})));
                }
                _ => {
                    let key = format!("{name}/c/{}", random.below(4));
                    let bytes = format!("{commit}").into_bytes();
                    state.insert(key, bytes);
                }
            }
            reference.change(states.last().unwrap(), &state);
            states.push(state);
        }
        let back = 1 + random.below(5);
        let names: Vec<String> = (0..back).map(|n| format!("main~{n}")).collect();
        let words: Vec<&str> = std::iter::once("revert").chain(names.iter().map(String::as_str)).collect();
        run_on(&place, &words).success();
        let reference = Reference::open(&place);
        assert_eq!(reference.keys(), states[states.len() - 1 - back], "round {round}");
    }
}
