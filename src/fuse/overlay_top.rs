//! Requests on the root of a writable mount that shows its tree as the one entry of the root
//! ([`super::root_map`]).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::FileAttr;

use super::file_attr::{FOREVER, time};
use super::overlay_faces::WorkingFaces;
use super::root_map::TOP;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::file_name::is_dots;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_working::overlay::attributes::Attributes;
use icechunkfs_working::overlay::listing::Listed;
use icechunkfs_working::scratch::record::{Meta, Name};

/// Offset in a listing after the dots, and after the entry.
const DOTS: u64 = 2;
const ENTRY: u64 = 3;

impl WorkingFaces {
    /// Returns the error for a change of the mount's root other than that of its entry.
    pub(super) fn top_error(&self) -> Error {
        let name = self.root.entry().map_or("", |entry| &entry.name);
        Error::new(ErrorKind::NotPermitted, format!("the root of this mount has only `{name}`: write below it"))
    }

    /// Returns the attributes of the mount's root.
    pub(super) fn top(&self) -> Attributes {
        let at = self.root.entry().map_or_else(icechunkfs_working::scratch::record::Time::now, |entry| {
            time(fuser::TimeOrNow::SpecificTime(entry.time))
        });
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let meta = Meta { mode: 0o755, uid, gid, atime: at, mtime: at, ctime: at };
        Attributes { number: TOP, kind: libc::S_IFDIR, size: 0, blocks: 0, links: 1, rdev: 0, meta }
    }

    /// Returns the attributes of the root of the tree.
    async fn tree_root(&self) -> Result<Attributes> {
        self.working.upper().attributes(self.shown_root()).await
    }

    fn shown_root(&self) -> Ino {
        self.root.inner_root()
    }

    pub(super) async fn lookup_entry(&self, name: &Name) -> Result<(Duration, FileAttr)> {
        match self.root.entry().filter(|entry| entry.is_shown() && *name.0 == *entry.name.as_bytes()) {
            Some(_) => Ok(self.timed(&self.tree_root().await?)),
            None => Ok(self.absent()),
        }
    }

    /// Lists the dots and the entry after `offset`.
    pub(super) async fn list_top(&self, offset: u64, sink: &mut (impl FnMut(Listed<'_>) -> bool + Send)) -> Result<()> {
        for (at, name) in [(1, "."), (DOTS, "..")] {
            if at > offset && !sink(Listed::new(name.as_bytes(), self.top(), at)) {
                return Ok(());
            }
        }
        if let Some(entry) = self.root.entry().filter(|entry| offset < ENTRY && entry.is_shown()) {
            let attributes = self.tree_root().await?;
            sink(Listed::new(entry.name.as_bytes(), attributes, ENTRY));
        }
        Ok(())
    }

    /// Makes the entry of the root again, after it was removed.
    pub(super) async fn make_entry(&self, name: &OsStr) -> Result<(Duration, FileAttr)> {
        let entry = self.root.entry().filter(|entry| name.as_bytes() == entry.name.as_bytes());
        let entry = entry.ok_or_else(|| self.top_error())?;
        if entry.is_shown() {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{} exists", entry.name)));
        }
        let attributes = self.tree_root().await?;
        entry.set_shown(true);
        Ok((FOREVER, self.attr(&attributes)))
    }

    /// Removes the entry of the root, if the tree is empty.
    pub(super) async fn remove_entry(&self, name: &OsStr) -> Result<()> {
        let entry = self.root.entry().filter(|entry| name.as_bytes() == entry.name.as_bytes());
        let entry = entry.ok_or_else(|| self.top_error())?;
        if !entry.is_shown() {
            return Err(Error::new(ErrorKind::NotFound, format!("no {}", entry.name)));
        }
        let mut is_empty = true;
        let mut sink = |listed: Listed<'_>| {
            is_empty = is_dots(listed.name);
            is_empty
        };
        let namespace = self.working.namespace();
        namespace.list(self.shown_root(), 0, &namespace.begin_listing(), Extent::Names, &mut sink).await?;
        if !is_empty {
            return Err(Error::new(ErrorKind::NotEmpty, format!("{} is not empty", entry.name)));
        }
        entry.set_shown(false);
        Ok(())
    }
}
