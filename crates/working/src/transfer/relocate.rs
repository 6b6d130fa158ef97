//! Gives references to files that were moved their new locations.
//!
//! A reference proves by its checksum that a file is the one that it was made to, and keeps it.
//! Files of this machine are looked at first; elsewhere one that does not fit is an error where it
//! is read.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_base::printable;
use icechunkfs_base::size::counted;
use icechunkfs_format::format::chunk_payload::{Checksum, ChunkPayload};
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::commit::changes::{ChangeSet, ChunkChange};
use icechunkfs_store::storage::virtuals::address::Address;
use icechunkfs_store::storage::virtuals::check_file;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeIndex;

/// Bytes that a changed reference takes, besides its location and checksum.
const REFERENCE_COST: u64 = 256;
/// Files that an error names.
const NAMED: usize = 20;

/// Prefixes from which, and to which, files were moved.
#[derive(Clone, Debug)]
pub struct Relocation {
    /// Prefix of the locations in the repository.
    pub from: Address,
    /// Prefix of the files now.
    pub to: Address,
}

/// References with new locations.
#[derive(Debug, Default)]
pub struct Relocated {
    /// Changes of a commit.
    pub changes: ChangeSet,
    /// Number of files that are referred to.
    pub files: usize,
    /// Number of references.
    pub chunks: u64,
    /// Bytes that they refer to.
    pub bytes: u64,
}

/// File as references have it: its location, and a checksum.
type Target = (String, Option<Checksum>);

/// Returns the changes that move all references of `tree` as `relocation` says.
///
/// Errors: [`ErrorKind::Stale`] if a file is not at its new place, or is another one there; others
/// as for reading the repository.
pub async fn relocate(tree: &Arc<Tree>, relocation: &Relocation) -> Result<Relocated> {
    let mut meter = Meter::new("references to files that were moved");
    let mut targets: BTreeSet<Target> = BTreeSet::new();
    each_moved(tree, relocation, |_, _, payload| {
        let ChunkPayload::Virtual { location, checksum, .. } = payload else { return Ok(()) };
        let target = (location, checksum);
        let tag = if let Some(Checksum::Etag(tag)) = &target.1 { tag.len() } else { 0 };
        let cost = REFERENCE_COST + 2 * (target.0.len() + tag) as u64;
        if targets.insert(target) { meter.count(cost) } else { Ok(()) }
    })
    .await?;
    let files = targets.iter().map(|(location, _)| location).collect::<HashSet<_>>().len();
    blocking(move || check(&targets)).await?;
    let mut out = Relocated { files, ..Relocated::default() };
    let mut changes = ChangeSet::default();
    each_moved(tree, relocation, |node, coords, payload| {
        let Some(array) = tree.table().array(node) else { return Ok(()) };
        meter.count(REFERENCE_COST + payload.held())?;
        out.chunks += 1;
        out.bytes = out.bytes.saturating_add(payload.length());
        changes.chunks.entry(array.id).or_default().insert(coords, ChunkChange::Stored(payload));
        Ok(())
    })
    .await?;
    Ok(Relocated { changes, ..out })
}

/// Calls `visit` for each reference that is moved, with its array, its place and its new form.
async fn each_moved(
    tree: &Tree,
    relocation: &Relocation,
    mut visit: impl FnMut(NodeIndex, Coords, ChunkPayload) -> Result<()> + Send,
) -> Result<()> {
    for node in tree.table().subtree(0) {
        let Some(chunks) = tree.chunks(node) else { continue };
        let mut failed = Ok(());
        chunks
            .each(|refs, at| {
                if failed.is_err() {
                    return;
                }
                failed = refs.payload(at).and_then(|payload| match payload {
                    ChunkPayload::Virtual { location, offset, length, checksum } => {
                        match moved(&location, relocation) {
                            Some(location) => {
                                let coords = refs.coords(at).iter().collect();
                                visit(node, coords, ChunkPayload::Virtual { location, offset, length, checksum })
                            }
                            None => Ok(()),
                        }
                    }
                    _ => Ok(()),
                });
            })
            .await?;
        failed.context(|| format!("/{}", tree.table().path(node)))?;
    }
    Ok(())
}

/// Returns where the file at `location` is now; none if it was not moved.
fn moved(location: &str, relocation: &Relocation) -> Option<String> {
    let address = Address::object(location).ok()?;
    let rest = relocation.from.rest_of(&address)?;
    Some(relocation.to.join(rest).to_string())
}

/// Fails unless all files of this machine are those that were referred to.
fn check(targets: &BTreeSet<Target>) -> Result<()> {
    let mut wrong = Vec::new();
    for (location, checksum) in targets {
        let address = Address::object(location)?;
        let checked = if address.is_file() { check_file(&address, checksum.as_ref()) } else { Ok(()) };
        if let Err(error) = checked {
            wrong.push(printable::line(&format!("  {address}: {error}")));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let files = counted(wrong.len() as u64, "file");
    let mut text = format!("{files} cannot be what was referred to: nothing was changed\n");
    wrong.iter().take(NAMED).for_each(|line| text += &format!("{line}\n"));
    if wrong.len() > NAMED {
        text += &format!("  and {} more\n", wrong.len() - NAMED);
    }
    text += "Put the files there as they were, with their times (`cp -p`, `rsync -t`), or import them again.\n";
    Err(Error::multi_line(ErrorKind::Stale, &text))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_the_prefix_is_moved() {
        let address = |text: &str| Address::prefix(text).unwrap();
        let relocation = Relocation { from: address("file:///a/b"), to: address("s3://c/d") };
        assert_eq!(moved("file:///a/b/e%20f", &relocation).as_deref(), Some("s3://c/d/e%20f"));
        assert_eq!(moved("file:///a/bc", &relocation), None);
        assert_eq!(moved("nonsense", &relocation), None);
    }
}
