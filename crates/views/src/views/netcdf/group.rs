//! The contents of a file: the arrays of a group as variables, or those of all groups in groups.
//!
//! [`super::members`] finds groups and arrays, [`super::dimensions`] has the dimensions that they
//! name, [`super::record_dimension`] chooses the unlimited ones, and [`super::datasets`] makes
//! datasets of all that.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::chunks::Units;
use super::datasets::{self, Named};
use super::dimensions::{Dimensions, GivenNames};
use super::document::{self, StoredAttributes};
use super::file_chunks;
use super::hdf5::model::{Attribute, DataType, Dataset, FileModel, Group, Value};
use super::hdf5::plan::Plan;
use super::members::{FileGroup, Member, Members};
use super::names::MAX_NAME;
use super::variable::Variable;
use super::{attributes, record_dimension};
use crate::views::options::NetcdfOptions;
use crate::views::report::{self, Finding};
use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::memory::{self, Reservation};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeIndex;

/// Memory of the units of a variable in bytes: shapes, codecs and the fill value, rounded up.
const UNITS_MEMORY: usize = 1024;
/// Memory of a finding in bytes, rounded up.
const FINDING_MEMORY: usize = 256;
/// Memory for making a variable or group in bytes, besides its `zarr.json`. Measured: 2.4 KiB for a
/// variable with one of 520 bytes.
const MEMBER_MEMORY: u64 = 2048;
/// Most bytes of all datasets together: a file has less than 2^63.
const MAX_BYTES: u64 = 1 << 62;

/// Contents of a file.
#[derive(Debug)]
pub(super) struct GroupFile {
    pub(super) plan: Plan,
    /// Units of each dataset; none for a dimension without variable.
    pub(super) units: Vec<Option<Arc<Units>>>,
    pub(super) findings: Vec<Finding>,
    /// Bytes of the header and of the chunks that are stored, as the file shows them: at most
    /// these, as several arrays may share a manifest.
    pub(super) allocated: u64,
    _memory: Reservation,
}

impl GroupFile {
    /// Makes the file of the group at `root`, which is called `file` in the report. Fails if it
    /// needs more memory than is left.
    pub(super) async fn make(tree: &Arc<Tree>, root: NodeIndex, file: &str, options: &NetcdfOptions) -> Result<Self> {
        let mut reservation = memory::reserve(memory_of_making(tree, root, options.nested_groups), file).await?;
        let mut findings = Vec::new();
        let classic = options.classic_types;
        let Members { groups, list } =
            Members::collect(tree, root, file, options.nested_groups, classic, &mut findings).await?;
        let mut members = list;
        loop {
            let mut found = Vec::new();
            let mut given = GivenNames::default();
            for Member { group, stored_name, name, variable, .. } in &members {
                let dimensions = variable.dimension_names.iter().flatten();
                given.add(*group, stored_name, name, dimensions.map(AsRef::as_ref));
            }
            let mut dimensions = Dimensions::new(groups.iter().map(|group| (group.parent, group.name.as_str())), given);
            let variables = members.drain(..).map(|member| Named::new(member, &mut dimensions, &mut found));
            let mut variables: Vec<Named> = variables.collect();
            let unlimited =
                record_dimension::choose(&options.record_dimension, &dimensions, &variables, file, &mut found);
            for Named { member, .. } in &mut variables {
                member.variable.along = file_chunks::units_along(&member.variable);
            }
            // One bad variable must not spoil the file.
            let bad = bad_variables(&variables, &dimensions, &unlimited);
            if !bad.is_empty() {
                for (at, Named { member, .. }) in variables.into_iter().enumerate() {
                    match bad.get(&at) {
                        Some(reason) => findings.push(Finding {
                            path: member.path,
                            deed: "left out".to_owned(),
                            reason: reason.clone(),
                        }),
                        None => members.push(member),
                    }
                }
                continue;
            }
            findings.append(&mut found);
            let order = datasets::order(&dimensions, &variables);
            let mut datasets: Vec<Dataset> = order
                .iter()
                .enumerate()
                .map(|(number, at)| match at.and_then(|at| variables.get_mut(at)) {
                    Some(named) => {
                        let attributes = std::mem::take(&mut named.member.attributes);
                        datasets::dataset(named, attributes, &dimensions, &unlimited)
                    }
                    None => datasets::bare_dimension(number, &dimensions, &unlimited),
                })
                .collect();
            let uses = datasets::uses(&dimensions, &variables, &order);
            datasets.iter_mut().zip(uses).for_each(|(dataset, uses)| datasets::add_uses(dataset, uses));
            // The classic model has no groups.
            let is_classic = classic && groups.len() == 1;
            let groups = groups.iter().map(|group| file_group(tree, group, classic, &mut findings));
            let mut groups: Vec<Group> = groups.collect::<Result<_>>()?;
            if let Some(root) = groups.first_mut() {
                root.attributes.splice(0..0, attributes_of_file(is_classic));
            }
            let stored = variables.iter().map(|named| stored_bytes(tree, &named.member.variable));
            let stored: u64 = stored.fold(0, u64::saturating_add);
            let plan = Plan::new(&FileModel { groups, datasets }).context(|| file)?;
            let mut units: Vec<Option<Arc<Units>>> =
                variables.into_iter().map(|named| Some(Units::new(named.member.variable))).collect();
            let units: Vec<_> = order.into_iter().map(|at| at.and_then(|at| units.get_mut(at)?.take())).collect();
            let kept = (plan.memory() + units.len() * UNITS_MEMORY + findings.len() * FINDING_MEMORY) as u64;
            if kept > reservation.bytes() {
                reservation = memory::reserve(kept, file).await?;
            }
            reservation.resize(kept, file)?;
            let allocated = stored.saturating_add(plan.head_bytes()).min(plan.size());
            return Ok(GroupFile { plan, units, findings, allocated, _memory: reservation });
        }
    }
}

/// Returns the bytes that the stored chunks of `variable` have in the file, at most.
fn stored_bytes(tree: &Tree, variable: &Variable) -> u64 {
    let Some(array) = tree.table().array(variable.node) else { return 0 };
    let chunks = variable.stored_grid.iter().fold(1_u64, |count, length| count.saturating_mul(*length)).max(1);
    let stored = tree.table().listed_chunks(array).unwrap_or(chunks);
    let units = variable.grid.iter().fold(variable.shown_bytes(), |bytes, count| bytes.saturating_mul(*count));
    let bytes = u128::from(units) * u128::from(stored.min(chunks)) / u128::from(chunks);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Returns the bytes that making the file of `root` takes at most, about.
fn memory_of_making(tree: &Tree, root: NodeIndex, nested: bool) -> u64 {
    let of = |node: NodeIndex| {
        let zarr_json = tree.zarr_json(node).unwrap_or_default();
        // Names and texts of attributes are in the file's attributes, in the header, and in
        // findings.
        MEMBER_MEMORY + 2 * zarr_json.len() as u64 + 2 * document::measure_attribute_names(zarr_json)
    };
    if nested {
        tree.table().subtree(root).map(of).sum()
    } else {
        tree.table().children(root).iter().copied().map(of).sum()
    }
}

/// Returns the variables that cannot be in the file, with the reasons.
fn bad_variables(variables: &[Named], dimensions: &Dimensions, unlimited: &HashSet<usize>) -> HashMap<usize, String> {
    let mut left = MAX_BYTES;
    let mut bad = HashMap::new();
    for (at, named) in variables.iter().enumerate() {
        let dataset = datasets::dataset(named, named.member.attributes.clone(), dimensions, unlimited);
        let reason = match Plan::check_dataset(&dataset) {
            // With the prefix of a variable that has the name of a dimension.
            Ok(_) if dataset.name.len() > MAX_NAME => {
                format!(
                    "a dimension has its name, and with the prefix that tells them apart it exceeds {MAX_NAME} bytes"
                )
            }
            Ok(length) => match left.checked_sub(length) {
                Some(rest) => {
                    left = rest;
                    continue;
                }
                None => "the file would be longer than 2^62 bytes".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        bad.insert(at, reason);
    }
    bad
}

/// Makes a group of the file, with its attributes.
fn file_group(tree: &Tree, group: &FileGroup, classic: bool, findings: &mut Vec<Finding>) -> Result<Group> {
    // The attributes of an array with arrays below it are those of its variable.
    let document = tree.zarr_json(group.node).filter(|_| tree.table().array(group.node).is_none());
    let stored = document.map(StoredAttributes::of_group).transpose()?.unwrap_or_default();
    let path = format!("/{}", tree.table().path(group.node));
    let others = findings.len();
    let attributes = attributes::convert(&stored, None, classic, &path, findings);
    report::cut_findings(findings, others, &path);
    Ok(Group { name: group.name.clone(), parent: group.parent, attributes })
}

/// Returns the attributes by which netCDF knows its files, and those of its classic model.
fn attributes_of_file(is_classic: bool) -> Vec<Attribute> {
    let version = format!("version=2,icechunkfs={}", env!("CARGO_PKG_VERSION"));
    let one =
        Value::Numbers { data_type: DataType::Int { size: 4, signed: true }, bytes: vec![1, 0, 0, 0], count: None };
    let mut attributes = vec![Attribute { name: "_NCProperties".to_owned(), value: Value::Text(version) }];
    if is_classic {
        attributes.push(Attribute { name: "_nc3_strict".to_owned(), value: one });
    }
    attributes
}
