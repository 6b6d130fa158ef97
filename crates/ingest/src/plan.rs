//! Plan of what a file becomes.

use std::collections::HashSet;
use std::ops::Range;

use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::zarr::Coords;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::codec;
use crate::data::{self, ArrayData};
use crate::difference;
use crate::document;
use crate::element::{ByteOrder, Element};
use crate::run::{Run, advance, place_block};
use crate::source::{InMemory, Source};
use crate::texts::Table;

/// Most chunks of a file: their references take gigabytes.
pub const MAX_CHUNKS: u64 = 10_000_000;
/// Most groups and arrays of a file.
pub const MAX_NODES: usize = 100_000;
/// Omissions that a plan lists; the rest is counted.
pub const MAX_LISTED: usize = 1000;

/// Groups and arrays that a file becomes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Attributes of the file.
    pub attributes: Map<String, Value>,
    /// Groups below that of the file, each with a path of its own.
    pub groups: Vec<Group>,
    /// Arrays, each with a path of its own.
    pub arrays: Vec<Array>,
    /// Parts of the file that the arrays lack, and differences that a reader may notice.
    pub omissions: Omissions,
}

/// Group of a [`Plan`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Names with slashes between.
    pub path: String,
    /// Attributes, as xarray writes them into Zarr.
    pub attributes: Map<String, Value>,
}

impl Group {
    /// Returns the `zarr.json`.
    ///
    /// Errors: if it cannot be written.
    pub fn document(&self) -> Result<Vec<u8>> {
        document::of_group(&self.attributes)
    }
}

/// List of what is left out, or is not as in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omissions {
    /// The first ones.
    pub list: Vec<Omission>,
    /// Number of all.
    pub count: u64,
}

/// One thing that is left out, or is not as in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omission {
    /// Name of the variable, with `@` and the name of an attribute; `/` for the file.
    pub path: String,
    /// Deed and reason, for display.
    pub why: String,
}

impl Omissions {
    /// Adds what happened to `path`, and why. A file may have millions of them, with long names:
    /// only so many are kept.
    pub fn add(&mut self, path: impl FnOnce() -> String, why: impl Into<String>) {
        self.count = self.count.saturating_add(1);
        if self.list.len() < MAX_LISTED {
            self.list.push(Omission { path: path(), why: why.into() });
        }
    }
}

/// Array of a [`Plan`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Array {
    /// Name of the array; of one in a group its path, names with slashes between.
    pub name: String,
    /// Length of a chunk in each dimension, in elements.
    pub chunk_shape: Vec<u64>,
    /// Name of each dimension.
    pub dimension_names: Vec<String>,
    /// Attributes, as xarray writes them into Zarr.
    pub attributes: Map<String, Value>,
    pub(crate) element: Element,
    /// Order of the bytes of an element in the file.
    pub(crate) order: ByteOrder,
    /// Codecs of `zarr.json` that follow the one of elements.
    pub(crate) codecs: Vec<Value>,
    /// Place of the elements in the file.
    pub(crate) data: ArrayData,
    /// Fill value, as `zarr.json` has it, and as the bytes of an element in the file.
    pub(crate) fill_value: (Value, Vec<u8>),
}

impl Array {
    /// Returns the length of each dimension, in elements.
    pub fn shape(&self) -> &[u64] {
        self.data.shape()
    }

    /// Returns the length of each chunk in bytes.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_shape.iter().fold(self.element.size(), |bytes, length| bytes.saturating_mul(*length))
    }

    /// Returns the bytes of an element with the fill value.
    pub fn fill(&self) -> &[u8] {
        &self.fill_value.1
    }

    /// Returns the `zarr.json`.
    ///
    /// Errors: if it cannot be written.
    pub fn document(&self) -> Result<Vec<u8>> {
        document::of_array(self)
    }

    /// Returns true if chunks of the array are those of the file.
    pub fn is_stored(&self) -> bool {
        matches!(self.data, ArrayData::Stored(_))
    }

    /// Returns the bytes of memory that making a chunk takes, besides its own: its elements, and
    /// those as codecs have them.
    pub fn workspace(&self) -> u64 {
        match &self.data {
            ArrayData::Stored(stored) if !stored.is_made() => 0,
            _ => self.workspace_of_elements(),
        }
    }

    /// Returns the bytes of memory that reading elements of one chunk takes, besides their own.
    pub(crate) fn workspace_of_elements(&self) -> u64 {
        let data = match &self.data {
            ArrayData::Recoded(recoded) => &recoded.data,
            data => data,
        };
        match data {
            // As the filters have it, and what each of them makes of it.
            ArrayData::Stored(stored) => stored.chunk_bytes().saturating_mul(4),
            ArrayData::Texts(texts) => self.chunk_bytes().saturating_mul(2).saturating_add(texts.cost()),
            _ => self.chunk_bytes().saturating_mul(2),
        }
    }

    /// Returns true if chunks of the array are bytes of the file.
    pub(crate) fn is_copied(&self) -> bool {
        matches!(&self.data, ArrayData::Stored(stored) if stored.converted.is_none())
    }

    /// Returns the length in bytes of the chunk at `coords`, one of [`Array::stored_chunks`]; none
    /// if the file does not have it.
    ///
    /// Errors: as for [`Array::stored_chunks`].
    pub fn stored_length(&self, source: &dyn Source, coords: &[u32]) -> Result<Option<u64>> {
        let ArrayData::Stored(stored) = &self.data else { return Ok(None) };
        data::position_of(coords, &self.grid()?).map_or(Ok(None), |position| stored.length_of(source, position))
    }

    /// Returns the chunks that the file has, with their lengths in bytes, if these differ; none of
    /// an array that has all chunks, of one length.
    ///
    /// Errors: as for [`Array::grid`], and for reading `source`.
    pub fn stored_chunks(&self, source: &dyn Source) -> Result<Option<Vec<(Coords, u64)>>> {
        match &self.data {
            ArrayData::Stored(stored) => stored.listed(source, &self.grid()?).map(Some),
            ArrayData::Texts(_) => self.lengths_of_texts(source).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns all chunks with their lengths in bytes, by making each.
    fn lengths_of_texts(&self, source: &dyn Source) -> Result<Vec<(Coords, u64)>> {
        let grid: Vec<u64> = self.grid()?.into_iter().map(u64::from).collect();
        let mut lengths = Vec::new();
        let mut place = vec![0_u64; grid.len()];
        while !grid.contains(&0) {
            let coords: Coords = place.iter().map(|coord| u32::try_from(*coord).unwrap_or(u32::MAX)).collect();
            let mut chunk = Vec::new();
            self.read_chunk(source, &coords, &mut chunk)?;
            lengths.push((coords, chunk.len() as u64));
            if !advance(&mut place, &grid) {
                break;
            }
        }
        Ok(lengths)
    }

    /// Returns the bytes of the file that are the chunk at `coords`, as it is stored in Zarr; none
    /// if the file does not have it, or if it has to be made.
    pub fn place_of(&self, coords: &[u32]) -> Option<Range<u64>> {
        match &self.data {
            ArrayData::Stored(stored) => stored.place_of(data::position_of(coords, &self.grid().ok()?)?),
            ArrayData::Plain(run) => {
                let region = region(coords, &self.chunk_shape, self.shape());
                run.place_of(&region).filter(|_| is_full(&region, &self.chunk_shape))
            }
            ArrayData::Inline { .. } | ArrayData::Texts(_) | ArrayData::Recoded(_) => None,
        }
    }

    /// Returns true if stored chunks have checksums that no codec of the array has.
    pub fn has_checksums(&self) -> bool {
        matches!(&self.data, ArrayData::Stored(stored) if stored.has_checksum())
    }

    /// Returns true if the array is the coordinate of its dimension.
    pub fn is_coordinate(&self) -> bool {
        let name = self.name.rsplit_once('/').map_or(self.name.as_str(), |(_, name)| name);
        self.dimension_names == [name]
    }

    /// Appends `range` of the chunk at `coords`, which [`Array::stored_chunks`] has listed, to
    /// `out`.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if its checksum is wrong; others as
    /// for reading `source`.
    pub fn read_stored(&self, source: &dyn Source, coords: &[u32], range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let ArrayData::Stored(stored) = &self.data else {
            return Err(Error::invalid("an array without stored chunks"));
        };
        let position = data::position_of(coords, &self.grid()?);
        let position = position.ok_or_else(|| Error::invalid("a chunk that the array does not have"))?;
        stored.read(source, position, range, out)
    }

    /// Appends the chunk at `coords`, as it is stored, to `out`: elements beyond the end of the
    /// array have the fill value.
    ///
    /// Errors: as for reading `source`.
    pub fn read_chunk(&self, source: &dyn Source, coords: &[u32], out: &mut Vec<u8>) -> Result<()> {
        let Some(texts) = self.data.texts() else { return self.read_elements(source, coords, out) };
        let mut numbers = Vec::new();
        self.read_elements(source, coords, &mut numbers)?;
        let mut table = Table::new(texts.fill());
        table.add(texts, &mut numbers)?;
        table.encode(&numbers, out)
    }

    /// Appends the elements of the chunk at `coords` to `out`.
    fn read_elements(&self, source: &dyn Source, coords: &[u32], out: &mut Vec<u8>) -> Result<()> {
        let region = region(coords, &self.chunk_shape, self.shape());
        let lengths: Vec<u64> = region.iter().map(|range| range.end - range.start).collect();
        if lengths == self.chunk_shape {
            return self.data.read(source, &region, out);
        }
        let mut block = Vec::new();
        self.data.read(source, &region, &mut block)?;
        let start = out.len();
        fill(out, self.chunk_bytes(), self.fill());
        let at = vec![0; lengths.len()];
        place_block(
            &block,
            &lengths,
            out.get_mut(start..).unwrap_or_default(),
            &self.chunk_shape,
            &at,
            self.fill().len(),
        );
        Ok(())
    }

    /// Returns the array in the chunks of one with the `zarr.json` `document`.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::InvalidInput`] if that has others than regular
    /// ones of its rank.
    pub fn in_chunks_of(&self, document: &Map<String, Value>) -> Result<Self> {
        let chunk_shape = difference::chunk_shape(document).filter(|chunk| chunk.len() == self.shape().len());
        let chunk_shape = chunk_shape.filter(|chunk| !chunk.contains(&0));
        let chunk_shape =
            chunk_shape.ok_or_else(|| Error::invalid(format!("{}: chunks of several shapes", self.name)))?;
        Ok(Array { chunk_shape, ..self.clone() })
    }

    /// Returns true if the elements of the array that `own` has, the chunk at `coords`, are those
    /// of `stored`, another such chunk; none for one of which nothing is stored. Elements beyond
    /// the end of the array count for nothing.
    pub fn has_same_elements(&self, coords: &[u32], own: &[u8], stored: Option<&[u8]>) -> bool {
        let region = region(coords, &self.chunk_shape, self.shape());
        let lengths: Vec<u64> = region.iter().map(|range| range.end - range.start).collect();
        let whole: Vec<Range<u64>> = lengths.iter().map(|length| 0..*length).collect();
        let size = self.element.size();
        let Ok(run) = Run::new(self.chunk_shape.clone(), size, 0, None) else { return false };
        let elements = |chunk: &[u8]| {
            let mut out = Vec::new();
            run.read(&InMemory(chunk), &whole, &mut out).map(|()| out)
        };
        let mut missing = Vec::new();
        fill(&mut missing, self.chunk_bytes(), self.fill());
        let Some(texts) = self.data.texts() else {
            let stored = stored.unwrap_or(&missing);
            return matches!((elements(own), elements(stored)), (Ok(own), Ok(stored)) if own == stored);
        };
        let mut table = Table::new(texts.fill());
        let own = table.decode(own, &self.chunk_shape).and_then(|own| elements(&own));
        let stored = stored.map_or(Ok(missing), |stored| table.decode(stored, &self.chunk_shape));
        let stored = stored.and_then(|stored| elements(&stored));
        matches!((own, stored), (Ok(own), Ok(stored)) if table.are_same(&own, &stored))
    }

    /// Returns true if the array has the values of `other`, bit by bit in one byte order; each in
    /// its file.
    ///
    /// Errors: as for reading.
    pub fn has_values_of(&self, source: &dyn Source, other: &Array, other_source: &dyn Source) -> Result<bool> {
        if self.shape() != other.shape() || self.element != other.element {
            return Ok(false);
        }
        if let (Some(own), Some(others)) = (self.data.texts(), other.data.texts()) {
            return Ok(own.all == others.all);
        }
        let mut coords = vec![0_u64; self.shape().len()];
        let grid: Vec<u64> = self.comparable_grid()?.into_iter().map(u64::from).collect();
        if grid.contains(&0) {
            return Ok(true);
        }
        loop {
            let place: Vec<u32> = coords.iter().map(|coord| u32::try_from(*coord).unwrap_or(u32::MAX)).collect();
            let region = region(&place, &self.chunk_shape, self.shape());
            let [mut own, mut others] = [Vec::new(), Vec::new()];
            self.data.read(source, &region, &mut own)?;
            other.data.read(other_source, &region, &mut others)?;
            if self.order != other.order {
                self.element.swap_bytes(&mut others);
            }
            if own != others {
                return Ok(false);
            }
            if !advance(&mut coords, &grid) {
                return Ok(true);
            }
        }
    }

    /// Returns the chunks per dimension of an array that is compared chunk by chunk, whether they
    /// are there or not.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::InvalidInput`] if that would take hours.
    pub fn comparable_grid(&self) -> Result<Vec<u32>> {
        /// Most chunks: each takes some milliseconds.
        const MOST: u64 = 1_000_000;
        match data::chunk_count(self.shape(), &self.chunk_shape) {
            Some(count) if count <= MOST => self.grid(),
            _ => Err(Error::invalid(format!("{}: more than {MOST} chunks to compare", self.name))),
        }
    }

    /// Returns the chunks per dimension.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if they are more than the format can
    /// number.
    pub fn grid(&self) -> Result<Vec<u32>> {
        grid(self.shape(), &self.chunk_shape)
            .ok_or_else(|| Error::corrupt(format!("variable {}: more than 2^32 chunks along a dimension", self.name)))
    }
}

/// Appends elements with the value `fill` to `out`, `bytes` in all.
pub(crate) fn fill(out: &mut Vec<u8>, bytes: u64, fill: &[u8]) {
    out.extend(fill.iter().copied().cycle().take(usize::try_from(bytes).unwrap_or_default()));
}

/// Returns what the chunk at `coords` has of an array of `shape`: a range of each dimension.
pub(crate) fn region(coords: &[u32], chunk_shape: &[u64], shape: &[u64]) -> Vec<Range<u64>> {
    let of_axis = |(coord, (chunk, length)): (&u32, (&u64, &u64))| {
        let start = u64::from(*coord).saturating_mul(*chunk).min(*length);
        start..start.saturating_add(*chunk).min(*length)
    };
    std::iter::zip(coords, std::iter::zip(chunk_shape, shape)).map(of_axis).collect()
}

/// Returns true if `region` is that of a chunk of which nothing lies beyond the end of the array.
pub(crate) fn is_full(region: &[Range<u64>], chunk_shape: &[u64]) -> bool {
    std::iter::zip(region, chunk_shape).all(|(range, length)| range.end - range.start == *length)
}

/// Returns the chunks per dimension; none if the format cannot number them.
pub(crate) fn grid(shape: &[u64], chunk_shape: &[u64]) -> Option<Vec<u32>> {
    let lengths = std::iter::zip(shape, chunk_shape);
    lengths.map(|(length, chunk)| u32::try_from(length.div_ceil((*chunk).max(1))).ok()).collect()
}

impl Plan {
    /// Returns the `zarr.json` of the group.
    ///
    /// Errors: if it cannot be written.
    pub fn document(&self) -> Result<Vec<u8>> {
        document::of_group(&self.attributes)
    }

    /// Gives each record of at least `least` bytes a chunk of its own where others lie between: so
    /// each chunk is one range of the file.
    pub fn split_records(&mut self, least: u64) {
        for array in &mut self.arrays {
            let is_coordinate = array.is_coordinate();
            let ArrayData::Plain(run) = &array.data else { continue };
            let record = array.chunk_shape.iter().skip(1).fold(array.element.size(), |a, b| a.saturating_mul(*b));
            if let Some(records) =
                array.chunk_shape.first_mut().filter(|_| !is_coordinate && run.has_gaps() && record >= least)
            {
                *records = 1;
            }
        }
    }

    /// Checks the plan for a file of `length` bytes, without trust in its maker.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if data are not in the file, or if
    /// there is too much of anything.
    pub fn check(&self, length: u64) -> Result<()> {
        if self.arrays.len().saturating_add(self.groups.len()) > MAX_NODES {
            return Err(Error::corrupt(format!("more than {MAX_NODES} variables")));
        }
        if self.omissions.list.len() > MAX_LISTED {
            return Err(Error::corrupt(format!("more than {MAX_LISTED} omissions in a list")));
        }
        self.check_paths()?;
        let mut count = 0_u64;
        for array in &self.arrays {
            array.check(length)?;
            count = array.chunk_count().and_then(|chunks| count.checked_add(chunks)).unwrap_or(u64::MAX);
            if count > MAX_CHUNKS {
                return Err(Error::corrupt(format!("more than {MAX_CHUNKS} chunks")));
            }
        }
        Ok(())
    }

    /// Fails unless each node has a path of its own, below groups that there are.
    fn check_paths(&self) -> Result<()> {
        let groups: HashSet<&str> = self.groups.iter().map(|group| group.path.as_str()).collect();
        let mut all = HashSet::new();
        for path in self.groups.iter().map(|group| &group.path).chain(self.arrays.iter().map(|array| &array.name)) {
            let is_below_group = path.rsplit_once('/').is_none_or(|(above, _)| groups.contains(above));
            if !is_below_group || !all.insert(path.as_str()) {
                return Err(Error::corrupt(format!("{path}: two objects have this path, or its group is missing")));
            }
        }
        Ok(())
    }
}

impl Array {
    /// Returns how many chunks the file has of the array; none if the format cannot number them.
    fn chunk_count(&self) -> Option<u64> {
        match &self.data {
            ArrayData::Stored(stored) => Some(stored.chunks.len() as u64),
            _ => data::chunk_count(self.shape(), &self.chunk_shape),
        }
    }

    fn check(&self, length: u64) -> Result<()> {
        let wrong = |what: &str| Err(Error::corrupt(format!("variable {}: {what}", self.name)));
        let rank = self.shape().len();
        if self.chunk_shape.len() != rank || self.dimension_names.len() != rank || self.chunk_shape.contains(&0) {
            return wrong("its ranks differ");
        }
        if self.fill().len() as u64 != self.element.size() {
            return wrong("a fill value of another type");
        }
        let is_text = matches!(self.data, ArrayData::Texts(_));
        let is_sound = is_text == (self.element == Element::String)
            && match &self.data {
                ArrayData::Plain(run) | ArrayData::Inline { run, .. } => run.is_of(self.element.size()),
                ArrayData::Recoded(_) => true,
                ArrayData::Texts(texts) => self.fill_value.0.as_str() == Some(texts.fill()),
                ArrayData::Stored(stored) => {
                    let converted = stored.converted.as_ref();
                    stored.chunk_shape == self.chunk_shape
                        && stored.fill == self.fill()
                        && converted.is_none_or(|codecs| *codecs == codec::all_of(&self.codecs))
                }
            };
        if !is_sound {
            return wrong("its data differ from those of the file");
        }
        if !self.is_stored() && self.chunk_bytes() > data::MAX_STORED {
            return wrong("chunks that are too long");
        }
        let chunks = data::chunk_count(self.shape(), &self.chunk_shape);
        match chunks.map_or(Some("chunks that cannot be numbered"), |chunks| self.data.fault(length, chunks)) {
            Some(fault) => wrong(fault),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted_beyond_what_is_listed() {
        let mut omissions = Omissions::default();
        (0..2000).for_each(|number| omissions.add(|| number.to_string(), "left out"));
        assert_eq!((omissions.list.len(), omissions.count), (MAX_LISTED, 2000));
    }
}
