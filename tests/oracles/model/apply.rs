//! One operation on one directory tree: the same code for the mount and for the model.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags, RenameFlags, SeekFrom, Timespec, Timestamps};
use rustix::io::Errno;

use super::ops::{MARKED, Op, Style, bytes};

/// Visible result of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Nothing,
    Text(String),
    Bytes(Vec<u8>),
}

/// The visible result, or the errno.
pub type Outcome = Result<Seen, i32>;

pub const SLOTS: usize = 6;

pub struct Handle {
    pub file: File,
    pub writes: bool,
}

/// A directory tree and the files that are open in it.
pub struct Side {
    pub root: PathBuf,
    pub slots: Vec<Option<Handle>>,
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or_else(|| panic!("an error without an errno: {error}"))
}

impl Side {
    pub fn new(root: PathBuf) -> Side {
        Side { root, slots: (0..SLOTS).map(|_| None).collect() }
    }

    pub fn close_all(&mut self) {
        self.slots.iter_mut().for_each(|slot| *slot = None);
    }

    fn at(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path.trim_start_matches('/')) }
    }

    /// Operations on the mount as a whole are done elsewhere.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        self.run(op).map_err(|error| errno(&error))
    }

    fn run(&mut self, op: &Op) -> io::Result<Seen> {
        match op {
            Op::Open { slot, path, how } => self.open(*slot, path, how),
            Op::Close { slot } => {
                self.slots[*slot] = None;
                Ok(Seen::Nothing)
            }
            Op::CopyRange { from, to, at, to_at, len } => self.copy_range(*from, *to, (*at, *to_at, *len)),
            Op::Pread { slot, .. }
            | Op::Pwrite { slot, .. }
            | Op::Write { slot, .. }
            | Op::Ftruncate { slot, .. }
            | Op::Fsync { slot, .. }
            | Op::Fallocate { slot, .. }
            | Op::MapWrite { slot, .. }
            | Op::MapRead { slot }
            | Op::Holes { slot }
            | Op::Fstat { slot } => match &mut self.slots[*slot] {
                Some(handle) => on_handle(&mut handle.file, op),
                None => Ok(Seen::Text("no handle".into())),
            },
            _ => self.on_path(op),
        }
    }

    fn open(&mut self, slot: usize, path: &str, how: &str) -> io::Result<Seen> {
        let has = |letter| how.contains(letter);
        let mut options = OpenOptions::new();
        options.read(has('r')).write(has('w')).append(has('a')).mode(0o644);
        // Implemented here: `std` refuses some combinations that programs use, such as O_CREAT for
        // reading.
        let mut flags = 0;
        for (letter, flag) in [('c', libc::O_CREAT), ('x', libc::O_CREAT | libc::O_EXCL), ('t', libc::O_TRUNC)] {
            flags |= if has(letter) { flag } else { 0 };
        }
        self.slots[slot] = None;
        let file = options.custom_flags(flags).open(self.at(path))?;
        if file.metadata()?.is_dir() {
            return Ok(Seen::Text("a directory".into()));
        }
        self.slots[slot] = Some(Handle { file, writes: has('w') || has('a') });
        Ok(Seen::Nothing)
    }

    fn copy_range(
        &mut self,
        from: usize,
        to: usize,
        (mut at, mut to_at, mut len): (u64, u64, u64),
    ) -> io::Result<Seen> {
        let (Some(source), Some(target)) = (&self.slots[from], &self.slots[to]) else {
            return Ok(Seen::Text("no handle".into()));
        };
        let mut copied = 0;
        while len > 0 {
            let done =
                rustix::fs::copy_file_range(&source.file, Some(&mut at), &target.file, Some(&mut to_at), len as usize)?;
            if done == 0 {
                break;
            }
            len -= done as u64;
            copied += done;
        }
        Ok(Seen::Text(format!("{copied} copied")))
    }

    fn on_path(&self, op: &Op) -> io::Result<Seen> {
        match op {
            Op::WriteFile { path, len, seed, style, parents } => {
                self.whole(path, &bytes(*seed, *len), *style, *parents)?;
            }
            Op::Document { path, text, style, parents } => self.whole(path, text.as_bytes(), *style, *parents)?,
            Op::ReadFile { path } => return Ok(Seen::Bytes(std::fs::read(self.at(path))?)),
            Op::CopyFile { from, to } => copy_file(&self.at(from), &self.at(to))?,
            Op::Truncate { path, size } => OpenOptions::new().write(true).open(self.at(path))?.set_len(*size)?,
            Op::Unlink { path } => rustix::fs::unlink(self.at(path))?,
            Op::Mkdir { path, parents: false } => std::fs::create_dir(self.at(path))?,
            Op::Mkdir { path, parents: true } => std::fs::create_dir_all(self.at(path))?,
            Op::Rmdir { path } => std::fs::remove_dir(self.at(path))?,
            Op::RemoveAll { path } => std::fs::remove_dir_all(self.at(path))?,
            Op::Rename { from, to, flag } => {
                let flags = match flag.as_str() {
                    "noreplace" => RenameFlags::NOREPLACE,
                    "exchange" => RenameFlags::EXCHANGE,
                    _ => RenameFlags::empty(),
                };
                rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags)?;
            }
            Op::Link { from, to } => std::fs::hard_link(self.at(from), self.at(to))?,
            Op::Symlink { target, path } => std::os::unix::fs::symlink(target, self.at(path))?,
            Op::Chmod { path, mode } => {
                std::fs::set_permissions(self.at(path), std::fs::Permissions::from_mode(*mode))?;
            }
            Op::Utimens { path, offset } => {
                let time =
                    Timespec { tv_sec: MARKED + i64::from(*offset), tv_nsec: i64::from(*offset) % 1_000_000_000 };
                let times = Timestamps { last_access: time, last_modification: time };
                rustix::fs::utimensat(CWD, self.at(path), &times, AtFlags::empty())?;
            }
            Op::FsyncDir { path } => {
                let directory = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(self.at(path))?;
                directory.sync_all()?;
            }
            Op::Stat { path } => return Ok(Seen::Text(describe(&std::fs::symlink_metadata(self.at(path))?))),
            Op::List { path } => {
                let mut names = Vec::new();
                for entry in std::fs::read_dir(self.at(path))? {
                    let entry = entry?;
                    let kind = entry.file_type()?;
                    let mark = if kind.is_dir() {
                        "/"
                    } else if kind.is_symlink() {
                        "@"
                    } else {
                        ""
                    };
                    names.push(format!("{}{mark}", entry.file_name().to_string_lossy()));
                }
                names.sort();
                return Ok(Seen::Text(names.join(" ")));
            }
            other => panic!("not an operation on files: {other}"),
        }
        Ok(Seen::Nothing)
    }

    fn whole(&self, path: &str, content: &[u8], style: Style, parents: bool) -> io::Result<()> {
        let target = self.at(path);
        if let (true, Some(parent)) = (parents, target.parent()) {
            std::fs::create_dir_all(parent)?;
        }
        if style == Style::InPlace {
            return File::create(&target)?.write_all(content);
        }
        let temporary = PathBuf::from(format!("{}.0123456789abcdef.partial", target.display()));
        File::create(&temporary)?.write_all(content)?;
        if style == Style::Rename {
            return std::fs::rename(&temporary, &target);
        }
        let linked = std::fs::hard_link(&temporary, &target);
        std::fs::remove_file(&temporary)?;
        linked
    }
}

/// Returns the attributes that must be equal: not the size of directories, which each file system
/// defines.
pub fn describe(metadata: &std::fs::Metadata) -> String {
    if metadata.is_dir() {
        return format!("directory {:o}", metadata.mode() & 0o7777);
    }
    if metadata.is_symlink() {
        return "link".into();
    }
    format!("file {:o} {} bytes {} links", metadata.mode() & 0o7777, metadata.len(), metadata.nlink())
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    if source.metadata()?.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    let mut target = OpenOptions::new().write(true).create(true).truncate(true).open(to)?;
    loop {
        match rustix::fs::copy_file_range(&source, None, &target, None, 1 << 30) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // As cp does; both sides copy the same bytes either way.
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                return io::copy(&mut source, &mut target).map(drop);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn on_handle(file: &mut File, op: &Op) -> io::Result<Seen> {
    match op {
        Op::Pread { at, len, .. } => {
            let mut buffer = vec![0; *len];
            let mut filled = 0;
            while filled < *len {
                match file.read_at(&mut buffer[filled..], at + filled as u64)? {
                    0 => break,
                    n => filled += n,
                }
            }
            buffer.truncate(filled);
            return Ok(Seen::Bytes(buffer));
        }
        Op::Pwrite { at, len, seed, .. } => file.write_all_at(&bytes(*seed, *len), *at)?,
        Op::Write { len, seed, .. } => file.write_all(&bytes(*seed, *len))?,
        Op::Ftruncate { size, .. } => file.set_len(*size)?,
        Op::Fsync { data_only: true, .. } => file.sync_data()?,
        Op::Fsync { data_only: false, .. } => file.sync_all()?,
        Op::Fallocate { mode, at, len, .. } => {
            let flags = match mode.as_str() {
                "keep_size" => FallocateFlags::KEEP_SIZE,
                "punch" => FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE,
                "zero" => FallocateFlags::ZERO_RANGE,
                _ => FallocateFlags::empty(),
            };
            rustix::fs::fallocate(&*file, flags, *at, *len)?;
        }
        Op::MapWrite { at, len, seed, sync, .. } => {
            let size = file.metadata()?.len() as usize;
            let start = (*at as usize).min(size);
            let end = (*at as usize + len).min(size);
            let map = Map::new(file, size, true)?;
            if let Some(map) = &map {
                map.write(start, &bytes(*seed, end - start));
                if *sync {
                    map.sync()?;
                }
            }
        }
        Op::MapRead { .. } => {
            let size = file.metadata()?.len() as usize;
            let map = Map::new(file, size, false)?;
            return Ok(Seen::Bytes(map.map_or_else(Vec::new, |map| map.read())));
        }
        Op::Holes { .. } => return holes(file),
        Op::Fstat { .. } => return Ok(Seen::Text(describe(&file.metadata()?))),
        other => panic!("not an operation on a handle: {other}"),
    }
    Ok(Seen::Nothing)
}

/// The file system decides where holes are; they must be zeros and end with the file.
fn holes(file: &mut File) -> io::Result<Seen> {
    let mut content = Vec::new();
    let mut reader = file.try_clone()?;
    let position = rustix::fs::tell(&*file)?;
    let outcome = (|| -> io::Result<String> {
        rustix::fs::seek(&*file, SeekFrom::Start(0))?;
        reader.read_to_end(&mut content)?;
        let size = content.len() as u64;
        let mut at = 0;
        while at < size {
            let data = match rustix::fs::seek(&*file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => size,
                Err(error) => return Err(error.into()),
            };
            if data < at || data > size || content[at as usize..data as usize].iter().any(|byte| *byte != 0) {
                return Ok(format!("a hole from {at} to {data} of {size} is none"));
            }
            if data == size {
                break;
            }
            let hole = rustix::fs::seek(&*file, SeekFrom::Hole(data))?;
            if hole <= data || hole > size {
                return Ok(format!("data from {data} end at {hole} of {size}"));
            }
            at = hole;
        }
        Ok("holes are zeros".into())
    })();
    rustix::fs::seek(&*file, SeekFrom::Start(position))?;
    outcome.map(Seen::Text)
}

/// A shared mapping of a whole file.
struct Map {
    start: *mut libc::c_void,
    size: usize,
}

impl Map {
    /// Returns None for an empty file, which cannot be mapped.
    fn new(file: &File, size: usize, writable: bool) -> io::Result<Option<Map>> {
        if size == 0 {
            return Ok(None);
        }
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping at a place that the kernel chooses touches nothing that exists.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Some(Map { start, size })) }
    }

    fn write(&self, at: usize, content: &[u8]) {
        assert!(at + content.len() <= self.size);
        // SAFETY: within the mapping, by the line above; the file was that long when it was mapped,
        // and nothing else uses it.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), self.start.cast::<u8>().add(at), content.len()) };
    }

    fn read(&self) -> Vec<u8> {
        // SAFETY: as in `write`; the bytes are copied before anything can change them.
        unsafe { std::slice::from_raw_parts(self.start.cast::<u8>(), self.size) }.to_vec()
    }

    fn sync(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours and whole.
        let done = unsafe { libc::msync(self.start, self.size, libc::MS_SYNC) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it.
        unsafe { libc::munmap(self.start, self.size) };
    }
}
