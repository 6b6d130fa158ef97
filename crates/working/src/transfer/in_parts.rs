//! Appends files by several commits: so many files each, in their order.
//!
//! All files are looked at together first, so that one that does not fit refuses the whole import
//! before anything is committed. What ends the import later leaves the commits that were made; the
//! rest can be imported with the files that are there already left out.

use std::sync::Arc;

use super::import::{ImportMeans, ImportOptions, ImportResult, ImportTarget, checked_path, import, prepare};
use super::order::Appending;
use super::sources::{ImportSource, SourceName};
use super::{Counters, MAX_LISTED, SkippedPath};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_repo::commit::progress::CommitProgress;

/// End of an import.
#[derive(Debug, Default)]
pub struct Imported {
    /// Result of what was imported.
    pub result: ImportResult,
    /// Number of files that are not committed.
    pub left: usize,
    /// Error after which these were left.
    pub error: Option<Error>,
}

/// Imports what `names` stand for, at most `most` files by one commit. `target` returns the
/// destination as it is by then.
///
/// Errors: as for [`import`], if nothing was committed.
pub async fn import_in_parts(
    names: &[SourceName],
    most: usize,
    target: impl AsyncFn() -> Result<ImportTarget>,
    options: &ImportOptions,
    means: ImportMeans<'_>,
    counters: &Arc<Counters>,
    progress: &CommitProgress,
) -> Result<Imported> {
    let parts = parts(names, most, &target().await?, options, means, counters).await?;
    // The gaps between all of them were looked at: fewer values would have another usual step.
    let appending = options.appending.clone().map(|how| Appending { allow_gaps: true, ..how });
    let options = &ImportOptions { appending, ..options.clone() };
    let mut all = ImportResult::default();
    let left = |number: usize| parts.iter().skip(number).map(Vec::len).sum();
    for (number, part) in parts.iter().enumerate() {
        let one = async { import(part, target().await?, options, means, counters, progress).await };
        match one.await {
            Ok(one) => all.add(one),
            Err(error) if all.commits == 0 => return Err(error),
            Err(error) => return Ok(Imported { result: all, left: left(number), error: Some(error) }),
        }
        if !all.conflicts.is_empty() || all.violations_count > 0 {
            return Ok(Imported { result: all, left: left(number), error: None });
        }
    }
    Ok(Imported { result: all, ..Imported::default() })
}

/// Returns what each commit appends. Files that are there already are with the first ones.
async fn parts(
    names: &[SourceName],
    most: usize,
    target: &ImportTarget,
    options: &ImportOptions,
    means: ImportMeans<'_>,
    counters: &Arc<Counters>,
) -> Result<Vec<Vec<SourceName>>> {
    let options = &ImportOptions { path: checked_path(&options.path)?, ..options.clone() };
    let laid_out = prepare(names, target, options, means, counters).await?.laid_out;
    let of = |sources: &[ImportSource]| -> Vec<SourceName> { sources.iter().cloned().map(SourceName::from).collect() };
    let mut parts: Vec<Vec<SourceName>> = laid_out.order.chunks(most.max(1)).map(of).collect();
    match parts.first_mut() {
        Some(first) => first.extend(of(&laid_out.skipped)),
        None => parts.push(of(&laid_out.skipped)),
    }
    Ok(parts)
}

impl ImportResult {
    /// Adds what the next commit has imported.
    fn add(&mut self, next: ImportResult) {
        let before = std::mem::take(self);
        let joined = |mut one: Vec<String>, other: Vec<String>| {
            one.extend(other);
            one.truncate(MAX_LISTED);
            one
        };
        // Each thing that several files lack is listed once.
        let hidden = next.left_out_count.saturating_sub(next.left_out.len() as u64);
        let mut left_out = before.left_out;
        let known = left_out.len();
        let new: Vec<SkippedPath> = next.left_out.iter().filter(|one| !left_out.contains(one)).cloned().collect();
        left_out.extend(new);
        let left_out_count = before.left_out_count + hidden + (left_out.len() - known) as u64;
        left_out.truncate(MAX_LISTED);
        *self = ImportResult {
            snapshot: next.snapshot.or(before.snapshot),
            commits: before.commits + next.commits,
            created_repository: before.created_repository || next.created_repository,
            rebased_over: joined(before.rebased_over, next.rebased_over),
            nodes_created: before.nodes_created + next.nodes_created,
            // Each commit changes the same arrays.
            nodes_updated: before.nodes_updated.max(next.nodes_updated),
            nodes_deleted: before.nodes_deleted + next.nodes_deleted,
            chunks_written: before.chunks_written + next.chunks_written,
            bytes_written: before.bytes_written + next.bytes_written,
            chunks_virtual: before.chunks_virtual + next.chunks_virtual,
            bytes_virtual: before.bytes_virtual + next.bytes_virtual,
            allow_virtual: union(before.allow_virtual, next.allow_virtual),
            chunks_deleted: before.chunks_deleted + next.chunks_deleted,
            chunks_unchanged: before.chunks_unchanged + next.chunks_unchanged,
            skipped: joined(before.skipped, next.skipped),
            skipped_count: before.skipped_count + next.skipped_count,
            left_out,
            left_out_count,
            ..next
        };
    }
}

fn union(mut one: Vec<String>, other: Vec<String>) -> Vec<String> {
    one.extend(other);
    one.sort();
    one.dedup();
    one
}
