//! Locks on a repository's directory that hold between processes, and between machines if the file system supports that.
//!
//! Each change takes two locks. `flock` on the directory itself is the lock of earlier releases; network file systems keep it on one
//! machine. The open-file-description lock (`F_OFD_SETLK`) on the file [`NAME`] is sent to the server by NFS, CIFS, Lustre and CephFS. If
//! such locks are local to a machine, or the file system is unknown, a change cannot be made safe.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::deadline::timed_out;
use crate::error::{Error, ErrorKind, Result};

/// Name of the lock file. This program and the reference implementation omit names that end in `#` and digits from listings. The first
/// change that compares creates the file, so that the directory of a repository that is being created stays empty until then.
pub(super) const NAME: &str = "lock#0";
/// Pause between two attempts to take a lock, which is held for the time of a rename and a flush.
const PAUSE: Duration = Duration::from_millis(2);
/// Pause if each attempt is a request to a server.
const PAUSE_ON_NETWORK: Duration = Duration::from_millis(10);

/// Reach of the locks of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locks {
    /// Only this machine uses the file system.
    OneMachine,
    /// Locks hold between all machines that use the file system.
    Shared,
    /// Locks may not hold between machines, for this reason.
    Unsafe(&'static str),
    /// Locks may not hold between machines, or do not exist, and the user guarantees a single writer.
    Waived,
}

/// Magic numbers (statfs(2)) of file systems that belong to one machine.
const OF_ONE_MACHINE: [u64; 25] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x2fc1_2fc1, // ZFS
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x794c_7630, // overlayfs, whose upper directory cannot be on a network
    0x3153_464a, // JFS
    0x5265_4973, // ReiserFS
    0x3434,      // NILFS
    0x2405_1905, // UBIFS
    0x72b6,      // JFFS2
    0x5346_544e, // NTFS
    0x7366_746e, // NTFS3
    0x2011_bab0, // exFAT
    0x4d44,      // FAT
    0x482b,      // HFS+
    0xf15f,      // eCryptfs
    0x7371_7368, // squashfs
    0xe0f5_e1e2, // EROFS
    0x9660,      // ISO 9660
    0x1501_3346, // UDF
    0x137f,      // Minix
];
/// Magic numbers of cluster file systems that always share locks between machines: CephFS, GFS2, OCFS2, GPFS.
const OF_A_CLUSTER: [u64; 4] = [0x00c3_6400, 0x0116_1970, 0x7461_636f, 0x4750_4653];
const NFS: u64 = 0x6969;
const CIFS: [u64; 3] = [0xff53_4d42, 0xfe53_4d42, 0x517b];
const LUSTRE: u64 = 0x0bd0_0bd0;
const FUSE: u64 = 0x6573_5546;

const UNKNOWN: &str = "whether its file system carries locks between machines is not known, so that two machines that commit at a \
    time could lose one's commit; to commit anyway, guarantee a single writer with --unsafe-single-writer";
const LOCAL_NFS: &str = "it is on NFS whose locks stay on this machine (mount option nolock or local_lock), so that two machines that \
    commit at a time could lose one's commit: mount the file system with its locks, or give --unsafe-single-writer if you guarantee a \
    single writer";
const LOCAL_LUSTRE: &str = "it is on Lustre without shared locks (mount option flock), so that two machines that commit at a time could \
    lose one's commit: mount the file system with -o flock, or give --unsafe-single-writer if you guarantee a single writer";
const LOCAL_CIFS: &str = "it is on SMB whose locks stay on this machine (mount option nobrl), so that two machines that commit at a time \
    could lose one's commit: mount the file system without nobrl, or give --unsafe-single-writer if you guarantee a single writer";

impl Locks {
    /// Determines the reach of the locks on the file system of `directory`. Unsafe ones are waived for a `single_writer`.
    pub(super) fn of(directory: &OwnedFd, single_writer: bool) -> Locks {
        match Locks::detect(directory) {
            Locks::Unsafe(_) if single_writer => Locks::Waived,
            locks => locks,
        }
    }

    fn detect(directory: &OwnedFd) -> Locks {
        let Ok(stat) = rustix::fs::fstatfs(directory) else { return Locks::Unsafe(UNKNOWN) };
        // A magic number has 32 bits; some kernels sign-extend it.
        let magic = stat.f_type as u64 & 0xffff_ffff;
        if OF_ONE_MACHINE.contains(&magic) {
            return Locks::OneMachine;
        }
        if OF_A_CLUSTER.contains(&magic) {
            return Locks::Shared;
        }
        let Some((kind, options)) = mount_of(directory) else { return Locks::Unsafe(UNKNOWN) };
        Locks::classify(magic, &kind, &options)
    }

    /// Classifies a file system of type `kind` that is mounted with `options`.
    fn classify(magic: u64, kind: &str, options: &str) -> Locks {
        let has = |wanted: &str| options.split(',').any(|option| option == wanted);
        let unless = |local: bool, why| if local { Locks::Unsafe(why) } else { Locks::Shared };
        match magic {
            // The kernel shows `none` if no lock is local, and `flock` if only that one is.
            NFS => unless(has("nolock") || !(has("local_lock=none") || has("local_lock=flock")), LOCAL_NFS),
            LUSTRE => unless(!has("flock") || has("localflock") || has("noflock"), LOCAL_LUSTRE),
            magic if CIFS.contains(&magic) => unless(has("nobrl"), LOCAL_CIFS),
            // A disk file system, served by a program of this machine.
            FUSE if kind == "fuseblk" => Locks::OneMachine,
            _ => Locks::Unsafe(UNKNOWN),
        }
    }
}

/// Returns type and options of the mount that `directory` is on.
fn mount_of(directory: &OwnedFd) -> Option<(String, String)> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.as_raw_fd())).ok()?;
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    parse_mount(&String::from_utf8_lossy(&table), id)
}

/// Parses lines like `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue` (proc_pid_mountinfo(5)).
fn parse_mount(table: &str, id: &str) -> Option<(String, String)> {
    let line = table.lines().find(|line| line.split(' ').next() == Some(id))?;
    let (_, behind) = line.split_once(" - ")?;
    let mut fields = behind.split(' ');
    let kind = fields.next()?.to_owned();
    Some((kind, fields.next_back()?.to_owned()))
}

/// Exclusive lock on a repository, until dropped.
#[derive(Debug)]
pub(super) struct Locked {
    _directory: OwnedFd,
    _file: Option<File>,
}

/// Locks the repository in `root` for a change of `key`.
pub(super) fn lock(root: &OwnedFd, key: &str, locks: Locks, deadline: Duration) -> Result<Locked> {
    // A separate descriptor is needed: locks belong to open files, and threads share `root`.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(root, ".", flags, Mode::empty()).map_err(|e| Error::io(key, e.into()))?;
    let waiter = Waiter { key, begin: Instant::now(), deadline, locks };
    let flock = waiter.until(|| rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive));
    // Some network file systems have no `flock` for directories; the lock on the file is the one that counts there.
    if let Err(error) = flock
        && (error.kind() != ErrorKind::Unsupported || locks == Locks::OneMachine)
    {
        return Err(error);
    }
    loop {
        let file = open_lock(root, &directory).map_err(|errno| failed(key, errno))?;
        match waiter.until(|| lock_file(&file)) {
            Err(error) if error.kind() == ErrorKind::Unsupported && locks == Locks::Waived => {
                return Ok(Locked { _directory: directory, _file: None });
            }
            locked => locked?,
        }
        // The file may have been removed meanwhile, so that other processes lock a new one.
        if is_named(root, &file) {
            refresh(root);
            return Ok(Locked { _directory: directory, _file: Some(file) });
        }
        waiter.check()?;
    }
}

/// Makes a network file system ask its server for the current names in `folder`.
pub(super) fn refresh(folder: &impl AsFd) {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    // The call only refreshes the kernel's caches: the next use of the folder reports a failure.
    let _ = rustix::fs::statx(folder, c"", flags, StatxFlags::BASIC_STATS);
}

struct Waiter<'a> {
    key: &'a str,
    begin: Instant,
    deadline: Duration,
    locks: Locks,
}

impl Waiter<'_> {
    /// Retries `attempt` until it succeeds or the deadline has passed.
    fn until(&self, attempt: impl Fn() -> Result<(), Errno>) -> Result<()> {
        loop {
            match attempt() {
                Ok(()) => return Ok(()),
                Err(Errno::WOULDBLOCK | Errno::ACCESS | Errno::INTR) => self.check()?,
                Err(errno) => return Err(failed(self.key, errno)),
            }
            std::thread::sleep(if self.locks == Locks::OneMachine { PAUSE } else { PAUSE_ON_NETWORK });
        }
    }

    fn check(&self) -> Result<()> {
        if self.begin.elapsed() < self.deadline {
            return Ok(());
        }
        Err(timed_out(format!("{}: waiting for another change of the repository", self.key), self.deadline))
    }
}

fn failed(key: &str, errno: Errno) -> Error {
    let what = format!("{key}: locking the repository ({NAME})");
    match errno {
        Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL => Error::new(
            ErrorKind::Unsupported,
            format!(
                "{what}: the file system has no locks ({errno}): to commit anyway, guarantee a single writer with --unsafe-single-writer"
            ),
        ),
        errno => Error::io(what, errno.into()),
    }
}

/// Opens the lock file, or creates it if it is missing. Every user who may change the directory may lock it.
fn open_lock(root: &OwnedFd, directory: &OwnedFd) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    loop {
        match rustix::fs::openat(root, NAME, flags, Mode::empty()) {
            Err(Errno::NOENT) => {}
            opened => return opened.map(File::from),
        }
        let made = rustix::fs::openat(root, NAME, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o666));
        match made {
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
            Ok(made) => {
                let made = File::from(made);
                if let Ok(stat) = rustix::fs::fstat(directory) {
                    // Other members of the directory's group may need the bits that the umask removed.
                    let _ = made.set_permissions(std::fs::Permissions::from_mode(stat.st_mode & 0o666));
                }
                return Ok(made);
            }
        }
    }
}

fn lock_file(file: &File) -> Result<(), Errno> {
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        // Required for locks of open file descriptions.
        l_pid: 0,
    };
    // SAFETY: the descriptor is open as long as `file` is, and the kernel reads `whole` during the call only.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) };
    if done == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}

/// Returns true if `file` still has the name [`NAME`] in `root`.
fn is_named(root: &OwnedFd, file: &File) -> bool {
    let named = rustix::fs::statat(root, NAME, AtFlags::SYMLINK_NOFOLLOW);
    let own = file.metadata();
    matches!((named, own), (Ok(named), Ok(own)) if named.st_ino == own.ino() && named.st_dev == own.dev())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn root(directory: &tempfile::TempDir) -> OwnedFd {
        OwnedFd::from(File::open(directory.path()).unwrap())
    }

    #[test]
    fn either_lock_alone_keeps_others_out() {
        let directory = tempfile::tempdir().unwrap();
        let root = root(&directory);
        let attempt = || lock(&root, "repo", Locks::OneMachine, Duration::from_millis(20));
        let held = attempt().unwrap();
        assert_eq!(attempt().unwrap_err().kind(), ErrorKind::Timeout);
        // Another machine holds only the lock on the file.
        let Locked { _directory: flock, _file: file } = held;
        drop(flock);
        assert_eq!(attempt().unwrap_err().kind(), ErrorKind::Timeout);
        drop(file);
        drop(attempt().unwrap());
        // An earlier release holds only the lock on the directory.
        let earlier = OwnedFd::from(File::open(directory.path()).unwrap());
        rustix::fs::flock(&earlier, FlockOperation::LockExclusive).unwrap();
        assert_eq!(attempt().unwrap_err().kind(), ErrorKind::Timeout);
        drop(earlier);
        attempt().unwrap();
    }

    #[test]
    fn a_lock_file_that_was_removed_keeps_nobody_in() {
        let directory = tempfile::tempdir().unwrap();
        let root = root(&directory);
        let old = open_lock(&root, &root).unwrap();
        std::fs::remove_file(directory.path().join(NAME)).unwrap();
        lock_file(&old).unwrap();
        drop(lock(&root, "repo", Locks::OneMachine, Duration::from_millis(20)).unwrap());
        assert!(!is_named(&root, &old));
    }

    #[test]
    fn file_systems_are_told_apart() {
        let table = "25 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            36 25 0:40 / /data\\040x rw,relatime shared:1 master:2 - nfs4 server:/x rw,vers=4.2,local_lock=none,addr=10.0.0.1\n";
        let (kind, options) = parse_mount(table, "36").unwrap();
        assert_eq!((kind.as_str(), Locks::classify(NFS, &kind, &options)), ("nfs4", Locks::Shared));
        assert_eq!(parse_mount(table, "3"), None);
        let cases = [
            (NFS, "nfs", "rw,vers=3,nolock,local_lock=all", false),
            (NFS, "nfs", "rw,vers=3,local_lock=posix", false),
            (NFS, "nfs", "rw,vers=3,local_lock=flock", true),
            (NFS, "nfs", "rw,vers=3", false),
            (LUSTRE, "lustre", "rw,checksum,flock,user_xattr", true),
            (LUSTRE, "lustre", "rw,checksum,localflock", false),
            (LUSTRE, "lustre", "rw", false),
            (0xff53_4d42, "cifs", "rw,vers=3.1.1", true),
            (0xff53_4d42, "cifs", "rw,vers=3.1.1,nobrl", false),
            (FUSE, "fuse.sshfs", "rw", false),
            (FUSE, "virtiofs", "rw", false),
            (0x0102_1997, "9p", "rw", false),
        ];
        for (magic, kind, options, shared) in cases {
            assert_eq!(Locks::classify(magic, kind, options) == Locks::Shared, shared, "{kind} {options}");
        }
        assert_eq!(Locks::classify(FUSE, "fuseblk", "rw"), Locks::OneMachine);
        assert_eq!(Locks::of(&root(&tempfile::tempdir().unwrap()), false), Locks::OneMachine);
    }
}
