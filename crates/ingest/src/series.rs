//! Files one after another along a dimension, behind what an archive has already.
//!
//! Programs decode the elements of an array by its attributes, all in the same way. So a file whose
//! elements mean something else by the same numbers, in other units or packed in another way, must
//! not be appended: the values that are read of it would be wrong, and nobody would see it. What
//! decides about the meaning is compared, and a file that differs is refused with the reason.

use std::collections::HashMap;
use std::ops::Range;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::zarr::Coords;
use serde_json::{Map, Value, json};

use crate::chunking;
use crate::codec::{self, Codec};
use crate::data::ArrayData;
use crate::difference::{attributes_of, chunk_shape, codecs, difference, length_along, note_attributes};
pub use crate::difference::{decoded, longest};
use crate::plan::{self, Array, Omissions, Plan};
use crate::run::place_block;
use crate::source::Source;
use crate::texts::{self, Table, Texts};

/// Array of an archive: its name, and its `zarr.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Existing {
    /// Name of the array in its group.
    pub name: String,
    /// Content of the `zarr.json`.
    pub document: Map<String, Value>,
}

/// Reason why a file cannot be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// File, by position.
    pub file: usize,
    /// Variable that does not fit.
    pub variable: String,
    /// Reason, for display.
    pub why: String,
}

/// Arrays that some files become along a dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Arrays along the dimension, which grow.
    pub growing: Vec<Growing>,
    /// Arrays without it: they must be the same in all files and in the archive. Each by its
    /// position in the first file.
    pub fixed: Vec<usize>,
    /// Attributes of files that the arrays have in another way.
    pub omissions: Omissions,
}

/// Array with the elements of an archive, and those of files behind them.
#[derive(Clone, Debug, PartialEq)]
pub struct Growing {
    /// Name of the array.
    pub name: String,
    /// Elements per dimension, with those of the files.
    pub shape: Vec<u64>,
    /// Elements per dimension of a chunk.
    pub chunk_shape: Vec<u64>,
    /// Dimension along which the array grows.
    pub axis: usize,
    /// Position of the first new element along that dimension.
    pub start: u64,
    /// Content of the `zarr.json`.
    pub document: Map<String, Value>,
    /// Files that the new elements are in, in their order.
    parts: Vec<Part>,
    /// Bytes of an element with the fill value.
    fill: Vec<u8>,
    /// Fill value of texts of any length; none if elements are anything else.
    text: Option<String>,
    /// Codecs that chunks are made with.
    codecs: Vec<Codec>,
    /// Bytes of memory that making a chunk takes besides its own.
    workspace: u64,
    /// True if elements of files are converted, which fails for some.
    is_converted: bool,
}

/// Chunk of a file that is one of an array that grows, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// File, by position.
    pub file: usize,
    /// Array in its plan, by position.
    pub array: usize,
    /// Place of the chunk in the file's array; empty for elements that are in no chunks there.
    pub coords: Coords,
}

/// Elements of a file along the growing dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    file: usize,
    array: usize,
    /// Positions in the growing array.
    place: Range<u64>,
}

impl Growing {
    /// Returns the bytes of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_shape.iter().fold(self.fill.len() as u64, |bytes, length| bytes.saturating_mul(*length))
    }

    /// Returns true if the array is the coordinate of its dimension.
    pub fn is_coordinate(&self) -> bool {
        self.document.get("dimension_names") == Some(&json!([self.name]))
    }

    /// Returns the chunks that the files have elements of: a range of each dimension of the grid.
    ///
    /// Errors: [`ErrorKind::InvalidInput`] if the format cannot number them.
    pub fn changed(&self) -> Result<Vec<Range<u32>>> {
        let grid = plan::grid(&self.shape, &self.chunk_shape);
        let grid =
            grid.ok_or_else(|| Error::invalid(format!("{}: more than 2^32 chunks along a dimension", self.name)))?;
        let first = self.chunk_shape.get(self.axis).and_then(|length| self.start.checked_div(*length));
        let first = first.and_then(|first| u32::try_from(first).ok()).unwrap_or_default();
        // Without new elements nothing is changed, also not the last chunk.
        let first = if self.shape.get(self.axis).is_some_and(|end| *end > self.start) { first } else { u32::MAX };
        let of_axis = |(axis, count): (usize, u32)| if axis == self.axis { first.min(count)..count } else { 0..count };
        Ok(grid.into_iter().enumerate().map(of_axis).collect())
    }

    /// Returns true if the archive has elements of the chunk at `coords`: they must stay.
    pub fn has_earlier(&self, coords: &[u32]) -> bool {
        let along = coords.get(self.axis).zip(self.chunk_shape.get(self.axis));
        along.is_some_and(|(coord, length)| u64::from(*coord).saturating_mul(*length) < self.start)
    }

    /// Returns the bytes of memory that making a chunk takes besides its own: its elements, those
    /// of a chunk of a file, and all that codecs make of them.
    pub fn workspace(&self) -> u64 {
        self.workspace
    }

    /// Returns the most bytes that a chunk may have as it is stored, which only making it tells;
    /// none if it has those of its elements.
    pub fn longest(&self) -> Option<u64> {
        longest(&self.document, self.chunk_bytes())
    }

    /// Returns true if only making a chunk tells whether it can be made.
    pub fn is_converted(&self) -> bool {
        self.is_converted
    }

    /// Returns the chunk of a file that can be taken as it is for the one at `coords`; none if that
    /// one has to be made of others. `plans` are those of the files.
    pub fn whole_chunk(&self, plans: &[&Plan], coords: &[u32]) -> Option<Whole> {
        let along = plan::region(coords, &self.chunk_shape, &self.shape).get(self.axis)?.clone();
        let length = *self.chunk_shape.get(self.axis)?;
        let part = self.part_with(&along)?;
        let before = along.start - part.place.start;
        let array = plans.get(part.file)?.arrays.get(part.array)?;
        let is_whole = before.is_multiple_of(length)
            && array.is_copied()
            && array.chunk_shape == self.chunk_shape
            && self.has_codecs_of(array);
        let mut coords = Coords::from_slice(coords);
        *coords.get_mut(self.axis)? = u32::try_from(before / length).ok()?;
        is_whole.then_some(Whole { file: part.file, array: part.array, coords })
    }

    /// Returns the chunk of a file that is the one at `coords`, and its bytes in the file; none if
    /// that one has to be made, or is not full along the dimension: what is appended later has to
    /// be put into it.
    pub fn place_of(&self, plans: &[&Plan], coords: &[u32]) -> Option<(Whole, Range<u64>)> {
        let mut region = plan::region(coords, &self.chunk_shape, &self.shape);
        let along = region.get(self.axis)?.clone();
        if along.end - along.start != *self.chunk_shape.get(self.axis)? {
            return None;
        }
        if let Some(whole) = self.whole_chunk(plans, coords) {
            let place = plans.get(whole.file)?.arrays.get(whole.array)?.place_of(&whole.coords)?;
            return Some((whole, place));
        }
        let part = self.part_with(&along)?;
        let array = plans.get(part.file)?.arrays.get(part.array)?;
        let ArrayData::Plain(run) = &array.data else { return None };
        let is_full = plan::is_full(&region, &self.chunk_shape);
        *region.get_mut(self.axis)? = along.start - part.place.start..along.end - part.place.start;
        let place = run.place_of(&region).filter(|_| is_full && self.has_codecs_of(array))?;
        Some((Whole { file: part.file, array: part.array, coords: Coords::new() }, place))
    }

    /// Returns the part that has all elements in the range `along` of the dimension.
    fn part_with(&self, along: &Range<u64>) -> Option<&Part> {
        let next = self.parts.partition_point(|part| part.place.end <= along.start);
        // Elements of the archive may be before the first part.
        let is_all = |part: &&Part| part.place.start <= along.start && along.end <= part.place.end;
        self.parts.get(next).filter(is_all)
    }

    fn has_codecs_of(&self, array: &Array) -> bool {
        let others = codec::all_of(&array.codecs);
        self.codecs.len() == others.len() && std::iter::zip(&self.codecs, others).all(|(one, other)| one.is_like(other))
    }

    /// Appends the chunk at `coords`, as it is stored, to `out`: what `earlier`, the chunk that is
    /// there, has of the elements of the archive, and the elements of `files`, each with its plan.
    ///
    /// Errors: [`ErrorKind::Corrupt`] if `earlier` has another length than a chunk; others as for
    /// reading.
    pub fn read_chunk(
        &self,
        files: &[(&Plan, &dyn Source)],
        coords: &[u32],
        earlier: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let mut table = self.text.as_deref().map(Table::new);
        let codecs = || self.codecs.iter().copied();
        let undone = match (earlier, &table) {
            (Some(earlier), Some(_)) => codec::undo(codecs(), earlier.to_vec(), texts::MAX_CHUNK).map(Some),
            (Some(earlier), None) => codec::decode(codecs(), earlier.to_vec(), self.chunk_bytes()).map(Some),
            (None, _) => Ok(None),
        };
        let undone = undone.map_err(|error| error.context(&self.name))?;
        let mut chunk = match (undone.as_deref(), &mut table) {
            (Some(texts), Some(table)) => table.decode(texts, &self.chunk_shape).map_err(|e| e.context(&self.name))?,
            (Some(elements), None) => elements.to_vec(),
            (None, _) => {
                let mut chunk = Vec::new();
                plan::fill(&mut chunk, self.chunk_bytes(), &self.fill);
                chunk
            }
        };
        let region = plan::region(coords, &self.chunk_shape, &self.shape);
        let Some(along) = region.get(self.axis).cloned() else {
            return Err(Error::invalid("an array that cannot grow"));
        };
        for part in &self.parts {
            let here = along.start.max(part.place.start)..along.end.min(part.place.end);
            if here.is_empty() {
                continue;
            }
            let found = files.get(part.file).and_then(|(plan, source)| Some((plan.arrays.get(part.array)?, *source)));
            let (array, source) = found.ok_or_else(|| Error::invalid("a part of no file"))?;
            let mut wanted = region.clone();
            if let Some(range) = wanted.get_mut(self.axis) {
                *range = here.start - part.place.start..here.end - part.place.start;
            }
            let mut block = Vec::new();
            array.data.read(source, &wanted, &mut block)?;
            if let Some((table, texts)) = table.as_mut().zip(array.data.texts()) {
                table.add(texts, &mut block)?;
            }
            let lengths: Vec<u64> = wanted.iter().map(|range| range.end - range.start).collect();
            let mut at = vec![0; lengths.len()];
            if let Some(at) = at.get_mut(self.axis) {
                *at = here.start - along.start;
            }
            place_block(&block, &lengths, &mut chunk, &self.chunk_shape, &at, self.fill.len());
        }
        if let Some(table) = table {
            let numbers = std::mem::take(&mut chunk);
            table.encode(&numbers, &mut chunk).map_err(|error| error.context(&self.name))?;
        }
        out.append(&mut codec::encode(&self.codecs, chunk)?);
        Ok(())
    }
}

/// Plans to put `files` one after another along `dimension`, behind the arrays of an archive; none
/// if there is no archive yet. Chunks of at least the bytes `virtual_from` will be virtual, as far
/// as each is in one file. Returns all reasons why files do not fit, if there are any.
///
/// Errors: [`ErrorKind::InvalidInput`] if no variable has the dimension.
pub fn plan(
    archive: Option<&[Existing]>,
    files: &[&Plan],
    dimension: &str,
    virtual_from: Option<u64>,
) -> Result<std::result::Result<Series, Vec<Refusal>>> {
    let Some(first) = files.first() else { return Err(Error::invalid("there is no file to append")) };
    if !first.arrays.iter().any(|array| axis_of(array, dimension).is_some()) {
        let mut names: Vec<&str> =
            first.arrays.iter().flat_map(|array| &array.dimension_names).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("no variable has the dimension {dimension}: the file has {}", names.join(", ")),
        ));
    }
    let mut refusals = Vec::new();
    let mut series = Series { growing: Vec::new(), fixed: Vec::new(), omissions: Omissions::default() };
    let names: Vec<HashMap<&str, usize>> = files.iter().map(|plan| names_of(plan)).collect();
    let existing: Option<HashMap<&str, &Existing>> =
        archive.map(|all| all.iter().map(|existing| (existing.name.as_str(), existing)).collect());
    let compared_with = if archive.is_some() { "the archive" } else { "the first file" };
    let mut rows: Vec<Option<(&str, u64)>> = vec![None; files.len()];
    for (position, array) in first.arrays.iter().enumerate() {
        let existing = existing.as_ref().map(|all| all.get(array.name.as_str()));
        let own = document_of(array)?;
        let document = match existing {
            Some(Some(existing)) => existing.document.clone(),
            Some(None) => {
                let why = "the archive does not have it".to_owned();
                refusals.push(Refusal { file: 0, variable: array.name.clone(), why });
                continue;
            }
            None => own,
        };
        let axis = axis_of(array, dimension);
        let mut parts = Vec::new();
        let start = match (archive, axis) {
            (Some(_), Some(axis)) => length_along(&document, axis).unwrap_or_default(),
            _ => 0,
        };
        let mut end = start;
        for (file, plan) in files.iter().enumerate() {
            let mut refuse = |why: String| refusals.push(Refusal { file, variable: array.name.clone(), why });
            let found = names.get(file).and_then(|names| names.get(array.name.as_str()));
            let Some((place, other)) = found.and_then(|place| Some((*place, plan.arrays.get(*place)?))) else {
                refuse(missing(plan, &array.name, "the file does not have it, and others do"));
                continue;
            };
            let own = document_of(other)?;
            difference(&document, &own, axis, other.element.size(), compared_with).into_iter().for_each(&mut refuse);
            note_attributes(attributes_of(&document), attributes_of(&own), &array.name, &mut series.omissions);
            if let Some(axis) = axis {
                let length = other.shape().get(axis).copied().unwrap_or_default();
                // Rows belong together by their positions.
                match rows.get_mut(file).map(|rows| *rows.get_or_insert((array.name.as_str(), length))) {
                    Some((name, there)) if there != length => {
                        refuse(format!("it has {length} along {dimension}, and {name} has {there}"));
                    }
                    _ => {}
                }
                parts.push(Part { file, array: place, place: end..end.saturating_add(length) });
                end = end.saturating_add(length);
            }
        }
        match axis {
            Some(axis) => {
                let document = match archive {
                    Some(_) => document,
                    None => in_growing_chunks(array, document, axis, &parts, files, virtual_from),
                };
                series.growing.push(growing(array, document, axis, start..end, parts, files));
            }
            None => series.fixed.push(position),
        }
    }
    refuse_more(archive, &names, files, &mut refusals);
    // The rows of all arrays belong together by their positions.
    let starts = |growing: &Growing| (growing.name.clone(), growing.start);
    if let Some((first, start)) = series.growing.first().map(starts) {
        for (variable, other) in series.growing.iter().map(starts).filter(|(_, other)| *other != start) {
            let why = format!("it ends at {other} in the archive, and {first} at {start}");
            refusals.push(Refusal { file: 0, variable, why });
        }
    }
    Ok(if refusals.is_empty() { Ok(series) } else { Err(refusals) })
}

fn growing(
    array: &Array,
    mut document: Map<String, Value>,
    axis: usize,
    new: Range<u64>,
    parts: Vec<Part>,
    files: &[&Plan],
) -> Growing {
    let mut shape = array.shape().to_vec();
    if let Some(length) = shape.get_mut(axis) {
        *length = new.end;
    }
    document.insert("shape".to_owned(), json!(shape));
    let chunk_shape = chunk_shape(&document).unwrap_or_else(|| array.chunk_shape.clone());
    let fill = array.fill().to_vec();
    let codecs = codecs(&document).map(|(_, codecs)| codecs).unwrap_or_default();
    let of_part = |part: &Part| files.get(part.file)?.arrays.get(part.array).map(Array::workspace_of_elements);
    let of_files = parts.iter().filter_map(of_part).max().unwrap_or_default();
    let before = |part: &Part| files.get(part.file)?.arrays.get(part.array)?.data.size_before();
    let before = parts.iter().filter_map(before).max().unwrap_or_default();
    let name = array.name.clone();
    let mut growing = Growing {
        name,
        shape,
        chunk_shape,
        axis,
        start: new.start,
        document,
        parts,
        fill,
        text: array.data.texts().map(|texts| texts.fill().to_owned()),
        codecs,
        workspace: of_files,
        is_converted: before > 0,
    };
    let elements = growing.chunk_bytes() / growing.fill.len().max(1) as u64;
    let of_chunk = growing.chunk_bytes().saturating_mul(3).saturating_add(elements.saturating_mul(before));
    // An earlier chunk, and the new one before and behind the codecs.
    let of_texts = if growing.text.is_some() { 3 * texts::MAX_CHUNK } else { 0 };
    growing.workspace = of_files.saturating_add(of_chunk).saturating_add(of_texts);
    growing
}

/// Gives a new array, put together of `parts` along `axis`, the chunks of one that grows. Those of
/// a file stay if they can be taken as they are, or if they are not small.
fn in_growing_chunks(
    array: &Array,
    mut document: Map<String, Value>,
    axis: usize,
    parts: &[Part],
    files: &[&Plan],
    virtual_from: Option<u64>,
) -> Map<String, Value> {
    // Texts are in no place of a file.
    let virtual_from = virtual_from.filter(|_| !array.is_coordinate() && array.data.texts().is_none());
    let length = array.chunk_shape.get(axis).copied().unwrap_or(1).max(1);
    let are_whole = parts.iter().all(|part| (part.place.end - part.place.start).is_multiple_of(length));
    let is_long = array.chunk_bytes() >= virtual_from.unwrap_or(chunking::GROWING).min(chunking::GROWING);
    if array.is_stored() && (are_whole || is_long) {
        return document;
    }
    let total = parts.last().map_or(0, |part| part.place.end);
    let size = size_of_text(parts, files, array.shape().len()).unwrap_or(array.fill().len() as u64);
    let chunk = chunking::growing_chunk(array.shape(), axis, total, size, virtual_from);
    let grid = json!({"name": "regular", "configuration": {"chunk_shape": chunk}});
    document.insert("chunk_grid".to_owned(), grid);
    document
}

/// Returns why the plan lacks the variable `name`: `usual`, unless the file has it.
fn missing(plan: &Plan, name: &str, usual: &str) -> String {
    let found = plan.omissions.list.iter().find(|one| one.path == name);
    found.map_or_else(|| usual.to_owned(), |one| format!("a file has it, but it was {}", one.why))
}

/// Returns the bytes by which a chunk of texts, of all `parts` in an array of so many dimensions,
/// is cut: with the mean, a chunk has less than 1 MiB, and not more than can be read even if it has
/// the longest ones. None if elements are no texts.
fn size_of_text(parts: &[Part], files: &[&Plan], rank: usize) -> Option<u64> {
    /// Most times that texts of a chunk may be longer than the mean.
    const LONGER: u64 = texts::MAX_CHUNK / (1 << 20);
    let texts = |part: &Part| files.get(part.file)?.arrays.get(part.array)?.data.texts();
    let all = parts.iter().map(texts).collect::<Option<Vec<&Texts>>>()?;
    let widest = all.iter().map(|texts| texts.widest()).max()?;
    let count: u64 = all.iter().map(|texts| texts.all.len() as u64).sum();
    let mean = all.iter().map(|texts| texts.bytes()).sum::<u64>().div_ceil(count.max(1));
    Some(if rank == 1 { mean.max(widest.div_ceil(LONGER)) } else { widest })
}

fn names_of(plan: &Plan) -> HashMap<&str, usize> {
    plan.arrays.iter().enumerate().map(|(position, array)| (array.name.as_str(), position)).collect()
}

/// Refuses variables that the first file or the archive has not; `names` are those of each file.
fn refuse_more(
    archive: Option<&[Existing]>,
    names: &[HashMap<&str, usize>],
    files: &[&Plan],
    refusals: &mut Vec<Refusal>,
) {
    let Some((first, others)) = names.split_first() else { return };
    let why = |name: &str, usual: &str| files.first().map_or(usual.to_owned(), |plan| missing(plan, name, usual));
    for (file, names) in others.iter().enumerate() {
        for name in names.keys().filter(|name| !first.contains_key(*name)) {
            let why = why(name, "the first file does not have it");
            refusals.push(Refusal { file: file + 1, variable: (*name).to_owned(), why });
        }
    }
    for existing in archive.unwrap_or_default().iter().filter(|existing| !first.contains_key(existing.name.as_str())) {
        let why = why(&existing.name, "the file does not have it, and the archive does");
        refusals.push(Refusal { file: 0, variable: existing.name.clone(), why });
    }
}

/// Returns the position of `dimension` among those of the array.
pub(crate) fn axis_of(array: &Array, dimension: &str) -> Option<usize> {
    array.dimension_names.iter().position(|name| name == dimension)
}

pub(crate) fn document_of(array: &Array) -> Result<Map<String, Value>> {
    match serde_json::from_slice(&array.document()?) {
        Ok(Value::Object(document)) => Ok(document),
        _ => Err(Error::invalid(format!("{}: its zarr.json is not a JSON object", array.name))),
    }
}
