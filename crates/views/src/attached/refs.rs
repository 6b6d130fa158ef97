//! Names of snapshots: what the directories `branch`, `tag`, `snapshot` and `time` list, and what a
//! name means now.
//!
//! A name that a file name cannot hold is percent-encoded. The refs are read again when they are
//! older than [`FRESH`], with one request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use tokio::sync::OnceCell;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_base::times::{format_time, parse_time};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::history::walk_all;
use icechunkfs_repo::repo::refs::RefSpec;
use icechunkfs_store::storage::Storage;
use icechunkfs_tree::tree::nodes::MAX_NAME;

/// Age at which refs are read again: a listing followed by the lookups of its entries is one
/// request.
pub(super) const FRESH: Duration = Duration::from_secs(1);
/// Characters that a file name cannot have, and the one that escapes them.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'/').add(b'%');

/// Name of a directory's entries in errors.
const NAMES: &str = "a list of commits";
/// Bytes of an entry: a name of 25 letters, the id, and their share of the tree.
const NAME_BYTES: u64 = 192;

/// Kind of name of a snapshot: one directory each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NameKind {
    Branch,
    Tag,
    Snapshot,
    Time,
}

impl NameKind {
    /// Returns the name of the directory.
    pub(super) fn directory(self) -> &'static str {
        match self {
            NameKind::Branch => "branch",
            NameKind::Tag => "tag",
            NameKind::Snapshot => "snapshot",
            NameKind::Time => "time",
        }
    }
}

/// Repository whose refs are read again when they are old.
#[derive(Debug)]
pub(super) struct FreshRefs {
    storage: Arc<dyn Storage>,
    /// Branch whose commits `time` has.
    branch: String,
    /// Repository as it was read last, or is being read. The lock is never held across a request:
    /// callers wait for the cell.
    read: Mutex<Arc<OnceCell<ReadRefs>>>,
}

/// Repository with its refs at the time at which reading them began.
#[derive(Debug)]
struct ReadRefs {
    begin: Instant,
    repository: Arc<Repository>,
}

impl FreshRefs {
    /// Creates the refs of the repository in `storage`; times are those of `branch`.
    pub(super) fn new(storage: Arc<dyn Storage>, branch: &str) -> Self {
        FreshRefs { storage, branch: branch.to_owned(), read: Mutex::default() }
    }

    /// Has the refs read again by the next request.
    pub(super) fn outdate(&self) {
        *self.read.lock() = Arc::default();
    }

    /// Returns true if file name `name` of directory `kind` stands for another snapshot once the
    /// branch has got a commit at `time` (microseconds since 1970-01-01 UTC).
    pub(super) fn moves_with_branch(&self, kind: NameKind, name: &str, time: u64) -> bool {
        match kind {
            NameKind::Branch => encode(&self.branch).as_deref() == Some(name),
            NameKind::Time => decode(name).and_then(|name| parse_time(&name).ok()).is_some_and(|named| named >= time),
            NameKind::Tag | NameKind::Snapshot => false,
        }
    }

    /// Returns the repository with refs that are no older than [`FRESH`].
    pub(super) async fn repository(&self) -> Result<Arc<Repository>> {
        let cell = {
            let mut read = self.read.lock();
            if read.get().is_some_and(|read| read.begin.elapsed() >= FRESH) {
                *read = Arc::default();
            }
            Arc::clone(&read)
        };
        let open = || async {
            let begin = Instant::now();
            let repository = Arc::new(Repository::open(Arc::clone(&self.storage)).await?);
            Ok::<_, Error>(ReadRefs { begin, repository })
        };
        Ok(Arc::clone(&cell.get_or_try_init(open).await?.repository))
    }

    /// Returns the snapshot that file name `name` of directory `kind` stands for; none if there is
    /// none.
    pub(super) async fn resolve(&self, kind: NameKind, name: &str) -> Result<Option<ObjectId>> {
        // One name, not several spellings of it.
        let Some(decoded) = decode(name).filter(|decoded| encode(decoded).as_deref() == Some(name)) else {
            return Ok(None);
        };
        let spec = match kind {
            NameKind::Branch => RefSpec::Branch(decoded),
            NameKind::Tag => RefSpec::Tag(decoded),
            NameKind::Snapshot => match decoded.parse() {
                Ok(id) => RefSpec::Snapshot(id),
                Err(_) => return Ok(None),
            },
            NameKind::Time => match parse_time(&decoded) {
                Ok(time) => RefSpec::AsOf { branch: self.branch.clone(), time },
                Err(_) => return Ok(None),
            },
        };
        match self.repository().await?.resolve(&spec).await {
            Ok(id) => Ok(Some(id)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the time of commit `id`, if that is known without reading its snapshot: from version
    /// 2 on.
    pub(super) async fn time(&self, id: ObjectId) -> Result<Option<SystemTime>> {
        let repository = self.repository().await?;
        if repository.log_position().is_none() {
            return Ok(None);
        }
        Ok(Some(system_time(repository.commit(id).await?.flushed_at)))
    }

    /// Returns the file names of directory `kind` and their snapshots, sorted. Snapshots and times
    /// are listed only if the history is in one object, as from version 2 on: otherwise each commit
    /// would be a request.
    pub(super) async fn names(&self, kind: NameKind) -> Result<Metered<BTreeMap<String, ObjectId>>> {
        let repository = self.repository().await?;
        let refs = repository.refs().await?;
        let has_history = repository.log_position().is_some();
        let of_refs = |refs: BTreeMap<String, ObjectId>| {
            Metered::own(refs.into_iter().filter_map(|(name, id)| Some((encode(&name)?, id))).collect())
        };
        Ok(match kind {
            NameKind::Branch => of_refs(refs.branches),
            NameKind::Tag => of_refs(refs.tags),
            NameKind::Snapshot if has_history => {
                let tips: Vec<ObjectId> = refs.branches.values().chain(refs.tags.values()).copied().collect();
                let mut names = BTreeMap::new();
                let mut meter = Meter::new(NAMES);
                walk_all(&repository, tips, |commit| {
                    meter.count(NAME_BYTES)?;
                    names.insert(commit.id.to_string(), commit.id);
                    Ok(true)
                })
                .await?;
                meter.finish(names)
            }
            NameKind::Time if has_history => match refs.branches.get(&self.branch) {
                Some(tip) => {
                    let mut names = BTreeMap::new();
                    let mut meter = Meter::new(NAMES);
                    repository
                        .try_walk(*tip, |commit| {
                            meter.count(NAME_BYTES)?;
                            // Of several commits at one time, the newest counts.
                            let name = format_time(commit.flushed_at).replace("+00:00", "Z");
                            names.entry(name).or_insert(commit.id);
                            Ok(true)
                        })
                        .await?;
                    meter.finish(names)
                }
                None => Metered::default(),
            },
            NameKind::Snapshot | NameKind::Time => Metered::default(),
        })
    }
}

/// Converts microseconds since 1970.
pub(super) fn system_time(micros: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_micros(micros)).unwrap_or(UNIX_EPOCH)
}

/// Returns the file name for the name of a ref; none if it is too long for one. Letters of all
/// alphabets stay.
fn encode(name: &str) -> Option<String> {
    let encoded = match name {
        "." | ".." => name.replace('.', "%2E"),
        _ => name.chars().fold(String::new(), |mut encoded, letter| {
            if letter.is_ascii() {
                encoded.extend(utf8_percent_encode(letter.encode_utf8(&mut [0; 4]), ESCAPED))
            } else {
                encoded.push(letter)
            }
            encoded
        }),
    };
    (!encoded.is_empty() && encoded.len() <= MAX_NAME).then_some(encoded)
}

fn decode(name: &str) -> Option<String> {
    percent_decode_str(name).decode_utf8().ok().map(|name| name.into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_of_refs_are_file_names_and_back() {
        for (name, file) in [
            ("main", "main"),
            ("feature/x", "feature%2Fx"),
            ("100%", "100%25"),
            ("..", "%2E%2E"),
            ("größe und 深さ/1", "größe und 深さ%2F1"),
            ("a\nb", "a%0Ab"),
        ] {
            assert_eq!(encode(name).unwrap(), file);
            assert_eq!(decode(file).unwrap(), name);
        }
        assert_eq!(encode(&"x".repeat(256)), None);
        assert_eq!(encode(""), None);
    }
}
