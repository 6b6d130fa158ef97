//! Requests of a mount to storage, counted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::distant::{Distant, depth};
use crate::common::{Fixture, FixtureSet, lab};
use async_trait::async_trait;
use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::error::Result;
use icechunkfs::library::open;
use icechunkfs::repo::Repository;
use icechunkfs::repo::refs::RefSpec;
use icechunkfs::storage::{
    self, Capabilities, Content, ListMode, ObjectSource, ReadMode, Removal, Storage, StoredObject, Visitor,
};
use icechunkfs::tree::Kind;
use icechunkfs::tree::directory::{Entry, Extent};

/// A storage that passes requests on and records them. It gives no direct access to files, so that every byte is
/// requested.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn Storage>,
    capabilities: Capabilities,
    requests: Mutex<Vec<String>>,
}

impl Counting {
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
            ReadMode::Range(_) => self.note(format!("range of {}", folder(key))),
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
    let inner = storage::open_directory(&fixture.repository).unwrap();
    Arc::new(Counting { capabilities: Capabilities::new(inner.location()), inner, requests: Mutex::default() })
}

/// From opening to the first byte of a chunk: only the necessary objects.
#[tokio::test]
async fn the_first_byte_of_a_chunk_takes_four_requests() {
    for (name, begin) in
        [("own-v2-basic", vec!["get repo"]), ("own-v1-basic", vec!["get repo", "get refs/branch.main/ref.json"])]
    {
        let storage = counting(&FixtureSet::own().get(name));
        let repository = Repository::open(Arc::clone(&storage) as Arc<dyn Storage>).await.unwrap();
        let tree = open::tree(&repository, &RefSpec::default(), open::MemoryLimits::default()).await.unwrap();
        let mut expected = begin;
        expected.push("get snapshots");
        assert_eq!(storage.take(), expected, "{name}: mounting");

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
        expected.extend(["get manifests", "range of chunks"]);
        assert_eq!(storage.take(), expected, "{name}: to the first byte of {path}");

        // A second lookup at the same place makes no request.
        tree.resolve(&path).await.unwrap();
        tree.read(chunk.inode, 1, 1).await.unwrap();
        assert_eq!(storage.take(), Vec::<String>::new(), "{name}: again");
    }
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
            let (tree, path) = (Arc::clone(&tree), path.clone());
            tokio::spawn(async move { tree.resolve(&path).await.unwrap().size })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(storage.take(), ["get manifests"]);
}

/// Repository of arrays that each have a manifest, as the reference writes them: a walk does not wait for one after the other.
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
    let mut open = vec![icechunkfs::tree::ROOT];
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
