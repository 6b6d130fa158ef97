//! Choice of the unlimited dimensions of a file: programs such as `ncra` and `ncrcat` work along
//! them.
//!
//! A group has at most one, since classic files do, and only one that is the first of all variables
//! that have it.

use std::collections::HashSet;

use super::datasets::Named;
use super::dimensions::Dimensions;
use super::hdf5::model::Value;
use crate::views::options::RecordDimension;
use crate::views::report::Finding;

/// Returns the numbers of the unlimited dimensions. What cannot be unlimited is added to
/// `findings`, for the file at `file`.
pub(super) fn choose(
    wanted: &RecordDimension,
    dimensions: &Dimensions,
    variables: &[Named],
    file: &str,
    findings: &mut Vec<Finding>,
) -> HashSet<usize> {
    let mut candidates = candidates(wanted, dimensions, variables);
    candidates.sort();
    let inner: HashSet<usize> = variables.iter().flat_map(|named| named.dimensions.iter().skip(1).copied()).collect();
    let mut chosen = HashSet::new();
    let mut groups = HashSet::new();
    let mut failed = Vec::new();
    for (group, _, number) in candidates {
        if inner.contains(&number) {
            failed.push((group, number));
        } else if groups.insert(group) {
            chosen.insert(number);
        }
    }
    for (group, number) in failed {
        if let Some(dimension) = dimensions.list.get(number).filter(|_| !groups.contains(&group)) {
            findings.push(Finding {
                path: file.to_owned(),
                deed: format!("dimension {} not unlimited", dimension.name),
                reason: "it is not the first dimension of all its variables".to_owned(),
            });
        }
    }
    if let (RecordDimension::Name(name), true) = (wanted, groups.is_empty())
        && !dimensions.list.iter().any(|dimension| dimension.name == *name)
    {
        findings.push(Finding {
            path: file.to_owned(),
            deed: "no dimension unlimited".to_owned(),
            reason: format!("no dimension is called {name}"),
        });
    }
    chosen
}

/// Returns the group, the rank among the candidates of the group, and the number of each dimension
/// that may be meant.
fn candidates(wanted: &RecordDimension, dimensions: &Dimensions, variables: &[Named]) -> Vec<(usize, u8, usize)> {
    let by_name = |matches: &dyn Fn(&str) -> bool, rank: u8| {
        let list = dimensions.list.iter().enumerate().filter(|(_, dimension)| matches(&dimension.name));
        list.map(|(number, dimension)| (dimension.group, rank, number)).collect::<Vec<_>>()
    };
    match wanted {
        RecordDimension::None => Vec::new(),
        RecordDimension::Name(name) => by_name(&|other| other == name, 0),
        RecordDimension::Auto => {
            let mut list = by_name(&|name| name.eq_ignore_ascii_case("time"), 2);
            for named in variables {
                let Some(number) = named.coordinate(dimensions).filter(|_| named.dimensions.len() == 1) else {
                    continue;
                };
                let rank = if text(named, "units").is_some_and(|units| units.contains(" since ")) {
                    0
                } else if text(named, "standard_name") == Some("time") {
                    1
                } else {
                    continue;
                };
                list.push((named.member.group, rank, number));
            }
            list
        }
    }
}

fn text<'a>(named: &'a Named, name: &str) -> Option<&'a str> {
    let attribute = named.member.attributes.iter().find(|attribute| attribute.name == name)?;
    match &attribute.value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}
