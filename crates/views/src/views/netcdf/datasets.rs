//! Variables and dimensions as HDF5 datasets, with the attributes that netCDF needs.
//!
//! A dimension is a dataset: that of the variable with its name whose first dimension it is (a
//! coordinate variable), or an empty one. Attributes tie variables to dimensions: `DIMENSION_LIST`
//! and `_Netcdf4Coordinates` on variables, `CLASS`, `NAME` and `_Netcdf4Dimid` on dimensions.
//! Without any one of them some program of the table in `docs/views.md` refuses the file or loses
//! names. `REFERENCE_LIST` on dimensions tells libhdf5 that a scale is attached.

use std::collections::{HashMap, HashSet};

use super::dimensions::{Asked, Dimensions};
use super::file_chunks;
use super::hdf5::model::{Attribute, DataType, Dataset, Layout, Value};
use super::members::Member;
use super::names::NOT_A_COORDINATE;
use crate::views::report::Finding;

/// Name of the attribute with which netCDF hides the dataset of a dimension without variable; the
/// size follows.
const NO_VARIABLE: &str = "This is a netCDF dimension but not a netCDF variable. ";

/// Attribute with the value of missing elements.
const FILL_VALUE: &str = "_FillValue";

/// Most datasets that a dimension lists as those along it: an attribute has less than 64 KiB, and
/// 16 bytes for each.
const MAX_USES: usize = 4000;

/// Variable with its dimensions.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) member: Member,
    pub(super) dimensions: Vec<usize>,
}

impl Named {
    /// Gives a variable its dimensions, new ones if there are none yet.
    pub(super) fn new(member: Member, dimensions: &mut Dimensions, findings: &mut Vec<Finding>) -> Self {
        let variable = &member.variable;
        let group = member.group;
        let path = &member.path;
        let is_coordinate = member.is_coordinate();
        let mut numbers = Vec::with_capacity(variable.shape.len() + 1);
        for (at, (name, size)) in variable.dimension_names.iter().zip(&variable.shape).enumerate() {
            let is_coordinate = is_coordinate && at == 0;
            let asked = Asked { name: name.as_deref(), size: *size, group, is_coordinate };
            numbers.push(dimensions.number(asked, path, findings));
        }
        if let Some((name, size)) = variable.element.extra_dimension(variable.longest) {
            let asked = Asked { name: Some(&name), size, group, is_coordinate: false };
            numbers.push(dimensions.number(asked, path, findings));
        }
        Named { member, dimensions: numbers }
    }

    /// Returns the dimension whose scale the variable is.
    pub(super) fn coordinate(&self, dimensions: &Dimensions) -> Option<usize> {
        let first = *self.dimensions.first()?;
        let dimension = dimensions.list.get(first)?;
        (dimension.group == self.member.group && dimension.name == self.member.name).then_some(first)
    }
}

/// Returns for each dataset of a file the place of its variable in `variables`: those of the
/// dimensions first, so that dataset n is dimension n.
pub(super) fn order(dimensions: &Dimensions, variables: &[Named]) -> Vec<Option<usize>> {
    let scale = |(at, named): (usize, &Named)| Some((named.coordinate(dimensions)?, at));
    let scales: HashMap<usize, usize> = variables.iter().enumerate().filter_map(scale).collect();
    let mut order: Vec<Option<usize>> = (0..dimensions.list.len()).map(|number| scales.get(&number).copied()).collect();
    let coordinates: HashSet<usize> = order.iter().flatten().copied().collect();
    order.extend((0..variables.len()).filter(|at| !coordinates.contains(at)).map(Some));
    order
}

/// Returns for each dimension the datasets along it, in `order`, and their positions in these: what
/// the attribute `REFERENCE_LIST` has.
pub(super) fn uses(dimensions: &Dimensions, variables: &[Named], order: &[Option<usize>]) -> Vec<Vec<(usize, u32)>> {
    let mut uses = vec![Vec::new(); dimensions.list.len()];
    for (dataset, named) in order.iter().enumerate().filter_map(|(dataset, at)| Some((dataset, variables.get((*at)?)?)))
    {
        // A scale is along itself, which the format does not say.
        if named.coordinate(dimensions).is_some() {
            continue;
        }
        for (position, dimension) in named.dimensions.iter().enumerate() {
            if let Some(uses) = uses.get_mut(*dimension) {
                uses.push((dataset, position as u32));
            }
        }
    }
    uses
}

/// Adds to the dataset of a dimension the datasets along it, unless there are too many for an
/// attribute.
pub(super) fn add_uses(dataset: &mut Dataset, uses: Vec<(usize, u32)>) {
    if (1..=MAX_USES).contains(&uses.len()) {
        dataset.attributes.push(attribute("REFERENCE_LIST", Value::Uses(uses)));
    }
}

fn int32s(numbers: &[usize], count: Option<u64>) -> Value {
    let bytes = numbers.iter().flat_map(|number| (*number as i32).to_le_bytes()).collect();
    Value::Numbers { data_type: DataType::Int { size: 4, signed: true }, bytes, count }
}

fn attribute(name: &str, value: Value) -> Attribute {
    Attribute { name: name.to_owned(), value }
}

fn with_nul(text: &str) -> Value {
    Value::FixedBytes([text.as_bytes(), b"\0"].concat())
}

/// Makes the dataset of dimension `number`, which has no variable. The dimensions in `unlimited`
/// have no maximal size.
pub(super) fn bare_dimension(number: usize, dimensions: &Dimensions, unlimited: &HashSet<usize>) -> Dataset {
    let dimension = dimensions.list.get(number);
    let (name, size, group) = dimension.map(|it| (it.name.clone(), it.size, it.group)).unwrap_or_default();
    let attributes = vec![
        attribute("CLASS", with_nul("DIMENSION_SCALE")),
        attribute("NAME", with_nul(&format!("{NO_VARIABLE}{size:10}"))),
        attribute("_Netcdf4Dimid", int32s(&[number], None)),
    ];
    Dataset {
        name,
        group,
        data_type: DataType::BigEndianFloat32,
        shape: vec![size],
        unlimited: unlimited.contains(&number),
        fill: None,
        layout: Layout::Absent,
        attributes,
    }
}

/// Makes the dataset of a variable with `attributes`, its own.
pub(super) fn dataset(
    named: &Named,
    attributes: Vec<Attribute>,
    dimensions: &Dimensions,
    unlimited: &HashSet<usize>,
) -> Dataset {
    let Member { variable, group, .. } = &named.member;
    let mut own = Vec::new();
    let mut name = named.member.name.clone();
    match named.coordinate(dimensions) {
        Some(number) => {
            own.push(attribute("CLASS", with_nul("DIMENSION_SCALE")));
            own.push(attribute("NAME", with_nul(&name)));
            own.push(attribute("_Netcdf4Dimid", int32s(&[number], None)));
        }
        None => {
            if dimensions.has_own(*group, &name) {
                name.insert_str(0, NOT_A_COORDINATE);
            }
            if !named.dimensions.is_empty() {
                own.push(attribute("DIMENSION_LIST", Value::References(named.dimensions.clone())));
            }
        }
    }
    if !named.dimensions.is_empty() {
        own.push(attribute("_Netcdf4Coordinates", int32s(&named.dimensions, Some(named.dimensions.len() as u64))));
    }
    own.extend(attributes);
    let extra = variable.element.extra_dimension(variable.longest).map(|(_, size)| size);
    let shape = variable.shape.iter().copied().chain(extra).collect();
    let unlimited = named.dimensions.first().is_some_and(|first| unlimited.contains(first));
    let layout = if file_chunks::is_one_unit(variable) && !unlimited {
        Layout::Contiguous
    } else {
        let along = std::iter::once(variable.along).chain(std::iter::repeat(1));
        let lengths = variable.kept.iter().zip(along).map(|(length, along)| length * along);
        // A chunk has less than 4 GiB, so that each length fits.
        Layout::Chunked(lengths.chain(extra).map(|length| length as u32).collect())
    };
    let data_type = variable.element.data_type();
    let fill = match data_type {
        DataType::FixedString { .. } => vec![0],
        DataType::Float32 | DataType::Float64 | DataType::Int { .. } => {
            let mut fill = variable.shown_fill.clone();
            // Of a complex number, one part.
            fill.truncate(fill.len() / extra.unwrap_or(1).max(1) as usize);
            fill
        }
        _ => Vec::new(),
    };
    // All data are there, and zero is the default of the format. GDAL takes a fill value that is
    // set for missing data, also if no attribute says so.
    let is_marked = own.iter().any(|attribute| attribute.name == FILL_VALUE);
    let fill = Some(fill).filter(|fill| is_marked || fill.iter().any(|byte| *byte != 0));
    Dataset { name, group: *group, data_type, shape, unlimited, fill, layout, attributes: own }
}
