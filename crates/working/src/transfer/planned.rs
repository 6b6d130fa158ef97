//! Presents a file of another format as a working tree: the groups and arrays that it becomes
//! ([`icechunkfs_ingest`]), with chunks that are read from it when they are stored.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use tokio::runtime::Handle;

use super::opened::OpenFile;
use super::scan::{Scanned, ScannedFile};
use super::sources::ImportSource;
use super::virtual_refs::{VirtualPlaces, VirtualTarget};
use super::{MAX_LISTED, SkippedPath};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::chunk_key::KeyEncoding;
use icechunkfs_ingest::apart::Reader;
use icechunkfs_ingest::netcdf3;
use icechunkfs_ingest::plan::{Array, Omissions, Plan};
use icechunkfs_ingest::source::Source as _;
use icechunkfs_repo::commit::changes::MadeChunk;
use icechunkfs_store::storage::virtuals::VirtualChunks;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{MAX_NAME, NodeIndex, ZARR_JSON};

/// Files that are read at the same time: each waits for its store.
pub(super) const READ_AT_ONCE: usize = 8;

/// Bytes that a chunk takes until it is stored: in the tree that it is laid out as, and in the
/// change set.
const CHUNK_COST: u64 = 1 << 10;

/// File that is imported, and what becomes of it.
#[derive(Debug)]
pub(super) struct Original {
    pub(super) file: OpenFile,
    pub(super) source: ImportSource,
    /// Path or URL, for messages.
    pub(super) shown: String,
    pub(super) plan: Metered<Plan>,
    /// File that has virtual chunks; none if all are copied.
    target: Option<VirtualTarget>,
}

impl Original {
    /// Returns the virtual chunk at the bytes `place` of the file; none if it is to be copied.
    pub(super) fn virtual_chunk(&self, place: &Range<u64>) -> Option<ChunkPayload> {
        self.target.as_ref()?.chunk(place)
    }

    /// Reads the chunk at `coords` of the array at position `array`, of `length` bytes, if it has a
    /// checksum: no reader of a virtual chunk checks it.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if it is wrong; others as for
    /// reading.
    pub(super) fn check_chunk(&self, array: usize, coords: &[u32], length: u64) -> Result<()> {
        let Some(array) = self.plan.arrays.get(array).filter(|array| array.has_checksums()) else { return Ok(()) };
        array.read_stored(&self.file, coords, 0..length, &mut Vec::new()).context(|| self.shown.clone())
    }

    /// Returns the fewest bytes of a virtual chunk; none if all chunks are copied.
    pub(super) fn virtual_from(&self) -> Option<u64> {
        self.target.as_ref().map(|target| target.copy_below)
    }
}

/// Chunk of an array of the plan, that one by position.
#[derive(Debug)]
struct Assembled {
    original: Arc<Original>,
    array: usize,
    coords: Coords,
    length: u64,
}

impl MadeChunk for Assembled {
    fn length(&self) -> u64 {
        self.length
    }

    fn workspace(&self) -> u64 {
        self.original.plan.arrays.get(self.array).map_or(0, Array::workspace)
    }

    fn describe(&self) -> String {
        self.original.shown.clone()
    }

    fn read(&self, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let array = self.original.plan.arrays.get(self.array);
        let array = array.ok_or_else(|| Error::invalid("an array that the plan does not have"))?;
        if array.is_stored() {
            return array.read_stored(&self.original.file, &self.coords, range, out);
        }
        append_range(range, self.length, out, |out| array.read_chunk(&self.original.file, &self.coords, out))
    }
}

/// Appends `range` of a chunk of `length` bytes, which `make` appends, to `out`.
pub(super) fn append_range(
    range: Range<u64>,
    length: u64,
    out: &mut Vec<u8>,
    make: impl FnOnce(&mut Vec<u8>) -> Result<()>,
) -> Result<()> {
    if range == (0..length) {
        return make(out);
    }
    let mut whole = Vec::new();
    make(&mut whole)?;
    let part = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    out.extend_from_slice(whole.get(part(range.start)..part(range.end)).unwrap_or_default());
    Ok(())
}

/// Means by which files are opened and planned.
#[derive(Clone, Debug)]
pub(super) struct Opener {
    /// Reader of files that are not of a classic format of NetCDF.
    pub(super) apart: Reader,
    /// Places of files with virtual chunks; none if all are copied.
    pub(super) places: Option<Arc<VirtualPlaces>>,
    /// Stores of the objects that are named.
    pub(super) virtuals: Arc<VirtualChunks>,
    pub(super) runtime: Handle,
}

impl Opener {
    /// Opens `source` and plans what it becomes, on a thread that may block.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if it is damaged; others as for
    /// reading.
    pub(super) fn open(&self, source: &ImportSource) -> Result<Arc<Original>> {
        let shown = source.to_string();
        let file = match source {
            ImportSource::Local(path) => OpenFile::local(path)?,
            ImportSource::Object(address) => OpenFile::object(address, &self.virtuals, &self.runtime)?,
        };
        let planned = if netcdf3::is_one(&file)? { netcdf3::plan(&file) } else { self.apart.plan(&file) };
        file.forget_head();
        let mut plan = planned.context(|| shown.clone())?;
        let Plan { groups, arrays, omissions, .. } = &mut *plan;
        let mut is_allowed = |path: &str| match path.split('/').find_map(refused_name) {
            Some(why) => {
                omissions.add(|| path.to_owned(), format!("left out: {why}"));
                false
            }
            None => true,
        };
        groups.retain(|group| is_allowed(&group.path));
        arrays.retain(|array| is_allowed(&array.name));
        let target = self.places.as_ref().map(|places| places.target(&file)).transpose().context(|| shown.clone())?;
        if let Some(target) = &target {
            plan.split_records(target.copy_below);
            plan.check(file.length()).context(|| shown.clone())?;
        }
        Ok(Arc::new(Original { file, source: source.clone(), shown, plan, target }))
    }

    /// Opens `sources`, at most `jobs` at the same time. Each may have a process that reads it.
    ///
    /// Errors: as for [`Opener::open`].
    pub(super) async fn open_all(&self, sources: &[ImportSource], jobs: usize) -> Result<Vec<Arc<Original>>> {
        /// More would take gigabytes if all of them were hostile.
        const MOST: usize = 4;
        let has_failed = Arc::new(AtomicBool::new(false));
        let open = |source: ImportSource| {
            let opener = self.clone();
            let has_failed = Arc::clone(&has_failed);
            blocking(move || {
                if has_failed.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                let opened = opener.open(&source);
                has_failed.fetch_or(opened.is_err(), Ordering::Relaxed);
                opened.map(Some)
            })
        };
        let opened = each(sources, jobs.clamp(1, MOST), open).await?;
        Ok(opened.into_iter().flatten().collect())
    }

    /// Opens `source` and plans what it becomes. Also returns what is not as in the file.
    ///
    /// Errors: as for [`Opener::open`].
    pub(super) fn plan(&self, source: &ImportSource) -> Result<(Scanned, LeftOut)> {
        lay_out(&self.open(source)?)
    }
}

/// Returns what `work` returns for each of `items`, in their order; `at_once` of them at the same
/// time. All have ended then, also after a failure: the runtime may end next.
pub(super) async fn each<I: Clone, T, F: Future<Output = Result<T>>>(
    items: &[I],
    at_once: usize,
    work: impl Fn(I) -> F,
) -> Result<Vec<T>> {
    let all: Vec<Result<T>> = stream::iter(items.iter().cloned().map(work)).buffered(at_once).collect().await;
    all.into_iter().collect()
}

/// Lays the nodes and chunks of the plan out as files.
fn lay_out(original: &Arc<Original>) -> Result<(Scanned, LeftOut)> {
    let plan = &original.plan;
    let left_out = LeftOut::of(&plan.omissions);
    let mut scanned = Scanned::empty();
    let mut meter = Meter::new("the chunks of an import");
    scanned.add(ZARR_JSON, ScannedFile::Document(plan.document()?.into()));
    // What the branch has beside the arrays of a group stays.
    for group in &plan.groups {
        scanned.add_over(&format!("{}/{ZARR_JSON}", group.path), ScannedFile::Document(group.document()?.into()));
    }
    for (position, array) in plan.arrays.iter().enumerate() {
        // Each program reads the coordinates, also one that may not read the file.
        let may_be_virtual = !array.is_coordinate();
        add_array(&mut scanned, original, position, may_be_virtual, &mut meter)?;
    }
    scanned.hold(meter.into());
    Ok((scanned, left_out))
}

/// Parts of a file that are left out, or are not as they were there.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// The first ones.
    pub(super) list: Vec<SkippedPath>,
    /// Number of all.
    pub(super) count: u64,
}

impl LeftOut {
    pub(super) fn of(omissions: &Omissions) -> Self {
        let listed = omissions.list.iter();
        let listed = listed.map(|one| SkippedPath { path: one.path.clone(), why: one.why.clone() });
        LeftOut { list: listed.collect(), count: omissions.count }
    }

    pub(super) fn add(&mut self, path: &str, why: &str) {
        self.count += 1;
        if self.list.len() < MAX_LISTED {
            self.list.push(SkippedPath { path: path.to_owned(), why: why.to_owned() });
        }
    }
}

/// Returns why no array can have the name, if that is so.
pub(super) fn refused_name(name: &str) -> Option<&'static str> {
    match name {
        "" => Some("it has no name"),
        "." | ".." => Some("a directory cannot have its name"),
        name if name.contains(['/', '\0']) => Some("there is a slash or a zero byte in its name"),
        name if name.starts_with("__") => Some("names that begin with `__` are reserved in Zarr"),
        ZARR_JSON => Some("the document of its group has this name"),
        name if name.len() > MAX_NAME => Some("its name is too long"),
        _ => None,
    }
}

/// Returns the chunk at `coords` of the array at position `array` of the plan, which is stored in
/// `length` bytes.
pub(super) fn chunk_of(original: &Arc<Original>, array: usize, coords: Coords, length: u64) -> Arc<dyn MadeChunk> {
    Arc::new(Assembled { original: Arc::clone(original), array, coords, length })
}

/// Adds the array at `position` of the plan; its chunks are virtual as far as they `may_be_virtual`
/// and the rules for the file say so.
pub(super) fn add_array(
    scanned: &mut Scanned,
    original: &Arc<Original>,
    position: usize,
    may_be_virtual: bool,
    meter: &mut Meter,
) -> Result<()> {
    let array = original.plan.arrays.get(position).ok_or_else(|| Error::invalid("an array of no file"))?;
    let name = &array.name;
    scanned.add(&format!("{name}/{ZARR_JSON}"), ScannedFile::Document(Bytes::from(array.document()?)));
    let may_be_virtual = may_be_virtual && original.virtual_from().is_some();
    let mut add = |(coords, length): (Coords, u64)| {
        let key = KeyEncoding::default().key(&coords);
        let place = may_be_virtual.then(|| array.place_of(&coords)).flatten();
        let place = place.filter(|place| place.end - place.start == length);
        let chunk = place.and_then(|place| original.virtual_chunk(&place));
        if chunk.is_some() {
            original.check_chunk(position, &coords, length)?;
        }
        meter.count(cost_of(chunk.as_ref()))?;
        let file = match chunk {
            Some(chunk) => ScannedFile::Virtual(chunk),
            None => ScannedFile::Chunk(chunk_of(original, position, coords, length)),
        };
        scanned.add(&format!("{name}/{key}"), file);
        Ok(())
    };
    match array.stored_chunks(&original.file)? {
        Some(stored) => stored.into_iter().try_for_each(add),
        None => Places::of_grid(array.grid()?).try_for_each(|coords| add((coords, array.chunk_bytes()))),
    }
}

/// Returns the bytes that a chunk takes until it is stored: a virtual one has its location in the
/// tree as it was found, as it is laid out, and in the change set.
pub(super) fn cost_of(chunk: Option<&ChunkPayload>) -> u64 {
    CHUNK_COST + chunk.map_or(0, |chunk| 3 * chunk.held())
}

/// Returns the array of the plan with that name.
pub(super) fn named<'a>(plan: &'a Plan, name: &str) -> Option<&'a Array> {
    plan.arrays.iter().find(|array| array.name == name)
}

/// Returns the node at `path` of `tree`, names with slashes between; none if there is none.
pub(super) fn node_at(tree: &Tree, path: &str) -> Option<NodeIndex> {
    let mut names = path.split('/').filter(|name| !name.is_empty());
    names.try_fold(0, |node, name| tree.table().child(node, name))
}

/// Coordinates of all chunks in some ranges of a grid, in its order.
pub(super) struct Places {
    ranges: Vec<Range<u32>>,
    next: Option<Coords>,
}

impl Places {
    pub(super) fn within(ranges: Vec<Range<u32>>) -> Self {
        let is_empty = ranges.iter().any(Range::is_empty);
        let next = (!is_empty).then(|| ranges.iter().map(|range| range.start).collect());
        Places { ranges, next }
    }

    /// Returns those of a whole grid.
    pub(super) fn of_grid(grid: Vec<u32>) -> Self {
        Places::within(grid.into_iter().map(|count| 0..count).collect())
    }
}

impl Iterator for Places {
    type Item = Coords;

    fn next(&mut self) -> Option<Coords> {
        let here = self.next.take()?;
        let mut next = here.clone();
        for (coord, range) in std::iter::zip(&mut next, &self.ranges).rev() {
            *coord += 1;
            if *coord < range.end {
                self.next = Some(next);
                break;
            }
            *coord = range.start;
        }
        Some(here)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;

    use super::*;
    use icechunkfs_base::error::ErrorKind;

    #[test]
    fn chunks_are_counted_in_their_order() {
        let all = |ranges: &[Range<u32>]| Places::within(ranges.to_vec()).map(|at| at.to_vec()).collect::<Vec<_>>();
        assert_eq!(all(&[]), [Vec::<u32>::new()]);
        assert_eq!(all(&[1..3, 0..2]), [[1, 0], [1, 1], [2, 0], [2, 1]]);
        assert!(all(&[0..3, 2..2]).is_empty());
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"before").unwrap();
        let opened = OpenFile::local(file.path()).unwrap();
        let mut read = [0; 3];
        opened.read(0, &mut read).unwrap();
        assert_eq!(&read, b"bef");
        file.write_all(b" and after").unwrap();
        assert_eq!(opened.read(0, &mut read).unwrap_err().kind(), ErrorKind::Stale);
    }
}
