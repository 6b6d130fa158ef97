//! Checks of chunk objects: each exists, and is long enough for every reference.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use parking_lot::Mutex;

use super::report::{Findings, Severity};
use super::{Context, is_object_fault};
use crate::error::{ErrorKind, Result};
use crate::format::ids::ObjectId;
use crate::storage::ObjectInfo;

/// Chunks requested at a time.
const AT_ONCE: usize = 32;

/// Knowledge about chunk objects.
#[derive(Debug)]
pub(super) enum ChunkCheck {
    /// Chunk objects are not checked.
    Unknown,
    /// All objects, from one listing.
    Listed(HashMap<ObjectId, Object>),
    /// Objects that are requested one by one, once all needed ones are known.
    OneByOne(Mutex<BTreeMap<ObjectId, Needed>>),
}

#[derive(Debug)]
pub(super) struct Object {
    size: u64,
    is_used: AtomicBool,
}

/// A chunk object that a reference needs.
#[derive(Debug)]
pub(super) struct Needed {
    /// Minimum length, in bytes.
    end: u64,
    is_there: bool,
    from: Reference,
}

#[derive(Clone, Debug)]
pub(super) struct Reference {
    /// Key of the manifest.
    pub(super) manifest: String,
    /// Path of the array.
    pub(super) path: Arc<str>,
    /// Coordinates in the array's grid.
    pub(super) coords: Vec<u32>,
}

impl ChunkCheck {
    pub(super) async fn list(context: &Context) -> Result<Self> {
        let mut objects = HashMap::new();
        let mut keep = |object: ObjectInfo| {
            let id = object.key.strip_prefix("chunks/").and_then(|name| name.parse::<ObjectId>().ok());
            objects.extend(id.map(|id| (id, Object { size: object.size, is_used: AtomicBool::new(false) })));
        };
        context.storage.for_each("chunks/", &mut keep).await?;
        Ok(ChunkCheck::Listed(objects))
    }

    /// Records that the reference `from` needs bytes of `chunk` up to `end`.
    pub(super) fn require(&self, findings: &Findings, chunk: ObjectId, end: u64, from: impl FnOnce() -> Reference) {
        match self {
            ChunkCheck::Unknown => {}
            ChunkCheck::Listed(objects) => match objects.get(&chunk) {
                Some(object) => {
                    object.is_used.store(true, Ordering::Relaxed);
                    if object.size < end {
                        too_short(findings, chunk, end, Some(object.size), from());
                    }
                }
                None => missing(findings, chunk, from()),
            },
            ChunkCheck::OneByOne(needed) => {
                let mut needed = needed.lock();
                match needed.get_mut(&chunk) {
                    Some(known) if known.end >= end => {}
                    Some(known) => (known.end, known.from) = (end, from()),
                    None => drop(needed.insert(chunk, Needed { end, is_there: false, from: from() })),
                }
            }
        }
    }

    /// Requests the objects that are checked one by one.
    pub(super) async fn request_all(&self, context: &Context) -> Result<()> {
        let ChunkCheck::OneByOne(needed) = self else { return Ok(()) };
        let all: Vec<(ObjectId, u64, Reference)> =
            needed.lock().iter().map(|(chunk, needed)| (*chunk, needed.end, needed.from.clone())).collect();
        context.progress.expect(all.len());
        let mut requests = futures_util::stream::iter(all.into_iter().map(|(chunk, end, from)| {
            let storage = Arc::clone(&context.storage);
            async move {
                // If the last byte exists, all do.
                let last = storage.get_range(&format!("chunks/{chunk}"), end.saturating_sub(1), end.min(1)).await;
                (chunk, end, from, last.map(drop))
            }
        }))
        .buffer_unordered(AT_ONCE);
        while let Some((chunk, end, from, last)) = requests.next().await {
            context.progress.step(1);
            match last {
                Ok(()) => {
                    if let Some(known) = needed.lock().get_mut(&chunk) {
                        known.is_there = true;
                    }
                }
                Err(error) if error.kind() == ErrorKind::NotFound => missing(&context.findings, chunk, from),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    too_short(&context.findings, chunk, end, None, from)
                }
                Err(error) if is_object_fault(error.kind()) => {
                    report(&context.findings, "chunk", from, error.to_string())
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the number of objects that were found.
    pub(super) fn found(&self) -> u64 {
        match self {
            ChunkCheck::Unknown => 0,
            ChunkCheck::Listed(objects) => {
                objects.values().filter(|object| object.is_used.load(Ordering::Relaxed)).count() as u64
            }
            ChunkCheck::OneByOne(needed) => needed.lock().values().filter(|needed| needed.is_there).count() as u64,
        }
    }

    /// Returns the number and total size of listed objects that nothing refers to.
    pub(super) fn unused(&self) -> (u64, u64) {
        let ChunkCheck::Listed(objects) = self else { return (0, 0) };
        let unused = objects.values().filter(|object| !object.is_used.load(Ordering::Relaxed));
        unused.fold((0, 0), |sum, object| (sum.0 + 1, sum.1 + object.size))
    }
}

fn missing(findings: &Findings, chunk: ObjectId, from: Reference) {
    report(findings, "chunk-missing", from, format!("its object chunks/{chunk} is missing"));
}

fn too_short(findings: &Findings, chunk: ObjectId, end: u64, size: Option<u64>, from: Reference) {
    let size = size.map_or("fewer".to_owned(), |size| size.to_string());
    report(findings, "chunk-short", from, format!("its object chunks/{chunk} has {size} bytes; it must have {end}"));
}

fn report(findings: &Findings, rule: &'static str, from: Reference, why: String) {
    findings.chunk(Severity::Error, rule, from, why);
}
