//! Gives virtual chunks the new locations of files that were moved.
//!
//! A virtual chunk proves by its checksum that a file is the one that it was made to, and keeps it.
//! Files of this machine are looked at first. Those of a store have the time at which they were put
//! there, so that virtual chunks with a time would never be read: they are refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::first_lines;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_base::size::counted;
use icechunkfs_format::format::chunk_payload::{Checksum, ChunkPayload};
use icechunkfs_repo::commit::changes::{ChangeSet, ChunkChange};
use icechunkfs_store::storage::virtuals::address::Address;
use icechunkfs_store::storage::virtuals::check_file;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::virtual_chunks::VirtualChunk;

/// Bytes that a changed chunk takes, besides its location and checksum.
const CHUNK_COST: u64 = 256;

/// Prefixes from which, and to which, files were moved.
#[derive(Clone, Debug)]
pub struct Relocation {
    /// Prefix of the locations in the repository.
    pub from: Address,
    /// Prefix of the files now.
    pub to: Address,
    /// Take files of this machine also if they are older than those that were there.
    pub allow_older: bool,
}

/// Virtual chunks with new locations.
#[derive(Debug, Default)]
pub struct Relocated {
    /// Changes of a commit.
    pub changes: ChangeSet,
    /// Directories of the files at their new places.
    pub directories: Vec<Address>,
    /// Number of files.
    pub files: usize,
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes of these.
    pub bytes: u64,
}

/// Files by location and checksum, with the position behind their last chunk.
type Targets = BTreeMap<(String, Option<Checksum>), u64>;

/// Returns the changes that move all virtual chunks of `tree` as `relocation` says.
///
/// Errors: [`ErrorKind::Stale`] if a file is not at its new place, or cannot be the same; others as
/// for reading the repository.
pub async fn relocate(tree: &Arc<Tree>, relocation: &Relocation) -> Result<Relocated> {
    let mut meter = Meter::new("virtual chunks in files that were moved");
    let mut targets = Targets::new();
    let mut out = Relocated::default();
    let mut changes = ChangeSet::default();
    tree.each_virtual(0, |chunk| {
        let Some(location) = moved(&chunk.location, relocation) else { return Ok(()) };
        let Some(array) = tree.table().array(chunk.node) else { return Ok(()) };
        let VirtualChunk { coords, offset, length, checksum, .. } = chunk;
        let payload = ChunkPayload::Virtual { location: location.clone(), offset, length, checksum: checksum.clone() };
        meter.count(CHUNK_COST + payload.held())?;
        let end = targets.entry((location, checksum)).or_default();
        if *end == 0 {
            meter.count(CHUNK_COST + payload.held())?;
        }
        *end = (*end).max(offset.saturating_add(length));
        out.chunks += 1;
        out.bytes = out.bytes.saturating_add(length);
        changes.chunks.entry(array.id).or_default().insert(coords, ChunkChange::Stored(payload));
        Ok(())
    })
    .await?;
    out.files = targets.len();
    let parents = targets.keys().map(|(location, _)| Ok(Address::object(location)?.parent()));
    out.directories = parents.collect::<Result<_>>()?;
    out.directories.dedup();
    let allow_older = relocation.allow_older;
    blocking(move || check(&targets, allow_older)).await?;
    Ok(Relocated { changes, ..out })
}

/// Returns where the file at `location` is now; none if it was not moved.
fn moved(location: &str, relocation: &Relocation) -> Option<String> {
    let address = Address::object(location).ok()?;
    let rest = relocation.from.rest_of(&address)?;
    Some(relocation.to.join(rest).to_string())
}

/// Fails unless the files can be those that were moved.
fn check(targets: &Targets, allow_older: bool) -> Result<()> {
    let mut wrong = Vec::new();
    for ((location, checksum), end) in targets {
        let address = Address::object(location)?;
        let checked = match (address.is_file(), checksum) {
            (true, _) => check_file(&address, checksum.as_ref(), *end, allow_older),
            (false, Some(Checksum::LastModified(_))) => Err(Error::invalid(
                "its chunks are checked by its time, which a store does not keep: import the file into a new archive",
            )),
            (false, _) => Ok(()),
        };
        if let Err(error) = checked {
            wrong.push(format!("{address}: {error}"));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let files = counted(wrong.len() as u64, "file");
    let mut text = format!("{files} cannot be read at the new place: nothing was committed\n");
    text += &first_lines(wrong.into_iter());
    if targets.keys().any(|(location, _)| location.starts_with("file:")) {
        text += "Files must have the times that they had: `cp -p` and `rsync -t` keep them, `touch -r OLD NEW` sets them. \
                 For files with the same bytes and an older time, add --allow-older.\n";
    }
    Err(Error::multi_line(ErrorKind::Stale, &text))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::prefix(text).unwrap()
    }

    #[test]
    fn what_is_below_the_prefix_is_moved() {
        let relocation = Relocation { from: address("file:///a/b"), to: address("s3://c/d"), allow_older: false };
        assert_eq!(moved("file:///a/b/e%20f", &relocation).as_deref(), Some("s3://c/d/e%20f"));
        assert_eq!(moved("file:///a/bc", &relocation), None);
        assert_eq!(moved("nonsense", &relocation), None);
    }

    #[test]
    fn files_are_those_that_they_were() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(10).unwrap();
        let time = |seconds| std::time::UNIX_EPOCH + std::time::Duration::from_millis(seconds);
        let is_same = |second, end, allow_older| {
            let location = format!("file://{}", file.path().display());
            check(&[((location, Some(Checksum::LastModified(second))), end)].into(), allow_older).is_ok()
        };
        file.as_file().set_modified(time(5_500)).unwrap();
        assert!(is_same(6, 10, false) && !is_same(6, 11, false) && !is_same(5, 10, true));
        assert!(!is_same(7, 10, false) && is_same(7, 10, true));
        let in_store = |checksum| check(&[(("s3://b/x".to_owned(), checksum), 1)].into(), true).is_ok();
        assert!(in_store(Some(Checksum::Etag("x".into()))) && in_store(None));
        assert!(!in_store(Some(Checksum::LastModified(u32::MAX))));
    }
}
