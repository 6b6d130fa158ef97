//! Measures commits. `cargo bench --bench commit [DIRECTORY]`: the directory selects the disk.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use icechunkfs::commit::changes::{ChangeSet, ChunkChange, ChunkFile, WrittenNode};
use icechunkfs::commit::engine::{CommitOutcome, Engine, EngineOptions, Request};
use icechunkfs::commit::progress::CommitProgress;
use icechunkfs::format::chunk_payload::ChunkPayload;
use icechunkfs::format::ids::{NodeId, ObjectId};
use icechunkfs::format::repo_state::Operation;
use icechunkfs::format::snapshot::Snapshot;
use icechunkfs::format::transaction_log::Move;
use icechunkfs::reader::Reader;
use icechunkfs::reader::memory::Budget;
use icechunkfs::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs::storage::{self, Storage};
use icechunkfs::times::system_clock;
use icechunkfs::zarr::Coords;
use serde_json::{Value, json};

const NODE: NodeId = NodeId([7; 8]);

struct Bench {
    directory: tempfile::TempDir,
    storage: Arc<dyn Storage>,
    engine: Engine,
}

impl Bench {
    async fn new(disk: &Path, config: Option<Value>) -> Self {
        let directory = tempfile::tempdir_in(disk).unwrap();
        std::fs::create_dir(directory.path().join("repo")).unwrap();
        std::fs::create_dir(directory.path().join("scratch")).unwrap();
        let storage = storage::open_directory(&directory.path().join("repo")).unwrap();
        icechunkfs::repo::create::create(&*storage, true, system_clock).await.unwrap();
        if let Some(config) = config {
            let bytes = flexbuffers::to_vec(&config).unwrap();
            let set = |state: &mut icechunkfs::format::repo_state::RepoState| {
                state.config = Some(bytes.clone());
                Ok(Operation::ConfigChanged)
            };
            icechunkfs::repo::update::update(&*storage, system_clock, set).await.unwrap();
        }
        let reader = Arc::new(Reader::new(Arc::clone(&storage), Budget::new(512 << 20, 0).unwrap()));
        let engine = Engine::new(Arc::clone(&storage), reader, system_clock, EngineOptions::default());
        Bench { directory, storage, engine }
    }

    async fn tip(&self) -> Arc<Snapshot> {
        let repository = Repository::open(Arc::clone(&self.storage)).await.unwrap();
        let tip = repository.branch_tip("main").await.unwrap().unwrap();
        Arc::new(repository.snapshot(tip, MAX_SNAPSHOT).await.unwrap())
    }

    async fn commit(&self, changes: &ChangeSet) -> Duration {
        let base = self.tip().await;
        let request = Request { branch: "main".into(), message: "bench".into(), ..Request::default() };
        let start = Instant::now();
        let outcome = self.engine.commit(&base, changes, &request, &CommitProgress::default()).await.unwrap();
        assert!(matches!(outcome, CommitOutcome::Committed { .. }));
        start.elapsed()
    }

    /// Creates files in scratch, as programs leave them: written, and not flushed.
    fn files(&self, count: u32, size: usize) -> impl Iterator<Item = (Coords, ChunkChange)> {
        let place = self.directory.path().join("scratch");
        let directory = Arc::new(OwnedFd::from(File::open(&place).unwrap()));
        let mut bytes = vec![0_u8; size];
        let mut state = 1_u64;
        for n in 0..count {
            for word in bytes.chunks_mut(8) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
            }
            std::fs::write(place.join(n.to_string()), &bytes).unwrap();
        }
        (0..count).map(move |n| {
            let directory = Arc::clone(&directory);
            let name = n.to_string();
            (
                Coords::from_slice(&[n]),
                ChunkChange::File(ChunkFile { directory, name, length: size as u64, can_link: true }),
            )
        })
    }

    fn objects(&self) -> usize {
        std::fs::read_dir(self.directory.path().join("repo/chunks")).map_or(0, Iterator::count)
    }
}

fn array(grid: &[u32]) -> WrittenNode {
    let document = json!({
        "zarr_format": 3, "node_type": "array", "shape": grid, "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": vec![1; grid.len()]}},
        "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}],
    });
    WrittenNode { id: NODE, path: "/a".into(), zarr_json: document.to_string().into(), is_array: true }
}

fn a_million() -> ChangeSet {
    let chunks = (0..100_u32).flat_map(|i| (0..100).flat_map(move |j| (0..100).map(move |k| [i, j, k])));
    let stored = |coords: [u32; 3]| {
        let payload = ChunkPayload::Native { chunk: ObjectId::random().unwrap(), offset: 0, length: 4 << 20 };
        (Coords::from_slice(&coords), ChunkChange::Stored(payload))
    };
    ChangeSet {
        created: vec![array(&[100, 100, 100])],
        chunks: [(NODE, chunks.map(stored).collect())].into(),
        ..ChangeSet::default()
    }
}

fn one(n: u32) -> ChangeSet {
    let change = ChunkChange::Stored(ChunkPayload::Inline(Bytes::from(vec![1; 8])));
    ChangeSet { chunks: [(NODE, [(Coords::from_slice(&[n, 50, 50]), change)].into())].into(), ..ChangeSet::default() }
}

fn say(what: &str, all: &mut [Duration]) {
    all.sort();
    println!("{what}: {:?} (best {:?})", all[all.len() / 2], all[0]);
}

async fn manifests(disk: &Path) {
    let split = json!({"manifest": {"splitting": {"split_sizes":
        [["any_array", [{"condition": {"Axis": 0}, "num_chunks": 1}]]]}}});
    for (name, config) in [("one manifest", None), ("100 manifests", Some(split))] {
        let bench = Bench::new(disk, config).await;
        let first = bench.commit(&a_million()).await;
        println!("a million references in {name}, first commit: {first:?}");
        let mut times = Vec::new();
        for n in 0..9 {
            times.push(bench.commit(&one(n)).await);
        }
        say(&format!("one chunk of a million, {name}"), &mut times);
        let moved = Move { from: "/a".into(), to: "/b".into(), node: NODE, is_array: true };
        let moved = bench.commit(&ChangeSet { moved: vec![moved], ..ChangeSet::default() }).await;
        println!("moving it: {moved:?}");
    }
}

async fn chunks(disk: &Path) {
    // Removed at the end: ext4 searches long for inodes that were not freed within the last
    // seconds.
    let mut used = Vec::new();
    for (count, size) in [(128, 4 << 20), (100_000, 4096), (100_000, 400)] {
        let mut times = Vec::new();
        let mut objects = 0;
        for _ in 0..3 {
            let bench = Bench::new(disk, None).await;
            let chunks = [(NODE, bench.files(count, size).collect())].into();
            let changes = ChangeSet { created: vec![array(&[count])], chunks, ..ChangeSet::default() };
            times.push(bench.commit(&changes).await);
            objects = bench.objects();
            used.push(bench);
        }
        say(&format!("{count} chunks of {size} bytes, {objects} objects"), &mut times);
    }
}

pub fn main() {
    let disk = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let disk = disk.map_or_else(std::env::temp_dir, Into::into);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        manifests(&disk).await;
        chunks(&disk).await;
    });
}
