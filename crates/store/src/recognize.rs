//! Recognizes what is at a local path where something else was expected, for error messages.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, ResolveFlags};

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::{beneath, trust};
use icechunkfs_format::format::envelope::MAGIC;

/// Kind of data that users keep beside repositories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An Icechunk repository.
    Repository,
    /// A plain Zarr hierarchy of version 3.
    Zarr3,
    /// A plain Zarr hierarchy of version 2.
    Zarr2,
    /// A NetCDF file of a classic format.
    NetCdf,
    /// An HDF5 file, which NetCDF-4 files are, too.
    Hdf5,
    /// A GRIB file.
    Grib,
    /// A TIFF file, which GeoTIFF files are, too.
    Tiff,
}

/// Number of the first bytes that are looked at.
const FIRST: usize = 8;

/// First bytes of an HDF5 file.
const HDF5: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// First bytes of files, by the specifications of their formats.
const BEGINNINGS: [(&[u8], Kind); 9] = [
    (b"CDF\x01", Kind::NetCdf),
    (b"CDF\x02", Kind::NetCdf),
    (b"CDF\x05", Kind::NetCdf),
    (HDF5, Kind::Hdf5),
    (b"GRIB", Kind::Grib),
    (b"II*\0", Kind::Tiff),
    (b"MM\0*", Kind::Tiff),
    (b"II+\0", Kind::Tiff),
    (b"MM\0+", Kind::Tiff),
];

/// Returns what is at `path`, if it is recognized. Waits for no pipe and no device.
pub fn at(path: &Path) -> Option<Kind> {
    let metadata = std::fs::metadata(path).ok()?;
    if metadata.is_dir() {
        return directory(|name| Some(std::fs::metadata(path.join(name)).ok()?.is_dir()));
    }
    if !metadata.is_file() {
        return None;
    }
    let file = open_regular(path)?;
    if has_hdf5_behind(&file) {
        return Some(Kind::Hdf5);
    }
    let start = first_bytes(file)?;
    BEGINNINGS.iter().find(|(bytes, _)| start.starts_with(bytes)).map(|(_, kind)| *kind)
}

/// Returns true if an HDF5 file begins behind bytes of a user, as in files of MATLAB (HDF5
/// specification, "Superblock").
fn has_hdf5_behind(file: &File) -> bool {
    /// Positions that are looked at: the user has 512 bytes or a multiple of that.
    const POSITIONS: [u64; 4] = [512, 1024, 2048, 4096];
    let mut bytes = [0; HDF5.len()];
    POSITIONS.iter().any(|position| file.read_exact_at(&mut bytes, *position).is_ok() && bytes == *HDF5)
}

/// Returns what a directory is in which `is_directory` tells of a name whether it is one; none for
/// a name that is not there.
pub fn directory(is_directory: impl Fn(&str) -> Option<bool>) -> Option<Kind> {
    let has_file = |name: &str| is_directory(name) == Some(false);
    let has_directory = |name: &str| is_directory(name) == Some(true);
    if has_file("zarr.json") {
        Some(Kind::Zarr3)
    } else if has_file("repo") || (has_directory("refs") && has_directory("snapshots")) {
        Some(Kind::Repository)
    } else {
        [".zgroup", ".zarray", ".zmetadata"].into_iter().any(has_file).then_some(Kind::Zarr2)
    }
}

/// Returns the repository whose directory is `place`, a path without links, or above it; none if
/// there is none of a trusted owner. Directories of other file systems are not looked into: a name
/// there may be what an automounter waits for.
pub fn repository_around(place: &Path) -> Option<PathBuf> {
    let device = |path: &Path| std::fs::symlink_metadata(path).ok().map(|found| found.dev());
    let of_place = place.ancestors().find_map(device)?;
    let here = |outer: &&Path| device(outer) == Some(of_place);
    place.ancestors().filter(here).find(|outer| is_repository(outer)).map(Path::to_owned)
}

/// Returns the repository `repo` in `directory`, a usual name and easily forgotten; none if there
/// is none of a trusted owner. Nothing of another user is opened or waited for.
pub fn repository_in(directory: &Path) -> Option<PathBuf> {
    let (opened, shown) = trust::open_directory(&directory.join("repo"), &trust::is_trusted).ok()?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let open =
        |name: &str| beneath::open(&opened, name, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, resolve).ok();
    let begins_so = |file: OwnedFd| regular(file.into()).is_some_and(has_magic);
    // Branch `main` of version 1 always exists.
    (open("repo").is_some_and(begins_so) || open("refs/branch.main/ref.json").is_some()).then_some(shown)
}

/// Fails with `kind` if `place`, a path without links that `shown` describes, is inside the
/// directory of a repository, which takes the content of its folders for its own.
pub fn refuse_inside(shown: impl Display, place: &Path, kind: ErrorKind) -> Result<()> {
    match place.parent().and_then(repository_around) {
        None => Ok(()),
        Some(outer) => {
            let outer = outer.display();
            Err(Error::new(kind, format!("{shown} is inside the repository {outer}: name another directory")))
        }
    }
}

/// Returns true if the directory `path` is that of a repository, which may be damaged. Names alone
/// prove nothing: other programs have files `repo` and directories `snapshots`.
fn is_repository(path: &Path) -> bool {
    let of_snapshots = std::fs::symlink_metadata(path.join("snapshots"));
    if !of_snapshots.is_ok_and(|found| found.is_dir() && trust::is_trusted(found.uid())) {
        return false;
    }
    let repo = path.join("repo");
    let begins_so = || open_regular(&repo).is_some_and(has_magic);
    let has_folders = || ["transactions", "overwritten"].iter().all(|folder| path.join(folder).is_dir());
    // Branch `main` of version 1 always exists.
    begins_so() || path.join("refs/branch.main/ref.json").is_file() || (repo.is_file() && has_folders())
}

fn open_regular(path: &Path) -> Option<File> {
    regular(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?)
}

fn regular(file: File) -> Option<File> {
    file.metadata().ok()?.is_file().then_some(file)
}

/// Returns true if a file begins as those of a repository do.
fn has_magic(file: File) -> bool {
    first_bytes(file).is_some_and(|start| MAGIC.starts_with(&start) && start.len() == FIRST)
}

fn first_bytes(file: File) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    file.take(FIRST as u64).read_to_end(&mut start).ok()?;
    Some(start)
}

impl Kind {
    /// Returns what it is, with an article.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Repository => "a repository",
            Kind::Zarr3 => "a plain Zarr tree of version 3",
            Kind::Zarr2 => "a plain Zarr tree of version 2",
            Kind::NetCdf => "a NetCDF file",
            Kind::Hdf5 => "a NetCDF-4 or HDF5 file",
            Kind::Grib => "a GRIB file",
            Kind::Tiff => "a TIFF file",
        }
    }

    /// Returns the next command for what is not a repository, at `path`, where one was expected.
    pub fn instead_of_repository(self, path: &str) -> String {
        let next = match self {
            Kind::Repository => return format!("is {}", self.name()),
            Kind::Zarr3 => format!("`icechunkfs import {path} REPO` makes a repository of it"),
            Kind::Zarr2 => {
                "write it as version 3 first, with zarr-python or xarray, into a mount of a repository".to_owned()
            }
            Kind::NetCdf | Kind::Hdf5 => format!("`icechunkfs import {path} REPO` makes a group of a repository of it"),
            Kind::Grib | Kind::Tiff => "open it with xarray, and write it into a mount of a repository".to_owned(),
        };
        format!("is {}, not a repository: {next}", self.name())
    }

    /// Returns true if it is one file.
    pub fn is_file(self) -> bool {
        matches!(self, Kind::NetCdf | Kind::Hdf5 | Kind::Grib | Kind::Tiff)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_repository_is_not_known_by_names_alone() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let around = || repository_around(&at("a/b/c"));
        std::fs::create_dir_all(at("a/snapshots")).unwrap();
        std::fs::write(at("a/repo"), "a program").unwrap();
        std::fs::create_dir_all(at("a/refs")).unwrap();
        std::fs::write(at("a/refs/main"), "of another cache").unwrap();
        assert_eq!(around(), None);
        std::fs::write(at("a/repo"), [MAGIC.as_slice(), b"..."].concat()).unwrap();
        assert_eq!(around(), Some(at("a")));
        // A document beside it does not take the protection away, nor does damage.
        std::fs::write(at("a/zarr.json"), "{}").unwrap();
        assert_eq!(around(), Some(at("a")));
        std::fs::write(at("a/repo"), "").unwrap();
        assert_eq!(around(), None);
        ["a/transactions", "a/overwritten"].iter().for_each(|name| std::fs::create_dir(at(name)).unwrap());
        assert_eq!(around(), Some(at("a")));
        std::fs::remove_file(at("a/repo")).unwrap();
        std::fs::create_dir_all(at("a/refs/branch.main")).unwrap();
        std::fs::write(at("a/refs/branch.main/ref.json"), "{}").unwrap();
        assert_eq!(around(), Some(at("a")));
    }

    #[test]
    fn files_and_trees_are_recognized() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| super::at(&place.path().join(name));
        for (name, bytes, kind) in [
            ("a.nc", b"CDF\x02rest".as_slice(), Some(Kind::NetCdf)),
            ("b.nc", b"\x89HDF\r\n\x1a\nrest", Some(Kind::Hdf5)),
            ("c.grib", b"GRIB", Some(Kind::Grib)),
            ("d.tif", b"II*\0", Some(Kind::Tiff)),
            ("e", b"", None),
            ("f", b"CD", None),
        ] {
            std::fs::write(place.path().join(name), bytes).unwrap();
            assert_eq!(at(name), kind, "{name}");
        }
        for (folder, name, kind) in
            [("3", "zarr.json", Kind::Zarr3), ("2", ".zgroup", Kind::Zarr2), ("r", "repo", Kind::Repository)]
        {
            std::fs::create_dir(place.path().join(folder)).unwrap();
            std::fs::write(place.path().join(folder).join(name), "{}").unwrap();
            assert_eq!(at(folder), Some(kind));
        }
        assert_eq!(at("nothing"), None);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            place.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        assert_eq!(at("pipe"), None);
    }
}
