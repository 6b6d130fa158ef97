//! A writable mount of a local repository under test, with the reference implementation as the
//! oracle.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use icechunk::Repository;
use tokio::runtime::Runtime;

use super::subject::{Committed, Subject, of_others};
use super::zarr::Keys;
use crate::common::lab::{ancestry, keys_at, main_branch, session_on};
use crate::common::writing::{echo, touch};
use crate::common::{Mount, place, read_files, run, run_on, signal, wait_for, wait_for_end};

/// After this long without an answer the daemon is killed, so that the operation fails instead of
/// hanging.
const HANGS: Duration = Duration::from_secs(45);

pub struct Mounted {
    directory: tempfile::TempDir,
    mount: Mount,
    runtime: Runtime,
    pulse: Arc<Pulse>,
}

struct Pulse {
    last: AtomicU64,
    daemon: AtomicU64,
    over: AtomicBool,
    begin: Instant,
}

impl Mounted {
    pub fn new() -> Mounted {
        let directory = tempfile::tempdir().unwrap();
        run_on(place::place(directory.path()), &["init"]).success();
        let begin = Instant::now();
        let pulse =
            Arc::new(Pulse { last: AtomicU64::new(0), daemon: AtomicU64::new(0), over: AtomicBool::new(false), begin });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mounted = Mounted { mount: Mount::prepare(), directory, runtime, pulse: Arc::clone(&pulse) };
        mounted.mount_again();
        std::thread::spawn(move || watch(&pulse));
        mounted
    }

    fn repository(&self) -> PathBuf {
        place::place(self.directory.path())
    }

    fn mount_again(&self) {
        static MOUNTS: AtomicU64 = AtomicU64::new(0);
        let scratch = self.directory.path().join("scratch");
        let mut words = vec!["--scratch", scratch.to_str().unwrap()];
        // Over a store, every second mount uploads chunks before the commit.
        if !place::is_local() && MOUNTS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            words.extend(["--pack-below", "1"]);
        }
        self.mount.command(&self.repository(), &words).success();
        self.pulse.daemon.store(self.mount.daemon() as u64, Ordering::Relaxed);
        self.alive();
    }

    fn control(&self, name: &str) -> PathBuf {
        self.mount.control(name)
    }

    async fn open(&self) -> Repository {
        place::reference(&self.repository()).await
    }
}

/// Kills a daemon that does not answer any more.
fn watch(pulse: &Pulse) {
    while !pulse.over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(200));
        let quiet = pulse.begin.elapsed().saturating_sub(Duration::from_millis(pulse.last.load(Ordering::Relaxed)));
        let daemon = pulse.daemon.load(Ordering::Relaxed);
        if quiet > HANGS && daemon != 0 {
            eprintln!("no answer for {quiet:?}: ending the daemon {daemon}");
            let _ = Command::new("kill").arg("-9").arg(daemon.to_string()).status();
            pulse.daemon.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.pulse.over.store(true, Ordering::Relaxed);
    }
}

fn number(outcome: std::io::Result<()>) -> Result<(), i32> {
    outcome.map_err(|error| error.raw_os_error().unwrap_or(-1))
}

impl Subject for Mounted {
    fn root(&self) -> PathBuf {
        self.mount.path()
    }

    fn commit(&mut self, how: &str, _open: bool) -> Result<(), i32> {
        match how {
            "touch" => number(touch(&self.control("commit"))),
            "echo" => number(echo(&self.control("commit"), "a message of the model")),
            _ => {
                let output = run_on(self.mount.path(), &["commit", "-m", "by command", "--json"]);
                if output.status.success() {
                    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                    assert!(outcome.get("snapshot").is_some(), "{outcome}");
                    return Ok(());
                }
                // The command has no errno; its message must identify the same error.
                Err(if output.stderr.contains("open for writing") { libc::EBUSY } else { libc::EINVAL })
            }
        }
    }

    fn reason(&self) -> String {
        std::fs::read_to_string(self.control("commit")).unwrap_or_default()
    }

    fn discard(&mut self) -> Result<(), i32> {
        number(touch(&self.control("discard")))
    }

    fn discard_below(&mut self, path: &str) -> Result<(), i32> {
        number(echo(&self.control("discard"), path))
    }

    fn refresh(&mut self) -> Result<(), i32> {
        number(touch(&self.control("refresh")))
    }

    fn remount(&mut self) {
        self.pulse.daemon.store(0, Ordering::Relaxed);
        // The kernel notifies the daemon of the last close a moment after `close` has returned.
        wait_for("the mount is in use", || {
            let output = run_on(self.mount.path(), &["unmount"]);
            assert!(output.status.success() || output.stderr.contains("in use"), "{}", output.stderr);
            output.status.success().then_some(())
        });
        self.mount_again();
    }

    fn kill(&mut self) {
        let daemon = self.mount.daemon();
        self.pulse.daemon.store(0, Ordering::Relaxed);
        signal(daemon, "-9");
        wait_for_end(daemon);
        let _ = run(Command::new("umount").arg("-l").arg(self.mount.path()));
        self.mount_again();
    }

    fn others(&mut self, seed: u64) -> Keys {
        let keys = of_others(seed);
        self.runtime.block_on(async {
            let (session, store) = session_on(&self.open().await, "main").await;
            // Documents first: a chunk needs its array.
            let (documents, chunks): (Vec<_>, Vec<_>) = keys.values().partition(|k| k.canonical.ends_with("zarr.json"));
            for key in documents.into_iter().chain(chunks) {
                store.set(&key.canonical, key.bytes.clone().into()).await.unwrap();
            }
            session.write().await.commit("others").execute().await.unwrap();
        });
        keys
    }

    fn committed(&self) -> Committed {
        let fresh = Mount::new(&self.repository(), &["-o", "ro"]);
        let shown = read_files(&fresh.path());
        let (listed, commits) = self.runtime.block_on(async {
            let repository = self.open().await;
            let commits = ancestry(&repository, &main_branch()).await.len();
            let listed = keys_at(&repository, &main_branch()).await;
            (listed, commits)
        });
        Committed { shown, listed, commits }
    }

    fn alive(&self) {
        self.pulse.last.store(self.pulse.begin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}
