//! Checks of chunk objects: each exists, and is long enough for every reference.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::required::{Reference, Required};
use super::{Context, is_object_fault};
use icechunkfs_base::error::{ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_store::storage::ObjectInfo;

/// Knowledge about chunk objects.
#[derive(Debug)]
pub(super) enum ChunkCheck {
    /// Chunk objects are not checked.
    Unknown,
    /// All objects, from one listing.
    Listed(HashMap<ObjectId, Object>),
    /// Objects that are requested one by one, once all needed ones are known.
    OneByOne(Required<ObjectId>),
}

#[derive(Debug)]
pub(super) struct Object {
    size: u64,
    is_used: AtomicBool,
}

impl ChunkCheck {
    pub(super) async fn list(context: &Context) -> Result<Self> {
        let mut objects = HashMap::new();
        let mut keep = |object: ObjectInfo| {
            let name = object.key.strip_prefix("chunks/").unwrap_or_default();
            // Parsing accepts other spellings of an id, but readers request the canonical one.
            if let Some(id) = name.parse::<ObjectId>().ok().filter(|id| id.to_string() == name) {
                objects.insert(id, Object { size: object.size, is_used: AtomicBool::new(false) });
            }
        };
        context.storage.for_each("chunks/", &mut keep).await?;
        Ok(ChunkCheck::Listed(objects))
    }

    /// Records that the reference `from` needs bytes of `chunk` up to `end`.
    pub(super) fn require(&self, context: &Context, chunk: ObjectId, end: u64, from: impl FnOnce() -> Reference) {
        match self {
            ChunkCheck::Unknown => {}
            ChunkCheck::Listed(objects) => match objects.get(&chunk) {
                Some(object) => {
                    object.is_used.store(true, Ordering::Relaxed);
                    if object.size < end {
                        too_short(context, chunk, end, &object.size.to_string(), &from());
                    }
                }
                None => missing(context, chunk, &from()),
            },
            ChunkCheck::OneByOne(required) => required.add(chunk, end, from),
        }
    }

    /// Requests the objects that are checked one by one.
    pub(super) async fn request_all(&self, context: &Context) -> Result<()> {
        let ChunkCheck::OneByOne(required) = self else { return Ok(()) };
        let storage = &context.storage;
        let request = |chunk, offset, length| async move {
            Arc::clone(storage).get_range(&format!("chunks/{chunk}"), offset, length).await
        };
        required
            .request_all(context, request, |chunk, end, from, error| {
                match error.kind() {
                    ErrorKind::NotFound => missing(context, chunk, from),
                    ErrorKind::Corrupt => too_short(context, chunk, end, "fewer", from),
                    kind if is_object_fault(kind) => from.subject(context).error("chunk", error.to_string()),
                    _ => return Err(error),
                }
                Ok(())
            })
            .await
    }

    /// Returns the number of objects that were found.
    pub(super) fn found(&self) -> u64 {
        match self {
            ChunkCheck::Unknown => 0,
            ChunkCheck::Listed(objects) => {
                objects.values().filter(|object| object.is_used.load(Ordering::Relaxed)).count() as u64
            }
            ChunkCheck::OneByOne(required) => required.found(),
        }
    }

    /// Returns the number and total size of listed objects that nothing refers to.
    pub(super) fn unused(&self) -> (u64, u64) {
        let ChunkCheck::Listed(objects) = self else { return (0, 0) };
        let unused = objects.values().filter(|object| !object.is_used.load(Ordering::Relaxed));
        unused.fold((0, 0), |sum, object| (sum.0 + 1, sum.1 + object.size))
    }
}

fn missing(context: &Context, chunk: ObjectId, from: &Reference) {
    from.subject(context).error("chunk-missing", format!("its object chunks/{chunk} is missing"));
}

fn too_short(context: &Context, chunk: ObjectId, end: u64, size: &str, from: &Reference) {
    let why = format!("its object chunks/{chunk} has {size} bytes; it must have {end}");
    from.subject(context).error("chunk-short", why);
}
