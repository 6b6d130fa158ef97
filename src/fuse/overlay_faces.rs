//! The faces of a writable mount: its working tree, its control directory and its attached trees,
//! in the kernel's terms.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fuser::{BackingId, Errno, FileAttr, FileHandle};
use parking_lot::Mutex;

use super::answer::{Reply, outcome_of};
use super::attached_files::AttachedFiles;
use super::backing::Backings;
use super::call::Call;
use super::face::Face;
use super::file_attr::{FOREVER, attr};
use super::kept_listings::KeptListings;
use super::listing_hint::ListingHint;
use super::presentation::Presentation;
use super::quiet_log::QuietLog;
use super::root_map::RootMap;
use super::xattr::{self, Xattr};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::metrics::Outcome;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_views::attached::{self, is_attached};
use icechunkfs_views::control_directory::state::MountState;
use icechunkfs_views::control_directory::{self, DIRECTORY, MountKind, NAME};
use icechunkfs_working::control::{self, Control};
use icechunkfs_working::overlay::WorkingTree;
use icechunkfs_working::overlay::attributes::Attributes;
use icechunkfs_working::overlay::file_origin::FileOrigin;
use icechunkfs_working::overlay::listing::{Listed, Listing};
use icechunkfs_working::scratch::record::Name;

/// Writable mount, by what answers requests on its inodes.
#[derive(Debug)]
pub(super) struct WorkingFaces {
    pub(super) working: Arc<WorkingTree>,
    pub(super) control: Arc<Control>,
    pub(super) attached: AttachedFiles,
    pub(super) root: Arc<RootMap>,
    pub(super) backings: Backings<BackingId>,
    pub(super) passthrough: bool,
    pub(super) presentation: Presentation,
    /// True if programs may ask for extended attributes.
    pub(super) xattrs: bool,
    pub(super) hint: ListingHint,
    pub(super) log: QuietLog,
    /// Listings in progress, by handle.
    pub(super) listings: Mutex<HashMap<u64, Arc<Listing>>>,
    pub(super) next_listing: AtomicU64,
    pub(super) kept_listings: KeptListings,
}

impl WorkingFaces {
    /// Returns attributes with the kernel's number.
    pub(super) fn attr(&self, of: &Attributes) -> FileAttr {
        let attr = FileAttr { ino: self.root.outer(of.number), ..attr(of) };
        match control_directory::part_of(of.number) {
            Some(part) => self.presentation.apply_control(part, attr),
            None => self.presentation.apply(attr),
        }
    }

    /// Returns attributes, and the time for which the kernel may cache them: control files change
    /// without the kernel's doing.
    pub(super) fn timed(&self, of: &Attributes) -> (Duration, FileAttr) {
        let is_control = control_directory::is_control(of.number) || is_attached(of.number);
        (if is_control { Duration::ZERO } else { FOREVER }, self.attr(of))
    }

    /// Returns the negative entry, number 0, which the kernel caches.
    pub(super) fn absent(&self) -> (Duration, FileAttr) {
        self.timed(&control::attributes(Ino(0)))
    }

    pub(super) fn errno(&self, operation: &str, error: &Error) -> Errno {
        // Failures that programs provoke routinely are not logged.
        if self.control.errors().record(operation, error) {
            self.log.failed(operation, error);
        }
        Errno::from_i32(error.errno())
    }

    pub(super) fn send<T, R: Reply<T>>(&self, call: Call, reply: R, result: Result<T>) {
        let result = result.map_err(|error| self.errno(call.operation(), &error));
        // Counted before the program goes on, so that it finds its own requests in the counts.
        self.end(call, outcome_of::<T, R>(&result));
        reply.send(result);
    }

    pub(super) fn end(&self, call: Call, outcome: Outcome) {
        call.end(outcome, |face| match face {
            Face::Control(file) => control::describe(file.number()),
            Face::Attached(number) => self.attached.describe(number),
            Face::Top => "/".to_owned(),
            Face::Tree(number) => self.working.upper().describe(number),
        });
    }

    pub(super) async fn lookup(&self, parent: Face, name: Name) -> Result<(Duration, FileAttr)> {
        if parent.is_root(&self.root) && *name.0 == *NAME.as_bytes() {
            return Ok(self.timed(&control::attributes(DIRECTORY)));
        }
        match parent {
            Face::Attached(number) => {
                let found = self.attached.lookup(number, OsStr::from_bytes(&name.0)).await?;
                self.hint.looked_up(parent.key());
                Ok(found)
            }
            Face::Control(_) => {
                let entry = name.text().and_then(|name| control_directory::entry(MountKind::Writable, name));
                let entry = entry.ok_or_else(|| Error::new(ErrorKind::NotFound, name.to_string()))?;
                match entry.file {
                    Some(_) => Ok(self.timed(&control::attributes(entry.number))),
                    None => self.attached.directory(entry.number).await,
                }
            }
            Face::Top => self.lookup_entry(&name).await,
            Face::Tree(number) => Ok(match self.working.namespace().lookup(number, &name).await? {
                Some(found) => {
                    self.hint.looked_up(parent.key());
                    self.timed(&found)
                }
                None => self.absent(),
            }),
        }
    }

    /// Lists directory `face`, but not one of an attached tree, whose entries are of another type.
    pub(super) async fn list(
        &self,
        face: Face,
        handle: FileHandle,
        offset: u64,
        extent: Extent,
        sink: &mut (impl FnMut(Listed<'_>) -> bool + Send),
    ) -> Result<()> {
        let is_root = face.is_root(&self.root);
        if is_root && !self.control.list_in_root(offset, sink) {
            return Ok(());
        }
        let offset_in_tree = if is_root { Control::root_offset(offset) } else { offset };
        match face {
            Face::Control(_) => self.control.list(offset, sink),
            Face::Attached(_) => {}
            Face::Top => self.list_top(offset_in_tree, sink).await?,
            Face::Tree(number) => {
                let listing = self.listing(handle, offset);
                let listed = self.working.namespace().list(number, offset_in_tree, &listing, extent, sink).await;
                listed.context(|| self.working.upper().describe(number))?;
            }
        }
        Ok(())
    }

    /// Returns the listing of `handle`. One begins if `offset` is 0, or if the kernel had the
    /// entries before `offset` from another handle.
    fn listing(&self, handle: FileHandle, offset: u64) -> Arc<Listing> {
        let begin = || Arc::new(self.working.namespace().begin_listing());
        let mut listings = self.listings.lock();
        if offset == 0 {
            listings.remove(&handle.0);
        }
        Arc::clone(listings.entry(handle.0).or_insert_with(begin))
    }

    /// Returns a name of the tree, with its directory. Fails for names of the control directory and
    /// of the root above the tree.
    pub(super) fn tree_name(&self, parent: Face, of: &OsStr) -> Result<(Ino, Name)> {
        let is_control = of.as_bytes() == NAME.as_bytes();
        match parent {
            Face::Tree(number) if is_control && (parent.is_root(&self.root) || number == Ino::ROOT) => {
                Err(control::read_only_error())
            }
            Face::Tree(parent) => Ok((parent, Name::new(of.as_bytes()))),
            Face::Attached(_) => Err(attached::read_only_error()),
            Face::Top if !is_control => Err(self.top_error()),
            Face::Top | Face::Control(_) => Err(control::read_only_error()),
        }
    }

    /// Records that a program makes a control file that does not exist: what it is told is only
    /// that this is not permitted.
    pub(super) fn note_creation(&self, parent: Face, of: &OsStr) {
        // Of every file that is made, this asks no more.
        if !matches!(parent, Face::Control(file) if file.number() == DIRECTORY) {
            return;
        }
        if let Some(error) = control::no_such_file(of.as_bytes()) {
            self.control.errors().record("create", &error);
        }
    }

    /// Returns an extended attribute of `face`.
    pub(super) async fn xattr(&self, xattr: Xattr, face: Face) -> Result<Option<String>> {
        let base = |number| Some((Arc::clone(&self.working.upper().base().tree), number, None));
        let number = match face {
            Face::Attached(number) => {
                let found = self.attached.native(number).await?;
                return self.attached.xattr(xattr, found.as_ref()).await;
            }
            Face::Control(_) | Face::Top => Ino::ROOT,
            Face::Tree(number) => number,
        };
        let own = match (xattr, self.working.contents().file_origin(number)) {
            (Xattr::Chunk, FileOrigin::Stored(payload)) => Some(xattr::text(&payload)),
            (Xattr::Chunk, FileOrigin::Scratch) => Some("uncommitted".to_owned()),
            _ => None,
        };
        if own.is_some() {
            return Ok(own);
        }
        let number = match xattr {
            // Of the mount, whatever the file is.
            Xattr::Snapshot | Xattr::Ref => Some(Ino::ROOT),
            Xattr::NodeId | Xattr::Chunk => self.working.contents().base_number(number),
        };
        self.attached.xattr(xattr, number.and_then(base).as_ref()).await
    }

    /// Returns the path of `name` in directory `parent`, for messages.
    pub(super) fn describe(&self, parent: Ino, name: &Name) -> String {
        format!("{}/{name}", self.working.upper().describe(parent).trim_end_matches('/'))
    }
}
