//! `icechunkfs prefetch`: reads everything below a path of a mount once, so that the mount's cache has it.
//!
//! Reads go through the mount, which knows the store and the cache, and bypass the kernel's page cache (`O_DIRECT`). One thread
//! reads neighbors in sequence, so that the mount detects the access pattern and prefetches; there are several threads, because
//! each waits most of the time.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use clap::Args;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde::Deserialize;

use super::control_client::{control_directory, path_in_mount};
use super::{print, progress};
use crate::error::{Context, Error, Result};
use crate::fuse::probe;
use crate::tree::nodes::ZARR_JSON;
use crate::zarr::array::ArrayMetadata;
use crate::zarr::chunk_key::{KeyEncoding, Separator, parse_number};
use crate::zarr::slices::Slices;

/// Files that one thread reads in sequence: enough for the mount to detect the access pattern.
const BATCH: usize = 64;
/// Batches that may wait for a thread.
const WAITING: usize = 16;
/// Bytes per read: the most that the kernel passes on as one request.
const READ: usize = 1 << 20;
/// Alignment of the buffer for reads that bypass the page cache, in bytes.
const ALIGNMENT: usize = 4096;
/// Maximum depth of directories: deeper than any path can be.
const DEEPEST: usize = 4096;

#[derive(Debug, Args)]
pub(crate) struct PrefetchArgs {
    /// The mountpoint of the repository.
    mountpoint: PathBuf,
    /// A path in the mount: read what is at and below it [default: everything].
    path: Option<String>,
    /// Read only this part of the array at PATH, in Python's notation: 0:100,:,-5 (elements, not chunks).
    #[arg(long, value_name = "SLICES", allow_hyphen_values = true)]
    slice: Option<String>,
    /// Number of files to read at a time.
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
}

/// Reads the files that the arguments select.
pub(crate) fn run(arguments: &PrefetchArgs) -> Result<()> {
    let mountpoint = probe::require_responsive_mount(&arguments.mountpoint)?;
    let path = path_in_mount(&mountpoint, arguments.path.as_deref().unwrap_or_default())?;
    let start = mountpoint.join(path.trim_matches('/'));
    let slices = arguments.slice.as_deref().map(Slices::parse).transpose().map_err(|e| e.context("--slice"))?;
    let part = slices.map(|slices| ChunkRanges::of(&start, &slices)).transpose()?;
    let bar = progress::bar("{pos}/{len} files {wide_bar} {msg} {per_sec}");
    let done = Mutex::new(PrefetchOutcome::default());
    let (sender, receiver) = sync_channel(WAITING);
    let receiver = Mutex::new(receiver);
    let looked = std::thread::scope(|scope| {
        let readers: Vec<_> =
            (0..arguments.jobs).map(|_| scope.spawn(|| read_batches(&receiver, &done, &bar))).collect();
        let mut files = Files { batch: Vec::new(), sender, bar: &bar };
        let looked = match &part {
            Some(part) => part.find(&start, &mut files),
            None => find(&start, &control_directory(&mountpoint), 0, &mut files),
        };
        files.send();
        drop(files);
        // A thread that panicked does not count its other files.
        readers.into_iter().for_each(|reader| drop(reader.join()));
        looked
    });
    bar.finish_and_clear();
    looked?;
    let PrefetchOutcome { files, bytes, failed, first } = done.into_inner();
    print(&format!("{files} files, {bytes} bytes\n"))?;
    first.map_or(Ok(()), |error| Err(error.context(format!("{failed} files could not be read; the first"))))
}

#[derive(Debug, Default)]
struct PrefetchOutcome {
    files: u64,
    bytes: u64,
    failed: u64,
    first: Option<Error>,
}

/// Files that were found, on their way to the reading threads.
struct Files<'a> {
    batch: Vec<PathBuf>,
    sender: SyncSender<Vec<PathBuf>>,
    bar: &'a ProgressBar,
}

impl Files<'_> {
    fn add(&mut self, path: PathBuf) {
        self.bar.inc_length(1);
        self.batch.push(path);
        if self.batch.len() >= BATCH {
            self.send();
        }
    }

    fn send(&mut self) {
        // The receivers are gone only if they panicked.
        let _ = self.sender.send(std::mem::take(&mut self.batch));
    }
}

/// Finds every file at or below `path`, except those in the directory `control`.
fn find(path: &Path, control: &Path, depth: usize, files: &mut Files<'_>) -> Result<()> {
    let failed = |e| Error::io(path.display(), e);
    if !path.symlink_metadata().map_err(failed)?.is_dir() {
        files.add(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        match entry.file_type().map_err(failed)? {
            kind if kind.is_dir() && entry.path() != control && depth < DEEPEST => {
                find(&entry.path(), control, depth + 1, files)?;
            }
            kind if kind.is_file() => files.add(entry.path()),
            _ => {}
        }
    }
    Ok(())
}

/// Ranges of chunks of one array.
struct ChunkRanges {
    encoding: KeyEncoding,
    ranges: Vec<Range<u32>>,
}

impl ChunkRanges {
    fn of(array: &Path, slices: &Slices) -> Result<Self> {
        #[derive(Deserialize)]
        struct Node {
            node_type: String,
        }
        let path = array.join(ZARR_JSON);
        let document = std::fs::read(&path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                Error::invalid(format!("--slice goes with an array, and {} is none", array.display()))
            }
            _ => Error::io(path.display(), e),
        })?;
        if serde_json::from_slice::<Node>(&document).is_ok_and(|node| node.node_type != "array") {
            return Err(Error::invalid(format!("--slice goes with an array, and {} is a group", array.display())));
        }
        let metadata = ArrayMetadata::parse(&document).context(|| path.display().to_string())?;
        Ok(ChunkRanges { encoding: metadata.key_encoding, ranges: slices.chunks(&document)? })
    }

    /// Finds the stored chunks.
    fn find(&self, array: &Path, files: &mut Files<'_>) -> Result<()> {
        match (self.encoding.separator, self.ranges.len()) {
            (Separator::Slash, 1..) if self.encoding.prefixed => self.descend(&array.join("c"), &self.ranges, files),
            (Separator::Slash, 1..) => self.descend(array, &self.ranges, files),
            (_, rank) => each_name(array, |name| {
                let coords = self.encoding.parse_flat(name, rank);
                let inside =
                    |coords: Vec<u32>| std::iter::zip(&self.ranges, coords).all(|(range, at)| range.contains(&at));
                if coords.is_some_and(inside) {
                    files.add(array.join(name));
                }
                Ok(())
            }),
        }
    }

    fn descend(&self, directory: &Path, ranges: &[Range<u32>], files: &mut Files<'_>) -> Result<()> {
        let Some((range, below)) = ranges.split_first() else { return Ok(()) };
        each_name(directory, |name| {
            let at = if below.is_empty() { self.encoding.parse_last(name) } else { parse_number(name) };
            if !at.is_some_and(|at| range.contains(&at)) {
                return Ok(());
            }
            let path = directory.join(name);
            if below.is_empty() {
                files.add(path);
                return Ok(());
            }
            self.descend(&path, below, files)
        })
    }
}

/// Calls `then` for each name in `directory`; an array without chunks does not have the directory.
fn each_name(directory: &Path, mut then: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let failed = |e| Error::io(directory.display(), e);
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        if let Some(name) = entry.map_err(failed)?.file_name().to_str() {
            then(name)?;
        }
    }
    Ok(())
}

fn read_batches(receiver: &Mutex<Receiver<Vec<PathBuf>>>, done: &Mutex<PrefetchOutcome>, bar: &ProgressBar) {
    let mut memory = vec![0; READ + ALIGNMENT];
    let begin = memory.as_ptr().align_offset(ALIGNMENT);
    let Some(buffer) = memory.get_mut(begin..begin + READ) else { return };
    loop {
        // A thread that waits for a batch blocks the other threads, which could only wait for the next one.
        let batch = receiver.lock().recv();
        let Ok(batch) = batch else { return };
        for path in batch {
            let read = read(&path, buffer);
            let mut done = done.lock();
            match read {
                Ok(bytes) => {
                    done.files += 1;
                    done.bytes += bytes;
                    bar.set_message(format!("{}", indicatif::HumanBytes(done.bytes)));
                }
                Err(error) => {
                    done.failed += 1;
                    done.first.get_or_insert_with(|| Error::io(path.display(), error));
                }
            }
            bar.inc(1);
        }
    }
}

/// Reads the whole file at `path` and returns the number of bytes.
fn read(path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    match read_with(path, buffer, libc::O_DIRECT) {
        // With passthrough, the file system below may not support `O_DIRECT`.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => read_with(path, buffer, 0),
        read => read,
    }
}

fn read_with(path: &Path, buffer: &mut [u8], flags: i32) -> io::Result<u64> {
    let mut file = File::options().read(true).custom_flags(flags | libc::O_NOFOLLOW).open(path)?;
    let mut bytes = 0;
    loop {
        match io::Read::read(&mut file, buffer) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
