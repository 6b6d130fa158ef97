//! Directories of a cache.
//!
//! ```text
//! DIRECTORY/CACHEDIR.TAG        explains the directory to people and to backup programs
//! DIRECTORY/v1/used, lock       see `space`
//! DIRECTORY/v1/new/             entries that are being written
//! DIRECTORY/v1/REPOSITORY/XX/   entries
//! ```
//!
//! `v1` is the layout. A later layout would have a folder beside it; room is shared.
//!
//! A cache is trusted as a whole or refused ([`icechunkfs_base::trust`]). A cache that root owns is
//! read by other users and written by root alone. Everything is opened below the descriptors of its
//! directories, without following any link.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use tracing::warn;

use super::entry::{Name, Sum};
use icechunkfs_base::beneath;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::file_name::is_dots;
use icechunkfs_base::trust;

const TAG: &str = "CACHEDIR.TAG";
/// First line of a tag file, see <https://bford.info/cachedir/>. The rest is for people, and may be
/// reworded.
const TAG_SIGN: &str = "Signature: 8a477f597d28d172789f06886806bc55";
const TAG_TEXT: &str = "\
Signature: 8a477f597d28d172789f06886806bc55
# A cache of icechunkfs: bytes of repositories that lie elsewhere. It can be deleted at any time.
";
const MAX_TAG: u64 = 4096;
const LAYOUT: &str = "v1";
pub(super) const TEMPORARY: &str = "new";
/// Folders that entries are spread over.
const FOLDERS: u32 = 256;
/// Name resolution within the directory and without links.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Cache of one repository.
#[derive(Debug)]
pub(super) struct CacheDirectory {
    directory: PathBuf,
    /// Folder of the repository.
    scope: String,
    /// Opened again after a user has deleted them.
    directories: RwLock<Arc<Directories>>,
    is_writable: bool,
}

#[derive(Debug)]
pub(super) struct Directories {
    whole: OwnedFd,
    layout: OwnedFd,
    /// Permissions of the cache directory.
    mode: u32,
}

impl CacheDirectory {
    /// Opens `directory`, creating it if necessary, for the repository `scope`, which is a file
    /// name.
    ///
    /// Errors: [`ErrorKind::InvalidInput`] if the directory has other content,
    /// [`ErrorKind::PermissionDenied`] if another user owns it or may write to it,
    /// [`ErrorKind::Unsupported`] if its files have no extended attributes.
    pub(super) fn open(directory: &Path, scope: &str) -> Result<Self> {
        let shown = format!("the cache {}", directory.display());
        let failed = |e| Error::io(&shown, e);
        let directory = std::path::absolute(directory).map_err(failed)?;
        let (whole, _) = trust::create_directory(&directory).map_err(|e| e.context(&shown))?;
        let is_cache = is_cache(&whole);
        if !is_cache && !is_empty(&whole).map_err(|e| failed(e.into()))? {
            return Err(Error::invalid(format!("{shown}: it contains other files; name a new or an empty directory")));
        }
        let owner = rustix::fs::fstat(&whole).map_err(|e| failed(e.into()))?.st_uid;
        let is_own = owner == rustix::process::geteuid().as_raw();
        let opened = Directories::open(whole, scope, is_own).map_err(|e| e.context(&shown))?;
        let tried =
            if is_own { opened.check_writable() } else { Err(io::Error::from(io::ErrorKind::PermissionDenied)) };
        let is_writable = match tried {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return Err(Error::with_source(
                    ErrorKind::Unsupported,
                    format!(
                        "{shown}: its file system does not have extended attributes; ext4, xfs and btrfs have them"
                    ),
                    error,
                ));
            }
            // A cache that another user fills is meant to be read.
            Err(_) if is_cache && !is_own => false,
            Err(error) if is_cache => {
                warn!("{shown}: nothing is added to it: {error}");
                false
            }
            Err(error) => return Err(failed(error)),
        };
        let scope = scope.to_owned();
        let directories = RwLock::new(Arc::new(opened));
        Ok(CacheDirectory { directory, scope, directories, is_writable })
    }

    /// Creates directories that were deleted.
    pub(super) fn make(&self) -> io::Result<()> {
        let made =
            trust::create_directory(&self.directory).and_then(|(whole, _)| Directories::open(whole, &self.scope, true));
        *self.directories.write() = Arc::new(made.map_err(io::Error::other)?);
        Ok(())
    }

    pub(super) fn directories(&self) -> Arc<Directories> {
        Arc::clone(&self.directories.read())
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    pub(super) fn path_of(&self, name: &Name) -> PathBuf {
        [LAYOUT, &self.scope, &name.folder(), name.as_str()]
            .iter()
            .fold(self.directory.clone(), |path, part| path.join(part))
    }

    /// Opens the file of entry `name`. With [`ResolveFlags::CACHED`] only if that needs no waiting.
    pub(super) fn open_entry(&self, name: &Name, more: ResolveFlags) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let path = format!("{}/{}/{}", self.scope, name.folder(), name.as_str());
        beneath::open(&self.directories().layout, path, flags, WITHIN | more).map(File::from)
    }

    /// Opens the folder of entry `name`, creating it if necessary.
    pub(super) fn make_folder_of(&self, name: &Name) -> io::Result<OwnedFd> {
        let directories = self.directories();
        let scope = directories.make_directory(&directories.layout, &self.scope)?;
        Ok(directories.make_directory(&scope, &name.folder())?)
    }

    pub(super) fn folder_of(&self, name: &Name) -> io::Result<OwnedFd> {
        let path = format!("{}/{}", self.scope, name.folder());
        Ok(beneath::open(&self.directories().layout, path, DIRECTORY, WITHIN)?)
    }
}

impl Directories {
    /// Opens the directories of the cache `whole` for repository `scope`, creating missing ones if
    /// `make`. All must be trusted.
    fn open(whole: OwnedFd, scope: &str, make: bool) -> Result<Self> {
        let failed = |errno: Errno| Error::io(LAYOUT, errno.into());
        let stat = rustix::fs::fstat(&whole).map_err(failed)?;
        let mode = stat.st_mode & 0o777;
        if make && let Err(errno) = make_directory(&whole, LAYOUT, mode) {
            tracing::debug!("{LAYOUT}: {errno}");
        }
        let layout = rustix::fs::openat(&whole, LAYOUT, DIRECTORY, Mode::empty()).map_err(failed)?;
        let opened = Directories { whole, layout, mode };
        for name in [TEMPORARY, scope].iter().filter(|_| make) {
            if let Err(errno) = opened.make_directory(&opened.layout, name) {
                tracing::debug!("{name}: {errno}");
            }
        }
        opened.check(scope)?;
        if make
            && !is_cache(&opened.whole)
            && let Err(error) = opened.write_tag()
        {
            tracing::debug!("{TAG}: {error}");
        }
        Ok(opened)
    }

    /// Checks every directory on the paths of entries of `scope`. No other user can add one after
    /// that.
    fn check(&self, scope: &str) -> Result<()> {
        check_directory(&self.layout, ".")?;
        check_directory(&self.layout, TEMPORARY)?;
        if check_directory(&self.layout, scope)? {
            for n in 0..FOLDERS {
                check_directory(&self.layout, &format!("{scope}/{n:02x}"))?;
            }
        }
        Ok(())
    }

    /// Returns the cache directory, which has the folders of all layouts.
    pub(super) fn whole(&self) -> &OwnedFd {
        &self.whole
    }

    pub(super) fn layout(&self) -> &OwnedFd {
        &self.layout
    }

    /// Opens directory `name` in `parent`, creating it if necessary.
    fn make_directory(&self, parent: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
        make_directory(parent, name, self.mode)
    }

    pub(super) fn stage(&self) -> io::Result<Staged> {
        let folder = rustix::fs::openat(&self.layout, TEMPORARY, DIRECTORY, Mode::empty())?;
        let mut digits = [0; 8];
        rustix::rand::getrandom(&mut digits, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("{:016x}", u64::from_le_bytes(digits));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, name.as_str(), flags, Mode::from_raw_mode(0o600))?.into();
        Ok(Staged { file, folder, name })
    }

    /// Lets the users read `file` who may list the cache.
    pub(super) fn make_readable(&self, file: &File) -> io::Result<()> {
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(0o600 | (self.mode & 0o044)))?)
    }

    fn check_writable(&self) -> io::Result<()> {
        Sum::of(b"").write_to(&self.stage()?.file)
    }

    fn write_tag(&self) -> io::Result<()> {
        let mut staged = self.stage()?;
        staged.file.write_all(TAG_TEXT.as_bytes())?;
        self.make_readable(&staged.file)?;
        staged.rename(&self.whole, TAG).map(drop)
    }
}

/// File that is being written, removed on drop unless it was renamed.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) file: File,
    folder: OwnedFd,
    name: String,
}

impl Staged {
    /// Renames the file to `name` in `folder`, replacing an existing file.
    pub(super) fn rename(mut self, folder: &OwnedFd, name: &str) -> io::Result<File> {
        rustix::fs::renameat(&self.folder, self.name.as_str(), folder, name)?;
        self.name.clear();
        self.file.try_clone()
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // A file that stays is removed when room is needed.
            let _ = rustix::fs::unlinkat(&self.folder, self.name.as_str(), AtFlags::empty());
        }
    }
}

/// Returns true if a file with `metadata` is an entry that only a trusted user can have written.
pub(super) fn is_entry(metadata: &std::fs::Metadata) -> bool {
    metadata.is_file() && metadata.mode() & 0o022 == 0 && metadata.nlink() == 1 && trust::is_trusted(metadata.uid())
}

fn make_directory(parent: impl AsFd, name: &str, mode: u32) -> Result<OwnedFd, Errno> {
    let made = match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(errno),
    };
    let directory = rustix::fs::openat(&parent, name, DIRECTORY, Mode::empty())?;
    if made {
        // Users who may list the cache may list its directories.
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o700 | (mode & 0o055)))?;
    }
    Ok(directory)
}

/// Checks the directory at `path` below `layout`. Returns false if there is none.
fn check_directory(layout: &OwnedFd, path: &str) -> Result<bool> {
    let shown = Path::new(LAYOUT).join(path);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match beneath::open(layout, path, flags, WITHIN) {
        Ok(directory) => trust::check(&directory).map(|_| true).map_err(|why| trust::distrust_error(&shown, &why)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(Error::io(shown.display(), errno.into())),
    }
}

fn is_cache(directory: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(tag) = rustix::fs::openat(directory, TAG, flags, Mode::empty()) else { return false };
    let mut text = String::new();
    trust::check_file(&tag).is_ok()
        && File::from(tag).take(MAX_TAG).read_to_string(&mut text).is_ok()
        && text.starts_with(TAG_SIGN)
        && text.contains("icechunkfs")
}

fn is_empty(directory: &OwnedFd) -> Result<bool, Errno> {
    for entry in Dir::read_from(directory)? {
        if !is_dots(entry?.file_name().to_bytes()) {
            return Ok(false);
        }
    }
    Ok(true)
}
