//! The directories of a cache.
//!
//! ```text
//! DIRECTORY/CACHEDIR.TAG        what it is, for people and for programs that make backups
//! DIRECTORY/v1/used, lock       see `space`
//! DIRECTORY/v1/new/             entries that are being written
//! DIRECTORY/v1/REPOSITORY/XX/   entries
//! ```
//!
//! `v1` is the layout. A later one would have a folder beside it; room is shared.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tracing::warn;

use super::entry::{Name, Sum};
use crate::error::{Error, ErrorKind, Result};

const TAG: &str = "CACHEDIR.TAG";
/// What such a file begins with, see <https://bford.info/cachedir/>. The rest is for people, and may be worded anew.
const TAG_SIGN: &str = "Signature: 8a477f597d28d172789f06886806bc55";
const TAG_TEXT: &str = "\
Signature: 8a477f597d28d172789f06886806bc55
# A cache of icechunkfs: bytes of repositories that lie elsewhere. It can be deleted at any time.
";
const LAYOUT: &str = "v1";
const TEMPORARY: &str = "new";

/// The directories.
#[derive(Debug)]
pub(super) struct Place {
    directory: PathBuf,
    /// That of this layout.
    root: PathBuf,
    /// That of the repository.
    entries: PathBuf,
    is_writable: bool,
    /// Permissions of entries: whoever may look into the directory may read them.
    mode: u32,
}

impl Place {
    /// Opens `directory`, made if need be, for the repository `scope`, which is a file's name.
    ///
    /// Errors: [`ErrorKind::InvalidInput`] if there are other things in it, [`ErrorKind::Unsupported`] if its files have no
    /// extended attributes.
    pub(super) fn open(directory: &Path, scope: &str) -> Result<Self> {
        let shown = format!("the cache {}", directory.display());
        let failed = |e| Error::io(&shown, e);
        let directory = std::path::absolute(directory).map_err(failed)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
        let is_cache = std::fs::read_to_string(directory.join(TAG))
            .is_ok_and(|text| text.starts_with(TAG_SIGN) && text.contains("icechunkfs"));
        if !is_cache && std::fs::read_dir(&directory).map_err(failed)?.next().is_some() {
            return Err(Error::invalid(format!(
                "{shown}: there are other things in it; name a new or an empty directory"
            )));
        }
        let mode = std::fs::metadata(&directory).map_err(failed)?.permissions().mode();
        let root = directory.join(LAYOUT);
        let entries = root.join(scope);
        // Who may enter the directory may read what is in it.
        let mut place = Place { directory, root, entries, is_writable: true, mode: 0o600 | (mode & 0o044) };
        match place.make().and_then(|()| place.try_out()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return Err(Error::with_source(
                    ErrorKind::Unsupported,
                    format!("{shown}: its file system has no extended attributes; ext4, xfs and btrfs have"),
                    error,
                ));
            }
            Err(error) if is_cache => {
                warn!("{shown}: nothing is added to it: {error}");
                place.is_writable = false;
            }
            Err(error) => return Err(failed(error)),
        }
        Ok(place)
    }

    /// Makes what is not there yet.
    pub(super) fn make(&self) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        // Others who share the directory write there too, if it lets them.
        let shared = std::fs::metadata(&self.directory)?.permissions();
        for made in [&self.root, &self.temporary(), &self.entries] {
            match std::fs::create_dir(made) {
                Ok(()) => std::fs::set_permissions(made, shared.clone())?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        let tag = self.directory.join(TAG);
        if !tag.exists() {
            let file = tempfile::NamedTempFile::new_in(self.temporary())?;
            std::fs::write(file.path(), TAG_TEXT)?;
            self.let_others_read(file.as_file())?;
            file.persist(tag).map_err(|error| error.error)?;
        }
        Ok(())
    }

    /// Whether entries can be made.
    fn try_out(&self) -> io::Result<()> {
        Sum::of(b"").write_to(&tempfile::tempfile_in(self.temporary())?)
    }

    /// The whole cache.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// What this layout has.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Where entries are written.
    pub(super) fn temporary(&self) -> PathBuf {
        self.root.join(TEMPORARY)
    }

    /// Whether entries can be added.
    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Where entry `name` is, if it is there.
    pub(super) fn path_of(&self, name: &Name) -> PathBuf {
        let mut path = self.entries.join(name.folder());
        path.push(name.as_str());
        path
    }

    /// Makes the folder of an entry at `path`.
    pub(super) fn make_folder_of(&self, path: &Path) -> io::Result<()> {
        let Some(folder) = path.parent() else { return Ok(()) };
        match std::fs::create_dir(folder) {
            Ok(()) => std::fs::set_permissions(folder, std::fs::metadata(&self.directory)?.permissions()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Lets those read `file` who may enter the directory.
    pub(super) fn let_others_read(&self, file: &File) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(self.mode))
    }
}
