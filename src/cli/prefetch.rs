//! `icechunkfs prefetch`: reads everything below a path of a mount once, so that the mount's cache
//! has it.
//!
//! Reads go through the mount, which knows the store and the cache, and bypass the kernel's page
//! cache (`O_DIRECT`). One thread reads neighbors in sequence, so that the mount detects the access
//! pattern and prefetches; there are several threads, because each waits most of the time.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use clap::Args;
use parking_lot::Mutex;
use rustix::fs::{Dir, FileType, OFlags};
use serde::Deserialize;

use super::progress::State;
use super::{control_client, print, progress};
use crate::fuse::open_mount::OpenMount;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::file_name::is_dots;
use icechunkfs_base::memory::Meter;
use icechunkfs_format::format::json;
use icechunkfs_format::zarr::array::ArrayMetadata;
use icechunkfs_format::zarr::chunk_key::{KeyEncoding, Separator, parse_number};
use icechunkfs_format::zarr::slices::Slices;
use icechunkfs_tree::tree::nodes::ZARR_JSON;
use icechunkfs_views::control_directory;

/// Files that one thread reads in sequence: enough for the mount to detect the access pattern.
const BATCH: usize = 64;
/// Batches that may wait for a thread.
const WAITING: usize = 16;
/// Bytes per read: the most that the kernel passes on as one request.
const READ: usize = 1 << 20;
/// Alignment of the buffer for reads that bypass the page cache, in bytes.
const ALIGNMENT: usize = 4096;
/// Longest document of an array that is read, in bytes.
const MAX_DOCUMENT: u64 = 256 << 20;
/// Maximum depth of directories: deeper than any path can be.
const DEEPEST: usize = 4096;

#[derive(Debug, Args)]
pub(crate) struct PrefetchArgs {
    /// The mountpoint of the repository.
    mountpoint: PathBuf,
    /// Read what is at and below this path in the mount [default: everything].
    path: Option<String>,
    /// Read only this part of the array at PATH, in Python's notation: 0:100,:,-5 (elements, not
    /// chunks).
    #[arg(long, value_name = "SLICES", allow_hyphen_values = true)]
    slice: Option<String>,
    /// Number of files to read at a time.
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
}

/// Reads the files that the arguments select.
pub(crate) fn run(arguments: &PrefetchArgs) -> Result<()> {
    let mount = control_client::open(&arguments.mountpoint)?;
    let path = control_client::path_in_mount(&mount, arguments.path.as_deref().unwrap_or_default())?;
    let start = Path::new(path.trim_matches('/'));
    let slices = arguments.slice.as_deref().map(Slices::parse).transpose().map_err(|e| e.context("--slice"))?;
    let part = slices.map(|slices| ChunkRanges::of(&mount, start, &slices)).transpose()?;
    let found = AtomicU64::new(0);
    let done = Mutex::new(PrefetchOutcome::default());
    let (sender, receiver) = sync_channel(WAITING);
    let receiver = Mutex::new(receiver);
    let state = || {
        let PrefetchOutcome { files, failed, bytes, .. } = &*done.lock();
        State::of("reading", (files + failed, found.load(Ordering::Relaxed)), "files").with_bytes(*bytes)
    };
    let read_all = || {
        std::thread::scope(|scope| {
            let readers: Vec<_> =
                (0..arguments.jobs).map(|_| scope.spawn(|| read_batches(&mount, &receiver, &done))).collect();
            let mut files = Files { batch: Vec::new(), sender, found: &found };
            let looked = match &part {
                Some(part) => part.find(&mount, start, &mut files),
                None => find(&mount, start, 0, &mut files),
            };
            files.send();
            drop(files);
            // A thread that panicked does not count its other files.
            readers.into_iter().for_each(|reader| drop(reader.join()));
            looked
        })
    };
    progress::watched(state, read_all)?;
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
    found: &'a AtomicU64,
}

impl Files<'_> {
    fn add(&mut self, path: PathBuf) {
        self.found.fetch_add(1, Ordering::Relaxed);
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

/// Finds every file at or below `path` of `mount`, except those in the control directory.
fn find(mount: &OpenMount, path: &Path, depth: usize, files: &mut Files<'_>) -> Result<()> {
    let failed = |e| Error::io(shown(mount, path), e);
    let start = mount.open_below(path, OFlags::PATH | OFlags::NOFOLLOW).map_err(failed)?;
    if !File::from(start).metadata().map_err(failed)?.is_dir() {
        files.add(path.to_owned());
        return Ok(());
    }
    for entry in entries(mount, path).map_err(failed)? {
        let entry = entry.map_err(|e| failed(e.into()))?;
        let name = entry.file_name().to_bytes();
        let below = path.join(OsStr::from_bytes(name));
        match entry.file_type() {
            FileType::Directory if is_dots(name) || below.as_os_str() == control_directory::NAME => {}
            FileType::Directory if depth < DEEPEST => find(mount, &below, depth + 1, files)?,
            FileType::RegularFile => files.add(below),
            _ => {}
        }
    }
    Ok(())
}

/// Lists directory `path` of `mount`.
fn entries(mount: &OpenMount, path: &Path) -> io::Result<Dir> {
    let directory = mount.open_below(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    Ok(Dir::new(directory)?)
}

/// Returns the path on this machine of `path` in `mount`, for messages.
fn shown(mount: &OpenMount, path: &Path) -> String {
    mount.mount().mountpoint.join(path).display().to_string()
}

/// Ranges of chunks of one array.
struct ChunkRanges {
    encoding: KeyEncoding,
    ranges: Vec<Range<u32>>,
}

impl ChunkRanges {
    fn of(mount: &OpenMount, array: &Path, slices: &Slices) -> Result<Self> {
        #[derive(Deserialize)]
        struct Node {
            node_type: String,
        }
        let path = array.join(ZARR_JSON);
        let place = shown(mount, array);
        let mut document = Vec::new();
        let file = mount.open_below(&path, OFlags::RDONLY | OFlags::NONBLOCK);
        let read = file.and_then(|file| File::from(file).take(MAX_DOCUMENT).read_to_end(&mut document));
        read.map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                Error::invalid(format!("--slice needs an array, and {place} is not an array"))
            }
            _ => Error::io(shown(mount, &path), e),
        })?;
        if json::parse::<Node>(&document, &mut Meter::brief("a zarr.json")).is_ok_and(|node| node.node_type != "array")
        {
            return Err(Error::invalid(format!("--slice needs an array, and {place} is a group")));
        }
        let metadata = ArrayMetadata::parse(&document).context(|| shown(mount, &path))?;
        Ok(ChunkRanges { encoding: metadata.key_encoding, ranges: slices.chunks(&document)? })
    }

    /// Finds the stored chunks.
    fn find(&self, mount: &OpenMount, array: &Path, files: &mut Files<'_>) -> Result<()> {
        match (self.encoding.separator, self.ranges.len()) {
            (Separator::Slash, 1..) if self.encoding.prefixed => {
                self.descend(mount, &array.join("c"), &self.ranges, files)
            }
            (Separator::Slash, 1..) => self.descend(mount, array, &self.ranges, files),
            (_, rank) => each_name(mount, array, |name| {
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

    fn descend(&self, mount: &OpenMount, directory: &Path, ranges: &[Range<u32>], files: &mut Files<'_>) -> Result<()> {
        let Some((range, below)) = ranges.split_first() else { return Ok(()) };
        each_name(mount, directory, |name| {
            let at = if below.is_empty() { self.encoding.parse_last(name) } else { parse_number(name) };
            if !at.is_some_and(|at| range.contains(&at)) {
                return Ok(());
            }
            let path = directory.join(name);
            if below.is_empty() {
                files.add(path);
                return Ok(());
            }
            self.descend(mount, &path, below, files)
        })
    }
}

/// Calls `then` for each name in `directory`; an array without chunks does not have the directory.
fn each_name(mount: &OpenMount, directory: &Path, mut then: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let failed = |e| Error::io(shown(mount, directory), e);
    let entries = match entries(mount, directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(|e| failed(e.into()))?;
        if let Ok(name) = entry.file_name().to_str() {
            then(name)?;
        }
    }
    Ok(())
}

fn read_batches(mount: &OpenMount, receiver: &Mutex<Receiver<Vec<PathBuf>>>, done: &Mutex<PrefetchOutcome>) {
    let mut memory = vec![0; READ + ALIGNMENT];
    let begin = memory.as_ptr().align_offset(ALIGNMENT);
    let Some(buffer) = memory.get_mut(begin..begin + READ) else { return };
    loop {
        // A thread that waits for a batch blocks the other threads, which could only wait for the
        // next one.
        let batch = receiver.lock().recv();
        let Ok(batch) = batch else { return };
        for path in batch {
            let read = read(mount, &path, buffer);
            let mut done = done.lock();
            match read {
                Ok(bytes) => {
                    done.files += 1;
                    done.bytes += bytes;
                }
                Err(error) => {
                    done.failed += 1;
                    done.first.get_or_insert_with(|| Error::io(shown(mount, &path), error));
                }
            }
        }
    }
}

/// Reads the whole file `path` of `mount` and returns the number of bytes.
fn read(mount: &OpenMount, path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    match read_with(mount, path, buffer, OFlags::DIRECT) {
        // With passthrough, the file system below may not support `O_DIRECT`.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => read_with(mount, path, buffer, OFlags::empty()),
        read => read,
    }
}

fn read_with(mount: &OpenMount, path: &Path, buffer: &mut [u8], flags: OFlags) -> io::Result<u64> {
    // Another user of a shared mount can put a FIFO in the place of a file, which would block
    // without NONBLOCK.
    let mut file = File::from(mount.open_below(path, OFlags::RDONLY | OFlags::NONBLOCK | flags)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = 0;
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
