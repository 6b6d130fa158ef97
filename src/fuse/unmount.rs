//! Unmounting, also of a mount whose daemon has died.
//!
//! A command unmounts the mount that it has opened, never what its path means by then. A mount that
//! is detached is named by its descriptor. For the kernel an open descriptor makes a mount busy, so
//! that a polite unmount closes it, and names the mount by the directory around it, which stays
//! open: other users cannot exchange that name while something is mounted on it, and a link is not
//! followed.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::thread::NanosleepRelativeResult;
use rustix::time::Timespec;

use super::child::{Child, ChildEnd, Deadline};
use super::mount_table::{self, Mount};
use super::mountpoint::Mountpoint;
use super::open_mount::{OpenMount, mounted_at};
use super::probe::Identity;
use super::users;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::shell;

/// Longest time for a killed process to end. Only after this does a live mount count as busy.
const DYING: Duration = Duration::from_millis(500);
/// Longest wait for programs that have just closed their files, or are about to: a process that
/// another thread of such a program forks holds copies of its descriptors until it runs its own
/// program, and desktops look into files that were just written.
const CLOSING: Duration = Duration::from_secs(1);
/// Interval between checks.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest time of the kernel for an unmount.
const KERNEL: Duration = Duration::from_secs(30);

/// Mode of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// Fails with [`ErrorKind::Busy`] if files stay open for [`CLOSING`].
    Polite,
    /// Removes the mount from the tree now; it ends when the last file is closed.
    Detach,
}

/// Unmounts `mount`, which was opened at `mountpoint`: directly where this process may, otherwise
/// through `fusermount3`. May block for [`CLOSING`]. The daemon is not asked.
///
/// Errors: [`ErrorKind::Contended`] if another mount in the same directory was unmounted instead:
/// its user exchanged the names.
pub fn unmount(mountpoint: &Mountpoint, mount: OpenMount, mode: UnmountMode) -> Result<()> {
    if mode == UnmountMode::Detach {
        return unmount_now(mountpoint, mount, mode);
    }
    let before = mount_table::read()?;
    let wanted = mount.mount().clone();
    unmount_now(mountpoint, mount, mode)?;
    match taken_instead(&wanted, &before, &mount_table::read()?) {
        None => Ok(()),
        Some(other) => Err(Error::new(
            ErrorKind::Contended,
            format!(
                "{} is still mounted: the mount of {} in the same directory was unmounted instead, as another user exchanged their names. Uncommitted \
                 changes stay in its scratch directory; mount it in a directory of your own",
                wanted.source, other.source
            ),
        )),
    }
}

/// Returns the mount in the directory of `wanted` that was unmounted instead, by the mount table
/// before and after.
fn taken_instead<'a>(wanted: &Mount, before: &'a [Mount], after: &[Mount]) -> Option<&'a Mount> {
    // A new mount can have the numbers of one that is gone, while others end by themselves.
    let is_same = |a: &Mount, b: &Mount| (a.id, &a.device, &a.source) == (b.id, &b.device, &b.source);
    let now = after.iter().find(|mount| is_same(mount, wanted))?;
    let is_missing = |mount: &&Mount| !after.iter().any(|other| is_same(other, mount));
    let is_beside = |mount: &&Mount| mount.mountpoint.parent() == wanted.mountpoint.parent();
    // Exchanged, and perhaps back again.
    let is_in_place = |mount: &&Mount| [&mount.mountpoint, &wanted.mountpoint].contains(&&now.mountpoint);
    before.iter().filter(is_beside).filter(is_missing).find(is_in_place)
}

fn unmount_now(mountpoint: &Mountpoint, mount: OpenMount, mode: UnmountMode) -> Result<()> {
    let place = mountpoint.path();
    let (child, mount) = match mode {
        UnmountMode::Detach => {
            let child = Child::start(mount.root(), 0, detach);
            (child, mount.close())
        }
        UnmountMode::Polite => {
            let mount = mount.close();
            let expected = identity_of(&mount)?;
            let failed = |e: std::ffi::NulError| Error::io(place.display(), e.into());
            let name = CString::new(mountpoint.name().as_bytes()).map_err(failed)?;
            // Where the child has the directory.
            let path = [b"/proc/self/fd/1/", mountpoint.name().as_bytes()].concat();
            let path = CString::new(path).map_err(failed)?;
            (Child::start(mountpoint.parent(), 0, move |end| politely(end, &name, &path, expected)), mount)
        }
    };
    let mut child = child.map_err(|e| Error::io(format!("unmounting {}", place.display()), e))?;
    let Some(done) = child.wait(Deadline::after(KERNEL)) else {
        return Err(Error::new(
            ErrorKind::Timeout,
            format!("{}: the kernel has not unmounted it within {} s", place.display(), KERNEL.as_secs()),
        ));
    };
    match done.map_err(|error| error.raw_os_error()) {
        Ok(_) => Ok(()),
        Err(Some(libc::EPERM)) => with_helper(mountpoint, &mount, mode),
        Err(Some(libc::EBUSY)) => Err(busy(place)),
        Err(Some(libc::EXDEV | libc::EINVAL)) => Err(Error::new(
            ErrorKind::NotFound,
            format!("{}: the mount is gone, or another one covers it: nothing was unmounted", place.display()),
        )),
        Err(errno) => {
            let error = errno.map_or_else(|| io::ErrorKind::UnexpectedEof.into(), io::Error::from_raw_os_error);
            Err(Error::io(format!("unmounting {}", place.display()), error))
        }
    }
}

/// Detaches the mount whose root the child has.
fn detach(end: &ChildEnd) -> Result<(), Errno> {
    // The descriptor itself: its path would not be the same by now.
    rustix::mount::unmount(c"/proc/self/fd/1", UnmountFlags::DETACH)?;
    end.succeed()
}

/// Unmounts what is `name` in the directory that the child has; both together are `path`.
fn politely(end: &ChildEnd, name: &CStr, path: &CStr, expected: Identity) -> Result<(), Errno> {
    let begin = Instant::now();
    loop {
        match expected.check(end.given, name) {
            // Old kernels do not tell it to those who may not enter the mount. The name has kept
            // its mount in any case.
            Ok(()) | Err(Errno::ACCESS) => {}
            Err(errno) => return Err(errno),
        }
        match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
            Err(Errno::BUSY) if begin.elapsed() < CLOSING => {
                let interval = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
                let _: NanosleepRelativeResult = rustix::thread::nanosleep(&interval);
            }
            Err(errno) => return Err(errno),
            Ok(()) => return end.succeed(),
        }
    }
}

fn identity_of(mount: &Mount) -> Result<Identity> {
    let wrong = || Error::invalid(format!("`{}` is not a valid device number", mount.device));
    Identity::of(mount).ok_or_else(wrong)
}

fn busy(mountpoint: &Path) -> Error {
    let place = mountpoint.display();
    let quoted = shell::quote(&mountpoint.to_string_lossy());
    let users = users::of_mount(mountpoint);
    let is_here = std::env::current_dir().is_ok_and(|here| here.starts_with(mountpoint));
    let by = if is_here && users.len() <= 1 {
        ": the current directory is in it; change to another one first".to_owned()
    } else if users.is_empty() {
        format!(": a program has a file open in it or its working directory there (`sudo fuser -vm {quoted}` names it)")
    } else {
        format!(" by {}", users.join(", "))
    };
    Error::new(
        ErrorKind::Busy,
        format!("{place} is in use{by}. `icechunkfs unmount --force {quoted}` detaches it anyway"),
    )
}

/// Unmounts through `fusermount3`, for [`CLOSING`] if it is busy.
fn with_helper(mountpoint: &Mountpoint, mount: &Mount, mode: UnmountMode) -> Result<()> {
    // The helper says only that it does not know the mount.
    if let Some(owner) = mount.owner.filter(|owner| *owner != rustix::process::geteuid().as_raw()) {
        let place = mountpoint.path().display();
        let message = format!("{place} is a mount of user {owner}: only that user and root can unmount it");
        return Err(Error::new(ErrorKind::PermissionDenied, message));
    }
    let begin = Instant::now();
    loop {
        match run_helper(mountpoint, mount, mode) {
            Err(error) if error.kind() == ErrorKind::Busy && begin.elapsed() < CLOSING => {
                std::thread::sleep(LOOK_EVERY)
            }
            done => return done,
        }
    }
}

fn run_helper(mountpoint: &Mountpoint, mount: &Mount, mode: UnmountMode) -> Result<()> {
    let failed = |e: io::Error| Error::io(mountpoint.path().display(), e);
    let name = CString::new(mountpoint.name().as_bytes()).map_err(|e| failed(e.into()))?;
    identity_of(mount)?.check(mountpoint.parent(), &name).map_err(|e| failed(e.into()))?;
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if mode == UnmountMode::Detach {
        command.arg("-z");
    }
    // The helper begins in the directory that was opened, and takes the name in it.
    command.current_dir(format!("/proc/self/fd/{}", mountpoint.parent().as_fd().as_raw_fd()));
    let output = command.arg("--").arg(mountpoint.name()).output().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => {
            Error::new(ErrorKind::NotFound, "fusermount3 is missing: install the package fuse3, or unmount as root")
        }
        _ => Error::io("fusermount3", e),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if words.contains("busy") {
        return Err(busy(mountpoint.path()));
    }
    let kind = if words.contains("not permitted") { ErrorKind::PermissionDenied } else { ErrorKind::Io };
    Err(Error::new(kind, words))
}

/// Unmounts an icechunkfs mount at `mountpoint` whose daemon has died. Waits for the end of a
/// daemon that is just being killed: for some milliseconds it still answers, or the kernel still
/// aborts its requests. Leaves anything else as it is, a mount of another user as well. Returns
/// true if there was one.
///
/// Errors: [`ErrorKind::Timeout`] if the mount does not answer but has a daemon.
pub fn remove_dead(mountpoint: &Mountpoint) -> Result<bool> {
    let begin = Instant::now();
    loop {
        let found = mounted_at(mountpoint)?.filter(|(_, mount)| mount.is_icechunkfs() && mount.is_own());
        let Some((root, mount)) = found else { return Ok(false) };
        let mount = OpenMount::new(root, mount);
        if mount.has_ended()? {
            return unmount(mountpoint, mount, UnmountMode::Detach).map(|()| true);
        }
        if begin.elapsed() > DYING {
            return Ok(false);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_was_unmounted_instead_is_found() {
        let mount = |id, mountpoint: &str| Mount {
            id,
            mountpoint: mountpoint.into(),
            fs_type: mount_table::FILE_SYSTEM_TYPE.into(),
            source: format!("/r{id}@branch:main"),
            device: format!("0:{id}"),
            read_only: false,
            owner: Some(0),
            group: Some(0),
        };
        let [wanted, beside, elsewhere] = [mount(1, "/hers/m"), mount(2, "/hers/n"), mount(3, "/own/m")];
        let before = [wanted.clone(), beside.clone(), elsewhere.clone()];
        let taken = |after: &[Mount]| taken_instead(&wanted, &before, after).map(|mount| mount.id);
        assert_eq!(taken(&[mount(1, "/hers/n"), elsewhere.clone()]), Some(2));
        assert_eq!(taken(&[beside.clone(), elsewhere.clone()]), None, "it is gone");
        assert_eq!(taken(&[wanted.clone(), beside.clone()]), None, "another one ends by itself");
        assert_eq!(
            taken(&[mount(1, "/hers/m"), beside, elsewhere.clone()]),
            None,
            "mounted again, with the same number"
        );
        let with_its_numbers = Mount { source: "/r9@branch:main".into(), ..mount(1, "/hers/x") };
        assert_eq!(taken(&[with_its_numbers, elsewhere.clone()]), None, "another one was made, and another one ended");
        assert_eq!(taken(&[mount(1, "/hers/x"), elsewhere]), None, "the same elsewhere, and another one ended");
    }
}
