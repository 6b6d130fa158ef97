//! Virtual chunks in local files.
//!
//! An allowed prefix is a directory, and a file in it is opened below the directory's descriptor
//! with `openat2`: no `..`, no symbolic link and no other mount on the way. A path with a link or a
//! mount can still be read if its real location is below an allowed directory: the real location is
//! determined without opening the file for reading, and opened below that directory under the same
//! rules. Whatever is renamed or linked meanwhile, every byte comes from an allowed directory. The
//! directory itself is named by the user, may be reached by links, and is looked up for each read:
//! it may be mounted later, or replaced.

use std::fs::{File, Metadata};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::super::local::read_exactly;
use super::address::{Address, quoted};
use super::checksum::ObjectState;
use icechunkfs_base::beneath;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_base::shell;
use icechunkfs_format::format::chunk_payload::Checksum;

/// Opens a directory or file that the user allowed, to look up names in it.
fn open_root(root: &Path) -> std::io::Result<OwnedFd> {
    Ok(rustix::fs::open(root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens the file at `rest` below `root`.
fn open_below(root: &OwnedFd, rest: &Path) -> Result<File, Errno> {
    // The opening of a FIFO must not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    if rest.as_os_str().is_empty() {
        // The prefix names a file. It is opened through the descriptor, so that it is the file that
        // was found.
        return rustix::fs::open(proc_path(root), flags, Mode::empty()).map(File::from);
    }
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    beneath::open(root, rest, flags, resolve).map(File::from)
}

/// Returns the path of `descriptor` in `/proc`.
fn proc_path(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// Returns the real path of the file that is open as `descriptor`.
fn real_path(descriptor: &OwnedFd) -> std::io::Result<PathBuf> {
    std::fs::read_link(proc_path(descriptor))
}

/// Opens the file at `rest` below `root`, or below one of `others` if its real location is there.
fn open(root: &Path, rest: &Path, others: &[Arc<Path>]) -> Result<File> {
    let shown = root.join(rest);
    let failed = |error: std::io::Error| Error::io(shown.display(), error);
    let opened = open_root(root).map_err(failed)?;
    match open_below(&opened, rest) {
        // EAGAIN: a directory on the way was renamed meanwhile, and the kernel is not sure.
        Err(Errno::LOOP | Errno::XDEV | Errno::AGAIN) => {}
        other => return other.map_err(|errno| failed(errno.into())),
    }
    // O_PATH finds the location only: nothing is read, and no device is opened.
    let found = rustix::fs::openat(&opened, rest, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let real = real_path(&found.map_err(|errno| failed(errno.into()))?).map_err(failed)?;
    let allowed = std::iter::once(root).chain(others.iter().map(|other| &**other));
    let allowed =
        allowed.filter_map(|other| open_root(other).ok()).filter_map(|other| Some((real_path(&other).ok()?, other)));
    let mut inner: Vec<(PathBuf, OwnedFd)> = allowed.filter(|(place, _)| real.starts_with(place)).collect();
    inner.sort_by_key(|(place, _)| std::cmp::Reverse(place.as_os_str().len()));
    for (place, other) in inner {
        let Ok(rest) = real.strip_prefix(&place) else { continue };
        match open_below(&other, rest) {
            Err(Errno::LOOP | Errno::XDEV | Errno::AGAIN) => {}
            other => return other.map_err(|errno| failed(errno.into())),
        }
    }
    let directory = real.parent().unwrap_or(&real);
    let directory = printable::text(directory.as_os_str().as_bytes());
    let prefix = Address::directory(&directory).map_or_else(|_| directory.to_string(), |address| address.as_prefix());
    let shown = printable::text(shown.as_os_str().as_bytes());
    let real = printable::text(real.as_os_str().as_bytes());
    Err(Error::new(
        ErrorKind::VirtualNotAllowed,
        format!(
            "{} leads to {} by a symbolic link or another mount, and that is not allowed: add --allow-virtual {}",
            quoted(&shown),
            quoted(&real),
            shell::quote(&prefix),
        ),
    ))
}

/// Reads `length` bytes at `offset` of the file at `rest` below `root`, if it still matches
/// `checksum`. Waits for the disk.
pub(super) fn read(
    root: &Path,
    rest: &[String],
    others: &[Arc<Path>],
    offset: u64,
    length: u64,
    checksum: Option<&Checksum>,
) -> Result<Bytes> {
    let rest: PathBuf = rest.iter().collect();
    let file = open(root, &rest, others)?;
    let shown = root.join(&rest).display().to_string();
    let metadata = file.metadata().map_err(|e| Error::io(&shown, e))?;
    if !metadata.is_file() {
        return Err(Error::new(ErrorKind::VirtualNotAllowed, format!("{shown}: it is not a regular file")));
    }
    if let Some(checksum) = checksum {
        state_of(&metadata).check(checksum).context(|| shown.clone())?;
    }
    let bytes = read_exactly(&file, &shown, offset, length)?;
    if let Some(checksum) = checksum {
        // The file may have been written to meanwhile.
        let now = file.metadata().map_err(|e| Error::io(&shown, e))?;
        state_of(&now).check(checksum).context(|| shown.clone())?;
    }
    Ok(bytes)
}

/// Returns the state of a file in the form of the reference implementation's local store.
fn state_of(metadata: &Metadata) -> ObjectState {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let modified = modified.unwrap_or_default().as_micros();
    ObjectState {
        e_tag: Some(format!("{:x}-{modified:x}-{:x}", metadata.ino(), metadata.len())),
        last_modified: Some(second_after(metadata)),
    }
}

/// Returns the first whole second that is not before the time of the last change: one that is
/// compared with a reference must not be rounded down, or a change within that second is not
/// noticed.
fn second_after(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_add(i64::from(metadata.mtime_nsec() > 0))
}

/// Returns the address of the file that is open as `descriptor`, whose state is `metadata`, and the
/// checksum of references to it: the first second that is not before its time. Icechunk up to 2.3
/// reads no local file by an entity tag.
///
/// Errors: [`ErrorKind::Stale`] if it does not have a name any more, [`ErrorKind::InvalidInput`] if
/// no reference can have its name or its time.
pub fn target_of(descriptor: &OwnedFd, metadata: &Metadata) -> Result<(Address, Checksum)> {
    let path = real_path(descriptor).map_err(|e| Error::io("the path of a file", e))?;
    let shown = printable::text(path.as_os_str().as_bytes());
    let is_there = std::fs::symlink_metadata(&path)
        .is_ok_and(|there| (there.dev(), there.ino()) == (metadata.dev(), metadata.ino()));
    if !is_there {
        return Err(Error::new(
            ErrorKind::Stale,
            format!("{shown}: the file was moved or removed meanwhile: try again"),
        ));
    }
    let path = path
        .to_str()
        .ok_or_else(|| Error::invalid(format!("{shown}: no reference can have a name that is not UTF-8")))?;
    let address = Address::directory(path)?;
    if Address::object(&address.to_string()).ok().as_ref() != Some(&address) {
        return Err(Error::invalid(format!("{shown}: no reference can have this name")));
    }
    let seconds = u32::try_from(second_after(metadata).max(0));
    let seconds =
        seconds.map_err(|_| Error::invalid(format!("{shown}: no reference can have its time, which is after 2105")))?;
    Ok((address, Checksum::LastModified(seconds)))
}

/// Fails unless the file at `address` is there with at least `length` bytes, and can be the one
/// with `checksum`: of the same time, or also of an older one if `may_be_older`.
///
/// Errors: [`ErrorKind::Corrupt`] if it has changed; others if there is no such file.
pub fn check_file(address: &Address, checksum: Option<&Checksum>, length: u64, may_be_older: bool) -> Result<()> {
    let path = path_of(address.components());
    let metadata = std::fs::metadata(&path).map_err(|e| Error::io("it cannot be found", e))?;
    if !metadata.is_file() {
        return Err(Error::new(ErrorKind::VirtualNotAllowed, "it is not a regular file"));
    }
    if metadata.len() < length {
        return Err(Error::corrupt(format!("it has {} bytes, and chunks end at {length}", metadata.len())));
    }
    let Some(checksum) = checksum else { return Ok(()) };
    state_of(&metadata).check(checksum)?;
    match checksum {
        Checksum::LastModified(second) if !may_be_older && second_after(&metadata) < i64::from(*second) => {
            Err(Error::corrupt("it is older than the file that was imported"))
        }
        _ => Ok(()),
    }
}

/// Returns the absolute path with these `components`.
pub(super) fn path_of(components: &[String]) -> PathBuf {
    let mut path = PathBuf::from("/");
    path.extend(components.iter().map(|name| std::ffi::OsStr::from_bytes(name.as_bytes())));
    path
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    struct Place(tempfile::TempDir);

    impl Place {
        /// Creates `data/x`, `other/y` and `secret/z`, of ten bytes each, and links among them.
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for (folder, name) in [("data", "x"), ("other", "y"), ("secret", "z")] {
                std::fs::create_dir(dir.path().join(folder)).unwrap();
                std::fs::write(dir.path().join(folder).join(name), b"0123456789").unwrap();
            }
            let at = |name: &str| dir.path().join("data").join(name);
            symlink("x", at("same")).unwrap();
            symlink("../other/y", at("other")).unwrap();
            symlink(dir.path().join("secret/z"), at("secret")).unwrap();
            symlink("../secret", at("folder")).unwrap();
            symlink("/proc/self/environ", at("magic")).unwrap();
            symlink("loop", at("loop")).unwrap();
            Place(dir)
        }

        fn root(&self, name: &str) -> Arc<Path> {
            self.0.path().join(name).into()
        }

        fn read(&self, rest: &str, others: &[Arc<Path>]) -> Result<Bytes> {
            let rest: Vec<String> = rest.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            read(&self.root("data"), &rest, others, 2, 3, None)
        }
    }

    #[test]
    fn only_what_lies_below_an_allowed_directory_is_read() {
        let place = Place::new();
        let other = place.root("other");
        assert_eq!(place.read("x", &[]).unwrap(), "234");
        assert_eq!(place.read("same", &[]).unwrap(), "234", "the link stays within");
        assert_eq!(place.read("other", std::slice::from_ref(&other)).unwrap(), "234", "it leads where it may");
        for (rest, others) in
            [("other", vec![]), ("secret", vec![other.clone()]), ("folder/z", vec![other]), ("magic", vec![])]
        {
            let error = place.read(rest, &others).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::VirtualNotAllowed, "{rest}: {error}");
            assert!(error.to_string().contains("--allow-virtual 'file:///"), "{error}");
        }
        assert_eq!(place.read("loop", &[]).unwrap_err().errno(), libc::ELOOP);
        assert_eq!(place.read("nothing", &[]).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(
            place.read("../secret/z", &[]).unwrap_err().kind(),
            ErrorKind::VirtualNotAllowed,
            "never made, never followed"
        );
    }

    #[test]
    fn a_prefix_may_be_a_link_or_a_file() {
        let place = Place::new();
        symlink(place.0.path().join("data"), place.0.path().join("link")).unwrap();
        let named = |path: &str, rest: &[&str]| {
            let rest: Vec<String> = rest.iter().map(|&name| name.to_owned()).collect();
            read(&place.root(path), &rest, &[], 0, 4, None)
        };
        assert_eq!(named("link", &["x"]).unwrap(), "0123");
        assert_eq!(named("data/x", &[]).unwrap(), "0123");
        assert_eq!(named("data", &[]).unwrap_err().kind(), ErrorKind::VirtualNotAllowed, "a directory");
        assert_eq!(named("nothing", &["x"]).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn nothing_but_regular_files_is_read() {
        let place = Place::new();
        let fifo = place.0.path().join("data/fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(place.read("fifo", &[]).unwrap_err().kind(), ErrorKind::VirtualNotAllowed);
        assert_eq!(place.read("x/y", &[]).unwrap_err().kind(), ErrorKind::NotADirectory);
    }

    #[test]
    fn a_range_is_all_there_or_an_error() {
        let place = Place::new();
        let at = |offset, length| read(&place.root("data"), &["x".to_owned()], &[], offset, length, None);
        assert_eq!(at(0, 10).unwrap(), "0123456789");
        for (offset, length) in [(8, 3), (10, 1), (u64::MAX, 1), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            assert_eq!(at(offset, length).unwrap_err().kind(), ErrorKind::Corrupt, "{length} at {offset}");
        }
    }
}
