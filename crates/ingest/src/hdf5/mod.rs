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

use std::collections::HashSet;

use hdf5_reader::messages::HdfMessage;
use hdf5_reader::messages::dataspace::{DataspaceMessage, DataspaceType};
use hdf5_reader::messages::fill_value::FillValueMessage;
use hdf5_reader::object_header::ObjectHeader;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, Metered};

use self::attributes::Heaps;
use self::datatype::Type;
use self::links::{Objects, Variable};
use self::scales::Scales;
use self::storage::Opened;
use crate::chunking::{self, Sizes};
use crate::plan::{Array, Group, Omissions, Plan};
use crate::source::Source;

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
    let size = match usize::try_from(kind.element.size()) {
        Ok(size) if size <= MAX_ELEMENT => size,
        _ => return Ok(Err(format!("elements of {} bytes: at most {MAX_ELEMENT} are supported", kind.element.size()))),
    };
    // The fill value is in the plan, in its text, and in the document.
    parts.meter.count(4 * size as u64)?;
    let fill = fill.and_then(|fill| fill.value).filter(|value| value.len() == size).unwrap_or_else(|| vec![0; size]);
    let found = match layout::of(parts.file, parts.source, variable, &space, &shape, &fill, parts.budget) {
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
    Ok(Ok(Array {
        name: variable.path.clone(),
        chunk_shape,
        dimension_names,
        attributes: values,
        element: kind.element,
        order: kind.order,
        codecs: found.codecs,
        data: found.data,
        fill_value: (kind.element.fill_value(&kind.big_endian(&fill)).unwrap_or_default(), fill),
    }))
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
        let size = bytes.len();
        self.order.to_big_endian(&mut bytes, size);
        bytes
    }
}
