//! System calls of a process, which are made to fail or are listed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::writing::needed;
use crate::common::{poll, wait_until};

/// Time in which strace lets go of a process.
const LET_GO: Duration = Duration::from_secs(5);

/// Returns true if there is strace; otherwise the test is told not to have run.
fn has_strace() -> bool {
    needed(Command::new("strace").arg("-V").output().is_ok(), "strace: scripts/setup installs it")
}

/// Attaches strace to every thread of `process`, with these options.
fn attach(process: i32, options: &[&str]) -> Tracer {
    let mut command = Command::new("strace");
    command.args(["-f", "-p", &process.to_string()]).args(options);
    let strace = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let tracer = Tracer(strace);
    wait_until("strace does not attach", || {
        std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten().all(|task| {
            let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
        })
    });
    tracer
}

/// Process of strace.
struct Tracer(Child);

/// Makes system calls fail as long as it lives.
pub struct Faults(#[expect(dead_code, reason = "its end is what counts")] Tracer);

impl Faults {
    /// Makes calls of `process` fail as strace's option `inject` says, such as
    /// `ftruncate:error=EIO:when=1`. None without strace, which is told.
    pub fn of(process: i32, what: &str) -> Option<Faults> {
        if !has_strace() {
            return None;
        }
        let call = what.split(':').next().unwrap();
        let options = ["-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &format!("inject={what}")];
        Some(Faults(attach(process, &options)))
    }
}

/// List of system calls, with the paths of descriptors.
pub struct Calls {
    log: PathBuf,
    _tracer: Tracer,
}

impl Calls {
    /// Lists calls of `process`, such as `fsync,fdatasync`, in the file `log`. None without strace,
    /// which is told.
    pub fn of(process: i32, calls: &str, log: &Path) -> Option<Calls> {
        if !has_strace() {
            return None;
        }
        let tracer = attach(process, &["-y", "-o", log.to_str().unwrap(), "-e", &format!("trace={calls}")]);
        Some(Calls { log: log.to_owned(), _tracer: tracer })
    }

    /// Returns the calls so far, in the order in which they began.
    pub fn so_far(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().filter(|line| !line.contains(" resumed>")).map(str::to_owned).collect()
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // It lets go of the process. If that was killed, it may wait without end for its first
        // thread, whose end the kernel tells after that of the others, for which it no longer asks.
        // If strace is killed at once, a call that it holds fails in another way.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let ended = poll(LET_GO, || self.0.try_wait().ok().flatten());
        if ended.is_none() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
