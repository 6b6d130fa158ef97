//! Plans and writes the manifests of a commit.
//!
//! An array that was not touched keeps its manifests. The grid of a touched array is cut into cells
//! by the repository's rules ([`super::splitting`]). A cell with changed chunks is written again
//! from all old manifests that reach into it. A cell without changes keeps its manifests if they
//! lie in it, and is written again if one of them reaches beyond, because the rules have changed or
//! the array has shrunk. The cost of a commit is thus that of the cells it touches.
//!
//! A new manifest holds the references that a reader finds: those of the right rank, within the
//! cell and within the extents by which their manifest is found; if several manifests list a chunk,
//! the reference of the first one in the array's order.
//!
//! Small arrays share manifests ([`share`]).

mod build;
mod plan;
mod share;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::Semaphore;
use tracing::warn;

use self::build::{Cell, Source};
use self::plan::CellPlan;
pub(super) use self::share::worth_gathering;
use super::splitting::{Cells, Splitting};
use super::upload::ChunkList;
use crate::reader::Reader;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::ErrorKind::{NoSpace, Offline, Timeout};
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_format::format::envelope::{Compression, SpecVersion};
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::manifest::Manifest;
use icechunkfs_format::format::snapshot::{ManifestInfo, ManifestRef};
use icechunkfs_store::storage::Storage;

/// Groups of cells that are written at the same time.
const CONCURRENT_GROUPS: usize = 4;
/// Old manifests that are read at the same time for one group, which may be made of a thousand.
const CONCURRENT_READS: usize = 32;
/// Limit on the references of manifests written at the same time: some 120 bytes of memory each.
const MAX_CONCURRENT_REFS: usize = 1 << 21;

/// Array whose manifests are written.
#[derive(Debug)]
pub(super) struct ArrayTask<'a> {
    pub(super) node: NodeId,
    pub(super) path: &'a str,
    pub(super) zarr_json: &'a [u8],
    /// Id under which `old` lists the chunks.
    pub(super) chunks_of: NodeId,
    /// Chunks per dimension.
    pub(super) grid: Vec<u32>,
    pub(super) names: Option<&'a [Option<String>]>,
    /// Manifests before the commit.
    pub(super) old: &'a [ManifestRef],
    pub(super) changes: ChunkList,
    /// True if all manifests are written again, needed or not.
    pub(super) is_rewritten: bool,
    /// True if the array is only here to share a manifest with others: if that fails, it keeps its
    /// own.
    pub(super) is_gathered: bool,
}

pub(super) type ArrayManifests = Vec<(ManifestRef, ManifestInfo)>;

/// Writes manifests and remembers them, so that a commit that lost a race writes only what has
/// changed.
pub(super) struct ManifestWriter {
    storage: Arc<dyn Storage>,
    reader: Arc<Reader>,
    version: SpecVersion,
    compression: Compression,
    splitting: Splitting,
    written: HashMap<NodeId, Written>,
}

/// Manifests written for an array, and the inputs that they were made from.
#[derive(Debug)]
struct Written {
    old: Vec<ManifestRef>,
    cells: Cells,
    changes: ChunkList,
    manifests: ArrayManifests,
}

/// Cell of an array that is written.
struct Job<'a> {
    task: Arc<ArrayTask<'a>>,
    /// Position among the cells of the array, in the order of its grid.
    number: usize,
    extents: Vec<(u32, u32)>,
    plan: CellPlan,
    /// References that it will have at most.
    references: u64,
}

/// Memory of a cell until its manifest is written, beside its extents, and of each of these.
const JOB: u64 = 1600;
const EXTENT: u64 = 16;

/// Manifests of cells, by array and position among its cells.
type Found = BTreeMap<(NodeId, usize), ArrayManifests>;

impl ManifestWriter {
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        reader: Arc<Reader>,
        version: SpecVersion,
        compression: Compression,
        splitting: Splitting,
    ) -> Self {
        ManifestWriter { storage, reader, version, compression, splitting, written: HashMap::new() }
    }

    /// Forgets the written manifests, because garbage collection may have removed them.
    pub(super) fn forget(&mut self) {
        self.written.clear();
    }

    /// Returns the manifests of `arrays` after their changes. `infos` describes all old manifests.
    pub(super) async fn write(
        &mut self,
        arrays: Vec<ArrayTask<'_>>,
        infos: &HashMap<ObjectId, ManifestInfo>,
    ) -> Result<HashMap<NodeId, ArrayManifests>> {
        let nodes: Vec<NodeId> = arrays.iter().map(|task| task.node).collect();
        let mut found = Found::new();
        let mut small = Vec::new();
        let mut groups = Vec::new();
        // A few bytes of a configuration can cut a grid into a million cells.
        let mut meter = Meter::new("the parts into which manifests are split");
        for task in arrays {
            let cells = self.splitting.cells(task.path, &task.grid, task.names);
            if let Some(known) = self.written.get(&task.node)
                && known.old == task.old
                && known.cells == cells
                && Arc::ptr_eq(&known.changes, &task.changes)
            {
                continue;
            }
            let plans = plan::plan(&task, &cells, &mut meter).context(|| format!("array {}", task.path))?;
            let old = task.old.to_vec();
            let changes = Arc::clone(&task.changes);
            let known = Written { old, cells: cells.clone(), changes, manifests: Vec::new() };
            self.written.insert(task.node, known);
            let task = Arc::new(task);
            let is_whole = plans.len() == 1;
            if task.is_gathered && !is_whole {
                let all = task.old.iter().map(|old| Ok((old.clone(), listed(old.id, infos)?)));
                found.insert((task.node, 0), all.collect::<Result<_>>()?);
                continue;
            }
            for (number, (cell, plan)) in plans.into_iter().enumerate() {
                if !task.is_gathered && plan.is_kept(&task) {
                    found.insert((task.node, number), kept(&task, &plan, infos)?);
                    continue;
                }
                let references = plan.references(&task, infos);
                meter.count(JOB + EXTENT * task.grid.len() as u64)?;
                let job = Job { task: Arc::clone(&task), number, extents: cells.extents(&cell), plan, references };
                if is_whole && share::is_shared(references, job.task.zarr_json) {
                    small.push(job)
                } else {
                    groups.push(vec![job])
                }
            }
        }
        small.sort_by(|a, b| a.task.path.cmp(b.task.path));
        for start in share::groups(small.iter().map(|job| job.references)).into_iter().rev() {
            groups.push(small.split_off(start));
        }
        let this = &*self;
        let memory = &Semaphore::new(MAX_CONCURRENT_REFS);
        // Each future is boxed: the compiler cannot prove that one from a closure is `Send`.
        type Running<'a> = BoxFuture<'a, Result<Found>>;
        let running = groups.into_iter().map(|group| -> Running<'_> {
            Box::pin(async move {
                // A source may be a large manifest of which the group needs a small part.
                let sources: HashSet<ObjectId> =
                    group.iter().flat_map(|job| job.plan.old(&job.task).map(|old| old.id)).collect();
                let read = sources.iter().filter_map(|id| infos.get(id)).map(|info| u64::from(info.chunk_refs));
                let changed = group.iter().map(|job| job.plan.changes.len() as u64);
                let refs = read.chain(changed).sum::<u64>();
                let _permit = memory.acquire_many(refs.min(MAX_CONCURRENT_REFS as u64) as u32).await;
                this.group_or_part(group, infos).await
            })
        });
        let running: Vec<Running<'_>> = running.collect();
        let written: Vec<Found> = stream::iter(running).buffer_unordered(CONCURRENT_GROUPS).try_collect().await?;
        found.extend(written.into_iter().flatten());
        for ((node, _), manifests) in found {
            if let Some(known) = self.written.get_mut(&node) {
                known.manifests.extend(manifests);
            }
        }
        Ok(nodes.into_iter().filter_map(|node| Some((node, self.written.get(&node)?.manifests.clone()))).collect())
    }

    /// Writes a group of cells; without the arrays that were gathered if it fails with them: the
    /// commit does not need them, and damage of others must not prevent it.
    async fn group_or_part(&self, group: Vec<Job<'_>>, infos: &HashMap<ObjectId, ManifestInfo>) -> Result<Found> {
        let is_gathering = group.iter().any(|job| job.task.is_gathered);
        match self.group(&group, infos).await {
            Err(error) if is_gathering && !matches!(error.kind(), NoSpace | Offline | Timeout) => {
                warn!("manifests of small arrays stay as they are: {error}");
                let (gathered, needed): (Vec<_>, Vec<_>) = group.into_iter().partition(|job| job.task.is_gathered);
                let mut found = self.group(&needed, infos).await?;
                for Job { task, number, plan, .. } in &gathered {
                    found.insert((task.node, *number), kept(task, plan, infos)?);
                }
                Ok(found)
            }
            found => found,
        }
    }

    /// Writes a group of cells, each of another array unless it is the only one.
    async fn group(&self, group: &[Job<'_>], infos: &HashMap<ObjectId, ManifestInfo>) -> Result<Found> {
        let mut found: Found = group.iter().map(|job| ((job.task.node, job.number), Vec::new())).collect();
        let place = || match group {
            [only] => format!("manifests of array {}", only.task.path),
            [first, ..] => format!("manifests of array {} and others", first.task.path),
            [] => String::new(),
        };
        let opened = self.open(group, infos).await.context(place)?;
        let version = self.version;
        let compression = self.compression;
        let is_gathering = group.iter().any(|job| job.task.is_gathered);
        let gathered: HashSet<NodeId> =
            group.iter().filter(|job| job.task.is_gathered).map(|job| job.task.node).collect();
        let built = blocking(move || {
            let built = build::build(version, compression, &opened)?;
            if is_gathering {
                build::check_same(opened.iter().filter(|cell| gathered.contains(&cell.node)), &built)?;
            }
            Ok(built)
        });
        let numbers: HashMap<NodeId, usize> = group.iter().map(|job| (job.task.node, job.number)).collect();
        for built in built.await.context(place)? {
            self.storage.put_new(&format!("manifests/{}", built.info.id), built.file.into()).await?;
            self.reader.keep_manifest(built.manifest);
            for (node, reference) in built.references {
                let number = numbers.get(&node).copied().unwrap_or_default();
                found.entry((node, number)).or_default().push((reference, built.info));
            }
        }
        Ok(found)
    }

    /// Reads the old manifests of a group's cells.
    async fn open(&self, group: &[Job<'_>], infos: &HashMap<ObjectId, ManifestInfo>) -> Result<Vec<Cell>> {
        let mut wanted: HashMap<ObjectId, ManifestInfo> = HashMap::new();
        for job in group {
            for old in job.plan.old(&job.task) {
                wanted.insert(old.id, listed(old.id, infos)?);
            }
        }
        type Reading<'a> = BoxFuture<'a, Result<(ObjectId, Arc<Manifest>)>>;
        let read = |info: ManifestInfo| -> Reading<'_> {
            Box::pin(async move { Ok((info.id, self.reader.manifest(info).await?)) })
        };
        let reads: Vec<Reading<'_>> = wanted.into_values().map(read).collect();
        let read: HashMap<ObjectId, Arc<Manifest>> =
            stream::iter(reads).buffer_unordered(CONCURRENT_READS).try_collect().await?;
        let cell = |job: &Job<'_>| Cell {
            node: job.task.node,
            sources: job
                .plan
                .old(&job.task)
                .filter_map(|old| {
                    let within = plan::intersection(&job.extents, &old.extents);
                    Some(Source { manifest: Arc::clone(read.get(&old.id)?), node: job.task.chunks_of, within })
                })
                .collect(),
            changes: Arc::clone(&job.task.changes),
            picked: job.plan.changes.clone(),
        };
        Ok(group.iter().map(cell).collect())
    }
}

/// Returns the old manifests of a cell, which stay.
fn kept(task: &ArrayTask<'_>, plan: &CellPlan, infos: &HashMap<ObjectId, ManifestInfo>) -> Result<ArrayManifests> {
    plan.old(task).map(|old| Ok((old.clone(), listed(old.id, infos)?))).collect()
}

fn listed(id: ObjectId, infos: &HashMap<ObjectId, ManifestInfo>) -> Result<ManifestInfo> {
    let found = infos.get(&id).copied();
    found.ok_or_else(|| Error::corrupt(format!("the snapshot does not list manifest {id}, which it refers to")))
}
