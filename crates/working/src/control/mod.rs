//! `.icechunk`, the control directory of a mount: inspects and commands a working tree with nothing
//! but files.
//!
//! Lookups find it, but the root does not list it by default, so that programs that walk the tree
//! do not enter it. Contents are rendered on open: a handle reads the state at that time.
//!
//! **A command must fail where the program looks.** `touch` learns of a failure from setting times,
//! `echo >` only from the write itself, and no program from the first flush, which shells cause by
//! duplicating a descriptor. So a command runs within the write or the setting of times that
//! requests it, once per handle, and flushes do nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use crate::operations::request::Answer;
use crate::operations::{CommitOptions, Session};
use crate::overlay::attributes::Attributes;
use crate::overlay::listing::Listed;
use crate::scratch::record::{Meta, Time};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_base::printable;
use icechunkfs_base::recent_errors::RecentErrors;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::repo::refs::nearest;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::mount_facts::MountFacts;
use icechunkfs_views::control_directory::files::ControlFile;
use icechunkfs_views::control_directory::state::{self, MountState, json};
use icechunkfs_views::control_directory::{self, DIRECTORY, MountKind, NAME};

/// Note that reading `commit` returns in addition if the program wrote more than once.
const TRUNCATED_NOTE: &str = "\
note: the message is the program's first write; for several lines use `icechunkfs commit -m`, or write them at once\n";
/// Files that take a command from every program.
const COMMANDS: [ControlFile; 3] = [ControlFile::Commit, ControlFile::Discard, ControlFile::Refresh];
/// Time after a command that was written in which setting a given time is part of it: `cp -p` and
/// the like set times last.
const PART_OF_COPY: Duration = Duration::from_secs(2);
/// Offset of the directory in a listing of the root: the listing of the tree follows it from the
/// beginning.
const SHOWN_OFFSET: u64 = 1 << 60;

/// The control directory of one mount.
#[derive(Debug)]
pub struct Control {
    session: Arc<Session>,
    errors: RecentErrors,
    handles: Mutex<HashMap<u64, Handle>>,
    next_handle: AtomicU64,
    /// End of the last command that was written to each file.
    written: Mutex<HashMap<ControlFile, Instant>>,
    /// True if the root lists the directory.
    listed_at_root: bool,
    /// Outcome of the last command, for programs that ignore failures.
    outcome: Mutex<String>,
}

/// Open control file.
#[derive(Debug)]
struct Handle {
    file: ControlFile,
    content: Metered<Vec<u8>>,
    /// True if the program that opened it may write.
    writes: bool,
    /// True if it has emptied the file: it is going to write.
    truncated: bool,
    command_given: bool,
    /// Failure of its command.
    failure: Option<Error>,
}

/// Returns the path of a control file, for messages.
pub fn describe(number: Ino) -> String {
    let name = ControlFile::at(number).map_or("", ControlFile::name);
    format!("/{NAME}/{name}").trim_end_matches('/').to_owned()
}

/// Returns the error for an attempt to change the directory itself.
pub fn read_only_error() -> Error {
    Error::new(ErrorKind::NotPermitted, "/.icechunk belongs to the mount itself")
}

/// Returns the error for an attempt to make `name`; none if a control file has it.
pub fn no_such_file(name: &[u8]) -> Option<Error> {
    let name = String::from_utf8_lossy(name);
    if ControlFile::named(&name).is_some() {
        return None;
    }
    let near = nearest(&name, ControlFile::names());
    let meant = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) };
    let name = printable::line(&name);
    Some(Error::invalid(format!("/{NAME}/{name}: there is no such control file{meant}")))
}

/// Returns the attributes of the directory or one of its files; for other numbers those of an empty
/// file.
pub fn attributes(number: Ino) -> Attributes {
    let now = Time::now();
    // The files reveal all of the mount, whatever the modes of its files, and command it: both are
    // for the owner alone.
    let (kind, mode, links) = match number {
        DIRECTORY => (libc::S_IFDIR, 0o700, 2),
        _ => (libc::S_IFREG, 0o600, 1),
    };
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let meta = Meta { mode, uid, gid, atime: now, mtime: now, ctime: now };
    // Sizes are unknown before the contents are rendered; 0 makes programs read to the end, as in
    // /proc.
    Attributes { number, kind, size: 0, blocks: 0, links, rdev: 0, meta }
}

/// Returns the error of a program that empties `file` and writes nothing to it.
fn nothing_written(file: ControlFile) -> String {
    let name = file.name();
    let with_text = match file {
        ControlFile::Commit => ", or write the message to it",
        ControlFile::Discard => ", or write a path to it",
        _ => "",
    };
    format!("{name} was opened, but nothing was written to it, so nothing was done: touch it{with_text}")
}

impl Control {
    /// Creates the control directory of `session`; the root lists it if `listed_at_root`.
    pub fn new(session: Arc<Session>, listed_at_root: bool) -> Self {
        let outcome = Mutex::new("no commit in this mount yet\n".to_owned());
        let (errors, handles, next_handle, written) = Default::default();
        Control { session, errors, handles, next_handle, written, listed_at_root, outcome }
    }

    /// Has the kernel forget bytes and attributes of inodes `numbers`.
    pub async fn forget(&self, numbers: Vec<Ino>) {
        self.session.forget(numbers).await;
    }

    /// Lists the directory to `sink`.
    pub fn list(&self, offset: u64, sink: &mut impl FnMut(Listed<'_>) -> bool) {
        let dots = [(".", DIRECTORY), ("..", Ino::ROOT)].into_iter();
        let entries = control_directory::entries(MountKind::Writable);
        let listed = dots.chain(entries.iter().map(|entry| (entry.name, entry.number))).zip(1..);
        for ((name, number), at) in listed.filter(|(_, at)| *at > offset) {
            let attributes = attributes(if ControlFile::at(number).is_none() { DIRECTORY } else { number });
            let attributes = Attributes { number, ..attributes };
            if !sink(Listed::new(name.as_bytes(), attributes, at)) {
                return;
            }
        }
    }

    /// Lists the directory's own entry in the root. Returns false if the sink is full.
    pub fn list_in_root(&self, offset: u64, sink: &mut impl FnMut(Listed<'_>) -> bool) -> bool {
        if !self.listed_at_root || offset != 0 {
            return true;
        }
        // The entry comes before the dots; after its offset, the tree's listing begins.
        let attributes = attributes(DIRECTORY);
        sink(Listed::new(NAME.as_bytes(), attributes, SHOWN_OFFSET))
    }

    /// Returns the offset at which a listing of the root continues in the tree.
    pub fn root_offset(offset: u64) -> u64 {
        if offset == SHOWN_OFFSET { 0 } else { offset }
    }

    /// Opens file `number`, to write if `writes`, emptied at once if `truncated`, and renders its
    /// content. Returns the handle.
    pub async fn open(&self, number: Ino, writes: bool, truncated: bool) -> Result<u64> {
        let file = ControlFile::at(number).ok_or_else(read_only_error)?;
        let content = self.render(file).await?;
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles.lock().insert(
            handle,
            Handle {
                file,
                content: content.map(String::into_bytes),
                writes,
                truncated,
                command_given: false,
                failure: None,
            },
        );
        Ok(handle)
    }

    /// Renders the current content of a file.
    async fn render(&self, file: ControlFile) -> Result<Metered<String>> {
        let session = &self.session;
        Ok(Metered::own(match file {
            ControlFile::Commit => self.outcome.lock().clone(),
            ControlFile::StatusJson => json(&session.status().await?)?,
            ControlFile::Diff => session.diff().await?.to_text(),
            ControlFile::Conflicts => session.conflicts_text(),
            ControlFile::Progress => json(&session.progress())?,
            // Commands, of which there is nothing to read before they are given.
            ControlFile::Cancel | ControlFile::Discard | ControlFile::Refresh | ControlFile::Request => String::new(),
            ControlFile::RecentErrors => {
                let errors = state::render(file, self).await?.into_inner();
                // The kernel refuses to remove a mountpoint without asking the daemon.
                let hint = session.local_status().await.ok().and_then(|status| status.emptied_root());
                errors + &hint.map(|hint| hint + "\n").unwrap_or_default()
            }
            ControlFile::Info | ControlFile::Head | ControlFile::Status | ControlFile::Stats | ControlFile::Log => {
                return state::render(file, self).await;
            }
        }))
    }

    /// Returns bytes of the content of `handle`.
    pub fn read(&self, handle: u64, offset: u64, size: u32) -> Vec<u8> {
        let handles = self.handles.lock();
        let content = handles.get(&handle).map(|handle| handle.content.as_slice()).unwrap_or_default();
        let rest = usize::try_from(offset).ok().and_then(|start| content.get(start..)).unwrap_or_default();
        rest.iter().copied().take(size as usize).collect()
    }

    /// Returns the file of `handle`, and true if this is its first command; none if `handle` is not
    /// open.
    fn take_command(&self, handle: u64) -> Option<(ControlFile, bool)> {
        let mut handles = self.handles.lock();
        let handle = handles.get_mut(&handle)?;
        Some((handle.file, !std::mem::replace(&mut handle.command_given, true)))
    }

    /// Runs the command that is written to `handle`.
    pub async fn write(&self, handle: u64, bytes: &[u8]) -> Result<()> {
        let Some((file, first)) = self.take_command(handle) else { return Err(read_only_error()) };
        if file == ControlFile::Request {
            let request: BoxFuture<'_, (Answer, bool)> = Box::pin(self.session.request(bytes));
            let (answer, is_outcome) = request.await;
            if !answer.ok {
                self.errors.record("command", &Error::new(ErrorKind::Io, answer.text.clone()));
            }
            if is_outcome {
                *self.outcome.lock() = format!("{}\n", answer.text);
            }
            if let Some(handle) = self.handles.lock().get_mut(&handle) {
                handle.content = Metered::own(serde_json::to_vec(&answer).unwrap_or_default());
            }
            return Ok(());
        }
        // A handle gives one command, with its first write: only then can the program still receive
        // the failure. Shells write line by line, so that more writes may follow for what was meant
        // as one message.
        if !first {
            // A program that tries again in another way (`shutil.copyfile` after `sendfile`) is
            // told again.
            if let Some(failure) = self.handles.lock().get(&handle).and_then(|handle| handle.failure.clone()) {
                return Err(failure);
            }
            if file == ControlFile::Discard && !bytes.is_empty() {
                return Err(Error::invalid(
                    "only one path at a time can be discarded: write the next path in another write",
                ));
            }
            if file == ControlFile::Commit && !bytes.trim_ascii().is_empty() {
                self.outcome.lock().push_str(TRUNCATED_NOTE);
            }
            return Ok(());
        }
        let text = String::from_utf8_lossy(bytes);
        let done = match file {
            // A path may begin or end with a space.
            ControlFile::Discard => match text.strip_suffix('\n').unwrap_or(&text) {
                // Also of `echo "$UNSET"`.
                blank if !bytes.is_empty() && blank.trim().is_empty() => Err(Error::invalid(
                    "the path is empty: nothing was discarded. To discard everything, touch this file",
                )),
                path => self.command(file, path).await,
            },
            _ => self.command(file, text.trim()).await,
        };
        self.written.lock().insert(file, Instant::now());
        if let Some(handle) = self.handles.lock().get_mut(&handle) {
            handle.failure = done.as_ref().err().cloned();
        }
        done
    }

    /// Runs the command that setting the times of file `number` gives: to now, or to a given time
    /// (`is_given`).
    ///
    /// `cp -p`, `shutil.copy2` and `rsync --times` write and then set the times of the file that
    /// they copied, some after closing it, and the kernel does not tell through which handle. That
    /// is one command, with the text that was written.
    pub async fn touch(&self, number: Ino, is_given: bool) -> Result<()> {
        let file = ControlFile::at(number).ok_or_else(read_only_error)?;
        let written = self.written.lock().get(&file).copied();
        let is_open = || self.handles.lock().values().any(|handle| handle.file == file && handle.command_given);
        if is_given && (is_open() || written.is_some_and(|at| at.elapsed() < PART_OF_COPY)) {
            return Ok(());
        }
        if is_given && file == ControlFile::Discard {
            return Err(Error::invalid("to discard everything, touch this file without a time"));
        }
        // A program that has emptied the file first (`cp -p`) has given its command, too.
        let forget = |handle: &mut Handle| handle.truncated &= handle.file != file;
        self.handles.lock().values_mut().for_each(forget);
        self.command(file, "").await
    }

    async fn command(&self, file: ControlFile, text: &str) -> Result<()> {
        // Boxed: the compiler cannot prove that futures this deep are `Send`.
        type Command<'a> = BoxFuture<'a, Result<String>>;
        let session = &self.session;
        if file == ControlFile::Cancel {
            // The outcome is that of the commit.
            return session.cancel(text);
        }
        let (name, command): (_, Command<'_>) = match file {
            ControlFile::Commit => {
                let commit = session.commit(CommitOptions { message: text.to_owned(), ..CommitOptions::default() });
                ("commit", Box::pin(async move { commit.await.map(|done| done.to_string()) }))
            }
            ControlFile::Discard => ("discard", Box::pin(session.discard(text))),
            ControlFile::Refresh => ("refresh", Box::pin(session.refresh())),
            _ => return Err(Error::new(ErrorKind::PermissionDenied, "this file is read-only")),
        };
        let done = command.await;
        match &done {
            Ok(text) => *self.outcome.lock() = format!("{text}\n"),
            Err(error) => *self.outcome.lock() = format!("{name} failed: {error}\n"),
        }
        done.map(drop)
    }

    /// Notes that file `number` was emptied by a program that has it open. By itself that is no
    /// command.
    pub fn truncate(&self, number: Ino) -> Result<()> {
        let file = ControlFile::at(number).ok_or_else(read_only_error)?;
        let mut handles = self.handles.lock();
        let mut open = handles.values_mut().filter(|handle| handle.file == file && handle.writes).peekable();
        if open.peek().is_none() && COMMANDS.contains(&file) {
            return Err(Error::invalid(nothing_written(file)));
        }
        open.for_each(|handle| handle.truncated = true);
        Ok(())
    }

    /// Closes `handle`. A program that has opened the file to write and has written nothing, such
    /// as `: >` or a command that failed before its first output, gives no command. No error
    /// reaches it any more, so that the outcome tells.
    pub fn release(&self, handle: u64) {
        let Some(closed) = self.handles.lock().remove(&handle) else { return };
        if closed.truncated && !closed.command_given && COMMANDS.contains(&closed.file) {
            let error = Error::invalid(nothing_written(closed.file));
            self.errors.record(closed.file.name(), &error);
            *self.outcome.lock() = format!("{error}\n");
        }
    }
}

#[async_trait]
impl MountState for Control {
    fn facts(&self) -> &MountFacts {
        self.session.facts()
    }

    fn snapshot(&self) -> ObjectId {
        self.session.working().upper().base().id()
    }

    fn errors(&self) -> &RecentErrors {
        &self.errors
    }

    async fn status(&self) -> Result<String> {
        Ok(self.session.status().await?.to_text())
    }

    async fn log(&self) -> Result<Metered<String>> {
        self.session.log().await
    }

    async fn stats(&self) -> Result<String> {
        self.session.stats().await
    }
}
