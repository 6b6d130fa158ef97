//! Trees with other units of chunks, over manifests that the reference implementation would not
//! write.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::Tree;
use super::super::tests::{array, entries, files, inline, tree};
use super::{ReshardFinding, Resharding};
use crate::inodes::Ino;
use icechunkfs_base::error::ErrorKind;
use icechunkfs_format::format::testing::{TestNode, TestPayload, TestRefs, group, id, node_id};

const ARRAY_2D: &str = r#"{"zarr_format":3,"node_type":"array","shape":[4,6],"data_type":"int8","codecs":["bytes"],
    "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[1,1]}}}"#;

/// Bytes of chunks by their coordinates.
type Stored = BTreeMap<Vec<u32>, Vec<u8>>;

fn packed(shape: &[u64]) -> Resharding {
    Resharding::Pack(shape.into())
}

/// Returns the array's chunks: all but a few, of different lengths, with the later ones in a second
/// manifest too, where they are stale.
fn chunks() -> (Stored, [(u8, TestRefs); 2]) {
    let all: Stored = (0..24_u8)
        .filter(|n| ![3, 9, 10, 11, 20].contains(n))
        .map(|n| (vec![u32::from(n) / 6, u32::from(n) % 6], vec![n; usize::from(n * 7 % 13)]))
        .collect();
    let text = |bytes: &Vec<u8>| TestPayload::Inline(bytes.clone());
    let first = all.iter().filter(|(coords, _)| coords[1] < 4).map(|(coords, bytes)| (coords.clone(), text(bytes)));
    let second = all.iter().map(|(coords, bytes)| {
        let stale = coords[1] < 4;
        (coords.clone(), if stale { inline("stale, and of another length") } else { text(bytes) })
    });
    let manifests = [(8, (node_id(2), first.collect())), (9, (node_id(2), second.collect()))];
    (all, manifests)
}

async fn made(wanted: Resharding) -> (Stored, Arc<Tree>) {
    let (all, manifests) = chunks();
    let stored = tree(&[group(1, "/"), array(2, "/a", ARRAY_2D, &[8, 9])], manifests).await;
    (all, stored.reshard(wanted).await.unwrap())
}

#[tokio::test]
async fn every_range_of_a_made_shard_is_read() {
    for shape in [[2_u64, 4], [3, 1], [4, 6], [1, 5]] {
        let (all, tree) = made(packed(&shape)).await;
        // The test checks that listings, lookups and attributes agree.
        let shown = files(&tree).await;
        let mut shards = 0;
        for (row, column) in (0..4).flat_map(|row| (0..6).map(move |column| (row, column))) {
            let row = row * shape[0];
            let column = column * shape[1];
            let slots =
                (row..row + shape[0]).flat_map(|y| (column..column + shape[1]).map(move |x| vec![y as u32, x as u32]));
            let mut whole = Vec::new();
            let mut index = Vec::new();
            for slot in slots {
                let chunk = all.get(&slot);
                let entry = chunk.map_or((u64::MAX, u64::MAX), |chunk| (whole.len() as u64, chunk.len() as u64));
                index.extend([entry.0.to_le_bytes(), entry.1.to_le_bytes()].concat());
                whole.extend_from_slice(chunk.map_or(&[], Vec::as_slice));
            }
            let name = format!("a/c/{}/{}", row / shape[0], column / shape[1]);
            if index.iter().all(|byte| *byte == u8::MAX) {
                assert!(!shown.contains_key(&name), "{name}");
                continue;
            }
            let checksum = crc32c::crc32c(&index);
            whole.extend(index);
            whole.extend(checksum.to_le_bytes());
            assert_eq!(shown[&name], Ok(whole.clone()), "{shape:?} {name}");
            let inode = tree.resolve(&name).await.unwrap().inode;
            for start in 0..=whole.len() {
                for length in [1, 2, 7, 40] {
                    let read = tree.read(inode, start as u64, length).await.unwrap();
                    assert!(
                        *read == whole[start..(start + length as usize).min(whole.len())],
                        "{name} {start} {length}"
                    );
                }
            }
            shards += 1;
        }
        assert_eq!(shown.len(), shards + 2, "and two documents: {:?}", shown.keys());
    }
}

#[tokio::test]
async fn pages_of_any_size_list_the_same() {
    for wanted in [packed(&[2, 2]), packed(&[1, 1]), Resharding::Unshard] {
        let (_, tree) = made(wanted).await;
        for path in ["a/c", "a/c/0", "a/c/1"] {
            let inode = tree.resolve(path).await.unwrap().inode;
            let all = entries(&tree, inode, usize::MAX).await;
            for page in 1..4 {
                assert_eq!(entries(&tree, inode, page).await, all, "{path}");
            }
        }
    }
    let flat = ARRAY_2D.replace("\"codecs\"", r#""chunk_key_encoding":{"name":"v2"},"codecs""#);
    let (_, manifests) = chunks();
    let stored = tree(&[group(1, "/"), array(2, "/a", &flat, &[8, 9])], manifests).await;
    let tree = stored.reshard(packed(&[2, 4])).await.unwrap();
    let inode = tree.resolve("a").await.unwrap().inode;
    let names: Vec<String> = entries(&tree, inode, 1).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [".", "..", "zarr.json", "0.0", "0.1", "1.0", "1.1"]);
}

#[tokio::test]
async fn lengths_that_no_file_has_spoil_only_their_shard() {
    let refs = vec![
        (vec![0, 0], TestPayload::Native(id(5), 0, u64::MAX - 5)),
        (vec![0, 1], TestPayload::Native(id(5), 0, 1 << 62)),
        (vec![2, 0], inline("good")),
        (vec![3, 5], TestPayload::Nothing),
        (vec![3, 9], inline("outside the grid")),
    ];
    let stored = tree(&[group(1, "/"), array(2, "/a", ARRAY_2D, &[9])], [(9, (node_id(2), refs))]).await;
    let tree = stored.reshard(packed(&[2, 2])).await.unwrap();
    let shown = files(&tree).await;
    assert_eq!(shown["a/c/0/0"], Err(ErrorKind::Corrupt));
    assert_eq!(shown["a/c/1/0"].as_ref().unwrap()[..4], *b"good");
    assert_eq!(shown["a/c/1/2"].as_ref().unwrap().len(), 4 * 16 + 4, "a chunk without bytes");
    assert_eq!(shown.keys().filter(|key| key.starts_with("a/c")).count(), 3);
    for absent in ["a/c/0/1", "a/c/2/0", "a/c/1/1", "a/c/1/4", "a/c/00/0"] {
        assert_eq!(tree.resolve(absent).await.unwrap_err().kind(), ErrorKind::NotFound, "{absent}");
    }
}

#[tokio::test]
async fn a_huge_sparse_grid_is_listed_at_once() {
    let huge = r#"{"zarr_format":3,"node_type":"array","shape":[4294967295,4294967295,9],"data_type":"int8","codecs":["bytes"],
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[1,1,1]}}}"#;
    let last = u32::MAX - 1;
    let refs =
        vec![(vec![0, 7, 3], inline("one")), (vec![last, 0, 0], inline("two")), (vec![last, last, 8], inline("three"))];
    let manifests = vec![(id(9), vec![(0, u32::MAX); 3])];
    let node = TestNode { id: node_id(2), path: "/a", zarr_json: huge, manifests: Some(manifests) };
    let stored = tree(&[group(1, "/"), node], [(9, (node_id(2), refs))]).await;
    let tree = stored.reshard(packed(&[128, 128, 64])).await.unwrap();
    let shown = files(&tree).await;
    let keys: Vec<&str> = shown.keys().map(String::as_str).collect();
    assert_eq!(keys, ["a/c/0/0/0", "a/c/33554431/0/0", "a/c/33554431/33554431/0", "a/zarr.json", "zarr.json"]);
    assert!(shown["a/c/33554431/33554431/0"].as_ref().unwrap().starts_with(b"three"));
}

#[tokio::test]
async fn what_is_left_as_stored_has_a_reason() {
    let scalar = r#"{"zarr_format":3,"node_type":"array","shape":[],"data_type":"int8","codecs":["bytes"],
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[]}}}"#;
    let nodes = [group(1, "/"), array(2, "/a", ARRAY_2D, &[]), array(3, "/b", scalar, &[]), array(4, "/c", "{", &[])];
    let tree = tree(&nodes, []).await.reshard(packed(&[2])).await.unwrap();
    let (findings, more) = tree.resharded().unwrap().findings();
    let nodes: Vec<_> = findings.iter().map(|ReshardFinding { node, is_stored, .. }| (*node, *is_stored)).collect();
    assert_eq!((nodes, more), (vec![(2, true), (3, true)], 0));
    assert_eq!(tree.resharded().unwrap().reason(2), Some("it has no dimensions"));
    assert_eq!((tree.resharded().unwrap().reason(1), tree.zarr_json(3)), (None, Some(&b"{"[..])));
    assert_eq!(tree.attributes(Ino::ROOT).await.unwrap().inode, Ino::ROOT);
}
