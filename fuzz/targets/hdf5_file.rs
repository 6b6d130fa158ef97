//! HDF5 files of any contents: another reader finds the groups, data and attributes that were
//! written.
//!
//! The bytes of an input choose groups, datasets and attributes. Files of reasonable length are
//! made whole and read; of longer ones some parts are made.

use icechunkfs::views::netcdf::hdf5::model::{Attribute, DataType, Dataset, FileModel, Group, Layout, Value};
use icechunkfs::views::netcdf::hdf5::plan::{Part, Plan};
use netcdf_reader::{NcAttrValue, NcFile};

/// Longest file that is made whole.
const WHOLE: u64 = 13 << 20;

/// Choices that an input makes; zeros after its end.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, limit: u64) -> u64 {
        u64::from(self.byte()) % limit
    }

    /// Returns a name that is new, or any text.
    fn name(&mut self, number: usize) -> String {
        match self.below(8) {
            0 => self.text(),
            _ => format!("n{number}"),
        }
    }

    fn text(&mut self) -> String {
        let wanted = self.below(40) as usize;
        let length = self.0.len().min(wanted);
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn number_type(&mut self) -> DataType {
        match self.below(10) {
            0 => DataType::Float32,
            1 => DataType::Float64,
            n => DataType::Int { size: 1 << (n % 4), signed: n < 6 },
        }
    }

    /// Returns a size: seldom one that no file has.
    fn size(&mut self) -> u64 {
        match self.below(32) {
            0 => u64::from(self.byte()) << self.below(57),
            n => 1 + n % 11,
        }
    }

    fn value(&mut self) -> Value {
        match self.below(6) {
            0 => Value::Text("long ".repeat(usize::from(self.byte()) * 60)),
            1 => Value::Texts((0..self.below(5)).map(|_| self.text()).collect()),
            2 | 3 => Value::Text(self.text()),
            _ => {
                let data_type = self.number_type();
                let count = (self.below(3) > 0).then(|| self.below(6));
                let length = count.unwrap_or(1) * length(data_type);
                Value::Numbers { data_type, bytes: (0..length).map(|_| self.byte()).collect(), count }
            }
        }
    }

    fn attributes(&mut self) -> Vec<Attribute> {
        (0..self.below(4)).map(|n| Attribute { name: self.name(n as usize), value: self.value() }).collect()
    }

    fn dataset(&mut self, number: usize, groups: usize) -> Dataset {
        let data_type = self.number_type();
        let shape: Vec<u64> = (0..self.below(4)).map(|_| self.size()).collect();
        let layout = match self.below(4) {
            0 => Layout::Contiguous,
            _ if shape.is_empty() => Layout::Contiguous,
            _ => Layout::Chunked(shape.iter().map(|_| self.size() as u32).collect()),
        };
        let unlimited = layout != Layout::Contiguous && self.below(3) == 0;
        let fill = (self.below(2) == 0).then(|| vec![7; length(data_type) as usize]);
        let group = self.below(groups as u64) as usize;
        let attributes = self.attributes();
        Dataset { name: self.name(number), group, data_type, shape, unlimited, fill, layout, attributes }
    }

    fn model(&mut self) -> FileModel {
        let mut groups = vec![Group { attributes: self.attributes(), ..Group::default() }];
        for number in 0..self.below(4) as usize {
            // Seldom a group that is none.
            let beyond = u64::from(self.byte() == 255);
            let parent = self.below(groups.len() as u64 + beyond) as usize;
            groups.push(Group { name: self.name(100 + number), parent, attributes: self.attributes() });
        }
        let datasets = (0..self.below(6)).map(|number| self.dataset(number as usize, groups.len())).collect();
        FileModel { groups, datasets }
    }
}

fn length(data_type: DataType) -> u64 {
    match data_type {
        DataType::Int { size, .. } => u64::from(size),
        DataType::Float32 => 4,
        _ => 8,
    }
}

/// Returns byte `at` of the elements of a dataset in C order.
fn byte(dataset: usize, at: u64) -> u8 {
    (at.wrapping_mul(31) + dataset as u64 * 7 + at / 251) as u8
}

/// Returns the bytes of a chunk in the file; elements outside of the array are 0xEE.
fn chunk_bytes(number: usize, dataset: &Dataset, chunk: u64) -> Vec<u8> {
    let size = length(dataset.data_type);
    let shape_of_chunk: Vec<u64> = match &dataset.layout {
        Layout::Chunked(chunk) => chunk.iter().map(|size| u64::from(*size)).collect(),
        _ => dataset.shape.clone(),
    };
    let position = |mut number: u64, shape: &[u64]| -> Vec<u64> {
        let mut position: Vec<u64> = shape.iter().rev().map(|length| (number % length, number /= length).0).collect();
        position.reverse();
        position
    };
    let grid: Vec<u64> =
        dataset.shape.iter().zip(&shape_of_chunk).map(|(length, chunk)| length.div_ceil(*chunk)).collect();
    let corner = position(chunk, &grid);
    let mut bytes = Vec::new();
    for element in 0..shape_of_chunk.iter().product::<u64>() {
        let mut index = Some(0);
        for ((within, corner), (chunk, length)) in
            position(element, &shape_of_chunk).iter().zip(&corner).zip(shape_of_chunk.iter().zip(&dataset.shape))
        {
            let at = corner * chunk + within;
            index = index.filter(|_| at < *length).map(|index| index * length + at);
        }
        bytes.extend((0..size).map(|part| index.map_or(0xEE, |index| byte(number, index * size + part))));
    }
    bytes
}

/// Makes a file and reads it; returns it with its model if it is not too long.
pub(crate) fn make(bytes: &[u8]) -> Option<(FileModel, Vec<u8>)> {
    let mut choices = Choices(bytes);
    let model = choices.model();
    let planned = Plan::new(&model);
    let lengths: Vec<_> = model.datasets.iter().map(Plan::check_dataset).collect();
    let plan = planned.ok()?;
    // Each dataset of a file can be in one by itself, and its length is known.
    let sum: u64 = lengths.into_iter().map(|length| length.expect("a dataset of a file")).sum();
    let is_whole = plan.size() <= WHOLE;
    assert!(plan.size() <= sum + (12 << 20) + plan.memory() as u64 + 4096, "{} bytes", plan.size());
    if !is_whole {
        for _ in 0..20 {
            let offset = u64::from_le_bytes([0; 8].map(|_| choices.byte())) % plan.size();
            let part = plan.part(offset, 1 << 40);
            assert!(!part.is_empty() && offset + part.len() <= plan.size());
        }
        return None;
    }
    let mut file = Vec::with_capacity(plan.size() as usize);
    while (file.len() as u64) < plan.size() {
        match plan.part(file.len() as u64, 1 + (1 << choices.below(24))) {
            Part::Bytes(bytes) => file.extend_from_slice(&bytes),
            Part::Zeros(count) => file.resize(file.len() + count as usize, 0),
            Part::Data { dataset, chunk, from, len } => {
                let bytes = chunk_bytes(dataset, &model.datasets[dataset], chunk);
                file.extend_from_slice(&bytes[from as usize..(from + len) as usize]);
            }
        }
    }
    Some((model, file))
}

/// Returns the path of a dataset.
pub(crate) fn path(model: &FileModel, dataset: &Dataset) -> String {
    let mut path = dataset.name.clone();
    let mut group = dataset.group;
    while group > 0 {
        path = format!("{}/{path}", model.groups[group].name);
        group = model.groups[group].parent;
    }
    path
}

/// Returns the elements of a dataset in C order.
pub(crate) fn elements(number: usize, dataset: &Dataset) -> Vec<u8> {
    let length = dataset.shape.iter().product::<u64>() * length(dataset.data_type);
    (0..length).map(|at| byte(number, at)).collect()
}

fn check_attributes(written: &[Attribute], find: impl Fn(&str) -> Option<NcAttrValue>) {
    for attribute in written {
        let name = &attribute.name;
        let plain = |text: &String| !text.is_empty() && !text.contains('\0');
        match (&attribute.value, find(name)) {
            // The reader takes what follows a NUL for padding.
            (Value::Text(text), found) if plain(text) => match found {
                Some(NcAttrValue::Chars(found)) => assert_eq!(&found, text, "{name}"),
                Some(NcAttrValue::Strings(found)) => assert_eq!(found, [text.as_str()], "{name}"),
                other => panic!("{name}: {other:?}"),
            },
            (Value::Texts(texts), found) if !texts.is_empty() && texts.iter().all(plain) => {
                assert_eq!(found, Some(NcAttrValue::Strings(texts.clone())), "{name}");
            }
            (Value::Numbers { bytes, count, .. }, found) if *count != Some(0) => {
                let found = found.map(|found| match found {
                    NcAttrValue::Bytes(all) => all.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>(),
                    NcAttrValue::Shorts(all) => all.iter().flat_map(|n| n.to_le_bytes()).collect(),
                    NcAttrValue::Ints(all) => all.iter().flat_map(|n| n.to_le_bytes()).collect(),
                    NcAttrValue::Floats(all) => all.iter().flat_map(|n| n.to_le_bytes()).collect(),
                    NcAttrValue::Doubles(all) => all.iter().flat_map(|n| n.to_le_bytes()).collect(),
                    NcAttrValue::UBytes(all) => all,
                    NcAttrValue::UShorts(all) => all.iter().flat_map(|n| n.to_le_bytes()).collect(),
                    NcAttrValue::UInts(all) => all.iter().flat_map(|n| n.to_le_bytes()).collect(),
                    NcAttrValue::Int64s(all) => all.iter().flat_map(|n| n.to_le_bytes()).collect(),
                    NcAttrValue::UInt64s(all) => all.iter().flat_map(|n| n.to_le_bytes()).collect(),
                    other => panic!("{name}: {other:?}"),
                });
                assert_eq!(found.as_ref(), Some(bytes), "{name}");
            }
            _ => {}
        }
    }
}

/// Reads a file, and compares it with its model.
pub(crate) fn check(model: &FileModel, file: Vec<u8>) {
    let file = NcFile::from_vec(file).unwrap();
    for (number, dataset) in model.datasets.iter().enumerate() {
        let path = path(model, dataset);
        // The reader divides paths, and takes some names for netCDF's own.
        if dataset.shape.contains(&0) || !path.split('/').all(|name| name.starts_with('n')) {
            continue;
        }
        let variable = file.variable(&path).unwrap();
        assert_eq!(variable.shape(), dataset.shape, "{path}");
        assert_eq!(file.read_variable_raw_bytes(&path).unwrap(), elements(number, dataset), "{path}");
        check_attributes(&dataset.attributes, |name| variable.attribute(name).map(|found| found.value.clone()));
    }
    let root = &model.groups[0].attributes;
    // Looked up by its name, one with a `/` would be one of a group.
    let found = file.global_attributes().unwrap();
    check_attributes(root, |name| found.iter().find(|found| found.name == name).map(|found| found.value.clone()));
}

pub(crate) fn run(bytes: &[u8]) {
    if let Some((model, file)) = make(bytes) {
        check(&model, file);
    }
}
