//! `diff --values`: how many elements differ, by how much, and the first of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::future;
use serde_json::{Value, json};

use super::Compared;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, ErrorKind, Result};
use icechunkfs_base::memory;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::{ManifestInfo, Node};
use icechunkfs_repo::compare::chunks::{ChunkDifference, ChunkDifferences, spelled};
use icechunkfs_repo::compare::{ArrayChunks, NodeDifference};
use icechunkfs_repo::reader::Reader;
use icechunkfs_views::views::netcdf::values::{ArrayValues, ValueDifferences};

/// Chunks that are read and decoded at a time: enough for a store far away.
const AT_ONCE: usize = 8;

/// Result of comparing the values of an array.
pub(super) enum Outcome {
    /// Elements of the chunks that differ.
    Compared { found: ValueDifferences, has_other_fill: bool, has_other_codecs: bool },
    /// Why they were not compared.
    Not(String),
}

/// Compares the values of all arrays that have chunks which differ. Returns the outcomes by the
/// position of the array in the list of differences.
pub(super) async fn compare(reader: &Arc<Reader>, compared: &Compared) -> Result<BTreeMap<usize, Outcome>> {
    let mut outcomes = BTreeMap::new();
    let infos = [compared.old.manifest_infos(), compared.new.manifest_infos()];
    let may_differ = |difference: &NodeDifference| difference.chunks.is_any() || difference.is_changed;
    for (at, difference) in compared.nodes.iter().enumerate().filter(|(_, difference)| may_differ(difference)) {
        if let (Some(before), Some(after)) = compared.node(difference) {
            let outcome = match of_array(reader, &infos, &before, &after).await {
                // Other arrays may be whole, and be read.
                Err(error) if is_of_one_array(error.kind()) => Some(Outcome::Not(error.to_string())),
                outcome => outcome.context(|| after.path.to_owned())?,
            };
            outcomes.extend(outcome.map(|outcome| (at, outcome)));
        }
    }
    Ok(outcomes)
}

/// Returns true for failures that others arrays may not have.
fn is_of_one_array(kind: ErrorKind) -> bool {
    use ErrorKind::{Corrupt, OutOfMemory, PermissionDenied, Unsupported, VirtualNotAllowed};
    matches!(kind, Corrupt | OutOfMemory | PermissionDenied | Unsupported | VirtualNotAllowed)
}

/// Compares the values of one array; none if it was or is a group, or if nothing of its values
/// changed.
async fn of_array(
    reader: &Arc<Reader>,
    infos: &[HashMap<ObjectId, ManifestInfo>; 2],
    before: &Node<'_>,
    after: &Node<'_>,
) -> Result<Option<Outcome>> {
    let Some(was) = ArrayChunks::parse(Some(before))? else { return Ok(None) };
    let Some(is) = ArrayChunks::parse(Some(after))? else { return Ok(None) };
    let parsed = [ArrayValues::parse(before.zarr_json)?, ArrayValues::parse(after.zarr_json)?];
    let values = match parsed {
        [Ok(old), Ok(new)] => [Arc::new(old), Arc::new(new)],
        [Err(reason), _] | [_, Err(reason)] => return Ok(Some(Outcome::Not(reason))),
    };
    let [old, new] = &values;
    if let Some(obstacle) = old.obstacle(new) {
        return Ok(Some(Outcome::Not(obstacle.to_owned())));
    }
    let [old_infos, new_infos] = infos;
    let mut differences = ChunkDifferences::new(was.chunks(old_infos, reader), is.chunks(new_infos, reader));
    let mut found = ValueDifferences::default();
    let mut is_any = false;
    while let Some(page) = differences.page().await? {
        is_any |= !page.is_empty();
        // Chunks with elements of one array only need not be read.
        let shared = page.iter().filter(|chunk| old.overlaps(new, &chunk.coords));
        let work = |chunk| of_chunk(reader, &values, chunk);
        let take = |more| {
            found.add(more);
            Ok(())
        };
        memory::together::try_for_each(shared, AT_ONCE, work, take).await?;
    }
    let has_other_fill = old.has_other_fill(new);
    let has_other_codecs = old.has_other_codecs(new);
    let is_told = is_any || has_other_fill || has_other_codecs;
    Ok(is_told.then_some(Outcome::Compared { found, has_other_fill, has_other_codecs }))
}

async fn of_chunk(
    reader: &Arc<Reader>,
    values: &[Arc<ArrayValues>; 2],
    chunk: &ChunkDifference,
) -> Result<ValueDifferences> {
    let name = || format!("chunk {}", spelled(&chunk.coords));
    let [old, new] = values.each_ref().map(Arc::clone);
    let length = |payload: &Option<ChunkPayload>| payload.as_ref().map(ChunkPayload::length);
    // All at once: others may hold what the rest would wait for.
    let needed = old.memory(length(&chunk.before)).saturating_add(new.memory(length(&chunk.after)));
    let held = memory::reserve(needed, "comparing the values of a chunk").await.context(name)?;
    let read = async |payload: &Option<ChunkPayload>| match payload {
        Some(payload) => reader.read_payload(payload).await.map(Some),
        None => Ok(None),
    };
    let stored = future::try_join(read(&chunk.before), read(&chunk.after)).await.context(name)?;
    let coords = chunk.coords.clone();
    let compared = blocking(move || {
        // As long as this runs, also if nobody waits for it any more.
        let _held = held;
        let mut found = ValueDifferences::default();
        old.compare(&new, &coords, stored.into(), &mut found)?;
        Ok(found)
    });
    compared.await.context(name)
}

impl Outcome {
    /// Returns the lines that a person reads about the array at `path`.
    pub(super) fn lines(&self, path: &str) -> Vec<String> {
        let (found, has_other_fill, has_other_codecs) = match self {
            Outcome::Not(reason) => return vec![format!("values   {path}  not compared: {reason}")],
            Outcome::Compared { found, has_other_fill, has_other_codecs } => (found, has_other_fill, has_other_codecs),
        };
        let by = found.largest.map(|largest| format!(" by at most {}", number(largest))).unwrap_or_default();
        let fill = if *has_other_fill { "; so does the fill value of chunks that are not stored" } else { "" };
        let codecs =
            if *has_other_codecs { "; the codecs differ, so that other chunks may have other values" } else { "" };
        let verb = if found.differing == 1 { "differs" } else { "differ" };
        let counts = match found.compared {
            0 => "only one side has elements of these chunks".to_owned(),
            compared => format!("{} of {compared} elements of these chunks {verb}{by}", found.differing),
        };
        let mut lines = vec![format!("values   {path}  {counts}{fill}{codecs}")];
        for one in &found.first {
            lines.push(format!("  {:?}  {} -> {}", one.index, one.before, one.after));
        }
        let more = found.differing.saturating_sub(found.first.len() as u64);
        lines.extend((more > 0).then(|| format!("  and {more} more")));
        lines
    }

    /// Returns what a program reads about the array.
    pub(super) fn json(&self) -> Value {
        match self {
            Outcome::Not(reason) => json!({"not_compared": reason}),
            Outcome::Compared { found, has_other_fill, has_other_codecs } => {
                let first =
                    found.first.iter().map(|one| json!({"index": one.index, "before": one.before, "after": one.after}));
                json!({
                    "compared": found.compared,
                    "differing": found.differing,
                    "largest": found.largest,
                    "fill_value_differs": has_other_fill,
                    "codecs_differ": has_other_codecs,
                    "first": first.collect::<Vec<_>>(),
                })
            }
        }
    }
}

/// Formats a difference: one of whole numbers without a fraction.
fn number(difference: f64) -> String {
    // Up to here a number has all whole ones.
    const WHOLE: f64 = 9_007_199_254_740_992.0;
    if difference.fract() == 0.0 && difference < WHOLE { format!("{difference:.0}") } else { format!("{difference:?}") }
}
