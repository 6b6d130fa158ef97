//! Exports a snapshot as a plain tree of files.
//!
//! Batches of files are processed concurrently: looked up in the directory, fetched, written. A
//! file that is complete there already is not read again. Nothing of a batch is kept when it is
//! done, so that memory is bounded by the number of jobs.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures_util::stream::{TryStreamExt, try_unfold};
use serde::Serialize;

use super::destination::{Destination, is_marker};
use super::fetch::{Content, fetch, is_unreadable};
use super::prune::{self, Extra};
use super::put::{Action, ExportTarget};
use super::walk::{BATCH_BYTES, Item, Walk};
use super::{Counters, MAX_LISTED, SkippedPath};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::directory::{Entry, Extent};
use icechunkfs_tree::tree::{Attributes, Kind, Tree};
use icechunkfs_views::views::{self, ViewTree};

/// Advice about files that cannot be read.
const SKIP: &str = "--skip-unreadable exports the rest and lists the omitted files";

/// Options of an export.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportOptions {
    /// Remove files that the snapshot does not have.
    pub delete: bool,
    /// Compare bytes instead of sizes and times when an export is resumed.
    pub checksum: bool,
    /// Only count files.
    pub dry_run: bool,
    /// Leave out files that cannot be read, instead of failing.
    pub skip_unreadable: bool,
    /// Batches that are processed at the same time.
    pub jobs: usize,
}

/// Result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExportResult {
    /// Id of the snapshot.
    pub snapshot: String,
    /// Files of the snapshot in the directory now.
    pub files: u64,
    /// Total size of these files, in bytes.
    pub bytes: u64,
    /// Files that were written.
    pub written: u64,
    /// Total size of the written files, in bytes.
    pub written_bytes: u64,
    /// Files that were complete already.
    pub unchanged: u64,
    /// Removed files, and directories with everything below.
    pub removed: Vec<String>,
    /// Number of removed files and directories.
    pub removed_count: u64,
    /// Files that could not be read.
    pub left_out: Vec<SkippedPath>,
    /// Number of files that could not be read.
    pub left_out_count: u64,
    /// True if files were only counted.
    pub dry_run: bool,
}

impl ExportResult {
    /// Adds the counts of a batch.
    fn add(&mut self, batch: ExportResult) {
        self.files += batch.files;
        self.bytes = self.bytes.saturating_add(batch.bytes);
        self.written += batch.written;
        self.written_bytes = self.written_bytes.saturating_add(batch.written_bytes);
        self.unchanged += batch.unchanged;
        self.left_out_count += batch.left_out_count;
        let room = MAX_LISTED.saturating_sub(self.left_out.len());
        self.left_out.extend(batch.left_out.into_iter().take(room));
    }

    fn leave_out(&mut self, path: String, error: &Error) {
        self.left_out.push(SkippedPath { path, why: error.to_string() });
        self.left_out_count += 1;
    }
}

struct Export {
    view: Arc<dyn ViewTree>,
    /// None in a dry run without a directory.
    target: Option<Arc<ExportTarget>>,
    options: ExportOptions,
    counters: Arc<Counters>,
}

/// Writes the files at or below `path` of `view` into `destination`, which is `None` if there is no
/// such directory in a dry run.
///
/// Calls `confirm` with the paths to be removed, if there are any, before anything is changed.
///
/// Errors: those of reading, unless such files are to be left out; [`ErrorKind::Unsupported`] if
/// there are nodes whose names no file can have.
pub async fn export(
    view: Arc<dyn ViewTree>,
    path: &str,
    destination: Option<Arc<Destination>>,
    options: ExportOptions,
    counters: Arc<Counters>,
    confirm: &(dyn Fn(&[String]) -> Result<()> + Sync),
) -> Result<ExportResult> {
    let tree = Arc::clone(view.tree());
    let start = directory(&*view, path).await?;
    let mut out = ExportResult {
        snapshot: tree.snapshot().id().to_string(),
        dry_run: options.dry_run,
        ..ExportResult::default()
    };
    for hidden in without_file_names(&tree, path) {
        let error = Error::new(ErrorKind::Unsupported, "no file can have that name");
        if !options.skip_unreadable {
            return Err(skippable(&error.context(format!("node {hidden:?}"))));
        }
        out.leave_out(hidden, &error);
    }
    if let (true, Some(destination)) = (options.delete, &destination) {
        let extra = prune::find(destination, &*view, start.inode).await?;
        let paths: Vec<String> = extra.iter().map(Extra::path).collect();
        if !extra.is_empty() && !options.dry_run {
            confirm(&paths)?;
            prune::remove(destination, extra).await?;
        }
        out.removed_count = paths.len() as u64;
        out.removed = paths.into_iter().take(MAX_LISTED).collect();
    }
    counters.expect(expected(&*view, start.inode));
    let target = destination.clone().map(|destination| {
        let time = tree.snapshot().flushed_at();
        Arc::new(ExportTarget::new(destination, time, options.checksum, options.dry_run))
    });
    let walk = Walk::new(Arc::clone(&view), start.inode, options.skip_unreadable);
    let export = Arc::new(Export { view, target, options, counters });
    let batches = try_unfold(walk, |mut walk| async move {
        let batch = walk.next().await?;
        let left_out = std::mem::take(&mut walk.left_out);
        let is_over = batch.is_none() && left_out.is_empty();
        Ok::<_, Error>((!is_over).then(|| ((batch.unwrap_or_default(), left_out), walk)))
    });
    let running = batches.map_ok(|(batch, left_out)| {
        let running = tokio::spawn(Arc::clone(&export).batch(batch));
        async move {
            let mut done = running.await.map_err(|e| Error::with_source(ErrorKind::Io, "exporting", e))??;
            done.left_out_count += left_out.len() as u64;
            done.left_out.extend(left_out);
            Ok(done)
        }
    });
    let all = running.try_buffer_unordered(options.jobs.max(1)).try_fold(out, |mut out, batch| async move {
        out.add(batch);
        Ok(out)
    });
    let out = all.await?;
    if let (Some(destination), false) = (destination, options.dry_run) {
        blocking(move || destination.finish()).await?;
    }
    Ok(out)
}

/// Returns directory `path` of `view`. Fails if it is a file.
async fn directory(view: &dyn ViewTree, path: &str) -> Result<Attributes> {
    let start = views::resolve(view, path).await?;
    if start.kind != Kind::Directory {
        return Err(Error::invalid(format!("`{path}` is one file: `icechunkfs cat` writes it to standard output")));
    }
    Ok(start)
}

/// Returns the names in directory `path` of `view` that are also those of the markers of exports.
/// Fails if it is a file.
pub async fn marker_names(view: &dyn ViewTree, path: &str) -> Result<BTreeSet<String>> {
    let start = directory(view, path).await?;
    let mut names = BTreeSet::new();
    let mut sink = |entry: Entry<'_>| {
        if is_marker(entry.name) {
            names.insert(entry.name.to_owned());
        }
        true
    };
    view.list(start.inode, 0, Extent::Names, &mut sink).await?;
    Ok(names)
}

/// Returns `error` with advice.
fn skippable(error: &Error) -> Error {
    Error::new(error.kind(), format!("{error}; {SKIP}"))
}

/// Returns the nodes at or below `path` that the tree does not show, because no file can have their
/// names.
fn without_file_names(tree: &Tree, path: &str) -> Vec<String> {
    let table = tree.table();
    let mut is_shown = vec![false; tree.snapshot().node_count()];
    for stored in table.subtree(0).filter_map(|index| table.get(index)?.stored) {
        if let Some(shown) = is_shown.get_mut(stored as usize) {
            *shown = true;
        }
    }
    let top = path.trim_matches('/');
    let is_below = |node: &str| {
        let node = node.trim_start_matches('/');
        top.is_empty() || node.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let hidden = tree.snapshot().nodes().zip(is_shown).filter(|(node, is_shown)| !is_shown && is_below(node.path));
    hidden.map(|(node, _)| node.path.to_owned()).collect()
}

/// Returns the expected number of files at or below directory `start`, from the snapshot's manifest
/// infos: no manifest is read. For a view whose files are not those of the snapshot it is a guess.
fn expected(view: &dyn ViewTree, start: Ino) -> u64 {
    let tree = view.tree();
    let table = view.tree().table();
    let Some(icechunkfs_tree::tree::nodes::TreePlace::Directory(top)) = table.place(start) else { return 0 };
    let mut manifests = std::collections::HashSet::new();
    let mut files = 0;
    for node in table.subtree(top) {
        files += u64::from(tree.zarr_json(node).is_some());
        for manifest in table.array(node).into_iter().flat_map(|array| &array.manifests) {
            if manifests.insert(manifest.id) {
                files += u64::from(table.manifest(manifest.id).chunk_refs);
            }
        }
    }
    files
}

impl Export {
    async fn batch(self: Arc<Self>, items: Vec<Item>) -> Result<ExportResult> {
        let mut done = ExportResult::default();
        let Some(target) = self.target.clone() else {
            items.iter().for_each(|item| self.count(&mut done, item, true));
            return Ok(done);
        };
        let look = Arc::clone(&target);
        let wanted = if target.is_empty() {
            items.into_iter().map(|item| (item, Action::Write)).collect()
        } else {
            blocking(move || look.needs(items)).await?
        };
        let mut rest = Vec::with_capacity(wanted.len());
        for (item, need) in wanted {
            match need {
                Action::Nothing => self.count(&mut done, &item, false),
                Action::Write if self.options.dry_run => self.count(&mut done, &item, true),
                _ if item.size > BATCH_BYTES => {
                    let written = target.large(&self.view, &item, need).await;
                    self.account(&mut done, &item, written)?;
                }
                _ => rest.push((item, need)),
            }
        }
        let items: Vec<&Item> = rest.iter().map(|(item, _)| item).collect();
        let contents = fetch(&*self.view, &items).await;
        let mut ready = Vec::with_capacity(rest.len());
        for ((item, need), content) in rest.into_iter().zip(contents) {
            match content {
                Ok(content) => ready.push((item, need, content)),
                Err(error) => self.account(&mut done, &item, Err(error))?,
            }
        }
        if !ready.is_empty() {
            let this = Arc::clone(&self);
            done.add(blocking(move || this.write(&target, ready)).await?);
        }
        Ok(done)
    }

    /// Writes files whose bytes have been fetched.
    fn write(&self, target: &ExportTarget, ready: Vec<(Item, Action, Content)>) -> Result<ExportResult> {
        let mut done = ExportResult::default();
        let mut last: Option<(Arc<str>, Arc<OwnedFd>)> = None;
        for (item, need, content) in ready {
            let folder = match last.take() {
                Some((path, folder)) if path == item.folder => folder,
                _ => target.destination().folder(&item.folder)?,
            };
            let is_written = target.file(&folder, &item, need, content)?;
            self.count(&mut done, &item, is_written);
            last = Some((item.folder, folder));
        }
        Ok(done)
    }

    /// Counts the result of a file: written, unchanged, or not readable.
    fn account(&self, done: &mut ExportResult, item: &Item, written: Result<bool>) -> Result<()> {
        match written {
            Ok(is_written) => self.count(done, item, is_written),
            Err(error) if self.options.skip_unreadable && is_unreadable(&error) => {
                self.counters.add_done(1, 0);
                done.leave_out(item.path(), &error);
            }
            Err(error) if is_unreadable(&error) => return Err(skippable(&error)),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Counts a file that was written, or that was complete.
    fn count(&self, done: &mut ExportResult, item: &Item, is_written: bool) {
        self.counters.add_done(1, item.size);
        done.files += 1;
        done.bytes = done.bytes.saturating_add(item.size);
        if is_written {
            done.written += 1;
            done.written_bytes = done.written_bytes.saturating_add(item.size);
        } else {
            done.unchanged += 1;
        }
    }
}
