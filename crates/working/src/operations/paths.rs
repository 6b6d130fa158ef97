//! Paths in commands: from what a user names to a path of the repository.
//!
//! A mount may show one node only (`--root`), and may show it as a directory of its own root
//! (`--subdir`). What lies outside of that node cannot be seen in the mount, and no command that
//! names a path may change it.

use serde_json::{Map, Value};

use super::Session;
use super::changes::DetectedChanges;
use crate::overlay::Ino;
use crate::overlay::frozen::{Frozen, FrozenEntry};
use crate::scratch::record::Name;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_repo::compare::scope::is_below;
use icechunkfs_repo::restore::absolute_path;
use icechunkfs_tree::tree::Tree;

/// Part of a repository that a mount shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownPart {
    /// Path of the shown node: `/` for everything.
    root: String,
    /// Name under which the mount shows that node; none if it is the root of the mount.
    subdir: Option<String>,
}

impl ShownPart {
    /// Returns the part that a mount with these options shows. Daemons of versions without the
    /// options show everything.
    pub fn of(options: &Map<String, Value>) -> Self {
        let option = |name: &str| options.get(name).and_then(Value::as_str);
        let root = format!("/{}", option("root").unwrap_or_default());
        ShownPart { root, subdir: option("subdir").map(str::to_owned) }
    }

    /// Returns the path of the shown node.
    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// Returns the path in the repository of `inside`, which is relative to the mountpoint. The
    /// mountpoint itself is the shown node.
    ///
    /// Errors: [`ErrorKind::InvalidInput`] for a path with `..`, [`ErrorKind::NotFound`] for one
    /// beside the directory of `--subdir`.
    pub fn path_of(&self, inside: &str) -> Result<String> {
        let path = absolute_path(inside)?;
        let rest = match &self.subdir {
            Some(_) if path == "/" => "",
            Some(name) => {
                let rest = path.strip_prefix('/').and_then(|path| path.strip_prefix(name.as_str()));
                rest.filter(|rest| rest.is_empty() || rest.starts_with('/')).ok_or_else(|| {
                    let path = printable::line(inside);
                    let name = printable::line(name);
                    Error::new(
                        ErrorKind::NotFound,
                        format!("{path}: there is no such name: the root of this mount has only `{name}`"),
                    )
                })?
            }
            None => &path,
        };
        let joined = format!("{}{}", self.root.trim_end_matches('/'), rest.trim_end_matches('/'));
        Ok(if joined.is_empty() { "/".to_owned() } else { joined })
    }

    /// Fails if `path`, of the repository, is outside of the shown node.
    fn check_shown(&self, path: &str) -> Result<()> {
        if is_below(path, &self.root) {
            return Ok(());
        }
        let path = printable::line(path);
        let root = printable::line(&self.root);
        Err(Error::invalid(format!(
            "{path} is outside of {root}, the root of this mount: name a path at or below {root}, as `status` shows it"
        )))
    }

    /// Fails if a discard at `path` would take back a move that crosses the border of the shown
    /// node.
    pub(super) fn check_moves(&self, detected: &DetectedChanges, path: &str) -> Result<()> {
        let crossing = detected.changes.moved.iter().find(|moved| {
            let is_at_path = is_below(&moved.from, path) || is_below(&moved.to, path);
            let is_inside = is_below(&moved.from, &self.root) && is_below(&moved.to, &self.root);
            is_at_path && !is_inside
        });
        match crossing {
            None => Ok(()),
            Some(moved) => Err(Error::new(
                ErrorKind::Stale,
                format!(
                    "the uncommitted move of {} to {} reaches outside of {}, the root of this mount: discard it in a mount without --root",
                    printable::line(&moved.from),
                    printable::line(&moved.to),
                    printable::line(&self.root)
                ),
            )),
        }
    }
}

impl Session {
    /// Returns the part of the repository that the mount shows.
    pub(super) fn shown_part(&self) -> ShownPart {
        ShownPart::of(&self.facts.options)
    }

    /// Remembers the directory that the mount shows. Must run before the tree moves for the first
    /// time.
    pub(super) async fn remember_root(&self) -> Result<()> {
        if self.shown_inode.get().is_none() {
            let shown = self.inode_at(self.shown_part().root()).await?;
            // The first value stays: a mount shows the same directory as long as it lives.
            let _ = self.shown_inode.set(shown);
        }
        Ok(())
    }

    /// Returns the path of the mount's root if it is no longer that of the directory that the mount
    /// shows; none otherwise.
    pub(super) async fn lost_root(&self) -> Result<Option<String>> {
        self.remember_root().await?;
        let shown = self.shown_part();
        let now = self.inode_at(shown.root()).await?;
        let is_lost = self.shown_inode.get().is_some_and(|before| *before != now);
        Ok(is_lost.then_some(shown.root))
    }

    async fn inode_at(&self, path: &str) -> Result<Option<Ino>> {
        let mut number = Ino::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            // The lookup counts as one of the kernel's: the few directories on the path are never
            // forgotten.
            let found = self.working.namespace().lookup(number, &Name::new(part.as_bytes())).await?;
            let Some(found) = found.filter(|found| found.kind == libc::S_IFDIR) else { return Ok(None) };
            number = found.number;
        }
        Ok(Some(number))
    }

    /// Converts `path` to a path of the repository: an absolute path below the mountpoint is one of
    /// the mount, any other is one of the repository, as `status` shows it. `.` and the empty path
    /// are the root of the mount.
    ///
    /// Errors: those of [`ShownPart::path_of`]; [`ErrorKind::InvalidInput`] for a path that the
    /// mount does not show, and [`ErrorKind::Stale`] if what it shows is elsewhere now.
    pub(super) async fn repository_path(&self, path: &str) -> Result<String> {
        let shown = self.shown_part();
        if let Some(root) = self.lost_root().await? {
            return Err(Error::new(ErrorKind::Stale, lost_root_message(&root)));
        }
        let mountpoint = self.facts.mountpoint.to_string_lossy();
        let inside = path.strip_prefix(&*mountpoint).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if let Some(inside) = inside {
            return shown.path_of(inside);
        }
        let absolute = absolute_path(path)?;
        if absolute == "/" && !path.starts_with('/') {
            return Ok(shown.root);
        }
        shown.check_shown(&absolute)?;
        Ok(absolute)
    }
}

/// Returns what `status` says when the path `root` is no longer that of the directory that the
/// mount shows.
pub(super) fn lost_root_message(root: &str) -> String {
    let root = printable::line(root);
    format!(
        "{root}, the root of this mount, was moved, deleted or recreated by other commits: the mount does not show \
         what is at {root} now; unmount it and mount it again"
    )
}

/// Returns true if `path` has something in `tree`, the base, or in `frozen`, the changes to it. A
/// name that was removed counts.
pub(super) async fn is_known(frozen: &Frozen, tree: &Tree, path: &str) -> Result<bool> {
    if let Some(place) = tree.place_of(path)
        && tree.has(&place).await?
    {
        return Ok(true);
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let mut directory = frozen.get(Frozen::ROOT);
    for (at, part) in parts.iter().enumerate() {
        let Some(found) = directory else { return Ok(false) };
        let entry = found.entries.iter().find(|(name, _)| *name.0 == *part.as_bytes());
        match entry.map(|(_, entry)| entry) {
            Some(FrozenEntry::Directory(position)) => directory = frozen.get(*position),
            Some(_) => return Ok(at + 1 == parts.len()),
            // The rest is below a directory of the base that was moved.
            None => {
                let mut place = found.lower.clone();
                for part in parts.iter().skip(at) {
                    place = place.and_then(|place| tree.child_place(&place, part));
                }
                return match place {
                    Some(place) => tree.has(&place).await,
                    None => Ok(false),
                };
            }
        }
    }
    Ok(directory.is_some())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shown(root: &str, subdir: Option<&str>) -> ShownPart {
        let options = serde_json::json!({ "root": root, "subdir": subdir });
        ShownPart::of(options.as_object().unwrap())
    }

    #[test]
    fn a_path_in_a_mount_is_mapped_through_root_and_subdir() {
        for (root, subdir, inside, expected) in [
            ("", None, "", Some("/")),
            ("", None, "./g//a/", Some("/g/a")),
            ("g/h", None, "", Some("/g/h")),
            ("g/h", None, "a", Some("/g/h/a")),
            ("g/h", None, "../a", None),
            ("", Some("d"), "", Some("/")),
            ("", Some("d"), "d", Some("/")),
            ("", Some("d"), "d/k/a", Some("/k/a")),
            ("", Some("d"), "k/a", None),
            ("", Some("d"), "dk", None),
            ("g", Some("d"), "d/", Some("/g")),
            ("g", Some("d"), "/d/d", Some("/g/d")),
        ] {
            let found = shown(root, subdir).path_of(inside).ok();
            assert_eq!(found.as_deref(), expected, "--root {root} --subdir {subdir:?}: {inside}");
        }
    }

    #[test]
    fn a_path_outside_of_the_root_is_refused() {
        for (root, path, is_shown) in [
            ("", "/", true),
            ("", "/a", true),
            ("g", "/g", true),
            ("g", "/g/a", true),
            ("g", "/", false),
            ("g", "/a", false),
            ("g", "/gh", false),
        ] {
            assert_eq!(shown(root, None).check_shown(path).is_ok(), is_shown, "--root {root}: {path}");
        }
    }
}
