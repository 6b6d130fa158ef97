//! Numbers as the CF conventions pack them ("8.1 Packed Data"): what those of an array stand for.

use data_encoding::BASE64;
use icechunkfs_base::error::{Error, Result};
use serde_json::{Map, Value};

use super::time::TimeUnits;
use crate::attributes::{COMPUTED, FILL_VALUE};
use crate::element::{ByteOrder, Element, Numeric, named};

/// Attributes that say how numbers are packed.
pub(super) const PACKING: [&str; 4] = ["scale_factor", "add_offset", FILL_VALUE, "missing_value"];

/// Most marks of missing values: each element is compared with each, and each file has them.
const MOST_MARKS: usize = 16;

/// Meaning of the elements of an array.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Packing {
    element: Element,
    order: ByteOrder,
    /// Factor and summand of values, if there are any.
    linear: Option<(f64, f64)>,
    /// Elements without a value; the first one is written.
    marks: Vec<Numeric>,
}

impl Packing {
    /// Returns what `attributes` say of elements; none if they say what is not known here.
    pub(super) fn of(element: Element, order: ByteOrder, attributes: &Map<String, Value>) -> Option<Self> {
        let of = |name: &str| attributes.get(name).map(number);
        let linear = match (of("scale_factor"), of("add_offset")) {
            (None, None) => None,
            // By a whole number programs compute in integers, which wrap.
            (Some(scale), offset) => Some((float_of(scale?)?, offset.map_or(Some(0.0), |offset| offset?.as_f64())?)),
            (None, Some(offset)) => Some((1.0, float_of(offset?)?)),
        };
        if linear.is_some_and(|(scale, offset)| scale == 0.0 || !scale.is_finite() || !offset.is_finite()) {
            return None;
        }
        let mut marks = Vec::new();
        for name in [FILL_VALUE, COMPUTED[0]] {
            let Some(value) = attributes.get(name) else { continue };
            let all = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            if marks.len() + all.len() > MOST_MARKS {
                return None;
            }
            for value in all {
                // Of one that no element has, programs disagree about what it marks.
                let found = mark(value, name == FILL_VALUE)?;
                element.stored(found)?;
                marks.push(found);
            }
        }
        element.is_number().then_some(Packing { element, order, linear, marks })
    }

    /// Returns true if elements are packed.
    pub(super) fn is_packed(&self) -> bool {
        self.linear.is_some()
    }

    /// Returns true if each element means the same by `other`.
    pub(super) fn is_same_as(&self, other: &Packing) -> bool {
        self.element == other.element && self.linear == other.linear && self.marks == other.marks
    }

    fn is_missing(&self, number: Numeric) -> bool {
        matches!(number, Numeric::Float(number) if number.is_nan())
            || self.marks.iter().any(|mark| is_same(number, *mark))
    }

    /// Returns the value of an element that is not missing.
    fn value(&self, number: Numeric) -> Numeric {
        match self.linear {
            Some((scale, offset)) => Numeric::Float(float(number) * scale + offset),
            None => number,
        }
    }

    /// Returns the element with that value; none if there is none.
    fn packed(&self, value: Numeric) -> Option<Numeric> {
        let packed = match self.linear {
            Some((scale, offset)) => {
                let packed = (float(value) - offset) / scale;
                Numeric::Float(if self.element.is_float() { packed } else { packed.round_ties_even() })
            }
            None => value,
        };
        let is_lost = float(packed).is_infinite() && float(value).is_finite();
        Some(packed).filter(|packed| !is_lost && !self.is_missing(*packed))
    }
}

/// Conversion of elements into those of another array that stand for the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Conversion {
    /// File and variable, for messages.
    pub(super) what: String,
    pub(super) from: Packing,
    pub(super) to: Packing,
    /// Units of both, if they are times.
    pub(super) times: Option<(TimeUnits, TimeUnits)>,
}

impl Conversion {
    /// Returns the bytes of an element before the conversion.
    pub(crate) fn size_before(&self) -> u64 {
        self.from.element.size()
    }

    /// Appends what the elements `block` become to `out`.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::InvalidInput`] if one has a value that the
    /// other array has no element for.
    pub(crate) fn convert(&self, mut block: Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let [before, after] =
            [&self.from, &self.to].map(|packing| usize::try_from(packing.element.size()).unwrap_or(1).max(1));
        self.from.order.to_big_endian(&mut block, before);
        let start = out.len();
        out.reserve(block.len() / before * after);
        for bytes in block.chunks_exact(before) {
            let number =
                self.from.element.number(bytes).ok_or_else(|| Error::invalid("an element that is no number"))?;
            let found = self.converted(number);
            found.and_then(|found| self.to.element.append_near(found, out)).ok_or_else(|| self.refused(number))?;
        }
        // To and from big-endian are one change.
        self.to.order.to_big_endian(out.get_mut(start..).unwrap_or_default(), after);
        Ok(())
    }

    fn converted(&self, number: Numeric) -> Option<Numeric> {
        if self.times.is_none() && self.from.is_same_as(&self.to) {
            return Some(number);
        }
        if self.from.is_missing(number) {
            let not_a_number = self.to.element.is_float().then_some(Numeric::Float(f64::NAN));
            return self.to.marks.first().copied().or(not_a_number);
        }
        match &self.times {
            Some((from, to)) => {
                let found = from.convert(number, to, self.to.element.is_float())?;
                Some(found).filter(|found| !self.to.is_missing(*found))
            }
            None => self.to.packed(self.from.value(number)),
        }
    }

    fn refused(&self, number: Numeric) -> Error {
        let what = &self.what;
        if self.from.is_missing(number) {
            return Error::invalid(format!(
                "{what}: it has missing values, and the archive no mark for them: leave the file out, or begin a new \
                 archive whose variable has a _FillValue"
            ));
        }
        let value = match self.times {
            Some(_) => format!("the time {}", float(number)),
            None => format!("the value {}", float(self.from.value(number))),
        };
        Error::invalid(format!(
            "{what}: {value} cannot be written as the archive has it: leave the file out, or begin a new archive with \
             a wider type"
        ))
    }
}

/// Returns the only number that an attribute has.
fn number(value: &Value) -> Option<&Value> {
    match value {
        Value::Array(values) => match values.as_slice() {
            [one] => Some(one),
            _ => None,
        },
        value => Some(value),
    }
}

fn float_of(value: &Value) -> Option<f64> {
    value.as_f64().filter(|_| value.is_f64())
}

/// Returns the number that marks missing values. As `_FillValue`, xarray writes floats as base64.
fn mark(value: &Value, is_fill_value: bool) -> Option<Numeric> {
    match value {
        Value::Number(_) => exact(value),
        Value::String(text) if is_fill_value => match named(text) {
            Some(number) => Some(Numeric::Float(number)),
            None => {
                let bytes = BASE64.decode(text.as_bytes()).ok()?;
                Some(Numeric::Float(f64::from_le_bytes(bytes.try_into().ok()?)))
            }
        },
        _ => None,
    }
}

/// Returns a number of JSON.
pub(super) fn exact(value: &Value) -> Option<Numeric> {
    let whole = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    whole.map(Numeric::Integer).or_else(|| value.as_f64().map(Numeric::Float))
}

fn float(number: Numeric) -> f64 {
    match number {
        Numeric::Integer(number) => number as f64,
        Numeric::Float(number) => number,
    }
}

fn is_same(number: Numeric, mark: Numeric) -> bool {
    match (number, mark) {
        (Numeric::Integer(number), Numeric::Integer(mark)) => number == mark,
        (number, mark) => float(number) == float(mark),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn packing(element: Element, attributes: &Value) -> Packing {
        Packing::of(element, ByteOrder::Big, attributes.as_object().unwrap()).unwrap()
    }

    fn converted(from: Packing, to: Packing, numbers: &[Numeric]) -> Result<Vec<Numeric>> {
        let mut block = Vec::new();
        for number in numbers {
            block.extend(from.element.stored(*number).unwrap());
        }
        let element = to.element;
        let mut out = Vec::new();
        Conversion { what: "day.nc: t2m".to_owned(), from, to, times: None }.convert(block, &mut out)?;
        Ok(out.chunks_exact(element.size() as usize).map(|bytes| element.number(bytes).unwrap()).collect())
    }

    fn integers(numbers: &[i128]) -> Vec<Numeric> {
        numbers.iter().copied().map(Numeric::Integer).collect()
    }

    #[test]
    fn values_are_packed_as_the_other_array_has_them() {
        let file = packing(
            Element::Int16,
            &json!({"scale_factor": 0.5, "add_offset": 100, "_FillValue": -1, "missing_value": [-2]}),
        );
        let archive = packing(Element::Int16, &json!({"scale_factor": 0.25, "_FillValue": -32_768}));
        let found = converted(file.clone(), archive, &integers(&[0, 1, -1, -2, -3])).unwrap();
        assert_eq!(found, integers(&[400, 402, -32_768, -32_768, 394]));
        // Without fractions, halves go to even numbers, as numpy rounds them.
        let coarse = packing(Element::Int32, &json!({"scale_factor": 1.0, "add_offset": 0, "_FillValue": 0}));
        assert_eq!(converted(file.clone(), coarse, &integers(&[1, 3, 2])).unwrap(), integers(&[100, 102, 101]));
        let plain = packing(Element::Float32, &json!({}));
        let found = converted(file, plain, &integers(&[1, -1])).unwrap();
        assert!(
            matches!(&found[..], [Numeric::Float(value), Numeric::Float(missing)] if *value == 100.5 && missing.is_nan()),
            "{found:?}"
        );
    }

    #[test]
    fn what_the_other_array_cannot_have_is_refused() {
        let file = packing(Element::Float64, &json!({"_FillValue": BASE64.encode(&1e20_f64.to_le_bytes())}));
        let of = |value: f64| vec![Numeric::Float(value)];
        let narrow = || packing(Element::Int8, &json!({"scale_factor": 0.1, "_FillValue": 7}));
        for (to, value, why) in [
            (narrow(), 12.8, "12.8"),
            (narrow(), f64::INFINITY, "inf"),
            (narrow(), 0.7, "0.7"),
            (packing(Element::Int8, &json!({})), 1e20, "no mark"),
            (packing(Element::Int8, &json!({})), f64::NAN, "no mark"),
            (packing(Element::Int32, &json!({})), 1.5, "1.5"),
            (packing(Element::Float32, &json!({})), 1e40, "cannot be written"),
            (packing(Element::Float64, &json!({"scale_factor": 0.01})), 1e308, "cannot be written"),
            (packing(Element::Float32, &json!({"missing_value": 5})), 5.0, "the value 5"),
        ] {
            let refused = converted(file.clone(), to, &of(value)).unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains("day.nc: t2m"), "{value}: {refused}");
        }
        assert_eq!(converted(file.clone(), narrow(), &of(12.7)).unwrap(), integers(&[127]));
        assert_eq!(converted(file, narrow(), &of(1e20)).unwrap(), integers(&[7]));
        // Digits that are there stay.
        let long = packing(Element::Int64, &json!({}));
        assert!(converted(long, packing(Element::Float32, &json!({})), &integers(&[(1 << 24) + 1])).is_err());
        let same = || packing(Element::Int64, &json!({"scale_factor": 1.0, "missing_value": [1, 2]}));
        let all = integers(&[(1 << 53) + 1, 1, 2, i64::MAX.into()]);
        assert_eq!(converted(same(), same(), &all).unwrap(), all, "what is packed alike stays as it is");
    }

    #[test]
    fn packing_that_is_not_understood_is_not_guessed() {
        for attributes in [
            json!({"scale_factor": 0}),
            json!({"scale_factor": "0.1"}),
            json!({"scale_factor": 100}),
            json!({"add_offset": 100}),
            json!({"missing_value": -1.5}),
            json!({"missing_value": 40_000}),
            json!({"missing_value": BASE64.encode(&1_f64.to_le_bytes())}),
            json!({"scale_factor": [0.1, 0.2]}),
            json!({"add_offset": null}),
            json!({"missing_value": "none"}),
            json!({"_FillValue": {}}),
        ] {
            assert_eq!(
                Packing::of(Element::Int16, ByteOrder::Big, attributes.as_object().unwrap()),
                None,
                "{attributes}"
            );
        }
        for mark in [json!({"missing_value": -99.99}), json!({"missing_value": 1e20})] {
            assert_eq!(Packing::of(Element::Float32, ByteOrder::Big, mark.as_object().unwrap()), None, "{mark}");
        }
        assert_eq!(Packing::of(Element::Char, ByteOrder::Big, &Map::new()), None);
    }
}
