//! Mounts of any user that call themselves icechunkfs, served by this process: their files and
//! answers are what a test wants.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::mount::{MountFlags, UnmountFlags};

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const READLINK: u32 = 5;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const FORGET: u32 = 2;
const BATCH_FORGET: u32 = 42;
const INTERRUPT: u32 = 36;

/// File of a mount.
#[derive(Clone, Debug)]
pub enum Node {
    Directory,
    Link(PathBuf),
    Fifo,
    File(Vec<u8>),
    /// A file without an end.
    Endless,
    /// A file whose reads and writes are never answered.
    Silent,
    /// A file whose writes are never answered.
    SilentWrites,
}

/// Mount whose daemon is a thread of this process.
pub struct FakeMount {
    place: PathBuf,
    requests: Arc<Mutex<Vec<u32>>>,
}

impl FakeMount {
    /// Mounts at `place` as `owner`, whom the kernel names as the user of the mount, for everybody
    /// if `for_all`. Paths of `files` have no slash at the beginning; their directories are among
    /// them. Needs root.
    pub fn new(place: &Path, owner: u32, for_all: bool, files: &[(&str, Node)]) -> FakeMount {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let allowed = if for_all { ",allow_other" } else { "" };
        let data = format!("fd={},rootmode=40000,user_id={owner},group_id={owner}{allowed}", device.as_raw_fd());
        let data = std::ffi::CString::new(data).unwrap();
        let source = "/data/\u{1b}[31mocean@branch:main";
        rustix::mount::mount(source, place, "fuse.icechunkfs", MountFlags::empty(), data.as_c_str()).unwrap();
        let requests = Arc::default();
        let mut nodes = vec![(String::new(), Node::Directory)];
        nodes.extend(files.iter().map(|(path, node)| ((*path).to_owned(), node.clone())));
        let server = Server { device, nodes, requests: Arc::clone(&requests) };
        std::thread::spawn(move || server.serve());
        FakeMount { place: place.to_owned(), requests }
    }

    pub fn path(&self) -> &Path {
        &self.place
    }

    /// Returns the operations of the requests so far, except those with which the kernel begins and
    /// cleans up.
    pub fn requests(&self) -> Vec<u32> {
        self.requests.lock().unwrap().clone()
    }

    /// Ends its daemon, as far as the kernel knows: every access fails with `ENOTCONN`.
    pub fn kill(&self) {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let _held = rustix::fs::open(&self.place, flags, rustix::fs::Mode::empty()).unwrap();
        // It stays mounted, as it is in use.
        assert_eq!(rustix::mount::unmount(&self.place, UnmountFlags::FORCE), Err(rustix::io::Errno::BUSY));
        assert_eq!(self.place.metadata().unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    }

    /// Returns true if something of type `fuse.icechunkfs` is mounted at `path`.
    pub fn is_at(path: &Path) -> bool {
        let table = std::fs::read("/proc/self/mountinfo").unwrap();
        let table = String::from_utf8_lossy(&table).into_owned();
        table
            .lines()
            .any(|line| line.split(' ').nth(4) == Some(path.to_str().unwrap()) && line.contains(" fuse.icechunkfs "))
    }
}

impl Drop for FakeMount {
    fn drop(&mut self) {
        // This releases every process that waits.
        let _ = rustix::mount::unmount(&self.place, UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}

struct Server {
    device: File,
    /// Paths and files; the inode number is the position and 1.
    nodes: Vec<(String, Node)>,
    requests: Arc<Mutex<Vec<u32>>>,
}

impl Server {
    fn serve(mut self) {
        let mut buffer = vec![0; 1 << 21];
        loop {
            let count = match self.device.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                Err(_) => return,
            };
            let number = |at: usize| u32::from_le_bytes(buffer[at..at + 4].try_into().unwrap());
            let long = |at: usize| u64::from_le_bytes(buffer[at..at + 8].try_into().unwrap());
            let operation = number(4);
            let unique = long(8);
            let inode = long(16);
            // A file that was closed is told of when the last descriptor of a process is, which a
            // process that begins may close at any time.
            if ![INIT, FORGET, BATCH_FORGET, INTERRUPT, FLUSH, RELEASE].contains(&operation) {
                self.requests.lock().unwrap().push(operation);
            }
            let node =
                self.nodes.get((inode as usize).wrapping_sub(1)).cloned().unwrap_or((String::new(), Node::Directory));
            let answer = match (operation, &node.1) {
                (FORGET | BATCH_FORGET | INTERRUPT, _) | (READ | WRITE, Node::Silent) | (WRITE, Node::SilentWrites) => {
                    continue;
                }
                (INIT, _) => Ok(init()),
                (LOOKUP, _) => {
                    let name = buffer[40..count].split(|byte| *byte == 0).next().unwrap();
                    let name = std::str::from_utf8(name).unwrap();
                    let path = if node.0.is_empty() { name.to_owned() } else { format!("{}/{name}", node.0) };
                    match self.nodes.iter().position(|(other, _)| *other == path) {
                        Some(found) => {
                            let found = found as u64 + 1;
                            Ok([&found.to_le_bytes()[..], &[0; 32], &self.attributes(found)].concat())
                        }
                        None => Err(libc::ENOENT),
                    }
                }
                (GETATTR, _) => Ok([&[0; 16][..], &self.attributes(inode)].concat()),
                (READLINK, Node::Link(target)) => Ok(target.to_str().unwrap().as_bytes().to_vec()),
                // Past the page cache.
                (OPEN, _) => Ok([&[0; 8][..], &1_u32.to_le_bytes(), &[0; 4]].concat()),
                (READ, node) => {
                    let at = long(48) as usize;
                    let size = number(56) as usize;
                    match node {
                        Node::File(bytes) => Ok(bytes[at.min(bytes.len())..(at + size).min(bytes.len())].to_vec()),
                        Node::Endless => Ok(vec![b'7'; size]),
                        Node::SilentWrites => Ok(Vec::new()),
                        _ => Err(libc::EIO),
                    }
                }
                (WRITE, _) => Ok([&number(56).to_le_bytes()[..], &[0; 4]].concat()),
                (RELEASE | FLUSH, _) => Ok(Vec::new()),
                _ => Err(libc::ENOSYS),
            };
            let (errno, body) = answer.map_or_else(|errno| (errno, Vec::new()), |body| (0, body));
            let length = u32::try_from(16 + body.len()).unwrap();
            let header = [&length.to_le_bytes()[..], &(-errno).to_le_bytes(), &unique.to_le_bytes()].concat();
            // A request that was interrupted has no receiver.
            let _ = self.device.write_all(&[header, body].concat());
        }
    }

    /// Returns `fuse_attr` of an inode.
    fn attributes(&self, inode: u64) -> Vec<u8> {
        let (kind, size) = match self.nodes.get(inode as usize - 1).map(|(_, node)| node) {
            Some(Node::Directory) | None => (0o040_755, 0),
            Some(Node::Link(target)) => (0o120_777, target.as_os_str().len() as u64),
            Some(Node::Fifo) => (0o010_666, 0),
            Some(Node::File(bytes)) => (0o100_666, bytes.len() as u64),
            Some(Node::Endless | Node::Silent | Node::SilentWrites) => (0o100_666, 4096),
        };
        let longs = [inode, size, 0, 0, 0, 0].map(u64::to_le_bytes).concat();
        let numbers = [0, 0, 0, kind, 1, 0, 0, 0, 4096, 0].map(u32::to_le_bytes).concat();
        [longs, numbers].concat()
    }
}

/// Returns `fuse_init_out` of protocol 7.31, with nothing negotiated.
fn init() -> Vec<u8> {
    let mut answer = vec![0; 64];
    answer[0] = 7;
    answer[4] = 31;
    answer[20..24].copy_from_slice(&65_536_u32.to_le_bytes());
    answer
}
