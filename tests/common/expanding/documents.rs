//! Documents (`zarr.json`) whose values take many times their bytes.

use super::Expanding;
use super::files::{Node, repository_of_nodes};
use super::values::{JSON, LARGEST, json_list, json_map, json_nested};

/// Bytes of a document, before compression.
const LONG: usize = 2 << 20;

/// Returns the document of an array; `more` replaces or adds members.
pub fn array(more: &[(&str, &str)]) -> String {
    let mut members = vec![
        ("zarr_format", "3"),
        ("node_type", "\"array\""),
        ("shape", "[4]"),
        ("data_type", "\"uint8\""),
        ("chunk_grid", r#"{"name":"regular","configuration":{"chunk_shape":[1]}}"#),
        ("chunk_key_encoding", r#"{"name":"default","configuration":{"separator":"/"}}"#),
        ("fill_value", "0"),
        ("codecs", r#"[{"name":"bytes"}]"#),
    ];
    for (name, value) in more {
        match members.iter_mut().find(|(known, _)| known == name) {
            Some(member) => member.1 = value,
            None => members.push((name, value)),
        }
    }
    let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}

/// Returns documents that expand, with what expands.
pub fn documents() -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut add = |what: &str, members: &[(&str, &str)]| all.push((what.to_owned(), array(members)));
    for value in JSON {
        let long = if LARGEST.contains(&value) { LONG } else { LONG / 16 };
        let list = json_list(value, long);
        let map = json_map(value, long);
        add(&format!("fill value: list of {value}"), &[("fill_value", &list)]);
        add(&format!("attributes: list of {value}"), &[("attributes", &format!("{{\"a\":{list}}}"))]);
        add(&format!("attributes: members {value}"), &[("attributes", &map)]);
        add(&format!("codecs: list of {value}"), &[("codecs", &list)]);
        add(&format!("shape: list of {value}"), &[("shape", &list)]);
        add(&format!("dimension names: list of {value}"), &[("dimension_names", &list)]);
        add(
            &format!("unknown member: map of {value}"),
            &[("x", &format!("{{\"must_understand\":false,\"a\":{map}}}"))],
        );
        let sizes = format!(r#"{{"name":"rectilinear","configuration":{{"kind":"inline","chunk_shapes":[{list}]}}}}"#);
        add(&format!("rectilinear grid: list of {value}"), &[("chunk_grid", &sizes)]);
    }
    let members: String = (0..LONG / 12).map(|n| format!(",\"{n:06x}\":0")).collect();
    all.push(("members of the document".to_owned(), array(&[]).trim_end_matches('}').to_owned() + &members + "}"));
    let mut add = |what: &str, members: &[(&str, &str)]| all.push((what.to_owned(), array(members)));
    let long = format!("\"{}\"", "x".repeat(LONG));
    let escapes = format!("\"{}\"", "\\u0000".repeat(LONG / 6));
    for (what, text) in [("a long text", &long), ("escapes", &escapes)] {
        add(&format!("dimension names: {what}"), &[("dimension_names", &format!("[{text}]"))]);
        add(&format!("attributes: {what}"), &[("attributes", &format!("{{\"a\":{text}}}"))]);
        add(&format!("data type: {what}"), &[("data_type", text)]);
        add(&format!("fill value: {what}"), &[("fill_value", text)]);
        add(&format!("codecs: {what}"), &[("codecs", &format!("[{{\"name\":{text}}}]"))]);
    }
    let nested = json_nested(120);
    let deep = json_list(&nested, LONG);
    add("attributes: nested lists", &[("attributes", &format!("{{\"a\":{deep}}}"))]);
    add("fill value: nested lists", &[("fill_value", &deep)]);
    add("fill value: too deep", &[("fill_value", &json_nested(LONG / 2))]);
    // Run-length form: a few bytes are very many chunks.
    for runs in ["[[1,1000000000]]", "[[1,4294967295]]", "[[1,1000],[2,1000],[1,4294960000]]", "[[1,1],[2,1]]"] {
        let shapes = if runs == "[[1,1],[2,1]]" { json_list("[1,1],[2,1]", LONG / 4) } else { runs.to_owned() };
        let grid = format!(r#"{{"name":"rectilinear","configuration":{{"kind":"inline","chunk_shapes":[{shapes}]}}}}"#);
        add(&format!("rectilinear grid: {runs}"), &[("chunk_grid", &grid), ("shape", "[4294967295]")]);
    }
    // The index of a shard.
    for inner in [1_u64, 16] {
        let sharding = format!(
            r#"[{{"name":"sharding_indexed","configuration":{{"chunk_shape":[{inner}],"codecs":[{{"name":"bytes"}}],
            "index_codecs":[{{"name":"bytes","configuration":{{"endian":"little"}}}}]}}}}]"#
        );
        for chunk in [1_u64 << 24, 1 << 32, 1 << 62] {
            let grid = format!(r#"{{"name":"regular","configuration":{{"chunk_shape":[{chunk}]}}}}"#);
            let shape = format!("[{chunk}]");
            let what = format!("shard index: {} entries", chunk / inner);
            add(&what, &[("chunk_grid", &grid), ("shape", &shape), ("codecs", &sharding)]);
        }
    }
    all
}

/// Returns repositories with one of the documents each, or several of a kind.
pub fn all() -> Vec<Expanding> {
    let one = |(what, document): (String, String)| {
        let node = Node::array("/a", document.as_bytes());
        repository_of_nodes(&what, &[Node::group("/"), node])
    };
    documents().into_iter().map(one).collect()
}
