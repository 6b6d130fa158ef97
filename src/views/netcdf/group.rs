//! The contents of a file: the arrays of a group as variables, their dimensions, and the attributes that netCDF needs.
//!
//! A dimension is a dataset: that of the variable with its name whose first dimension it is (a coordinate variable), or an empty one.
//! Attributes tie variables to dimensions: `DIMENSION_LIST` and `_Netcdf4Coordinates` on variables, `CLASS`, `NAME` and `_Netcdf4Dimid` on
//! dimensions. Without any one of them some program of the table in `docs/views.md` refuses the file or loses names.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Map;

use super::chunks::Units;
use super::data_type::Shown;
use super::dimensions::Dimensions;
use super::hdf5::model::{Attribute, DataType, Dataset, FileModel, Layout, Value};
use super::hdf5::plan::Plan;
use super::variable::Variable;
use super::{attributes, names};
use crate::error::Result;
use crate::tree::Tree;
use crate::tree::nodes::NodeIndex;
use crate::views::report::Finding;

/// Name of the attribute with which netCDF hides the dataset of a dimension without variable; the size follows.
const NO_VARIABLE: &str = "This is a netCDF dimension but not a netCDF variable. ";
/// Prefix of the dataset of a variable that has the name of a dimension that is not its first.
const NOT_A_COORDINATE: &str = "_nc4_non_coord_";

/// Memory of the units of a variable in bytes: shapes, codecs and the fill value, rounded up.
const UNITS_MEMORY: usize = 1024;

/// Contents of a file.
#[derive(Debug)]
pub(super) struct GroupFile {
    pub(super) plan: Plan,
    /// Units of each dataset; none for a dimension without variable.
    pub(super) units: Vec<Option<Arc<Units>>>,
    pub(super) findings: Vec<Finding>,
}

/// Variable with its name, its dimensions and its attributes.
struct Named {
    name: String,
    path: String,
    variable: Variable,
    dimensions: Vec<usize>,
    attributes: Vec<Attribute>,
}

impl Named {
    /// Returns the dimension whose scale the variable is.
    fn coordinate(&self, dimensions: &Dimensions) -> Option<usize> {
        let first = *self.dimensions.first()?;
        dimensions.list.get(first).is_some_and(|dimension| dimension.name == self.name).then_some(first)
    }
}

impl GroupFile {
    /// Returns the bytes that the file takes in memory.
    pub(super) fn memory(&self) -> u64 {
        (self.plan.memory() + self.units.len() * UNITS_MEMORY) as u64
    }

    /// Makes the file of the group at `group`.
    pub(super) async fn make(tree: &Arc<Tree>, group: NodeIndex) -> Result<Self> {
        let mut findings = Vec::new();
        let mut parsed = Vec::new();
        let mut taken = HashSet::new();
        for &node in tree.table().children(group) {
            if tree.table().array(node).is_none() {
                continue;
            }
            let path = format!("/{}", tree.table().path(node));
            let finding = |deed: String, reason: &str| Finding { path: path.clone(), deed, reason: reason.to_owned() };
            let stored = tree.table().name(node);
            let Some(name) = names::allowed(stored) else {
                findings.push(finding("left out".to_owned(), "the name is too long"));
                continue;
            };
            let variable = match Variable::parse(tree, node).await {
                Ok(variable) => variable,
                Err(reason) => {
                    findings.push(finding("left out".to_owned(), &reason));
                    continue;
                }
            };
            if !taken.insert(name.clone()) {
                findings.push(finding("left out".to_owned(), "another variable has its name"));
                continue;
            }
            if name != stored {
                findings.push(finding(format!("renamed to {name}"), "programs do not accept the name"));
            }
            note_changes(&variable, &path, &mut findings);
            parsed.push((name, path, variable));
        }
        // Coordinate variables name their dimensions first, so that these keep the plain names.
        parsed.sort_by_key(|(name, _, variable)| {
            let is_own = variable.dimension_names.first().is_some_and(|first| first.as_ref() == Some(name));
            (!(is_own && variable.shape.len() == 1), !is_own)
        });
        let group_attributes = group_attributes(tree, group, &mut findings);
        loop {
            let (dimensions, variables, mut found) = with_dimensions(&mut parsed);
            let (model, order) = model(&dimensions, &variables, group_attributes.clone());
            match Plan::new(&model) {
                Ok(plan) => {
                    findings.append(&mut found);
                    // Attributes are in the plan.
                    let plain = |named: Named| Variable { attributes: Map::new(), ..named.variable };
                    let mut slots: Vec<Option<Variable>> =
                        variables.into_iter().map(|named| Some(plain(named))).collect();
                    let units = order
                        .into_iter()
                        .map(|at| at.and_then(|at| slots.get_mut(at)?.take()).map(Units::new))
                        .collect();
                    return Ok(GroupFile { plan, units, findings });
                }
                Err(error) => {
                    // One bad variable must not spoil the file: leave out each that cannot be planned by itself.
                    let count = variables.len();
                    let alone = |named: &Named| {
                        let mut dataset = dataset(named, &dimensions);
                        dataset.attributes.retain(|attribute| !matches!(attribute.value, Value::References(_)));
                        Plan::new(&FileModel { attributes: Vec::new(), datasets: vec![dataset] }).err()
                    };
                    for named in variables {
                        match alone(&named) {
                            Some(reason) => findings.push(Finding {
                                path: named.path,
                                deed: "left out".to_owned(),
                                reason: reason.to_string(),
                            }),
                            None => parsed.push((named.name, named.path, named.variable)),
                        }
                    }
                    if parsed.len() == count {
                        return Err(error.context(format!("/{}", tree.table().path(group))));
                    }
                }
            }
        }
    }
}

/// Reports how the elements of a variable differ from those of its array.
fn note_changes(variable: &Variable, path: &str, findings: &mut Vec<Finding>) {
    let (deed, reason) = match &variable.element.shown {
        Shown::Widened { .. } => ("widened to float32", "programs cannot read half-precision numbers"),
        Shown::Complex(_) => ("shown with a last dimension of 2", "NetCDF has no complex numbers"),
        Shown::Time { units: None, .. } => ("shown as plain integers", "NetCDF has no such unit of time"),
        _ => return,
    };
    findings.push(Finding { path: path.to_owned(), deed: deed.to_owned(), reason: reason.to_owned() });
}

fn group_attributes(tree: &Tree, group: NodeIndex, findings: &mut Vec<Finding>) -> Vec<Attribute> {
    let document = tree.zarr_json(group).and_then(|json| serde_json::from_slice::<serde_json::Value>(json).ok());
    let stored = document.as_ref().and_then(|document| document.get("attributes")?.as_object());
    let path = format!("/{}", tree.table().path(group));
    let mut converted = stored.map(|stored| attributes::convert(stored, None, &path, findings)).unwrap_or_default();
    let version = format!("version=2,icechunkfs={}", env!("CARGO_PKG_VERSION"));
    converted.insert(0, Attribute { name: "_NCProperties".to_owned(), value: Value::Text(version) });
    converted
}

/// Gives the variables of a file their dimensions and attributes.
fn with_dimensions(parsed: &mut Vec<(String, String, Variable)>) -> (Dimensions, Vec<Named>, Vec<Finding>) {
    let (mut dimensions, mut findings) = (Dimensions::default(), Vec::new());
    let mut variables = Vec::with_capacity(parsed.len());
    for (name, path, variable) in parsed.drain(..) {
        let asked = variable.dimension_names.iter().zip(&variable.shape);
        let mut numbers: Vec<usize> =
            asked.map(|(name, size)| dimensions.number(name.as_deref(), *size, &path, &mut findings)).collect();
        if let Some((name, size)) = variable.element.extra_dimension(variable.longest) {
            numbers.push(dimensions.number(Some(&name), size, &path, &mut findings));
        }
        let mut converted = attributes::convert(&variable.attributes, Some(&variable.element), &path, &mut findings);
        add_own_attributes(&variable, &mut converted);
        variables.push(Named { name, path, variable, dimensions: numbers, attributes: converted });
    }
    (dimensions, variables, findings)
}

/// Adds attributes that follow from the data type and the fill value, unless the array has them.
fn add_own_attributes(variable: &Variable, attributes: &mut Vec<Attribute>) {
    let text = |text: &str| Value::Text(text.to_owned());
    let fill = |bytes: Vec<u8>| Value::Numbers { data_type: variable.element.data_type(), bytes, count: Some(1) };
    let mut own: Vec<(&str, Value)> = Vec::new();
    match &variable.element.shown {
        Shown::Boolean => own.push(("dtype", text("bool"))),
        Shown::Utf32 | Shown::Texts => own.push(("_Encoding", text("utf-8"))),
        Shown::Time { units: Some(units), is_span } => {
            own.push(("units", text(units)));
            if !is_span {
                own.push(("calendar", text("proleptic_gregorian")));
            }
            own.push(("_FillValue", fill(i64::MIN.to_le_bytes().to_vec())));
        }
        Shown::Number(_) | Shown::Widened { .. } | Shown::Complex(_) if variable.has_nan_fill => {
            let has_missing = attributes.iter().any(|attribute| attribute.name == "missing_value");
            let bytes = variable.shown_fill();
            if !has_missing && !matches!(variable.element.shown, Shown::Complex(_)) {
                own.push(("_FillValue", fill(bytes)));
            }
        }
        _ => {}
    }
    for (name, value) in own {
        if !attributes.iter().any(|attribute| attribute.name == name) {
            attributes.push(Attribute { name: name.to_owned(), value });
        }
    }
}

/// Returns the model of the file, and for each dataset the place of its variable in `variables`.
fn model(dimensions: &Dimensions, variables: &[Named], attributes: Vec<Attribute>) -> (FileModel, Vec<Option<usize>>) {
    let scale_of = |number: usize| variables.iter().position(|named| named.coordinate(dimensions) == Some(number));
    // Datasets of dimensions come first: dataset n is dimension n.
    let mut order: Vec<Option<usize>> = (0..dimensions.list.len()).map(scale_of).collect();
    let coordinates: HashSet<usize> = order.iter().flatten().copied().collect();
    order.extend((0..variables.len()).filter(|at| !coordinates.contains(at)).map(Some));
    let datasets = order
        .iter()
        .enumerate()
        .map(|(at, variable)| match variable.and_then(|at| variables.get(at)) {
            Some(named) => dataset(named, dimensions),
            None => bare_dimension(at, dimensions),
        })
        .collect();
    (FileModel { attributes, datasets }, order)
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

fn bare_dimension(number: usize, dimensions: &Dimensions) -> Dataset {
    let (name, size) = dimensions.list.get(number).map(|it| (it.name.clone(), it.size)).unwrap_or_default();
    let attributes = vec![
        attribute("CLASS", with_nul("DIMENSION_SCALE")),
        attribute("NAME", with_nul(&format!("{NO_VARIABLE}{size:10}"))),
        attribute("_Netcdf4Dimid", int32s(&[number], None)),
    ];
    Dataset {
        name,
        data_type: DataType::BigEndianFloat32,
        shape: vec![size],
        unlimited: false,
        fill: None,
        layout: Layout::Absent,
        attributes,
    }
}

fn dataset(named: &Named, dimensions: &Dimensions) -> Dataset {
    let variable = &named.variable;
    let mut own = Vec::new();
    let mut name = named.name.clone();
    match named.coordinate(dimensions) {
        Some(number) => {
            own.push(attribute("CLASS", with_nul("DIMENSION_SCALE")));
            own.push(attribute("NAME", with_nul(&named.name)));
            own.push(attribute("_Netcdf4Dimid", int32s(&[number], None)));
        }
        None => {
            if dimensions.by_name(&name).is_some() {
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
    own.extend(named.attributes.iter().cloned());
    let extra = variable.element.extra_dimension(variable.longest).map(|(_, size)| size);
    let shape = variable.shape.iter().copied().chain(extra).collect();
    let is_whole = variable.grid.iter().all(|units| *units == 1);
    let layout = match is_whole {
        true => Layout::Contiguous,
        // A chunk has less than 4 GiB, so that each length fits.
        false => Layout::Chunked(variable.kept.iter().copied().chain(extra).map(|length| length as u32).collect()),
    };
    let data_type = variable.element.data_type();
    let fill = match data_type {
        DataType::FixedString { .. } => vec![0],
        DataType::Float32 | DataType::Float64 | DataType::Int { .. } => {
            let mut fill = variable.shown_fill();
            // Of a complex number, one part.
            fill.truncate(fill.len() / extra.unwrap_or(1).max(1) as usize);
            fill
        }
        _ => Vec::new(),
    };
    Dataset { name, data_type, shape, unlimited: false, fill: Some(fill), layout, attributes: own }
}
