//! Shared by all tests: mounts that are always unmounted, commands that always end, and the
//! fixtures.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod changing;
pub mod counted;
pub mod damage;
pub mod disk;
pub mod distant;
pub mod expanding;
pub mod failing;
pub mod fake_mount;
pub mod faulty;
pub mod fsck;
pub mod hostile;
pub mod lab;
pub mod lengths;
pub mod listener;
pub mod machines;
pub mod made;
pub mod mapping;
pub mod moto;
pub mod origin;
pub mod pages;
pub mod place;
pub mod random;
pub mod reference_diff;
pub mod scramble;
pub mod shard;
pub mod strace;
pub mod usage;
pub mod users;
pub mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Barrier, Once};
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::common::writing::needed;

/// Time limit of any one command.
const COMMAND_DEADLINE: Duration = Duration::from_secs(120);
/// Returns the time limit of a whole test program: a mount that hangs must not hang CI.
/// `scripts/soak` allows hours.
fn program_deadline() -> Duration {
    let minutes = std::env::var("ICECHUNKFS_TEST_MINUTES").map_or(15, |value| value.parse().expect("minutes"));
    Duration::from_secs(minutes * 60)
}

/// Returns the program under test.
pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_icechunkfs")
}

/// Ends this test program when it takes too long. A thread that hangs in a dead file system cannot
/// be ended in another way.
pub fn watchdog() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        std::thread::spawn(|| {
            let deadline = program_deadline();
            std::thread::sleep(deadline);
            eprintln!("the test program ran for {deadline:?}: ended");
            // Its mounts block other processes; their daemons are its children.
            for mountpoint in own_mounts() {
                let _ = Command::new("umount").arg("-l").arg(&mountpoint).status();
            }
            std::process::exit(101);
        });
    });
}

fn own_mounts() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mine = format!("icechunkfs-test-{}-", std::process::id());
    table.lines().filter_map(|line| line.split(' ').nth(1)).filter(|m| m.contains(&mine)).map(str::to_owned).collect()
}

/// Result of a command.
#[derive(Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Output {
    /// Returns the standard output of a command that succeeded.
    #[track_caller]
    pub fn success(self) -> Vec<u8> {
        assert!(self.status.success(), "{}: {}", self.status, self.stderr);
        self.stdout
    }

    /// Returns the standard error of a command that failed.
    #[track_caller]
    pub fn failure(self) -> String {
        assert!(!self.status.success(), "the command succeeded: {}", String::from_utf8_lossy(&self.stdout));
        self.stderr
    }

    /// Returns the standard output, as text, of a command that succeeded.
    #[track_caller]
    pub fn text(self) -> String {
        String::from_utf8(self.success()).unwrap()
    }

    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_slice(&self.success()).unwrap()
    }

    /// Returns everything that a command has printed.
    pub fn all(&self) -> String {
        format!("{}{}", String::from_utf8_lossy(&self.stdout), self.stderr)
    }
}

/// Runs a command to its end, which must come before the deadline.
pub fn run(command: &mut Command) -> Output {
    let ended = run_within(command, COMMAND_DEADLINE);
    ended.unwrap_or_else(|| panic!("{command:?} did not end within {COMMAND_DEADLINE:?}"))
}

/// Runs a command to its end. Returns None, and kills the command, if that does not come before
/// `deadline`.
pub fn run_within(command: &mut Command, deadline: Duration) -> Option<Output> {
    watchdog();
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("command starts");
    let mut stdout = child.stdout.take().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let out = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes)
    });
    let err = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).map(|_| bytes)
    });
    let Some(status) = poll(deadline, || child.try_wait().unwrap()) else {
        eprintln!("{command:?} takes longer than {deadline:?}; its threads:\n{}", waits_of(child.id()));
        // No wait here: the process may hang in a dead file system.
        let _ = child.kill();
        return None;
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Some(Output { status, stdout: out.join().unwrap().unwrap(), stderr: text(err.join().unwrap().unwrap()) })
}

/// Describes where each thread of a process waits, and names its children.
fn waits_of(pid: u32) -> String {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let described = threads.map(|thread| {
        let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        format!("{}{}{}\nchildren: {}\n", read("stat"), read("syscall"), read("stack"), read("children"))
    });
    described.collect()
}

/// Runs the program under test.
pub fn icechunkfs<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Output {
    run(Command::new(program()).args(words))
}

/// Runs a command of the program on a repository or a mount: `place` follows the command's name.
pub fn run_on(place: impl AsRef<OsStr>, words: &[&str]) -> Output {
    run(&mut command_on(place, words))
}

/// Runs it as [`run_on`], with a fault.
pub fn run_with_fault(place: impl AsRef<OsStr>, words: &[&str], fault: &str) -> Output {
    run(command_on(place, words).env("ICECHUNKFS_FAULT", fault))
}

fn command_on(place: impl AsRef<OsStr>, words: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.arg(words[0]).arg(place).args(&words[1..]);
    command
}

/// Runs `work` on this thread.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Does `work` with each of `workers` and its number, on a thread for each; all begin together.
pub fn all_together<W: Sync, T: Send>(workers: &[W], work: impl Fn(usize, &W) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(workers.len());
    std::thread::scope(|scope| {
        let start = &start;
        let work = &work;
        let begin = |(n, worker)| {
            scope.spawn(move || {
                start.wait();
                work(n, worker)
            })
        };
        let threads: Vec<_> = workers.iter().enumerate().map(begin).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Time limit of [`wait_until`], on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Asks until there is an answer. Returns None if there is none before the deadline.
pub fn poll<T>(deadline: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        let answer = ask();
        if answer.is_some() || begin.elapsed() > deadline {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `condition` holds, and fails if that takes too long.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Asks until there is an answer, and fails if that takes too long.
#[track_caller]
pub fn wait_for<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    poll(SOON, ask).unwrap_or_else(|| panic!("still waiting after {SOON:?}: {what}"))
}

/// Waits until process `id` has ended.
#[track_caller]
pub fn wait_for_end(id: i32) {
    let process = PathBuf::from(format!("/proc/{id}"));
    wait_until(&format!("process {id} does not end"), || !process.exists());
}

/// Sends a signal, such as `-TERM`, to process `id`.
#[track_caller]
pub fn signal(id: i32, name: &str) {
    run(Command::new("kill").arg(name).arg(id.to_string())).success();
    if name == "-STOP" {
        // The kernel stops the threads one by one, and on a busy machine others go on with their
        // work for a while.
        wait_until("threads do not stop", || !has_running_threads(id));
    }
}

/// Returns true if a thread of process `id` runs, or waits for something other than a disk.
fn has_running_threads(id: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok()).any(|stat| {
        // The name before the state may have any byte in it.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        matches!(state, Some('R' | 'S'))
    })
}

/// Returns the errno of a failure.
#[track_caller]
pub fn errno<T>(result: std::io::Result<T>) -> i32 {
    result.err().expect("an error").raw_os_error().expect("an error of the system")
}

/// Returns the Python of `scripts/setup`, with the packages of `tests/python/requirements.txt`.
pub fn python() -> Option<PathBuf> {
    let python = std::env::var_os("ICECHUNKFS_PYTHON").map_or_else(|| project("target/venv/bin/python"), PathBuf::from);
    needed(python.exists(), &format!("{}: scripts/setup --python makes it", python.display())).then_some(python)
}

/// Returns true if all mounts take their requests through io_uring in this run.
pub fn has_rings() -> bool {
    std::env::var_os("ICECHUNKFS_IO_URING").is_some()
}

/// Returns the values of `--io` that this user may choose.
pub fn io_modes() -> Vec<&'static str> {
    // Bytes of requests through io_uring are always copied.
    if has_rings() {
        return vec!["cached"];
    }
    if needed(is_root(), "root, for passthrough") { vec!["cached", "passthrough"] } else { vec!["cached"] }
}

/// Returns a path of the project.
pub fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the SHA-256 of `bytes`, in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the paths of a directory's entries.
pub fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Removes root's default scratch directories of repositories below `directory`, which are in one
/// place for all of root's mounts.
pub fn remove_default_scratch(directory: &Path) {
    let Ok(directory) = directory.canonicalize() else { return };
    for place in std::fs::read_dir("/var/lib/icechunkfs").into_iter().flatten().flatten() {
        let name = place.file_name().into_string().unwrap_or_default();
        if icechunkfs::file_name::decode(&name).is_some_and(|repository| Path::new(&repository).starts_with(&directory))
        {
            let _ = std::fs::remove_dir_all(place.path());
        }
    }
}

/// A mount that is unmounted when it is dropped.
pub struct Mount {
    directory: tempfile::TempDir,
}

impl Mount {
    /// Mounts `repo` with more arguments.
    #[track_caller]
    pub fn new(repo: &Path, words: &[&str]) -> Mount {
        let mount = Mount::prepare();
        mount.command(repo, words).success();
        mount
    }

    /// Creates a mountpoint without a mount.
    pub fn prepare() -> Mount {
        let prefix = format!("icechunkfs-test-{}-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        std::fs::create_dir(directory.path().join("mnt")).unwrap();
        Mount { directory }
    }

    /// Runs the mount command on this mountpoint. Uncommitted work goes into a scratch directory
    /// beside it, unless `words` name another one.
    pub fn command(&self, repo: &Path, words: &[&str]) -> Output {
        let mut command = Command::new(program());
        command.arg("mount").arg(repo).arg(self.path()).arg("--log-file").arg(self.log_path());
        if !["--scratch", "--ephemeral", "--follow", "--view"].iter().any(|word| words.contains(word)) {
            command.arg("--scratch").arg(self.directory.path().join("scratch"));
        }
        run(command.args(words))
    }

    /// Returns the arguments that mount `repo` here, with a log beside it.
    pub fn arguments(&self, repo: &str, words: &[&str]) -> Vec<String> {
        let place = self.path().display().to_string();
        let log = self.log_path().display().to_string();
        [&["mount", repo, &place, "--log-file", &log], words].concat().into_iter().map(str::to_owned).collect()
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// Returns the path of a control file.
    pub fn control(&self, name: &str) -> PathBuf {
        self.path().join(".icechunk").join(name)
    }

    /// Reads a control file.
    #[track_caller]
    pub fn read_control(&self, name: &str) -> String {
        std::fs::read_to_string(self.control(name)).unwrap()
    }

    /// Reads a control file that is JSON.
    #[track_caller]
    pub fn control_json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read_control(name)).unwrap()
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Returns the daemon's log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Returns the line of `/proc/mounts`, if it is mounted.
    pub fn mounted_as(&self) -> Option<String> {
        // Mountpoints of other programs need not be text.
        let table = String::from_utf8_lossy(&std::fs::read("/proc/mounts").unwrap()).into_owned();
        let place = self.path().display().to_string();
        table.lines().find(|line| line.split(' ').nth(1) == Some(&place)).map(str::to_owned)
    }

    /// Returns the id of the daemon's process.
    pub fn daemon(&self) -> i32 {
        let place = self.path();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let mut words = words.split(|&b| b == 0);
            let ours = words.next().is_some_and(|word| word.ends_with(b"icechunkfs"));
            if ours && words.any(|word| word == place.as_os_str().as_encoded_bytes()) {
                return pid;
            }
        }
        panic!("no daemon serves {}", place.display());
    }

    #[track_caller]
    pub fn unmount(&self) {
        run_on(self.path(), &["unmount"]).success();
    }

    /// Unmounts, and waits for the daemon's end: until then it may add to its cache.
    #[track_caller]
    pub fn end(self) {
        let daemon = self.daemon();
        self.unmount();
        wait_for_end(daemon);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted_as().is_some() {
            let _ = Command::new("umount").arg("-l").arg(self.path()).status();
        }
        if std::thread::panicking() {
            eprintln!("log of the mount:\n{}", self.log());
        }
    }
}

/// A set of repositories and their expected content.
pub struct FixtureSet {
    pub name: &'static str,
    repositories: PathBuf,
    expected: PathBuf,
}

/// One repository and its expected content.
pub struct Fixture {
    pub name: String,
    pub repository: PathBuf,
    pub expected: Value,
}

impl FixtureSet {
    /// Returns the project's own fixtures.
    pub fn own() -> FixtureSet {
        let root = project("tests/fixtures");
        FixtureSet { name: "own", repositories: root.join("repos"), expected: root.join("expected") }
    }

    /// Returns the own and the shared fixtures.
    pub fn each() -> impl Iterator<Item = FixtureSet> {
        [Some(FixtureSet::own()), FixtureSet::shared()].into_iter().flatten()
    }

    /// Returns the fixtures beside the project, which every checkout and CI have. Without them CI
    /// fails, and elsewhere a message says that the test was skipped.
    pub fn shared() -> Option<FixtureSet> {
        let root = project("../shared/fixtures");
        if !needed(root.is_dir(), &format!("{}; the project's own fixtures are tested", root.display())) {
            return None;
        }
        let root = root.canonicalize().unwrap();
        Some(FixtureSet { name: "shared", repositories: root.clone(), expected: root.join("expected") })
    }

    /// Returns all repositories of format versions 1 and 2.
    pub fn all(&self) -> Vec<Fixture> {
        self.matching(|name| !name.starts_with("v0-") && place::takes(name))
    }

    /// Returns all repositories of releases before 0.2.
    pub fn alphas(&self) -> Vec<Fixture> {
        self.matching(|name| name.starts_with("v0-"))
    }

    fn matching(&self, wanted: impl Fn(&str) -> bool) -> Vec<Fixture> {
        let mut names: Vec<String> = std::fs::read_dir(&self.expected)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .filter(|name| wanted(name))
            .collect();
        names.sort();
        assert!(!names.is_empty(), "no fixtures in {}", self.expected.display());
        names.into_iter().map(|name| self.get(&name)).collect()
    }

    /// Returns the file with the expected content of a repository.
    pub fn expected_path(&self, name: &str) -> PathBuf {
        self.expected.join(format!("{name}.json"))
    }

    pub fn get(&self, name: &str) -> Fixture {
        let expected = std::fs::read(self.expected_path(name)).unwrap();
        Fixture {
            name: name.to_owned(),
            repository: place::stored(&self.repositories.join(name)),
            expected: serde_json::from_slice(&expected).unwrap(),
        }
    }
}

/// Files below a directory, by their paths relative to it.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Reads all files below a directory.
pub fn read_files(directory: &Path) -> Files {
    let mut files = Files::new();
    visit_files(directory, "", &mut |key, path| {
        files.insert(key, std::fs::read(path).unwrap());
    });
    files
}

/// Returns the size of each file below a directory, and its hash; no hash of those that give
/// `EACCES`.
pub fn read_hashes(directory: &Path) -> BTreeMap<String, (u64, Option<String>)> {
    let mut files = BTreeMap::new();
    visit_files(directory, "", &mut |key, path| {
        let size = path.metadata().unwrap().len();
        let hash = match std::fs::read(path) {
            Ok(bytes) => {
                assert_eq!(bytes.len() as u64, size, "{key}");
                Some(sha256(&bytes))
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{key}: {error}");
                None
            }
        };
        assert!(files.insert(key.clone(), (size, hash)).is_none(), "{key} is listed twice");
    });
    files
}

/// Visits all files below a directory, with their paths relative to it.
pub fn visit_files(directory: &Path, prefix: &str, visit: &mut impl FnMut(String, &Path)) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let key = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            assert!(entry.metadata().unwrap().is_dir(), "{key}");
            visit_files(&entry.path(), &format!("{key}/"), visit);
        } else {
            visit(key, &entry.path());
        }
    }
}

/// Returns the names of files that differ, and how.
pub fn differences(found: &Files, expected: &Files) -> Vec<String> {
    let names: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    let shown = |bytes: Option<&Vec<u8>>| match bytes {
        None => "nothing".to_owned(),
        Some(bytes) if bytes.len() < 40 => format!("{:?}", String::from_utf8_lossy(bytes)),
        Some(bytes) => format!("{} bytes", bytes.len()),
    };
    let differing = names.into_iter().filter(|name| found.get(*name) != expected.get(*name));
    differing
        .map(|name| format!("{name}: {} instead of {}", shown(found.get(name)), shown(expected.get(name))))
        .collect()
}

/// Compares, and prints the names of differing files instead of megabytes.
#[track_caller]
pub fn assert_same(what: &str, found: &Files, expected: &Files) {
    let differences = differences(found, expected);
    assert!(differences.is_empty(), "{what}: {differences:#?}");
}

/// Copies a directory tree.
pub fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::write(&target, std::fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

/// Returns true if tests that need root run: they do in CI.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Mountpoints that are unmounted when this is dropped.
pub struct Unmounted(pub Vec<PathBuf>);

impl Drop for Unmounted {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = Command::new("umount").arg("-l").arg(path).status();
        }
    }
}
