//! Checks and writes one file of an export.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::destination::{Before, Destination};
use super::fetch::{Content, payload, whole_file};
use super::new_file::timespec;
use super::walk::{BATCH_BYTES, Item};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::times::set_modified;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_repo::reader::Data;
use icechunkfs_views::views::ViewTree;

/// Bytes of a large file that are in memory at a time.
const STEP: u32 = BATCH_BYTES as u32;
/// Bytes of the smallest hole. Smaller ones cost more calls than they save blocks.
const HOLE: usize = 64 << 10;
/// Bytes that are compared at a time.
const COMPARED: usize = 64 << 10;

/// Criterion by which an existing file is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completeness {
    /// No files exist.
    Empty,
    /// No existing file is complete.
    Never,
    /// The size and the time match.
    SizeAndTime,
    /// The bytes match.
    Bytes,
}

/// Action that a file needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// None, because the file is complete.
    Nothing,
    /// The file must be written.
    Write,
    /// The file must be written if its bytes differ.
    Compare,
}

/// Destination of files, and their common properties.
#[derive(Debug)]
pub(super) struct ExportTarget {
    destination: Arc<Destination>,
    trust: Completeness,
    /// Time of all files: the commit's, in microseconds since 1970-01-01 UTC.
    time: u64,
    /// Write nothing.
    dry_run: bool,
}

impl ExportTarget {
    /// Creates a target for the files of a commit at `time` in `destination`; with `checksum`,
    /// files of an export that is resumed are read and compared.
    pub(super) fn new(destination: Arc<Destination>, time: u64, checksum: bool, dry_run: bool) -> Self {
        let trust = match destination.before() {
            Before::Nothing => Completeness::Empty,
            // A comparison would read the kernel's cache.
            Before::Unflushed | Before::Foreign => Completeness::Never,
            Before::ResumedUnverified | Before::OtherContent => Completeness::Bytes,
            Before::Resumed if checksum => Completeness::Bytes,
            Before::Resumed => Completeness::SizeAndTime,
        };
        ExportTarget { destination, trust, time, dry_run }
    }

    pub(super) fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Returns true if no file exists.
    pub(super) fn is_empty(&self) -> bool {
        self.trust == Completeness::Empty
    }

    /// Returns the action that each of `items` needs.
    pub(super) fn needs(&self, items: Vec<Item>) -> Result<Vec<(Item, Action)>> {
        let mut last: Option<(Arc<str>, Option<Arc<OwnedFd>>)> = None;
        let mut needs = Vec::with_capacity(items.len());
        for item in items {
            if last.as_ref().is_none_or(|(folder, _)| *folder != item.folder) {
                last = Some((Arc::clone(&item.folder), self.destination.find_folder(&item.folder)?));
            }
            let folder = last.as_ref().and_then(|(_, folder)| folder.as_ref());
            let found = folder.map(|folder| self.destination.find(folder, &item.folder, &item.name)).transpose()?;
            let own = found.flatten().filter(|found| found.is_own);
            let need = match (own, self.trust) {
                (Some(found), Completeness::Bytes) if found.size == item.size => Action::Compare,
                (Some(found), Completeness::SizeAndTime) if found.size == item.size && found.is_of(self.time) => {
                    Action::Nothing
                }
                _ => Action::Write,
            };
            needs.push((item, need));
        }
        Ok(needs)
    }

    /// Writes a file into `folder` if necessary. Returns false if the file was complete.
    pub(super) fn file(&self, folder: &Arc<OwnedFd>, item: &Item, need: Action, mut content: Content) -> Result<bool> {
        if need == Action::Compare && self.is_same(folder, item, &mut content)? {
            self.renew_time(folder, item)?;
            return Ok(false);
        }
        if !self.dry_run {
            self.put(folder, item, content)?;
        }
        Ok(true)
    }

    fn failed(&self, item: &Item) -> impl Fn(std::io::Error) -> Error + use<> {
        let place = self.destination.path().join(item.path());
        move |e| Error::io(place.display(), e)
    }

    fn put(&self, folder: &Arc<OwnedFd>, item: &Item, content: Content) -> Result<()> {
        let mut file = self.destination.create(folder, &item.folder, &item.name)?;
        let length = match content {
            Content::Part(data, range) => {
                let bytes = data.get(range).unwrap_or_default();
                file.file().write_all(bytes).map_err(self.failed(item))?;
                bytes.len() as u64
            }
            // The kernel copies the bytes or shares the blocks. The inode is never shared, because
            // edits of the copy would change it.
            Content::File(mut source) => std::io::copy(&mut source, file.file()).map_err(self.failed(item))?,
        };
        if length != item.size {
            return Err(Error::corrupt(format!("{}: {length} of {} bytes were received", item.path(), item.size)));
        }
        self.destination.complete(file, &item.folder, self.time)
    }

    /// Sets the time of an existing file whose bytes are right, so that the next check finds it
    /// complete.
    fn renew_time(&self, folder: &OwnedFd, item: &Item) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        let Some(file) = self.destination.open_file(folder, &item.folder, &item.name)? else { return Ok(()) };
        set_modified(&file, timespec(self.time)).map_err(|e| self.failed(item)(e.into()))
    }

    /// Returns true if the existing file, whose length is right, has the bytes of `content`.
    fn is_same(&self, folder: &OwnedFd, item: &Item, content: &mut Content) -> Result<bool> {
        let Some(mut there) = self.destination.open_file(folder, &item.folder, &item.name)? else { return Ok(false) };
        let same = match content {
            Content::Part(data, range) => is_next(&mut there, data.get(range.clone()).unwrap_or_default()),
            Content::File(file) => are_same(file, &mut there),
        };
        same.map_err(self.failed(item))
    }

    /// Writes a file too large to be in memory at once, if necessary. Returns false if the file was
    /// complete.
    pub(super) async fn large(self: &Arc<Self>, view: &Arc<dyn ViewTree>, item: &Item, need: Action) -> Result<bool> {
        let payload = payload(&**view, item.inode).await?;
        let file = match payload.clone() {
            Some(payload) => whole_file(view.tree(), payload).await?,
            None => None,
        };
        if let Some(file) = file {
            let this = Arc::clone(self);
            let item = item.clone();
            return blocking(move || {
                let folder = this.destination.folder(&item.folder)?;
                this.file(&folder, &item, need, Content::File(file))
            })
            .await;
        }
        if need == Action::Compare && self.is_same_large(view, item, payload.as_ref()).await? {
            return Ok(false);
        }
        if self.dry_run {
            return Ok(true);
        }
        let this = Arc::clone(self);
        let own = item.clone();
        let mut file = blocking(move || {
            let folder = this.destination.folder(&own.folder)?;
            this.destination.create(&folder, &own.folder, &own.name)
        })
        .await?;
        let mut offset = 0;
        while offset < item.size {
            let data = step(view, item, payload.as_ref(), offset).await?;
            offset += data.len() as u64;
            let failed = self.failed(item);
            let is_last = offset >= item.size;
            let write = move || {
                write_sparse(file.file(), &data, is_last)?;
                Ok(file)
            };
            file = blocking(move || write().map_err(failed)).await?;
        }
        let this = Arc::clone(self);
        let folder = Arc::clone(&item.folder);
        blocking(move || this.destination.complete(file, &folder, this.time)).await?;
        Ok(true)
    }

    async fn is_same_large(
        self: &Arc<Self>,
        view: &Arc<dyn ViewTree>,
        item: &Item,
        payload: Option<&ChunkPayload>,
    ) -> Result<bool> {
        let this = Arc::clone(self);
        let own = item.clone();
        let (folder, file) = blocking(move || {
            let folder = this.destination.folder(&own.folder)?;
            let file = this.destination.open_file(&folder, &own.folder, &own.name)?;
            Ok((folder, file))
        })
        .await?;
        let Some(mut file) = file else { return Ok(false) };
        let mut offset = 0;
        while offset < item.size {
            let data = step(view, item, payload, offset).await?;
            offset += data.len() as u64;
            let failed = self.failed(item);
            let compared = move || is_next(&mut file, &data).map(|same| (file, same)).map_err(failed);
            let (back, same) = blocking(compared).await?;
            if !same {
                return Ok(false);
            }
            file = back;
        }
        self.renew_time(&folder, item)?;
        Ok(true)
    }
}

/// Writes `data`. Parts without bytes, which files that a view makes have many of, become holes;
/// the end of the file is written.
fn write_sparse(file: &mut File, data: &[u8], is_last: bool) -> std::io::Result<()> {
    let mut parts = data.chunks(HOLE).peekable();
    while let Some(part) = parts.next() {
        let is_end = is_last && parts.peek().is_none();
        if is_end || part.iter().any(|byte| *byte != 0) {
            file.write_all(part)?;
        } else {
            file.seek(SeekFrom::Current(part.len() as i64))?;
        }
    }
    Ok(())
}

/// Reads the next bytes of a large file.
async fn step(view: &Arc<dyn ViewTree>, item: &Item, payload: Option<&ChunkPayload>, offset: u64) -> Result<Data> {
    let data = match payload {
        Some(payload) => view.tree().read_stored(payload, offset, STEP).await,
        None => view.read(item.inode, offset, STEP).await,
    };
    let data = data.context(|| item.path())?;
    if data.is_empty() {
        return Err(Error::corrupt(format!("{}: it ends after {offset} bytes", item.path())));
    }
    Ok(data)
}

/// Returns true if two files of one length have the same bytes. The first is rewound afterwards.
fn are_same(one: &mut File, other: &mut File) -> std::io::Result<bool> {
    let mut buffer = vec![0; COMPARED];
    let mut same = true;
    while same {
        let count = one.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        same = is_next(other, buffer.get(..count).unwrap_or_default())?;
    }
    one.rewind()?;
    Ok(same)
}

/// Returns true if the next bytes of `file` are `bytes`.
fn is_next(file: &mut File, bytes: &[u8]) -> std::io::Result<bool> {
    let mut buffer = vec![0; bytes.len().min(COMPARED)];
    for part in bytes.chunks(COMPARED) {
        let read = buffer.get_mut(..part.len()).unwrap_or_default();
        match file.read_exact(read) {
            Ok(()) if read == part => {}
            Ok(()) => return Ok(false),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}
