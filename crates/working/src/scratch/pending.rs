//! Tests whether a branch has uncommitted work, without opening its scratch directory.
//!
//! Commands use this to warn before they change a branch; the daemon that uses the directory is not
//! disturbed. Only default scratch directories are examined. Those of a store are named after the
//! URL that the mount was made with, which has several spellings.

use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::directory::{name_of, state_directory};
use super::requirements::{Requirements, holder, open_directory};
use icechunkfs_base::file_name;

/// Uncommitted work of a branch on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingWork {
    /// Path of the scratch directory.
    pub path: PathBuf,
    /// True if it has changes or untracked files.
    pub has_work: bool,
    /// Process and mountpoint that use the directory, as text.
    pub holder: Option<String>,
}

/// Finds the scratch directories of `branch` of the repository at `location`, and at other
/// locations for which `is_same` returns true. Leaves out those that may not be read.
pub fn look(location: &str, branch: &str, is_same: Option<&dyn Fn(&str) -> bool>) -> Vec<PendingWork> {
    let Ok(all) = state_directory() else { return Vec::new() };
    let branch = name_of(branch);
    let mut names = vec![name_of(location)];
    if let Some(is_same) = is_same {
        names.extend(other_names(&all, &branch, is_same).into_iter().filter(|name| *name != name_of(location)));
    }
    names.into_iter().filter_map(|name| look_in(all.join(name).join(&branch))).collect()
}

/// Returns the names of the directories in `all` of repositories at locations for which `is_same`
/// returns true, sorted.
fn other_names(all: &Path, branch: &str, is_same: &dyn Fn(&str) -> bool) -> Vec<String> {
    let entries = std::fs::read_dir(all).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_of_repository = |name: &String| match file_name::decode(name) {
        Some(location) => is_same(&location),
        // The name is cut off, and the journal has the whole text.
        None => {
            let needs = Requirements::of(&all.join(name).join(branch));
            needs.ok().flatten().is_some_and(|needs| is_same(&needs.repository))
        }
    };
    let mut names: Vec<String> = names.filter(is_of_repository).collect();
    names.sort();
    names
}

fn look_in(path: PathBuf) -> Option<PendingWork> {
    let directory = open_directory(rustix::fs::CWD, &path, OFlags::empty()).ok()?;
    match Requirements::read(&directory, &path, |_| true) {
        Ok(needs) => Some(PendingWork { has_work: needs?.has_work, holder: holder(&directory), path }),
        // The next mount reports damage.
        Err(_) => Some(PendingWork { has_work: true, holder: holder(&directory), path }),
    }
}
