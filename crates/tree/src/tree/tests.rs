//! Trees of files that the reference implementation would not write.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::directory::{Entry, Extent};
use super::nodes::NodeTable;
use super::{Attributes, Kind, Tree};
use crate::inodes::Ino;
use icechunkfs_base::error::ErrorKind;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::testing::{self, TestNode, TestPayload, TestRefs, group, id, node_id};
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::reader::memory::Budget;
use icechunkfs_store::storage::{Condition, empty_storage};

pub(super) const ARRAY_2D: &str = r#"{"zarr_format":3,"node_type":"array","shape":[4,6],"data_type":"int8",
    "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2,2]}}}"#;

pub(super) async fn tree(nodes: &[TestNode<'_>], manifests: impl IntoIterator<Item = (u8, TestRefs)>) -> Arc<Tree> {
    let storage = empty_storage("memory");
    for (manifest, refs) in manifests {
        let bytes = testing::manifest(id(manifest), &[refs]);
        storage.put(&format!("manifests/{}", id(manifest)), bytes.into(), Condition::Always).await.unwrap();
    }
    let snapshot = Snapshot::decode(&testing::snapshot(id(1), nodes), 1 << 20).unwrap();
    let table = NodeTable::build(&snapshot).unwrap();
    let reader = Reader::new(storage, Budget::new(64 << 20, 0).unwrap());
    Arc::new(Tree::new(snapshot, table, Arc::new(reader)))
}

pub(super) fn array<'a>(n: u8, path: &'a str, zarr_json: &'a str, manifests: &[u8]) -> TestNode<'a> {
    let manifests = manifests.iter().map(|&m| (id(m), vec![(0, u32::MAX), (0, u32::MAX)])).collect();
    TestNode { id: node_id(n), path, zarr_json, manifests: Some(manifests) }
}

/// Returns the names in a directory, in the listing's order, from several pages of `page` entries.
pub(super) async fn names(tree: &Arc<Tree>, inode: Ino, page: usize) -> Vec<String> {
    entries(tree, inode, page).await.into_iter().map(|(name, _)| name).collect()
}

pub(super) async fn entries(tree: &Arc<Tree>, inode: Ino, page: usize) -> Vec<(String, Attributes)> {
    let mut out = Vec::new();
    let mut offset = 0;
    loop {
        let mut count = 0;
        let before = offset;
        let mut sink = |entry: Entry<'_>| {
            if count == page {
                return false;
            }
            count += 1;
            offset = entry.offset;
            out.push((entry.name.to_owned(), entry.attributes));
            true
        };
        tree.list(inode, before, Extent::All, &mut sink).await.unwrap();
        if count < page {
            return out;
        }
    }
}

/// Returns all files below the root, with the bytes or the kind of error that reading gives.
pub(super) async fn files(tree: &Arc<Tree>) -> BTreeMap<String, Result<Vec<u8>, ErrorKind>> {
    let mut out = BTreeMap::new();
    let mut open = vec![(String::new(), Ino::ROOT)];
    while let Some((path, inode)) = open.pop() {
        for (name, listed) in entries(tree, inode, 3).await {
            if name == "." || name == ".." {
                continue;
            }
            let child = format!("{path}{name}");
            let found = match tree.lookup(inode, &name).await {
                Ok(found) => found.unwrap(),
                Err(error) => {
                    // Its size is not known.
                    assert_eq!((listed.kind, listed.size), (Kind::File, 0), "{name}");
                    out.insert(child, Err(error.kind()));
                    continue;
                }
            };
            assert_eq!((tree.attributes(found.inode).await.unwrap(), listed), (found, found), "{name}");
            match found.kind {
                Kind::Directory => open.push((child + "/", found.inode)),
                Kind::File => {
                    let read = tree.read(found.inode, 0, u32::MAX).await;
                    out.insert(child, read.map(|data| data.to_vec()).map_err(|e| e.kind()));
                }
            }
        }
    }
    out
}

pub(super) fn inline(text: &str) -> TestPayload {
    TestPayload::Inline(text.as_bytes().to_vec())
}

#[tokio::test]
async fn chunks_outside_the_grid_or_of_a_wrong_rank_do_not_exist() {
    let refs = vec![
        (vec![0], inline("rank 1")),
        (vec![0, 1], inline("yes")),
        (vec![0, 1, 2], inline("rank 3")),
        (vec![0, 3], inline("outside")),
        (vec![0, 9], inline("outside")),
        (vec![1, 2], inline("yes")),
        (vec![2, 0], inline("outside")),
        (vec![u32::MAX, u32::MAX], inline("outside")),
    ];
    let tree = tree(&[group(1, "/"), array(2, "/a", ARRAY_2D, &[9])], [(9, (node_id(2), refs))]).await;
    let shown = files(&tree).await;
    let keys: Vec<&str> = shown.keys().map(String::as_str).collect();
    assert_eq!(keys, ["a/c/0/1", "a/c/1/2", "a/zarr.json", "zarr.json"]);
    for absent in ["a/c/0/3", "a/c/2", "a/c/2/0", "a/c/00", "a/c/0/01", "a/0", "a/c.0.1", "b"] {
        assert_eq!(tree.resolve(absent).await.unwrap_err().kind(), ErrorKind::NotFound, "{absent}");
    }
}

#[tokio::test]
async fn the_first_manifest_that_has_a_chunk_wins() {
    let manifests = [
        (8, (node_id(2), vec![(vec![0, 0], inline("first"))])),
        (9, (node_id(2), vec![(vec![0, 0], inline("stale, and longer")), (vec![1, 1], inline("second"))])),
    ];
    let tree = tree(&[array(2, "/a", ARRAY_2D, &[8, 9])], manifests).await;
    let shown = files(&tree).await;
    assert_eq!(shown["a/c/0/0"], Ok(b"first".to_vec()));
    assert_eq!(shown["a/c/1/1"], Ok(b"second".to_vec()));
    assert_eq!(tree.chunks(1).unwrap().totals().await.unwrap(), (2, 11));
    // The root has no node of its own.
    assert!(!shown.contains_key("zarr.json"));
}

#[tokio::test]
async fn a_reference_to_nothing_and_an_odd_document_affect_no_other_file() {
    let refs = vec![(vec![0, 0], inline("good")), (vec![1, 0], TestPayload::Nothing)];
    let odd = array(5, "/odd", r#"{"node_type":"array","shape":"x"}"#, &[]);
    let tree = tree(&[array(4, "/a", ARRAY_2D, &[7]), odd], [(7, (node_id(4), refs))]).await;
    let shown = files(&tree).await;
    assert_eq!((&shown["a/c/0/0"], &shown["a/c/1/0"]), (&Ok(b"good".to_vec()), &Err(ErrorKind::Corrupt)));
    assert!(shown["odd/zarr.json"].is_ok());
}

#[tokio::test]
async fn hostile_paths_are_left_out_and_the_rest_is_there() {
    let long = format!("/{}/below", "x".repeat(300));
    let nodes = [
        group(9, "/z"),
        group(1, "/"),
        group(2, "/a/../b"),
        group(3, &long),
        group(4, "/nul\0"),
        group(5, "relative"),
        group(6, "/deep/without/parents"),
        group(7, "/z"),
        group(8, "/a"),
    ];
    let tree = tree(&nodes, []).await;
    let shown = files(&tree).await;
    let keys: Vec<&str> = shown.keys().map(String::as_str).collect();
    assert_eq!(keys, ["a/zarr.json", "deep/without/parents/zarr.json", "z/zarr.json", "zarr.json"]);
}

#[tokio::test]
async fn a_node_with_the_id_of_another_is_left_out() {
    let nodes = [
        group(1, "/"),
        array(2, "/a", ARRAY_2D, &[]),
        group(3, "/b"),
        group(3, "/b/b"),
        array(2, "/c", ARRAY_2D, &[]),
        group(4, "/d"),
    ];
    let tree = tree(&nodes, []).await;
    let shown = files(&tree).await;
    assert_eq!(shown.into_keys().collect::<Vec<_>>(), ["a/zarr.json", "b/zarr.json", "d/zarr.json", "zarr.json"]);
    let entries = entries(&tree, Ino::ROOT, 100).await.into_iter().filter(|(name, _)| !name.starts_with('.'));
    let mut numbers: Vec<Ino> = entries.map(|(_, attributes)| attributes.inode).collect();
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count);
}

#[tokio::test]
async fn an_impossible_grid_works_by_table() {
    let huge = r#"{"zarr_format":3,"node_type":"array","shape":[4294967295,4294967295],"data_type":"int8",
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[1,1]}},
        "chunk_key_encoding":{"name":"v2","configuration":{"separator":"."}}}"#;
    let refs: Vec<_> = (0..3000).map(|n| (vec![n * 1_000_000, n], inline(&n.to_string()))).collect();
    let tree = tree(&[array(2, "/a", huge, &[9]), group(3, "/b")], [(9, (node_id(2), refs))]).await;
    let shown = files(&tree).await;
    assert_eq!(shown.len(), 3002);
    assert_eq!(shown["a/2999000000.2999"], Ok(b"2999".to_vec()));
    assert!(shown.contains_key("b/zarr.json"));
}

#[tokio::test]
async fn pages_of_every_size_list_the_same() {
    let refs: Vec<_> = (0..2).flat_map(|i| (0..3).map(move |j| (vec![i, j], inline("x")))).collect();
    let nodes = [group(1, "/"), array(2, "/a", ARRAY_2D, &[9]), group(3, "/a/sub"), group(4, "/a/c/1/deep")];
    let tree = tree(&nodes, [(9, (node_id(2), refs))]).await;
    for (path, expected) in [
        ("a", vec![".", "..", "zarr.json", "c", "sub"]),
        // Nodes below the array show in the same directories as its chunks.
        ("a/c", vec![".", "..", "1", "0"]),
        ("a/c/1", vec![".", "..", "deep", "0", "1", "2"]),
        ("a/c/0", vec![".", "..", "0", "1", "2"]),
    ] {
        let inode = tree.resolve(path).await.unwrap().inode;
        for page in 1..8 {
            assert_eq!(names(&tree, inode, page).await, expected, "{path}, {page} a page");
        }
    }
}
