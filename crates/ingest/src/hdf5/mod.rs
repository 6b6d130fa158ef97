//! HDF5 files, which NetCDF-4 files are, too.
//!
//! [`links`] finds the objects of a file and their names, [`datatype`] what their elements are,
//! [`layout`] where the chunks lie and which codecs have made them, which [`nodes`] finds in few
//! round trips, [`scales`] the dimensions, by the rules of netCDF-4, and [`attributes`] the
//! attributes of all that. Here these become a plan.
//!
//! The format is read by a library that was not made for hostile files: a process without rights
//! makes the plan ([`crate::apart`]), and the one that uses it checks it again.

mod attributes;
mod datatype;
mod edges;
mod layout;
mod links;
mod nodes;
mod scales;
mod storage;

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use hdf5_reader::messages::HdfMessage;
use hdf5_reader::messages::dataspace::{DataspaceMessage, DataspaceType};
use hdf5_reader::messages::fill_value::FillValueMessage;
use hdf5_reader::object_header::ObjectHeader;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, Metered};

use self::attributes::Heaps;
use self::datatype::Type;
use self::layout::Layout;
use self::links::{Objects, Variable};
use self::scales::Scales;
use self::storage::Opened;
use crate::chunking::{self, Sizes};
use crate::data::ArrayData;
use crate::element::Element;
use crate::plan::{Array, Group, Omissions, Plan};
use crate::run::product;
use crate::source::Source;
use crate::texts::{self, Texts};

/// Most bytes of an element: a file may claim any length of a text, and each array has one as its
/// fill value.
const MAX_ELEMENT: usize = 1 << 20;
/// Bytes of an array in the plan and in documents, besides names, attributes and chunks.
const ARRAY: u64 = size_of::<Array>() as u64 + 1024;

/// Returns the plan for the file `source`.
///
/// Errors: [`ErrorKind::Corrupt`] if it is not an HDF5 file; others as for reading.
pub(crate) fn plan(source: impl Source + Send + Sync + 'static) -> Result<Metered<Plan>> {
    let length = source.length();
    let Opened { file, source, failure } = storage::open(source)?;
    let mut meter = Meter::new("the plan of an import");
    let mut plan = Plan::default();
    let Objects { groups, variables } = links::find(&file, &mut plan.omissions)?;
    let mut heaps = Heaps::of(file.root_group().map_err(wrong)?);
    for (path, group) in groups {
        let shown = if path.is_empty() { "/" } else { &path };
        let raw = group.raw_attributes().map_err(|e| e.to_string());
        let attributes = attributes::convert(&raw, shown, None, &mut heaps, &mut meter, &mut plan.omissions)?;
        if path.is_empty() {
            plan.attributes = attributes;
        } else {
            plan.groups.push(Group { path, attributes });
        }
    }
    let scales = Scales::of(&file, &variables, &mut heaps, &mut plan.omissions);
    let mut budget = layout::Budget::default();
    let mut paths: HashSet<String> = plan.groups.iter().map(|group| group.path.clone()).collect();
    for (position, variable) in variables.iter().enumerate() {
        if scales.is_only_dimension(position) {
            continue;
        }
        let mut parts = Parts {
            file: &file,
            source: &*source,
            scales: &scales,
            heaps: &mut heaps,
            meter: &mut meter,
            budget: &mut budget,
        };
        match array(&mut parts, position, variable, &mut plan.omissions)? {
            Ok(array) if paths.insert(array.name.clone()) => plan.arrays.push(array),
            Ok(array) => plan.omissions.add(|| array.name, "left out: another object has its name"),
            Err(why) => plan.omissions.add(|| variable.path.clone(), format!("left out: {why}")),
        }
    }
    // A part that could not be read is not one that the file lacks.
    if let Some(error) = failure.lock().take() {
        return Err(error);
    }
    plan.check(length)?;
    Ok(meter.finish(plan))
}

/// Means by which arrays are made.
struct Parts<'a> {
    file: &'a hdf5_reader::Hdf5File,
    source: &'a dyn Source,
    scales: &'a Scales,
    heaps: &'a mut Heaps,
    meter: &'a mut Meter,
    budget: &'a mut layout::Budget,
}

/// Returns the array that `variable`, at this position, becomes, or why it is left out.
///
/// Errors: [`ErrorKind::OutOfMemory`].
fn array(
    parts: &mut Parts<'_>,
    position: usize,
    variable: &Variable,
    omissions: &mut Omissions,
) -> Result<std::result::Result<Array, String>> {
    let Facts { space, fill } = match Facts::of(&variable.header) {
        Ok(facts) => facts,
        Err(why) => return Ok(Err(why)),
    };
    let found = variable.dataset.raw_datatype().map_err(|e| e.to_string());
    let kind = match found.and_then(|raw| datatype::of(variable.dataset.dtype(), &raw)) {
        Ok(kind) => kind,
        Err(why) => return Ok(Err(why)),
    };
    let (shape, dimension_names) = parts.scales.shape_of(position, &space.dims);
    // Texts are elsewhere, and the elements say where.
    let size = if kind.element == Element::String { parts.heaps.reference() as u64 } else { kind.element.size() };
    let size = match usize::try_from(size) {
        Ok(size) if size <= MAX_ELEMENT => size,
        _ => return Ok(Err(format!("elements of {size} bytes: at most {MAX_ELEMENT} are supported"))),
    };
    // The fill value is in the plan, in its text, and in the document.
    parts.meter.count(4 * size as u64)?;
    let fill = fill.and_then(|fill| fill.value).filter(|value| value.len() == size).unwrap_or_else(|| vec![0; size]);
    let found = layout::of(parts.file, parts.source, variable, &space, &shape, &fill, parts.budget);
    let found = match (found, kind.element) {
        (Ok(found), Element::String) => texts(parts, &found.data, &fill, &variable.path, omissions),
        (found, _) => found,
    };
    let found = match found {
        Ok(found) => found,
        Err(why) => return Ok(Err(why)),
    };
    parts.meter.count(ARRAY + found.data.cost() + dimension_names.iter().map(|name| name.len() as u64).sum::<u64>())?;
    let Variable { path, attributes, .. } = variable;
    let mut values = attributes::convert(attributes, path, Some(kind.element), parts.heaps, parts.meter, omissions)?;
    attributes::add_meanings(&mut values, &kind.meanings, path, omissions);
    if kind.has_spaces {
        omissions.add(|| variable.path.clone(), "spaces behind shorter texts are kept");
    }
    let chunk_shape =
        found.chunk_shape.unwrap_or_else(|| chunking::chunk_shape(&shape, kind.element.size(), Sizes::USUAL));
    let (fill_value, fill) = match found.data.texts() {
        Some(texts) => (texts.fill().into(), kind.element.default_fill()),
        None => (kind.element.fill_value(&kind.big_endian(&fill)).unwrap_or_default(), fill),
    };
    Ok(Ok(Array {
        name: variable.path.clone(),
        chunk_shape,
        dimension_names,
        attributes: values,
        element: kind.element,
        order: kind.order,
        codecs: found.codecs,
        data: found.data,
        fill_value: (fill_value, fill),
    }))
}

/// Reads the texts that the elements of `data` refer to; one with the fill value is `fill`. Returns
/// why they are left out otherwise.
fn texts(
    parts: &mut Parts<'_>,
    data: &ArrayData,
    fill: &[u8],
    path: &str,
    omissions: &mut Omissions,
) -> std::result::Result<Layout, String> {
    let shape = data.shape().to_vec();
    let all: Vec<Range<u64>> = shape.iter().map(|length| 0..*length).collect();
    let bytes = product(&shape, fill.len() as u64).unwrap_or(u64::MAX);
    let source = parts.source;
    let mut changed = false;
    let (fill, texts) = parts.heaps.of_dataset(bytes, |heaps| {
        let mut references = Vec::new();
        data.read(source, &all, &mut references).map_err(|e| e.to_string())?;
        let mut text = |reference: &[u8]| {
            let bytes = heaps.text(reference)?;
            // As programs in C read them, in which a zero byte ends a text.
            let text = String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default());
            changed |= matches!(text, Cow::Owned(_));
            Ok::<String, String>(text.into_owned())
        };
        let texts = references.chunks_exact(fill.len().max(1)).map(&mut text).collect::<Result<Vec<_>, _>>()?;
        Ok((text(fill)?, texts))
    })?;
    if changed {
        omissions.add(|| path.to_owned(), "bytes of texts that are not UTF-8 became U+FFFD");
    }
    let texts = Texts::new(shape, fill, texts);
    let chunk_shape = texts.chunk_shape().ok_or_else(|| {
        format!("it has texts of up to {} bytes, and a chunk has at most {}", texts.widest(), texts::MAX_CHUNK)
    })?;
    Ok(Layout { data: ArrayData::Texts(texts), chunk_shape: Some(chunk_shape), codecs: Vec::new() })
}

/// Messages of a dataset that decide what it is.
struct Facts {
    space: DataspaceMessage,
    fill: Option<FillValueMessage>,
}

impl Facts {
    fn of(header: &ObjectHeader) -> std::result::Result<Self, String> {
        let mut space = None;
        let mut fill = None;
        for message in &header.messages {
            match message {
                HdfMessage::Dataspace(found) => space = Some(found.clone()),
                // The newer form of the message is the one that has been parsed last.
                HdfMessage::FillValue(found) => fill = Some(found.clone()),
                HdfMessage::ExternalFiles(_) => return Err("its data are in other files".to_owned()),
                // The library leaves these where it cannot read them: the filters, for example.
                HdfMessage::Shared(_) => return Err("a part of its header that cannot be read".to_owned()),
                _ => {}
            }
        }
        let space = space.filter(|space: &DataspaceMessage| space.dataspace_type != DataspaceType::Null);
        let space = space.ok_or("it has neither elements nor dimensions (a null dataspace)")?;
        Ok(Facts { space, fill })
    }
}

/// Returns an error of the library as one of ours.
fn wrong(error: hdf5_reader::error::Error) -> Error {
    match error {
        hdf5_reader::error::Error::Io(error) => Error::io("the file", error),
        error => Error::with_source(ErrorKind::Corrupt, "it is not a whole HDF5 file", error),
    }
}

impl Type {
    /// Returns the bytes of an element in the order in which numbers are computed.
    fn big_endian(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if !self.element.is_text() {
            self.order.to_big_endian(&mut bytes, self.element.unit());
        }
        bytes
    }
}
