//! Time and memory that a command takes.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::watchdog;

/// Interval between two looks at a command.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Time and memory that a command took, and its end.
#[derive(Debug)]
pub struct Usage {
    /// Exit status; none if a signal ended it.
    pub status: Option<i32>,
    pub elapsed: Duration,
    /// Time of the processor, which other processes do not lengthen.
    pub processor: Duration,
    /// Peak memory in bytes, without the pages of files that are mapped: how many of those the
    /// kernel counts for an unoptimized program depends on how the linker's file lies in its cache.
    pub memory: u64,
    pub stderr: String,
}

/// Runs a command to its end, and measures it. One that has not ended after `hard` is killed.
pub fn measure(command: &mut Command, hard: Duration) -> Usage {
    watchdog();
    let mut errors = tempfile::tempfile().unwrap();
    let stderr = Stdio::from(errors.try_clone().unwrap());
    let begin = Instant::now();
    #[allow(clippy::zombie_processes, reason = "it is waited for below, by its id, with what it used")]
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: a structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    let mut memory = 0;
    loop {
        // Not the kernel's own sum, which includes the memory of the test at the time of the fork.
        memory = memory.max(peak(pid));
        // SAFETY: both are ours, and the process is a child that nothing else waits for.
        match unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) } {
            0 if begin.elapsed() < hard => std::thread::sleep(LOOK_EVERY),
            0 => {
                // SAFETY: it has not been waited for, so that it is still that process.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                std::thread::sleep(LOOK_EVERY);
            }
            ended => {
                assert_eq!(ended, pid, "{}", std::io::Error::last_os_error());
                break;
            }
        }
    }
    let mut stderr = String::new();
    std::io::Seek::rewind(&mut errors).unwrap();
    std::io::Read::read_to_string(&mut errors, &mut stderr).unwrap();
    Usage {
        status: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        elapsed: begin.elapsed(),
        processor: duration(usage.ru_utime) + duration(usage.ru_stime),
        memory,
        stderr,
    }
}

/// Returns the peak memory of a process so far, in bytes; 0 if it has ended.
fn peak(pid: libc::pid_t) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |line| line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10)
    };
    value("VmHWM:").saturating_sub(value("RssFile:"))
}

fn duration(of: libc::timeval) -> Duration {
    Duration::from_secs(of.tv_sec.unsigned_abs()) + Duration::from_micros(of.tv_usec.unsigned_abs())
}
