//! Removal of local objects: by name, below a descriptor of the repository's directory, like opening.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::replace::open_beneath;
use crate::error::{Error, Result};

/// Removes the objects `keys` below `root`, and flushes their directories. A missing object is no error.
pub(super) fn remove(root: &OwnedFd, keys: &[String]) -> Result<()> {
    let mut by_folder: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for key in keys {
        let (folder, name) = key.rsplit_once('/').unwrap_or((".", key));
        by_folder.entry(folder).or_default().push(name);
    }
    for (folder, names) in by_folder {
        let opened = match open_beneath(root, folder) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(Error::io(folder, errno.into())),
        };
        for name in names {
            match rustix::fs::unlinkat(&opened, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(Error::io(format!("{folder}/{name}"), errno.into())),
            }
        }
        rustix::fs::fsync(&opened).map_err(|e| Error::io(folder, e.into()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_named_goes_and_nothing_else() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("x"), "").unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("chunks")).unwrap();
        for name in ["repo", "chunks/A", "chunks/B"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink(outside.path(), directory.path().join("away")).unwrap();
        let root = OwnedFd::from(std::fs::File::open(directory.path()).unwrap());
        let keys = |keys: &[&str]| keys.iter().map(|key| key.to_string()).collect::<Vec<_>>();
        remove(&root, &keys(&["chunks/A", "chunks/C", "manifests/D", "repo"])).unwrap();
        remove(&root, &keys(&["away/x"])).unwrap_err();
        remove(&root, &keys(&["chunks/../../x"])).unwrap_err();
        assert!(outside.path().join("x").exists() && directory.path().join("chunks/B").exists());
        assert!(!directory.path().join("chunks/A").exists() && !directory.path().join("repo").exists());
    }
}
