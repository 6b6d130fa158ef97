//! A writable mount of a local repository under test, with the reference implementation as the oracle.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use icechunk::format::ByteRange;
use icechunk::repository::VersionInfo;
use icechunk::{Repository, Store};
use tokio::runtime::Runtime;
use tokio::sync::RwLock;

use super::subject::{Committed, Subject, of_others};
use super::zarr::Keys;
use crate::common::{Mount, icechunkfs, place, read_files, run};

/// After this long without an answer the daemon is killed, so that the operation fails instead of hanging.
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
        icechunkfs(["init".as_ref(), place::place(directory.path()).as_os_str()]).success();
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
        self.mount.path().join(".icechunk").join(name)
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

/// Sets times as `touch` does: the first error counts.
pub fn touch(path: &std::path::Path) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path)?;
    rustix::fs::futimens(
        &file,
        &rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
            last_modification: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        },
    )?;
    Ok(())
}

/// Writes as `echo text > path` does.
pub fn echo(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    std::fs::OpenOptions::new().write(true).create(true).truncate(true).open(path)?.write_all(text.as_bytes())
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
            "echo" => number(echo(&self.control("commit"), "a message of the model\n")),
            _ => {
                let output = icechunkfs([
                    "commit".as_ref(),
                    self.mount.path().as_os_str(),
                    "-m".as_ref(),
                    "by command".as_ref(),
                    "--json".as_ref(),
                ]);
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
        number(echo(&self.control("discard"), &format!("{path}\n")))
    }

    fn refresh(&mut self) -> Result<(), i32> {
        number(touch(&self.control("refresh")))
    }

    fn remount(&mut self) {
        self.pulse.daemon.store(0, Ordering::Relaxed);
        // The kernel notifies the daemon of the last close a moment after `close` has returned.
        for attempt in 0.. {
            let output = icechunkfs(["unmount".as_ref(), self.mount.path().as_os_str()]);
            if output.status.success() {
                break;
            }
            assert!(attempt < 50 && output.stderr.contains("in use"), "{}", output.stderr);
            std::thread::sleep(Duration::from_millis(20));
        }
        self.mount_again();
    }

    fn kill(&mut self) {
        let daemon = self.mount.daemon();
        self.pulse.daemon.store(0, Ordering::Relaxed);
        run(Command::new("kill").arg("-9").arg(daemon.to_string())).success();
        let begin = Instant::now();
        while PathBuf::from(format!("/proc/{daemon}")).exists() {
            assert!(begin.elapsed() < HANGS, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = run(Command::new("umount").arg("-l").arg(self.mount.path()));
        self.mount_again();
    }

    fn others(&mut self, seed: u64) -> Keys {
        let keys = of_others(seed);
        self.runtime.block_on(async {
            let repository = self.open().await;
            let session = Arc::new(RwLock::new(repository.writable_session("main").await.unwrap()));
            let store = Store::from_session(Arc::clone(&session)).await;
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
            let main = VersionInfo::BranchTipRef("main".into());
            let history = repository.ancestry(&main).await.unwrap();
            let commits = history.try_fold(0, async |count, _| Ok(count + 1)).await.unwrap();
            let session = repository.readonly_session(&main).await.unwrap();
            let store = Store::from_session(Arc::new(RwLock::new(session))).await;
            let names: Vec<String> = store.list().await.unwrap().try_collect().await.unwrap();
            let mut listed = BTreeMap::new();
            for name in names {
                let bytes = store.get(&name, &ByteRange::ALL).await.unwrap_or_else(|e| panic!("{name}: {e}"));
                listed.insert(name, bytes.to_vec());
            }
            (listed, commits)
        });
        Committed { shown, listed, commits }
    }

    fn alive(&self) {
        self.pulse.last.store(self.pulse.begin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}
