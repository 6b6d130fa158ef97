//! `icechunkfs run`, and what it promises of a job: one commit after success, none after anything
//! else, and nothing left behind.

pub mod jobs;
mod killed;
mod page;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::writing::{GROUP, Reference, array, create};
use crate::common::{self, Output, entries, poll, remove_default_scratch, run};

/// Shell commands that make an array of ten chunks of one byte, with one of them.
const MAKE: &str = r#"mkdir -p a/c && cp "$GIVEN/array" a/zarr.json && printf 0 > a/c/8"#;

/// A repository with an array, and a place for all that jobs make.
struct Place {
    directory: tempfile::TempDir,
    repository: PathBuf,
}

impl Place {
    fn new() -> Place {
        let prefix = format!("icechunkfs-test-{}-run-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        let repository = directory.path().join("repo");
        create(&repository);
        for name in ["tmp", "state", "given", "mnt"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        std::fs::write(directory.path().join("given/group"), GROUP).unwrap();
        std::fs::write(directory.path().join("given/array"), array(&[10], &[1])).unwrap();
        let place = Place { directory, repository };
        place.run("cp $GIVEN/group zarr.json", &["-m", "group"]).success();
        place.run(MAKE, &["-m", "array"]).success();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the command that runs `script` in a job.
    fn job(&self, script: &str, words: &[&str]) -> Command {
        // A shell starts programs in the background with the signals of the terminal ignored, and a
        // job inherits that.
        let mut command = Command::new("env");
        command
            .args(["--default-signal=INT,QUIT", common::program(), "run"])
            .arg(&self.repository)
            .args(words)
            .args(["--", "sh", "-ec", script]);
        command.env("TMPDIR", self.path("tmp")).env("XDG_STATE_HOME", self.path("state"));
        command.env("GIVEN", self.path("given")).env("PROGRAM", common::program()).env("REPO", &self.repository);
        command
    }

    fn run(&self, script: &str, words: &[&str]) -> Output {
        run(&mut self.job(script, words))
    }

    fn start(&self, script: &str) -> Child {
        let mut job = self.job(script, &["-m", "night"]);
        job.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Returns the messages of the branch, newest first.
    fn messages(&self) -> Vec<String> {
        Reference::open(&self.repository).history().into_iter().map(|(_, message)| message).collect()
    }

    /// Returns chunk `n`, as the reference reads it.
    fn chunk(&self, n: usize) -> Option<Vec<u8>> {
        Reference::open(&self.repository).keys().get(&format!("a/c/{n}")).cloned()
    }

    /// Returns the mounts, temporary mountpoints and scratch directories of jobs that are there.
    fn remains(&self) -> Vec<PathBuf> {
        let name = icechunkfs::file_name::encode(&self.repository.canonicalize().unwrap().to_string_lossy());
        let states = [PathBuf::from("/var/lib/icechunkfs"), self.path("state/icechunkfs")];
        let scratch = states.iter().flat_map(|state| list(&state.join(&name)));
        scratch.chain(entries(&self.path("tmp"))).chain(self.mounts()).collect()
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let table = String::from_utf8_lossy(&std::fs::read("/proc/mounts").unwrap()).into_owned();
        let places = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
        places.filter(|place| place.starts_with(self.directory.path())).collect()
    }

    /// Waits until nothing of a job is there any more.
    #[track_caller]
    fn wait_until_clean(&self) {
        let is_clean = poll(std::time::Duration::from_secs(40), || self.remains().is_empty().then_some(()));
        assert!(is_clean.is_some(), "still there: {:?}", self.remains());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for mount in self.mounts() {
            let _ = Command::new("umount").arg("-l").arg(mount).status();
        }
        remove_default_scratch(self.directory.path());
    }
}

fn list(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Returns the processes that `parent` started.
fn children(parent: u32) -> Vec<i32> {
    let tasks = list(Path::new(&format!("/proc/{parent}/task")));
    let texts = tasks.iter().filter_map(|task| std::fs::read_to_string(task.join("children")).ok());
    texts.flat_map(|text| text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Returns the child of `parent` that is an icechunkfs daemon, or the other one.
fn child_of(parent: u32, is_daemon: bool) -> Option<i32> {
    let own = std::fs::canonicalize(common::program()).unwrap();
    children(parent).into_iter().find(|id| {
        let program = std::fs::read_link(format!("/proc/{id}/exe"));
        program.is_ok_and(|program| (program == own) == is_daemon)
    })
}
