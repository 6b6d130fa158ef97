//! Files of the classic formats of NetCDF.
//!
//! All data are there, raw and big-endian: a variable is one run of bytes, but one along the record
//! dimension has a run in each record, between those of the others. [`header`] reads what a file
//! says of itself, [`layout`] where the data must then be, and here that becomes arrays.

mod cursor;
mod header;
mod layout;

use std::collections::HashSet;

use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::memory::{Meter, Metered};

use self::header::{Header, Variable};
use self::layout::Layout;
use crate::attributes::{self, Attribute, FILL_VALUE};
use crate::chunking::Sizes;
use crate::data::ArrayData;
use crate::element::{ByteOrder, Element};
use crate::plan::{Array, Omissions, Plan};
use crate::source::Source;

/// Bytes of a dimension of an array, besides its name, in the plan and in documents.
const DIMENSION: u64 = 128;

/// Returns true if `source` begins as a file of a classic format does.
///
/// Errors: as for reading.
pub fn is_one(source: &dyn Source) -> Result<bool> {
    let mut start = [0; 3];
    if source.length() >= start.len() as u64 {
        source.read(0, &mut start)?;
    }
    Ok(start == *b"CDF")
}

/// Returns the plan for the file `source`.
///
/// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if it is not a whole file of a classic
/// format; others as for reading.
pub fn plan(source: &dyn Source) -> Result<Metered<Plan>> {
    plan_with(source, Sizes::USUAL)
}

fn plan_with(source: &dyn Source, sizes: Sizes) -> Result<Metered<Plan>> {
    let header = header::read(source)?;
    let layout = Layout::of(&header, source.length())?;
    let mut meter = Meter::new("the plan of an import").beside(header.reserved());
    let mut plan = Plan::default();
    let omissions = &mut plan.omissions;
    for name in &header.odd_names {
        omissions.add(|| name.clone(), "bytes of the name that are not UTF-8 became U+FFFD");
    }
    if layout.rest > 0 {
        omissions.add(|| "/".to_owned(), format!("left out: {} bytes behind the last whole record", layout.rest));
    }
    let used: HashSet<usize> =
        header.variables.iter().flat_map(|variable| variable.dimensions.iter().copied()).collect();
    for (_, unused) in header.dimensions.iter().enumerate().filter(|(position, _)| !used.contains(position)) {
        omissions.add(|| unused.name.clone(), "left out: a dimension that no variable has");
    }
    meter.count(header.attributes.iter().map(Attribute::cost).sum())?;
    plan.attributes = attributes::convert(&header.attributes, None, "/", omissions);
    let mut names = HashSet::new();
    for variable in &header.variables {
        if !names.insert(variable.name.as_str()) {
            omissions.add(|| variable.name.clone(), "left out: another variable has its name");
            continue;
        }
        let array = array(&header, &layout, variable, sizes, &mut meter, omissions);
        plan.arrays.push(array.context(|| format!("variable {}", variable.name))?);
    }
    plan.check(source.length())?;
    Ok(meter.finish(plan))
}

fn array(
    header: &Header,
    layout: &Layout,
    variable: &Variable,
    sizes: Sizes,
    meter: &mut Meter,
    omissions: &mut Omissions,
) -> Result<Array> {
    let dimensions = || variable.dimensions.iter().filter_map(|position| header.dimensions.get(*position));
    // Each once in the plan, and once in the document.
    meter.count(size_of::<Array>() as u64 + variable.attributes.iter().map(Attribute::cost).sum::<u64>())?;
    meter.count(dimensions().map(|dimension| DIMENSION + 2 * dimension.name.len() as u64).sum())?;
    let run = layout::run_of(header, layout, variable)?;
    let chunk_shape = layout::chunk_shape(header, variable, &run, sizes);
    let element = variable.element;
    Ok(Array {
        name: variable.name.clone(),
        chunk_shape,
        dimension_names: dimensions().map(|dimension| dimension.name.clone()).collect(),
        attributes: attributes::convert(&variable.attributes, Some(element), &variable.name, omissions),
        element,
        order: ByteOrder::Big,
        codecs: Vec::new(),
        data: ArrayData::Plain(run),
        fill_value: fill_value(variable, element),
    })
}

/// Returns the value of elements that the file does not have, by its attribute or the default of
/// netCDF.
fn fill_value(variable: &Variable, element: Element) -> (serde_json::Value, Vec<u8>) {
    let own = variable.attributes.iter().find(|attribute| attribute.name == FILL_VALUE);
    let bytes = own.and_then(|own| own.as_one(element)).unwrap_or_else(|| element.default_fill());
    (element.fill_value(&bytes).unwrap_or_default(), bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests;
