//! System calls of a process that are made to fail.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::writing::needed;
use crate::common::{poll, wait_until};

/// Time in which strace lets go of a process.
const LET_GO: Duration = Duration::from_secs(5);

/// Makes system calls fail as long as it lives.
pub struct Faults(Child);

impl Faults {
    /// Makes calls of `process` fail as strace's option `inject` says, such as `ftruncate:error=EIO:when=1`. None without strace, which is told.
    pub fn of(process: i32, what: &str) -> Option<Faults> {
        if !needed(Command::new("strace").arg("-V").output().is_ok(), "strace: scripts/setup installs it") {
            return None;
        }
        let call = what.split(':').next().unwrap();
        let mut command = Command::new("strace");
        command.args(["-f", "-p", &process.to_string(), "-o", "/dev/null"]);
        command.args(["-e", &format!("trace={call}"), "-e", &format!("inject={what}")]);
        let strace = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let faults = Faults(strace);
        // Every thread of it.
        wait_until("strace does not attach", || {
            std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten().all(|task| {
                let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
                status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
            })
        });
        Some(faults)
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        // It lets go of the process. If that was killed, it may wait without end for its first thread, whose end the kernel tells after
        // that of the others, for which it no longer asks. If strace is killed at once, a call that it holds fails in another way.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let ended = poll(LET_GO, || self.0.try_wait().ok().flatten());
        if ended.is_none() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
