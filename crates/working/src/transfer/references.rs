//! Presents kerchunk references as a tree of Zarr 2: its documents, and chunks that are ranges of
//! other files, copied or virtual.
//!
//! The one who wrote the references says which files are read, and that may be a stranger. So a
//! file of this machine is read if it lies in the directory that has the references, and anything
//! else if the user allows its prefix.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::opened::{OpenFile, raise_file_limit};
use super::planned::{LeftOut, Opener, append_range, cost_of, each};
use super::scan::{Scanned, ScannedFile};
use super::sources::ImportSource;
use super::version_2;
use super::virtual_refs::VirtualTarget;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_ingest::apart::Reader;
use icechunkfs_ingest::kerchunk::records::Records;
use icechunkfs_ingest::kerchunk::{self, Reference};
use icechunkfs_ingest::source::Source as _;
use icechunkfs_ingest::zarr2;
use icechunkfs_repo::commit::changes::MadeChunk;
use icechunkfs_store::storage::virtuals::address::{Address, Scheme};
use icechunkfs_store::storage::virtuals::target_of;

/// Most bytes of a file of references. A million of them have some 100 MiB.
const MAX_LENGTH: u64 = 512 << 20;
/// End of the names of files in JSON.
const ENDING: &str = "json";

/// References, and the files that they name.
#[derive(Debug)]
pub(super) struct References {
    parsed: Metered<kerchunk::References>,
    /// Path of the file or directory that has them, for messages.
    shown: String,
    /// Directory that this one is in.
    directory: Address,
    /// Files by their positions.
    pub(super) files: Vec<ImportSource>,
}

impl References {
    /// Reads the references that the one of `sources` is; none if it is something else. Files in
    /// Parquet are read by `apart`.
    ///
    /// Errors: as for [`kerchunk::json::parse`] and [`Records`]; [`ErrorKind::Unsupported`] if a
    /// file is too long.
    pub(super) async fn of(sources: &[ImportSource], apart: &Reader) -> Result<Option<Arc<Self>>> {
        let [ImportSource::Local(path)] = sources else { return Ok(None) };
        let path = path.clone();
        let apart = apart.clone();
        blocking(move || {
            let read = if path.extension().is_some_and(|ending| ending == ENDING) && path.is_file() {
                whole(&path).and_then(|json| kerchunk::json::parse(&json))
            } else if has_records(&path) {
                records(&path, &apart)
            } else {
                return Ok(None);
            };
            let shown = || path.display();
            References::new(&path, read.context(shown)?).context(shown).map(|found| Some(Arc::new(found)))
        })
        .await
    }

    fn new(path: &Path, parsed: Metered<kerchunk::References>) -> Result<Self> {
        let real = std::fs::canonicalize(path).map_err(|e| Error::io("its path", e))?;
        let directory = real.parent().unwrap_or(Path::new("/"));
        let name =
            directory.to_str().ok_or_else(|| Error::invalid("no reference can have a path that is not UTF-8"))?;
        let files = parsed.files.iter().map(|url| source_of(url, directory)).collect::<Result<_>>()?;
        Ok(References { directory: Address::directory(name)?, files, shown: path.display().to_string(), parsed })
    }

    /// Lays the hierarchy out in version 3, with at most `jobs` files opened at the same time. Also
    /// returns what is not as it was.
    ///
    /// Errors: [`ErrorKind::VirtualNotAllowed`] for a file that may not be read,
    /// [`ErrorKind::Corrupt`] for a range that its file does not have; others as for reading.
    pub(super) async fn lay_out(self: &Arc<Self>, opener: &Opener, jobs: usize) -> Result<(Scanned, LeftOut)> {
        let open = |source: ImportSource| {
            let opener = opener.clone();
            let references = Arc::clone(self);
            blocking(move || references.open(&source, &opener).context(|| source.to_string()).map(Arc::new))
        };
        raise_file_limit();
        let opened = each(&self.files, jobs, open).await.context(|| self.shown.clone())?;
        let references = Arc::clone(self);
        blocking(move || {
            let (scanned, meter) = references.files_of(&opened).context(|| references.shown.clone())?;
            let (mut converted, left_out) = version_2::converted(&scanned).context(|| references.shown.clone())?;
            converted.hold(meter.into());
            Ok((converted, left_out))
        })
        .await
    }

    /// Opens a file that the references name.
    fn open(&self, source: &ImportSource, opener: &Opener) -> Result<ReferencedFile> {
        let file = match source {
            ImportSource::Local(path) => self.open_local(path, opener)?,
            ImportSource::Object(address) => OpenFile::object(address, &opener.virtuals, &opener.runtime)?,
        };
        // No plan is made of it, and there may be thousands.
        file.forget_head();
        let target = opener.places.as_ref().map(|places| places.target(&file)).transpose()?;
        Ok(ReferencedFile { file, shown: source.to_string(), target })
    }

    /// Opens a file of this machine that may be read: by where it is, whatever links lead there.
    fn open_local(&self, path: &Path, opener: &Opener) -> Result<OpenFile> {
        let file = OpenFile::local(path)?;
        if let Some(opened) = file.local() {
            let (address, _) = target_of(&opened.descriptor()?, &opened.metadata()?)?;
            if self.directory.rest_of(&address).is_none() && !opener.virtuals.allows_file(&address) {
                let above = address.parent().as_prefix();
                let message = format!(
                    "it is not in the directory of the references: if they may read it, --allow-virtual '{above}'"
                );
                return Err(Error::new(ErrorKind::VirtualNotAllowed, message));
            }
        }
        Ok(file)
    }

    /// Lays the keys out as files.
    fn files_of(&self, opened: &[Arc<ReferencedFile>]) -> Result<(Scanned, Meter)> {
        let mut scanned = Scanned::empty();
        let mut meter = Meter::new("the chunks of an import");
        for (key, reference) in &self.parsed.entries {
            let name = key.rsplit('/').next().unwrap_or_default();
            // Each directory has the path up to it.
            meter.count(key.split('/').count() as u64 * key.len() as u64)?;
            let range = match reference {
                Reference::Inline(bytes) => {
                    meter.count(cost_of(None) + 2 * bytes.len() as u64)?;
                    let bytes = Bytes::copy_from_slice(bytes);
                    // Documents begin with a dot.
                    scanned.add_over(
                        key,
                        if name.starts_with('.') { ScannedFile::Document(bytes) } else { inline(bytes) },
                    );
                    continue;
                }
                Reference::Range { file, offset, length } => {
                    opened.get(*file).map(|file| (file, *offset..offset + length))
                }
                Reference::Whole(file) => opened.get(*file).map(|file| (file, 0..file.file.length())),
            };
            let (file, range) = range.ok_or_else(|| Error::invalid("a file that the references do not name"))?;
            if range.is_empty() || range.end > file.file.length() {
                let length = file.file.length();
                return Err(Error::corrupt(format!("{key}: {} has {length} bytes, and not {range:?}", file.shown)));
            }
            let chunk = file.target.as_ref().and_then(|target| target.chunk(&range));
            meter.count(cost_of(chunk.as_ref()))?;
            let made = || ScannedFile::Chunk(Arc::new(RangeOfFile { file: Arc::clone(file), range }));
            scanned.add_over(key, chunk.map_or_else(made, ScannedFile::Virtual));
        }
        Ok((scanned, meter))
    }
}

/// Returns the bytes of a file in JSON.
fn whole(path: &Path) -> Result<Metered<Vec<u8>>> {
    let file = OpenFile::local(path)?;
    let length = file.length();
    if length > MAX_LENGTH {
        let message = format!("a file of references has at most {} MiB: write several", MAX_LENGTH >> 20);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let mut meter = Meter::new("the references of an import");
    meter.count(length)?;
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read(0, &mut bytes)?;
    Ok(meter.finish(bytes))
}

/// Says whether a directory has references in Parquet: a tree of Zarr 2 with `.zmetadata` also has
/// a document of its root.
fn has_records(directory: &Path) -> bool {
    directory.join(zarr2::CONSOLIDATED).is_file()
        && [zarr2::GROUP, zarr2::ARRAY].iter().all(|name| !directory.join(name).exists())
}

fn records(directory: &Path, apart: &Reader) -> Result<Metered<kerchunk::References>> {
    let mut records = Records::parse(&whole(&directory.join(zarr2::CONSOLIDATED))?)?;
    for array in records.directories() {
        for (number, path) in files_of_array(&directory.join(&array))? {
            let shown = || path.strip_prefix(directory).unwrap_or(&path).display();
            let rows = OpenFile::local(&path).and_then(|file| apart.rows(&file)).context(shown)?;
            records.add(&array, number, rows.into_inner()).context(shown)?;
        }
    }
    records.finish()
}

/// Returns the files of rows in the directory of an array, by their numbers; none if it has no
/// directory.
fn files_of_array(directory: &Path) -> Result<BTreeMap<u64, PathBuf>> {
    let failed = |e| Error::io(directory.display(), e);
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if let Some(number) = entry.file_name().to_str().and_then(Records::number_of) {
            found.insert(number, entry.path());
        }
    }
    Ok(found)
}

/// Returns the file that a reference names: a URL, or a path below the directory of the references.
fn source_of(url: &str, directory: &Path) -> Result<ImportSource> {
    if !url.contains("://") {
        return Ok(ImportSource::Local(directory.join(url)));
    }
    let address = Address::object(url)?;
    match address.scheme() {
        Scheme::File => Ok(ImportSource::Local(PathBuf::from("/").join(address.components().join("/")))),
        Scheme::Container => Err(Error::invalid(format!("{address}: a container is of a repository"))),
        _ => Ok(ImportSource::Object(address)),
    }
}

/// File that references name.
#[derive(Debug)]
struct ReferencedFile {
    file: OpenFile,
    /// Path or URL, for messages.
    shown: String,
    /// The same for virtual chunks; none if all are copied.
    target: Option<VirtualTarget>,
}

/// Chunk that is a range of a file.
#[derive(Debug)]
struct RangeOfFile {
    file: Arc<ReferencedFile>,
    range: Range<u64>,
}

impl MadeChunk for RangeOfFile {
    fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn workspace(&self) -> u64 {
        0
    }

    fn describe(&self) -> String {
        self.file.shown.clone()
    }

    fn read(&self, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        out.resize(start.saturating_add(length), 0);
        let into = out.get_mut(start..).unwrap_or_default();
        self.file.file.read(self.range.start + range.start, into).context(|| self.file.shown.clone())
    }
}

/// Chunk that the references have themselves.
#[derive(Debug)]
struct InlineChunk(Bytes);

fn inline(bytes: Bytes) -> ScannedFile {
    ScannedFile::Chunk(Arc::new(InlineChunk(bytes)))
}

impl MadeChunk for InlineChunk {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn workspace(&self) -> u64 {
        0
    }

    fn describe(&self) -> String {
        "a chunk in the references".to_owned()
    }

    fn read(&self, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        append_range(range, self.length(), out, |out| {
            out.extend_from_slice(&self.0);
            Ok(())
        })
    }
}
