//! `icechunkfs import`: commits a directory of Zarr files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::export::listed;
use super::output::{folder_of, write_json};
use super::progress::State;
use super::sync_args::notes;
use super::values::choice;
use super::virtual_args::VirtualArgs;
use super::{open, plan_file, print, print_json, progress, replace_commits};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::size;
use icechunkfs_base::times::system_clock;
use icechunkfs_base::{printable, shell};
use icechunkfs_repo::commit::engine::{EngineOptions, OnConflict};
use icechunkfs_repo::commit::progress::{CommitProgress, CommitState, Stage};
use icechunkfs_repo::repo::refs::DEFAULT_BRANCH;
use icechunkfs_repo::repo::{Repository, create};
use icechunkfs_store::recognize::{self, Kind};
use icechunkfs_store::storage::location::{Location, StorePlace};
use icechunkfs_store::storage::virtuals::permissions::Permissions;
use icechunkfs_store::storage::{self, Storage, settings::Settings};
use icechunkfs_tree::mount_facts::MountInfo;
use icechunkfs_working::transfer::import::{self, ImportMeans, ImportOptions, ImportResult, ImportTarget};
use icechunkfs_working::transfer::in_parts::{Imported, import_in_parts};
use icechunkfs_working::transfer::order::Appending;
use icechunkfs_working::transfer::sources::SourceName;
use icechunkfs_working::transfer::virtual_refs::VirtualRules;
use icechunkfs_working::transfer::{Counters, SkippedPath};

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// A local directory with a Zarr hierarchy (version 2 or 3), a NetCDF or HDF5 file, or kerchunk
    /// references (a .json file, or a directory of Parquet files); with --append-dim several NetCDF
    /// or HDF5 files. These may be URLs (s3://, gs://, az://, https://), in stores also patterns,
    /// such as 's3://bucket/era5/*.nc'.
    #[arg(required = true)]
    src: Vec<PathBuf>,
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://). It is created if it does not
    /// exist.
    repo: String,
    /// The branch to commit to.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_BRANCH)]
    branch: String,
    /// Import SRC as this group or array. Missing groups above it are created.
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    path: String,
    /// Append the NetCDF files to the arrays below --path along this dimension, ordered by its
    /// coordinate. Files with other units, packing or types are refused, unless --reencode converts
    /// them.
    #[arg(long, value_name = "DIMENSION", conflicts_with_all = ["delete", "on_conflict"])]
    append_dim: Option<String>,
    /// Append files even if values of the coordinate are missing before them.
    #[arg(long, requires = "append_dim")]
    allow_gaps: bool,
    /// Leave out files whose coordinate values are there already.
    #[arg(long, requires = "append_dim")]
    skip_existing: bool,
    /// Convert files with another type, packing, compression or units of time to those of the
    /// arrays. Values are rounded as the arrays' scale_factor demands; one that does not fit
    /// refuses the import.
    #[arg(long, requires = "append_dim")]
    reencode: bool,
    /// Commit after each N files, in their order. The files are looked at together first: one that
    /// does not fit refuses them all [default: one commit].
    #[arg(long, value_name = "N", requires = "append_dim", conflicts_with = "reencode",
        value_parser = clap::value_parser!(u32).range(1..))]
    commit_each: Option<u32>,
    /// Leave the chunks of NetCDF and HDF5 files where they are, as virtual chunks, and copy only
    /// the rest. The files must stay as they are.
    #[arg(long = "virtual")]
    are_virtual: bool,
    /// With --virtual, copy chunks smaller than this.
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size::parse, requires = "are_virtual")]
    copy_below: u64,
    /// With --virtual, add a container for the files' directory to the configuration if there is
    /// none. Icechunk reads virtual chunks only in containers.
    #[arg(long, requires = "are_virtual")]
    set_container: bool,
    /// The commit message [default: Import of SRC].
    #[arg(short, long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    message: String,
    /// Set a metadata item; VALUE is JSON or text. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Take one side in conflicts of chunks and of members of zarr.json: ours is SRC, theirs the
    /// concurrent commits [default: refuse].
    #[arg(long, value_name = "WHOSE", value_parser = choice::<OnConflict>())]
    on_conflict: Option<OnConflict>,
    /// Delete everything on the branch (below --path) that SRC does not have. Earlier commits keep
    /// it.
    #[arg(long)]
    delete: bool,
    /// Store all chunks, also those that the branch has with the same bytes.
    #[arg(short = 'W', long)]
    whole: bool,
    /// Show the result without changing anything.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Number of threads that examine files.
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Pack chunks smaller than this into objects of some MiB.
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size::parse)]
    pack_below: u64,
    /// Also write to FILE what --json prints: what was left out, and why. If the import fails,
    /// "error" is the reason.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print {"snapshot", "commits", "created_repository", "rebased_over", "nodes_created",
    /// "nodes_updated", "nodes_deleted", "chunks_written", "bytes_written", "chunks_virtual",
    /// "bytes_virtual", "allow_virtual": [PREFIX], "chunks_deleted", "chunks_unchanged",
    /// "untracked": [PATH], "untracked_count", "skipped": [FILE], "skipped_count", "left_out":
    /// [{"path", "why"}], "left_out_count", "warnings": [{"path", "why"}], "warnings_count",
    /// "faults": [{"path", "why"}], "faults_count", "conflicts", "dry_run"}; snapshot is null if
    /// nothing was committed, lists have at most 1000 entries, and left_out is of NetCDF, HDF5 and
    /// Zarr 2.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: Settings,
    #[command(flatten)]
    virtuals: VirtualArgs,
}

/// Imports a directory or a file.
pub(crate) fn run(arguments: &ImportArgs) -> Result<()> {
    arguments.report.as_deref().map_or(Ok(()), |path| check_report(path, arguments))?;
    let report = |result: &ImportResult| arguments.report.as_ref().map_or(Ok(()), |path| write_json(result, path));
    // An error says more than that its report cannot be written.
    let report_failed = |result: ImportResult, error: &Error| drop(report(&result.failed(error)));
    let Imported { result, left, error } = import_all(arguments).inspect_err(|error| {
        report_failed(ImportResult { dry_run: arguments.dry_run, ..ImportResult::default() }, error);
    })?;
    let failure = error.or_else(|| failure(&result)).map(|error| match result.commits {
        0 => error,
        commits => {
            let [commits, left] = [(commits, "commit"), (left, "file")].map(|(n, of)| size::counted(n as u64, of));
            error.context(format!("{commits} made, {left} left (import again with --skip-existing)"))
        }
    });
    if arguments.json {
        print_json(&result)?;
    } else if failure.is_none() || result.commits > 0 {
        print(&to_text(&result, arguments))?;
    }
    // The commits are printed by now: writing the report may fail.
    let Some(error) = failure else { return report(&result) };
    report_failed(result, &error);
    Err(error)
}

fn import_all(arguments: &ImportArgs) -> Result<Imported> {
    let options = options(arguments)?;
    let limits = open::MemoryLimits::default();
    let engine_options =
        EngineOptions { pack_below: arguments.pack_below, memory: limits.uploads(), ..EngineOptions::default() };
    let counters = Arc::new(Counters::default());
    let progress = CommitProgress::default();
    let state = || match (progress.now(), counters.now()) {
        (CommitState { stage: Stage::Waiting, .. }, (found, done, 0)) => {
            State::of("looking at files", (done, found), "files")
        }
        (CommitState { stage: Stage::Waiting, .. }, (found, done, bytes)) => {
            State::of("comparing with the branch", (done, found), "files").with_bytes(bytes)
        }
        (now, _) => State::of_bytes(<&str>::from(now.stage), (now.bytes_done, now.bytes)),
    };
    let names = names(arguments)?;
    let permissions = arguments.virtuals.permissions()?;
    let named = names.iter().filter_map(SourceName::allowed).fold(permissions, Permissions::allowing);
    let new = NewDirectories::of(&arguments.repo);
    let imported = progress::watched(state, || {
        open::run(async {
            let budget = |fixed| limits.budget(fixed);
            let apart = plan_file::reader();
            let means = ImportMeans {
                engine: engine_options,
                memory: &budget,
                clock: system_clock,
                apart: &apart,
                named: &named,
                settings: &arguments.store,
            };
            let Some(most) = arguments.commit_each.filter(|_| !arguments.dry_run) else {
                let target = target(arguments).await?;
                let result = import::import(&names, target, &options, means, &counters, &progress).await?;
                return Ok(Imported { result, ..Imported::default() });
            };
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let again = async || target(arguments).await;
            import_in_parts(&names, most, again, &options, means, &counters, &progress).await
        })
    });
    if imported.as_ref().map_or(true, |imported| failure(&imported.result).is_some()) {
        new.remove_empty();
    }
    imported
}

/// Returns what is to be imported.
fn names(arguments: &ImportArgs) -> Result<Vec<SourceName>> {
    let names: Vec<SourceName> = arguments.src.iter().map(|word| SourceName::parse(word)).collect::<Result<_>>()?;
    names.iter().try_for_each(|name| match name {
        SourceName::Local(path) => check_source(path, arguments),
        _ => Ok(()),
    })?;
    let is_one = matches!(names.as_slice(), [SourceName::Local(_) | SourceName::Object(_)]);
    if !is_one && arguments.append_dim.is_none() {
        return Err(Error::invalid(
            "several files can only be imported one after another along a dimension: name it with --append-dim, such as \
             --append-dim time",
        ));
    }
    Ok(names)
}

/// Fails if a report cannot be written to `path`, or would take the place of what is imported or of
/// the repository.
fn check_report(path: &Path, arguments: &ImportArgs) -> Result<()> {
    let folder = folder_of(path);
    let folder = std::fs::canonicalize(folder).map_err(|e| Error::io(format!("--report: {}", folder.display()), e))?;
    let place = std::fs::canonicalize(path).unwrap_or_else(|_| folder.join(path.file_name().unwrap_or_default()));
    let is_taken = |other: &Path| std::fs::canonicalize(other).is_ok_and(|other| place.starts_with(other));
    if place.is_dir() || is_taken(Path::new(&arguments.repo)) || arguments.src.iter().any(|source| is_taken(source)) {
        let shown = path.display();
        return Err(Error::invalid(format!("--report: {shown} is a directory, the repository, or what is imported")));
    }
    Ok(())
}

fn options(arguments: &ImportArgs) -> Result<ImportOptions> {
    Ok(ImportOptions {
        path: arguments.path.trim_matches('/').to_owned(),
        message: arguments.message.clone(),
        metadata: replace_commits::metadata(&arguments.metadata)?,
        on_conflict: arguments.on_conflict.unwrap_or_default(),
        delete: arguments.delete,
        whole: arguments.whole,
        dry_run: arguments.dry_run,
        jobs: arguments.jobs.into(),
        appending: arguments.append_dim.clone().map(|dimension| Appending {
            dimension,
            allow_gaps: arguments.allow_gaps,
            skip_existing: arguments.skip_existing,
            reencode: arguments.reencode,
        }),
        virtual_rules: arguments
            .are_virtual
            .then_some(VirtualRules { copy_below: arguments.copy_below, set_container: arguments.set_container }),
    })
}

/// Fails if what is to be imported is not a directory of Zarr files, as far as a look tells.
fn check_source(source: &Path, arguments: &ImportArgs) -> Result<()> {
    let shown = source.display();
    let found = recognize::at(source);
    if let Some(kind) = found.filter(|kind| kind.is_file() && !matches!(kind, Kind::NetCdf | Kind::Hdf5)) {
        let message = format!(
            "{shown} is {}, neither a directory of Zarr files nor a NetCDF or HDF5 file: open it with xarray, and write it \
             into a mount of {}",
            kind.name(),
            arguments.repo
        );
        return Err(Error::new(ErrorKind::NotADirectory, message));
    }
    if found == Some(Kind::Repository) && recognize::at(Path::new(&arguments.repo)).is_none() {
        let [from, to] = [source.to_string_lossy().as_ref(), &arguments.repo].map(shell::quote);
        let message = format!("{shown} is a repository: `icechunkfs clone {from} {to}` copies it");
        return Err(Error::invalid(message));
    }
    if found == Some(Kind::Repository) && recognize::at(Path::new(&arguments.repo)) == Some(Kind::Zarr3) {
        let message = format!(
            "{shown} is a repository, and {} a plain Zarr tree: are the arguments swapped? The directory comes first, then \
             the repository",
            arguments.repo
        );
        return Err(Error::invalid(message));
    }
    if arguments.append_dim.is_some() && source.exists() && !matches!(found, Some(Kind::NetCdf | Kind::Hdf5)) {
        return Err(Error::invalid(format!("{shown} is neither a NetCDF nor an HDF5 file: only those are appended")));
    }
    match std::fs::metadata(source) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let other = match recognize::at(Path::new(&arguments.repo)) {
                Some(kind @ (Kind::Zarr3 | Kind::Zarr2)) => {
                    format!("; {} is {}: are the arguments swapped?", arguments.repo, kind.name())
                }
                _ => String::new(),
            };
            Err(Error::new(ErrorKind::NotFound, format!("{shown}: no such file or directory{other}")))
        }
        _ => Ok(()),
    }
}

/// Directories on the way to a new repository that do not exist yet.
struct NewDirectories(Vec<PathBuf>);

impl NewDirectories {
    /// Finds them for the repository that `repo` names.
    fn of(repo: &str) -> Self {
        let Ok(Location { place: StorePlace::Local(path), .. }) = Location::parse(repo) else {
            return NewDirectories(Vec::new());
        };
        let missing = |path: &&Path| std::fs::symlink_metadata(path).is_err();
        NewDirectories(path.ancestors().take_while(missing).map(Path::to_owned).collect())
    }

    /// Removes those that are empty: a failed import leaves nothing.
    fn remove_empty(&self) {
        for directory in &self.0 {
            if std::fs::remove_dir(directory).is_err() {
                return;
            }
        }
    }
}

/// Opens the repository, or the empty location for one.
async fn target(arguments: &ImportArgs) -> Result<ImportTarget> {
    let nothing = |storage: Arc<dyn Storage>| match arguments.branch.as_str() {
        DEFAULT_BRANCH => {
            // Of a clone that was there before.
            notes().filter(|_| !arguments.dry_run).inspect(|notes| notes.remove(&*storage));
            Ok(ImportTarget::Empty(storage))
        }
        branch => Err(Error::new(
            ErrorKind::NotFound,
            format!("{}: there is no repository, and a new one does not have a branch `{branch}`", arguments.repo),
        )),
    };
    if let Some(mount) = open::info_of_mount_around(&arguments.repo) {
        return Err(in_mount(&arguments.repo, &mount));
    }
    let permissions = arguments.virtuals.permissions()?;
    let storage = match storage::open(&arguments.repo, &arguments.store).await {
        Err(error) if error.kind() == ErrorKind::NotFound && arguments.dry_run => {
            return nothing(storage::empty_storage(&arguments.repo));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let storage = open::new_place(&arguments.repo, &arguments.store).await?;
            return nothing(storage);
        }
        opened => opened?,
    };
    match Repository::open(Arc::clone(&storage)).await {
        Ok(repository) => {
            let repository = repository.allowing(permissions, &arguments.store);
            Ok(ImportTarget::Branch(repository, arguments.branch.clone()))
        }
        Err(error) if error.kind() == ErrorKind::NotARepository => match create::occupant(&*storage).await? {
            None => {
                open::check_new_place(&arguments.repo)?;
                nothing(storage)
            }
            Some(key) => Err(Error::new(
                ErrorKind::NotEmpty,
                format!(
                    "{} is not empty ({}) and holds no repository: name a repository, or an empty place for a new one",
                    arguments.repo,
                    printable::line(&key)
                ),
            )),
        },
        Err(error) => Err(error),
    }
}

/// Returns the error for the path `place` in a mount. A branch of its own can be looked at, and
/// deleted; among uncommitted changes of the user, a failed import could not be taken back.
fn in_mount(place: &str, mount: &MountInfo) -> Error {
    let repository = shell::quote(&mount.repository);
    Error::invalid(format!(
        "{} is inside the mount {}, and an import is a commit. To look at it first: `icechunkfs branch {repository} create look`, \
         import into {repository} with --branch look and --path, mount --branch look, and merge or delete that branch",
        printable::line(place),
        printable::line(&mount.mountpoint)
    ))
}

/// Returns the failure that prevented the commit, if any.
fn failure(imported: &ImportResult) -> Option<Error> {
    if imported.violations_count > 0 {
        let violations =
            imported.violations.iter().map(|SkippedPath { path, why }| printable::line(&format!("  {path}: {why}")));
        let message = format!("nothing was imported:\n{}", listed(violations, imported.violations_count));
        return Some(Error::multi_line(ErrorKind::InvalidInput, &message));
    }
    if !imported.conflicts.is_empty() {
        let conflicts = imported.conflicts.iter().map(|conflict| {
            let other = conflict.other;
            printable::line(&format!(
                "  {}: {} (commit {other} \"{}\")",
                conflict.path,
                conflict.kind.describe(),
                conflict.message
            ))
        });
        let nothing = if imported.commits > 0 { "nothing more" } else { "nothing" };
        let message = format!(
            "concurrent commits changed the same things; {nothing} was committed. Import again to compare with the branch tip:\n{}",
            listed(conflicts, imported.conflicts.len() as u64)
        );
        return Some(Error::multi_line(ErrorKind::Stale, &message));
    }
    None
}

fn to_text(imported: &ImportResult, arguments: &ImportArgs) -> String {
    let ImportResult { nodes_created, nodes_updated, nodes_deleted, chunks_deleted, chunks_unchanged, .. } = imported;
    let mut text = match (&imported.snapshot, imported.dry_run) {
        (Some(snapshot), _) if imported.created_repository => {
            format!("created {} and committed snapshot {snapshot}", printable::line(&arguments.repo))
        }
        (Some(snapshot), _) => {
            format!("committed snapshot {snapshot} to branch {}", printable::line(&arguments.branch))
        }
        (None, true) => "would commit".to_owned(),
        (None, false) => "nothing to commit".to_owned(),
    };
    if imported.commits > 1 {
        text += &format!(", the last of {} commits", imported.commits);
    }
    text += &format!(": {nodes_created} new groups and arrays, {nodes_updated} changed");
    if *nodes_deleted > 0 {
        text += &format!(", {nodes_deleted} deleted");
    }
    text += &format!("; {} chunks, {}", imported.chunks_written, size::text(imported.bytes_written));
    if arguments.are_virtual {
        text += &format!("; {} virtual, {}", imported.chunks_virtual, size::text(imported.bytes_virtual));
    }
    if *chunks_deleted > 0 {
        text += &format!(", {chunks_deleted} deleted");
    }
    if *chunks_unchanged > 0 {
        text += &format!("; {chunks_unchanged} were there");
    }
    if !imported.rebased_over.is_empty() {
        text += &format!("; rebased onto {} concurrent commits", imported.rebased_over.len());
    }
    text.push('\n');
    for prefix in &imported.allow_virtual {
        text += &format!("to read the virtual chunks: --allow-virtual {}\n", shell::quote(prefix));
    }
    if imported.untracked_count > 0 {
        let paths = imported.untracked.iter().map(|path| format!("  {path}"));
        text += &format!("left out, since Zarr has no place for it:\n{}\n", listed(paths, imported.untracked_count));
    }
    if !imported.skipped.is_empty() {
        let files = imported.skipped.iter().map(|file| printable::line(&format!("  {file}")));
        text += &format!("there already:\n{}\n", listed(files, imported.skipped_count));
    }
    if imported.left_out_count > 0 {
        let left_out =
            imported.left_out.iter().map(|SkippedPath { path, why }| printable::line(&format!("  {path}: {why}")));
        text += &format!("not as in the file:\n{}\n", listed(left_out, imported.left_out_count));
    }
    if imported.warnings_count > 0 {
        let warnings = imported.warnings.iter().map(|warning| printable::line(&format!("  {warning}")));
        text += &format!("warning:\n{}\n", listed(warnings, imported.warnings_count));
    }
    text
}
