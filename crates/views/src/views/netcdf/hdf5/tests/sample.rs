//! Sample files with known data.

use super::super::model::{Attribute, DataType, Dataset, FileModel, Layout, Value};
use super::super::plan::{Part, Plan};

/// All types of numbers.
pub(super) const NUMBERS: [(&str, DataType); 10] = [
    ("i8", DataType::Int { size: 1, signed: true }),
    ("u8", DataType::Int { size: 1, signed: false }),
    ("i16", DataType::Int { size: 2, signed: true }),
    ("u16", DataType::Int { size: 2, signed: false }),
    ("i32", DataType::Int { size: 4, signed: true }),
    ("u32", DataType::Int { size: 4, signed: false }),
    ("i64", DataType::Int { size: 8, signed: true }),
    ("u64", DataType::Int { size: 8, signed: false }),
    ("f32", DataType::Float32),
    ("f64", DataType::Float64),
];
pub(super) const CHAR: DataType = DataType::FixedString { len: 1, utf8: false };
const I32: DataType = DataType::Int { size: 4, signed: true };

/// Dimensions: the index of each is its number and the index of its dataset.
pub(super) const DIMENSIONS: [(&str, u64); 5] = [("time", 5), ("lat", 3), ("lon", 4), ("depth", 7), ("x", 2000)];

pub(super) fn attribute(name: &str, value: Value) -> Attribute {
    Attribute { name: name.to_owned(), value }
}

pub(super) fn text(name: &str, text: &str) -> Attribute {
    attribute(name, Value::Text(text.to_owned()))
}

pub(super) fn ints(name: &str, values: &[i32], list: bool) -> Attribute {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    attribute(name, Value::Numbers { data_type: I32, bytes, count: list.then_some(values.len() as u64) })
}

/// Returns element `index` of dataset number `dataset`.
pub(super) fn element(dataset: usize, index: u64, data_type: DataType) -> Vec<u8> {
    let value = index * 37 + dataset as u64;
    match data_type {
        DataType::Int { size, .. } => value.to_le_bytes()[..usize::from(size)].to_vec(),
        DataType::Float32 => (value as f32 / 2.0).to_le_bytes().to_vec(),
        DataType::Float64 => (value as f64 / 2.0).to_le_bytes().to_vec(),
        _ => vec![b'a' + (value % 26) as u8],
    }
}

/// Returns all elements of a dataset in row-major order.
pub(super) fn elements(dataset: usize, model: &Dataset) -> Vec<u8> {
    (0..model.shape.iter().product()).flat_map(|index| element(dataset, index, model.data_type)).collect()
}

fn variable(name: &str, data_type: DataType, dimensions: &[usize], layout: Layout) -> Dataset {
    let shape: Vec<u64> = dimensions.iter().map(|&dimension| DIMENSIONS[dimension].1).collect();
    let numbers: Vec<i32> = dimensions.iter().map(|&dimension| dimension as i32).collect();
    let fill = element(50, 0, data_type);
    let mut attributes = vec![text("long_name", name)];
    if !dimensions.is_empty() {
        attributes.push(attribute("DIMENSION_LIST", Value::References(dimensions.to_vec())));
        attributes.push(ints("_Netcdf4Coordinates", &numbers, true));
    }
    if data_type != CHAR {
        let value = Value::Numbers { data_type, bytes: fill.clone(), count: Some(1) };
        attributes.push(attribute("_FillValue", value));
    }
    let unlimited = dimensions.first() == Some(&0);
    Dataset { name: name.to_owned(), group: 0, data_type, shape, unlimited, fill: Some(fill), layout, attributes }
}

/// Returns the dataset of a dimension: a coordinate variable, or a bare dimension.
fn dimension(number: usize) -> Dataset {
    let (name, size) = DIMENSIONS[number];
    let (layout, data_type) = match name {
        "time" => (Layout::Chunked(vec![2]), DataType::Float64),
        "lat" => (Layout::Contiguous, DataType::Float32),
        _ => (Layout::Absent, DataType::BigEndianFloat32),
    };
    let bare = layout == Layout::Absent;
    let mut title = name.to_owned();
    if bare {
        title = format!("This is a netCDF dimension but not a netCDF variable. {size:>10}");
    }
    let attributes = vec![
        attribute("CLASS", Value::FixedBytes(b"DIMENSION_SCALE\0".to_vec())),
        text("NAME", &title),
        ints("_Netcdf4Dimid", &[number as i32], false),
    ];
    let fill = (!bare).then(|| element(60, 0, data_type));
    let unlimited = name == "time";
    Dataset { name: name.to_owned(), group: 0, data_type, shape: vec![size], unlimited, fill, layout, attributes }
}

/// Returns a model with all types, ranks 0 to 4, all layouts and all kinds of attributes.
pub(super) fn model() -> FileModel {
    let mut datasets: Vec<Dataset> = (0..DIMENSIONS.len()).map(dimension).collect();
    let chunked = |shape: &[u32]| Layout::Chunked(shape.to_vec());
    datasets.push(variable("scalar", I32, &[], Layout::Contiguous));
    for (name, data_type) in NUMBERS {
        datasets.push(variable(name, data_type, &[0, 1], chunked(&[2, 2])));
        datasets.push(variable(&format!("{name}_run"), data_type, &[1, 2], Layout::Contiguous));
    }
    datasets.push(variable("letters", CHAR, &[1, 2], Layout::Contiguous));
    datasets.push(variable("big_run", DataType::Float64, &[4], Layout::Contiguous));
    datasets.push(variable("cube", DataType::Float32, &[0, 1, 2], chunked(&[2, 3, 3])));
    datasets.push(variable("four", DataType::Int { size: 2, signed: true }, &[0, 1, 2, 3], chunked(&[1, 2, 2, 4])));
    datasets.push(variable("big_chunks", DataType::Float64, &[4, 3], chunked(&[1500, 6])));
    datasets.push(variable("many_chunks", DataType::Int { size: 1, signed: true }, &[4, 3], chunked(&[3, 2])));
    let texts = ["one", "", "drei ü", "one"].map(str::to_owned).to_vec();
    let list = |data_type, bytes: &[u8], count| Value::Numbers { data_type, bytes: bytes.to_vec(), count };
    let attributes = vec![
        text("title", "plain"),
        text("empty", ""),
        text("unicode", "Größe"),
        text("long", &"0123456789".repeat(7000)),
        attribute("texts", Value::Texts(texts)),
        ints("int", &[-5], false),
        ints("ints", &[1, -2, 3], true),
        attribute(
            "floats",
            list(DataType::Float64, &[1.5_f64.to_le_bytes(), (-2e300_f64).to_le_bytes()].concat(), Some(2)),
        ),
        attribute("byte", list(DataType::Int { size: 1, signed: true }, &[0xFF], None)),
        attribute("u64", list(DataType::Int { size: 8, signed: false }, &[0xFF; 8], None)),
    ];
    FileModel::flat(attributes, datasets)
}

/// Returns the bytes of a part. Elements of edge chunks beyond the array are 0xEE: programs must
/// not show them.
pub(super) fn bytes(model: &FileModel, part: &Part<'_>) -> Vec<u8> {
    let (dataset, chunk, from, len) = match part {
        Part::Bytes(bytes) => return bytes.to_vec(),
        Part::Zeros(len) => return vec![0; *len as usize],
        Part::Data { dataset, chunk, from, len } => (*dataset, *chunk, *from, *len),
    };
    let Dataset { shape, layout, data_type, .. } = &model.datasets[dataset];
    let shape_of_chunk: Vec<u64> = match layout {
        Layout::Chunked(chunk) => chunk.iter().map(|size| u64::from(*size)).collect(),
        _ => shape.clone(),
    };
    let size = element(dataset, 0, *data_type).len() as u64;
    let position = |mut number: u64, sizes: &[u64]| -> Vec<u64> {
        let mut position: Vec<u64> = sizes.iter().rev().map(|size| (number % size, number /= size).0).collect();
        position.reverse();
        position
    };
    let grid: Vec<u64> = shape.iter().zip(&shape_of_chunk).map(|(size, chunk)| size.div_ceil(*chunk)).collect();
    let corner = position(chunk, &grid);
    let mut bytes = Vec::new();
    for index in from / size..(from + len).div_ceil(size) {
        let inner = position(index, &shape_of_chunk);
        let mut row_major = Some(0);
        for (dimension, size) in shape.iter().enumerate() {
            let at = corner[dimension] * shape_of_chunk[dimension] + inner[dimension];
            row_major = row_major.filter(|_| at < *size).map(|number| number * size + at);
        }
        bytes.extend(match row_major {
            Some(index) => element(dataset, index, *data_type),
            None => vec![0xEE; size as usize],
        });
    }
    let skipped = (from % size) as usize;
    bytes[skipped..skipped + len as usize].to_vec()
}

/// Returns the bytes of the file from `offset` on, in steps of `step` bytes.
pub(super) fn read(model: &FileModel, plan: &Plan, offset: u64, end: u64, step: u64) -> Vec<u8> {
    let mut read = Vec::new();
    let mut at = offset;
    while at < end.min(plan.size()) {
        let part = plan.part(at, step.min(end - at));
        assert!((1..=step).contains(&part.len()), "{part:?} at {at}");
        read.extend(bytes(model, &part));
        at += part.len();
    }
    read
}
