//! Adapter from the kernel's requests to [`WorkingTree`] and [`Control`]: a writable branch.
//!
//! Local changes come through the kernel, so that it can cache names and attributes forever here
//! too; invalidations report all others (a commit rebased over concurrent commits, a refresh, a
//! discard). Unlike in a read-only mount, the kernel must always send `open`: a commit has to know
//! which files are open for writing.
//!
//! Not implemented on purpose, so that the kernel stops asking: access lists, extended attributes
//! unless the user wants them, locks (the kernel's own are right for one machine).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fuser::{Errno, FileHandle, FopenFlags, INodeNo, InitFlags, KernelConfig, OpenFlags, RenameFlags, TimeOrNow};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tracing::warn;

use super::answer::{Reply, XattrValue, answer};
use super::attached_files::AttachedFiles;
use super::backing::Backings;
use super::call::Call;
use super::init;
use super::io_mode::IoMode;
use super::kept_listings::KeptListings;
use super::listing_hint::ListingHint;
use super::mount::Options;
use super::overlay_replies::{BLOCK, Shared, Target, kind_of, name, new, open_options, time};
use super::quiet_log::QuietLog;
use super::reply::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Room,
};
use super::requests::{Caller, FileBytes, NewAttributes, Requests};
use super::root_map::RootMap;
use super::xattr::Xattr;
use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::metrics::{Operation, Outcome};
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_views::attached::{self, AttachedTrees};
use icechunkfs_working::control::{self, Control};
use icechunkfs_working::overlay::copy::Outside;
use icechunkfs_working::overlay::listing::Listed;
use icechunkfs_working::overlay::namespace::{CreateAttrs, RenameMode};
use icechunkfs_working::overlay::set_attributes::SetAttrs;
use icechunkfs_working::overlay::{Ino, WorkingTree};
use icechunkfs_working::scratch::record::Name;

/// FUSE adapter of a writable mount.
#[derive(Debug)]
pub struct WorkingAdapter {
    shared: Arc<Shared>,
    runtime: Handle,
    /// True if the user requires passthrough: the mount then fails if the kernel cannot.
    insist: bool,
}

impl WorkingAdapter {
    /// Creates an adapter of `working`, commanded through `control`. In the passthrough mode, the
    /// kernel reads and writes scratch files directly.
    pub fn new(
        working: Arc<WorkingTree>,
        control: Arc<Control>,
        attached: Arc<AttachedTrees>,
        root: Arc<RootMap>,
        options: &Options,
        runtime: Handle,
    ) -> Self {
        let presentation = options.presentation;
        let insist = options.insist;
        let passthrough = options.mode == IoMode::Passthrough;
        let shared = Shared {
            working,
            control,
            attached: AttachedFiles::new(attached, presentation),
            root,
            backings: Backings::default(),
            passthrough,
            presentation,
            xattrs: options.xattrs,
            hint: ListingHint::default(),
            log: QuietLog::default(),
            listings: Mutex::default(),
            next_listing: AtomicU64::new(1),
            kept_listings: KeptListings::default(),
        };
        WorkingAdapter { shared: Arc::new(shared), runtime, insist }
    }

    /// Runs `request`, which sends its own reply.
    fn run<F>(&self, request: impl FnOnce(Arc<Shared>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        answer(&self.runtime, request(Arc::clone(&self.shared)));
    }

    /// Runs `request` and sends its result.
    fn serve<R, T, F>(&self, call: Call, reply: R, request: impl FnOnce(Arc<Shared>) -> F + Send + 'static)
    where
        R: Reply<T>,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.run(|shared| async move {
            let result = request(Arc::clone(&shared)).await;
            shared.send(call, reply, result);
        });
    }

    /// Runs `request` on the name `of` in directory `parent` and sends its result. Errors name the
    /// path.
    fn serve_name<R, T, F>(
        &self,
        operation: &'static str,
        (parent, of): (INodeNo, &OsStr),
        reply: R,
        request: impl FnOnce(Arc<Shared>, Ino, Name) -> F + Send + 'static,
    ) where
        R: Reply<T>,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let target = self.shared.tree_name(parent, of);
        self.serve(Call::of_name(operation, parent, of), reply, move |shared| async move {
            let (parent, name) = target?;
            let result = request(Arc::clone(&shared), parent, name.clone()).await;
            result.context(|| shared.describe(parent, &name))
        });
    }

    /// Refuses a change of an attached tree.
    fn refuse<T>(&self, operation: &'static str, reply: impl Reply<T>) {
        self.shared.send(operation.into(), reply, Err(attached::read_only_error()));
    }

    fn create_node(&self, operation: &'static str, place: (INodeNo, &OsStr), new: CreateAttrs, reply: ReplyEntry) {
        self.serve_name(operation, place, reply, move |shared, parent, name| async move {
            shared.working.namespace().create(parent, name, new, false).await.map(|created| shared.timed(&created))
        });
    }

    fn remove(&self, operation: &'static str, place: (INodeNo, &OsStr), is_directory: bool, reply: ReplyEmpty) {
        self.serve_name(operation, place, reply, move |shared, parent, name| async move {
            shared.working.namespace().remove(parent, name, is_directory).await
        });
    }
}

impl Requests for WorkingAdapter {
    fn init(&mut self, config: &mut KernelConfig) -> std::io::Result<()> {
        init::negotiate(config, InitFlags::FUSE_ATOMIC_O_TRUNC);
        if self.shared.passthrough && !init::passthrough(config, self.insist)? {
            warn!("this kernel has no FUSE passthrough (6.9 has): bytes are copied");
            if let Some(shared) = Arc::get_mut(&mut self.shared) {
                shared.passthrough = false;
            }
        }
        Ok(())
    }

    fn lookup(&self, parent: INodeNo, of: &OsStr, reply: ReplyEntry) {
        let name = name(of);
        let call = Call::of_name("lookup", parent, of);
        self.serve(call, reply, move |shared| async move { shared.lookup(parent, name).await });
    }

    fn forget(&self, inode: INodeNo, times: u64) {
        self.shared.working.namespace().forget(Ino(inode.0), times);
    }

    fn getattr(&self, inode: INodeNo, reply: ReplyAttr) {
        self.serve(Call::on("getattr", inode), reply, move |shared| async move {
            match shared.target(inode) {
                Target::Top => Ok(shared.timed(&shared.top())),
                Target::Control(number) => Ok(shared.timed(&control::attributes(number))),
                Target::Attached(number) => shared.attached.attributes(number).await,
                Target::Tree(number) => Ok(shared.timed(&shared.working.upper().attributes(number).await?)),
            }
        });
    }

    fn setattr(&self, inode: INodeNo, attributes: NewAttributes, reply: ReplyAttr) {
        let NewAttributes { mode, uid, gid, size, atime, mtime } = attributes;
        let is_given = matches!(mtime, Some(TimeOrNow::SpecificTime(_)));
        let shown = self.shared.presentation;
        let settings = SetAttrs {
            mode: mode.map(|mode| (mode & 0o7777) as u16).filter(|_| !shown.hides_modes()),
            uid: uid.filter(|_| shown.uid.is_none()),
            gid: gid.filter(|_| shown.gid.is_none()),
            size,
            atime: atime.map(time),
            mtime: mtime.map(time),
        };
        match self.shared.target(inode) {
            Target::Top => self.shared.send("setattr".into(), reply, Err(self.shared.top_error())),
            Target::Control(number) => self.serve(Call::on("commit", inode), reply, move |shared| async move {
                if settings.mtime.is_some() {
                    shared.control.touch(number, is_given).await?;
                }
                Ok(shared.timed(&control::attributes(number)))
            }),
            Target::Attached(_) => self.refuse("setattr", reply),
            Target::Tree(number) => self.serve(Call::on("setattr", inode), reply, move |shared| async move {
                let set = shared.working.contents().set_attributes(number, settings).await;
                set.map(|set| shared.timed(&set)).context(|| shared.working.upper().describe(number))
            }),
        }
    }

    fn readlink(&self, inode: INodeNo, reply: ReplyData) {
        let target = self.shared.working.namespace().read_link(Ino(inode.0));
        self.shared.send(Call::on("readlink", inode), reply, target.map(|target| target.0));
    }

    fn mknod(&self, caller: Caller, parent: INodeNo, of: &OsStr, mode: u32, rdev: u32, reply: ReplyEntry) {
        self.create_node("mknod", (parent, of), CreateAttrs { rdev, ..new(caller, mode) }, reply);
    }

    fn mkdir(&self, caller: Caller, parent: INodeNo, of: &OsStr, mode: u32, reply: ReplyEntry) {
        if let Target::Top = self.shared.target(parent) {
            let name = of.to_owned();
            return self.serve(Call::of_name("mkdir", parent, of), reply, move |shared| async move {
                shared.make_entry(&name).await
            });
        }
        self.create_node("mkdir", (parent, of), new(caller, mode & 0o7777 | libc::S_IFDIR), reply);
    }

    fn symlink(&self, caller: Caller, parent: INodeNo, of: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = Some(Name::new(target.as_os_str().as_bytes()));
        let new = CreateAttrs { target, ..new(caller, 0o777 | libc::S_IFLNK) };
        self.create_node("symlink", (parent, of), new, reply);
    }

    fn unlink(&self, parent: INodeNo, of: &OsStr, reply: ReplyEmpty) {
        self.remove("unlink", (parent, of), false, reply);
    }

    fn rmdir(&self, parent: INodeNo, of: &OsStr, reply: ReplyEmpty) {
        if let Target::Top = self.shared.target(parent) {
            let name = of.to_owned();
            return self.serve(Call::of_name("rmdir", parent, of), reply, move |shared| async move {
                shared.remove_entry(&name).await
            });
        }
        self.remove("rmdir", (parent, of), true, reply);
    }

    fn rename(
        &self,
        parent: INodeNo,
        of: &OsStr,
        new_parent: INodeNo,
        new_of: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = if flags == RenameFlags::RENAME_NOREPLACE {
            RenameMode::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            RenameMode::Exchange
        } else if flags.is_empty() {
            RenameMode::Replace
        } else {
            return reply.error(Errno::EINVAL);
        };
        let target = self.shared.tree_name(new_parent, new_of);
        self.serve_name("rename", (parent, of), reply, move |shared, parent, name| async move {
            let (new_parent, new_name) = target?;
            shared.working.namespace().rename(parent, name, new_parent, new_name, mode).await
        });
    }

    fn link(&self, inode: INodeNo, parent: INodeNo, of: &OsStr, reply: ReplyEntry) {
        self.serve_name("link", (parent, of), reply, move |shared, parent, name| async move {
            let number = match shared.target(inode) {
                Target::Tree(number) => number,
                Target::Attached(_) => return Err(attached::read_only_error()),
                Target::Top | Target::Control(_) => return Err(control::read_only_error()),
            };
            shared.working.namespace().link(number, parent, name).await.map(|linked| shared.timed(&linked))
        });
    }

    fn create(&self, caller: Caller, parent: INodeNo, of: &OsStr, mode: u32, flags: i32, reply: ReplyCreate) {
        let target = self.shared.tree_name(parent, of);
        let new = new(caller, mode & 0o7777 | libc::S_IFREG);
        let call = Call::of_name("create", parent, of);
        self.run(|shared| async move {
            let errno = shared.create(target, new, flags, reply).await;
            shared.end(call, Outcome { errno, bytes: 0 });
        });
    }

    fn open(&self, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let options = open_options(flags, self.shared.passthrough);
        let call = Call::on("open", inode);
        self.run(|shared| async move {
            let errno = shared.open(inode, options, reply).await;
            shared.end(call, Outcome { errno, bytes: 0 });
        });
    }

    fn release(&self, inode: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
        let number = match self.shared.target(inode) {
            Target::Tree(number) => number,
            Target::Top | Target::Attached(_) => return reply.ok(),
            Target::Control(_) => {
                self.shared.control.release(handle.0);
                return reply.ok();
            }
        };
        let kind = kind_of(handle);
        if kind.backed {
            self.shared.backings.release(inode.0);
        }
        self.serve(Call::on("close", inode), reply, move |shared| async move {
            let released = shared.working.handles().release(number, kind).await;
            shared.control.forget(shared.working.moves().take_outdated()).await;
            released
        });
    }

    fn read(&self, inode: INodeNo, handle: FileHandle, offset: u64, size: u32, reply: ReplyData) {
        let call = Call::on("read", inode).range(offset, size.into());
        match self.shared.target(inode) {
            Target::Top => reply.error(Errno::EISDIR),
            Target::Control(_) => {
                let bytes = self.shared.control.read(handle.0, offset, size);
                self.shared.send(call, reply, Ok(bytes));
            }
            Target::Attached(number) => {
                self.serve(call, reply, move |shared| async move { shared.attached.read(number, offset, size).await })
            }
            Target::Tree(number) => {
                self.serve(call, reply, move |shared| async move {
                    shared.working.contents().read(number, offset, size).await
                });
            }
        }
    }

    fn write(&self, inode: INodeNo, handle: FileHandle, offset: u64, data: &[u8], reply: ReplyWrite) {
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let call = Call::on("write", inode).range(offset, count.into());
        let target = self.shared.target(inode);
        if let Target::Tree(number) = target
            && let Some(done) = self.shared.working.contents().write_now(number, offset, data)
        {
            return self.shared.send(call, reply, done.map(|()| count));
        }
        let data = data.to_vec();
        self.serve(call, reply, move |shared| async move {
            match target {
                Target::Control(_) => shared.control.write(handle.0, &data).await?,
                Target::Attached(_) => return Err(attached::read_only_error()),
                Target::Top => return Err(shared.top_error()),
                Target::Tree(number) => {
                    let written = shared.working.contents().write(number, offset, &data).await;
                    written.context(|| shared.working.upper().describe(number))?;
                }
            }
            Ok(count)
        });
    }

    fn flush(&self, inode: INodeNo, reply: ReplyEmpty) {
        let Target::Tree(number) = self.shared.target(inode) else { return reply.ok() };
        let call = Call::on("close", inode).counted_as(Operation::Flush);
        self.serve(call, reply, move |shared| async move {
            shared.working.contents().complete_number(number).await.context(|| shared.working.upper().describe(number))
        });
    }

    fn fsync(&self, inode: INodeNo, reply: ReplyEmpty) {
        let Target::Tree(number) = self.shared.target(inode) else { return reply.ok() };
        self.serve(Call::on("fsync", inode), reply, move |shared| async move {
            shared.working.contents().sync(Some(number)).await.context(|| shared.working.upper().describe(number))
        });
    }

    fn opendir(&self, inode: INodeNo, reply: ReplyOpen) {
        let handle = self.shared.next_listing.fetch_add(1, Ordering::Relaxed);
        let flags = match self.shared.target(inode) {
            Target::Tree(_) => self.shared.kept_listings.open(inode.0, self.shared.working.upper().moment()),
            // These change without the kernel's doing.
            Target::Top | Target::Control(_) | Target::Attached(_) => FopenFlags::empty(),
        };
        reply.opened(FileHandle(handle), flags);
    }

    fn releasedir(&self, handle: FileHandle, reply: ReplyEmpty) {
        self.shared.listings.lock().remove(&handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: INodeNo, reply: ReplyEmpty) {
        self.serve("fsync".into(), reply, |shared| async move { shared.working.contents().sync(None).await });
    }

    fn readdir(&self, inode: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let call = Call::on("readdir", inode);
        self.run(|shared| async move {
            if let Target::Attached(number) = shared.target(inode) {
                let listed = shared.attached.list(number, offset, &mut reply).await;
                return shared.send(call, reply, listed);
            }
            let mut sink = |entry: Listed<'_>| {
                let attributes = shared.attr(&entry.attributes);
                !reply.add(attributes.ino, entry.offset, attributes.kind, OsStr::from_bytes(entry.name))
            };
            let listed = shared.list(inode, handle, offset, Extent::All, &mut sink).await;
            shared.send(call, reply, listed);
        });
    }

    fn readdirplus(&self, inode: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let call = Call::on("readdir", inode);
        self.run(|shared| async move {
            // See super::listing_hint.
            let chunks_too = offset > 0 || shared.hint.begin(inode.0);
            let extent = if chunks_too { Extent::All } else { Extent::BeforeChunks };
            if let Target::Attached(number) = shared.target(inode) {
                let listed = shared.attached.list_with_attributes(number, offset, extent, &mut reply).await;
                return shared.send(call, reply, listed);
            }
            let moment = shared.working.upper().moment();
            let mut listed_numbers = Vec::new();
            let mut sink = |entry: Listed<'_>| {
                let (timeout, attributes) = shared.timed(&entry.attributes);
                // The kernel would keep a size of 0, and read nothing.
                let timeout = if entry.is_sized { timeout } else { Duration::ZERO };
                let name = OsStr::from_bytes(entry.name);
                let taken = !reply.add(entry.offset, name, &timeout, &attributes);
                if taken && !matches!(entry.name, b"." | b"..") {
                    listed_numbers.push(entry.attributes.number);
                }
                taken
            };
            let listed = shared.list(inode, handle, offset, extent, &mut sink).await;
            // Each entry but the dots increments the lookup count.
            for number in &listed_numbers {
                shared.working.namespace().increment_lookups_of(*number);
            }
            shared.send(call, reply, listed);
            if shared.working.upper().moment() != moment {
                // The kernel did not know them when it was told what the move made outdated.
                shared.control.forget(listed_numbers).await;
            }
        });
    }

    fn statfs(&self, reply: ReplyStatfs) {
        let call = Call::from("statfs");
        let mut outcome = Outcome::default();
        match self.shared.working.upper().space() {
            Ok(space) => {
                let block = u32::try_from(space.f_frsize).unwrap_or(BLOCK);
                reply.statfs(&Room {
                    blocks: (space.f_blocks, space.f_bfree, space.f_bavail),
                    files: (space.f_files, space.f_ffree),
                    block,
                    longest_name: icechunkfs_tree::tree::nodes::MAX_NAME as u32,
                });
            }
            Err(error) => {
                let errno = self.shared.errno("statfs", &error);
                outcome.errno = errno.into();
                reply.error(errno);
            }
        }
        self.shared.end(call, outcome);
    }

    fn fallocate(&self, inode: INodeNo, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let Target::Tree(number) = self.shared.target(inode) else { return self.refuse("fallocate", reply) };
        self.serve(Call::on("fallocate", inode), reply, move |shared| async move {
            shared.working.contents().allocate(number, offset, length, mode).await
        });
    }

    fn lseek(&self, inode: INodeNo, offset: i64, whence: i32, reply: ReplyLseek) {
        let (Ok(offset), libc::SEEK_DATA | libc::SEEK_HOLE) = (u64::try_from(offset), whence) else {
            return reply.error(Errno::EINVAL);
        };
        let number = match self.shared.target(inode) {
            Target::Tree(number) => number,
            Target::Top | Target::Control(_) => return reply.error(Errno::EINVAL),
            // No holes are known: there is one at the end.
            Target::Attached(number) => {
                return self.serve(Call::on("lseek", inode), reply, move |shared| async move {
                    let size = shared.attached.attributes(number).await?.1.size;
                    let found = if whence == libc::SEEK_HOLE { size } else { offset };
                    Ok((offset < size).then_some(found))
                });
            }
        };
        self.serve(Call::on("lseek", inode), reply, move |shared| async move {
            shared.working.contents().seek(number, offset, whence == libc::SEEK_HOLE).await
        });
    }

    fn copy_file_range(&self, from: FileBytes, to: FileBytes, length: u64, reply: ReplyWrite) {
        let (FileBytes { inode: from, offset }, FileBytes { inode: to, offset: at }) = (from, to);
        let written = to;
        let (from, to) = match (self.shared.target(from), self.shared.target(to)) {
            (_, Target::Attached(_)) => return self.refuse("copy_file_range", reply),
            (Target::Top | Target::Control(_), _) | (_, Target::Top | Target::Control(_)) => {
                return reply.error(Errno::EXDEV);
            }
            (from, Target::Tree(to)) => (from, to),
        };
        let call = Call::on("copy_file_range", written).range(at, length);
        self.serve(call, reply, move |shared| async move {
            let copied = match from {
                Target::Attached(number) => {
                    let trees = shared.attached.trees();
                    let size = trees.attributes(number.0).await?.attributes.size;
                    let payload = trees.payload(number.0);
                    let read = |at, count| trees.read(number.0, at, count);
                    shared.working.contents().copy_in(Outside { size, payload, read }, offset, (to, at), length).await?
                }
                Target::Tree(from) => shared.working.contents().copy((from, offset), (to, at), length).await?,
                Target::Top | Target::Control(_) => 0,
            };
            Ok(u32::try_from(copied).unwrap_or(u32::MAX))
        });
    }

    fn getxattr(&self, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        // The kernel asks for the capabilities of a file before each write to it, unless it learns
        // here that there are none anywhere.
        if !self.shared.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        let Some(xattr) = name.to_str().and_then(Xattr::named) else { return reply.error(Errno::EOPNOTSUPP) };
        self.serve(Call::on("getxattr", inode), reply, move |shared| async move {
            Ok(XattrValue(shared.xattr(xattr, inode).await?, size))
        });
    }

    fn listxattr(&self, inode: INodeNo, size: u32, reply: ReplyXattr) {
        if !self.shared.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        self.serve(Call::on("listxattr", inode), reply, move |shared| async move {
            let mut names = String::new();
            for xattr in Xattr::ALL {
                if shared.xattr(xattr, inode).await?.is_some() {
                    xattr.add_to(&mut names);
                }
            }
            Ok(XattrValue(Some(names), size))
        });
    }
}
