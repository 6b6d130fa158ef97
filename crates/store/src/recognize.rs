//! Recognizes what is at a local path where something else was expected, for error messages.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

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

/// First bytes of files, by the specifications of their formats.
const BEGINNINGS: [(&[u8], Kind); 9] = [
    (b"CDF\x01", Kind::NetCdf),
    (b"CDF\x02", Kind::NetCdf),
    (b"CDF\x05", Kind::NetCdf),
    (b"\x89HDF\r\n\x1a\n", Kind::Hdf5),
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
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let start = first_bytes(file)?;
    BEGINNINGS.iter().find(|(bytes, _)| start.starts_with(bytes)).map(|(_, kind)| *kind)
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

/// Returns true if the directory `path` is that of a repository. A directory with a file `repo`
/// alone may be anything, and a Zarr tree may have groups of these names.
pub fn is_repository(path: &Path) -> bool {
    let has_folders = path.join("snapshots").is_dir() && (path.join("repo").is_file() || path.join("refs").is_dir());
    has_folders && !path.join("zarr.json").is_file()
}

fn first_bytes(file: File) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    file.take(8).read_to_end(&mut start).ok()?;
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
            Kind::NetCdf | Kind::Hdf5 | Kind::Grib | Kind::Tiff => {
                "open it with xarray, and write it into a mount of a repository".to_owned()
            }
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
