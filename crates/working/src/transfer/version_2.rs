//! Presents a tree of Zarr 2 as one of version 3: other documents, and the same files as chunks
//! under their keys of version 3.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::planned::{LeftOut, refused_name};
use super::scan::{Scanned, ScannedFile, join};
use crate::scratch::record::DataFileId;
use icechunkfs_base::error::{Context, ErrorKind, Result};
use icechunkfs_base::memory::{self, Meter};
use icechunkfs_base::printable;
use icechunkfs_format::zarr::chunk_key::{KeyEncoding, Separator, parse_number};
use icechunkfs_ingest::plan::Omissions;
use icechunkfs_ingest::zarr2::{self, Converted};
use icechunkfs_tree::tree::nodes::ZARR_JSON;

/// Most bytes of a document.
const MAX_DOCUMENT: u64 = 64 << 20;

/// Files of a directory, by name.
type Files<'a> = BTreeMap<&'a [u8], DataFileId>;

/// Part of the tree that a directory is.
#[derive(Clone, Debug)]
enum TreePart {
    /// Array, at its path.
    Array(String),
    /// Directory in the array at this path, of chunks with these first coordinates.
    Chunks(String, Vec<u32>),
    /// Array that version 3 does not have, or what is in one.
    LeftOut,
    /// Group.
    Group,
    /// Directory that says nothing of itself.
    Other,
}

/// Tree of version 2 that is laid out in version 3.
struct Conversion<'a> {
    from: &'a Scanned,
    out: Scanned,
    omissions: Omissions,
    arrays: HashMap<String, Converted>,
    meter: Meter,
    places: HashMap<&'a [u8], TreePart>,
}

/// Lays the tree `of_version_2` out in version 3. Also returns what is not as it was.
///
/// Errors: [`ErrorKind::Corrupt`] if a document is damaged; others as for reading.
pub(super) fn converted(of_version_2: &Scanned) -> Result<(Scanned, LeftOut)> {
    let mut conversion = Conversion {
        from: of_version_2,
        out: of_version_2.emptied(),
        omissions: Omissions::default(),
        arrays: HashMap::new(),
        meter: Meter::new("the documents of an import"),
        places: HashMap::new(),
    };
    for (path, files) in of_version_2.listed() {
        let place = conversion.place(path, &files);
        let place = if path.is_empty() { place } else { place.context(|| printable::text(path)) }?;
        for (name, number) in &files {
            conversion.add_file(&place, path, name, *number);
        }
        conversion.places.insert(path, place);
    }
    let Conversion { mut out, omissions, meter, .. } = conversion;
    out.others.sort();
    out.hold(meter.into());
    Ok((out, LeftOut::of(&omissions)))
}

impl Conversion<'_> {
    /// Says what the directory at `path` is, and adds the document of a group or an array.
    fn place(&mut self, path: &[u8], files: &Files<'_>) -> Result<TreePart> {
        let Ok(path) = std::str::from_utf8(path) else { return Ok(TreePart::Other) };
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let above = self.places.get(above.as_bytes()).cloned().filter(|_| !path.is_empty());
        if matches!(above, Some(TreePart::LeftOut)) {
            return Ok(TreePart::LeftOut);
        }
        let [zarray, zgroup] = [zarr2::ARRAY, zarr2::GROUP].map(|name| self.document(files, name));
        let [zarray, zgroup, attributes] = [zarray?, zgroup?, self.document(files, zarr2::ATTRIBUTES)?];
        let is_node = zarray.is_some() || zgroup.is_some();
        if let Some(why) = refused_name(name).filter(|_| is_node && !path.is_empty()) {
            self.omissions.add(|| path.to_owned(), format!("left out: {why}"));
            return Ok(TreePart::LeftOut);
        }
        // Released when the documents are converted.
        let parsed = [&zarray, &zgroup, &attributes].into_iter().flatten().map(|json| zarr2::cost(json)).sum();
        let _parsed = memory::reserve_blocking(parsed, "the documents of an array")?;
        if let Some(zarray) = zarray {
            return match zarr2::array(&zarray, attributes.as_deref(), path, &mut self.omissions) {
                Ok((document, array)) => {
                    self.add_document(path, document)?;
                    self.arrays.insert(path.to_owned(), array);
                    Ok(TreePart::Array(path.to_owned()))
                }
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    self.omissions.add(|| path.to_owned(), format!("left out: {error}"));
                    Ok(TreePart::LeftOut)
                }
                Err(error) => Err(error),
            };
        }
        if let Some(zgroup) = zgroup {
            let group = zarr2::group(&zgroup, attributes.as_deref(), path, &mut self.omissions)?;
            self.add_document(path, group)?;
            return Ok(TreePart::Group);
        }
        let (array, mut coords) = match above {
            Some(TreePart::Array(array)) => (array, Vec::new()),
            Some(TreePart::Chunks(array, coords)) => (array, coords),
            _ => return Ok(TreePart::Other),
        };
        let Some(coord) = parse_number(name) else { return Ok(TreePart::Other) };
        coords.push(coord);
        Ok(TreePart::Chunks(array, coords))
    }

    fn document(&self, files: &Files<'_>, name: &str) -> Result<Option<Bytes>> {
        files.get(name.as_bytes()).map(|number| self.from.read(*number, MAX_DOCUMENT)).transpose()
    }

    fn add_document(&mut self, path: &str, document: Vec<u8>) -> Result<()> {
        self.meter.count(document.len() as u64)?;
        self.out.add_over(&below(path, ZARR_JSON), ScannedFile::Document(document.into()));
        Ok(())
    }

    /// Adds a file of the directory at `path`: a chunk, or one that has no place.
    fn add_file(&mut self, place: &TreePart, path: &[u8], name: &[u8], number: DataFileId) {
        let is_one = |names: &[&str]| names.iter().any(|one| one.as_bytes() == name);
        let is_read = match place {
            TreePart::LeftOut => true,
            TreePart::Array(_) | TreePart::Group => is_one(&[zarr2::ARRAY, zarr2::GROUP, zarr2::ATTRIBUTES]),
            TreePart::Chunks(..) | TreePart::Other => false,
        };
        // The copies in consolidated metadata are those of the documents.
        if is_read || is_one(&[zarr2::CONSOLIDATED]) {
            return;
        }
        match self.chunk(place, name) {
            Some(key) => self.out.add_from(&key, self.from, number),
            None => self.out.others.push(printable::text(&join(path, name))),
        }
    }

    /// Returns the key in version 3 of the chunk that the file `name` is; none if it is no chunk.
    fn chunk(&self, place: &TreePart, name: &[u8]) -> Option<String> {
        let name = std::str::from_utf8(name).ok()?;
        let (path, first): (&str, &[u32]) = match place {
            TreePart::Array(path) => (path, &[]),
            TreePart::Chunks(path, coords) => (path, coords),
            TreePart::LeftOut | TreePart::Group | TreePart::Other => return None,
        };
        let array = self.arrays.get(path)?;
        let rank = array.grid.len();
        let coords = match array.keys.separator {
            Separator::Slash if rank > 0 => [first, &[array.keys.parse_last(name)?]].concat(),
            _ if first.is_empty() => array.keys.parse_flat(name, rank)?,
            _ => return None,
        };
        let is_there = coords.len() == rank && std::iter::zip(&coords, &array.grid).all(|(coord, count)| coord < count);
        is_there.then(|| below(path, &KeyEncoding::default().key(&coords)))
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}
