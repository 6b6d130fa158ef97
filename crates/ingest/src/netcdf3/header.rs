//! The header of a file of the classic formats ("NetCDF Classic Format Specification": CDF-1, CDF-2
//! with offsets of 64 bits, CDF-5 with counts of 64 bits and more types).

use std::collections::HashSet;

use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_format::zarr::array::MAX_RANK;

use super::cursor::{Cursor, Width};
use crate::attributes::Attribute;
use crate::element::Element;
use crate::plan::MAX_NODES;
use crate::source::Source;

const DIMENSIONS: u32 = 0x0a;
const VARIABLES: u32 = 0x0b;
const ATTRIBUTES: u32 = 0x0c;

/// Content of a header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) records: Records,
    pub(super) dimensions: Vec<Dimension>,
    pub(super) attributes: Vec<Attribute>,
    pub(super) variables: Vec<Variable>,
    /// Length of the header in bytes.
    pub(super) length: u64,
    /// Names that are not UTF-8, as they are shown.
    pub(super) odd_names: Vec<String>,
}

/// Number of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Records {
    Known(u64),
    /// As many as the file has: its writer never came back to the header.
    Streamed,
}

#[derive(Debug)]
pub(super) struct Dimension {
    pub(super) name: String,
    /// Length; none of the record dimension.
    pub(super) length: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Variable {
    pub(super) name: String,
    /// Positions in the list of dimensions.
    pub(super) dimensions: Vec<usize>,
    pub(super) attributes: Vec<Attribute>,
    pub(super) element: Element,
    /// Position of the data in the file.
    pub(super) begin: u64,
}

/// Reads the header of `source`.
///
/// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if it is none.
pub(super) fn read(source: &dyn Source) -> Result<Metered<Header>> {
    let mut cursor = Cursor::new(source);
    let header = parse(&mut cursor).context(|| "the header")?;
    Ok(cursor.meter.finish(header))
}

fn parse(cursor: &mut Cursor<'_>) -> Result<Header> {
    let magic = cursor.bytes(4)?;
    (cursor.counts, cursor.offsets) = match magic.as_slice() {
        b"CDF\x01" => (Width::Bits32, Width::Bits32),
        b"CDF\x02" => (Width::Bits32, Width::Bits64),
        b"CDF\x05" => (Width::Bits64, Width::Bits64),
        _ => return Err(Error::corrupt("not a file of the classic formats of NetCDF")),
    };
    let streamed = match cursor.counts {
        Width::Bits32 => u32::MAX.into(),
        Width::Bits64 => u64::MAX,
    };
    let records = match cursor.count()? {
        count if count == streamed => Records::Streamed,
        count => Records::Known(count),
    };
    let mut odd_names = Vec::new();
    let dimensions = dimensions(cursor, &mut odd_names)?;
    let attributes = attributes(cursor, &mut odd_names)?;
    let variables = variables(cursor, dimensions.len(), &mut odd_names)?;
    Ok(Header { records, dimensions, attributes, variables, length: cursor.position(), odd_names })
}

fn name(cursor: &mut Cursor<'_>, odd_names: &mut Vec<String>) -> Result<String> {
    let (name, is_text) = cursor.name()?.text();
    if !is_text {
        cursor.meter.count(name.len() as u64)?;
        odd_names.push(name.clone());
    }
    Ok(name)
}

fn dimensions(cursor: &mut Cursor<'_>, odd_names: &mut Vec<String>) -> Result<Vec<Dimension>> {
    let count = cursor.list(DIMENSIONS, 8)?;
    let mut dimensions = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..count {
        cursor.meter.count_items::<Dimension>(1)?;
        let name = name(cursor, odd_names)?;
        let length = Some(cursor.count()?).filter(|length| *length > 0);
        if names.contains(&name) {
            return Err(Error::corrupt(format!("two dimensions are called {name}")));
        }
        cursor.meter.count(2 * name.len() as u64 + 64)?;
        names.insert(name.clone());
        if length.is_none() && dimensions.iter().any(|other: &Dimension| other.length.is_none()) {
            return Err(Error::corrupt(format!("dimension {name}: a second one of records")));
        }
        dimensions.push(Dimension { name, length });
    }
    Ok(dimensions)
}

fn attributes(cursor: &mut Cursor<'_>, odd_names: &mut Vec<String>) -> Result<Vec<Attribute>> {
    let count = cursor.list(ATTRIBUTES, 12)?;
    let mut attributes = Vec::new();
    for _ in 0..count {
        cursor.meter.count_items::<Attribute>(1)?;
        let name = name(cursor, odd_names)?;
        let element = element(cursor)?;
        let length = cursor.count()?.checked_mul(element.size());
        let length = length.ok_or_else(|| Error::corrupt(format!("attribute {name}: too long")))?;
        let bytes = cursor.padded(length).context(|| format!("attribute {name}"))?;
        attributes.push(Attribute { name, element, bytes });
    }
    Ok(attributes)
}

fn variables(cursor: &mut Cursor<'_>, dimensions: usize, odd_names: &mut Vec<String>) -> Result<Vec<Variable>> {
    let count = cursor.list(VARIABLES, 24)?;
    if count > MAX_NODES as u64 {
        return Err(Error::corrupt(format!("more than {MAX_NODES} variables")));
    }
    let mut variables = Vec::new();
    for _ in 0..count {
        cursor.meter.count_items::<Variable>(1)?;
        let name = name(cursor, odd_names)?;
        variables.push(variable(cursor, name.clone(), dimensions, odd_names).context(|| format!("variable {name}"))?);
    }
    Ok(variables)
}

fn variable(cursor: &mut Cursor<'_>, name: String, known: usize, odd_names: &mut Vec<String>) -> Result<Variable> {
    let rank = cursor.count()?;
    if rank > MAX_RANK as u64 {
        return Err(Error::corrupt(format!("{rank} dimensions")));
    }
    let mut dimensions = Vec::new();
    for _ in 0..rank {
        cursor.meter.count_items::<usize>(1)?;
        let position = cursor.count()?;
        let position = usize::try_from(position).ok().filter(|position| *position < known);
        dimensions.push(position.ok_or_else(|| Error::corrupt("a dimension that the file does not have"))?);
    }
    let attributes = attributes(cursor, odd_names)?;
    let element = element(cursor)?;
    // The length, which is wrong for long variables: it follows from the shape.
    cursor.count()?;
    let begin = cursor.offset()?;
    Ok(Variable { name, dimensions, attributes, element, begin })
}

fn element(cursor: &mut Cursor<'_>) -> Result<Element> {
    let number = cursor.u32()?;
    Ok(match number {
        1 => Element::Int8,
        2 => Element::Char,
        3 => Element::Int16,
        4 => Element::Int32,
        5 => Element::Float32,
        6 => Element::Float64,
        7..=11 if cursor.counts == Width::Bits32 => {
            return Err(Error::corrupt(format!("type {number}, which only CDF-5 has")));
        }
        7 => Element::UInt8,
        8 => Element::UInt16,
        9 => Element::UInt32,
        10 => Element::Int64,
        11 => Element::UInt64,
        _ => return Err(Error::corrupt(format!("type {number}"))),
    })
}
