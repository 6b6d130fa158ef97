//! The daemon is killed at any moment: closed files are there afterwards, and a commit is there
//! completely or not at all.
//!
//! `ICECHUNKFS_KILLS` sets the number of kills, `ICECHUNKFS_SEED` the seed.

pub(crate) mod worker;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::lengths::{length, number};
use crate::common::random::Random;
use crate::common::writing::{GROUP, Reference, Writable, array, put};
use crate::common::{self, Files, assert_same, read_files};
use icechunkfs::failpoints;
use worker::{Worker, is_key};

/// Kills at random in the ordinary run, and in a full one.
const QUICK: usize = 20;
const FULL: usize = 130;
/// After this many kills a repository has become large enough, and a new one begins.
const LIFE: usize = 40;
/// Fewer kills than this may happen to meet no commit.
const FEW: usize = 10;

fn keys_of(files: &Files) -> Files {
    files.iter().filter(|(name, _)| is_key(name)).map(|(name, bytes)| (name.clone(), bytes.clone())).collect()
}

#[test]
fn no_closed_file_is_lost_when_the_daemon_is_killed_at_random() {
    common::watchdog();
    let kills = length("ICECHUNKFS_KILLS", QUICK, FULL);
    let seed = number("ICECHUNKFS_SEED", 1) as u64;
    let mut panics = Vec::new();
    let counts = Mutex::new([0; 3]);
    let lives = kills.div_ceil(LIFE);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let counts = &counts;
        let next = &next;
        let threads: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    loop {
                        let life = next.fetch_add(1, Ordering::Relaxed);
                        if life >= lives {
                            break;
                        }
                        let found = one_life(seed * 10_000 + life as u64, LIFE.min(kills - life * LIFE));
                        counts.lock().unwrap().iter_mut().zip(found).for_each(|(sum, count)| *sum += count);
                    }
                })
            })
            .collect();
        // The panic of a thread is this test's.
        threads.into_iter().for_each(|thread| {
            if let Err(panic) = thread.join() {
                panics.push(panic);
            }
        });
    });
    if let Some(panic) = panics.pop() {
        std::panic::resume_unwind(panic);
    }
    let [operations, commits, in_flight] = counts.into_inner().unwrap();
    println!(
        "{kills} deaths, {operations} operations, {commits} commits, {in_flight} of them at the moment of a death"
    );
    // A few deaths may all come before the first commit.
    let enough = commits > 0 || kills < FEW;
    assert!(operations > 3 * kills && enough, "the workload did not run: {operations}, {commits}");
}

/// Runs a repository and its mount through many kills; returns operations, commits, and interrupted
/// commits.
fn one_life(seed: u64, deaths: usize) -> [usize; 3] {
    let mut random = Random::new(seed);
    let mount = Writable::new(&[]);
    let mut worker = Worker::new(mount.root(), random.next());
    let mut totals = [0; 3];
    for death in 0..deaths {
        let daemon = mount.daemon();
        // Some lives are long enough for what the mount does half a second after a change.
        let longest = if random.below(10) == 0 { 1_200_000 } else { 120_000 };
        let length = Duration::from_micros(random.next() % longest);
        std::thread::scope(|scope| {
            let running = scope.spawn(|| worker.run_until_it_fails(|| mount.commit("by the worker")));
            // The kill comes at any moment: nothing is waited for.
            std::thread::sleep(length);
            mount.kill(daemon);
            running.join().unwrap();
        });
        // The mount is removed only after the worker has stopped: it would continue below the
        // mountpoint.
        mount.remove_dead_mount();
        mount.mount_again(None).success();
        let what = format!("seed {seed}, death {death} after {length:?}");
        let found = read_files(&mount.root());
        worker.recovered(&found).unwrap_or_else(|text| panic!("{what}: {text}"));

        // The commit: all of it or nothing, and nothing else.
        let reference = Reference::open(mount.repository());
        let keys = reference.keys();
        let grown = reference.history().len() - 1 - worker.commits;
        match (&worker.committing, grown) {
            (Some(wanted), 1) => {
                assert_same(&format!("{what}: the interrupted commit"), &keys, &keys_of(wanted));
                worker.committed = keys_of(wanted);
                worker.commits += 1;
            }
            (_, 0) => assert_same(&format!("{what}: the last commit"), &keys, &worker.committed),
            _ => panic!("{what}: {grown} commits that nobody made"),
        }
        totals[2] += usize::from(worker.committing.take().is_some());
    }
    // At the end everything goes into one more commit.
    let working = read_files(&mount.root());
    mount.commit("the last one").unwrap();
    assert_same("the last commit", &Reference::open(mount.repository()).keys(), &keys_of(&working));
    assert_same("a fresh mount", &mount.fresh(), &keys_of(&working));
    totals[0] = worker.operations;
    totals[1] = worker.commits;
    totals
}

/// A daemon that dies leaves data files that no line of its journal names: of a file whose creation
/// was under way, or of a commit whose files were being removed.
#[test]
fn new_files_outlive_the_removal_of_what_a_dead_daemon_left() {
    common::watchdog();
    let mount = Writable::new(&[]);
    put(&mount.root().join("a/zarr.json"), array(&[200], &[1])).unwrap();
    put(&mount.root().join("a/c/0"), "before").unwrap();
    mount.kill(mount.daemon());
    mount.remove_dead_mount();
    let data = mount.scratch().join("data");
    let free: Vec<_> = (0..300).map(|number| data.join(number.to_string())).filter(|path| !path.exists()).collect();
    for path in free.iter().map(PathBuf::as_path).chain([&*data.join(u64::MAX.to_string())]) {
        std::fs::write(path, "left over").unwrap();
    }
    mount.mount_again(None).success();
    for n in 1..200 {
        put(&mount.root().join(format!("a/c/{n}")), n.to_string()).unwrap();
    }
    common::wait_until("what the dead daemon left is still there", || !free.iter().any(|path| path.exists()));
    let mut wanted: Files = (1..200).map(|n| (format!("a/c/{n}"), n.to_string().into_bytes())).collect();
    wanted.insert("a/c/0".to_owned(), b"before".to_vec());
    wanted.insert("a/zarr.json".to_owned(), array(&[200], &[1]).into_bytes());
    assert_same("the next mount", &read_files(&mount.root()), &wanted);
    mount.commit("all of it").unwrap();
    assert_same("the commit", &Reference::open(mount.repository()).keys(), &wanted);
}

/// On a plain directory: the worker's record matches the files, and a loss is noticed.
#[test]
fn the_harness_notices_a_lost_file() {
    for seed in 0..4 {
        let directory = tempfile::tempdir().unwrap();
        let mut worker = Worker::new(directory.path().to_owned(), seed);
        let commits = std::cell::Cell::new(0);
        worker.run_until_it_fails(|| {
            commits.set(commits.get() + 1);
            if commits.get() < 8 { Ok(()) } else { Err(std::io::Error::from_raw_os_error(libc::ENOTCONN)) }
        });
        assert!(worker.operations > 20 && worker.committing.is_some());
        let files = read_files(directory.path());
        worker.recovered(&files).unwrap();
        let mut lossy = files.clone();
        let name = lossy.keys().find(|name| name.contains("/c/")).unwrap().clone();
        lossy.get_mut(&name).unwrap().pop();
        let message = worker.recovered(&lossy).unwrap_err();
        assert!(message.contains(&name), "{message}");
    }
}

/// Uncommitted work when a commit meets its fault.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    /// Everything is new: chunks in the manifest, packed, and objects of their own.
    First,
    /// Changes, deletions and moves of what is committed.
    Changes,
    /// The same, with a concurrent commit.
    Rebase,
}

fn first_work(mount: &Writable) {
    let root = mount.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("a/zarr.json"), array(&[40, 40], &[1, 1])).unwrap();
    for n in 0..40_u8 {
        put(&root.join(format!("a/c/{n}/0")), vec![n; 100]).unwrap();
        put(&root.join(format!("a/c/{n}/1")), vec![n; 5000]).unwrap();
    }
    put(&root.join("b/zarr.json"), array(&[4], &[1])).unwrap();
    put(&root.join("b/c/0"), vec![7; 600_000]).unwrap();
    put(&root.join("notes"), "mine").unwrap();
}

fn more_work(mount: &Writable) {
    let root = mount.root();
    for n in 0..10_u8 {
        put(&root.join(format!("a/c/{n}/1")), vec![n + 100; 4000]).unwrap();
        std::fs::remove_file(root.join(format!("a/c/{n}/0"))).unwrap();
    }
    put(&root.join("b/c/1"), vec![8; 500_000]).unwrap();
    std::fs::create_dir(root.join("g")).unwrap();
    std::fs::rename(root.join("b"), root.join("g/b")).unwrap();
    put(&root.join("new/zarr.json"), GROUP).unwrap();
}

/// Commits with a fault; returns true if the step was reached.
fn commit_with_fault(step: &str, action: &str, work: Work) -> bool {
    let what = format!("{step}={action}, {work:?}");
    let mount = Writable::new(&[]);
    first_work(&mount);
    if work != Work::First {
        mount.commit("first").unwrap();
        more_work(&mount);
    }
    mount.unmount();
    mount.mount_again(Some(&format!("{step}={action}"))).success();
    let daemon = mount.daemon();
    let reference = Reference::open(mount.repository());
    if work == Work::Rebase {
        reference.commit(&[("theirs/zarr.json", GROUP.as_bytes())], "theirs");
    }
    let working = read_files(&mount.root());
    let before = reference.keys();
    let history = reference.history().len();
    let mut wanted = keys_of(&working);
    wanted.extend(before.iter().filter(|(name, _)| name.starts_with("theirs/")).map(|(n, b)| (n.clone(), b.clone())));

    let outcome = mount.commit("with a fault");
    let after = reference.keys();
    let grown = reference.history().len() - history;
    match grown {
        0 => assert_same(&format!("{what}: nothing may be visible"), &after, &before),
        1 => assert_same(&format!("{what}: all must be visible"), &after, &wanted),
        _ => panic!("{what}: {grown} commits"),
    }
    // Once it is visible, a mount may be based on it, with the concurrent changes.
    let mut with_theirs = wanted.clone();
    with_theirs.extend(working.iter().map(|(name, bytes)| (name.clone(), bytes.clone())));
    if outcome.is_ok() {
        assert!(grown == 1, "{what}: it says that it is done and is not");
        assert_same(&format!("{what}: the mount after it"), &read_files(&mount.root()), &with_theirs);
        mount.commit("nothing").unwrap();
        assert!(reference.history().len() == history + 1, "{what}: there is still something to commit");
        return false;
    }
    if action == "abort" {
        common::wait_for_end(daemon);
        mount.remove_dead_mount();
        mount.mount_again(None).success();
    } else {
        // A reported failure leaves everything unchanged.
        assert_same(&format!("{what}: the working tree after a failure"), &read_files(&mount.root()), &working);
        // As long as the mount cannot show the committed state, no change is mixed with it.
        let more = std::fs::write(mount.root().join("more"), "");
        assert!(more.is_ok() == (grown == 0), "{what}: {more:?}");
        let _ = std::fs::remove_file(mount.root().join("more"));
    }
    let now = read_files(&mount.root());
    if now != with_theirs {
        assert_same(&format!("{what}: the working tree of the next mount"), &now, &working);
    }
    mount.commit("once more").unwrap_or_else(|error| panic!("{what}: the next commit: {error}"));
    assert_same(&format!("{what}: after the next commit"), &reference.keys(), &wanted);
    assert_same(&format!("{what}: a fresh mount"), &mount.fresh(), &wanted);
    assert_same(&format!("{what}: the mount afterwards"), &read_files(&mount.root()), &with_theirs);
    let commits = reference.history().len() - history;
    assert!(commits == 1, "{what}: {commits} commits of one piece of work");
    true
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn a_commit_may_fail_or_be_killed_at_any_fail_point() {
    common::watchdog();
    let works = [Work::First, Work::Changes, Work::Rebase];
    let mut never = Vec::new();
    for step in failpoints::COMMIT.into_iter().chain([failpoints::COMMITTED]) {
        for action in ["abort", "eio"] {
            let reached = works.into_iter().filter(|work| commit_with_fault(step, action, *work)).count();
            if reached == 0 {
                never.push(format!("{step}={action}"));
            }
        }
    }
    // A visible commit has succeeded, whatever the last request returned.
    never.retain(|fault| fault != "commit.publish.done=eio");
    assert!(never.is_empty(), "no commit came to {never:?}");
}
