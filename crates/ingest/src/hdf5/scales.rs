//! Dimensions of variables, by the rules of netCDF-4.
//!
//! A dimension is a dataset, called a scale, which may be the variable with its coordinate. Other
//! datasets refer to it. Variables along a dimension that grows may be shorter than it: netCDF
//! fills them up, and so does the plan.

use std::collections::{HashMap, HashSet};

use hdf5_reader::Hdf5File;
use hdf5_reader::RawAttribute;
use hdf5_reader::messages::HdfMessage;
use hdf5_reader::messages::dataspace::DataspaceMessage;
use hdf5_reader::messages::datatype::{Datatype, StringSize};
use hdf5_reader::messages::layout::DataLayout;

use super::attributes::Heaps;
use super::links::Variable;
use crate::plan::Omissions;

/// Attributes of dimensions (HDF5 dimension scales; netCDF-4 file format, "Dimensions").
const CLASS: &str = "CLASS";
const NAME: &str = "NAME";
const LIST: &str = "DIMENSION_LIST";
const ID: &str = "_Netcdf4Dimid";
const COORDINATES: &str = "_Netcdf4Coordinates";
/// Value of the class of a scale.
const SCALE: &[u8] = b"DIMENSION_SCALE";
/// Beginning of the name of a scale that is not a variable.
const NOT_A_VARIABLE: &[u8] = b"This is a netCDF dimension but not a netCDF variable";

/// Dimensions of the variables of a file.
#[derive(Debug)]
pub(super) struct Scales {
    /// Of each variable, by position.
    variables: Vec<Axes>,
    /// Length of each dimension, by the address of its scale.
    lengths: HashMap<u64, u64>,
}

#[derive(Debug, Default)]
struct Axes {
    is_only_dimension: bool,
    /// Name of each dimension, and the address of its scale if it may be longer than the variable.
    axes: Vec<(String, Option<u64>)>,
}

/// Attributes of a variable that are about dimensions.
#[derive(Debug, Default)]
struct About {
    is_scale: bool,
    is_only_dimension: bool,
    id: Option<i64>,
    coordinates: Vec<i64>,
    /// Address of the scale of each axis.
    list: Vec<Option<u64>>,
}

impl Scales {
    /// Finds the dimensions of `variables`. What cannot be read of a dimension counts as not there.
    pub(super) fn of(file: &Hdf5File, variables: &[Variable], heaps: &mut Heaps, omissions: &mut Omissions) -> Self {
        let about: Vec<About> = variables.iter().map(|variable| About::of(file, variable, heaps, omissions)).collect();
        let names: HashMap<u64, &str> = variables.iter().map(|variable| (variable.address, variable.name())).collect();
        let of_scale = |(variable, about): (&Variable, &About)| about.is_scale.then_some((about.id?, variable.address));
        let by_id: HashMap<i64, u64> = std::iter::zip(variables, &about).filter_map(of_scale).collect();
        let mut lengths: HashMap<u64, u64> = HashMap::new();
        let mut without = Unnamed::default();
        let mut all = Vec::new();
        for (variable, about) in std::iter::zip(variables, &about) {
            let Some(space) = space_of(variable) else {
                all.push(Axes::default());
                continue;
            };
            let can_be_longer = is_chunked(variable);
            let mut used = HashSet::new();
            let mut axes = Vec::new();
            for (axis, length) in space.dims.iter().enumerate() {
                let scale = about.scale_of(axis, variable.address, &by_id).filter(|scale| names.contains_key(scale));
                let grows = space.max_dims.as_ref().and_then(|most| most.get(axis)) == Some(&u64::MAX);
                if let Some(scale) = scale {
                    let longest = lengths.entry(scale).or_default();
                    *longest = (*longest).max(*length);
                }
                let name = match scale.and_then(|scale| names.get(&scale)) {
                    Some(name) => (*name).to_owned(),
                    None => without.name(variable.group(), *length, &mut used),
                };
                axes.push((name, scale.filter(|_| grows && can_be_longer)));
            }
            all.push(Axes { is_only_dimension: about.is_only_dimension, axes });
        }
        Scales { variables: all, lengths }
    }

    /// Returns true if the variable at `position` is a dimension and has no values.
    pub(super) fn is_only_dimension(&self, position: usize) -> bool {
        self.variables.get(position).is_some_and(|axes| axes.is_only_dimension)
    }

    /// Returns the lengths of the dimensions of the variable at `position`, which are `own` in the
    /// file, and their names.
    pub(super) fn shape_of(&self, position: usize, own: &[u64]) -> (Vec<u64>, Vec<String>) {
        let Some(Axes { axes, .. }) = self.variables.get(position) else { return (own.to_vec(), Vec::new()) };
        let shape = std::iter::zip(own, axes).map(|(own, (_, scale))| {
            let longest = scale.and_then(|scale| self.lengths.get(&scale)).copied().unwrap_or_default();
            (*own).max(longest)
        });
        (shape.collect(), axes.iter().map(|(name, _)| name.clone()).collect())
    }
}

/// Names of dimensions that have none, as netCDF gives them: one for each length in a group.
#[derive(Debug, Default)]
struct Unnamed {
    count: usize,
    known: HashMap<(String, u64), Vec<String>>,
}

impl Unnamed {
    /// Returns the name of a dimension of a variable in `group`. Those that the variable has
    /// already are `used`.
    fn name(&mut self, group: &str, length: u64, used: &mut HashSet<String>) -> String {
        let known = self.known.entry((group.to_owned(), length)).or_default();
        let free = known.iter().find(|name| !used.contains(*name)).cloned();
        let name = free.unwrap_or_else(|| {
            let name = format!("phony_dim_{}", self.count);
            self.count += 1;
            known.push(name.clone());
            name
        });
        used.insert(name.clone());
        name
    }
}

impl About {
    fn of(file: &Hdf5File, variable: &Variable, heaps: &mut Heaps, omissions: &mut Omissions) -> Self {
        let mut about = About::default();
        let mut name = Vec::new();
        for attribute in variable.attributes.iter().flatten() {
            match attribute.name() {
                CLASS => about.is_scale = text(attribute).starts_with(SCALE),
                NAME => name = text(attribute).to_vec(),
                ID => about.id = integers(attribute).first().copied(),
                COORDINATES => about.coordinates = integers(attribute),
                LIST => match scales_in(file, attribute, heaps) {
                    Ok(list) => about.list = list,
                    Err(why) => omissions
                        .add(|| variable.path.clone(), format!("the names of its dimensions are left out: {why}")),
                },
                _ => {}
            }
        }
        about.is_only_dimension = about.is_scale && name.starts_with(NOT_A_VARIABLE);
        about
    }

    /// Returns the scale along `axis` of the variable at `own`.
    fn scale_of(&self, axis: usize, own: u64, by_id: &HashMap<i64, u64>) -> Option<u64> {
        if let Some(id) = self.coordinates.get(axis) {
            by_id.get(id).copied()
        } else if self.is_scale {
            (axis == 0).then_some(own)
        } else {
            self.list.get(axis).copied().flatten()
        }
    }
}

/// Returns the scales that `attribute`, a list of references for each axis, refers to.
fn scales_in(file: &Hdf5File, attribute: &RawAttribute, heaps: &mut Heaps) -> Result<Vec<Option<u64>>, String> {
    let size = file.superblock().offset_size;
    let lists = attribute.message().raw_data.chunks_exact(heaps.reference());
    let first = |reference: &[u8]| {
        let references = heaps.read(reference, size.into())?;
        let Some(first) = references.get(..size.into()) else { return Ok(None) };
        hdf5_reader::reference::resolve_object_reference(first, size).map(Some).map_err(|e| e.to_string())
    };
    lists.map(first).collect()
}

fn text(attribute: &RawAttribute) -> &[u8] {
    match attribute.message().datatype {
        Datatype::String { size: StringSize::Fixed(_), .. } => &attribute.message().raw_data,
        _ => &[],
    }
}

/// Returns the whole numbers of an attribute of 32 bits.
fn integers(attribute: &RawAttribute) -> Vec<i64> {
    let Datatype::FixedPoint { size: 4, byte_order, .. } = attribute.message().datatype else { return Vec::new() };
    let numbers = attribute.message().raw_data.as_chunks::<4>().0.iter();
    numbers
        .map(|bytes| match byte_order {
            hdf5_reader::ByteOrder::BigEndian => i32::from_be_bytes(*bytes).into(),
            hdf5_reader::ByteOrder::LittleEndian => i32::from_le_bytes(*bytes).into(),
        })
        .collect()
}

fn space_of(variable: &Variable) -> Option<&DataspaceMessage> {
    variable.header.messages.iter().find_map(|message| match message {
        HdfMessage::Dataspace(space) => Some(space),
        _ => None,
    })
}

fn is_chunked(variable: &Variable) -> bool {
    let is_it = |message: &HdfMessage| matches!(message, HdfMessage::DataLayout(layout) if matches!(layout.layout, DataLayout::Chunked { .. }));
    variable.header.messages.iter().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_without_a_name_share_one_for_each_length_of_a_group() {
        let mut without = Unnamed::default();
        let mut named = |group: &str, lengths: &[u64]| {
            let mut used = HashSet::new();
            lengths.iter().map(|length| without.name(group, *length, &mut used)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(named("", &[3, 4]), "phony_dim_0 phony_dim_1");
        assert_eq!(named("", &[4, 3]), "phony_dim_1 phony_dim_0");
        assert_eq!(named("", &[3, 3]), "phony_dim_0 phony_dim_2");
        assert_eq!(named("g", &[3]), "phony_dim_3");
    }

    #[test]
    fn axes_are_found_by_ids_by_themselves_or_by_references() {
        let by_id = HashMap::from([(0, 100), (1, 200)]);
        let coordinates = About { is_scale: true, coordinates: vec![1, 0], ..About::default() };
        assert_eq!([0, 1].map(|axis| coordinates.scale_of(axis, 5, &by_id)), [Some(200), Some(100)]);
        let scale = About { is_scale: true, ..About::default() };
        assert_eq!([0, 1].map(|axis| scale.scale_of(axis, 5, &by_id)), [Some(5), None]);
        let other = About { list: vec![Some(100), None], ..About::default() };
        assert_eq!([0, 1, 2].map(|axis| other.scale_of(axis, 5, &by_id)), [Some(100), None, None]);
    }
}
