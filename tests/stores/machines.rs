//! Several machines mount one repository in a store that they reach over a network: disjoint
//! changes are merged, conflicts are reported, and a machine that is disconnected in the middle of
//! a commit recovers.
//!
//! The machines are network namespaces. Of a hundred requests five fail, and of five the answer is
//! lost.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::common::faulty::{Fault, five_of_a_hundred};
use crate::common::machines::Network;
use crate::common::moto;
use crate::common::writing::{GROUP, array, content_of, echo, put, touch};
use crate::common::{self, Mount, all_together, assert_same, read_files};
use serde_json::Value;

const MACHINES: usize = 8;
/// Commits of each.
const COMMITS: usize = 8;
/// Timeout for the store, in seconds, of mounts that have to succeed.
const TIMEOUT: &str = "60";

/// A repository with one array of `rows` times `columns` chunks.
fn repository(network: &Network, name: &str, rows: usize, columns: usize) -> String {
    let repo = moto::repository(name);
    network.at_store(|port| {
        moto::icechunkfs(port, &["init", &repo]).success();
        let mount = moto::mount(port, &repo, &["--ephemeral"]);
        put(&mount.path().join("zarr.json"), GROUP).unwrap();
        put(&mount.path().join("a/zarr.json"), array(&[rows as u64, columns as u64], &[1, 1])).unwrap();
        moto::commit(&mount).unwrap();
        mount.unmount();
    });
    repo
}

/// Ids and messages, oldest first, without the first two commits.
fn history(network: &Network, repo: &str) -> Vec<(String, String)> {
    let log = network.at_store(|port| moto::icechunkfs(port, &["log", repo, "--json"]).json());
    let word = |commit: &Value, name: &str| commit[name].as_str().unwrap().trim().to_owned();
    let mut commits: Vec<(String, String)> =
        log.as_array().unwrap().iter().map(|commit| (word(commit, "id"), word(commit, "message"))).collect();
    commits.reverse();
    commits.split_off(2)
}

/// Returns the files of a mount on another machine, over a proxy without faults.
fn shown(network: &Network, repo: &str) -> BTreeMap<String, Vec<u8>> {
    network.at_store(|port| {
        let mount = moto::mount(port, repo, &["-o", "ro"]);
        read_files(&mount.path())
    })
}

/// Lets each machine do `work` with its own mount; all begin together.
fn on_all<T: Send>(network: &Network, repo: &str, work: impl Fn(usize, &Mount) -> T + Sync) -> Vec<T> {
    let mounts: Vec<Mount> = (0..MACHINES).map(|n| network.mount(n, repo, &["--timeout", TIMEOUT])).collect();
    all_together(&mounts, work)
}

/// Each machine has its rows, as in a program that divides an array among machines.
#[test]
#[ignore = "takes long: scripts/test --full"]
fn disjoint_commits_of_many_machines_are_merged() {
    common::watchdog();
    let Some(network) = Network::of(MACHINES) else { return };
    let repo = repository(&network, "disjoint", MACHINES, COMMITS + 1);
    network.line().decide(five_of_a_hundred(7));
    let begin = Instant::now();
    on_all(&network, &repo, |machine, mount| {
        for n in 0..COMMITS {
            put(&mount.path().join(format!("a/c/{machine}/{n}")), content_of(machine, n)).unwrap();
            // One that each of its commits changes.
            put(&mount.path().join(format!("a/c/{machine}/{COMMITS}")), content_of(machine, n)).unwrap();
            echo(&mount.control("commit"), &format!("{machine} {n}"))
                .unwrap_or_else(|error| panic!("machine {machine}, commit {n}: {error}: {}", mount.log()));
        }
    });
    let (requests, faults) = network.line().counts();
    println!("{} commits in {:?}, {faults} faults in {requests} requests", MACHINES * COMMITS, begin.elapsed());
    assert!(faults > 30, "{faults} faults in {requests} requests");
    network.line().release();

    let messages: Vec<String> = history(&network, &repo).into_iter().map(|(_, message)| message).collect();
    assert_eq!(messages.len(), MACHINES * COMMITS, "{messages:?}");
    for machine in 0..MACHINES {
        let prefix = format!("{machine} ");
        let own: Vec<&str> = messages.iter().filter_map(|message| message.strip_prefix(&prefix)).collect();
        assert_eq!(own, (0..COMMITS).map(|n| n.to_string()).collect::<Vec<_>>());
    }
    let mut expected = BTreeMap::from([
        ("zarr.json".to_owned(), GROUP.into()),
        ("a/zarr.json".to_owned(), array(&[MACHINES as u64, COMMITS as u64 + 1], &[1, 1]).into_bytes()),
    ]);
    for machine in 0..MACHINES {
        (0..COMMITS).for_each(|n| drop(expected.insert(format!("a/c/{machine}/{n}"), content_of(machine, n))));
        expected.insert(format!("a/c/{machine}/{COMMITS}"), content_of(machine, COMMITS - 1));
    }
    let shown = shown(&network, &repo);
    assert_same("all commits", &shown, &expected);
}

/// Outcome of a commit.
enum Answer {
    Done,
    /// The base of the commit, and for each conflicting commit the chunks that it named.
    Conflict(String, BTreeMap<String, BTreeSet<usize>>),
}

/// Returns the chunks that a commit writes: without a pattern, and from the numbers alone.
fn chunks(machine: usize, n: usize) -> BTreeSet<usize> {
    (0..3).map(|k| (machine * 7 + n * 5 + n * n + k * (machine + 3)) % 24).collect()
}

/// Returns the content of `.icechunk/conflicts`, by the other commit.
fn named(conflicts: &str) -> BTreeMap<String, BTreeSet<usize>> {
    let of_line = |line: &str| {
        assert!(line.starts_with("/a: "), "{line}");
        let (_, coords) = line.split_once("; chunks ").unwrap_or_else(|| panic!("{line}"));
        let (coords, other) = coords.split_once(" (commit ").unwrap_or_else(|| panic!("{line}"));
        let coords: Vec<Vec<usize>> = serde_json::from_str(coords).unwrap();
        let coords = coords.into_iter().map(|coords| coords[1]).collect();
        (other.split(' ').next().unwrap().to_owned(), coords)
    };
    conflicts.lines().filter(|line| line.contains("(commit ")).map(of_line).collect()
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn overlapping_commits_of_many_machines_are_kept_or_reported() {
    common::watchdog();
    let Some(network) = Network::of(MACHINES) else { return };
    let repo = repository(&network, "overlapping", 1, 24);
    network.line().decide(five_of_a_hundred(11));
    let begin = Instant::now();
    let answers = on_all(&network, &repo, |machine, mount| {
        let mut answers = Vec::new();
        for n in 0..COMMITS {
            for chunk in chunks(machine, n) {
                put(&mount.path().join(format!("a/c/0/{chunk}")), content_of(machine, n)).unwrap();
            }
            let info = mount.control_json("info.json");
            match echo(&mount.control("commit"), &format!("{machine} {n}")) {
                Ok(()) => answers.push(Answer::Done),
                Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {
                    for chunk in chunks(machine, n) {
                        let file = mount.path().join(format!("a/c/0/{chunk}"));
                        assert!(std::fs::read(file).unwrap() == content_of(machine, n), "the work is still there");
                    }
                    let output = mount.read_control("conflicts");
                    answers.push(Answer::Conflict(info["snapshot"].as_str().unwrap().to_owned(), named(&output)));
                    touch(&mount.control("discard")).unwrap();
                    touch(&mount.control("refresh")).unwrap();
                }
                Err(error) => panic!("machine {machine}, commit {n}: {error}: {}", mount.log()),
            }
        }
        answers
    });
    let (requests, faults) = network.line().counts();
    network.line().release();
    let conflicts = answers.iter().flatten().filter(|answer| matches!(answer, Answer::Conflict(..))).count();
    println!(
        "{} commits, {conflicts} conflicts in {:?}, {faults} faults in {requests} requests",
        MACHINES * COMMITS - conflicts,
        begin.elapsed()
    );
    assert!(conflicts > 5 && faults > 30, "{conflicts} conflicts, {faults} faults: this tested nothing");

    // Writers of each chunk, in order.
    let history = history(&network, &repo);
    let commits: Vec<(String, usize, usize)> = history
        .iter()
        .map(|(id, message)| {
            let (machine, n) = message.split_once(' ').unwrap();
            (id.clone(), machine.parse().unwrap(), n.parse().unwrap())
        })
        .collect();
    let there: BTreeSet<(usize, usize)> = commits.iter().map(|(_, machine, n)| (*machine, *n)).collect();
    assert_eq!(there.len(), commits.len(), "a commit stands twice in the history: {history:?}");
    assert_eq!(commits.len(), MACHINES * COMMITS - conflicts);
    let mut last = BTreeMap::new();
    for (_, machine, n) in &commits {
        chunks(*machine, *n).into_iter().for_each(|chunk| drop(last.insert(chunk, content_of(*machine, *n))));
    }
    for (machine, answers) in answers.iter().enumerate() {
        for (n, answer) in answers.iter().enumerate() {
            assert_eq!(there.contains(&(machine, n)), matches!(answer, Answer::Done), "machine {machine}, commit {n}");
            let Answer::Conflict(base, named) = answer else { continue };
            // For each concurrent commit, exactly the chunks that both wrote are named.
            let after = commits.iter().position(|(id, ..)| id == base).map_or(0, |at| at + 1);
            let until = commits.iter().rposition(|(id, ..)| named.contains_key(id)).expect("they are in the history");
            let mut exact = BTreeMap::new();
            for (id, other, m) in &commits[after..=until] {
                let both: BTreeSet<usize> = &chunks(machine, n) & &chunks(*other, *m);
                if !both.is_empty() {
                    exact.insert(id.clone(), both);
                }
            }
            assert_eq!(*named, exact, "machine {machine}, commit {n}");
        }
    }
    let shown = shown(&network, &repo);
    for (chunk, bytes) in &last {
        assert!(shown[&format!("a/c/0/{chunk}")] == *bytes, "chunk {chunk} is not that of the last commit");
    }
    assert_eq!(shown.len(), 2 + last.len());
}

/// The network is cut at different moments of a commit: before its objects are stored, before its
/// branch is moved, and after that but before the answer arrives.
#[test]
fn a_disconnected_machine_recovers() {
    common::watchdog();
    let Some(network) = Network::of(2) else { return };
    let repo = repository(&network, "cut", 2, 9);
    let far = network.mount(0, &repo, &["--timeout", "3"]);
    let near = network.mount(1, &repo, &["--timeout", "20"]);
    for (n, (moment, is_lost)) in
        [("/chunks/", false), ("/snapshots/", false), ("/repo ", false), ("/repo ", true)].into_iter().enumerate()
    {
        put(&far.path().join(format!("a/c/0/{n}")), content_of(0, 2)).unwrap();
        let (reached, moments) = mpsc::channel();
        let cut = Arc::new(AtomicBool::new(false));
        network.line().decide(move |_, request| {
            if cut.load(Ordering::Relaxed) {
                return Fault::Silent;
            }
            if !(request.starts_with("PUT ") && request.contains(moment)) {
                return Fault::Pass;
            }
            cut.store(true, Ordering::Relaxed);
            reached.send(()).unwrap();
            if is_lost { Fault::Lost } else { Fault::Silent }
        });
        let failed = std::thread::scope(|scope| {
            let commit = scope.spawn(|| echo(&far.control("commit"), &format!("far {n}")));
            moments.recv_timeout(Duration::from_secs(60)).expect("the commit comes to its moment");
            network.plug(0, false);
            network.line().release();
            // The other machines are not affected.
            put(&near.path().join(format!("a/c/1/{n}")), content_of(1, n)).unwrap();
            echo(&near.control("commit"), &format!("near {n}")).unwrap();
            commit.join().unwrap()
        });
        let error = failed.expect_err("a machine without a network cannot commit");
        assert!(matches!(error.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT)), "{moment}: {error}");
        // Written files are still there, with or without a network.
        assert!(std::fs::read(far.path().join(format!("a/c/0/{n}"))).unwrap() == content_of(0, 2));
        network.plug(0, true);
        let begin = Instant::now();
        while let Err(error) = echo(&far.control("commit"), &format!("far {n}")) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{moment}: {error}: {}", far.log());
        }
        // Concurrent commits are visible, at once or after a refresh.
        touch(&far.control("refresh")).unwrap();
        assert!(std::fs::read(far.path().join(format!("a/c/1/{n}"))).unwrap() == content_of(1, n), "{moment}");
        let messages: Vec<String> = history(&network, &repo).into_iter().map(|(_, message)| message).collect();
        for own in [format!("far {n}"), format!("near {n}")] {
            assert_eq!(messages.iter().filter(|message| **message == own).count(), 1, "{moment}: {messages:?}");
        }
        assert_eq!(messages.len(), 2 * (n + 1), "{moment}: {messages:?}");
    }
    let shown = shown(&network, &repo);
    assert_eq!(shown, read_files(&far.path()));
    assert_eq!(shown.len(), 2 + 8);
}
