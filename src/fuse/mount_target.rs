//! The place of a new mount: opened once and checked, before anything is mounted, and looked at
//! again where another program has mounted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use tracing::warn;

use super::mount_table::Mount;
use super::mountpoint::Mountpoint;
use super::open_mount::{mount_of, mounted_at};
use super::preopened;
use super::served_mount::{Connection, ServedMount};
use super::unmount::{self, UnmountMode};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::file_name::is_dots;
use icechunkfs_base::printable;
use icechunkfs_store::recognize::{self, Kind};

/// Place of a new mount, checked and open: the mount is made there, whatever its path means by
/// then.
#[derive(Debug)]
pub struct MountTarget {
    path: PathBuf,
    /// Mountpoint, and the directory that it names; none for a [`preopened`] descriptor.
    opened: Option<(Mountpoint, OwnedFd)>,
}

impl MountTarget {
    /// Opens `mountpoint` and checks that something can be mounted there. Removes a dead icechunkfs
    /// mount. A [`preopened`] descriptor is only checked.
    pub fn open(mountpoint: &Path, nonempty: bool) -> Result<Self> {
        if let Some(number) = preopened::descriptor(mountpoint) {
            preopened::check(number)?;
            return Ok(MountTarget { path: mountpoint.to_owned(), opened: None });
        }
        let mountpoint = Mountpoint::find(mountpoint).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let message = format!("the mountpoint {} does not exist: make it with mkdir -p", mountpoint.display());
                Error::new(ErrorKind::NotFound, message)
            }
            _ => error.context("the mountpoint"),
        })?;
        let place = mountpoint.path().display().to_string();
        let failed = |e: Errno| Error::io(format!("the mountpoint {place}"), e.into());
        if unmount::remove_dead(&mountpoint)? {
            warn!("{place}: a mount whose daemon had died was taken away");
        }
        let directory = mountpoint.open().map_err(|errno| match errno {
            Errno::NOENT => {
                let message = format!("the mountpoint {place} does not exist: make it with mkdir");
                Error::new(ErrorKind::NotFound, message)
            }
            errno => failed(errno),
        })?;
        // Of the directory that is open: another look at its name may find another one, or the file
        // system of another user, who need not answer. An automount point is where the mount
        // belongs.
        let mounted = mount_of(&directory, &mountpoint)?.filter(|mount| mount.fs_type != "autofs");
        match mounted {
            // Its daemon is not asked anything.
            Some(_) if nonempty => {}
            Some(Mount { fs_type, source, .. }) => {
                let message = format!(
                    "the mountpoint {place} is busy: {source} ({fs_type}) is mounted there; unmount that first, or name another directory"
                );
                return Err(Error::new(ErrorKind::Busy, message));
            }
            None => {
                recognize::refuse_inside(format!("the mountpoint {place}"), mountpoint.path(), ErrorKind::Busy)?;
                check_directory(&directory, &place, nonempty)?;
            }
        }
        Ok(MountTarget { path: mountpoint.path().to_owned(), opened: Some((mountpoint, directory)) })
    }

    /// Returns the path: that of the mountpoint without links, or the name of the descriptor.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory on which the mount is made; none for a [`preopened`] descriptor.
    pub(super) fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.opened.as_ref().map(|(_, directory)| directory.as_fd())
    }

    /// Returns the device number of the icechunkfs mount of this user that is here now.
    pub(super) fn device_number(&self) -> Option<String> {
        let (mountpoint, _) = self.opened.as_ref()?;
        let (_, mount) = mounted_at(mountpoint).ok()??;
        let is_ours = mount.is_icechunkfs() && mount.owner == Some(rustix::process::geteuid().as_raw());
        is_ours.then_some(mount.device)
    }

    /// Returns true if this is a [`preopened`] descriptor.
    pub(super) fn is_preopened(&self) -> bool {
        self.opened.is_none()
    }

    /// Checks that `fusermount3` has mounted here: it knows only the path, and the owner of a
    /// directory on the way can have put a link there meanwhile. `device` is the number of the new
    /// file system, if the kernel tells. A mount elsewhere is detached.
    pub(super) fn check_mounted(&self, device: Option<&String>) -> Result<()> {
        let here = self.device_number();
        if here.is_some() && device.is_none_or(|device| here.as_ref() == Some(device)) {
            return Ok(());
        }
        let place = self.path.display();
        let elsewhere = device.and_then(|device| preopened::mountpoint_of(device));
        let shown = elsewhere.as_ref().map(|path| format!(" at {}", path.display())).unwrap_or_default();
        if let Some(path) = elsewhere {
            let _ = ServedMount::new(path, device.cloned(), Connection::New).unmount(UnmountMode::Detach);
        }
        Err(Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "fusermount3 has mounted{shown} instead of {place}, and that was taken back: another user changed a directory on the way; name a \
                 mountpoint in a directory of your own"
            ),
        ))
    }
}

/// Checks that `directory` can have a mount: it is a directory, and empty unless `nonempty`.
fn check_directory(directory: &OwnedFd, place: &str, nonempty: bool) -> Result<()> {
    let failed = |e: Errno| Error::io(format!("the mountpoint {place}"), e.into());
    let found = rustix::fs::fstat(directory).map_err(failed)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Err(Error::new(ErrorKind::NotADirectory, format!("the mountpoint {place} is not a directory")));
    }
    if nonempty {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = rustix::fs::openat(directory, ".", flags, Mode::empty()).map_err(failed)?;
    for entry in Dir::new(listed).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !is_dots(entry.file_name().to_bytes()) {
            let name = entry.file_name().to_string_lossy();
            return Err(Error::new(ErrorKind::Busy, not_empty(directory, place, &printable::line(&name))));
        }
    }
    Ok(())
}

/// Returns the message for a mountpoint that is not empty, but has an entry `name`. Nobody means to
/// mount over a repository.
fn not_empty(directory: &OwnedFd, place: &str, name: &str) -> String {
    let is_directory = |name: &str| {
        let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
    };
    match recognize::directory(is_directory) {
        Some(Kind::Repository) => format!(
            "the mountpoint {place} is a repository: are the arguments swapped? The repository comes first, then the mountpoint"
        ),
        _ if place == "/" => "the mountpoint / is the root of this machine: name an empty directory".to_owned(),
        _ => format!(
            "the mountpoint {place} is not empty ({name}): name an empty directory, or hide its files with -o nonempty"
        ),
    }
}
