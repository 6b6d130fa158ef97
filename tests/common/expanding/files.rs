//! Files of each type that expand, in repositories that are otherwise sound.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use super::documents::array;
use super::flat::{Builder, Field, Fields, Part, Raw, file, file_around, list, payload, plain, table, text};
use super::values::{
    JSON, LARGEST, MESSAGE_PACK, flexbuffer_of_shared_lists, flexbuffer_text, json_list, json_map, message_pack_claim,
    message_pack_list, yaml_of_aliases,
};
use super::{Expanding, MANIFEST, TIP, name};

const GROUP: &[u8] = br#"{"zarr_format":3,"node_type":"group"}"#;
/// Id of the root commit.
const FIRST: [u8; 12] = [0; 12];

/// Node of a snapshot.
#[derive(Clone)]
pub struct Node {
    path: String,
    document: Vec<u8>,
    is_array: bool,
}

impl Node {
    pub fn group(path: &str) -> Self {
        Node { path: path.to_owned(), document: GROUP.to_vec(), is_array: false }
    }

    pub fn array(path: &str, document: &[u8]) -> Self {
        Node { path: path.to_owned(), document: document.to_vec(), is_array: true }
    }
}

fn node_id(n: usize) -> [u8; 8] {
    (n as u64 + 1).to_be_bytes()
}

/// Returns the fields of a group or an array.
fn node(b: &mut Builder, at: usize, node: &Node) -> Fields {
    let document = plain(b, &node.document);
    let path = text(b, &node.path);
    let mut fields = Fields::from([
        (0, Field::Node(node_id(at))),
        (1, Field::At(path)),
        (2, Field::At(document)),
        (3, Field::Byte(if node.is_array { 1 } else { 2 })),
    ]);
    let data = if node.is_array { array_data(b, &[]) } else { Fields::new() };
    fields.insert(4, Field::At(table(b, &data)));
    fields
}

/// Returns the fields of an array's data that refers to `manifests`.
fn array_data(b: &mut Builder, manifests: &[[u8; 12]]) -> Fields {
    let dimension = table(b, &Fields::from([(0, Field::Long(4)), (1, Field::Int(4))]));
    let shape = list(b, &[dimension]);
    let extents = plain(b, &[Raw(*b"\0\0\0\0\xff\xff\xff\xff")]);
    let references: Vec<Part> =
        manifests.iter().map(|id| table(b, &Fields::from([(0, Field::Id(*id)), (1, Field::At(extents))]))).collect();
    let references = list(b, &references);
    let empty = list(b, &[]);
    Fields::from([(0, Field::At(empty)), (2, Field::At(references)), (3, Field::At(shape))])
}

/// Returns the snapshot with `nodes`, after `change`.
fn snapshot(id: [u8; 12], nodes: &[Part], mut b: Builder, change: impl FnOnce(&mut Builder, &mut Fields)) -> Vec<u8> {
    let nodes = list(&mut b, nodes);
    let message = text(&mut b, "m");
    let empty = list(&mut b, &[]);
    let info = table(&mut b, &Fields::from([(0, Field::Id(MANIFEST)), (1, Field::Long(100)), (2, Field::Int(1))]));
    let infos = list(&mut b, &[info]);
    let mut fields = Fields::from([
        (0, Field::Id(id)),
        (2, Field::At(nodes)),
        (3, Field::Long(1_700_000_000_000_000)),
        (4, Field::At(message)),
        (5, Field::At(empty)),
        (6, Field::At(empty)),
        (7, Field::At(infos)),
    ]);
    change(&mut b, &mut fields);
    let root = table(&mut b, &fields);
    file(2, 1, &payload(b, root))
}

fn snapshot_of(id: [u8; 12], nodes: &[Node]) -> Vec<u8> {
    let mut b = Builder::new();
    let parts: Vec<Part> = nodes
        .iter()
        .enumerate()
        .map(|(at, one)| {
            let fields = node(&mut b, at, one);
            table(&mut b, &fields)
        })
        .collect();
    snapshot(id, &parts, b, |_, _| {})
}

/// Commit in `repo`: id, position of the parent, and fields beside those.
type Commit = ([u8; 12], i32, Fields);

/// Returns a `repo` with `commits`, the last of which is that of branch `main`, after `change`.
fn repo(commits: &[Commit], mut b: Builder, change: impl FnOnce(&mut Builder, &mut Fields)) -> Vec<u8> {
    let message = text(&mut b, "m");
    let commits: Vec<Part> = commits
        .iter()
        .enumerate()
        .map(|(at, (id, parent, more))| {
            let time = 1_700_000_000_000_000 + at as u64;
            let mut fields = Fields::from([
                (0, Field::Id(*id)),
                (1, Field::Int(*parent)),
                (2, Field::Long(time)),
                (3, Field::At(message)),
            ]);
            fields.extend(more);
            table(&mut b, &fields)
        })
        .collect();
    let main = text(&mut b, "main");
    let main = table(&mut b, &Fields::from([(0, Field::At(main)), (1, Field::Int(commits.len() as i32 - 1))]));
    let branches = list(&mut b, &[main]);
    let empty = list(&mut b, &[]);
    let commits = list(&mut b, &commits);
    let status = table(&mut b, &Fields::from([(0, Field::Byte(0))]));
    let kind = table(&mut b, &Fields::new());
    let update = Fields::from([(0, Field::Byte(1)), (1, Field::At(kind)), (2, Field::Long(1))]);
    let update = table(&mut b, &update);
    let updates = list(&mut b, &[update]);
    let mut fields = Fields::from([
        (0, Field::Byte(2)),
        (1, Field::At(empty)),
        (2, Field::At(branches)),
        (3, Field::At(empty)),
        (4, Field::At(commits)),
        (5, Field::At(status)),
        (7, Field::At(updates)),
    ]);
    change(&mut b, &mut fields);
    let root = table(&mut b, &fields);
    file(2, 6, &payload(b, root))
}

fn usual_commits() -> Vec<Commit> {
    vec![(FIRST, -1, Fields::new()), (TIP, 0, Fields::new())]
}

/// Returns the log of the newest commit, after `change`.
fn log(mut b: Builder, change: impl FnOnce(&mut Builder, &mut Fields)) -> Vec<u8> {
    let empty = list(&mut b, &[]);
    let mut fields = Fields::from([(0, Field::Id(TIP))]);
    fields.extend((1..=8).map(|number| (number, Field::At(empty))));
    change(&mut b, &mut fields);
    let root = table(&mut b, &fields);
    file(2, 4, &payload(b, root))
}

/// Returns the manifest with the lists of references `arrays` of nodes, after `change`.
fn manifest(mut b: Builder, arrays: &[Part], change: impl FnOnce(&mut Builder, &mut Fields)) -> Vec<u8> {
    let arrays = list(&mut b, arrays);
    let mut fields = Fields::from([(0, Field::Id(MANIFEST)), (1, Field::At(arrays)), (3, Field::Byte(0))]);
    change(&mut b, &mut fields);
    let root = table(&mut b, &fields);
    file(2, 2, &payload(b, root))
}

/// Returns a repository of two commits, whose newest snapshot has one array.
fn usual() -> BTreeMap<String, Vec<u8>> {
    let nodes = [Node::group("/"), Node::array("/a", array(&[]).as_bytes())];
    BTreeMap::from([
        ("repo".to_owned(), repo(&usual_commits(), Builder::new(), |_, _| {})),
        (format!("snapshots/{}", name(FIRST)), snapshot_of(FIRST, &[Node::group("/")])),
        (format!("snapshots/{}", name(TIP)), snapshot_of(TIP, &nodes)),
        (format!("transactions/{}", name(TIP)), log(Builder::new(), |_, _| {})),
        (format!("transactions/{}", name(FIRST)), log(Builder::new(), |_, _| {})),
    ])
}

fn with(what: &str, key: &str, file: Vec<u8>) -> Expanding {
    let mut files = usual();
    files.insert(key.to_owned(), file);
    Expanding::new(what, files)
}

/// Returns a repository whose newest snapshot has `nodes`.
pub fn repository_of_nodes(what: &str, nodes: &[Node]) -> Expanding {
    with(what, &format!("snapshots/{}", name(TIP)), snapshot_of(TIP, nodes))
}

/// Adds metadata with one item: a value of lists in lists.
fn metadata(b: &mut Builder, value: &[u8]) -> Part {
    let item = text(b, "key");
    let value = plain(b, value);
    let item = table(b, &Fields::from([(0, Field::At(item)), (1, Field::At(value))]));
    list(b, &[item])
}

fn numbered(n: usize) -> [u8; 12] {
    let mut id = [0; 12];
    id[4..].copy_from_slice(&(n as u64).to_be_bytes());
    id
}

/// Returns a line of `count` commits that ends with the newest, all of which have `shared`.
fn commits(count: usize, shared: &Fields) -> Vec<Commit> {
    let id = |at| if at + 1 == count { TIP } else { numbered(at) };
    (0..count).map(|at| (id(at), at as i32 - 1, shared.clone())).collect()
}

/// Values of metadata and configurations that expand.
fn flexbuffers() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("shared lists", flexbuffer_of_shared_lists(5, 60, 60)),
        ("a list of shared lists", flexbuffer_of_shared_lists(1, 2000, 60_000)),
        ("a list of lists of nothing", flexbuffer_of_shared_lists(2, 3000, 0)),
        ("many numbers", flexbuffer_of_shared_lists(0, 0, 60_000)),
        ("a long text", flexbuffer_text(4 << 20)),
        ("deep lists", flexbuffer_of_shared_lists(5000, 1, 1)),
    ]
}

pub fn repos() -> Vec<Expanding> {
    let mut all = Vec::new();
    let mut add = |what: &str, file: Vec<u8>| all.push(with(what, "repo", file));
    for (what, value) in flexbuffers() {
        for count in [2, 2000] {
            let mut b = Builder::new();
            let shared = Fields::from([(4, Field::At(metadata(&mut b, &value)))]);
            add(&format!("metadata of {count} commits: {what}"), repo(&commits(count, &shared), b, |_, _| {}));
        }
        let change = |b: &mut Builder, fields: &mut Fields| {
            let part = metadata(b, &value);
            fields.insert(6, Field::At(part));
        };
        add(&format!("metadata of the repository: {what}"), repo(&usual_commits(), Builder::new(), change));
        let change = |b: &mut Builder, fields: &mut Fields| {
            let part = plain(b, &value);
            fields.insert(9, Field::At(part));
        };
        add(&format!("configuration: {what}"), repo(&usual_commits(), Builder::new(), change));
    }
    for (count, length) in [(60, 8 << 20), (100_000, 60)] {
        let mut b = Builder::new();
        let message = text(&mut b, &"m".repeat(length));
        let shared = Fields::from([(3, Field::At(message))]);
        add(&format!("messages of {length} bytes"), repo(&commits(count, &shared), b, |_, _| {}));
    }
    // Many items with one name each, and with one long name for all.
    for (count, length) in [(100_000, 1), (60, 1 << 20)] {
        let mut b = Builder::new();
        let item = text(&mut b, &"n".repeat(length));
        let value = plain(&mut b, &[0, 0, 1]);
        let item = table(&mut b, &Fields::from([(0, Field::At(item)), (1, Field::At(value))]));
        let items = list(&mut b, &vec![item; count]);
        let shared = Fields::from([(4, Field::At(items))]);
        add(&format!("{count} items of metadata"), repo(&commits(20, &shared), b, |_, _| {}));
    }
    let mut b = Builder::new();
    let logs: Vec<Raw<12>> = (0..100_000).map(|n| Raw(numbered(n))).collect();
    let logs = plain(&mut b, &logs);
    let shared = Fields::from([(5, Field::At(logs))]);
    add("pruned logs", repo(&commits(20, &shared), b, |_, _| {}));
    for (count, length) in [(400_000, 1), (60, 8 << 20)] {
        for (number, what) in [(1, "tags"), (2, "branches"), (3, "deleted tags"), (7, "operations")] {
            let change = |b: &mut Builder, fields: &mut Fields| {
                let name = text(b, &"n".repeat(length));
                let part = match number {
                    3 => name,
                    7 => {
                        let kind = table(b, &Fields::from([(0, Field::At(name))]));
                        let fields =
                            [(0, Field::Byte(7)), (1, Field::At(kind)), (2, Field::Long(1)), (3, Field::At(name))];
                        table(b, &Fields::from(fields))
                    }
                    _ => table(b, &Fields::from([(0, Field::At(name)), (1, Field::Int(0))])),
                };
                let part = list(b, &vec![part; count]);
                fields.insert(number, Field::At(part));
            };
            add(&format!("{count} {what}"), repo(&usual_commits(), Builder::new(), change));
        }
    }
    let change = |b: &mut Builder, fields: &mut Fields| {
        let flags = plain(b, &vec![0_u16; 10 << 20]);
        fields.extend([(10, Field::At(flags)), (11, Field::At(flags))]);
    };
    add("feature flags", repo(&usual_commits(), Builder::new(), change));
    let change = |b: &mut Builder, fields: &mut Fields| {
        let reason = text(b, &"r".repeat(16 << 20));
        let name = text(b, &"p".repeat(16 << 20));
        let status = table(b, &Fields::from([(0, Field::Byte(1)), (2, Field::At(reason))]));
        fields.extend([(5, Field::At(status)), (8, Field::At(name))]);
    };
    add("long reason and name of a file", repo(&usual_commits(), Builder::new(), change));
    let empty = Fields::new();
    add("many commits", repo(&commits(60_000, &empty), Builder::new(), |_, _| {}));
    all
}

pub fn configurations() -> Vec<Expanding> {
    let yaml = [
        ("aliases", yaml_of_aliases(9, 10)),
        ("aliases of few levels", yaml_of_aliases(2, 5000)),
        ("brackets", "[".repeat(1 << 20)),
        ("brackets in turn", "[],".repeat(1 << 20)),
        ("many items", "- x\n".repeat(1 << 20)),
        ("a long text", format!("a: {}\n", "x".repeat(8 << 20))),
        ("many members", (0..200_000).map(|n| format!("a{n}: 0\n")).collect()),
        ("a text that is folded", format!("a: >\n{}", "  x\n\n".repeat(1 << 20))),
        ("anchors", (0..200_000).map(|n| format!("- &a{n} x\n")).collect()),
        ("merge keys", "a: &a {x: 1}\nb: {<<: *a}\n".to_owned() + &"c: {<<: *a}\n".repeat(100_000)),
    ];
    let of_version_1 = |(what, text): (&str, String)| {
        let mut files = version_1();
        files.insert("config.yaml".to_owned(), text.into_bytes());
        Expanding::new(format!("config.yaml: {what}"), files)
    };
    yaml.into_iter().map(of_version_1).collect()
}

/// Returns a repository of version 1 of one commit.
fn version_1() -> BTreeMap<String, Vec<u8>> {
    let mut files = usual();
    files.remove("repo");
    let reference = format!("{{\"snapshot\":\"{}\"}}", name(TIP));
    files.insert("refs/branch.main/ref.json".to_owned(), reference.into_bytes());
    let snapshot = snapshot_v1(|_, _| {});
    files.insert(format!("snapshots/{}", name(TIP)), snapshot);
    files
}

fn snapshot_v1(change: impl FnOnce(&mut Builder, &mut Fields)) -> Vec<u8> {
    let mut b = Builder::new();
    let root = node(&mut b, 0, &Node::group("/"));
    let nodes = [table(&mut b, &root)];
    let file = snapshot(TIP, &nodes, b, |b, fields| {
        fields.remove(&7);
        fields.insert(1, Field::Id(FIRST));
        change(b, fields);
    });
    // The same but for the version.
    let mut file = file;
    file[36] = 1;
    file
}

pub fn references() -> Vec<Expanding> {
    let snapshot = format!("\"snapshot\":\"{}\"", name(TIP));
    let texts = [
        ("numbers", format!("{{{snapshot},\"x\":[{}0]}}", "0,".repeat(1 << 20))),
        ("lists", format!("{{{snapshot},\"x\":[{}0]}}", "[],".repeat(1 << 20))),
        ("a long text", format!("{{\"snapshot\":\"{}\"}}", "x".repeat(8 << 20))),
        ("members", format!("{{{snapshot}{}}}", (0..200_000).map(|n| format!(",\"{n}\":0")).collect::<String>())),
        ("brackets", "[".repeat(8 << 20)),
    ];
    let one = |(what, text): (&str, String)| {
        let mut files = version_1();
        files.insert("refs/branch.main/ref.json".to_owned(), text.into_bytes());
        Expanding::new(format!("ref.json: {what}"), files)
    };
    texts.into_iter().map(one).collect()
}

pub fn snapshots() -> Vec<Expanding> {
    let key = format!("snapshots/{}", name(TIP));
    let mut all = Vec::new();
    let mut add = |what: &str, file: Vec<u8>| all.push(with(what, &key, file));
    let with_nodes = |nodes: &dyn Fn(&mut Builder) -> Vec<Part>| {
        let mut b = Builder::new();
        let nodes = nodes(&mut b);
        snapshot(TIP, &nodes, b, |_, _| {})
    };
    for (what, value) in flexbuffers() {
        let change = |b: &mut Builder, fields: &mut Fields| {
            let part = metadata(b, &value);
            fields.insert(5, Field::At(part));
        };
        let mut b = Builder::new();
        let root = node(&mut b, 0, &Node::group("/"));
        let nodes = [table(&mut b, &root)];
        add(&format!("metadata of a snapshot: {what}"), snapshot(TIP, &nodes, b, change));
    }
    let change = |b: &mut Builder, fields: &mut Fields| {
        let part = text(b, &"m".repeat(32 << 20));
        fields.insert(4, Field::At(part));
    };
    add("message of a snapshot", snapshot(TIP, &[], Builder::new(), change));
    let shared_document = |b: &mut Builder| {
        let long = format!(r#"{{"zarr_format":3,"node_type":"group","attributes":{{"a":"{}"}}}}"#, "x".repeat(1 << 20));
        let document = plain(b, long.as_bytes());
        let one = |n| {
            let mut fields = node(b, n, &Node::group(&format!("/g{n:03}")));
            fields.insert(2, Field::At(document));
            table(b, &fields)
        };
        (0..60).map(one).collect()
    };
    add("60 nodes that share a document", with_nodes(&shared_document));
    let same = |b: &mut Builder| {
        let fields = node(b, 1, &Node::array("/a", array(&[]).as_bytes()));
        vec![table(b, &fields); 400_000]
    };
    add("a node very many times", with_nodes(&same));
    for (count, levels) in [(500, 500), (12, 2040), (1, 1 << 20)] {
        let deep = |b: &mut Builder| -> Vec<Part> {
            let one = |n| {
                let fields = node(b, n, &Node::group(&format!("/{n:03}{}", "/g".repeat(levels))));
                table(b, &fields)
            };
            (0..count).map(one).collect()
        };
        add(&format!("{count} paths of {levels} levels"), with_nodes(&deep));
    }
    let nested = |b: &mut Builder| -> Vec<Part> {
        let one = |n| {
            let fields = node(b, n, &Node::group(&format!("/{}", vec!["group"; n + 1].join("/"))));
            table(b, &fields)
        };
        (0..500).map(one).collect()
    };
    add("500 nested groups", with_nodes(&nested));
    let many = |b: &mut Builder| -> Vec<Part> {
        let data = table(b, &Fields::new());
        let document = plain(b, GROUP);
        let one = |n| {
            let path = text(b, &format!("/{n:06}"));
            let fields = [
                (0, Field::Node(node_id(n))),
                (1, Field::At(path)),
                (2, Field::At(document)),
                (3, Field::Byte(2)),
                (4, Field::At(data)),
            ];
            table(b, &Fields::from(fields))
        };
        (0..100_000).map(one).collect()
    };
    add("100,000 groups", with_nodes(&many));
    // Parts of an array.
    for what in ["manifests", "extents", "names", "a long name", "dimensions"] {
        let parts = |b: &mut Builder| -> Vec<Part> {
            let mut data = array_data(b, &[MANIFEST]);
            match what {
                "manifests" | "extents" => {
                    let (count, rank) = if what == "manifests" { (100_000, 1) } else { (60, 200_000) };
                    let extents = plain(b, &vec![Raw(*b"\0\0\0\0\xff\xff\xff\xff"); rank]);
                    let reference = table(b, &Fields::from([(0, Field::Id(MANIFEST)), (1, Field::At(extents))]));
                    let part = list(b, &vec![reference; count]);
                    data.insert(2, Field::At(part));
                }
                "dimensions" => {
                    let dimension = table(b, &Fields::from([(0, Field::Long(4)), (1, Field::Int(4))]));
                    let part = list(b, &vec![dimension; 200_000]);
                    data.insert(3, Field::At(part));
                }
                _ => {
                    let (count, length) = if what == "names" { (200_000, 1) } else { (60, 1 << 20) };
                    let dimension = text(b, &"n".repeat(length));
                    let dimension = table(b, &Fields::from([(0, Field::At(dimension))]));
                    let part = list(b, &vec![dimension; count]);
                    data.insert(1, Field::At(part));
                }
            }
            let data = table(b, &data);
            let one = |n| {
                let mut fields = node(b, n, &Node::array(&format!("/a{n:03}"), array(&[]).as_bytes()));
                fields.insert(4, Field::At(data));
                table(b, &fields)
            };
            (0..50).map(one).collect()
        };
        add(&format!("50 arrays that share {what}"), with_nodes(&parts));
    }
    let change = |b: &mut Builder, fields: &mut Fields| {
        let info = table(b, &Fields::from([(0, Field::Id(MANIFEST)), (1, Field::Long(100)), (2, Field::Int(1))]));
        let part = list(b, &vec![info; 400_000]);
        fields.insert(7, Field::At(part));
    };
    add("a manifest very many times", snapshot(TIP, &[], Builder::new(), change));
    all
}

/// Adds a reference to a chunk.
fn chunk(b: &mut Builder, coords: Part, more: &Fields) -> Part {
    let mut fields = Fields::from([(0, Field::At(coords))]);
    fields.extend(more);
    table(b, &fields)
}

/// Adds the references of an array.
fn references_of(b: &mut Builder, node: [u8; 8], references: &[Part]) -> Part {
    let references = list(b, references);
    table(b, &Fields::from([(0, Field::Node(node)), (1, Field::At(references))]))
}

pub fn manifests() -> Vec<Expanding> {
    let mut all = Vec::new();
    let document = array(&[("shape", "[4000000000]")]);
    let mut b = Builder::new();
    let nodes = [Node::group("/"), Node::array("/a", document.as_bytes())];
    let parts = [0, 1].map(|at| {
        let mut fields = node(&mut b, at, &nodes[at]);
        if at == 1 {
            let data = array_data(&mut b, &[MANIFEST]);
            fields.insert(4, Field::At(table(&mut b, &data)));
        }
        table(&mut b, &fields)
    });
    let newest = snapshot(TIP, &parts, b, |_, _| {});
    let mut add = |what: String, file: Vec<u8>| {
        let mut one = with(&what, &format!("manifests/{}", name(MANIFEST)), file);
        one.files.insert(format!("snapshots/{}", name(TIP)), newest.clone());
        all.push(one);
    };
    let of_array = |references: &dyn Fn(&mut Builder) -> Vec<Part>, change: &dyn Fn(&mut Builder, &mut Fields)| {
        let mut b = Builder::new();
        let references = references(&mut b);
        let array = references_of(&mut b, node_id(1), &references);
        manifest(b, &[array], |b, fields| change(b, fields))
    };
    let unchanged = |_: &mut Builder, _: &mut Fields| {};
    // Chunks of their own coordinates that share what they refer to.
    let shared = |count: u32, part: &dyn Fn(&mut Builder) -> Fields| {
        of_array(
            &|b| {
                let fields = part(b);
                (0..count)
                    .map(|n| {
                        let coords = plain(b, &[n]);
                        chunk(b, coords, &fields)
                    })
                    .collect()
            },
            &unchanged,
        )
    };
    for (count, length) in [(60, 8 << 20), (60_000, 1000)] {
        add(
            format!("{count} inline chunks of {length} bytes"),
            shared(count, &|b| {
                let bytes = plain(b, &vec![7_u8; length]);
                Fields::from([(1, Field::At(bytes)), (3, Field::Long(length as u64))])
            }),
        );
        for tag in [false, true] {
            add(
                format!("{count} locations of {length} bytes, tags: {tag}"),
                shared(count, &|b| {
                    let location = text(b, &format!("s3://bucket/{}", "x".repeat(length)));
                    let mut fields = Fields::from([(2, Field::Long(1)), (3, Field::Long(1)), (5, Field::At(location))]);
                    if tag {
                        fields.insert(6, Field::At(location));
                    }
                    fields
                }),
            );
        }
    }
    let same = |b: &mut Builder| {
        let coords = plain(b, &[0_u32]);
        let reference = chunk(b, coords, &Fields::from([(3, Field::Long(1)), (4, Field::Id([1; 12]))]));
        vec![reference; 400_000]
    };
    add("a reference very many times".to_owned(), of_array(&same, &unchanged));
    let ranks = |b: &mut Builder| {
        let coords = plain(b, &vec![0_u32; 1 << 18]);
        vec![chunk(b, coords, &Fields::from([(3, Field::Long(1)), (4, Field::Id([1; 12]))])); 60]
    };
    add("coordinates of very many dimensions".to_owned(), of_array(&ranks, &unchanged));
    // Lists of references that are not sorted, very many times.
    let mut b = Builder::new();
    let parts = [2_u32, 1].map(|n| {
        let coords = plain(&mut b, &[n]);
        chunk(&mut b, coords, &Fields::from([(3, Field::Long(1)), (4, Field::Id([1; 12]))]))
    });
    let array = references_of(&mut b, node_id(1), &parts);
    add("unsorted arrays".to_owned(), manifest(b, &vec![array; 400_000], |_, _| {}));
    // Compressed locations: dictionaries, frames and windows.
    let dictionaries: [(&str, Vec<u8>); 2] =
        [("a short one", b"s3://bucket/".repeat(20)), ("32 MiB", vec![b'x'; 32 << 20])];
    for (what, dictionary) in dictionaries {
        let frames = [
            (
                "a location",
                zstd::bulk::Compressor::with_dictionary(3, &dictionary).unwrap().compress(b"s3://bucket/a").unwrap(),
            ),
            ("64 MiB", frame_of(64 << 20, 27, true)),
            ("64 MiB, unstated", frame_of(64 << 20, 27, false)),
        ];
        for (which, frame) in frames {
            let references = |b: &mut Builder| -> Vec<Part> {
                let location = plain(b, &frame);
                let fields = Fields::from([(3, Field::Long(1)), (8, Field::At(location))]);
                (0..2000_u32)
                    .map(|n| {
                        let coords = plain(b, &[n]);
                        chunk(b, coords, &fields)
                    })
                    .collect()
            };
            let change = |b: &mut Builder, fields: &mut Fields| {
                let part = plain(b, &dictionary);
                fields.extend([(2, Field::At(part)), (3, Field::Byte(1))]);
            };
            add(format!("dictionary: {what}, location: {which}"), of_array(&references, &change));
        }
    }
    all
}

pub fn logs() -> Vec<Expanding> {
    let key = format!("transactions/{}", name(TIP));
    let mut all = Vec::new();
    let mut add = |what: String, file: Vec<u8>| all.push(with(&what, &key, file));
    for number in 1..=6 {
        let change = |b: &mut Builder, fields: &mut Fields| {
            let nodes: Vec<Raw<8>> = (0..400_000).map(|n| Raw(node_id(n))).collect();
            let part = plain(b, &nodes);
            fields.insert(number, Field::At(part));
        };
        add(format!("a million nodes in list {number}"), log(Builder::new(), change));
    }
    let change = |b: &mut Builder, fields: &mut Fields| {
        let nodes: Vec<Raw<8>> = (0..400_000).map(|n| Raw(node_id(n))).collect();
        let part = plain(b, &nodes);
        fields.extend((1..=6).map(|number| (number, Field::At(part))));
    };
    add("a million nodes in each list".to_owned(), log(Builder::new(), change));
    for (arrays, chunks, rank) in [(1, 200_000, 1), (400_000, 1, 1), (50, 1, 1 << 20), (1, 200_000, 12)] {
        let change = |b: &mut Builder, fields: &mut Fields| {
            let one = |n: usize| {
                let coords = plain(b, &vec![n as u32; rank]);
                table(b, &Fields::from([(0, Field::At(coords))]))
            };
            let chunks: Vec<Part> = (0..chunks).map(one).collect();
            let chunks = list(b, &chunks);
            let array = table(b, &Fields::from([(0, Field::Node(node_id(1))), (1, Field::At(chunks))]));
            let part = list(b, &vec![array; arrays]);
            fields.insert(7, Field::At(part));
        };
        add(format!("{chunks} chunks of {rank} dimensions in {arrays} arrays"), log(Builder::new(), change));
    }
    for (count, length) in [(400_000, 2), (60, 8 << 20)] {
        let change = |b: &mut Builder, fields: &mut Fields| {
            let from = text(b, &format!("/{}", "f".repeat(length)));
            let to = text(b, "/a");
            let moved = Fields::from([
                (0, Field::At(from)),
                (1, Field::At(to)),
                (2, Field::Node(node_id(1))),
                (3, Field::Byte(0)),
            ]);
            let moved = table(b, &moved);
            let part = list(b, &vec![moved; count]);
            fields.insert(8, Field::At(part));
        };
        add(format!("{count} moves of {length} bytes"), log(Builder::new(), change));
    }
    all
}

/// Returns a frame of `length` zeroes with a window of 2 to the power of `window_log`.
fn frame_of(length: u64, window_log: u32, says_so: bool) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(window_log).unwrap();
    if says_so {
        encoder.set_pledged_src_size(Some(length)).unwrap();
    }
    std::io::copy(&mut std::io::repeat(0).take(length), &mut encoder).unwrap();
    encoder.finish().unwrap()
}

/// Frames of every file that decompress to much, or claim to, or ask for large windows.
pub fn frames() -> Vec<Expanding> {
    let zeroes = |says_so| frame_of(300 << 20, 21, says_so);
    let mut many = Vec::new();
    let one = frame_of(1 << 20, 20, false);
    (0..300).for_each(|_| many.write_all(&one).unwrap());
    let mut skippable = Vec::new();
    for _ in 0..100_000 {
        skippable.extend(0x184D_2A50_u32.to_le_bytes());
        skippable.extend(0_u32.to_le_bytes());
    }
    let bodies = [
        ("zeroes, stated", zeroes(true)),
        ("zeroes, unstated", zeroes(false)),
        ("300 frames", many),
        ("a window of 128 MiB", frame_of(1 << 20, 27, false)),
        ("a window of 2 GiB", frame_with_window(31)),
        ("an impossible claim", [b"\x28\xb5\x2f\xfd\xe0".as_slice(), &u64::MAX.to_le_bytes(), b"\x01\0\0"].concat()),
        ("skippable frames", skippable),
    ];
    let mut all = Vec::new();
    for (what, body) in &bodies {
        for (kind, key) in [
            (6, "repo".to_owned()),
            (1, format!("snapshots/{}", name(TIP))),
            (2, format!("manifests/{}", name(MANIFEST))),
            (4, format!("transactions/{}", name(TIP))),
        ] {
            all.push(with(&format!("frame of type {kind}: {what}"), &key, file_around(2, kind, 1, body)));
        }
    }
    all
}

/// Returns a frame of one empty block whose header asks for a window of 2 to the power of `log`.
fn frame_with_window(log: u8) -> Vec<u8> {
    vec![0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3, 1, 0, 0]
}

/// Metadata of version 1.
pub fn message_pack() -> Vec<Expanding> {
    let mut values: Vec<(String, Vec<u8>)> = MESSAGE_PACK
        .iter()
        .map(|value| (format!("a list of {value:02x?}"), message_pack_list(2 << 20, value)))
        .collect();
    let map: Vec<u8> = (0..200_000_u32)
        .flat_map(|n| [&[0xa4], format!("{n:04x}").as_bytes().get(..4).unwrap(), &[0xc0]].concat())
        .collect();
    values.push(("a map".to_owned(), [&[0xdf], 200_000_u32.to_be_bytes().as_slice(), &map].concat()));
    values.push(("a claim".to_owned(), message_pack_claim(u32::MAX)));
    values.push(("claims in claims".to_owned(), message_pack_claim(1 << 20).repeat(100)));
    values.push(("deep lists".to_owned(), [0x91_u8].repeat(1 << 20)));
    values.push((
        "a long text".to_owned(),
        [&[0xdb], (8_u32 << 20).to_be_bytes().as_slice(), &vec![b'x'; 8 << 20]].concat(),
    ));
    values.push(("bytes".to_owned(), [&[0xc6], (2_u32 << 20).to_be_bytes().as_slice(), &vec![0; 2 << 20]].concat()));
    let mut all = Vec::new();
    for (what, value) in values {
        // A few kinds suffice for many items: each is refused for the sum.
        let counts: &[usize] = if ["a map", "a long text"].contains(&what.as_str()) { &[1, 60] } else { &[1] };
        for &shared in counts {
            let change = |b: &mut Builder, fields: &mut Fields| {
                let part = plain(b, &value);
                let items: Vec<Part> = (0..shared)
                    .map(|n| {
                        let key = text(b, &format!("{n}"));
                        table(b, &Fields::from([(0, Field::At(key)), (1, Field::At(part))]))
                    })
                    .collect();
                let items = list(b, &items);
                fields.insert(5, Field::At(items));
            };
            let mut files = version_1();
            files.insert(format!("snapshots/{}", name(TIP)), snapshot_v1(change));
            all.push(Expanding::new(format!("{shared} items of metadata of version 1: {what}"), files));
        }
    }
    all
}

/// Files of releases before 0.2, each alone: under `snapshot`, `manifest` or `attributes`, in JSON
/// and in MessagePack.
pub fn alpha() -> Vec<Expanding> {
    let mut all = Vec::new();
    let mut add = |kind: &str, what: &str, text: &str| {
        let packed = rmp_serde::to_vec(&serde_json::from_str::<serde_json::Value>(text).unwrap()).unwrap();
        for (encoding, bytes) in [("JSON", text.as_bytes().to_vec()), ("MessagePack", packed)] {
            let files = BTreeMap::from([(kind.to_owned(), bytes)]);
            all.push(Expanding::new(format!("{kind} before 0.2 in {encoding}: {what}"), files));
        }
    };
    for value in JSON {
        // The values that take most memory suffice to reach the bound.
        let long = if LARGEST.contains(&value) { 1 << 20 } else { 1 << 16 };
        let numbers = json_list(value, long);
        let members = json_map(value, long);
        for member in ["shape", "fill_value", "chunk_shape", "codecs", "storage_transformers", "dimension_names"] {
            add("snapshot", &format!("{member}: list of {value}"), &alpha_snapshot(&[(member, &numbers)]));
        }
        for member in ["properties", "Inline", "extents", "manifests", "short_term_history", "nodes"] {
            add("snapshot", &format!("{member}: list of {value}"), &alpha_snapshot(&[(member, &numbers)]));
            add("snapshot", &format!("{member}: members {value}"), &alpha_snapshot(&[(member, &members)]));
        }
        add("attributes", &format!("list of {value}"), &numbers);
        add("attributes", &format!("members {value}"), &members);
    }
    let commit = r#"{"id":[1,2,3,4,5,6,7,8,9,10,11,12],"written_at":"2024-09-10T00:00:00Z","message":""}"#;
    add("snapshot", "a long history", &alpha_snapshot(&[("short_term_history", &json_list(commit, 4 << 20))]));
    let group = r#"{"id":1,"path":"/","user_attributes":null,"node_data":"Group"}"#;
    add("snapshot", "many groups", &alpha_snapshot(&[("nodes", &json_map(group, 4 << 20))]));
    let manifest = r#"{"object_id":[1,2,3,4,5,6,7,8,9,10,11,12],"flags":[],"extents":[[],[]]}"#;
    add("snapshot", "many manifests", &alpha_snapshot(&[("manifests", &json_list(manifest, 4 << 20))]));
    for chunk in [
        r#"{"Inline":[]}"#,
        r#"{"Virtual":["x",0,1]}"#,
        r#"{"Ref":{"id":[1,2,3,4,5,6,7,8,9,10,11,12],"offset":0,"length":1}}"#,
    ] {
        let chunks: Vec<String> = (0..30_000).map(|n| format!("\"[1,[{n}]]\":{chunk}")).collect();
        add("manifest", &format!("many of {chunk}"), &format!("{{\"chunks\":{{{}}}}}", chunks.join(",")));
        let coords = vec!["0"; 200_000].join(",");
        add("manifest", "many coordinates", &format!("{{\"chunks\":{{\"[1,[{coords}]]\":{chunk}}}}}"));
    }
    let bytes = format!("{{\"chunks\":{{\"[1,[0]]\":{{\"Inline\":[{}0]}}}}}}", "0,".repeat(2 << 20));
    add("manifest", "a long inline chunk", &bytes);
    for (kind, count) in [("snapshot", 2 << 20), ("manifest", 2 << 20), ("attributes", 2 << 20)] {
        for (what, bytes) in [
            ("claims", message_pack_claim(u32::MAX)),
            ("claims in claims", message_pack_claim(1 << 20).repeat(100)),
            ("deep lists", vec![0x91; 1 << 20]),
            ("a list of nothing", message_pack_list(count, &[0xc0])),
            (
                "members of a snapshot that claim",
                [&[0x9b_u8, 0x01, 0x80][..], &message_pack_claim(u32::MAX).repeat(8)].concat(),
            ),
        ] {
            let files = BTreeMap::from([(kind.to_owned(), bytes)]);
            all.push(Expanding::new(format!("{kind} before 0.2: {what}"), files));
        }
    }
    all
}

/// Returns a snapshot of the first layout, with other values of members.
fn alpha_snapshot(changed: &[(&str, &str)]) -> String {
    let value = |name: &str, usual: &str| {
        changed.iter().find(|(changed, _)| *changed == name).map_or(usual, |(_, value)| value).to_owned()
    };
    let id = "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]";
    let commit = format!(r#"{{"id":{id},"written_at":"2024-09-10T00:00:00Z","message":"m"}}"#);
    let array = format!(
        r#"{{"shape":{},"data_type":"int8","fill_value":{},"chunk_shape":{},"codecs":{},"chunk_key_encoding":"Slash",
        "storage_transformers":{},"dimension_names":{}}}"#,
        value("shape", "[4]"),
        value("fill_value", "{\"Int8\":1}"),
        value("chunk_shape", "[2]"),
        value("codecs", "[]"),
        value("storage_transformers", "null"),
        value("dimension_names", "[\"x\"]"),
    );
    let manifest = format!(r#"{{"object_id":{id},"flags":[],"extents":{}}}"#, value("extents", "[[0],[2]]"));
    let manifests = value("manifests", &format!("[{manifest}]"));
    let nodes = format!(
        r#"{{"/":{{"id":1,"path":"/","user_attributes":{{"Inline":{}}},"node_data":"Group"}},
        "/x":{{"id":2,"path":"/x","user_attributes":null,"node_data":{{"Array":[{array},{manifests}]}}}}}}"#,
        value("Inline", "{}"),
    );
    format!(
        r#"{{"total_parents":2,"short_term_parents":2,"started_at":"2024-09-10T00:00:00Z","properties":{},
        "short_term_history":{},"metadata":{commit},"nodes":{}}}"#,
        value("properties", "{}"),
        value("short_term_history", "[]"),
        value("nodes", &nodes),
    )
}
