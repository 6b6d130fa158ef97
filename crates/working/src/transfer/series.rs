//! Appends files to the arrays of a group along a dimension.
//!
//! The decision about what fits, and in which order, is that of [`icechunkfs_ingest`]; here the
//! archive is read, and the result laid out over it. A chunk that the archive has a part of keeps
//! that part: it is read when the new chunk is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use super::opened::raise_file_limit;
use super::planned::{self, LeftOut, Opener, Original, Places, append_range, each, node_at};
use super::scan::{GROUP_IN_PLACE, Scanned, ScannedFile, is_group};
use super::sources::ImportSource;
use super::{NAMED, first_lines};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_base::printable;
use icechunkfs_base::size::counted;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::{NodeData, Snapshot};
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::chunk_key::KeyEncoding;
use icechunkfs_ingest::coordinate::{self, Between, Coordinate, Order};
use icechunkfs_ingest::plan::{Array, Plan};
use icechunkfs_ingest::series::{self, Existing, Growing, Refusal, Series, Whole};
use icechunkfs_ingest::source::Source;
use icechunkfs_repo::commit::changes::MadeChunk;
use icechunkfs_repo::commit::conflict::Conflict;
use icechunkfs_repo::commit::request::CommitHost;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{NodeIndex, ZARR_JSON};

/// Rules for files that follow each other.
#[derive(Clone, Debug, Default)]
pub struct Appending {
    /// Dimension along which they do.
    pub dimension: String,
    /// Append also where values of the coordinate are missing.
    pub allow_gaps: bool,
    /// Leave out files whose values of the coordinate the archive has.
    pub skip_existing: bool,
}

/// Files that are read at the same time: each waits for its store.
const READ_AT_ONCE: usize = 8;

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
    /// Returns the chunk with its length, which only making it tells if it is compressed.
    fn measured(self) -> Result<Self> {
        if !self.array.is_coded() {
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

/// Bytes that a chunk of an archive may have.
#[derive(Clone, Copy)]
enum Bound {
    Exactly(u64),
    /// Compressed ones may be a little longer than their elements.
    UpTo(u64),
}

impl Bound {
    fn of(array: &Growing) -> Self {
        Bound::new(array.chunk_bytes(), array.is_coded())
    }

    fn new(bytes: u64, is_coded: bool) -> Self {
        /// Bytes that a codec may add, besides a part of the length.
        const MORE: u64 = 1 << 10;
        let longer = bytes.saturating_add(bytes / 8).saturating_add(MORE);
        if is_coded { Bound::UpTo(longer) } else { Bound::Exactly(bytes) }
    }
}

/// Reads a chunk of the archive, of so many bytes; none if it is not stored.
///
/// Errors: [`ErrorKind::Corrupt`] if it has others.
async fn stored_chunk(tree: &Arc<Tree>, node: NodeIndex, coords: &[u32], bound: Bound) -> Result<Option<Bytes>> {
    let Some(payload) = tree.payload_at(node, coords).await? else { return Ok(None) };
    // Before there is memory for it.
    let wrong = match bound {
        Bound::Exactly(bytes) => (payload.length() != bytes).then(|| format!("not {bytes}")),
        Bound::UpTo(bytes) => (payload.length() > bytes).then(|| format!("more than {bytes}")),
    };
    if let Some(wrong) = wrong {
        let path = tree.table().path(node);
        return Err(Error::corrupt(format!("{path}: chunk {coords:?} has {} bytes, {wrong}", payload.length())));
    }
    tree.reader().read_payload(&payload).await.map(Some)
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
    /// Paths of the files that the archive has.
    pub(super) skipped: Vec<String>,
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
    // In any order: what fits is known before the coordinate can be read.
    series_of(existing, &originals, &how.dimension)?;
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
    let host = Arc::new(Unchanged { base: Arc::clone(tree.snapshot()), group: absolute(path) });
    if originals.is_empty() {
        return Ok(Appended { scanned, host, left_out: LeftOut::default(), skipped });
    }
    let found = series_of(existing, &originals, &how.dimension)?;
    let mut left_out = left_out(&originals, &found);
    if existing.is_none() && archive.has_attributes() {
        left_out.add("/", "attributes of the file left out: the group has its own");
    }
    check_fixed(&originals, &found.fixed, &archive).await?;
    let files = Arc::new(Files { originals, tree: Arc::clone(tree), runtime: Handle::current() });
    let scanned = archive.over(scanned, &files, found).await?;
    Ok(Appended { scanned, host, left_out, skipped })
}

fn absolute(path: &str) -> String {
    path.split('/').filter(|name| !name.is_empty()).fold(String::new(), |path, name| path + "/" + name)
}

/// Group to which files are appended.
struct Archive<'a> {
    tree: &'a Arc<Tree>,
    group: Option<NodeIndex>,
    /// Its arrays; none if it has none yet.
    arrays: Option<Vec<Existing>>,
}

impl<'a> Archive<'a> {
    fn at(tree: &'a Arc<Tree>, path: &str) -> Result<Self> {
        let Some(group) = node_at(tree, path) else { return Ok(Archive { tree, group: None, arrays: None }) };
        if tree.table().array(group).is_some() {
            return Err(Error::invalid(format!("{path} is an array: files are appended to the arrays of a group")));
        }
        let mut arrays = Vec::new();
        for node in tree.table().children(group).iter().copied().filter(|node| tree.table().array(*node).is_some()) {
            let name = tree.table().name(node).to_owned();
            let document = serde_json::from_slice(tree.zarr_json(node).unwrap_or_default());
            let document: Map<String, Value> =
                document.map_err(|e| Error::with_source(ErrorKind::Corrupt, format!("{name}: zarr.json"), e))?;
            arrays.push(Existing { name, document });
        }
        Ok(Archive { tree, group: Some(group), arrays: Some(arrays).filter(|arrays| !arrays.is_empty()) })
    }

    /// Returns true if the group has attributes of its own, which stay.
    fn has_attributes(&self) -> bool {
        let document = self.group.and_then(|group| self.tree.zarr_json(group));
        let document: Option<Value> = document.and_then(|document| serde_json::from_slice(document).ok());
        let attributes = document.as_ref().and_then(|document| document.get("attributes")?.as_object());
        attributes.is_some_and(|attributes| !attributes.is_empty())
    }

    fn node(&self, name: &str) -> Option<NodeIndex> {
        self.tree.table().child(self.group?, name).filter(|node| self.tree.table().array(*node).is_some())
    }

    /// Reads the coordinate of `dimension`, the array `node` of plain elements.
    async fn coordinate(
        &self,
        files: &[Arc<Original>],
        node: NodeIndex,
        dimension: &str,
    ) -> Result<Option<Coordinate>> {
        let Some(original) = files.first() else { return Ok(None) };
        let plan: &Plan = &original.plan;
        let array = named(plan, dimension).zip(self.existing(dimension));
        let Some((array, existing)) = array else { return Ok(None) };
        let array = array.in_chunks_of(&existing.document)?;
        let Some(stored) = self.tree.table().array(node) else { return Ok(None) };
        let ([length], [chunks]) = (&*stored.shape, &*stored.grid) else { return Ok(None) };
        let bytes_of_all = length.saturating_mul(array.fill().len() as u64);
        let mut meter = Meter::new("the coordinate of an archive");
        meter.count(bytes_of_all.saturating_add(array.chunk_bytes()))?;
        let mut bytes = Vec::new();
        for chunk in 0..*chunks {
            let bound = Bound::new(array.chunk_bytes(), array.is_coded());
            match stored_chunk(self.tree, node, &[chunk], bound).await? {
                Some(stored) => bytes.append(&mut series::decoded(&existing.document, &stored, array.chunk_bytes())?),
                None => {
                    return Err(Error::invalid(format!("{dimension}: the archive does not have chunk {chunk} of it")));
                }
            }
        }
        let wanted = usize::try_from(bytes_of_all).unwrap_or(usize::MAX);
        bytes.truncate(wanted);
        if bytes.len() != wanted {
            return Err(Error::corrupt(format!("{dimension}: its chunks are shorter than the array")));
        }
        Coordinate::of_bytes(plan, dimension, &bytes)
    }

    fn existing(&self, name: &str) -> Option<&Existing> {
        self.arrays.iter().flatten().find(|existing| existing.name == name)
    }

    /// Lays `series` out over the group.
    async fn over(&self, mut scanned: Scanned, files: &Arc<Files>, series: Series) -> Result<Scanned> {
        let mut meter = Meter::new("the chunks of an import");
        let Some(first) = files.originals.first() else { return Ok(scanned) };
        if self.arrays.is_none() {
            if !self.has_attributes() {
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
            let there = self.group.and_then(|group| self.tree.table().child(group, &array.name));
            if there.is_some_and(|node| is_group(self.tree, node)) {
                return Err(Error::invalid(format!("{}: {GROUP_IN_PLACE}", array.name)));
            }
            let array = Arc::new(array);
            let document = serde_json::to_vec(&array.document);
            let document =
                document.map_err(|e| Error::with_source(ErrorKind::InvalidInput, "writing a zarr.json", e))?;
            scanned.add_over(&format!("{}/{ZARR_JSON}", array.name), ScannedFile::Document(document.into()));
            let node = self.node(&array.name);
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
fn series_of(archive: Option<&[Existing]>, files: &[Arc<Original>], dimension: &str) -> Result<Series> {
    let plans: Vec<&Plan> = files.iter().map(|original| &*original.plan).collect();
    let shown = |file: usize| files.get(file).map_or("", |original| original.shown.as_str());
    let virtual_from = files.first().and_then(|original| original.virtual_from());
    series::plan(archive, &plans, dimension, virtual_from)?.map_err(|refusals| {
        let mut text = format!(
            "{} cannot be appended: nothing was imported\n",
            counted(refusals.iter().map(|refusal| refusal.file).collect::<BTreeSet<_>>().len() as u64, "file")
        );
        let line = |refusal: &Refusal| format!("{}: {}: {}", shown(refusal.file), refusal.variable, refusal.why);
        text += &first_lines(refusals.iter().map(line));
        text += "Times and packing are converted by xarray, in a mount of the repository: to_zarr(MOUNTPOINT, append_dim=...). Values in \
                 other units have to be converted first: xarray would store them as they are.\n";
        Error::multi_line(ErrorKind::InvalidInput, &text)
    })
}

/// Returns the coordinate of each file; none if any has none.
async fn coordinates_of(files: &[Arc<Original>], dimension: &str) -> Result<Option<Vec<Coordinate>>> {
    let read = |original: Arc<Original>| {
        let dimension = dimension.to_owned();
        blocking(move || {
            Coordinate::read(&original.plan, &dimension, &original.file).context(|| original.shown.clone())
        })
    };
    let all = each(files, READ_AT_ONCE, read).await?;
    Ok(all.into_iter().collect())
}

fn without_coordinate(dimension: &str) -> Error {
    let dimension = printable::line(dimension);
    Error::invalid(format!(
        "not all files have a variable {dimension}({dimension}) of numbers: their order, and what is there already, cannot be known. \
         Nothing was imported: append to the archive with xarray, in a mount"
    ))
}

/// Returns the files in the order of their values, and the names of those that are left out as the
/// archive has them.
///
/// Errors: [`ErrorKind::InvalidInput`] if values are there twice, or missing and that is not
/// allowed.
async fn in_order(
    stored: Option<Coordinate>,
    files: Vec<Arc<Original>>,
    values: Vec<Coordinate>,
    how: Appending,
) -> Result<(Vec<Arc<Original>>, Vec<String>)> {
    blocking(move || {
        let is_there = |values: &Coordinate| how.skip_existing && stored.as_ref().is_some_and(|all| values.is_in(all));
        let (there, new): (Vec<_>, Vec<_>) = std::iter::zip(files, values).partition(|(_, values)| is_there(values));
        let skipped = there.into_iter().map(|(original, _)| original.shown.clone()).collect();
        let (files, values): (Vec<Arc<Original>>, Vec<Coordinate>) = new.into_iter().unzip();
        let shown = |file: usize| files.get(file).map_or("", |original| original.shown.as_str());
        let order = coordinate::order(stored.as_ref(), &values)
            .map_err(|(file, error)| error.context(file.map_or("the archive", shown)))?;
        let lies_before = |one: &Between| {
            one.after.is_none() && stored.as_ref().zip(values.get(one.file)).is_some_and(|(all, own)| !own.meets(all))
        };
        if let Some(one) = order.overlaps.iter().find(|one| lies_before(one)) {
            return Err(Error::invalid(format!(
                "{}: it begins at {}, and the archive ends at {}: nothing was imported; write values before the end \
                 with xarray, in a mount",
                shown(one.file),
                one.first,
                one.last
            )));
        }
        check_order(&order, &how, shown)?;
        Ok((order.files.iter().filter_map(|file| files.get(*file).cloned()).collect(), skipped))
    })
    .await
}

/// Fails if values are there twice, or missing and that is not allowed.
fn check_order<'a>(order: &Order, how: &Appending, shown: impl Fn(usize) -> &'a str) -> Result<()> {
    let lines = |all: &[Between]| -> String {
        let line = |one: &Between| {
            let before = one.after.map_or("the archive", &shown);
            let text = format!("{} begins at {}, and {before} ends at {}", shown(one.file), one.first, one.last);
            format!("  {}\n", printable::line(&text))
        };
        all.iter().take(NAMED).map(line).collect()
    };
    let dimension = printable::line(&how.dimension);
    if !order.overlaps.is_empty() {
        let is_of_archive = order.overlaps.iter().any(|one| one.after.is_none());
        let next = match (is_of_archive, how.skip_existing) {
            (true, false) => "--skip-existing leaves out files whose values are all in the archive.",
            (true, true) => {
                "Only files whose values are all in the archive are left out: remove the values that it has from the \
                 others."
            }
            (false, _) => "Name each file once, and remove the values that another file has.",
        };
        let text = format!(
            "values of {dimension} do not follow those before: nothing was imported\n{}{next}\n",
            lines(&order.overlaps)
        );
        return Err(Error::multi_line(ErrorKind::InvalidInput, &text));
    }
    if !order.gaps.is_empty() && !how.allow_gaps {
        let text = format!(
            "values of {dimension} are missing: nothing was imported\n{}Name the files between, or add --allow-gaps.\n",
            lines(&order.gaps)
        );
        return Err(Error::multi_line(ErrorKind::InvalidInput, &text));
    }
    Ok(())
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

fn named<'a>(plan: &'a Plan, name: &str) -> Option<&'a Array> {
    plan.arrays.iter().find(|array| array.name == name)
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
        let bound = Bound::new(like.chunk_bytes(), like.is_coded());
        let stored = stored_chunk(archive.tree, node, &coords, bound).await?;
        let decoded = |stored: Bytes| series::decoded(&existing.document, &stored, like.chunk_bytes());
        let stored = stored.map(decoded).transpose()?;
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
