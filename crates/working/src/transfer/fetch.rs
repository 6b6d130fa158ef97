//! Fetches the bytes of many files of a snapshot at a time.
//!
//! Small chunks share objects, back to back in grid order, so that consecutive files of a listing
//! are usually neighbors in an object too: they are read together, in one request of some MiB
//! instead of hundreds.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;

use super::walk::{BATCH_BYTES, Item};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::{Checksum, ChunkPayload};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::reader::{Data, NativeChunk};
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::Tree;
use icechunkfs_views::views::ViewTree;

/// Largest gap between two chunks that are read together, in bytes: less than a request costs, on a
/// disk or over a network.
const MAX_GAP: u64 = 16 << 10;
/// Limit on the bytes that are read together.
const MAX_RUN: u64 = BATCH_BYTES;
/// Concurrent requests of one batch. The storage limits those of all batches.
const CONCURRENT_READS: usize = 32;
/// Chunks from this size on, in bytes, are copied file to file if they are separate files: the
/// kernel copies the bytes or, where the file system can, shares the blocks until one of the files
/// is written to. For smaller chunks, one read and one write cost less.
const MIN_COPIED: u64 = 128 << 10;

/// Bytes of a file.
#[derive(Debug)]
pub(super) enum Content {
    /// Part of a buffer that was read.
    Part(Arc<Data>, Range<usize>),
    /// Whole file.
    File(File),
}

/// Returns true if an error means that this user cannot read something in the repository, now or
/// later.
pub(super) fn is_unreadable(error: &Error) -> bool {
    use ErrorKind::{Corrupt, NotFound, PermissionDenied, Unsupported, VirtualNotAllowed};
    matches!(error.kind(), Corrupt | NotFound | PermissionDenied | Unsupported | VirtualNotAllowed)
}

/// Returns the payload of file `inode`; none if the view makes its bytes, or they are those of
/// several chunks.
pub(super) async fn payload(view: &dyn ViewTree, inode: Ino) -> Result<Option<ChunkPayload>> {
    let tree = view.tree();
    let Some(inode) = view.native(inode) else { return Ok(None) };
    tree.payload_of(inode).await
}

/// Fetches the files `items`, in their order. Together they have at most [`BATCH_BYTES`], or there
/// is only one.
pub(super) async fn fetch(view: &dyn ViewTree, items: &[&Item]) -> Vec<Result<Content>> {
    let tree = view.tree();
    let mut contents: Vec<Option<Result<Content>>> = Vec::with_capacity(items.len());
    let mut wanted = Vec::new();
    for (at, item) in items.iter().enumerate() {
        contents.push(match payload(view, item.inode).await {
            Ok(Some(payload)) => {
                wanted.push((at, payload));
                None
            }
            Ok(None) => Some(made(view, item).await),
            Err(error) => Some(Err(error)),
        });
    }
    let (read, copied) = files(tree, wanted).await;
    let mut found = copied;
    found.extend(payloads(tree, read).await);
    for (at, content) in found {
        if let Some(slot) = contents.get_mut(at) {
            *slot = Some(content);
        }
    }
    let missing = || Err(Error::new(ErrorKind::Io, "it was not read"));
    let named = |(content, item): (Option<Result<Content>>, &&Item)| {
        content.unwrap_or_else(missing).context(|| view.describe(item.inode))
    };
    contents.into_iter().zip(items).map(named).collect()
}

/// Reads a file that the view makes.
async fn made(view: &dyn ViewTree, item: &Item) -> Result<Content> {
    let size = u32::try_from(item.size).map_err(|_| Error::corrupt("a file too large for a batch"))?;
    let data = view.read(item.inode, 0, size).await?;
    let length = data.len();
    Ok(Content::Part(Arc::new(data), 0..length))
}

type WantedFiles = Vec<(usize, ChunkPayload)>;
type Fetched = Vec<(usize, Result<Content>)>;

/// Opens the file that is exactly `payload`, if there is one.
pub(super) async fn whole_file(tree: &Arc<Tree>, payload: ChunkPayload) -> Result<Option<File>> {
    let (_, mut found) = files(tree, vec![(0, payload)]).await;
    match found.pop() {
        Some((_, Ok(Content::File(file)))) => Ok(Some(file)),
        _ => Ok(None),
    }
}

/// Opens those of `wanted` that are files of this machine; returns the rest first.
async fn files(tree: &Arc<Tree>, wanted: WantedFiles) -> (WantedFiles, Fetched) {
    let is_large =
        |payload: &ChunkPayload| matches!(payload, ChunkPayload::Native { length, .. } if *length >= MIN_COPIED);
    if !tree.reader().has_files() || !wanted.iter().any(|(_, payload)| is_large(payload)) {
        return (wanted, Vec::new());
    }
    let reader = Arc::clone(tree.reader());
    let kept = wanted.clone();
    let look = move || {
        let mut rest = Vec::new();
        let mut found = Vec::new();
        for (at, payload) in wanted {
            let file = match &payload {
                ChunkPayload::Native { chunk, offset, length } if *length >= MIN_COPIED => {
                    reader.whole_file(NativeChunk { object: *chunk, offset: *offset, length: *length })
                }
                _ => None,
            };
            match file {
                Some(file) => found.push((at, Ok(Content::File(file)))),
                None => rest.push((at, payload)),
            }
        }
        (rest, found)
    };
    tokio::task::spawn_blocking(look).await.unwrap_or((kept, Vec::new()))
}

/// Object that contains chunks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Native(ObjectId),
    Virtual(String, Option<Checksum>),
}

impl Object {
    /// Returns a part of the object as the payload of a chunk.
    fn part(&self, offset: u64, length: u64) -> ChunkPayload {
        match self.clone() {
            Object::Native(chunk) => ChunkPayload::Native { chunk, offset, length },
            Object::Virtual(location, checksum) => ChunkPayload::Virtual { location, offset, length, checksum },
        }
    }
}

/// Neighboring chunks of one object, which are read together.
struct Run {
    object: Object,
    range: Range<u64>,
    /// Slot, offset in the object, length.
    parts: Vec<(usize, u64, u64)>,
}

/// Reads all of `wanted`; each result has its slot.
pub(super) async fn payloads(tree: &Arc<Tree>, wanted: WantedFiles) -> Fetched {
    // A disk cache finds entries by the ranges that mounts request, so with one ranges are not
    // merged.
    let merge = tree.reader().is_local() || !tree.reader().has_files();
    let (runs, single) = runs(wanted, merge);
    // Each future is boxed: the compiler cannot prove that one from a closure is `Send`.
    let mut tasks: Vec<BoxFuture<'_, Fetched>> = Vec::new();
    for run in runs {
        tasks.push(Box::pin(read_run(tree, run)));
    }
    for (at, payload) in single {
        tasks.push(Box::pin(async move { vec![(at, read_one(tree, &payload).await)] }));
    }
    let done: Vec<Fetched> = futures_util::stream::iter(tasks).buffer_unordered(CONCURRENT_READS).collect().await;
    done.into_iter().flatten().collect()
}

async fn read_one(tree: &Arc<Tree>, payload: &ChunkPayload) -> Result<Content> {
    let length = payload.length();
    let size = u32::try_from(length).map_err(|_| Error::new(ErrorKind::OutOfMemory, "a chunk of 4 GiB at a time"))?;
    let data = tree.read_stored(payload, 0, size).await?;
    let read = data.len();
    if read as u64 != length {
        return Err(Error::corrupt(format!("{read} of {length} bytes were received")));
    }
    Ok(Content::Part(Arc::new(data), 0..read))
}

async fn read_run(tree: &Arc<Tree>, run: Run) -> Fetched {
    let Range { start, end } = run.range;
    match read_one(tree, &run.object.part(start, end - start)).await {
        Ok(Content::Part(data, _)) => {
            let part = |(at, offset, length): (usize, u64, u64)| {
                let begin = usize::try_from(offset - start).unwrap_or(usize::MAX);
                let range = begin..begin.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
                (at, Ok(Content::Part(Arc::clone(&data), range)))
            };
            run.parts.into_iter().map(part).collect()
        }
        // A store that does not answer would be waited for once per part.
        Err(error) if error.kind() != ErrorKind::Corrupt => {
            let kind = error.kind();
            let message = error.to_string();
            run.parts.into_iter().map(|(at, ..)| (at, Err(Error::new(kind, message.clone())))).collect()
        }
        // A part may lie beyond the object's end: each is read separately to find out which.
        _ => {
            let mut fetched = Vec::with_capacity(run.parts.len());
            for (at, offset, length) in run.parts {
                fetched.push((at, read_one(tree, &run.object.part(offset, length)).await));
            }
            fetched
        }
    }
}

/// Groups `wanted` into runs of neighbors; returns the rest second.
fn runs(wanted: WantedFiles, merge: bool) -> (Vec<Run>, WantedFiles) {
    let mut ranges = Vec::new();
    let mut single = Vec::new();
    for (at, payload) in wanted {
        match payload {
            ChunkPayload::Native { chunk, offset, length } if merge && length > 0 => {
                ranges.push((Object::Native(chunk), offset, length, at));
            }
            ChunkPayload::Virtual { location, offset, length, checksum } if merge && length > 0 => {
                ranges.push((Object::Virtual(location, checksum), offset, length, at));
            }
            other => single.push((at, other)),
        }
    }
    ranges.sort_unstable();
    let mut runs: Vec<Run> = Vec::new();
    for (object, offset, length, at) in ranges {
        // For a native chunk the sum cannot overflow: that was checked when the reference was read.
        let end = offset.saturating_add(length);
        match runs.last_mut() {
            Some(run)
                if run.object == object
                    && offset <= run.range.end.saturating_add(MAX_GAP)
                    && end.max(run.range.end) - run.range.start <= MAX_RUN =>
            {
                run.range.end = run.range.end.max(end);
                run.parts.push((at, offset, length));
            }
            _ => runs.push(Run { object, range: offset..end, parts: vec![(at, offset, length)] }),
        }
    }
    (runs, single)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;

    fn native(object: u8, offset: u64, length: u64) -> ChunkPayload {
        ChunkPayload::Native { chunk: ObjectId([object; 12]), offset, length }
    }

    fn somewhere(location: &str, offset: u64, length: u64, tag: &str) -> ChunkPayload {
        ChunkPayload::Virtual { location: location.into(), offset, length, checksum: Some(Checksum::Etag(tag.into())) }
    }

    /// Returns the number of a native object; 0 for a virtual one.
    fn number(object: &Object) -> u8 {
        match object {
            Object::Native(id) => id.0[0],
            Object::Virtual(..) => 0,
        }
    }

    #[test]
    fn neighbours_in_other_peoples_files_are_read_together_too() {
        let all = [
            somewhere("s3://b/x", 100, 50, "t"),
            somewhere("s3://b/x", 0, 100, "t"),
            somewhere("s3://b/y", 150, 50, "t"),
            somewhere("s3://b/x", 150, 50, "another"),
            somewhere("s3://b/y", u64::MAX, u64::MAX, "t"),
        ];
        let (found, single) = runs(all.into_iter().enumerate().collect(), true);
        let slots: Vec<Vec<usize>> = found.iter().map(|run| run.parts.iter().map(|part| part.0).collect()).collect();
        assert_eq!(slots, [vec![3], vec![1, 0], vec![2], vec![4]]);
        assert!(single.is_empty());
        assert_eq!(found[1].object.part(0, 150), somewhere("s3://b/x", 0, 150, "t"));
    }

    #[test]
    fn neighbours_are_read_together() {
        let all = [
            native(2, 0, 10),
            native(1, 100, 50),
            native(1, 0, 100),
            native(1, 150 + MAX_GAP, 1),
            native(1, 152 + 2 * MAX_GAP, 1),
            native(1, 0, 100),
            ChunkPayload::Inline("x".into()),
            native(3, 0, MAX_RUN),
            native(3, MAX_RUN, 1),
        ];
        let wanted: WantedFiles = all.into_iter().enumerate().collect();
        let (found, single) = runs(wanted.clone(), true);
        let shown: Vec<(u8, Range<u64>, Vec<usize>)> = found
            .iter()
            .map(|run| (number(&run.object), run.range.clone(), run.parts.iter().map(|part| part.0).collect()))
            .collect();
        assert_eq!(
            shown,
            [
                (1, 0..151 + MAX_GAP, vec![2, 5, 1, 3]),
                (1, 152 + 2 * MAX_GAP..153 + 2 * MAX_GAP, vec![4]),
                (2, 0..10, vec![0]),
                (3, 0..MAX_RUN, vec![7]),
                (3, MAX_RUN..MAX_RUN + 1, vec![8]),
            ]
        );
        assert_eq!(single.len(), 1);
        assert_eq!(runs(wanted, false).1.len(), 9);
    }
}
