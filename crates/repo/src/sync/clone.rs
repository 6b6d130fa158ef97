//! A new repository with everything that the refs of another reach, under the same ids.
//!
//! The new repository has the configuration, metadata and feature flags of the source, its branches
//! and tags, and the names of its deleted tags. Its operations log begins with its creation, and it
//! takes writes even if the source does not. It exists once its `repo` does, or in version 1 its
//! branch `main`; until then the place holds objects, and another clone of the same source goes on
//! there.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::amended::Amended;
use super::destination::Destination;
use super::history::Outstanding;
use super::notes::CopyNotes;
use super::objects::Copy;
use super::{Counters, Failure, begin_again, check_logs, check_metadata, check_source};
use crate::repo::Repository;
use crate::repo::clone_refs::ClonedRefs;
use icechunkfs_base::beneath;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::file_name::is_dots;
use icechunkfs_base::stages::Stages;
use icechunkfs_base::times::Clock;
use icechunkfs_base::trust::{self, Owners};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::SnapshotRecord;
use icechunkfs_store::storage::{ObjectInfo, Storage};

/// Folders of objects that an unfinished clone leaves.
const FOLDERS: [&str; 4] = ["chunks/", "manifests/", "snapshots/", "transactions/"];

/// Result of a clone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cloned {
    /// Number of branches.
    pub branches: usize,
    /// Number of tags.
    pub tags: usize,
    /// Number of commits.
    pub commits: usize,
}

/// Options of a clone.
#[derive(Clone, Debug, Default)]
pub struct CloneOptions {
    /// Most memory that objects on their way may take, in bytes.
    pub memory: u64,
    /// Notes that later copies go by; none if they compare everything.
    pub notes: Option<CopyNotes>,
}

/// Makes a copy of `source` in `destination`, which is empty or has an unfinished clone.
///
/// Errors: [`ErrorKind::AlreadyExists`] if the destination holds anything else.
pub async fn clone(
    source: Repository,
    destination: &Arc<dyn Storage>,
    options: &CloneOptions,
    counters: &Counters,
    clock: Clock,
) -> Result<Cloned> {
    if let Some(notes) = &options.notes {
        notes.forget(&**destination)?;
    }
    let mut source = source;
    let mut tries = 0;
    loop {
        tries += 1;
        check_source(&source)?;
        let error = match attempt(&source, destination, options, counters, clock).await {
            Ok(cloned) => return Ok(cloned),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Changed(error)) => error,
        };
        source = begin_again(&source, error, tries).await?;
    }
}

async fn attempt(
    source: &Repository,
    destination: &Arc<dyn Storage>,
    options: &CloneOptions,
    counters: &Counters,
    clock: Clock,
) -> Result<Cloned, Failure> {
    let place = || destination.location().to_owned();
    let stages = Stages::begin("reading the history");
    let refs = ClonedRefs::read(source).await.context(|| source.storage().location().to_owned())?;
    let leftovers = unfinished(&**destination, &refs).await.context(place)?;
    // After the listing: what is added later is not in it.
    if let Some(files) = destination.local_files() {
        let root = files.root().try_clone_to_owned().map_err(|e| Error::io(place(), e))?;
        blocking(move || check_owners(&root)).await.context(place)?;
    }
    let none = HashSet::new();
    let all = Outstanding::find(source, refs.targets(), &none).await?;
    check_metadata(source, &all).await?;
    let to = Destination::new(destination, source.storage().location()).with_leftovers(leftovers);
    let mut copy = Copy::new(source, to, &none, counters, options.memory);
    stages.enter("copying objects");
    copy.run(&all).await?;
    stages.enter("checking what was copied");
    check_logs(source, &all, copy.lacking_logs()).await?;
    let kept: Vec<ObjectId> = all.commits.iter().map(|commit| commit.id).collect();
    let amended = Amended::read(source, &all, None).await?;
    stages.enter("writing refs");
    let describe = |id, record: &mut SnapshotRecord| amended.describe(id, record);
    refs.write(source, &**destination, &kept, describe, clock).await.context(place)?;
    if let Some(notes) = &options.notes {
        notes.note(&**destination, &**source.storage(), refs.targets());
    }
    Ok(Cloned { branches: refs.branch_count(), tags: refs.tag_count(), commits: kept.len() })
}

/// Returns the objects that an unfinished clone of `refs` left, with their lengths. Fails if there
/// is anything else, which the clone would replace, or take for its own so that a garbage
/// collection removes it.
async fn unfinished(destination: &dyn Storage, refs: &ClonedRefs) -> Result<HashMap<String, u64>> {
    let mut stored = HashMap::new();
    let mut files = Vec::new();
    let mut other = None;
    let early_files = refs.early_files();
    let mut visit = |object: ObjectInfo| {
        if is_object(&object.key) {
            stored.insert(object.key, object.size);
        } else if early_files.contains(&object.key) {
            files.push(object.key);
        } else {
            other.get_or_insert(object.key);
        }
    };
    destination.for_each("", &mut visit).await?;
    for key in files {
        if !refs.is_leftover(destination, &key).await? {
            other.get_or_insert(key);
        }
    }
    let occupied = |what: String| Err(Error::new(ErrorKind::AlreadyExists, what));
    match other.as_deref() {
        None => Ok(stored),
        Some("repo" | "refs/branch.main/ref.json") => {
            let what = "there is a repository already: if it is a clone of the source, `icechunkfs push SRC DEST` \
                        brings it up to date; otherwise name another place";
            occupied(what.to_owned())
        }
        Some(key) => {
            occupied(format!("a clone needs an empty place, but there is `{key}`: move it away, or name another place"))
        }
    }
}

/// Fails if there is a file of another user in the directory `root`, who could have put other bytes
/// there under the ids of the source.
fn check_owners(root: &OwnedFd) -> Result<()> {
    let owners = Owners::below(root)?;
    let mut left = vec![PathBuf::from(".")];
    while let Some(path) = left.pop() {
        let failed = |errno: Errno| Error::io(path.display(), errno.into());
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = beneath::open(root, &path, flags, resolve).map_err(failed)?;
        for entry in Dir::read_from(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if is_dots(name.to_bytes()) {
                continue;
            }
            let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            let owner = owners.owner(&directory, name, &stat)?;
            let inner = path.join(OsStr::from_bytes(name.to_bytes()));
            if !trust::is_trusted(owner) {
                let owner = trust::name_of(owner);
                return Err(Error::new(
                    ErrorKind::AlreadyExists,
                    format!(
                        "a clone needs an empty place, but {} belongs to user {owner}: name another place",
                        inner.strip_prefix(".").unwrap_or(&inner).display()
                    ),
                ));
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                left.push(inner);
            }
        }
    }
    Ok(())
}

/// Returns true if `key` is that of an object of a repository.
fn is_object(key: &str) -> bool {
    let name = FOLDERS.iter().find_map(|folder| key.strip_prefix(folder));
    // Ids have one spelling as names of objects, though several can be read.
    name.is_some_and(|name| name.parse().is_ok_and(|id: ObjectId| id.to_string() == name))
}
