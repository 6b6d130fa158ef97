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
use super::face::Face;
use super::file_attr::{BLOCK, time};
use super::handle_flags::{kind_of, open_options};
use super::init;
use super::io_mode::IoMode;
use super::kept_listings::KeptListings;
use super::listing_hint::ListingHint;
use super::mount::Options;
use super::overlay_faces::WorkingFaces;
use super::quiet_log::QuietLog;
use super::reply::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Room,
};
use super::requests::{Caller, FileBytes, NewAttributes, Requests};
use super::root_map::RootMap;
use super::xattr::Xattr;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::metrics::{Operation, Outcome};
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_views::attached::{self, AttachedTrees};
use icechunkfs_working::control::{self, Control};
use icechunkfs_working::overlay::WorkingTree;
use icechunkfs_working::overlay::copy::Outside;
use icechunkfs_working::overlay::listing::Listed;
use icechunkfs_working::overlay::namespace::{CreateAttrs, RenameMode};
use icechunkfs_working::overlay::set_attributes::SetAttrs;
use icechunkfs_working::scratch::record::Name;

/// FUSE adapter of a writable mount.
#[derive(Debug)]
pub struct WorkingAdapter {
    faces: Arc<WorkingFaces>,
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
        let faces = WorkingFaces {
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
        WorkingAdapter { faces: Arc::new(faces), runtime, insist }
    }

    /// Runs `request`, which sends its own reply.
    fn run<F>(&self, request: impl FnOnce(Arc<WorkingFaces>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        answer(&self.runtime, request(Arc::clone(&self.faces)));
    }

    /// Runs `request` and sends its result.
    fn serve<R, T, F>(&self, call: Call, reply: R, request: impl FnOnce(Arc<WorkingFaces>) -> F + Send + 'static)
    where
        R: Reply<T>,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.run(|faces| async move {
            let result = request(Arc::clone(&faces)).await;
            faces.send(call, reply, result);
        });
    }

    /// Runs `request` on the name `of` in directory `parent` and sends its result. Errors name the
    /// path.
    fn serve_name<R, T, F>(
        &self,
        operation: &'static str,
        parent: Face,
        of: &OsStr,
        reply: R,
        request: impl FnOnce(Arc<WorkingFaces>, Ino, Name) -> F + Send + 'static,
    ) where
        R: Reply<T>,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let target = self.faces.tree_name(parent, of);
        self.serve(Call::of_name(operation, parent, of), reply, move |faces| async move {
            let (parent, name) = target?;
            let result = request(Arc::clone(&faces), parent, name.clone()).await;
            result.context(|| faces.describe(parent, &name))
        });
    }

    /// Refuses a change of an attached tree.
    fn refuse<T>(&self, operation: &'static str, reply: impl Reply<T>) {
        self.faces.send(operation.into(), reply, Err(attached::read_only_error()));
    }

    fn create_node(&self, operation: &'static str, parent: Face, of: &OsStr, new: CreateAttrs, reply: ReplyEntry) {
        self.faces.note_creation(parent, of);
        self.serve_name(operation, parent, of, reply, move |faces, parent, name| async move {
            faces.working.namespace().create(parent, name, new, false).await.map(|created| faces.timed(&created))
        });
    }

    fn remove(&self, operation: &'static str, parent: Face, of: &OsStr, is_directory: bool, reply: ReplyEmpty) {
        self.serve_name(operation, parent, of, reply, move |faces, parent, name| async move {
            faces.working.namespace().remove(parent, name, is_directory).await
        });
    }
}

fn create_attrs(caller: Caller, mode: u32) -> CreateAttrs {
    CreateAttrs { mode, uid: caller.uid, gid: caller.gid, rdev: 0, target: None, without_data: false }
}

impl Requests for WorkingAdapter {
    fn init(&mut self, config: &mut KernelConfig) -> std::io::Result<()> {
        init::negotiate(config, InitFlags::FUSE_ATOMIC_O_TRUNC);
        if self.faces.passthrough && !init::passthrough(config, self.insist)? {
            warn!("this kernel has no FUSE passthrough (6.9 has): bytes are copied");
            if let Some(faces) = Arc::get_mut(&mut self.faces) {
                faces.passthrough = false;
            }
        }
        Ok(())
    }

    fn face(&self, inode: INodeNo) -> Face {
        Face::of(inode, &self.faces.root)
    }

    fn lookup(&self, parent: Face, of: &OsStr, reply: ReplyEntry) {
        let name = Name::new(of.as_bytes());
        let call = Call::of_name("lookup", parent, of);
        self.serve(call, reply, move |faces| async move { faces.lookup(parent, name).await });
    }

    fn forget(&self, face: Face, times: u64) {
        // The shown directory has no name in the tree: without look-ups it would be dropped.
        if let Face::Tree(number) = face
            && number != self.faces.root.inner_root()
        {
            self.faces.working.namespace().forget(number, times);
        }
    }

    fn getattr(&self, face: Face, reply: ReplyAttr) {
        self.serve(Call::on("getattr", face), reply, move |faces| async move {
            match face {
                Face::Top => Ok(faces.timed(&faces.top())),
                Face::Control(file) => Ok(faces.timed(&control::attributes(file.number()))),
                Face::Attached(number) => faces.attached.attributes(number).await,
                Face::Tree(number) => Ok(faces.timed(&faces.working.upper().attributes(number).await?)),
            }
        });
    }

    fn setattr(&self, face: Face, attributes: NewAttributes, reply: ReplyAttr) {
        let NewAttributes { mode, uid, gid, size, atime, mtime } = attributes;
        let is_given = matches!(mtime, Some(TimeOrNow::SpecificTime(_)));
        let shown = self.faces.presentation;
        let settings = SetAttrs {
            mode: mode.map(|mode| (mode & 0o7777) as u16).filter(|_| !shown.hides_modes()),
            uid: uid.filter(|_| shown.uid.is_none()),
            gid: gid.filter(|_| shown.gid.is_none()),
            size,
            atime: atime.map(time),
            mtime: mtime.map(time),
        };
        match face {
            Face::Top => self.faces.send("setattr".into(), reply, Err(self.faces.top_error())),
            Face::Control(file) => self.serve(Call::on("commit", face), reply, move |faces| async move {
                if settings.mtime.is_some() {
                    faces.control.touch(file.number(), is_given).await?;
                } else if settings.size.is_some() {
                    faces.control.truncate(file.number())?;
                }
                Ok(faces.timed(&control::attributes(file.number())))
            }),
            Face::Attached(_) => self.refuse("setattr", reply),
            Face::Tree(number) => self.serve(Call::on("setattr", face), reply, move |faces| async move {
                let set = faces.working.contents().set_attributes(number, settings).await;
                set.map(|set| faces.timed(&set)).context(|| faces.working.upper().describe(number))
            }),
        }
    }

    fn readlink(&self, face: Face, reply: ReplyData) {
        let target = match face {
            Face::Tree(number) => self.faces.working.namespace().read_link(number),
            Face::Control(_) | Face::Attached(_) | Face::Top => Err(Error::invalid("not a symbolic link")),
        };
        self.faces.send(Call::on("readlink", face), reply, target.map(|target| target.0));
    }

    fn mknod(&self, caller: Caller, parent: Face, of: &OsStr, mode: u32, rdev: u32, reply: ReplyEntry) {
        let new = CreateAttrs { rdev, ..create_attrs(caller, mode) };
        self.create_node("mknod", parent, of, new, reply);
    }

    fn mkdir(&self, caller: Caller, parent: Face, of: &OsStr, mode: u32, reply: ReplyEntry) {
        if let Face::Top = parent {
            let name = of.to_owned();
            return self.serve(Call::of_name("mkdir", parent, of), reply, move |faces| async move {
                faces.make_entry(&name).await
            });
        }
        self.create_node("mkdir", parent, of, create_attrs(caller, mode & 0o7777 | libc::S_IFDIR), reply);
    }

    fn symlink(&self, caller: Caller, parent: Face, of: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = Some(Name::new(target.as_os_str().as_bytes()));
        let new = CreateAttrs { target, ..create_attrs(caller, 0o777 | libc::S_IFLNK) };
        self.create_node("symlink", parent, of, new, reply);
    }

    fn unlink(&self, parent: Face, of: &OsStr, reply: ReplyEmpty) {
        self.remove("unlink", parent, of, false, reply);
    }

    fn rmdir(&self, parent: Face, of: &OsStr, reply: ReplyEmpty) {
        if let Face::Top = parent {
            let name = of.to_owned();
            return self.serve(Call::of_name("rmdir", parent, of), reply, move |faces| async move {
                faces.remove_entry(&name).await
            });
        }
        self.remove("rmdir", parent, of, true, reply);
    }

    fn rename(
        &self,
        parent: Face,
        of: &OsStr,
        new_parent: Face,
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
        let target = self.faces.tree_name(new_parent, new_of);
        self.serve_name("rename", parent, of, reply, move |faces, parent, name| async move {
            let (new_parent, new_name) = target?;
            faces.working.namespace().rename(parent, name, new_parent, new_name, mode).await
        });
    }

    fn link(&self, face: Face, parent: Face, of: &OsStr, reply: ReplyEntry) {
        self.serve_name("link", parent, of, reply, move |faces, parent, name| async move {
            let number = match face {
                Face::Tree(number) => number,
                Face::Attached(_) => return Err(attached::read_only_error()),
                Face::Top | Face::Control(_) => return Err(control::read_only_error()),
            };
            faces.working.namespace().link(number, parent, name).await.map(|linked| faces.timed(&linked))
        });
    }

    fn create(&self, caller: Caller, parent: Face, of: &OsStr, mode: u32, flags: i32, reply: ReplyCreate) {
        self.faces.note_creation(parent, of);
        let target = self.faces.tree_name(parent, of);
        let new = create_attrs(caller, mode & 0o7777 | libc::S_IFREG);
        let call = Call::of_name("create", parent, of);
        self.run(|faces| async move {
            let errno = faces.create(target, new, flags, reply).await;
            faces.end(call, Outcome { errno, bytes: 0 });
        });
    }

    fn open(&self, face: Face, flags: OpenFlags, reply: ReplyOpen) {
        let options = open_options(flags, self.faces.passthrough);
        let call = Call::on("open", face);
        self.run(|faces| async move {
            let errno = faces.open(face, options, reply).await;
            faces.end(call, Outcome { errno, bytes: 0 });
        });
    }

    fn release(&self, face: Face, handle: FileHandle, reply: ReplyEmpty) {
        let number = match face {
            Face::Tree(number) => number,
            Face::Top | Face::Attached(_) => return reply.ok(),
            Face::Control(_) => {
                self.faces.control.release(handle.0);
                return reply.ok();
            }
        };
        let kind = kind_of(handle);
        if kind.backed {
            self.faces.backings.release(number);
        }
        self.serve(Call::on("close", face), reply, move |faces| async move {
            let released = faces.working.handles().release(number, kind).await;
            faces.control.forget(faces.working.moves().take_outdated()).await;
            released
        });
    }

    fn read(&self, face: Face, handle: FileHandle, offset: u64, size: u32, reply: ReplyData) {
        let call = Call::on("read", face).range(offset, size.into());
        match face {
            Face::Top => reply.error(Errno::EISDIR),
            Face::Control(_) => {
                let bytes = self.faces.control.read(handle.0, offset, size);
                self.faces.send(call, reply, Ok(bytes));
            }
            Face::Attached(number) => {
                self.serve(call, reply, move |faces| async move { faces.attached.read(number, offset, size).await })
            }
            Face::Tree(number) => {
                self.serve(call, reply, move |faces| async move {
                    faces.working.contents().read(number, offset, size).await
                });
            }
        }
    }

    fn write(&self, face: Face, handle: FileHandle, offset: u64, data: &[u8], reply: ReplyWrite) {
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let call = Call::on("write", face).range(offset, count.into());
        if let Face::Tree(number) = face
            && let Some(done) = self.faces.working.contents().write_now(number, offset, data)
        {
            return self.faces.send(call, reply, done.map(|()| count));
        }
        let data = data.to_vec();
        self.serve(call, reply, move |faces| async move {
            match face {
                Face::Control(_) => faces.control.write(handle.0, &data).await?,
                Face::Attached(_) => return Err(attached::read_only_error()),
                Face::Top => return Err(faces.top_error()),
                Face::Tree(number) => {
                    let written = faces.working.contents().write(number, offset, &data).await;
                    written.context(|| faces.working.upper().describe(number))?;
                }
            }
            Ok(count)
        });
    }

    fn flush(&self, face: Face, reply: ReplyEmpty) {
        let Face::Tree(number) = face else { return reply.ok() };
        let call = Call::on("close", face).counted_as(Operation::Flush);
        self.serve(call, reply, move |faces| async move {
            faces.working.contents().complete_number(number).await.context(|| faces.working.upper().describe(number))
        });
    }

    fn fsync(&self, face: Face, reply: ReplyEmpty) {
        let Face::Tree(number) = face else { return reply.ok() };
        self.serve(Call::on("fsync", face), reply, move |faces| async move {
            faces.working.contents().sync(Some(number)).await.context(|| faces.working.upper().describe(number))
        });
    }

    fn opendir(&self, face: Face, reply: ReplyOpen) {
        let handle = self.faces.next_listing.fetch_add(1, Ordering::Relaxed);
        let flags = match face {
            Face::Tree(number) => self.faces.kept_listings.open(number, self.faces.working.upper().moment()),
            // These change without the kernel's doing.
            Face::Top | Face::Control(_) | Face::Attached(_) => FopenFlags::empty(),
        };
        reply.opened(FileHandle(handle), flags);
    }

    fn releasedir(&self, handle: FileHandle, reply: ReplyEmpty) {
        self.faces.listings.lock().remove(&handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: Face, reply: ReplyEmpty) {
        self.serve("fsync".into(), reply, |faces| async move { faces.working.contents().sync(None).await });
    }

    fn readdir(&self, face: Face, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let call = Call::on("readdir", face);
        self.run(|faces| async move {
            if let Face::Attached(number) = face {
                let listed = faces.attached.list(number, offset, &mut reply).await;
                return faces.send(call, reply, listed);
            }
            let mut sink = |entry: Listed<'_>| {
                let attributes = faces.attr(&entry.attributes);
                !reply.add(attributes.ino, entry.offset, attributes.kind, OsStr::from_bytes(entry.name))
            };
            let listed = faces.list(face, handle, offset, Extent::All, &mut sink).await;
            faces.send(call, reply, listed);
        });
    }

    fn readdirplus(&self, face: Face, handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let call = Call::on("readdir", face);
        self.run(|faces| async move {
            // See super::listing_hint.
            let chunks_too = offset > 0 || faces.hint.begin(face.key());
            let extent = if chunks_too { Extent::All } else { Extent::BeforeChunks };
            if let Face::Attached(number) = face {
                let listed = faces.attached.list_with_attributes(number, offset, extent, &mut reply).await;
                return faces.send(call, reply, listed);
            }
            let moment = faces.working.upper().moment();
            let mut listed_numbers = Vec::new();
            let mut sink = |entry: Listed<'_>| {
                let (timeout, attributes) = faces.timed(&entry.attributes);
                // The kernel would keep a size of 0, and read nothing.
                let timeout = if entry.is_sized { timeout } else { Duration::ZERO };
                let name = OsStr::from_bytes(entry.name);
                let taken = !reply.add(entry.offset, name, &timeout, &attributes);
                if taken && !matches!(entry.name, b"." | b"..") {
                    listed_numbers.push(entry.attributes.number);
                }
                taken
            };
            let listed = faces.list(face, handle, offset, extent, &mut sink).await;
            // Each entry but the dots increments the lookup count.
            for number in &listed_numbers {
                faces.working.namespace().increment_lookups_of(*number);
            }
            faces.send(call, reply, listed);
            if faces.working.upper().moment() != moment {
                // The kernel did not know them when it was told what the move made outdated.
                faces.control.forget(listed_numbers).await;
            }
        });
    }

    fn statfs(&self, reply: ReplyStatfs) {
        let call = Call::from("statfs");
        let mut outcome = Outcome::default();
        match self.faces.working.upper().space() {
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
                let errno = self.faces.errno("statfs", &error);
                outcome.errno = errno.into();
                reply.error(errno);
            }
        }
        self.faces.end(call, outcome);
    }

    fn fallocate(&self, face: Face, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let Face::Tree(number) = face else { return self.refuse("fallocate", reply) };
        self.serve(Call::on("fallocate", face), reply, move |faces| async move {
            faces.working.contents().allocate(number, offset, length, mode).await
        });
    }

    fn lseek(&self, face: Face, offset: i64, whence: i32, reply: ReplyLseek) {
        let (Ok(offset), libc::SEEK_DATA | libc::SEEK_HOLE) = (u64::try_from(offset), whence) else {
            return reply.error(Errno::EINVAL);
        };
        let number = match face {
            Face::Tree(number) => number,
            Face::Top | Face::Control(_) => return reply.error(Errno::EINVAL),
            // No holes are known: there is one at the end.
            Face::Attached(number) => {
                return self.serve(Call::on("lseek", face), reply, move |faces| async move {
                    let size = faces.attached.attributes(number).await?.1.size;
                    let found = if whence == libc::SEEK_HOLE { size } else { offset };
                    Ok((offset < size).then_some(found))
                });
            }
        };
        self.serve(Call::on("lseek", face), reply, move |faces| async move {
            faces.working.contents().seek(number, offset, whence == libc::SEEK_HOLE).await
        });
    }

    fn copy_file_range(&self, from: FileBytes, to: FileBytes, length: u64, reply: ReplyWrite) {
        let FileBytes { face: from, offset } = from;
        let FileBytes { face: written, offset: at } = to;
        let to = match (from, written) {
            (_, Face::Attached(_)) => return self.refuse("copy_file_range", reply),
            (Face::Top | Face::Control(_), _) | (_, Face::Top | Face::Control(_)) => {
                return reply.error(Errno::EXDEV);
            }
            (_, Face::Tree(to)) => to,
        };
        let call = Call::on("copy_file_range", written).range(at, length);
        self.serve(call, reply, move |faces| async move {
            let copied = match from {
                Face::Attached(from) => {
                    let trees = faces.attached.trees();
                    let size = trees.attributes(from.number()).await?.attributes.size;
                    let payload = trees.payload(from.number());
                    let read = |at, count| trees.read(from.number(), at, count);
                    faces.working.contents().copy_in(Outside { size, payload, read }, offset, (to, at), length).await?
                }
                Face::Tree(from) => faces.working.contents().copy((from, offset), (to, at), length).await?,
                Face::Top | Face::Control(_) => 0,
            };
            Ok(u32::try_from(copied).unwrap_or(u32::MAX))
        });
    }

    fn getxattr(&self, face: Face, name: &OsStr, size: u32, reply: ReplyXattr) {
        // The kernel asks for the capabilities of a file before each write to it, unless it learns
        // here that there are none anywhere.
        if !self.faces.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        let Some(xattr) = name.to_str().and_then(Xattr::named) else { return reply.error(Errno::EOPNOTSUPP) };
        self.serve(Call::on("getxattr", face), reply, move |faces| async move {
            Ok(XattrValue(faces.xattr(xattr, face).await?, size))
        });
    }

    fn listxattr(&self, face: Face, size: u32, reply: ReplyXattr) {
        if !self.faces.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        self.serve(Call::on("listxattr", face), reply, move |faces| async move {
            let mut names = String::new();
            for xattr in Xattr::ALL {
                if faces.xattr(xattr, face).await?.is_some() {
                    xattr.add_to(&mut names);
                }
            }
            Ok(XattrValue(Some(names), size))
        });
    }
}
