//! Documents of version 2, and what they become.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use serde_json::{Value, json};

use super::*;

/// Returns the `zarr.json` of an array with these members in the place of usual ones.
fn converted(members: &Value, attributes: &str) -> std::result::Result<Value, String> {
    let mut zarray = json!({"zarr_format": 2, "shape": [4, 6], "chunks": [2, 3], "dtype": "<f4", "compressor": null,
        "fill_value": null, "order": "C", "filters": null});
    zarray.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    let mut omissions = Omissions::default();
    let text = zarray.to_string();
    let found = array(text.as_bytes(), Some(attributes.as_bytes()), "x", &mut omissions);
    found.map(|(document, _)| serde_json::from_slice(&document).unwrap()).map_err(|error| error.to_string())
}

#[test]
fn an_array_keeps_its_form_and_gets_its_names() {
    let attributes = r#"{"_ARRAY_DIMENSIONS": ["y", "x"], "units": "K"}"#;
    let found = converted(&json!({"fill_value": "NaN", "dtype": ">f4", "order": "F"}), attributes).unwrap();
    assert_eq!(found["dimension_names"], json!(["y", "x"]));
    assert_eq!(found["attributes"], json!({"units": "K", "_FillValue": "AAAAAAAA+H8="}));
    assert_eq!((&found["data_type"], &found["fill_value"]), (&json!("float32"), &json!("NaN")));
    let transpose = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
    assert_eq!(found["codecs"], json!([transpose, {"name": "bytes", "configuration": {"endian": "big"}}]));
    let nczarr = json!({"_NCZARR_ARRAY": {"dimrefs": ["/lat", "/g/lon"]}});
    assert_eq!(converted(&nczarr, "{}").unwrap()["dimension_names"], json!(["lat", "lon"]));
    let empty = converted(&json!({"shape": [0, 6], "chunks": [0, 3]}), "{}").unwrap();
    assert_eq!(empty["chunk_grid"]["configuration"]["chunk_shape"], json!([1, 3]));
    // Names for other dimensions are an attribute like others.
    let other = converted(&json!({}), r#"{"_ARRAY_DIMENSIONS": ["x"]}"#).unwrap();
    assert!(other.get("dimension_names").is_none() && other["attributes"]["_ARRAY_DIMENSIONS"] == json!(["x"]));
}

#[test]
fn compressors_and_filters_are_codecs() {
    let codecs =
        |members: Value| converted(&members, "{}").map(|found| found["codecs"].as_array().unwrap()[1..].to_vec());
    let blosc = json!({"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": -1, "blocksize": 0});
    assert_eq!(
        codecs(json!({"compressor": blosc})).unwrap(),
        [
            json!({"name": "blosc", "configuration": {"cname": "zstd", "clevel": 3, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}})
        ]
    );
    let shuffle = json!([{"id": "shuffle", "elementsize": 4}, {"id": "fletcher32"}]);
    let expected = [
        json!({"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}}),
        json!({"name": "numcodecs.fletcher32", "configuration": {}}),
        json!({"name": "numcodecs.zlib", "configuration": {"level": 5}}),
    ];
    assert_eq!(codecs(json!({"filters": shuffle, "compressor": {"id": "zlib", "level": 5}})).unwrap(), expected);
    let delta = converted(&json!({"dtype": "<i4", "filters": [{"id": "delta", "dtype": "<i4"}]}), "{}").unwrap();
    assert_eq!(delta["codecs"][0], json!({"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}));
    // Settings that numcodecs has if they are not said, and levels that version 3 does not know.
    let shuffled = codecs(json!({"filters": [{"id": "shuffle"}], "dtype": "<f8"})).unwrap();
    assert_eq!(shuffled, [json!({"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}})]);
    let packed = codecs(json!({"compressor": {"id": "gzip", "level": -1}})).unwrap();
    assert_eq!(packed, [json!({"name": "gzip", "configuration": {"level": 0}})]);
    for (members, why) in [
        (json!({"compressor": {"id": "zfpy"}}), "zfpy"),
        (json!({"filters": [{"id": "pickle"}], "dtype": "|O"}), "|O"),
        (json!({"filters": [{"id": "delta", "dtype": ">f4"}]}), "delta"),
        (json!({"filters": [{"id": "delta", "dtype": "<f4", "astype": "<f8"}]}), "delta"),
        (json!({"filters": [{"id": "bitround", "keepbits": 3}], "dtype": "<i4"}), "bitround"),
        (json!({"filters": [{"id": "fixedscaleoffset", "offset": 0, "scale": 1, "dtype": "<f4"}]}), "fixedscaleoffset"),
        (json!({"filters": [{"id": "bitround", "keepbits": 3}], "order": "F"}), "order `F`"),
        (json!({"compressor": {"id": "gzip", "level": "much"}}), "level"),
        (json!({"compressor": {"id": "blosc", "cname": "none"}}), "none"),
        (json!({"dtype": [["a", "<i4"]]}), "structures"),
        (json!({"dtype": "<i3"}), "<i3"),
        (json!({"dtype": "<M8"}), "<M8"),
        (json!({"order": "A"}), "order"),
        (json!({"dimension_separator": "-"}), "separator"),
        (json!({"zarr_format": 3}), "zarr_format"),
        (json!({"chunks": [2]}), "chunks"),
        (json!({"chunks": [2, 0]}), "chunks"),
        (json!({"fill_value": true, "dtype": "<i4"}), "fill value"),
        (json!({"fill_value": "much"}), "fill value"),
        (json!({"shape": [u64::MAX, 1], "chunks": [1, 1]}), "2^32"),
    ] {
        let error = converted(&members, "{}").unwrap_err();
        assert!(error.contains(why), "{members}: {error}");
    }
}

#[test]
fn fill_values_have_the_form_of_version_3() {
    for (dtype, fill, expected, mark) in [
        ("|b1", json!(1), json!(true), Some(json!(true))),
        ("<i2", json!(-9.0), json!(-9), Some(json!(-9))),
        ("<u8", json!(u64::MAX), json!(u64::MAX), Some(json!(u64::MAX))),
        ("<f8", json!(1.5), json!(1.5), Some(json!("AAAAAAAA+D8="))),
        ("<c8", json!(["NaN", 0.0]), json!(["NaN", 0.0]), Some(json!(["AAAAAAAA+H8=", "AAAAAAAAAAA="]))),
        ("<M8[25us]", json!(7), json!(7), None),
        ("|S3", json!("YWI="), json!("YWI="), None),
        ("<U3", json!(""), json!(""), None),
        ("<i4", json!(null), json!(0), None),
    ] {
        let found = converted(&json!({"dtype": dtype, "fill_value": fill}), "{}").unwrap();
        assert_eq!(found["fill_value"], expected, "{dtype}");
        assert_eq!(found["attributes"].get("_FillValue").cloned(), mark, "{dtype}");
    }
    // Rounded as the elements are; without a fill value the attribute counts.
    let marked = |dtype: &str, fill: Value, attributes: &str| {
        converted(&json!({"dtype": dtype, "fill_value": fill}), attributes).unwrap()["attributes"]["_FillValue"].clone()
    };
    assert_eq!(marked("<f4", json!(0.1), "{}"), json!("AAAAoJmZuT8="));
    assert_eq!(marked("<f2", json!(0.1), "{}"), json!("AAAAAACYuT8="));
    assert_eq!(marked("<i4", json!(null), r#"{"_FillValue": -9}"#), json!(-9));
    assert_eq!(marked("<i4", json!(5), r#"{"_FillValue": -9}"#), json!(5));
    let time = converted(&json!({"dtype": "<M8[25us]"}), "{}").unwrap();
    assert_eq!(
        time["data_type"],
        json!({"name": "numpy.datetime64", "configuration": {"unit": "us", "scale_factor": 25}})
    );
    let text = converted(
        &json!({"dtype": "|O", "filters": [{"id": "vlen-utf8"}], "compressor": {"id": "zstd", "level": 1}}),
        "{}",
    );
    assert_eq!(text.unwrap()["codecs"][0], json!({"name": "vlen-utf8"}));
}

#[test]
fn numbers_that_json_does_not_have_are_texts_or_left_out() {
    let mut omissions = Omissions::default();
    let zgroup = br#"{"zarr_format": 2}"#;
    let found = group(zgroup, Some(br#"{"a": NaN, "missing_value": NaN, "b": "NaN"}"#), "g", &mut omissions).unwrap();
    let found: Value = serde_json::from_slice(&found).unwrap();
    assert_eq!(found["attributes"], json!({"a": "NaN", "b": "NaN"}));
    assert_eq!(omissions.count, 3);
    assert!(group(zgroup, Some(b"[]"), "g", &mut omissions).is_err());
    assert!(group(b"{}", None, "g", &mut omissions).is_err());
    assert!(group(br#"{"zarr_format": 3}"#, None, "g", &mut omissions).is_err());
}

#[test]
fn keys_are_those_of_version_2() {
    let zarray = |separator: &str| {
        format!(
            r#"{{"zarr_format": 2, "shape": [9], "chunks": [2], "dtype": "|u1", "compressor": null, "order": "C", "dimension_separator": "{separator}"}}"#
        )
    };
    let keys = |separator| array(zarray(separator).as_bytes(), None, "x", &mut Omissions::default()).unwrap().1;
    assert_eq!(keys(".").keys.parse_flat("4", 1), Some(vec![4]));
    assert_eq!((keys("/").keys.separator, keys("/").grid), (Separator::Slash, vec![5]));
}
