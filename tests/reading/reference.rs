//! Repositories that the reference implementation (the `icechunk` crate) writes during the test,
//! read through mounts.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::lab::{main_branch, session_on};
use crate::common::writing::array;
use crate::common::{self, Mount, block_on, lab, run};
use bytes::Bytes;
use icechunk::format::ChunkIndices;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::format::manifest::ChunkPayload;
use icechunk::{Repository, RepositoryConfig, Store};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tokio::sync::RwLock;

async fn create(path: &Path, version: SpecVersionBin, inline: u16) -> Repository {
    let config = RepositoryConfig { inline_chunk_threshold_bytes: Some(inline), ..Default::default() };
    lab::create(path, version, config).await
}

/// A change of a repository between two commits.
#[derive(Clone, Debug)]
enum Step {
    Group(String),
    Array(String, Vec<u32>),
    Chunk(usize, usize, Vec<u8>),
    DeleteChunk(usize, usize),
    DeleteNode(usize),
    Commit,
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("a"),
        Just("a b"),
        Just("a-b"),
        Just("a.b"),
        Just("ab"),
        Just("c"),
        Just("0"),
        Just("+1"),
        Just("0.0"),
        Just("é"),
        Just("B")
    ]
    .prop_map(str::to_owned)
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(name(), 1..4).prop_map(|parts| parts.join("/"))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => path().prop_map(Step::Group),
        4 => (path(), prop::collection::vec(1..5_u32, 0..4)).prop_map(|(path, grid)| Step::Array(path, grid)),
        10 => (any::<usize>(), any::<usize>(), prop::collection::vec(any::<u8>(), 1..200))
            .prop_map(|(array, chunk, bytes)| Step::Chunk(array, chunk, bytes)),
        2 => (any::<usize>(), any::<usize>()).prop_map(|(array, chunk)| Step::DeleteChunk(array, chunk)),
        1 => any::<usize>().prop_map(Step::DeleteNode),
        1 => Just(Step::Commit),
    ]
}

/// Returns the key of the `n`th chunk of a grid, cyclically.
fn chunk_key(path: &str, grid: &[u32], n: usize) -> String {
    let mut key = format!("{path}/c");
    let mut n = n;
    for length in grid {
        key += &format!("/{}", n % *length as usize);
        n /= *length as usize;
    }
    key
}

/// Applies the steps; steps that the reference refuses (an array below an array's chunk, ...) are
/// skipped.
async fn apply(repository: &Repository, steps: &[Step]) {
    let mut arrays: Vec<(String, Vec<u32>)> = Vec::new();
    let mut session = Arc::new(RwLock::new(repository.writable_session("main").await.unwrap()));
    let mut store = Store::from_session(Arc::clone(&session)).await;
    for step in steps.iter().chain([&Step::Commit]) {
        match step {
            Step::Group(path) => {
                let document = Bytes::from_static(br#"{"zarr_format":3,"node_type":"group"}"#);
                let _ = store.set(&format!("{path}/zarr.json"), document).await;
            }
            Step::Array(path, grid) => {
                // Below an array a node could stand in its chunks' place: the project's own
                // fixtures have those.
                let below = arrays
                    .iter()
                    .any(|(other, _)| path.starts_with(&format!("{other}/")) || other.starts_with(&format!("{path}/")));
                let shape: Vec<u64> = grid.iter().map(|n| u64::from(n * 2)).collect();
                let document = array(&shape, &vec![2; grid.len()]);
                if !below && store.set(&format!("{path}/zarr.json"), document.into()).await.is_ok() {
                    arrays.retain(|(other, _)| other != path);
                    arrays.push((path.clone(), grid.clone()));
                }
            }
            Step::Chunk(array, chunk, bytes) if !arrays.is_empty() => {
                let (path, grid) = &arrays[array % arrays.len()];
                let _ = store.set(&chunk_key(path, grid, *chunk), bytes.clone().into()).await;
            }
            Step::DeleteChunk(array, chunk) if !arrays.is_empty() => {
                let (path, grid) = &arrays[array % arrays.len()];
                let _ = store.delete(&chunk_key(path, grid, *chunk)).await;
            }
            Step::DeleteNode(array) if !arrays.is_empty() => {
                let (path, _) = arrays.swap_remove(array % arrays.len());
                let _ = store.delete(&format!("{path}/zarr.json")).await;
            }
            Step::Commit => {
                // Nothing changed: nothing to commit.
                let _ = session.write().await.commit("step").execute().await;
                session = Arc::new(RwLock::new(repository.writable_session("main").await.unwrap()));
                store = Store::from_session(Arc::clone(&session)).await;
            }
            _ => {}
        }
    }
}

/// Random repositories of both versions show what the reference reads back.
#[test]
fn mounts_of_random_repositories_show_the_keys_of_the_reference() {
    common::watchdog();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 24, failure_persistence: None, max_shrink_iters: 200, ..Config::default() },
        TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]),
    );
    let versions = prop_oneof![Just(SpecVersionBin::V1), Just(SpecVersionBin::V2)];
    let cases = (versions, prop::collection::vec(step(), 1..60), prop_oneof![Just(0_u16), Just(64), Just(512)]);
    let outcome = runner.run(&cases, |(version, steps, inline)| {
        let directory = tempfile::tempdir().unwrap();
        let expected = runtime.block_on(async {
            let repository = create(directory.path(), version, inline).await;
            apply(&repository, &steps).await;
            lab::keys_at(&repository, &main_branch()).await
        });
        let mount = Mount::new(directory.path(), &[]);
        prop_assert_eq!(common::read_files(&mount.path()), expected);
        Ok(())
    });
    outcome.unwrap();
}

/// Edge length of the grid of the large array: a million chunks.
const EDGE: u32 = 100;

/// An array of a million chunks: every one is found, and the daemon's memory stays small.
#[test]
#[ignore = "takes long: scripts/test --full"]
fn a_million_chunks_fit_into_little_memory() {
    common::watchdog();
    let directory = tempfile::tempdir().unwrap();
    block_on(async {
        let repository = create(directory.path(), SpecVersionBin::V2, 512).await;
        let mut session = repository.writable_session("main").await.unwrap();
        let shape = icechunk::format::snapshot::ArrayShape::new([(u64::from(EDGE), EDGE); 3]).unwrap();
        let document = array(&[u64::from(EDGE); 3], &[1; 3]);
        let path: icechunk::format::Path = "/a".try_into().unwrap();
        session.add_array(path.clone(), shape, None, document.into()).await.unwrap();
        for i in 0..EDGE {
            for j in 0..EDGE {
                for k in 0..EDGE {
                    let bytes = Bytes::copy_from_slice(&[i as u8, j as u8, k as u8, 1]);
                    let chunk = Some(ChunkPayload::Inline(bytes));
                    session.set_chunk_ref(path.clone(), ChunkIndices(vec![i, j, k]), chunk).await.unwrap();
                }
            }
        }
        session.commit("a million").execute().await.unwrap();
    });
    let mount = Mount::new(directory.path(), &[]);
    let listed = run(Command::new("find").arg(mount.path()).args(["-type", "f", "-path", "*/c/*", "-printf", "."]));
    assert_eq!(listed.success().len(), EDGE.pow(3) as usize);
    for (i, j, k) in [(0, 0, 0), (99, 99, 99), (50, 1, 98)] {
        let bytes = std::fs::read(mount.path().join(format!("a/c/{i}/{j}/{k}"))).unwrap();
        assert_eq!(bytes, [i, j, k, 1]);
    }
    assert!(!mount.path().join("a/c/100").exists() && !mount.path().join("a/c/0/0/100").exists());
    let peak = peak_memory(&mount);
    println!("the daemon's memory: {} MiB at most", peak >> 20);
    assert!(peak < 150 << 20, "{peak} bytes");
    drop(mount);

    // A bound below the size of the manifest is kept, and reported.
    let small = Mount::new(directory.path(), &["--memory", "24M"]);
    let refused = std::fs::read_dir(small.path().join("a/c")).unwrap().next();
    assert!(refused.is_some_and(|entry| entry.is_err_and(|e| e.raw_os_error() == Some(12))), "ENOMEM");
    assert!(small.log().contains("raise --memory"), "{}", small.log());
    assert!(small.path().join("a/zarr.json").exists());
}

/// Many readers of large chunks that have to come from the disk: the bound is for all memory.
#[test]
fn the_memory_bound_holds_under_many_readers() {
    const CHUNKS: usize = 64;
    const CHUNK: usize = 1 << 20;
    common::watchdog();
    let directory = tempfile::tempdir().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let repository = create(directory.path(), SpecVersionBin::V2, 0).await;
        let (session, store) = session_on(&repository, "main").await;
        let document = array(&[(CHUNKS * CHUNK) as u64], &[CHUNK as u64]);
        store.set("a/zarr.json", document.into()).await.unwrap();
        for n in 0..CHUNKS {
            store.set(&format!("a/c/{n}"), vec![n as u8; CHUNK].into()).await.unwrap();
        }
        session.write().await.commit("large chunks").execute().await.unwrap();
    });
    // The page cache is dropped, so that reads take the path that waits.
    for entry in std::fs::read_dir(directory.path().join("chunks")).unwrap() {
        let file = std::fs::File::open(entry.unwrap().path()).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
    let mount = Mount::new(directory.path(), &["--memory", "16M", "--io", "cached"]);
    let readers: Vec<_> = (0..8)
        .map(|reader| {
            let place = mount.path().join("a/c");
            std::thread::spawn(move || {
                for n in 0..CHUNKS {
                    let n = (n + reader * 8) % CHUNKS;
                    let bytes = std::fs::read(place.join(n.to_string())).unwrap();
                    assert!(bytes.len() == CHUNK && bytes.iter().all(|byte| *byte == n as u8));
                }
            })
        })
        .collect();
    for reader in readers {
        reader.join().unwrap();
    }
    let peak = peak_memory(&mount);
    println!("the daemon's memory: {} KiB at most", peak >> 10);
    assert!(peak < 16 << 20, "{peak} bytes");
}

/// Returns the peak memory of a mount's daemon, in bytes, without its code, which is twice as large
/// as in a release.
fn peak_memory(mount: &Mount) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", mount.daemon())).unwrap();
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let bytes = |name: &str| line(name).trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
    // At the beginning the least of its code is in memory.
    bytes("VmHWM:") - bytes("RssFile:")
}
