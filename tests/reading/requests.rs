//! Requests of a mount to storage, counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use crate::common::distant::{Distant, depth};
use crate::common::{Fixture, FixtureSet, copy_tree, lab};
use async_trait::async_trait;
use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::error::{ErrorKind, Result};
use icechunkfs::format::ids::ObjectId;
use icechunkfs::library::open;
use icechunkfs::reader::memory::Budget;
use icechunkfs::reader::{ChunkRange, Object, Reader};
use icechunkfs::repo::Repository;
use icechunkfs::repo::refs::RefSpec;
use icechunkfs::storage::{
    self, Capabilities, Content, ListMode, ObjectSource, ReadMode, Removal, Storage, StoredObject, Visitor,
};
use icechunkfs::tree::Kind;
use icechunkfs::tree::directory::{Entry, Extent};

/// Each ref of version 1 has a file: they are read at once, not one after another.
#[tokio::test]
async fn many_refs_of_version_1_take_few_round_trips() {
    let directory = tempfile::tempdir().unwrap();
    copy_tree(&FixtureSet::own().get("own-v1-basic").repository, directory.path());
    let refs = directory.path().join("refs");
    let main = std::fs::read(refs.join("branch.main/ref.json")).unwrap();
    for (kind, count) in [("branch", 20), ("tag", 30), ("tag.gone", 10)] {
        for number in 0..count {
            let folder = refs.join(format!("{kind}.many-{number}"));
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("ref.json"), &main).unwrap();
            if kind == "tag.gone" {
                std::fs::write(folder.join("ref.json.deleted"), b"").unwrap();
            }
        }
    }
    let distant = Arc::new(Distant::new(storage::open_directory(directory.path()).unwrap(), Duration::from_millis(20)));
    let repository = Repository::open(Arc::clone(&distant) as Arc<dyn Storage>).await.unwrap();
    distant.take();
    let found = repository.refs().await.unwrap();
    let trips = distant.take();
    assert!(found.branches.len() > 20 && found.tags.len() >= 30, "{found:?}");
    assert!(trips.len() > 50 && depth(&trips) <= 6, "{} in a row of {}", depth(&trips), trips.len());
    let deleted = repository.deleted_tags().await.unwrap();
    let trips = distant.take();
    assert!(deleted.len() >= 10 && depth(&trips) <= 3, "{deleted:?}: {trips:#?}");
}

/// A storage that passes requests on and records them. It gives no direct access to files, so that
/// every byte is requested.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn Storage>,
    capabilities: Capabilities,
    requests: Mutex<Vec<String>>,
    /// Bytes of ranges.
    bytes: AtomicU64,
}

impl Counting {
    fn over(inner: Arc<dyn Storage>) -> Arc<Counting> {
        let capabilities = Capabilities::new(inner.location());
        Arc::new(Counting { capabilities, inner, requests: Mutex::default(), bytes: AtomicU64::new(0) })
    }

    fn note(&self, request: String) {
        self.requests.lock().unwrap().push(request);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

#[async_trait]
impl Storage for Counting {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<StoredObject>> {
        match mode {
            ReadMode::Range(_) => {
                self.bytes.fetch_add(limit, Ordering::Relaxed);
                self.note(format!("range of {}", folder(key)));
            }
            ReadMode::Head => {}
            _ => self.note(format!("get {}", folder(key))),
        }
        self.inner.read(key, limit, mode).await
    }

    async fn store(&self, key: &str, content: Content<'_>) -> Result<()> {
        self.note(format!("put {key}"));
        self.inner.store(key, content).await
    }

    async fn sync(&self, folders: &[&str]) -> Result<()> {
        self.inner.sync(folders).await
    }

    async fn walk(&self, prefix: &str, mode: ListMode, visit: Visitor<'_>) -> Result<()> {
        self.note(format!("list {prefix}"));
        self.inner.walk(prefix, mode, visit).await
    }

    async fn remove(&self, removal: Removal<'_>) -> Result<()> {
        self.inner.remove(removal).await
    }

    async fn locate(&self, _key: &str) -> Result<Option<ObjectSource>> {
        Ok(None)
    }

    async fn check_conditions(&self, key: &str, limit: u64) -> Result<()> {
        self.inner.check_conditions(key, limit).await
    }
}

/// Returns the folder of objects that have ids for names.
fn folder(key: &str) -> &str {
    key.split_once('/').filter(|(folder, _)| *folder != "refs").map_or(key, |(folder, _)| folder)
}

fn counting(fixture: &Fixture) -> Arc<Counting> {
    Counting::over(storage::open_directory(&fixture.repository).unwrap())
}

/// Returns `requests` in their order without those for the configuration of version 1, which is
/// read beside others, and the number of these.
fn beside_config(requests: Vec<String>) -> (Vec<String>, usize) {
    let (config, others): (Vec<String>, Vec<String>) =
        requests.into_iter().partition(|request| request == "get config.yaml");
    (others, config.len())
}

/// From opening to the first byte of a chunk: only the necessary objects.
#[tokio::test]
async fn the_first_byte_of_a_chunk_takes_four_requests() {
    for (name, begin, configs) in
        [("own-v2-basic", vec!["get repo"], 0), ("own-v1-basic", vec!["get repo", "get refs/branch.main/ref.json"], 1)]
    {
        let storage = counting(&FixtureSet::own().get(name));
        let repository = Repository::open(Arc::clone(&storage) as Arc<dyn Storage>).await.unwrap();
        let tree = open::tree(&repository, &RefSpec::default(), open::MemoryLimits::default()).await.unwrap();
        let mut expected: Vec<String> = begin.into_iter().map(String::from).collect();
        expected.push("get snapshots".to_owned());
        let (others, read) = beside_config(storage.take());
        // The configuration is read beside the snapshot, and may be read later than it.
        assert!(others == expected && read <= configs, "{name}: mounting: {others:?}, {read}");

        // Names, documents and their sizes are cached by now.
        let document = tree.resolve("a/b/grid/zarr.json").await;
        let (path, _) = native_chunk(&tree).await;
        if let Ok(document) = document {
            tree.read(document.inode, 0, 100).await.unwrap();
        }
        storage.take();

        let repository = Repository::open(Arc::clone(&storage) as Arc<dyn Storage>).await.unwrap();
        let tree = open::tree(&repository, &RefSpec::default(), open::MemoryLimits::default()).await.unwrap();
        let chunk = tree.resolve(&path).await.unwrap();
        let bytes = tree.read(chunk.inode, 0, u32::MAX).await.unwrap();
        assert_eq!(bytes.len() as u64, chunk.size);
        expected.extend(["get manifests", "range of chunks"].map(String::from));
        let (others, read) = beside_config(storage.take());
        assert!(others == expected && read <= configs, "{name}: to the first byte of {path}: {others:?}, {read}");

        // A second lookup at the same place makes no request.
        tree.resolve(&path).await.unwrap();
        tree.read(chunk.inode, 1, 1).await.unwrap();
        assert_eq!(storage.take(), Vec::<String>::new(), "{name}: again");
    }
}

/// Whatever its generation, a repository that is opened for the first time is open after one round
/// trip.
#[tokio::test]
async fn a_repository_of_any_version_is_open_after_one_round_trip() {
    for name in ["own-v2-basic", "own-v1-basic"] {
        let files = storage::open_directory(&FixtureSet::own().get(name).repository).unwrap();
        let known = Repository::open(Arc::clone(&files)).await.unwrap();
        let distant = Arc::new(Distant::new(files, Duration::from_millis(20)));
        let repository = Repository::open_unknown(Arc::clone(&distant) as Arc<dyn Storage>).await.unwrap();
        let mut trips = distant.take();
        trips.retain(|trip| !trip.what.contains("config.yaml"));
        // The answer to one of them is not waited for.
        assert!(trips.len() <= 2 && depth(&trips) == 1, "{name}: {trips:#?}");
        assert_eq!(repository.version(), known.version(), "{name}");
        let tip = repository.resolve(&RefSpec::default()).await.unwrap();
        assert_eq!(tip, known.resolve(&RefSpec::default()).await.unwrap(), "{name}");
    }
    let empty = tempfile::tempdir().unwrap();
    let error = Repository::open_unknown(storage::open_directory(empty.path()).unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotARepository);
}

/// Returns the path of some chunk that is a separate object.
async fn native_chunk(tree: &icechunkfs::tree::Tree) -> (String, u64) {
    let table = tree.table();
    for node in 0..table.len() as u32 {
        let Some(array) = table.array(node) else { continue };
        let Some(chunks) = tree.chunks(node) else { continue };
        let rank = array.grid.len();
        for (coords, size) in chunks.page(&[], rank, None, 1).await.unwrap() {
            let path = format!("{}/{}", table.path(node), array.encoding.key(&coords));
            let source = tree.source(tree.resolve(&path).await.unwrap().inode).await.unwrap();
            if tree.native_chunk(&source).unwrap().is_some() {
                return (path, size);
            }
        }
    }
    panic!("no native chunk in this fixture");
}

/// Concurrent readers of the same manifest wait for one request.
#[tokio::test]
async fn concurrent_readers_fetch_a_manifest_once() {
    let storage = counting(&FixtureSet::own().get("own-v2-basic"));
    let repository = Repository::open(Arc::clone(&storage) as Arc<dyn Storage>).await.unwrap();
    let tree = open::tree(&repository, &RefSpec::default(), open::MemoryLimits::default()).await.unwrap();
    let (path, _) = native_chunk(&tree).await;
    let tree = open::tree(&repository, &RefSpec::default(), open::MemoryLimits::default()).await.unwrap();
    storage.take();
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let tree = Arc::clone(&tree);
            let path = path.clone();
            tokio::spawn(async move { tree.resolve(&path).await.unwrap().size })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(storage.take(), ["get manifests"]);
}

/// Threads that prefetch the same chunks at the same moment, as the kernel's do, fetch each byte
/// once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_prefetches_fetch_each_byte_once() {
    const CHUNKS: u64 = 64;
    const LENGTH: u64 = 4096;
    let place = tempfile::tempdir().unwrap();
    let id = ObjectId([7; 12]);
    let object: Vec<u8> = (0..CHUNKS * LENGTH).map(|at| (at / 64 * 31 + at) as u8).collect();
    std::fs::create_dir(place.path().join("chunks")).unwrap();
    std::fs::write(place.path().join(format!("chunks/{id}")), &object).unwrap();
    let storage = Counting::over(storage::open_directory(place.path()).unwrap());
    let chunk = |number: u64| ChunkRange { object: Object::Native(id), offset: number * LENGTH, length: LENGTH };
    for round in 0..200 {
        let reader =
            Arc::new(Reader::new(Arc::clone(&storage) as Arc<dyn Storage>, Budget::new(512 << 20, 0).unwrap()));
        let gate = Barrier::new(4);
        let runtime = tokio::runtime::Handle::current();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let reader = &reader;
                let gate = &gate;
                let runtime = &runtime;
                scope.spawn(move || {
                    let _runtime = runtime.enter();
                    let wanted = (thread * 8..CHUNKS).map(|number| (number as usize, chunk(number))).collect();
                    gate.wait();
                    assert_eq!(reader.prefetch(wanted), None);
                });
            }
        });
        for number in 0..CHUNKS {
            let bytes = reader.read(&chunk(number), 0, LENGTH as usize).await.unwrap();
            assert!(*bytes == object[(number * LENGTH) as usize..][..LENGTH as usize], "chunk {number}");
        }
        let fetched = storage.bytes.swap(0, Ordering::Relaxed);
        assert_eq!(fetched, CHUNKS * LENGTH, "round {round}: {:?}", storage.take());
        storage.take();
    }
}

/// Repository of arrays that each have a manifest, as the reference writes them: a walk does not
/// wait for one after the other.
#[tokio::test]
async fn a_walk_loads_small_manifests_ahead() {
    const ARRAYS: usize = 150;
    let place = tempfile::tempdir().unwrap();
    lab::create(place.path(), SpecVersionBin::V2, RepositoryConfig::default()).await;
    let document = lab::array_json(&[4], &[1], "");
    let documents = (0..ARRAYS).map(|n| (format!("g{}/a{n}/zarr.json", n / 50), document.as_bytes()));
    let chunks = (0..ARRAYS).map(|n| (format!("g{}/a{n}/c/1", n / 50), b"chunk".as_slice()));
    let pairs: Vec<(String, &[u8])> = documents.chain(chunks).collect();
    let pairs: Vec<(&str, &[u8])> = pairs.iter().map(|(key, bytes)| (key.as_str(), *bytes)).collect();
    lab::set(place.path(), &pairs, "arrays").await;

    let inner = storage::open_directory(place.path()).unwrap();
    let storage = Arc::new(Distant::new(inner, Duration::from_millis(10)));
    let repository = Repository::open(Arc::clone(&storage) as Arc<dyn Storage>).await.unwrap();
    let tree = open::tree(&repository, &RefSpec::default(), open::MemoryLimits::default()).await.unwrap();
    storage.take();
    // As `find` does it: each directory, and then those in it.
    let mut open = vec![icechunkfs::Ino::ROOT];
    let mut chunks = 0;
    while let Some(directory) = open.pop() {
        let mut below = Vec::new();
        let mut sink = |entry: Entry<'_>| {
            match entry.attributes.kind {
                Kind::Directory if !matches!(entry.name, "." | "..") => below.push(entry.attributes.inode),
                Kind::File if entry.name == "1" => chunks += 1,
                _ => {}
            }
            true
        };
        tree.list(directory, 0, Extent::All, &mut sink).await.unwrap();
        below.reverse();
        open.append(&mut below);
    }
    assert_eq!(chunks, ARRAYS);
    let trips = storage.take();
    let mut read: Vec<&str> = trips.iter().map(|trip| trip.what.as_str()).collect();
    read.sort_unstable();
    read.dedup();
    assert_eq!((read.len(), trips.len()), (ARRAYS, ARRAYS), "each manifest once");
    assert!(depth(&trips) <= ARRAYS / 5, "{} in a row", depth(&trips));

    // A program that looks at arrays here and there loads only theirs.
    let tree = open::tree(&repository, &RefSpec::default(), open::MemoryLimits::default()).await.unwrap();
    for n in [140, 20, 80, 110, 50] {
        let directory = tree.resolve(&format!("g{}/a{n}", n / 50)).await.unwrap();
        tree.list(directory.inode, 0, Extent::All, &mut |_: Entry<'_>| true).await.unwrap();
        tree.resolve(&format!("g{}/a{n}/c/1", n / 50)).await.unwrap();
    }
    assert_eq!(storage.take().len(), 5 + 1, "and the snapshot");
}
