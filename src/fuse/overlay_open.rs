//! Opens and creations of files of a writable mount, which the kernel reads and writes directly if
//! it can.

use fuser::{Errno, FileHandle, FopenFlags};

use super::face::Face;
use super::file_attr::FOREVER;
use super::handle_flags::handle_of;
use super::overlay_faces::WorkingFaces;
use super::reply::{ReplyCreate, ReplyOpen};
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_tree::inodes::Ino;
use icechunkfs_views::attached;
use icechunkfs_working::overlay::handles::OpenOptions;
use icechunkfs_working::overlay::namespace::CreateAttrs;
use icechunkfs_working::overlay::opens::HandleKind;
use icechunkfs_working::scratch::record::Name;

impl WorkingFaces {
    /// Returns the open flags of an inode that is read and written through the daemon.
    fn plain(&self, options: OpenOptions, in_scratch: bool) -> FopenFlags {
        // After passthrough writes, the kernel's page cache may be older than the file.
        let keep = if in_scratch && self.passthrough { FopenFlags::empty() } else { FopenFlags::FOPEN_KEEP_CACHE };
        if options.write { keep } else { keep | FopenFlags::FOPEN_NOFLUSH }
    }

    /// Opens a file. Returns the errno of a failure, otherwise 0.
    pub(super) async fn open(&self, face: Face, options: OpenOptions, reply: ReplyOpen) -> i32 {
        let fail = |reply: ReplyOpen, errno: Errno| {
            reply.error(errno);
            errno.into()
        };
        let number = match face {
            Face::Tree(number) => number,
            // A directory is not opened this way.
            Face::Top => return fail(reply, Errno::EISDIR),
            Face::Attached(_) if options.write => {
                return fail(reply, self.errno("open", &attached::read_only_error()));
            }
            Face::Attached(_) => {
                reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH);
                return 0;
            }
            Face::Control(file) => match self.control.open(file.number(), options.write, options.truncate).await {
                Ok(handle) => {
                    reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
                    return 0;
                }
                Err(error) => return fail(reply, self.errno("open", &error)),
            },
        };
        let opened = match self.working.handles().open_file(number, options).await {
            Ok(opened) => opened,
            Err(error) => {
                return fail(reply, self.errno("open", &error.context(self.working.upper().describe(number))));
            }
        };
        if self.working.moves().is_settling() {
            self.control.forget(vec![number]).await;
        }
        let kind = HandleKind { writes: options.write, backed: false, executes: options.execute };
        let Some(file) = opened.backing else {
            reply.opened(handle_of(kind), self.plain(options, opened.in_scratch));
            return 0;
        };
        let backing = self.backings.acquire(number).map(Ok);
        let backing = backing.unwrap_or_else(|| reply.open_backing(&*file).map(|id| self.backings.insert(number, id)));
        match backing {
            // Passthrough writes are in the data file before `close`: no flush is needed.
            Ok(backing) => {
                let handle = handle_of(HandleKind { backed: true, ..kind });
                reply.opened_passthrough(handle, FopenFlags::FOPEN_NOFLUSH, &backing);
            }
            Err(error) => {
                let place = self.working.upper().describe(number);
                self.log.failed("open", &Error::io(format!("{place}: no passthrough, copying"), error));
                self.working.handles().cancel_passthrough(number);
                reply.opened(handle_of(kind), self.plain(options, true));
            }
        }
        0
    }

    /// Creates a file. Returns the errno of a failure, otherwise 0.
    pub(super) async fn create(
        &self,
        target: Result<(Ino, Name)>,
        new: CreateAttrs,
        flags: i32,
        reply: ReplyCreate,
    ) -> i32 {
        // `cp` and similar tools create exclusively, and may then use copy_file_range, which can
        // make the file a reference to a stored chunk. That is impossible once the kernel writes to
        // the file directly.
        let may_refer = flags & libc::O_EXCL != 0;
        let new = CreateAttrs { without_data: may_refer, ..new };
        let created = async {
            let (parent, name) = target?;
            let created = self.working.namespace().create(parent, name.clone(), new, true).await;
            created.context(|| self.describe(parent, &name))
        };
        let created = match created.await {
            Ok(created) => created,
            Err(error) => {
                let errno = self.errno("create", &error);
                reply.error(errno);
                return errno.into();
            }
        };
        let attributes = self.attr(&created);
        let kind = HandleKind { writes: true, ..HandleKind::default() };
        if self.passthrough && !may_refer {
            let backed = self.working.handles().open_passthrough(created.number).and_then(|file| {
                reply.open_backing(&*file).map_err(|e| {
                    self.working.handles().cancel_passthrough(created.number);
                    Error::io("no passthrough", e)
                })
            });
            if let Ok(backing) = backed {
                let backing = self.backings.insert(created.number, backing);
                let handle = handle_of(HandleKind { backed: true, ..kind });
                let noflush = FopenFlags::FOPEN_NOFLUSH;
                reply.created_passthrough(&FOREVER, &attributes, handle, noflush, &backing);
                return 0;
            }
        }
        reply.created(&FOREVER, &attributes, handle_of(kind), FopenFlags::empty());
        0
    }
}
