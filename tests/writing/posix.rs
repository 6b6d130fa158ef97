//! Independent test suites of file systems: `pjdfstest` and `fsx`, both on a writable mount.
//!
//! `scripts/setup --posix` builds them and makes the users that they need.
//! `ICECHUNKFS_POSIX_AT=/some/place` tests that place instead of a mount: a test that fails there
//! too is not our failure. `ICECHUNKFS_FSX_OPERATIONS` sets the number of operations.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::lengths::number;
use crate::common::writing::{self, Writable, array, needed, put, tool};
use crate::common::{self, project};

/// All tests of pjdfstest 0.2.2. On a local disk 385 pass with every feature that Linux has.
const TESTS: usize = 398;
/// They remount the tested file system as read-only, which no FUSE mount without a device can do
/// for them.
const REMOUNTING: usize = 13;

/// On a FUSE mount the C library knows no limit of links, so that this test has nothing to compare
/// with.
const WITHOUT_LIMIT: &str = "link::link_count_max";

/// fsx operations in CI: as many as fit into a minute. The soak has a million.
const IN_CI: usize = 60_000;

/// The tested place: a mount, or one that the environment names.
enum Place {
    Mount(Box<Writable>),
    Elsewhere(tempfile::TempDir),
}

impl Place {
    fn new(words: &[&str]) -> Place {
        match std::env::var_os("ICECHUNKFS_POSIX_AT") {
            Some(path) => Place::Elsewhere(tempfile::tempdir_in(path).unwrap()),
            None => Place::Mount(Box::new(Writable::new(words))),
        }
    }

    fn root(&self) -> PathBuf {
        match self {
            Place::Mount(mount) => mount.root(),
            Place::Elsewhere(directory) => directory.path().to_owned(),
        }
    }
}

/// Returns the names of the table. The reason of each group of names is above it.
fn exclusions() -> Vec<String> {
    let path = project("tests/writing/posix/exclusions.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let mut reason = "";
    let mut names = Vec::new();
    for line in text.lines() {
        match line.strip_prefix('#') {
            Some(said) => reason = said.trim(),
            None if line.is_empty() => reason = "",
            None => {
                assert!(!reason.is_empty(), "{line} has no reason");
                names.push(line.to_owned());
            }
        }
    }
    let unique: BTreeSet<&String> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "a name stands twice in the table");
    names
}

fn user_exists(name: &str) -> bool {
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    users.lines().any(|line| line.split(':').next() == Some(name))
}

fn group_of(user: &str) -> String {
    let id = common::run(Command::new("id").args(["-gn", user])).success();
    String::from_utf8(id).unwrap().trim().to_owned()
}

/// Removes colors.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text.chars();
    while let Some(letter) = rest.next() {
        if letter == '\u{1b}' {
            rest.find(|letter| *letter == 'm');
        } else {
            plain.push(letter);
        }
    }
    plain
}

#[test]
#[ignore = "needs pjdfstest: scripts/test --full"]
fn pjdfstest_passes_except_for_the_exclusions() {
    let Some(program) = tool("pjdfstest") else { return };
    let users = ["nobody", "tests", "pjdfstest"];
    let there = common::is_root() && users.iter().all(|user| user_exists(user));
    if !needed(there, "root, and the users nobody, tests and pjdfstest: scripts/setup --posix makes them") {
        return;
    }
    let place = Place::new(&["--allow-other"]);
    let outside = tempfile::tempdir_in(if matches!(place, Place::Mount(_)) { "/tmp" } else { "/dev/shm" }).unwrap();
    let on_mount = matches!(place, Place::Mount(_));
    let excluded = exclusions();
    let entries: Vec<[String; 2]> = users.iter().map(|user| [(*user).to_owned(), group_of(user)]).collect();
    let configuration = outside.path().join("pjdfstest.toml");
    // Every feature that Linux has is enabled; the others are FreeBSD's.
    let text = format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
         stat_st_birthtime = {{}}\n[settings]\nnaptime = 0.01\nexpected_failures = {excluded:?}\n\
         [dummy_auth]\nentries = {entries:?}\n"
    );
    std::fs::write(&configuration, text).unwrap();
    std::fs::create_dir(outside.path().join("second")).unwrap();
    let mut command = Command::new(program);
    command.arg("-c").arg(&configuration).arg("-p").arg(place.root()).arg("-s").arg(outside.path().join("second"));
    let output = common::run(&mut command);
    let said = plain(&String::from_utf8_lossy(&output.stdout));
    let summary = said.lines().rfind(|line| line.starts_with("Summary")).unwrap_or_default().to_owned();
    println!("{summary}");

    let mut wrong: Vec<&str> = Vec::new();
    let mut lines = said.lines().peekable();
    while let Some(line) = lines.next() {
        if line.ends_with("FAILED") || line.ends_with("PASSED UNEXPECTEDLY") {
            wrong.push(line);
            wrong.extend(lines.next_if(|next| next.starts_with('\t')));
        }
    }
    let skipped: Vec<&str> = said.lines().filter(|line| line.ends_with(" skipped")).collect();
    let expected = |line: &&&str| line.contains("erofs") || (on_mount && line.contains(WITHOUT_LIMIT));
    let skips = REMOUNTING + usize::from(on_mount);
    assert!(
        skipped.iter().filter(expected).count() == skipped.len() && skipped.len() == skips,
        "skipped: {skipped:#?}"
    );
    let passed = TESTS - skips - excluded.len();
    let expected = format!(
        "Summary: 0 failed, {skips} skipped, {passed} passed, {} expected failures, {TESTS} total",
        excluded.len()
    );
    assert_eq!(summary, expected, "\n{}\n{}", wrong.join("\n"), output.stderr);
}

/// Operations of one fsx: it keeps every mapping that it has read through, and the kernel allows a
/// process 65,530 of them.
const OF_ONE_FSX: usize = 100_000;

/// Runs fsx on a file in the mount, as often as needed, each time with another seed.
fn fsx_again(program: &Path, file: &Path, artifacts: &Path, (count, seed): (usize, u64), sizes: (u32, u32, bool)) {
    for (n, begun) in (0..count).step_by(OF_ONE_FSX).enumerate() {
        let folder = artifacts.join(n.to_string());
        fsx(program, file, &folder, (OF_ONE_FSX.min(count - begun), seed + n as u64), sizes);
    }
}

/// Runs fsx on a file in the mount, for as long as it needs.
fn fsx(
    program: &Path,
    file: &Path,
    artifacts: &Path,
    (count, seed): (usize, u64),
    (size, length, nosync): (u32, u32, bool),
) {
    let text = include_str!("posix/fsx.toml");
    let text = text.replace("@SIZE@", &size.to_string()).replace("@LENGTH@", &length.to_string());
    let configuration = artifacts.join("fsx.toml");
    std::fs::create_dir_all(artifacts).unwrap();
    std::fs::write(&configuration, text.replace("@NOSYNC@", &nosync.to_string())).unwrap();
    let mut command = Command::new(program);
    command.arg("-N").arg(count.to_string()).arg("-S").arg(seed.to_string());
    command.arg("-f").arg(configuration).arg("-P").arg(artifacts).arg(file);
    let begin = Instant::now();
    // A hundred times the time on a quiet machine.
    let most = Duration::from_secs(120) + Duration::from_millis(20) * u32::try_from(count).unwrap();
    let output = common::run_within(&mut command, most).unwrap_or_else(|| panic!("fsx did not end within {most:?}"));
    let said = output.all();
    let tail: Vec<&str> = said.lines().rev().take(60).collect();
    let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
    assert!(output.status.success(), "fsx, seed {seed}: {}\n{tail}", output.status);
    println!("fsx: {count} operations of up to {size} bytes, seed {seed}, in {:?}", begin.elapsed());
}

/// fsx runs on a chunk: small operations, and large ones with mappings flushed; both at a time,
/// next to each other.
#[test]
#[ignore = "needs fsx: scripts/test --full"]
fn fsx_finds_no_difference() {
    common::watchdog();
    let Some(program) = tool("fsx") else { return };
    let count = number("ICECHUNKFS_FSX_OPERATIONS", IN_CI);
    let seed = number("ICECHUNKFS_SEED", 1) as u64;
    let place = Place::new(&[]);
    put(&place.root().join("a/zarr.json"), array(&[2], &[1])).unwrap();
    std::fs::create_dir(place.root().join("a/c")).unwrap();
    let artifacts = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let run = |name: &str, share: usize, sizes| {
            let file = place.root().join(format!("a/c/{name}"));
            let folder = artifacts.path().join(name);
            let program = &program;
            scope.spawn(move || fsx_again(program, &file, &folder, (share, seed), sizes))
        };
        let small = run("0", count * 4 / 5, (8192, 65_536, true));
        let large = run("1", count / 5, (65_536, 262_144, false));
        for thread in [small, large] {
            thread.join().unwrap();
        }
    });
    // The resulting file is an ordinary chunk.
    if let Place::Mount(mount) = &place {
        for name in ["a/c/0", "a/c/1"] {
            let mut bytes = std::fs::read(mount.root().join(name)).unwrap();
            bytes.push(1);
            std::fs::write(mount.root().join(name), bytes).unwrap();
        }
        let working = common::read_files(&mount.root());
        mount.touch("commit").unwrap();
        assert_eq!(common::read_files(&mount.root()), working);
        assert_eq!(writing::Reference::open(mount.repository()).keys(), working);
    }
}
