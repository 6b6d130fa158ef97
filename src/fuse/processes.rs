//! Processes of this machine, as far as they can be looked at without waiting for other users.
//!
//! A user can keep the memory map of an own process locked forever, by a file of an own file system
//! for instance: who reads its command line, its environment or its maps then waits. So of the
//! processes of other users only what the kernel answers by itself is read (`status`, `comm`, the
//! list of descriptors). The command line is read only of those of the current user and of root, in
//! a child process, until a deadline.
//!
//! A process is a user's only if all of its user numbers are that user's: a program with the
//! set-user-ID bit belongs to root for the kernel, but another user has chosen its name, its words
//! and its open files.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use super::child::{Child, Deadline};
use icechunkfs_base::trust;

/// Longest command line that is read, in bytes, and the part that is read at a time.
const MAX_COMMAND_LINE: usize = 64 << 10;
const READ: usize = 4 << 10;
/// Longest time for one command line.
const PATIENCE: Duration = Duration::from_millis(500);
/// Longest beginning of `status` that is read, in bytes: the numbers are in its first lines.
const MAX_STATUS: u64 = 4 << 10;

/// Process of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// User.
    pub owner: u32,
}

impl Process {
    /// Returns the process `pid`, if all of its user numbers are the same.
    pub fn find(pid: u32) -> Option<Self> {
        let mut status = Vec::new();
        let file = std::fs::File::open(place(pid).join("status")).ok()?;
        file.take(MAX_STATUS).read_to_end(&mut status).ok()?;
        Some(Process { pid, owner: only_user(&status)? })
    }

    /// Returns the process's directory in `/proc`.
    pub(super) fn place(&self) -> PathBuf {
        place(self.pid)
    }

    /// Returns the name, as far as the kernel keeps it.
    pub fn name(&self) -> Option<String> {
        let name = std::fs::read(self.place().join("comm")).ok()?;
        Some(String::from_utf8_lossy(&name).trim_end().to_owned())
    }

    /// Returns the command line of a process of the current user or of root, each word with a zero
    /// byte at its end; none if it is not known before `deadline`, or longer than any that mounts.
    pub fn command_line(&self, deadline: Deadline) -> Option<Vec<u8>> {
        if !trust::is_trusted(self.owner) || deadline.left().is_zero() {
            return None;
        }
        let file = std::fs::File::open(self.place().join("cmdline")).ok()?;
        let mut child = Child::start(file.as_fd(), MAX_COMMAND_LINE, |end| {
            end.succeed()?;
            let mut buffer = [0; READ];
            loop {
                match rustix::io::read(end.given, &mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(count) => end.send(buffer.get(..count).unwrap_or_default())?,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
        });
        child.as_mut().ok()?.wait(deadline.at_most(PATIENCE))?.ok()
    }
}

fn place(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Returns the user of a process from its `status`; none if it has several.
fn only_user(status: &[u8]) -> Option<u32> {
    // The name before it is the process's choice; line ends in it are escaped.
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
    let users = std::str::from_utf8(line).ok()?.split_whitespace();
    let users: Vec<u32> = users.map(str::parse).collect::<Result<_, _>>().ok()?;
    let first = *users.first()?;
    users.iter().all(|user| *user == first).then_some(first)
}

/// Returns the processes of the users for whom `is_wanted` returns true, first those of the current
/// user and of root.
pub fn of_users(is_wanted: impl Fn(u32) -> bool) -> impl Iterator<Item = Process> {
    let mut first = Vec::new();
    let mut others = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        match entry.metadata().map(|metadata| metadata.uid()) {
            Ok(owner) if !is_wanted(owner) => {}
            Ok(owner) if trust::is_trusted(owner) => first.push((pid, owner)),
            Ok(owner) => others.push((pid, owner)),
            Err(_) => {}
        }
    }
    first.append(&mut others);
    let same = |(pid, owner): (u32, u32)| Process::find(pid).filter(|process| process.owner == owner);
    first.into_iter().filter_map(same)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_is_of_a_user_only_if_all_its_numbers_are() {
        assert_eq!(only_user(b"Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t1\t1\t1\t1\n"), Some(7));
        assert_eq!(only_user(b"Name:\tsu\nUid:\t1000\t0\t0\t0\n"), None);
        for broken in [&b""[..], b"Uid:\n", b"Uid:\tx\t7\t7\t7\n", b"Name:\tUid:\t7\n"] {
            assert_eq!(only_user(broken), None);
        }
        let own = Process::find(std::process::id()).unwrap();
        assert_eq!(own.owner, rustix::process::geteuid().as_raw());
        let found: Vec<Process> = of_users(|user| user == own.owner).collect();
        assert!(found.contains(&own));
    }

    #[test]
    fn command_lines_are_read_of_trusted_users_until_a_deadline() {
        let own = Process::find(std::process::id()).unwrap();
        let deadline = || Deadline::after(Duration::from_secs(60));
        let expected = std::fs::read("/proc/self/cmdline").unwrap();
        assert_eq!(own.command_line(deadline()).unwrap(), expected);
        assert_eq!(own.command_line(Deadline::after(Duration::ZERO)), None);
        let foreign = Process { owner: own.owner.wrapping_add(1_000_000), ..own };
        assert_eq!(foreign.command_line(deadline()), None);
    }
}
