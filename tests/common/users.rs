//! Acting as another user of the machine, and places that both users reach.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user without rights who exists everywhere, with a group of the same number.
pub const NOBODY: u32 = 65534;

/// A directory below `/tmp` that every user may enter and only root may write to.
pub struct Commons {
    directory: tempfile::TempDir,
}

impl Commons {
    #[track_caller]
    pub fn new() -> Commons {
        assert!(rustix::process::geteuid().is_root(), "two users are needed: run this as root");
        let prefix = format!("icechunkfs-test-{}-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir_in("/tmp").unwrap();
        set_mode(directory.path(), 0o755);
        Commons { directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates a directory with `mode` that belongs to `owner`.
    pub fn directory(&self, name: &str, owner: u32, mode: u32) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        set_owner(&path, owner);
        set_mode(&path, mode);
        path
    }

    /// Copies the program under test to where `nobody` can run it.
    pub fn program(&self) -> PathBuf {
        let path = self.path("icechunkfs");
        if !path.exists() {
            // Another process copies: a copy that this one has open for writing while another
            // thread forks cannot be run.
            crate::common::run(Command::new("cp").arg(crate::common::program()).arg(&path)).success();
        }
        path
    }
}

/// Makes `path` belong to `owner` and the group of the same number.
pub fn set_owner(path: &Path, owner: u32) {
    std::os::unix::fs::lchown(path, Some(owner), Some(owner)).unwrap();
}

pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

pub fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

/// Returns a command that `nobody` runs.
pub fn as_nobody(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY).current_dir("/").env("HOME", "/nonexistent").env_remove("XDG_STATE_HOME");
    command
}

/// Returns the result of `work`, done by `nobody` on a new thread.
pub fn by_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            become_nobody();
            work()
        });
        worker.join().unwrap()
    })
}

/// Makes this thread, and no other one, `nobody`'s.
fn become_nobody() {
    let none = std::ptr::null::<libc::gid_t>();
    // SAFETY: the calls take numbers, and an empty list. Made as system calls they change the
    // calling thread alone.
    let done = unsafe {
        libc::syscall(libc::SYS_setgroups, 0, none) == 0
            && libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY) == 0
            && libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

/// Lets this thread, and what it starts from now on, mount where no other test sees it.
pub fn mount_apart() {
    // SAFETY: the call takes a number, and changes the calling thread alone.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert!(done == 0, "{}", std::io::Error::last_os_error());
    let apart = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
    rustix::mount::mount_change("/", apart).unwrap();
}

/// Makes a FIFO. A careless open of it waits for the other end.
pub fn fifo(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}
