//! Tests of whole files.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod sample;

use std::sync::LazyLock;

use netcdf_reader::{NcAttrValue, NcFile};
use proptest::prelude::*;

use super::model::{Attribute, DataType, Dataset, FileModel, Layout, Value};
use super::plan::{Part, Plan};
use sample::{DIMENSIONS, attribute, elements, ints, model, read, text};

type TestResult = Result<(), Box<dyn std::error::Error>>;

struct Sample {
    model: FileModel,
    plan: Plan,
    bytes: Vec<u8>,
}

static SAMPLE: LazyLock<Sample> = LazyLock::new(|| {
    let model = model();
    let plan = Plan::new(&model).unwrap();
    let bytes = read(&model, &plan, 0, u64::MAX, u64::MAX);
    Sample { model, plan, bytes }
});

#[test]
fn another_reader_finds_all_values() -> TestResult {
    let sample = &*SAMPLE;
    assert_eq!(sample.bytes.len() as u64, sample.plan.size());
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), &sample.bytes)?;
    let file = NcFile::open(file.path())?;
    let dimensions: Vec<_> =
        file.dimensions()?.iter().map(|dimension| (dimension.name.as_str(), dimension.size)).collect();
    assert_eq!(dimensions, DIMENSIONS);
    let mut variables = 0;
    for (index, dataset) in sample.model.datasets.iter().enumerate() {
        if dataset.layout == Layout::Absent {
            continue;
        }
        let name = &dataset.name;
        let variable = file.variable(name)?;
        assert_eq!(variable.shape(), dataset.shape, "{name}");
        for dimension in variable.dimensions() {
            assert!(DIMENSIONS.contains(&(&*dimension.name, dimension.size)), "{name}: {dimension:?}");
            assert_eq!(dimension.is_unlimited, dimension.name == "time", "{name}");
        }
        assert_eq!(file.read_variable_raw_bytes(name)?, elements(index, dataset), "{name}");
        if dataset.attributes.iter().any(|attribute| attribute.name == "_FillValue") {
            let fill = variable.attribute("_FillValue").and_then(|fill| fill.value.as_f64());
            assert!(fill.is_some(), "{name}");
        }
        variables += 1;
    }
    assert_eq!(file.variables()?.len(), variables);
    Ok(())
}

#[test]
fn another_reader_finds_all_attributes() -> TestResult {
    let file = NcFile::from_bytes(&SAMPLE.bytes)?;
    let expected = [
        ("title", NcAttrValue::Chars("plain".into())),
        ("unicode", NcAttrValue::Chars("Größe".into())),
        ("long", NcAttrValue::Strings(vec!["0123456789".repeat(7000)])),
        ("texts", NcAttrValue::Strings(["one", "", "drei ü", "one"].map(str::to_owned).to_vec())),
        ("int", NcAttrValue::Ints(vec![-5])),
        ("ints", NcAttrValue::Ints(vec![1, -2, 3])),
        ("floats", NcAttrValue::Doubles(vec![1.5, -2e300])),
        ("byte", NcAttrValue::Bytes(vec![-1])),
        ("u64", NcAttrValue::UInt64s(vec![u64::MAX])),
    ];
    for (name, value) in expected {
        let found = &file.global_attribute(name)?.value;
        assert!(*found == value, "{name}: {:.200}", format!("{found:?}"));
    }
    assert_eq!(
        file.variable("cube")?.attribute("long_name").and_then(|name| name.value.as_string()),
        Some("cube".into())
    );
    Ok(())
}

#[test]
fn data_begin_where_the_layout_says() -> TestResult {
    let sample = &*SAMPLE;
    let mut at = 0;
    let mut last = None;
    while at < sample.plan.size() {
        let part = sample.plan.part(at, u64::MAX);
        if let Part::Data { dataset, chunk, from, .. } = part {
            assert!(at >= 12 << 20 && from == 0, "{part:?} at {at}");
            assert!(at % 4096 == 0, "{part:?} at {at}");
            assert!(last < Some((dataset, chunk)), "{part:?} after {last:?}");
            last = Some((dataset, chunk));
        }
        at += part.len();
    }
    assert_eq!(sample.plan.part(at, 1), Part::Zeros(0));
    assert_eq!(sample.plan.part(0, 0), Part::Zeros(0));
    assert_eq!(sample.plan.part(u64::MAX, u64::MAX), Part::Zeros(0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn parts_of_any_length_make_the_same_bytes(
        near in prop_oneof![Just(0), 0..60_000_u64, (12_u64 << 20) - 5000..(12 << 20) + 9000, 0..u64::MAX],
        len in 0..50_000_u64,
        step in prop_oneof![1..64_u64, 1..10_000_u64, 1..1_000_000_u64],
    ) {
        let sample = &*SAMPLE;
        let offset = near % (sample.plan.size() + 1);
        let len = if step < 64 { len % 2000 } else { len };
        let end = (offset + len).min(sample.plan.size());
        let bytes = read(&sample.model, &sample.plan, offset, end, step);
        prop_assert!(bytes == sample.bytes[offset as usize..end as usize], "{offset}..{end} by {step}");
    }
}

fn dataset(name: &str, shape: &[u64], layout: Layout) -> Dataset {
    let data_type = DataType::Float32;
    let attributes = Vec::new();
    Dataset {
        name: name.to_owned(),
        group: 0,
        data_type,
        shape: shape.to_vec(),
        unlimited: false,
        fill: None,
        layout,
        attributes,
    }
}

#[test]
fn what_the_format_cannot_hold_is_an_error_with_names() {
    let with = |change: fn(&mut Dataset)| {
        let mut dataset = dataset("v", &[4, 4], Layout::Chunked(vec![2, 2]));
        change(&mut dataset);
        dataset
    };
    let many = |dataset: &mut Dataset, count: usize| {
        dataset.attributes = (0..count).map(|n| text(&n.to_string(), "")).collect()
    };
    let cases: Vec<(Dataset, &str)> = vec![
        (dataset("v", &[1; 33], Layout::Contiguous), "33 dimensions"),
        (dataset("v", &[1 << 40, 1 << 40], Layout::Contiguous), "2^63"),
        (dataset("v", &[1 << 61], Layout::Contiguous), "2^63"),
        (dataset("v", &[1 << 60], Layout::Chunked(vec![1])), "2^63"),
        (dataset("v", &[1 << 58], Layout::Chunked(vec![1])), "2^63"),
        (dataset("v", &[u64::MAX], Layout::Chunked(vec![1 << 29])), "2^63"),
        (dataset("v", &[u64::MAX; 32], Layout::Chunked(vec![1; 32])), "2^63"),
        (dataset("v", &[1 << 40], Layout::Chunked(vec![1 << 30])), "4 GiB"),
        (dataset("v", &[9; 32], Layout::Chunked(vec![u32::MAX; 32])), "4 GiB"),
        (dataset("v", &[9, 9], Layout::Chunked(vec![3, 0])), "chunks of shape"),
        (dataset("v", &[9, 9], Layout::Chunked(vec![3])), "chunks of shape"),
        (dataset("v", &[], Layout::Chunked(vec![])), "chunks of shape"),
        (dataset("", &[1], Layout::Contiguous), "name"),
        (dataset("a/b", &[1], Layout::Contiguous), "name"),
        (with(|dataset| dataset.fill = Some(vec![0; 3])), "fill value"),
        (with(|dataset| dataset.data_type = DataType::Text), "plain bytes"),
        (with(|dataset| dataset.data_type = DataType::Int { size: 5, signed: true }), "5 bytes"),
        (with(|dataset| dataset.data_type = DataType::FixedString { len: u32::MAX, utf8: false }), "4 GiB"),
        (with(|dataset| (dataset.unlimited, dataset.layout) = (true, Layout::Contiguous)), "unlimited"),
        (with(|dataset| dataset.attributes = vec![ints("big", &[0; 17_000], true)]), "attribute `big`: needs"),
        (with(|dataset| dataset.attributes = vec![text(&"n".repeat(66_000), "")]), "65,534"),
        (
            with(|dataset| dataset.attributes = vec![text("a", ""), text("a", "")]),
            "attribute `a`: the name is used twice",
        ),
        (with(|dataset| dataset.attributes = vec![text("a\0", "")]), "NUL"),
        (
            with(|dataset| {
                let value = Value::Numbers { data_type: DataType::Float64, bytes: vec![0; 9], count: Some(u64::MAX) };
                dataset.attributes = vec![attribute("a", value)];
            }),
            "attribute `a`: 9 bytes",
        ),
        (
            {
                let mut dataset = dataset("v", &[1], Layout::Contiguous);
                many(&mut dataset, 65_536);
                dataset
            },
            "65536 attributes",
        ),
    ];
    for (dataset, message) in cases {
        let context = format!("{:.300}", format!("{dataset:?}"));
        // An error of the B-tree's length appears only where the file is laid out.
        let name = format!("dataset `{}`: ", dataset.name);
        if message != "2^63" {
            let error = Plan::check_dataset(&dataset).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(message), "{context}: {error}");
        }
        let model = FileModel::flat(Vec::new(), vec![dataset]);
        let error = Plan::new(&model).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with(&name) && error.contains(message), "{context}: {error}");
    }
    let twice = vec![dataset("v", &[1], Layout::Absent), dataset("v", &[1], Layout::Absent)];
    assert!(Plan::new(&FileModel::flat(Vec::new(), twice)).is_err());
    let dangling = vec![attribute("DIMENSION_LIST", Value::References(vec![0]))];
    assert!(Plan::new(&FileModel::flat(dangling, Vec::new())).is_err());
}

#[test]
fn sums_of_sizes_are_checked() {
    let half = || dataset("v", &[1 << 60], Layout::Contiguous);
    let two = vec![half(), Dataset { name: "w".into(), ..half() }];
    let error = Plan::new(&FileModel::flat(Vec::new(), two)).unwrap_err().to_string();
    assert!(error.starts_with("dataset `w`: the file would be longer"), "{error}");
}

#[test]
fn files_of_extreme_models_are_planned_quickly() -> TestResult {
    let mut datasets: Vec<Dataset> =
        (0..20_000).map(|number| dataset(&format!("{number:0>256}"), &[1; 32], Layout::Chunked(vec![1; 32]))).collect();
    datasets.push(dataset("empty", &[0, 5], Layout::Chunked(vec![2, 2])));
    datasets.push(dataset("none", &[5, 0], Layout::Contiguous));
    datasets.push(dataset("huge", &[1 << 40, 1 << 20], Layout::Chunked(vec![1 << 14, 1 << 14])));
    let last = datasets.len() - 1;
    let plan = Plan::new(&FileModel::flat(Vec::new(), datasets))?;
    assert!(plan.memory() < 40 << 20, "{}", plan.memory());
    assert_eq!(
        plan.part(plan.size() - 5, 9),
        Part::Data { dataset: last, chunk: (1 << 32) - 1, from: (1 << 30) - 5, len: 5 }
    );
    let plan = Plan::new(&FileModel::default())?;
    let Part::Bytes(bytes) = plan.part(0, u64::MAX) else { panic!("no header") };
    assert_eq!(bytes.len() as u64, plan.size());
    assert!(NcFile::from_bytes(&bytes)?.variables()?.is_empty());
    Ok(())
}

#[test]
fn checked_attributes_are_written() {
    let long = Attribute { name: "a".into(), value: Value::Text("x".repeat(100_000)) };
    assert!(Plan::check_attribute(&long).is_ok());
    let bytes = Value::FixedBytes(vec![b'x'; 100_000]);
    assert!(Plan::check_attribute(&attribute("a", bytes)).is_err());
    assert!(Plan::check_attribute(&ints("a", &[], true)).is_ok());
}
