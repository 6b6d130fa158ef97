//! Shared by all tests: mounts that are always unmounted, commands that always end, and the fixtures.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod counted;
pub mod damage;
pub mod disk;
pub mod failing;
pub mod faulty;
pub mod fsck;
pub mod hostile;
pub mod lab;
pub mod machines;
pub mod made;
pub mod moto;
pub mod origin;
pub mod place;
pub mod reference_diff;
pub mod scramble;
pub mod shard;
pub mod users;
pub mod writing;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Time limit of any one command.
const COMMAND_DEADLINE: Duration = Duration::from_secs(120);
/// Returns the time limit of a whole test program: a mount that hangs must not hang CI. `scripts/soak` allows hours.
fn program_deadline() -> Duration {
    let minutes = std::env::var("ICECHUNKFS_TEST_MINUTES").map_or(15, |value| value.parse().expect("minutes"));
    Duration::from_secs(minutes * 60)
}

/// Returns the program under test.
pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_icechunkfs")
}

/// Ends this test program when it takes too long. A thread that hangs in a dead file system cannot be ended in another
/// way.
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

    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_slice(&self.success()).unwrap()
    }
}

/// Runs a command to its end, which must come before the deadline.
pub fn run(command: &mut Command) -> Output {
    let ended = run_within(command, COMMAND_DEADLINE);
    ended.unwrap_or_else(|| panic!("{command:?} did not end within {COMMAND_DEADLINE:?}"))
}

/// Runs a command to its end. Returns None, and kills the command, if that does not come before `deadline`.
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
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > deadline {
            // No wait here: the process may hang in a dead file system.
            let _ = child.kill();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Some(Output { status, stdout: out.join().unwrap().unwrap(), stderr: text(err.join().unwrap().unwrap()) })
}

/// Runs the program under test.
pub fn icechunkfs<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Output {
    run(Command::new(program()).args(words))
}

/// Time limit of [`wait_until`], on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Waits until `condition` holds, and fails if that takes too long.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < SOON, "still waiting after {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until process `id` has ended.
#[track_caller]
pub fn wait_for_end(id: i32) {
    let process = PathBuf::from(format!("/proc/{id}"));
    wait_until(&format!("process {id} does not end"), || !process.exists());
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

    /// Runs the mount command on this mountpoint. Uncommitted work goes into a scratch directory beside it, unless
    /// `words` name another one.
    pub fn command(&self, repo: &Path, words: &[&str]) -> Output {
        let mut command = Command::new(program());
        command.arg("mount").arg(repo).arg(self.path()).arg("--log-file").arg(self.log_path());
        if !["--scratch", "--ephemeral", "--follow", "--view"].iter().any(|word| words.contains(word)) {
            command.arg("--scratch").arg(self.directory.path().join("scratch"));
        }
        run(command.args(words))
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
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
        let table = std::fs::read_to_string("/proc/mounts").unwrap();
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
        icechunkfs([OsStr::new("unmount"), self.path().as_os_str()]).success();
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
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        FixtureSet { name: "own", repositories: root.join("repos"), expected: root.join("expected") }
    }

    /// Returns the fixtures beside the project, which every checkout and CI have. Without them CI fails, and elsewhere
    /// a message says that the test was skipped.
    pub fn shared() -> Option<FixtureSet> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures");
        if !root.is_dir() {
            assert!(std::env::var_os("CI").is_none(), "CI must have {}", root.display());
            eprintln!("NOT RUN: {} does not exist; the project's own fixtures are tested", root.display());
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

/// Reads all files below a directory, by their paths relative to it.
pub fn read_files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    collect_files(directory, "", &mut files);
    files
}

fn collect_files(directory: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let key = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect_files(&entry.path(), &format!("{key}/"), files);
        } else {
            files.insert(key, std::fs::read(entry.path()).unwrap());
        }
    }
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
