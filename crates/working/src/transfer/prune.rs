//! Finds and removes what a destination has and the snapshot does not.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use rustix::fs::{Dir, FileType};

use super::destination::{Destination, join, shown};
use super::kind_of;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::file_name::is_dots;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::Kind;
use icechunkfs_views::views::ViewTree;

/// File, or directory with everything below, that the snapshot does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extra {
    folder: String,
    name: OsString,
}

impl Extra {
    pub(super) fn path(&self) -> String {
        shown(&self.folder, self.name.as_bytes())
    }
}

/// Returns what `destination` has and directory `start` of `view` does not, except the export's
/// marker.
pub(super) async fn find(destination: &Arc<Destination>, view: &dyn ViewTree, start: Ino) -> Result<Vec<Extra>> {
    let mut extra = Vec::new();
    // Directories that both sides have and that have not been listed yet.
    let mut open = vec![(start, String::new())];
    while let Some((inode, folder)) = open.pop() {
        let place = Arc::clone(destination);
        let path = folder.clone();
        for (name, kind) in blocking(move || entries(&place, &path)).await? {
            let found = match name.to_str() {
                Some(text) if folder.is_empty() && destination.is_marker(text) => continue,
                Some(text) => view.lookup(inode, text).await.context(|| folder.clone())?,
                None => None,
            };
            match (found, kind) {
                (Some(found), FileType::Directory) if found.kind == Kind::Directory => {
                    let text = name.to_string_lossy();
                    open.push((found.inode, join(&folder, &text)));
                }
                (Some(found), FileType::RegularFile) if found.kind == Kind::File => {}
                _ => extra.push(Extra { folder: folder.clone(), name }),
            }
        }
    }
    Ok(extra)
}

fn entries(destination: &Destination, path: &str) -> Result<Vec<(OsString, FileType)>> {
    let Some(folder) = destination.find_folder(path)? else { return Ok(Vec::new()) };
    let failed = |e: rustix::io::Errno| Error::io(destination.path().join(path).display(), e.into());
    let mut found = Vec::new();
    for entry in Dir::read_from(&folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if is_dots(name) {
            continue;
        }
        let kind = kind_of(&folder, &entry).map_err(failed)?;
        found.push((OsString::from_vec(name.to_vec()), kind));
    }
    Ok(found)
}

pub(super) async fn remove(destination: &Arc<Destination>, extra: Vec<Extra>) -> Result<()> {
    let destination = Arc::clone(destination);
    blocking(move || {
        for Extra { folder, name } in extra {
            if let Some(opened) = destination.find_folder(&folder)? {
                destination.remove(&opened, &folder, &name)?;
            }
        }
        Ok(())
    })
    .await
}
