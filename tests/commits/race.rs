//! Eight mounts commit to one branch of one local repository at a time: no commit and no chunk is
//! lost, and conflicts are reported.
use std::collections::{BTreeMap, BTreeSet};

use crate::common::lengths::length;
use crate::common::place::place;
use crate::common::writing::{self, GROUP, Reference, Writable, array, content_of, put};
use crate::common::{self, Files, all_together, assert_same, read_files};

/// Each writer has a separate daemon; they share nothing but the repository.
const WRITERS: usize = 8;
/// Returns the number of commits of each writer; `ICECHUNKFS_RACE_COMMITS` sets it, at most 31.
fn commits() -> usize {
    length("ICECHUNKFS_RACE_COMMITS", 8, 25)
}

/// Creates a repository with these arrays of 32 chunks, in one commit after the initial one.
fn repository(arrays: &[String]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let place = place(directory.path());
    writing::create(&place);
    let documents: Vec<(String, String)> =
        arrays.iter().map(|name| (format!("{name}/zarr.json"), array(&[32], &[1]))).collect();
    let mut keys: Vec<(&str, &[u8])> = vec![("zarr.json", GROUP.as_bytes())];
    keys.extend(documents.iter().map(|(name, text)| (name.as_str(), text.as_bytes())));
    Reference::open(&place).commit(&keys, "the arrays");
    directory
}

/// Runs a writer on each of this many mounts; all begin together.
fn on_all_mounts<T: Send>(place: &std::path::Path, work: impl Fn(usize, &Writable) -> T + Sync) -> Vec<T> {
    let mounts: Vec<Writable> = (0..WRITERS).map(|_| Writable::of(place, &[])).collect();
    all_together(&mounts, work)
}

/// Moves the mount to another snapshot while it has uncommitted work: by a refresh, by mounting
/// again, after a kill, or not at all. A refresh is refused where concurrent commits changed the
/// same things.
fn move_on(writer: usize, n: usize, mount: &Writable) {
    match (writer + n) % 6 {
        0 | 1 => match mount.touch("refresh") {
            Ok(()) => {}
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{}", mount.read_control("refresh")),
        },
        2 => mount.remount(),
        3 => mount.kill_and_remount(),
        _ => {}
    }
}

#[test]
fn disjoint_commits_of_eight_mounts_are_all_kept() {
    common::watchdog();
    let names: Vec<String> = (0..WRITERS).map(|writer| format!("w{writer}")).collect();
    let directory = repository(&names);
    let place = place(directory.path());
    let begin = std::time::Instant::now();
    on_all_mounts(&place, |writer, mount| {
        for n in 0..commits() {
            put(&mount.root().join(format!("w{writer}/c/{n}")), content_of(writer, n)).unwrap();
            // One chunk that every commit changes.
            put(&mount.root().join(format!("w{writer}/c/31")), content_of(writer, n)).unwrap();
            move_on(writer, n, mount);
            for own in 0..=n {
                let shown = std::fs::read(mount.root().join(format!("w{writer}/c/{own}"))).unwrap();
                assert!(shown == content_of(writer, own), "writer {writer} lost chunk {own} before commit {n}");
            }
            mount.commit(&format!("w{writer} {n}")).unwrap_or_else(|error| {
                panic!("writer {writer}, commit {n}: {error}: {}", mount.read_control("commit"));
            });
        }
    });
    println!("{} commits in {:?}", WRITERS * commits(), begin.elapsed());

    let reference = Reference::open(&place);
    let history: Vec<String> = reference.history().into_iter().rev().map(|(_, message)| message).collect();
    assert_eq!(history.len(), 2 + WRITERS * commits(), "{history:?}");
    // Each writer's commits are in the history in their order.
    for writer in 0..WRITERS {
        let prefix = format!("w{writer} ");
        let own: Vec<&str> = history.iter().filter_map(|message| message.trim().strip_prefix(&prefix)).collect();
        assert_eq!(own, (0..commits()).map(|n| n.to_string()).collect::<Vec<_>>());
    }
    let mut expected = Files::new();
    expected.insert("zarr.json".into(), GROUP.into());
    for writer in 0..WRITERS {
        expected.insert(format!("w{writer}/zarr.json"), array(&[32], &[1]).into_bytes());
        (0..commits()).for_each(|n| drop(expected.insert(format!("w{writer}/c/{n}"), content_of(writer, n))));
        expected.insert(format!("w{writer}/c/31"), content_of(writer, commits() - 1));
    }
    let keys = reference.keys();
    assert_same("all commits", &keys, &expected);
    let fresh = common::Mount::new(&place, &["-o", "ro"]);
    assert!(read_files(&fresh.path()) == keys);
}

/// Answer to a writer's commit.
#[derive(Debug, PartialEq)]
enum Answer {
    Done,
    Conflict,
}

#[test]
fn overlapping_commits_of_eight_mounts_are_kept_or_reported() {
    common::watchdog();
    /// So few that most commits have conflicts.
    const CHUNKS: usize = 12;
    let directory = repository(&["shared".to_owned()]);
    let place = place(directory.path());
    let answers = on_all_mounts(&place, |writer, mount| {
        let mut answers = Vec::new();
        for n in 0..commits() {
            // The choice has no pattern, and follows from the numbers alone.
            let chunk = (writer * 7 + n * 5 + n * n) % CHUNKS;
            let file = mount.root().join(format!("shared/c/{chunk}"));
            put(&file, content_of(writer, n)).unwrap();
            move_on(writer, n, mount);
            assert!(std::fs::read(&file).unwrap() == content_of(writer, n), "writer {writer} lost chunk {chunk}");
            match mount.commit(&format!("{writer} {n} {chunk}")) {
                Ok(()) => answers.push(Answer::Done),
                Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {
                    // The work is still there, and the conflicts are named.
                    assert!(std::fs::read(&file).unwrap() == content_of(writer, n));
                    let conflicts = mount.read_control("conflicts");
                    assert!(conflicts.contains("shared") && conflicts.contains(&chunk.to_string()), "{conflicts}");
                    mount.touch("discard").unwrap();
                    mount.touch("refresh").unwrap();
                    answers.push(Answer::Conflict);
                }
                Err(error) => panic!("writer {writer}, commit {n}: {error}: {}", mount.read_control("commit")),
            }
        }
        answers
    });
    let conflicts = answers.iter().flatten().filter(|answer| **answer == Answer::Conflict).count();
    println!("{} commits, {conflicts} conflicts", WRITERS * commits() - conflicts);
    assert!(conflicts > 0, "no conflict occurred: the test had no effect");

    let reference = Reference::open(&place);
    let mut history = reference.history();
    history.reverse();
    assert_eq!(history.len(), 2 + WRITERS * commits() - conflicts);
    let mut last: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    let mut there = BTreeSet::new();
    for (id, message) in &history[2..] {
        let numbers: Vec<usize> = message.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [writer, n, chunk] = numbers[..] else { panic!("{id}: {message}") };
        last.insert(chunk, content_of(writer, n));
        assert!(there.insert((writer, n)), "{message} stands twice in the history");
    }
    for (writer, answers) in answers.iter().enumerate() {
        for (n, answer) in answers.iter().enumerate() {
            assert_eq!(there.contains(&(writer, n)), *answer == Answer::Done, "writer {writer}, commit {n}");
        }
    }
    // Each chunk is that of the last commit that wrote it: no commit was overwritten silently.
    let keys = reference.keys();
    for (chunk, bytes) in &last {
        assert!(keys[&format!("shared/c/{chunk}")] == *bytes, "chunk {chunk} is not that of the last commit");
    }
    assert_eq!(keys.len(), 2 + last.len());
}
