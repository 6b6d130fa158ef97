//! Attributes that variables have beside those of their arrays.

use std::collections::HashSet;
use std::sync::Arc;

use super::data_type::Shown;
use super::hdf5::model::{Attribute, Value};
use super::members::Member;
use super::times::NOT_A_TIME;
use super::variable::{Source, Variable};
use icechunkfs_base::error::{Context, Result};
use icechunkfs_tree::tree::Tree;

/// Attributes with the names of variables that have the bounds of another one.
const OF_BOUNDS: [&str; 2] = ["bounds", "climatology"];

/// Attributes by which programs know what the stored numbers mean. Those of the view are right: an
/// array's own `units` say nothing about a `datetime64`, whose data type has its unit.
const MEANING: [&str; 4] = ["units", "calendar", "dtype", "_Encoding"];

/// Adds attributes that follow from the data type and the fill value, unless the array has them.
/// Attributes of the array that would give its numbers another meaning are removed; returns their
/// names.
pub(super) fn add(variable: &Variable, attributes: &mut Vec<Attribute>) -> Vec<String> {
    let text = |text: &str| Value::Text(text.to_owned());
    let fill = |bytes: Vec<u8>| Value::Numbers { data_type: variable.element.data_type(), bytes, count: Some(1) };
    let mut own: Vec<(&str, Value)> = Vec::new();
    match &variable.element.shown {
        Shown::Boolean => own.push(("dtype", text("bool"))),
        Shown::Utf32 | Shown::Texts => own.push(("_Encoding", text("utf-8"))),
        Shown::Time(times) => {
            if let Some(units) = times.units() {
                own.push(("units", text(&units)));
                own.push(if times.is_span {
                    // By which xarray knows that it is no number with a unit of time.
                    ("dtype", text(times.span_type()))
                } else {
                    ("calendar", text("proleptic_gregorian"))
                });
                let missing = variable.element.convert(NOT_A_TIME.to_le_bytes().to_vec());
                own.extend(
                    missing.ok().filter(|_| variable.has_missing_times).map(|bytes| ("_FillValue", fill(bytes))),
                );
            }
        }
        _ => {}
    }
    let is_wrong = |attribute: &mut Attribute| {
        let meant = own.iter().find(|(own, _)| *own == attribute.name && MEANING.contains(own));
        meant.is_some_and(|(_, value)| *value != attribute.value)
    };
    let removed = attributes.extract_if(.., is_wrong).map(|attribute| attribute.name).collect();
    for (name, value) in own {
        if !attributes.iter().any(|attribute| attribute.name == name) {
            attributes.push(Attribute { name: name.to_owned(), value });
        }
    }
    removed
}

/// Marks NaN as missing where it is the fill value of an array that misses chunks: many programs
/// compute with it otherwise. Nobody has asked for the mark where no chunk is missing, and CF
/// forbids it for coordinates and their bounds. Fails if it cannot be known now whether chunks are
/// missing.
pub(super) async fn add_marks(tree: &Arc<Tree>, members: &mut [Member]) -> Result<()> {
    let bounds: HashSet<(usize, String)> = members.iter().flat_map(names_of_bounds).collect();
    for member in members {
        let Member { variable, attributes, .. } = &*member;
        let is_number = matches!(variable.element.shown, Shown::Number(_) | Shown::Widened { .. });
        let is_marked = attributes.iter().any(|it| ["_FillValue", "missing_value"].contains(&it.name.as_str()));
        let is_bounds = || bounds.contains(&(member.group, member.stored_name.clone()));
        if !is_number || !variable.has_nan_fill || is_marked || member.is_coordinate() || is_bounds() {
            continue;
        }
        if may_miss_chunks(tree, variable).await.context(|| &member.path)? {
            let data_type = variable.element.data_type();
            let bytes = variable.shown_fill.clone();
            let value = Value::Numbers { data_type, bytes, count: Some(1) };
            member.attributes.push(Attribute { name: "_FillValue".to_owned(), value });
        }
    }
    Ok(())
}

/// Returns the group and the names of the variables that have the bounds of `member`.
fn names_of_bounds(member: &Member) -> Vec<(usize, String)> {
    let texts = member.attributes.iter().filter(|attribute| OF_BOUNDS.contains(&attribute.name.as_str()));
    let names = texts.filter_map(|attribute| match &attribute.value {
        Value::Text(name) => Some((member.group, name.clone())),
        _ => None,
    });
    names.collect()
}

/// Returns true if `variable` may have missing chunks. Not every shard is looked into.
async fn may_miss_chunks(tree: &Arc<Tree>, variable: &Variable) -> Result<bool> {
    let Some(chunks) = tree.chunks(variable.node).filter(|_| !matches!(variable.source, Source::Inner(_))) else {
        return Ok(true);
    };
    match chunks.has_all().await {
        Ok(has_all) => Ok(!has_all),
        // A damaged manifest is an error for the chunks that it lists, and not for the file.
        Err(error) if error.is_permanent() => Ok(true),
        Err(error) => Err(error),
    }
}
