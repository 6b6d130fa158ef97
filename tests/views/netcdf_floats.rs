//! Numbers with a fraction: views show exactly those that a document has, digit by digit.

use std::fs;

use netcdf_reader::{NcAttrValue, NcFile};
use serde_json::json;

use crate::common::Mount;
use crate::netcdf::{array, group, import};

/// Numbers whose decimal forms a parser that only multiplies powers of ten misses by one bit.
const HARD: [&str; 6] =
    ["1.0715660391197826e-05", "9.969209968386869e+36", "-999.999", "1e23", "1e-310", "2.2250738585072011e-308"];
/// Random ones beside them.
const RANDOM: usize = 400;

/// Returns the numbers as documents have them.
fn texts() -> Vec<String> {
    let mut random = 3_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random ^ random >> 33
    };
    let finite = std::iter::repeat_with(|| f64::from_bits(next())).filter(|number| number.is_finite());
    let numbers = finite.take(RANDOM).map(|number| format!("{number:?}"));
    HARD.iter().map(|text| (*text).to_owned()).chain(numbers).collect()
}

/// Returns `document` with the quotes of the texts taken away: no JSON library writes these numbers
/// in our place.
fn unquoted(document: &[u8], texts: &[String]) -> Vec<u8> {
    let mut document = String::from_utf8(document.to_vec()).unwrap();
    for text in texts {
        document = document.replace(&format!("\"{text}\""), text);
    }
    document.into_bytes()
}

/// Returns the numbers between the brackets behind `"list":`.
fn list_in(document: &[u8]) -> Vec<f64> {
    let document = String::from_utf8(document.to_vec()).unwrap();
    let list = document.split("\"list\"").nth(1).and_then(|rest| rest.split(['[', ']']).nth(1));
    let list = list.unwrap_or_else(|| panic!("no list: {document:.200}"));
    list.split(',').map(|number| number.trim().parse().unwrap()).collect()
}

#[test]
fn views_show_the_very_numbers_of_documents() {
    let directory = tempfile::tempdir().unwrap();
    let texts = texts();
    let numbers: Vec<f64> = texts.iter().map(|text| text.parse().unwrap()).collect();
    let document = |name: usize| {
        let text = &texts[name];
        let fill = &texts[name..=name];
        unquoted(&array("float64", &[1], &[1], &json!({"fill_value": text, "attributes": {"valid_min": text}})), fill)
    };
    let mut files = vec![("zarr.json".to_owned(), unquoted(&group(&json!({"list": texts})), &texts))];
    // Their chunks are missing.
    files.extend((0..40).map(|name| (format!("v{name}/zarr.json"), document(name))));
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(key, bytes)| (key.as_str(), bytes.clone())).collect();
    let repo = import(directory.path(), &files);

    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    assert_eq!(file.global_attribute("list").unwrap().value, NcAttrValue::Doubles(numbers.clone()));
    for (name, number) in numbers.iter().enumerate().take(40) {
        let name = format!("v{name}");
        assert_eq!(file.read_variable::<f64>(&name).unwrap().iter().copied().collect::<Vec<_>>(), [*number]);
        let value = file.variable(&name).unwrap().attribute("valid_min").unwrap().value.clone();
        assert_eq!(value, NcAttrValue::Doubles(vec![*number]), "{name}");
    }
    drop(mount);

    for (options, name) in [(&["--view", "zarr2"][..], ".zattrs"), (&["--consolidated"], "zarr.json")] {
        let mount = Mount::new(&repo, options);
        assert_eq!(list_in(&fs::read(mount.path().join(name)).unwrap()), numbers, "{options:?}");
    }
}
