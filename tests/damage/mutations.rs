//! Damaged copies of every fixture file: whatever they contain, nothing panics, hangs or uses
//! memory without bound.
//!
//! `ICECHUNKFS_MUTATIONS` sets their number (default 500); `scripts/soak` uses many more.
//! `ICECHUNKFS_SEED` repeats a run.
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::common::counted::{Counted, NOW, PEAK};
use crate::common::damage::{change, is_chunk, mutate};
use crate::common::lab;
use crate::common::lengths::{length, number};
use crate::common::random::Random;
use crate::common::shard;
use crate::common::{self, FixtureSet};
use async_trait::async_trait;
use bytes::Bytes;
use icechunkfs::error::{Error, ErrorKind, Result};
use icechunkfs::format::config::RepoConfig;
use icechunkfs::format::config_edit::{self, encode, problems};
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::format::transaction_log::{NodeChange, TransactionLog};
use icechunkfs::library::open;
use icechunkfs::memory::Meter;
use icechunkfs::repo::Repository;
use icechunkfs::repo::refs::RefSpec;
use icechunkfs::stats;
use icechunkfs::storage::settings::Settings;
use icechunkfs::storage::virtuals::permissions::Permissions;
use icechunkfs::storage::{
    Capabilities, Content, ListMode, ObjectInfo, ObjectSource, ReadMode, Removal, Storage, StoredObject, Version,
    Visitor,
};
use icechunkfs::transfer::export;
use icechunkfs::tree::directory::{Entry, Extent};
use icechunkfs::tree::{Kind, Tree};
use icechunkfs::views::native::NativeView;
use icechunkfs::zarr::shard::{Index, ShardLayout};

/// Memory bound of each tree.
pub(super) const MEMORY: u64 = 64 << 20;
/// Bytes beyond that which the whole walk over one mutant may allocate at once.
const SLACK: usize = 64 << 20;
/// Time limit of one mutant.
const DEADLINE: Duration = Duration::from_secs(20);

#[global_allocator]
static ALLOCATOR: Counted = Counted(usize::MAX);

/// Keeps other tests of this process from being measured, too.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static MEASURED: Mutex<()> = Mutex::new(());
    MEASURED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a walk within its limits: the process may use [`MEMORY`].
pub(super) fn bounded() -> open::MemoryLimits {
    icechunkfs::memory::set_bound(MEMORY);
    open::MemoryLimits::default()
}

/// A repository in memory, whose files can be swapped.
#[derive(Debug, Clone)]
pub(super) struct Files(BTreeMap<String, Bytes>);

impl From<BTreeMap<String, Vec<u8>>> for Files {
    fn from(files: BTreeMap<String, Vec<u8>>) -> Self {
        Files(files.into_iter().map(|(key, bytes)| (key, bytes.into())).collect())
    }
}

impl Files {
    fn read(root: &Path) -> Files {
        Files(common::read_files(root).into_iter().map(|(key, bytes)| (key, bytes.into())).collect())
    }

    fn find(&self, key: &str) -> Result<&Bytes> {
        self.0.get(key).ok_or_else(|| Error::new(ErrorKind::NotFound, key))
    }
}

#[async_trait]
impl Storage for Files {
    fn capabilities(&self) -> &Capabilities {
        static CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(|| Capabilities::new("mutant"));
        &CAPABILITIES
    }

    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<StoredObject>> {
        let bytes = self.find(key)?;
        if let ReadMode::Range(offset) = mode {
            let end = offset.checked_add(limit).filter(|end| *end <= bytes.len() as u64);
            let end = end.ok_or_else(|| Error::corrupt("too short"))?;
            return Ok(Some(bytes.slice(offset as usize..end as usize).into()));
        }
        if bytes.len() as u64 > limit {
            return Err(Error::new(ErrorKind::OutOfMemory, key));
        }
        let is_unchanged = matches!(mode, ReadMode::IfChanged(version) if *version == Version::default());
        Ok((!is_unchanged).then(|| bytes.clone().into()))
    }

    async fn store(&self, key: &str, _content: Content<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::PermissionDenied, key))
    }

    async fn sync(&self, _folders: &[&str]) -> Result<()> {
        Ok(())
    }

    async fn walk(&self, prefix: &str, _mode: ListMode, visit: Visitor<'_>) -> Result<()> {
        let mut found = self.0.iter().filter(|(key, _)| key.starts_with(prefix));
        let object =
            |key: &String, bytes: &Bytes| ObjectInfo { key: key.clone(), size: bytes.len() as u64, modified: 0 };
        let _ = found.try_for_each(|(key, bytes)| visit(object(key, bytes)));
        Ok(())
    }

    async fn remove(&self, _removal: Removal<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "mutant"))
    }

    async fn locate(&self, _key: &str) -> Result<Option<ObjectSource>> {
        Ok(None)
    }

    async fn check_conditions(&self, _key: &str, _limit: u64) -> Result<()> {
        Ok(())
    }
}

/// Reads a configuration, and changes it. The rewritten one must have the intended content.
fn change_config(config: &RepoConfig, yaml: Option<&[u8]>) {
    let members = config.members();
    let _ = (problems::find(members), config_edit::all(members));
    let container = r#"{"url_prefix": "s3://a.b/", "store": {"s3": {}}}"#;
    for (key, value) in [("manifest.preload.preload_if", "true"), ("virtual_chunk_containers.ours", container)] {
        let Ok(Some(changed)) = config_edit::set(members, key, value) else { continue };
        if let Ok(text) = encode::yaml(&changed.members, yaml) {
            assert_eq!(RepoConfig::from_yaml(&text).unwrap().members(), &changed.members);
        }
        if let Ok(bytes) = encode::flexbuffer(&changed.members) {
            assert_eq!(RepoConfig::from_flexbuffer(&bytes).unwrap().members(), &changed.members);
        }
        assert!(config_edit::unset(&changed.members, key).unwrap().is_some());
    }
}

/// Uses a repository as a mount and the commands would; any result is accepted.
pub(super) async fn exercise(files: &Files, refs: &[RefSpec]) {
    let Ok(repository) = Repository::open(Arc::new(files.clone())).await else { return };
    let repository = repository.allowing(permissions(), &Settings::default());
    let _ = repository.refs().await;
    for spec in refs {
        let Ok(id) = repository.resolve(spec).await else { continue };
        let _ = repository.history(id, 1000).await;
        if let Ok(tree) = open::tree(&repository, spec, bounded()).await {
            walk(&tree).await;
            let _ = tree.total_bytes().await;
            let bounds = stats::MemoryBounds { chunks: 0, manifests: MEMORY };
            let _ = stats::collect(&repository, &tree, bounds, 2, &Default::default()).await;
            let wish = export::ExportOptions {
                dry_run: true,
                skip_unreadable: true,
                jobs: 2,
                ..export::ExportOptions::default()
            };
            let _ = export::export(Arc::new(NativeView(tree)), "", None, wish, Arc::default(), &|_| Ok(())).await;
        }
    }
    if let Ok(bytes) = files.find("repo")
        && let Ok(info) = RepoInfo::decode(bytes)
    {
        let _ = info.config();
        let _ = info.deleted_tags();
    }
    if let Ok(mut operations) = repository.operations() {
        while let Ok(Some(_)) = operations.next().await {}
    }
    let yaml = files.find("config.yaml").ok();
    let configs = [repository.config().await.ok(), yaml.and_then(|bytes| RepoConfig::from_yaml(bytes).ok())];
    for config in configs.into_iter().flatten() {
        change_config(&config, yaml.map(|bytes| &**bytes));
    }
    for (key, bytes) in files.0.iter().filter(|(key, _)| key.starts_with("transactions/")) {
        if let Ok(log) = TransactionLog::decode(bytes, MEMORY) {
            assert!(log.nodes(NodeChange::NewArrays).count() <= bytes.len() * 1000, "{key}");
            let _ = log.moves();
            for (_, chunks) in log.updated_chunks() {
                chunks.take(1000).for_each(drop);
            }
        }
    }
}

/// The virtual chunks of the fixtures, all of whose prefixes are read from one directory.
fn permissions() -> Permissions {
    static PLACE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        let place = tempfile::tempdir().unwrap();
        for name in ["raw.bin", "sub dir/pièce#1.bin", "parts/part-00000-of-00024.bin", "parts/part-00023-of-00024.bin"]
        {
            let path = place.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, vec![7; 1000]).unwrap();
        }
        place
    });
    let map = |from: &str| format!("{from}={}", place.path().display());
    let maps = ["file:///icechunkfs-own-virtual", "s3://icechunkfs-own-virtual/data", "vcc://vsrc"].map(map);
    Permissions::parse(&["https://127.0.0.1:1".to_owned()], &maps, &[], &[]).unwrap()
}

async fn walk(tree: &Arc<Tree>) {
    let mut open = vec![icechunkfs::Ino::ROOT];
    // A hostile grid can have too many entries to list.
    let mut left = 5000;
    while let Some(inode) = open.pop() {
        let mut found = Vec::new();
        let mut sink = |entry: Entry<'_>| {
            found.push((entry.name.to_owned(), entry.attributes));
            found.len() < 2000
        };
        let _ = tree.list(inode, 0, Extent::All, &mut sink).await;
        for (name, attributes) in found {
            left -= 1;
            if left == 0 {
                return;
            }
            let looked_up = tree.lookup(inode, &name).await;
            if let (Ok(Some(looked_up)), false) = (&looked_up, name.starts_with('.')) {
                assert_eq!(looked_up.inode, attributes.inode, "{name}");
            }
            match attributes.kind {
                Kind::Directory if !name.starts_with('.') => open.push(attributes.inode),
                Kind::Directory => {}
                Kind::File => {
                    let _ = tree.read(attributes.inode, 0, 4096).await;
                    let _ = tree.read(attributes.inode, u64::MAX - 1, u32::MAX).await;
                }
            }
        }
    }
}

/// Damaged documents and indexes of shards may contain anything; the bytes that are read are the
/// stored ones.
#[test]
fn damaged_shard_indexes_change_no_bytes_that_are_read() {
    const INNER: usize = 600;
    const COUNT: usize = 2048;
    let count: usize = length("ICECHUNKFS_MUTATIONS", 30, 500);
    if count <= 20_000 {
        common::watchdog();
    }
    let _alone = alone();
    let mut random = Random::new(20_261_122);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let form = shard::USUAL;
    let codec = |inner: serde_json::Value| form.codec(serde_json::json!([INNER]), inner);
    let nested =
        shard::Form { at_start: true, ..form }.codec(serde_json::json!([60]), serde_json::json!([{"name": "bytes"}]));
    let documents: Vec<Vec<u8>> =
        [serde_json::json!([{"name": "bytes"}]), serde_json::json!([nested, {"name": "crc32c"}])]
            .map(|inner| {
                let shape = serde_json::json!([COUNT * INNER]);
                let codecs = serde_json::json!([codec(inner)]);
                shard::array(shape.clone(), shape, codecs).to_string().into_bytes()
            })
            .to_vec();
    let chunks: Vec<Option<Vec<u8>>> = (0..COUNT).map(|n| Some(vec![n as u8; INNER])).collect();
    let bytes = form.shard(&chunks, shard::shuffled(COUNT));

    // Reports about shards.
    for n in 0..4 * count {
        let mut document = documents[n % 2].clone();
        change(&mut document, &mut random);
        let start = Instant::now();
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        if let Ok(Some(sharding)) = ShardLayout::parse(&document, &mut Meter::brief("a zarr.json"))
            && let Some(place) = sharding.index_range(bytes.len() as u64)
        {
            let index = Bytes::copy_from_slice(&bytes[place.start as usize..place.end as usize]);
            if let Ok(index) = Index::decode(&sharding, bytes.len() as u64, index) {
                assert!(index.faults(&mut Meter::new("faults")).unwrap().len() as u64 <= 2 * index.entry_count());
            }
        }
        let used = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        assert!(used < SLACK && start.elapsed() < DEADLINE, "{used} bytes: {}", String::from_utf8_lossy(&document));
    }

    // Reading by such an index.
    let place = tempfile::tempdir().unwrap();
    let mut files = runtime.block_on(async {
        let version = icechunk::format::format_constants::SpecVersionBin::V2;
        lab::create(place.path(), version, icechunk::RepositoryConfig::default()).await;
        let lab = lab::Lab::open(place.path());
        let mut model = lab::Model::default();
        model.group("/");
        for (n, document) in documents.iter().enumerate() {
            let path = format!("/a{n}");
            model.array(&path, &[1]);
            model.get(&path).zarr_json = String::from_utf8(document.clone()).unwrap();
            model.chunk(&path, &[0], bytes.clone());
        }
        lab.commit_first(&model).await;
        Files::read(place.path())
    });
    let objects: Vec<String> = files.0.keys().filter(|key| key.starts_with("chunks/")).cloned().collect();
    assert!(!objects.is_empty());
    let index = bytes.len() - 16 * COUNT - 4;
    for n in 0..count / 10 {
        let mut damaged = bytes.clone();
        for _ in 0..=random.below(40) {
            let at = index + random.below(16 * COUNT) / 8 * 8;
            let value = random.next() >> random.below(64);
            damaged[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        if n % 4 != 0 {
            let end = bytes.len() - 4;
            let sum = crc32c::crc32c(&damaged[index..end]);
            damaged[end..].copy_from_slice(&sum.to_le_bytes());
        }
        objects.iter().for_each(|key| drop(files.0.insert(key.clone(), damaged.clone().into())));
        let ranges: Vec<(u64, u32)> = (0..30)
            .map(|_| {
                (random.below(damaged.len()) as u64, 1 + (random.next() >> (32 + random.below(24))) as u32 % 300_000)
            })
            .collect();
        runtime.block_on(async {
            let repository = Repository::open(Arc::new(files.clone())).await.unwrap();
            let limits = bounded();
            let tree = open::tree(&repository, &RefSpec::default(), limits).await.unwrap();
            let chunk = tree.resolve(&format!("a{}/c/0", n % 2)).await.unwrap();
            assert_eq!(chunk.size, damaged.len() as u64);
            for (offset, size) in ranges {
                let read = tree.read(chunk.inode, offset, size).await.unwrap();
                let end = damaged.len().min(offset as usize + size as usize);
                assert!(*read == damaged[offset as usize..end], "mutation {n}: {size} bytes at {offset}");
            }
        });
    }
}

#[test]
fn damaged_files_cause_no_panic_hang_or_excessive_memory() {
    let count = length("ICECHUNKFS_MUTATIONS", 30, 500);
    let seed = number("ICECHUNKFS_SEED", 20_261_120) as u64;
    println!("{count} mutations, seed {seed}");
    // A night's run has no overall deadline; each mutation has one.
    if count <= 20_000 {
        common::watchdog();
    }
    let _alone = alone();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let fixtures: Vec<(String, Files, Vec<RefSpec>)> = FixtureSet::each()
        .flat_map(|set| set.all().into_iter().chain(set.alphas()))
        .map(|fixture| {
            let branches = fixture.expected["branches"].as_object().unwrap().keys();
            let refs = branches.take(2).map(|name| RefSpec::Branch(name.clone())).collect();
            (fixture.name.clone(), Files::read(&fixture.repository), refs)
        })
        .collect();
    let mut random = Random::new(seed | 1);
    // Every file is damaged once before any is damaged twice.
    let mut targets: Vec<(usize, String)> = Vec::new();
    for (at, (_, files, _)) in fixtures.iter().enumerate() {
        targets.extend(files.0.keys().filter(|key| !is_chunk(key)).map(|key| (at, key.clone())));
    }
    random.shuffle(&mut targets);
    println!("{} files", targets.len());
    for n in 0..count {
        let (at, key) = targets[n % targets.len()].clone();
        let (name, files, refs) = &fixtures[at];
        let mut mutant = files.clone();
        let bytes = mutate(&mutant.0[&key], &mut random);
        mutant.0.insert(key.clone(), bytes.into());
        let start = Instant::now();
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let what = format!("mutation {n} of seed {seed}: {name}/{key}");
        let outcome = runtime.block_on(async {
            let refs = refs.clone();
            // A separate thread: a panic ends the task and not the test.
            let handle = tokio::runtime::Handle::current();
            let task = tokio::task::spawn_blocking(move || handle.block_on(exercise(&mutant, &refs)));
            tokio::time::timeout(DEADLINE, task).await
        });
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(panicked)) => panic!("{what}: {panicked}"),
            Err(_) => panic!("{what}: not done after {DEADLINE:?}"),
        }
        let used = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        assert!(used < MEMORY as usize + SLACK, "{what}: {used} bytes");
        assert!(start.elapsed() < DEADLINE, "{what}: {:?}", start.elapsed());
    }
}
