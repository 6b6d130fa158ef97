//! Opening files below a directory, whatever links and `..` a path has, and giving names to open
//! files.
//!
//! Other users may put a symbolic link in the place of any name at any time, so a path is never
//! checked first and opened then: the kernel resolves it within the directory (`openat2`, Linux
//! 5.6). Older kernels, such as 4.18 of RHEL 8, and containers whose system call filter does not
//! know the call, get the same by one `openat` for each component, none of which follows a link:
//! links are read, and their targets are resolved from the directory in which they are. `..`
//! returns to the descriptor from which the walk came, not to the parent that a directory may have
//! got meanwhile.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::LazyLock;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, linkat, openat, openat2, readlinkat};
use rustix::io::Errno;

use crate::trust::MAX_LINKS;
use crate::trust::mounts::mount_id;

/// True if the kernel has `openat2`. A filter of a container may refuse it with EPERM.
static HAS_OPENAT2: LazyLock<bool> = LazyLock::new(|| {
    let tried = openat2(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::empty());
    !matches!(tried, Err(Errno::NOSYS | Errno::PERM))
});

/// Opens `path` from `directory` as `openat2` does with `resolve`. With [`ResolveFlags::CACHED`],
/// fails with `EAGAIN` where that would have to wait, and always without `openat2`.
pub fn open(
    directory: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let directory = directory.as_fd();
    let path = path.as_ref();
    if *HAS_OPENAT2 {
        match openat2(directory, path, flags, Mode::empty(), resolve) {
            // Something was renamed or mounted anywhere on the machine while the kernel followed a
            // `..`. The steps do not depend on that.
            Err(Errno::AGAIN) if !resolve.contains(ResolveFlags::CACHED) => {}
            opened => return opened,
        }
    }
    open_by_steps(directory, path, flags, resolve)
}

/// Gives `file`, which may have none, the name `name` in `folder`. Fails if that exists.
pub fn link(file: impl AsFd, folder: impl AsFd, name: &str) -> Result<(), Errno> {
    let file = file.as_fd();
    let folder = folder.as_fd();
    // Older kernels let only privileged processes link a descriptor directly; its name in `/proc`
    // always works.
    match linkat(file, "", folder, name, AtFlags::EMPTY_PATH) {
        Err(Errno::NOENT | Errno::PERM | Errno::INVAL) => {
            let place = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, place, folder, name, AtFlags::SYMLINK_FOLLOW)
        }
        linked => linked,
    }
}

/// Opens `path` as [`open`] does, without `openat2`.
fn open_by_steps(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    if resolve.contains(ResolveFlags::CACHED) {
        return Err(Errno::AGAIN);
    }
    if !resolve.contains(ResolveFlags::BENEATH) {
        // Such a path is that of a user who is trusted. Its links, also those of /proc, are
        // followed.
        return openat(directory, path, flags, Mode::empty());
    }
    let mount = if resolve.contains(ResolveFlags::NO_XDEV) { Some(mount_id(directory)?) } else { None };
    let found = Walk { directory, above: Vec::new(), mount, no_links: resolve.contains(ResolveFlags::NO_SYMLINKS) }
        .run(path.as_os_str().as_bytes(), flags)?;
    Ok(found)
}

/// Resolution of a path, name by name.
struct Walk<'a> {
    /// Directory that is never left upwards.
    directory: BorrowedFd<'a>,
    /// Directories from there to the current one.
    above: Vec<OwnedFd>,
    /// Mount that is not left; none if it may be.
    mount: Option<u64>,
    no_links: bool,
}

impl Walk<'_> {
    fn run(mut self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        // The names that are left, the next one last.
        let mut left = names(path)?;
        let mut links = 0;
        while let Some(name) = left.pop() {
            match name.as_slice() {
                b"." => continue,
                b".." => {
                    self.above.pop().ok_or(Errno::XDEV)?;
                    continue;
                }
                _ => {}
            }
            let is_last = left.is_empty();
            let found = openat(
                self.current(),
                OsStr::from_bytes(&name),
                OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            match FileType::from_raw_mode(fstat(&found)?.st_mode) {
                FileType::Symlink if is_last && flags.contains(OFlags::PATH | OFlags::NOFOLLOW) => {
                    return if flags.contains(OFlags::DIRECTORY) { Err(Errno::NOTDIR) } else { self.checked(found) };
                }
                FileType::Symlink => {
                    links += 1;
                    if self.no_links || links > MAX_LINKS || (is_last && flags.contains(OFlags::NOFOLLOW)) {
                        return Err(Errno::LOOP);
                    }
                    let target = readlinkat(&found, "", Vec::new())?;
                    left.extend(names(target.as_bytes())?);
                }
                // The name may mean another file by now, but no link is followed.
                _ if is_last => {
                    let name = OsStr::from_bytes(&name);
                    let opened = openat(self.current(), name, flags | OFlags::NOFOLLOW, Mode::empty())?;
                    return self.checked(opened);
                }
                FileType::Directory => {
                    let found = self.checked(found)?;
                    self.above.push(found);
                }
                _ => return Err(Errno::NOTDIR),
            }
        }
        let opened = openat(self.current(), ".", flags, Mode::empty())?;
        self.checked(opened)
    }

    fn current(&self) -> BorrowedFd<'_> {
        self.above.last().map_or(self.directory, AsFd::as_fd)
    }

    fn checked(&self, found: OwnedFd) -> Result<OwnedFd, Errno> {
        match self.mount {
            Some(mount) if mount_id(found.as_fd())? != mount => Err(Errno::XDEV),
            _ => Ok(found),
        }
    }
}

/// Returns the names of a relative path, the first one last. A path that ends with a slash means a
/// directory.
fn names(path: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    match path {
        [] => return Err(Errno::NOENT),
        [b'/', ..] => return Err(Errno::XDEV),
        _ => {}
    }
    let names = path.split(|&b| b == b'/').rev().enumerate();
    Ok(names
        .filter(|(at, name)| *at == 0 || !name.is_empty())
        .map(|(_, name)| if name.is_empty() { b".".to_vec() } else { name.to_vec() })
        .collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

    /// A tree with links of all kinds: to files, directories, upwards, out of it, and to each
    /// other.
    fn tree() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir_all(root.join("a/b/c")).unwrap();
        std::fs::write(directory.path().join("outside"), "outside").unwrap();
        std::fs::write(root.join("file"), "file").unwrap();
        std::fs::write(root.join("a/b/deep"), "deep").unwrap();
        for (target, name) in [
            ("file", "to-file"),
            ("a/b", "to-directory"),
            ("../../file", "a/b/upwards"),
            ("../../../outside", "a/b/out"),
            ("/etc/passwd", "absolute"),
            ("loop", "loop"),
            ("missing", "dangling"),
            ("a/b/", "with-slash"),
            ("to-directory/../../to-file", "through-links"),
            ("..", "parent"),
            (".", "itself"),
            ("/proc/self/root", "magic"),
        ] {
            symlink(target, root.join(name)).unwrap();
        }
        let long = (0..45).fold("file".to_owned(), |target, n| {
            symlink(&target, root.join(format!("chain{n}"))).unwrap();
            format!("chain{n}")
        });
        assert_eq!(long, "chain44");
        directory
    }

    /// Returns what was opened: its inode and whether it is a path only; or the error.
    fn outcome(opened: Result<OwnedFd, Errno>) -> Result<(u64, bool), Errno> {
        opened.map(|found| {
            let is_path = rustix::fs::fcntl_getfl(&found).unwrap().contains(OFlags::PATH);
            (fstat(&found).unwrap().st_ino, is_path)
        })
    }

    /// Opens as the kernel does when nothing is renamed or mounted meanwhile, as other tests do all
    /// the time.
    fn by_the_kernel(root: &std::fs::File, path: &str, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
        loop {
            match openat2(root, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN) => {}
                opened => return opened,
            }
        }
    }

    #[test]
    fn paths_upwards_are_found_while_others_rename_files() {
        let directory = tree();
        let root = std::fs::File::open(directory.path().join("root")).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let elsewhere = tempfile::tempdir().unwrap();
                let [one, other] = ["one", "other"].map(|name| elsewhere.path().join(name));
                std::fs::create_dir(&one).unwrap();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::fs::rename(&one, &other).unwrap();
                    std::fs::rename(&other, &one).unwrap();
                }
            });
            let mut disturbed = 0;
            let begin = std::time::Instant::now();
            while disturbed < 100 && begin.elapsed().as_secs() < 20 {
                let path = "a/b/../b/../b/upwards";
                let kernel = openat2(&root, path, OFlags::RDONLY, Mode::empty(), BENEATH);
                disturbed += usize::from(kernel.is_err());
                open(&root, path, OFlags::RDONLY, BENEATH).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(disturbed > 0, "the kernel was never disturbed, so that nothing was tested");
        });
    }

    #[test]
    fn steps_find_what_the_kernel_finds() {
        assert!(*HAS_OPENAT2, "this test compares with openat2");
        let directory = tree();
        let root = std::fs::File::open(directory.path().join("root")).unwrap();
        let parts = [
            "a",
            "b",
            "c",
            "deep",
            "file",
            ".",
            "..",
            "",
            "to-file",
            "to-directory",
            "upwards",
            "out",
            "absolute",
            "loop",
            "dangling",
            "with-slash",
            "through-links",
            "parent",
            "itself",
            "magic",
            "missing",
            "chain38",
            "chain39",
            "chain44",
        ];
        let mut paths: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        for _ in 0..2 {
            let longer = paths.iter().flat_map(|path| parts.iter().map(move |part| format!("{path}/{part}")));
            paths = paths.iter().cloned().chain(longer).collect();
            paths.sort();
            paths.dedup();
        }
        // Of the 14,000 paths of three parts, every third.
        let mut at = 0;
        paths.retain(|path| {
            at += usize::from(path.matches('/').count() > 1);
            path.matches('/').count() < 2 || at.is_multiple_of(3)
        });
        let plain = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut found = 0;
        for path in &paths {
            for flags in [
                plain,
                plain | OFlags::NOFOLLOW,
                plain | OFlags::DIRECTORY,
                plain | OFlags::PATH,
                plain | OFlags::PATH | OFlags::NOFOLLOW,
                plain | OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW,
            ] {
                for resolve in [BENEATH, BENEATH | ResolveFlags::NO_SYMLINKS, BENEATH | ResolveFlags::NO_XDEV] {
                    let steps = outcome(open_by_steps(root.as_fd(), Path::new(path), flags, resolve));
                    let mut kernel = outcome(by_the_kernel(&root, path, flags, resolve));
                    // When another process renames a file, the kernel begins again, and counts the
                    // links of both attempts.
                    for _ in 0..1000 {
                        if kernel == steps || kernel != Err(Errno::LOOP) {
                            break;
                        }
                        kernel = outcome(by_the_kernel(&root, path, flags, resolve));
                    }
                    assert_eq!(steps, kernel, "{path} {flags:?} {resolve:?}");
                    found += usize::from(kernel.is_ok());
                }
            }
        }
        assert!(found > 1_000, "{found} of {} paths were found", paths.len());
        let inside = |path: &str| outcome(open_by_steps(root.as_fd(), Path::new(path), plain, BENEATH));
        assert_eq!(
            inside("through-links").unwrap().0,
            std::fs::metadata(directory.path().join("root/file")).unwrap().ino()
        );
        assert_eq!(inside("a/b/out"), Err(Errno::XDEV));
    }

    #[test]
    fn another_mount_is_not_entered() {
        let proc = std::fs::File::open("/").unwrap();
        let entered =
            |resolve| outcome(open_by_steps(proc.as_fd(), Path::new("proc/version"), OFlags::RDONLY, resolve));
        assert!(entered(BENEATH).is_ok());
        assert_eq!(entered(BENEATH | ResolveFlags::NO_XDEV), Err(Errno::XDEV));
    }

    #[test]
    fn what_needs_waiting_is_not_opened_from_caches() {
        let directory = tree();
        let root = std::fs::File::open(directory.path()).unwrap();
        let opened = open_by_steps(root.as_fd(), Path::new("outside"), OFlags::RDONLY, BENEATH | ResolveFlags::CACHED);
        assert_eq!(opened.map(drop), Err(Errno::AGAIN));
    }
}
