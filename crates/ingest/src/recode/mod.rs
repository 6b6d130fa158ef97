//! Arrays of a file in the form of those of an archive: type, byte order, packing, codecs, units of
//! time.
//!
//! Files of one collection often differ in how they pack values, and in the moment from which they
//! count time. An array that is converted has the document of the archive's and other elements, so
//! that everything behind compares, orders and stores it as if the file had been written like that.
//! Only what is understood on both sides is converted. An array of which anything else decides
//! about the meaning stays as it is, and is refused by [`crate::series`].

mod packing;
mod time;

use std::collections::HashMap;

use icechunkfs_base::error::Result;
use serde_json::{Map, Value};

pub(crate) use packing::Conversion;
use packing::{PACKING, Packing, exact};
use time::TimeUnits;

use crate::data::{ArrayData, Recoded};
use crate::difference::{are_like, attributes_of, codecs, is_same};
use crate::element::{ByteOrder, Element, Numeric, named};
use crate::plan::{Array, Plan};
use crate::series::{Existing, axis_of, document_of};

/// Attributes that say how numbers are times.
const TIME: [&str; 2] = ["units", "calendar"];
/// Attributes with numbers that are packed as the elements are, or that change how those are read.
const UNKNOWN: [&str; 8] =
    ["valid_min", "valid_max", "valid_range", "flag_values", "flag_masks", "_Unsigned", "_Encoding", "dtype"];
/// Attributes that name the array with the bounds of times, which has their units.
const BOUNDS: [&str; 2] = ["bounds", "climatology"];

type Attributes = Map<String, Value>;

/// Returns the arrays of `plan` as an archive has them.
///
/// Errors: if a document cannot be written.
pub fn archive_of(plan: &Plan) -> Result<Vec<Existing>> {
    let existing = |array: &Array| Ok(Existing { name: array.name.clone(), document: document_of(array)? });
    plan.arrays.iter().map(existing).collect()
}

/// Gives the arrays of `plan` along `dimension` the form that those of the `archive` have, as far
/// as that is understood. What is converted is noted. `shown` is the file's name, for messages.
///
/// Errors: if a document cannot be written.
pub fn fit(plan: &mut Plan, archive: &[Existing], dimension: &str, shown: &str) -> Result<()> {
    let mut forms = forms_of(plan, archive, dimension, shown)?;
    let note = "converted to the type, packing or units of time that the archive has";
    for array in std::mem::take(&mut plan.arrays) {
        plan.arrays.push(match forms.remove(&array.name) {
            Some(form) => {
                plan.omissions.add(|| array.name.clone(), note);
                form.of(array)
            }
            None => array,
        });
    }
    Ok(())
}

/// Returns the forms that arrays of `plan` are given, by their names.
fn forms_of(plan: &Plan, archive: &[Existing], dimension: &str, shown: &str) -> Result<HashMap<String, Form>> {
    let empty = Attributes::new();
    let here_of = parents(plan.arrays.iter().map(|array| &array.attributes));
    let there_of = parents(archive.iter().filter_map(|one| attributes_of(&one.document)));
    let existing: HashMap<&str, &Existing> = archive.iter().map(|one| (one.name.as_str(), one)).collect();
    let mut forms = HashMap::new();
    for array in plan.arrays.iter().filter(|array| axis_of(array, dimension).is_some()) {
        let name = array.name.as_str();
        let Some(existing) = existing.get(name) else { continue };
        let attributes = attributes_of(&existing.document).unwrap_or(&empty);
        let here = Units::of(&array.attributes, here_of.get(name).copied().flatten());
        let there = Units::of(attributes, there_of.get(name).copied().flatten());
        if let Some(form) = Form::between(array, &existing.document, attributes, (here, there), shown)? {
            forms.insert(array.name.clone(), form);
        }
    }
    // Times whose bounds keep their numbers would be others than those: both are converted, or
    // neither, which is refused.
    let is_left = |name: &str| {
        let bounds = plan.arrays.iter().find(|array| array.name == name);
        let has_own = bounds.is_none_or(|bounds| bounds.attributes.contains_key(TIME[0]));
        !has_own && !forms.get(name).is_some_and(Form::is_of_times)
    };
    let without: Vec<&str> =
        [&here_of, &there_of].into_iter().flatten().filter(|(name, _)| is_left(name)).map(|(name, _)| *name).collect();
    forms.retain(|_, form| !form.is_of_times() || !form.bounds.iter().any(|name| without.contains(&name.as_str())));
    Ok(forms)
}

/// Returns the attributes of the array that each array of bounds belongs to, by its name; none if
/// it belongs to several that are times in other units.
fn parents<'a>(arrays: impl Iterator<Item = &'a Attributes>) -> HashMap<&'a str, Option<&'a Attributes>> {
    let mut parents: HashMap<&str, Option<&Attributes>> = HashMap::new();
    for attributes in arrays {
        for name in bounds_of(attributes) {
            let parent = parents.entry(name).or_insert(Some(attributes));
            *parent = parent.filter(|parent| TIME.iter().all(|name| parent.get(*name) == attributes.get(*name)));
        }
    }
    parents
}

fn bounds_of(attributes: &Attributes) -> impl Iterator<Item = &str> {
    BOUNDS.iter().filter_map(|name| attributes.get(*name)?.as_str())
}

/// Units of an array, which may be those of the times that it has the bounds of.
#[derive(Clone, Copy, PartialEq)]
struct Units<'a> {
    units: Option<&'a Value>,
    calendar: Option<&'a Value>,
}

impl<'a> Units<'a> {
    fn of(own: &'a Attributes, parent: Option<&'a Attributes>) -> Self {
        let [units, calendar] = TIME.map(|name| own.get(name).or_else(|| parent?.get(name)));
        Units { units, calendar }
    }

    fn parse(self) -> Option<TimeUnits> {
        let calendar = self.calendar.map(|calendar| calendar.as_str().ok_or(())).transpose().ok()?;
        TimeUnits::parse(self.units?.as_str()?, calendar)
    }
}

/// Form that an array is given.
struct Form {
    element: Element,
    order: ByteOrder,
    codecs: Vec<Value>,
    fill_value: (Value, Vec<u8>),
    /// Attributes that it has instead of its own; none in the place of one that it loses.
    attributes: Vec<(&'static str, Option<Value>)>,
    conversion: Conversion,
    /// Names of arrays of its bounds.
    bounds: Vec<String>,
}

impl Form {
    /// Returns the form of `array` that the archive's `document`, with these `attributes`, has;
    /// none if it has that, or if the elements are not understood. `units` are those of both.
    fn between(
        array: &Array,
        document: &Attributes,
        attributes: &Attributes,
        units: (Units<'_>, Units<'_>),
        shown: &str,
    ) -> Result<Option<Self>> {
        let own = document_of(array)?;
        let has_same =
            |names: &[&str]| names.iter().all(|name| is_same(array.attributes.get(*name), attributes.get(*name)));
        let is_alike = |name: &str| is_same(own.get(name), document.get(name));
        let found = codecs(document);
        let have_same_codecs = found.as_ref().zip(codecs(&own)).is_some_and(|(one, other)| are_like(one, &other));
        let is_same_meaning = units.0 == units.1 && has_same(&PACKING) && is_alike("data_type");
        if is_same_meaning && is_alike("fill_value") && have_same_codecs {
            return Ok(None);
        }
        let has = |name: &str| array.attributes.contains_key(name) || attributes.contains_key(name);
        if !is_same_meaning && UNKNOWN.iter().any(|name| has(name)) {
            return Ok(None);
        }
        let times = if units.0 == units.1 { Some(None) } else { units.0.parse().zip(units.1.parse()).map(Some) };
        let element = document.get("data_type").and_then(Element::of_data_type);
        let (Some(times), Some(element), Some((order, _))) = (times, element, found) else { return Ok(None) };
        let order = if order == Some("big") { ByteOrder::Big } else { ByteOrder::Little };
        let fill_value =
            document.get("fill_value").and_then(|value| Some((value.clone(), fill(value, element, order)?)));
        let from = Packing::of(array.element, array.order, &array.attributes);
        let to = Packing::of(element, order, attributes);
        let (Some(from), Some(to), Some(fill_value)) = (from, to, fill_value) else { return Ok(None) };
        // Its steps are minutes in a century of days.
        let is_coarse = matches!(element, Element::Float16 | Element::Float32)
            && (units.0.parse().is_some() || units.1.parse().is_some());
        if (times.is_some() && (from.is_packed() || to.is_packed())) || (is_coarse && !is_same_meaning) {
            return Ok(None);
        }
        let replaced = PACKING.iter().chain(TIME.iter().filter(|_| times.is_some()));
        let codecs = document.get("codecs").and_then(Value::as_array).and_then(|codecs| codecs.get(1..));
        Ok(Some(Form {
            element,
            order,
            codecs: codecs.unwrap_or_default().to_vec(),
            fill_value,
            attributes: replaced.map(|name| (*name, attributes.get(*name).cloned())).collect(),
            bounds: bounds_of(&array.attributes).chain(bounds_of(attributes)).map(str::to_owned).collect(),
            conversion: Conversion { what: format!("{shown}: {}", array.name), from, to, times },
        }))
    }

    fn is_of_times(&self) -> bool {
        self.conversion.times.is_some()
    }

    /// Returns `array` in this form.
    fn of(self, array: Array) -> Array {
        let mut attributes = array.attributes;
        for (name, value) in self.attributes {
            match value {
                Some(value) => attributes.insert(name.to_owned(), value),
                None => attributes.remove(name),
            };
        }
        Array {
            attributes,
            element: self.element,
            order: self.order,
            codecs: self.codecs,
            fill_value: self.fill_value,
            data: ArrayData::Recoded(Box::new(Recoded { data: array.data, conversion: self.conversion })),
            ..array
        }
    }
}

/// Returns the bytes of an element with the `fill_value` of a `zarr.json`.
fn fill(value: &Value, element: Element, order: ByteOrder) -> Option<Vec<u8>> {
    let number = match value {
        Value::String(text) => Numeric::Float(named(text)?),
        value => exact(value)?,
    };
    let mut bytes = Vec::new();
    element.append_near(number, &mut bytes)?;
    order.to_big_endian(&mut bytes, usize::try_from(element.size()).ok()?);
    Some(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::Omissions;
    use crate::run::Run;
    use crate::source::InMemory;

    fn array(name: &str, element: Element, numbers: &[i128], attributes: &Value) -> Array {
        let bytes: Vec<u8> =
            numbers.iter().flat_map(|number| element.stored(Numeric::Integer(*number)).unwrap()).collect();
        let shape = vec![numbers.len() as u64];
        let run = Run::new(shape.clone(), element.size(), 0, None).unwrap();
        Array {
            name: name.to_owned(),
            chunk_shape: shape,
            dimension_names: vec!["time".to_owned()],
            attributes: attributes.as_object().unwrap().clone(),
            element,
            order: ByteOrder::Big,
            codecs: Vec::new(),
            data: ArrayData::Inline { run, bytes },
            fill_value: (json!(0), vec![0; element.size() as usize]),
        }
    }

    fn plan(arrays: Vec<Array>) -> Plan {
        Plan { arrays, omissions: Omissions::default(), ..Plan::default() }
    }

    fn fitted(file: Vec<Array>, archive: Vec<Array>) -> Plan {
        let mut file = plan(file);
        fit(&mut file, &archive_of(&plan(archive)).unwrap(), "time", "day.nc").unwrap();
        file
    }

    fn numbers(array: &Array) -> Vec<Numeric> {
        let mut bytes = Vec::new();
        array.data.read(&InMemory(&[]), std::slice::from_ref(&(0..array.shape()[0])), &mut bytes).unwrap();
        bytes.chunks_exact(array.element.size() as usize).map(|bytes| array.element.number(bytes).unwrap()).collect()
    }

    fn integers(numbers: &[i128]) -> Vec<Numeric> {
        numbers.iter().copied().map(Numeric::Integer).collect()
    }

    const HOURS: &str = "hours since 2026-01-02";
    const DAYS: &str = "days since 2026-01-01";

    #[test]
    fn an_array_gets_the_document_and_the_numbers_of_the_archive() {
        let own =
            array("t", Element::Int16, &[4, -1], &json!({"scale_factor": 0.5, "_FillValue": -1, "long_name": "own"}));
        let there =
            array("t", Element::Int32, &[0], &json!({"scale_factor": 0.25, "add_offset": 1, "missing_value": 9}));
        let found = fitted(vec![own], vec![there]);
        let attributes = json!({"scale_factor": 0.25, "add_offset": 1, "missing_value": 9, "long_name": "own"});
        assert_eq!(Value::Object(found.arrays[0].attributes.clone()), attributes);
        assert_eq!((found.arrays[0].element, numbers(&found.arrays[0])), (Element::Int32, integers(&[4, 9])));
        assert_eq!(found.omissions.list.len(), 1);
        let same = || array("t", Element::Int16, &[4], &json!({"scale_factor": 0.5}));
        let found = fitted(vec![same()], vec![same()]);
        assert_eq!((&found.arrays[0], found.omissions.count), (&same(), 0), "what fits stays as it is");
    }

    #[test]
    fn bounds_are_converted_with_their_times_or_neither_is() {
        let times = |units: &str| array("time", Element::Int32, &[24, 48], &json!({"units": units, "bounds": "edges"}));
        let edges = |attributes: &Value| array("edges", Element::Int32, &[0, 24], attributes);
        let found = fitted(vec![times(HOURS), edges(&json!({}))], vec![times(DAYS), edges(&json!({}))]);
        assert_eq!((numbers(&found.arrays[0]), numbers(&found.arrays[1])), (integers(&[2, 3]), integers(&[1, 2])));
        assert_eq!(found.arrays[0].attributes["units"], DAYS);
        assert!(found.arrays[1].attributes.is_empty());
        // Bounds that cannot be converted.
        for (own, there) in [
            (json!({"valid_min": 0}), json!({})),
            (json!({}), json!({"units": "1"})),
            (json!({"scale_factor": 2.0}), json!({"scale_factor": 2.0})),
        ] {
            let found = fitted(vec![times(HOURS), edges(&own)], vec![times(DAYS), edges(&there)]);
            assert_eq!(
                (numbers(&found.arrays[0]), numbers(&found.arrays[1])),
                (integers(&[24, 48]), integers(&[0, 24])),
                "{own}"
            );
            assert_eq!(found.arrays[0].attributes["units"], HOURS, "{own}");
        }
        // Also if only the archive says that they belong together.
        let alone = array("time", Element::Int32, &[24, 48], &json!({"units": HOURS}));
        let found = fitted(vec![alone, edges(&json!({}))], vec![times(DAYS), edges(&json!({}))]);
        assert_eq!(found.arrays[0].attributes["units"], HOURS);
        // Nor if they are those of other times, too.
        let others = || array("other", Element::Int32, &[24, 48], &json!({"units": "K", "bounds": "edges"}));
        let wide = || array("edges", Element::Int64, &[0, 24], &json!({}));
        let found = fitted(vec![times(HOURS), others(), edges(&json!({}))], vec![times(DAYS), others(), wide()]);
        assert_eq!(found.arrays[0].attributes["units"], HOURS);
        // Bounds with units of their own stand by themselves.
        let own = json!({"units": DAYS});
        let found = fitted(vec![times(HOURS), edges(&own)], vec![times(DAYS), edges(&own)]);
        assert_eq!((numbers(&found.arrays[0]), numbers(&found.arrays[1])), (integers(&[2, 3]), integers(&[0, 24])));
    }

    #[test]
    fn what_else_decides_about_values_is_left_to_be_refused() {
        let there = || json!({"scale_factor": 0.5, "units": "K"});
        for own in [
            json!({"scale_factor": 0.25, "units": "degC"}),
            json!({"scale_factor": 0.25, "units": "K", "valid_range": [0, 9]}),
            json!({"scale_factor": 0.25, "units": "K", "_Unsigned": "true"}),
            json!({"scale_factor": [0.25, 1], "units": "K"}),
            json!({"scale_factor": 0.25, "units": "months since 2026-01-01"}),
        ] {
            let own = || array("t", Element::Int16, &[4], &own);
            let found = fitted(vec![own()], vec![array("t", Element::Int16, &[4], &there())]);
            assert_eq!(found.arrays[0], own());
        }
        let [own, short] = [Element::Float64, Element::Float32].map(|of| array("t", of, &[4], &json!({"units": DAYS})));
        assert_eq!(fitted(vec![own.clone()], vec![short]).arrays[0], own, "a moment would be another one");
        let fixed = Array { dimension_names: vec!["x".to_owned()], ..array("t", Element::Int16, &[4], &json!({})) };
        let found = fitted(vec![fixed.clone()], vec![array("t", Element::Int32, &[4], &there())]);
        assert_eq!(found.arrays[0], fixed, "it is compared, not appended");
    }
}
