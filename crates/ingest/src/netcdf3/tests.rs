use std::cell::Cell;

use serde_json::json;

use super::*;
use crate::source::testing::Bytes;
use icechunkfs_base::error::ErrorKind;

/// Writes a header of a version of the format.
struct Writer {
    version: u8,
    bytes: Vec<u8>,
}

impl Writer {
    fn new(version: u8, records: u64) -> Self {
        let mut writer = Writer { version, bytes: vec![b'C', b'D', b'F', version] };
        writer.count(records);
        writer
    }

    fn u32(&mut self, number: u32) {
        self.bytes.extend(number.to_be_bytes());
    }

    fn count(&mut self, number: u64) {
        match self.version {
            5 => self.bytes.extend(number.to_be_bytes()),
            _ => self.bytes.extend(u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes()),
        }
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn name(&mut self, name: &[u8]) {
        self.count(name.len() as u64);
        self.padded(name);
    }

    fn list(&mut self, tag: u32, count: u64) {
        self.u32(if count == 0 { 0 } else { tag });
        self.count(count);
    }

    fn dimensions(&mut self, dimensions: &[(&str, u64)]) {
        self.list(0x0a, dimensions.len() as u64);
        for (name, length) in dimensions {
            self.name(name.as_bytes());
            self.count(*length);
        }
    }

    fn attributes(&mut self, attributes: &[(&str, u32, u64, &[u8])]) {
        self.list(0x0c, attributes.len() as u64);
        for (name, kind, count, bytes) in attributes {
            self.name(name.as_bytes());
            self.u32(*kind);
            self.count(*count);
            self.padded(bytes);
        }
    }

    fn variable(
        &mut self,
        name: &str,
        dimensions: &[u64],
        attributes: &[(&str, u32, u64, &[u8])],
        kind: u32,
        begin: u64,
    ) {
        self.name(name.as_bytes());
        self.count(dimensions.len() as u64);
        dimensions.iter().for_each(|one| self.count(*one));
        self.attributes(attributes);
        self.u32(kind);
        self.count(0);
        match self.version {
            1 => self.u32(u32::try_from(begin).unwrap()),
            _ => self.bytes.extend(begin.to_be_bytes()),
        }
    }
}

/// A file with `records` of two variables, `a` of three `short` and `b` of one `double`, and with a
/// fixed variable.
fn two_records(version: u8, said: u64, records: u64) -> Vec<u8> {
    let made = |begin: u64| {
        let mut writer = Writer::new(version, said);
        writer.dimensions(&[("time", 0), ("x", 3)]);
        writer.attributes(&[]);
        writer.list(0x0b, 3);
        writer.variable("a", &[0, 1], &[], 3, begin + 12);
        writer.variable("b", &[0], &[], 6, begin + 20);
        writer.variable("fixed", &[1], &[("units", 2, 1, b"K")], 4, begin);
        writer.bytes
    };
    let begin = made(0).len() as u64;
    let mut bytes = made(begin);
    (0..12).for_each(|byte| bytes.push(byte));
    for record in 0..records {
        bytes.extend([record as u8; 6]);
        bytes.extend([0, 0]);
        bytes.extend([0x40 + record as u8; 8]);
    }
    bytes
}

/// Returns the coordinates of the chunks of an array, in the order of its grid.
fn coords(array: &Array) -> Vec<Vec<u32>> {
    let grid = array.grid().unwrap();
    let count: u32 = grid.iter().product();
    let of = |mut number: u32| {
        let mut coords = vec![0; grid.len()];
        for (coord, length) in coords.iter_mut().zip(&grid).rev() {
            *coord = number % length;
            number /= length;
        }
        coords
    };
    (0..count).map(of).collect()
}

/// Returns the bytes of each chunk of an array.
fn chunks(file: &Bytes, array: &Array) -> Vec<Vec<u8>> {
    let of = |coords: Vec<u32>| {
        let mut bytes = Vec::new();
        array.read_chunk(file, &coords, &mut bytes).unwrap();
        bytes
    };
    coords(array).into_iter().map(of).collect()
}

fn planned(bytes: Vec<u8>) -> (Bytes, Plan) {
    let file = Bytes(bytes);
    let plan = plan(&file).unwrap().into_inner();
    (file, plan)
}

#[test]
fn records_are_found_between_those_of_other_variables() {
    for version in [1, 2, 5] {
        let streamed = if version == 5 { u64::MAX } else { u32::MAX.into() };
        for said in [3, streamed] {
            let (file, plan) = planned(two_records(version, said, 3));
            let [a, b, fixed] = plan.arrays.as_slice() else { panic!("{plan:?}") };
            assert_eq!((a.shape(), a.chunk_shape.as_slice()), (&[3, 3][..], &[4, 3][..]), "{version}");
            // A chunk of four records, the last of which is not there.
            let fill = [(-32_767_i16).to_be_bytes(); 3].concat();
            assert_eq!(chunks(&file, a), [[[0; 6].as_slice(), &[1; 6], &[2; 6], &fill].concat()]);
            let fill = 9.969_209_968_386_869e36_f64.to_be_bytes();
            assert_eq!(chunks(&file, b), [[[0x40; 8], [0x41; 8], [0x42; 8], fill].concat()]);
            assert_eq!(chunks(&file, fixed), [(0..12).collect::<Vec<u8>>()]);
            assert_eq!(serde_json::Value::Object(fixed.attributes.clone()), json!({"units": "K"}));
        }
    }
}

#[test]
fn records_of_one_variable_have_no_padding() {
    let made = |begin: u64| {
        let mut writer = Writer::new(1, 5);
        writer.dimensions(&[("time", 0)]);
        writer.attributes(&[]);
        writer.list(0x0b, 1);
        writer.variable("a", &[0], &[], 1, begin);
        writer.bytes
    };
    let mut bytes = made(made(0).len() as u64);
    bytes.extend(1..=5);
    let (file, plan) = planned(bytes);
    let fill = (-127_i8).to_be_bytes()[0];
    assert_eq!(chunks(&file, &plan.arrays[0]), [[1, 2, 3, 4, 5, fill, fill, fill]]);
}

#[test]
fn scalars_and_empty_dimensions_have_their_shape() {
    let made = |begin: u64| {
        let mut writer = Writer::new(2, 0);
        writer.dimensions(&[("time", 0)]);
        writer.attributes(&[("history", 2, 3, b"a\0b")]);
        writer.list(0x0b, 2);
        writer.variable("none", &[0], &[("_FillValue", 5, 1, &[0x7f, 0xc0, 0, 0])], 5, begin + 4);
        writer.variable("one", &[], &[("_FillValue", 5, 1, &[0x3f, 0xc0, 0, 0])], 4, begin);
        writer.bytes
    };
    let mut bytes = made(made(0).len() as u64);
    bytes.extend([0, 0, 0, 9]);
    let (file, plan) = planned(bytes);
    let [none, one] = plan.arrays.as_slice() else { panic!("{plan:?}") };
    assert_eq!((none.shape(), none.chunk_shape.as_slice(), none.grid().unwrap()), (&[0][..], &[1][..], vec![0]));
    assert_eq!((one.shape().len(), chunks(&file, one)), (0, vec![vec![0, 0, 0, 9]]));
    let document: serde_json::Value = serde_json::from_slice(&none.document().unwrap()).unwrap();
    assert_eq!(document["fill_value"], "NaN");
    assert_eq!(document["attributes"]["_FillValue"], "AAAAAAAA+H8=");
    let document: serde_json::Value = serde_json::from_slice(&one.document().unwrap()).unwrap();
    assert_eq!(document["fill_value"], -2_147_483_647);
    assert_eq!(document["codecs"], json!([{"name": "bytes", "configuration": {"endian": "big"}}]));
    assert_eq!(plan.attributes["history"], "ab");
    let why: Vec<_> = plan.omissions.list.iter().map(|one| (one.path.as_str(), one.why.as_str())).collect();
    assert_eq!(
        why,
        [
            ("/@history", "zero bytes in the text are left out"),
            ("one@_FillValue", "left out: it is not one value of the variable's type")
        ]
    );
}

#[test]
fn what_is_not_in_the_file_is_refused() {
    let whole = two_records(2, 3, 3);
    for length in 0..whole.len() {
        let error = plan(&Bytes(whole[..length].to_vec())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{length}: {error}");
    }
    // More records than there are, or more than anything can hold.
    for said in [4, 1 << 31, u64::from(u32::MAX) - 1] {
        assert_eq!(plan(&Bytes(two_records(1, said, 3))).unwrap_err().kind(), ErrorKind::Corrupt, "{said}");
    }
}

/// Whatever bytes are changed: an error, or a plan whose pieces are in the file.
#[test]
fn damaged_headers_never_lead_out_of_the_file() {
    let seed = Cell::new(0x2545_f491_4f6c_dd1d_u64);
    let next = || {
        let mut x = seed.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        seed.set(x);
        usize::try_from(x >> 16).unwrap()
    };
    let mut plans = 0;
    for round in 0..20_000 {
        let mut bytes = two_records([1, 2, 5][round % 3], 3, 3);
        for _ in 0..1 + next() % 3 {
            let at = next() % bytes.len();
            bytes[at] = [0, 1, 0x7f, 0xff, next() as u8][next() % 5];
        }
        let length = bytes.len() as u64;
        if let Ok(plan) = plan(&Bytes(bytes)) {
            plan.check(length).unwrap();
            plans += 1;
        }
    }
    assert!(plans > 1000, "{plans}");
}

/// Reads element after element as the format says, and nothing of [`layout`].
fn naive(file: &[u8], begin: u64, records: Option<(u64, u64)>, shape: &[u64], size: u64) -> Vec<u8> {
    let count: u64 = shape.iter().product();
    let inner: u64 = if records.is_some() { shape[1..].iter().product() } else { count };
    let mut out = Vec::new();
    for element in 0..count {
        let record = element / inner.max(1);
        let within = element % inner.max(1);
        let at = match records {
            Some((first, stride)) => first + begin + record * stride + within * size,
            None => begin + element * size,
        };
        out.extend_from_slice(&file[usize::try_from(at).unwrap()..usize::try_from(at + size).unwrap()]);
    }
    out
}

/// Puts the chunks of an array together, as a reader of Zarr does.
fn assembled(file: &Bytes, array: &Array) -> Vec<u8> {
    let size = usize::try_from(array.element.size()).unwrap();
    let count = usize::try_from(array.shape().iter().product::<u64>()).unwrap();
    let mut out = vec![0; count * size];
    for (coords, bytes) in coords(array).iter().zip(chunks(file, array)) {
        assert_eq!(bytes.len() as u64, array.chunk_bytes());
        for (number, element) in bytes.chunks(size).enumerate() {
            let mut rest = number as u64;
            let mut at = 0;
            let mut is_inside = true;
            let mut place = vec![0; array.shape().len()];
            for axis in (0..array.shape().len()).rev() {
                let within = rest % array.chunk_shape[axis];
                rest /= array.chunk_shape[axis];
                place[axis] = u64::from(coords[axis]) * array.chunk_shape[axis] + within;
                is_inside &= place[axis] < array.shape()[axis];
            }
            for (length, within) in array.shape().iter().zip(&place) {
                at = at * length + within;
            }
            if is_inside {
                let at = usize::try_from(at).unwrap() * size;
                out[at..at + size].copy_from_slice(element);
            }
        }
    }
    out
}

/// Chunks of a few bytes, so that every way of cutting and gathering is met.
#[test]
fn chunks_have_the_elements_that_the_format_says() {
    let seed = Cell::new(0x9e37_79b9_7f4a_7c15_u64);
    let next = |below: u64| {
        let mut x = seed.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        seed.set(x);
        (x >> 16) % below
    };
    let mut cut = 0;
    for round in 0..2000 {
        let sizes = Sizes { most: 8 << next(5), records: 4 << next(5) };
        let records = next(12);
        let lengths: Vec<u64> = (0..3).map(|_| 1 + next(6)).collect();
        let kinds = [(1, 1), (3, 2), (4, 4), (6, 8)];
        // Each variable: whether it has records, its dimensions, its type.
        let variables: Vec<(bool, Vec<u64>, u32, u64)> = (0..1 + next(3))
            .map(|_| {
                let dimensions: Vec<u64> = (0..next(4)).map(|_| 1 + next(3)).collect();
                let (kind, size) = kinds[usize::try_from(next(4)).unwrap()];
                (next(2) == 0, dimensions, kind, size)
            })
            .collect();
        let slab = |(_, dimensions, _, size): &(bool, Vec<u64>, u32, u64)| -> u64 {
            dimensions.iter().map(|one| lengths[usize::try_from(*one - 1).unwrap()]).product::<u64>() * size
        };
        let with_records: Vec<u64> = variables.iter().filter(|one| one.0).map(slab).collect();
        let stride = match with_records.as_slice() {
            [only] => *only,
            all => all.iter().map(|slab| slab.next_multiple_of(4)).sum(),
        };
        let fixed: u64 = variables.iter().filter(|one| !one.0).map(|one| slab(one).next_multiple_of(4)).sum();
        let version = [1, 2, 5][round % 3];
        let write = |begin: u64| {
            let mut writer = Writer::new(version, records);
            writer.dimensions(&[("time", 0), ("x", lengths[0]), ("y", lengths[1]), ("z", lengths[2])]);
            writer.attributes(&[]);
            writer.list(0x0b, variables.len() as u64);
            let mut at = begin;
            let mut in_record = begin + fixed;
            let mut begins = Vec::new();
            for (number, variable) in variables.iter().enumerate() {
                let place = if variable.0 { &mut in_record } else { &mut at };
                let dimensions: Vec<u64> =
                    variable.0.then_some(0).into_iter().chain(variable.1.iter().copied()).collect();
                writer.variable(&format!("v{number}"), &dimensions, &[], variable.2, *place);
                begins.push(*place);
                *place += slab(variable).next_multiple_of(4);
            }
            (writer.bytes, begins)
        };
        let begin = write(0).0.len() as u64;
        let (mut bytes, begins) = write(begin);
        let end = begin + fixed + records * stride;
        while (bytes.len() as u64) < end {
            bytes.push(next(256) as u8);
        }
        let file = Bytes(bytes);
        let plan = plan_with(&file, sizes).unwrap().into_inner();
        for ((array, variable), begin) in plan.arrays.iter().zip(&variables).zip(begins) {
            let of_records = variable.0.then_some((0, stride));
            let wanted = naive(&file.0, begin, of_records, array.shape(), variable.3);
            assert_eq!(assembled(&file, array), wanted, "{round}: {sizes:?} {array:?}");
            cut += usize::from(coords(array).len() > 1);
        }
    }
    assert!(cut > 1000, "{cut}");
}

#[test]
fn variables_that_share_bytes_are_refused() {
    for (begins, is_right) in [([0, 12], true), ([12, 0], true), ([0, 8], false), ([0, 0], false)] {
        let made = |begin: u64| {
            let mut writer = Writer::new(2, 0);
            writer.dimensions(&[("x", 3)]);
            writer.attributes(&[]);
            writer.list(0x0b, 2);
            writer.variable("a", &[0], &[], 4, begin + begins[0]);
            writer.variable("b", &[0], &[], 4, begin + begins[1]);
            writer.bytes
        };
        let mut bytes = made(made(0).len() as u64);
        bytes.extend([0; 24]);
        assert_eq!(plan(&Bytes(bytes)).is_ok(), is_right, "{begins:?}");
    }
}

#[test]
fn a_streamed_file_has_its_last_record_without_the_padding() {
    let whole = two_records(1, u32::MAX.into(), 3);
    let records = |bytes: &[u8]| {
        let plan = plan(&Bytes(bytes.to_vec())).unwrap().into_inner();
        (plan.arrays[0].shape()[0], plan.omissions.count)
    };
    assert_eq!(records(&whole), (3, 0));
    // A part of a record is told.
    assert_eq!(records(&whole[..whole.len() - 1]), (2, 1));
    assert_eq!(records(&whole[..whole.len() - 16]), (2, 0));
}

/// A few bytes that claim very much take neither time nor memory.
#[test]
fn claims_of_a_header_cost_nothing() {
    let mut writer = Writer::new(5, 0);
    writer.dimensions(&[("t", 0), ("x", 1_152_921_504_606_846_883)]);
    writer.attributes(&[]);
    writer.list(0x0b, 1);
    writer.variable("a", &[0, 1], &[], 1, 1 << 20);
    let begin = std::time::Instant::now();
    assert_eq!(plan(&Bytes(writer.bytes)).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(begin.elapsed() < std::time::Duration::from_secs(5));
}

#[test]
fn a_mark_of_another_type_is_converted_if_it_is_exact() {
    let one = |kind: u32, count: u64, bytes: &[u8], of: u32| {
        let made = |begin: u64| {
            let mut writer = Writer::new(5, 0);
            writer.dimensions(&[]);
            writer.attributes(&[]);
            writer.list(0x0b, 1);
            writer.variable("a", &[], &[("_FillValue", kind, count, bytes)], of, begin);
            writer.bytes
        };
        let mut bytes = made(made(0).len() as u64);
        bytes.extend([0; 8]);
        let plan = plan(&Bytes(bytes)).unwrap().into_inner();
        (plan.arrays[0].attributes.get("_FillValue").cloned(), plan.omissions.count)
    };
    assert_eq!(one(4, 1, &(-9999_i32).to_be_bytes(), 3), (Some(json!(-9999)), 0));
    assert_eq!(one(6, 1, &(-9999.0_f64).to_be_bytes(), 3), (Some(json!(-9999)), 0));
    assert_eq!(one(6, 1, &1e20_f64.to_be_bytes(), 5).1, 1, "no float is 1e20");
    assert_eq!(one(6, 1, &0.5_f64.to_be_bytes(), 5), (Some(json!("AAAAAAAA4D8=")), 0));
    assert_eq!(one(4, 1, &70_000_i32.to_be_bytes(), 3), (None, 1));
    assert_eq!(one(2, 1, b"x", 3), (None, 1));
    // Characters: xarray would open nothing.
    assert_eq!(one(2, 1, b"x", 2), (None, 1));
}
