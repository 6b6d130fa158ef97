//! Appends files to the arrays of a group along a dimension.
//!
//! The decision about what fits, and in which order, is that of [`icechunkfs_ingest`]; here the
//! archive is read, and the result laid out over it. A chunk that the archive has a part of keeps
//! that part: it is read when the new chunk is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::runtime::Handle;

use super::archive::{Archive, Bound, stored_chunk};
use super::first_lines;
use super::opened::raise_file_limit;
use super::order::{Appending, coordinates_of, in_order, without_coordinate};
use super::planned::{self, LeftOut, Opener, Original, Places, READ_AT_ONCE, append_range, each, named};
use super::scan::{GROUP_IN_PLACE, Scanned, ScannedFile, is_group};
use super::sources::ImportSource;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::{self, Meter};
use icechunkfs_base::size::counted;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::{NodeData, Snapshot};
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::chunk_key::KeyEncoding;
use icechunkfs_ingest::plan::{Array, Plan};
use icechunkfs_ingest::recode;
use icechunkfs_ingest::series::{self, Existing, Growing, Refusal, Series, Whole};
use icechunkfs_ingest::source::Source;
use icechunkfs_repo::commit::changes::MadeChunk;
use icechunkfs_repo::commit::conflict::Conflict;
use icechunkfs_repo::commit::request::CommitHost;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{NodeIndex, ZARR_JSON};

/// Files that are appended.
#[derive(Debug)]
struct Files {
    /// In the order in which they follow each other.
    originals: Vec<Arc<Original>>,
    tree: Arc<Tree>,
    runtime: Handle,
}

impl Files {
    fn plans(&self) -> Vec<&Plan> {
        self.originals.iter().map(|original| &*original.plan).collect()
    }

    fn with_plans(&self) -> Vec<(&Plan, &dyn Source)> {
        self.originals.iter().map(|original| (&*original.plan, &original.file as &dyn Source)).collect()
    }
}

/// Chunk with elements of files, and of the archive.
#[derive(Debug)]
struct AppendedChunk {
    files: Arc<Files>,
    array: Arc<Growing>,
    coords: Coords,
    /// The array in the archive, if the chunk has elements of that.
    earlier: Option<NodeIndex>,
    /// Bytes as it is stored.
    length: u64,
}

impl AppendedChunk {
    /// Returns the chunk with its length, which only making it tells if it is compressed or has
    /// texts. One with converted elements is made to see whether it can be: nothing is stored yet.
    fn measured(self) -> Result<Self> {
        if self.array.longest().is_none() && !self.array.is_converted() {
            return Ok(self);
        }
        let mut made = Vec::new();
        self.make(&mut made)?;
        Ok(AppendedChunk { length: made.len() as u64, ..self })
    }

    fn make(&self, out: &mut Vec<u8>) -> Result<()> {
        let bound = Bound::of(&self.array);
        let stored = |node| self.files.runtime.block_on(stored_chunk(&self.files.tree, node, &self.coords, bound));
        let earlier = self.earlier.map(stored).transpose()?.flatten();
        self.array.read_chunk(&self.files.with_plans(), &self.coords, earlier.as_deref(), out)
    }
}

impl MadeChunk for AppendedChunk {
    fn length(&self) -> u64 {
        self.length
    }

    fn workspace(&self) -> u64 {
        self.array.workspace()
    }

    fn is_new(&self) -> bool {
        self.earlier.is_some()
    }

    fn describe(&self) -> String {
        format!("chunk {:?} of {}", self.coords, self.array.name)
    }

    fn read(&self, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        append_range(range, self.length(), out, |out| self.make(out))
    }
}

/// Group of a snapshot that nobody else may change before the files are appended to it: where they
/// begin, and what their numbers mean, was decided by that.
#[derive(Debug)]
struct Unchanged {
    base: Arc<Snapshot>,
    /// Absolute path of the group; empty for the root.
    group: String,
}

impl Unchanged {
    /// Returns the arrays of the group in `snapshot`, with what they are and where their chunks are
    /// listed.
    fn arrays(&self, snapshot: &Snapshot) -> BTreeMap<String, (NodeId, Vec<u8>, Vec<ObjectId>)> {
        let in_group = |path: &str| path.rsplit_once('/').is_some_and(|(above, _)| above == self.group);
        let mut arrays = BTreeMap::new();
        for node in snapshot.nodes().filter(|node| in_group(node.path)) {
            if let NodeData::Array(array) = &node.data {
                let manifests = array.manifests().into_iter().map(|manifest| manifest.id).collect();
                arrays.insert(node.path.to_owned(), (node.id, node.zarr_json.to_vec(), manifests));
            }
        }
        arrays
    }
}

#[async_trait]
impl CommitHost for Unchanged {
    async fn conflicts_with(&self, tip: &Arc<Snapshot>, _has_landed: bool) -> Result<Vec<Conflict>> {
        if self.arrays(&self.base) == self.arrays(tip) {
            return Ok(Vec::new());
        }
        let message =
            "other commits changed the arrays while the files were appended: nothing was imported; import again";
        Err(Error::new(ErrorKind::Stale, message))
    }
}

/// Files, laid out over the archive.
pub(super) struct Appended {
    pub(super) scanned: Scanned,
    /// To be asked when the files are committed.
    pub(super) host: Arc<dyn CommitHost>,
    pub(super) left_out: LeftOut,
    /// Files that the archive has.
    pub(super) skipped: Vec<ImportSource>,
    /// The others, in the order in which they are appended.
    pub(super) order: Vec<ImportSource>,
}

/// Lays `files` out behind what the group `path` of `tree` has. Of them, `jobs` are opened at the
/// same time.
///
/// Errors: [`ErrorKind::InvalidInput`] if a file does not fit, with the reasons; others as for
/// reading.
pub(super) async fn lay_out(
    tree: &Arc<Tree>,
    path: &str,
    files: Vec<ImportSource>,
    how: &Appending,
    opener: &Opener,
    jobs: usize,
) -> Result<Appended> {
    raise_file_limit();
    make_room(files.len() as u64);
    if files.is_empty() {
        return Err(Error::invalid("there is no file to append"));
    }
    let mut originals = opener.open_all(&files, jobs).await?;
    if let Some(nested) = originals.iter().find(|original| !original.plan.groups.is_empty()) {
        return Err(Error::invalid(format!(
            "{}: it has groups, and only files without groups can be appended: open each group with xarray, and append \
             it in a mount",
            nested.shown
        )));
    }
    let scanned = Scanned::empty();
    let archive = Archive::at(tree, path)?;
    let existing = archive.arrays.as_deref();
    if how.reencode {
        originals = reencoded(originals, existing, &how.dimension)?;
    }
    // In any order: what fits is known before the coordinate can be read.
    series_of(existing, &originals, how)?;
    let stored = match archive.node(&how.dimension) {
        Some(node) => archive.coordinate(&originals, node, &how.dimension).await?,
        None => None,
    };
    let mut skipped = Vec::new();
    match coordinates_of(&originals, &how.dimension).await? {
        Some(coordinates) => (originals, skipped) = in_order(stored, originals, coordinates, how.clone()).await?,
        None if existing.is_none() && originals.len() == 1 && !how.skip_existing => {}
        None => return Err(without_coordinate(&how.dimension)),
    }
    let sources_of = |files: &[Arc<Original>]| files.iter().map(|original| original.source.clone()).collect();
    let [skipped, order]: [Vec<ImportSource>; 2] = [sources_of(&skipped), sources_of(&originals)];
    let host = Arc::new(Unchanged { base: Arc::clone(tree.snapshot()), group: absolute(path) });
    if originals.is_empty() {
        return Ok(Appended { scanned, host, left_out: LeftOut::default(), skipped, order });
    }
    let found = series_of(existing, &originals, how)?;
    let mut left_out = left_out(&originals, &found);
    if existing.is_none() && archive.has_attributes() {
        left_out.add("/", "attributes of the file left out: the group has its own");
    }
    check_fixed(&originals, &found.fixed, &archive).await?;
    let files = Arc::new(Files { originals, tree: Arc::clone(tree), runtime: Handle::current() });
    let scanned = over(&archive, scanned, &files, found).await?;
    Ok(Appended { scanned, host, left_out, skipped, order })
}

/// Lets the plans of so many files be held at the same time, in at most half of the memory, unless
/// the user has set a bound.
fn make_room(files: u64) {
    /// Bytes that the plan of a file with some hundred variables is counted as: 350 KiB for a
    /// hundred with two attributes each.
    const PLAN: u64 = 1 << 20;
    if memory::explicit_bound().is_none() {
        let half = memory::available_memory().unwrap_or_default() / 2;
        memory::raise_default_bound(memory::default_memory().saturating_add(files.saturating_mul(PLAN)).min(half));
    }
}

/// Returns the files, which nobody else has yet, with their arrays in the form of those of the
/// archive; without one in that of the first file.
fn reencoded(
    mut files: Vec<Arc<Original>>,
    archive: Option<&[Existing]>,
    dimension: &str,
) -> Result<Vec<Arc<Original>>> {
    let first = match (archive, files.first()) {
        (None, Some(first)) => recode::archive_of(&first.plan)?,
        _ => Vec::new(),
    };
    for original in files.iter_mut().filter_map(Arc::get_mut) {
        recode::fit(&mut original.plan, archive.unwrap_or(&first), dimension, &original.shown)?;
    }
    Ok(files)
}

fn absolute(path: &str) -> String {
    path.split('/').filter(|name| !name.is_empty()).fold(String::new(), |path, name| path + "/" + name)
}

/// Lays `series` out over the group `archive`.
async fn over(archive: &Archive<'_>, mut scanned: Scanned, files: &Arc<Files>, series: Series) -> Result<Scanned> {
    let mut meter = Meter::new("the chunks of an import");
    let Some(first) = files.originals.first() else { return Ok(scanned) };
    if archive.arrays.is_none() {
        if !archive.has_attributes() {
            scanned.add_over(ZARR_JSON, ScannedFile::Document(first.plan.document()?.into()));
        }
        // They are compared with those of each file that comes, and so have to be readable.
        let original = Arc::clone(first);
        let add = move || {
            for position in &series.fixed {
                planned::add_array(&mut scanned, &original, *position, false, &mut meter)?;
            }
            Ok((scanned, meter))
        };
        (scanned, meter) = blocking(add).await?;
    }
    let plans = files.plans();
    for array in series.growing {
        let there = archive.group.and_then(|group| archive.tree.table().child(group, &array.name));
        if there.is_some_and(|node| is_group(archive.tree, node)) {
            return Err(Error::invalid(format!("{}: {GROUP_IN_PLACE}", array.name)));
        }
        let array = Arc::new(array);
        let document = serde_json::to_vec(&array.document);
        let document = document.map_err(|e| Error::with_source(ErrorKind::InvalidInput, "writing a zarr.json", e))?;
        scanned.add_over(&format!("{}/{ZARR_JSON}", array.name), ScannedFile::Document(document.into()));
        let node = archive.node(&array.name);
        let encoding = KeyEncoding::parse(array.document.get("chunk_key_encoding"))?;
        // Each program reads the coordinate, also one that may not read the files.
        let may_be_virtual = first.virtual_from().is_some() && !array.is_coordinate();
        for coords in Places::within(array.changed()?) {
            let key = format!("{}/{}", array.name, encoding.key(&coords));
            let earlier = node.filter(|_| array.has_earlier(&coords));
            let is_virtual = may_be_virtual && earlier.is_none();
            let found = match is_virtual.then(|| array.place_of(&plans, &coords)).flatten() {
                Some((whole, place)) => virtual_chunk(files, whole, &place).await?,
                None => None,
            };
            meter.count(planned::cost_of(found.as_ref()))?;
            if let Some(found) = found {
                scanned.add_over(&key, ScannedFile::Virtual(found));
            } else if let Some(made) = chunk(files, &plans, &array, coords, earlier).await? {
                scanned.add_over(&key, ScannedFile::Chunk(made));
            }
        }
    }
    scanned.hold(meter.into());
    Ok(scanned)
}

/// Returns the virtual chunk that is `whole`, at the bytes `place` of its file; none if it is to be
/// copied. Only a checksum takes a look at the file.
async fn virtual_chunk(files: &Files, whole: Whole, place: &Range<u64>) -> Result<Option<ChunkPayload>> {
    let Some(original) = files.originals.get(whole.file) else { return Ok(None) };
    let found = original.virtual_chunk(place).zip(original.plan.arrays.get(whole.array));
    let Some((chunk, of_file)) = found else { return Ok(None) };
    if of_file.has_checksums() {
        let original = Arc::clone(original);
        let length = chunk.length();
        blocking(move || original.check_chunk(whole.array, &whole.coords, length)).await?;
    }
    Ok(Some(chunk))
}

/// Returns the chunk at `coords`: one of `files`, whose plans are `plans`, as it is, or one that is
/// made of elements; none if a file has nothing there.
async fn chunk(
    files: &Arc<Files>,
    plans: &[&Plan],
    array: &Arc<Growing>,
    coords: Coords,
    earlier: Option<NodeIndex>,
) -> Result<Option<Arc<dyn MadeChunk>>> {
    let whole = array.whole_chunk(plans, &coords).filter(|_| earlier.is_none());
    let found = whole.and_then(|whole| Some((files.originals.get(whole.file)?, whole)));
    let Some((original, whole)) = found else {
        let length = array.chunk_bytes();
        let made = AppendedChunk { files: Arc::clone(files), array: Arc::clone(array), coords, earlier, length };
        return Ok(Some(Arc::new(blocking(move || made.measured()).await?)));
    };
    // One that is copied as it is has its length in the plan.
    let of_file = original.plan.arrays.get(whole.array).ok_or_else(|| Error::invalid("an array of no file"))?;
    let length = of_file.stored_length(&original.file, &whole.coords)?;
    Ok(length.map(|length| planned::chunk_of(original, whole.array, whole.coords, length)))
}

/// Plans the series. Fails with all reasons why files do not fit.
fn series_of(archive: Option<&[Existing]>, files: &[Arc<Original>], how: &Appending) -> Result<Series> {
    let plans: Vec<&Plan> = files.iter().map(|original| &*original.plan).collect();
    let shown = |file: usize| files.get(file).map_or("", |original| original.shown.as_str());
    let virtual_from = files.first().and_then(|original| original.virtual_from());
    series::plan(archive, &plans, &how.dimension, virtual_from)?.map_err(|refusals| {
        let mut text = format!(
            "{} cannot be appended: nothing was imported\n",
            counted(refusals.iter().map(|refusal| refusal.file).collect::<BTreeSet<_>>().len() as u64, "file")
        );
        let line = |refusal: &Refusal| format!("{}: {}: {}", shown(refusal.file), refusal.variable, refusal.why);
        text += &first_lines(refusals.iter().map(line));
        text += if how.reencode {
            "--reencode converts no more than types, packing, compression by zlib, gzip and Zstandard, and units of time: change \
             the rest in a copy of the file.\n"
        } else {
            "--reencode converts types, packing, compression and units of time; values in other units have to be converted \
             in a copy of the file.\n"
        };
        Error::multi_line(ErrorKind::InvalidInput, &text)
    })
}

/// Fails unless the arrays at the positions `fixed` of the first file have the same values in all
/// files, and in the archive.
async fn check_fixed(files: &[Arc<Original>], fixed: &[usize], archive: &Archive<'_>) -> Result<()> {
    let Some((first, others)) = files.split_first() else { return Ok(()) };
    for array in fixed.iter().filter_map(|position| first.plan.arrays.get(*position)) {
        let compare = |other: Arc<Original>| {
            let name = array.name.clone();
            let reference = Arc::clone(first);
            blocking(move || match named(&reference.plan, &name).zip(named(&other.plan, &name)) {
                Some((own, there)) if own.has_values_of(&reference.file, there, &other.file)? => Ok(()),
                _ => Err(differs(&other.shown, &name, &reference.shown)),
            })
        };
        each(others, READ_AT_ONCE, compare).await?;
        if let Some(node) = archive.node(&array.name) {
            check_stored(first, array, archive, node).await?;
        }
    }
    Ok(())
}

fn differs(file: &str, name: &str, other: &str) -> Error {
    Error::invalid(format!(
        "{file}: {name} has other values than in {other}, and is not along the dimension: nothing was imported"
    ))
}

/// Fails unless the archive has the values of `array` of the file.
async fn check_stored(original: &Arc<Original>, array: &Array, archive: &Archive<'_>, node: NodeIndex) -> Result<()> {
    let Some(existing) = archive.existing(&array.name) else { return Ok(()) };
    let like = Arc::new(array.in_chunks_of(&existing.document)?);
    for coords in Places::of_grid(like.comparable_grid()?) {
        let stored = archive.elements(node, existing, &like, &coords).await?;
        let file = Arc::clone(original);
        let own = Arc::clone(&like);
        let is_same = blocking(move || {
            let mut bytes = Vec::new();
            own.read_chunk(&file.file, &coords, &mut bytes)?;
            Ok(own.has_same_elements(&coords, &bytes, stored.as_deref()))
        });
        if !is_same.await? {
            return Err(differs(&original.shown, &array.name, "the archive"));
        }
    }
    Ok(())
}

/// Returns what is left out of all files, each thing once.
fn left_out(files: &[Arc<Original>], series: &Series) -> LeftOut {
    let mut all: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut hidden = 0;
    for omissions in files.iter().map(|original| &original.plan.omissions).chain([&series.omissions]) {
        hidden += omissions.count.saturating_sub(omissions.list.len() as u64);
        for one in &omissions.list {
            *all.entry((&one.path, &one.why)).or_default() += 1;
        }
    }
    let mut left_out = LeftOut { count: hidden, ..LeftOut::default() };
    for ((path, why), count) in all {
        let why = if files.len() > 1 { format!("{why} (in {})", counted(count, "file")) } else { why.to_owned() };
        left_out.add(path, &why);
    }
    left_out
}
