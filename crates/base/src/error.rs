//! The error type of the crate.
//!
//! Every layer returns [`Error`]: an [`ErrorKind`] that programs act on, a message that names the
//! object (path, ref, key, offset) and the failure, and the context added on its way up. Only
//! [`Error::errno`] maps a kind to an errno, and only [`Error::exit_code`] to an exit status.
//!
//! Errors are cheap to clone: one failed load may have many waiters, and each of them receives it.

use std::fmt;
use std::sync::Arc;

use crate::printable;

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of a failure, as far as callers must distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No such path, ref, snapshot or object.
    NotFound,
    /// The location holds no Icechunk repository.
    NotARepository,
    /// Stored bytes violate the format: damaged or hostile.
    Corrupt,
    /// Well formed, but of a version or kind that this program does not support.
    Unsupported,
    /// The caller's input is invalid: an option, a name, a time.
    InvalidInput,
    /// The name exists already.
    AlreadyExists,
    /// Another writer won a race: the state that a conditional write relied on has changed. A retry
    /// may succeed.
    Contended,
    /// The repository was migrated to another version since it was opened. A retry opens it anew.
    Migrated,
    /// The operating system or the store denies access.
    PermissionDenied,
    /// The location of a virtual chunk is not among those that the user allowed.
    VirtualNotAllowed,
    /// Not a directory, where one is required.
    NotADirectory,
    /// A directory, where a file is required.
    IsADirectory,
    /// The storage did not answer before the deadline.
    Timeout,
    /// The operation needs more memory than the mount may use.
    OutOfMemory,
    /// In use: a mountpoint, a scratch directory, a file that is open for writing.
    Busy,
    /// A process executes the file.
    Executed,
    /// A directory that must be empty is not.
    NotEmpty,
    /// The branch has moved in a way that conflicts with the changes.
    Stale,
    /// The disk or a quota is full.
    NoSpace,
    /// The location accepts no writes.
    ReadOnly,
    /// A name is longer than the maximum.
    NameTooLong,
    /// The kind of file or the repository's settings do not permit the operation, or the user
    /// declined it.
    NotPermitted,
    /// The data is not on this machine, and the mount is offline.
    Offline,
    /// The user cancelled the operation.
    Cancelled,
    /// Any other failure of the storage or the system.
    Io,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    /// Lines that follow the message and its causes.
    lines: Vec<String>,
    /// Errno that another process gave for the failure; it is more precise than the kind.
    errno: Option<i32>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Most bytes of a message. It may quote a value of a file or the answer of a store, and has
/// waiters, logs and other errors that copy it.
const MAX_MESSAGE: usize = 16 << 10;
/// Bytes of its end that are kept of a message that is longer: the reason often comes last.
const MAX_END: usize = 4 << 10;

/// Cuts out the middle of a message that is too long.
fn cut(message: String) -> String {
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    let (begin, _) = message.split_at(message.floor_char_boundary(MAX_MESSAGE - MAX_END));
    let (_, end) = message.split_at(message.ceil_char_boundary(message.len() - MAX_END));
    format!("{begin}...{end}")
}

/// A failure: its kind, an actionable message, and its cause.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

impl Error {
    /// Creates an error of `kind`; `message` names the object and the failure.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Arc::new(Inner { kind, message: cut(message.into()), lines: Vec::new(), errno: None, source: None }))
    }

    /// Creates an error for a failure in a daemon, which described it with `errno` and `message`.
    pub fn of_daemon(kind: ErrorKind, errno: i32, message: impl Into<String>) -> Self {
        let errno = Some(errno).filter(|errno| *errno > 0);
        Error(Arc::new(Inner { kind, message: message.into(), lines: Vec::new(), errno, source: None }))
    }

    /// Creates an error with the error that caused it.
    pub fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Error(Arc::new(Inner {
            kind,
            message: cut(message.into()),
            lines: Vec::new(),
            errno: None,
            source: Some(source.into()),
        }))
    }

    /// Creates an error with the lines of `text` as message. Values in `text` that may contain line
    /// breaks must have gone through [`crate::printable::line`]; the message of every other error
    /// is displayed as one line.
    pub fn multi_line(kind: ErrorKind, text: &str) -> Self {
        let mut lines = text.lines().map(str::to_owned);
        let message = lines.next().unwrap_or_default();
        Error(Arc::new(Inner { kind, message, lines: lines.collect(), errno: None, source: None }))
    }

    /// Creates an error for stored bytes that violate the format.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Corrupt, message)
    }

    /// Creates an error for invalid input of the caller.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidInput, message)
    }

    /// Creates an error for a failed system call on `thing`; the kind follows from the system's
    /// errno.
    pub fn io(thing: impl fmt::Display, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Std;
        let kind = match source.kind() {
            Std::NotFound => ErrorKind::NotFound,
            Std::PermissionDenied => ErrorKind::PermissionDenied,
            Std::AlreadyExists => ErrorKind::AlreadyExists,
            Std::NotADirectory => ErrorKind::NotADirectory,
            Std::IsADirectory => ErrorKind::IsADirectory,
            Std::TimedOut => ErrorKind::Timeout,
            Std::OutOfMemory => ErrorKind::OutOfMemory,
            Std::ResourceBusy => ErrorKind::Busy,
            Std::ExecutableFileBusy => ErrorKind::Executed,
            Std::DirectoryNotEmpty => ErrorKind::NotEmpty,
            Std::StorageFull | Std::QuotaExceeded => ErrorKind::NoSpace,
            Std::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            _ => ErrorKind::Io,
        };
        Error::with_source(kind, thing.to_string(), source)
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns true if the failure says nothing about what is stored: another attempt may succeed,
    /// at another time or with other credentials.
    pub fn is_of_access(&self) -> bool {
        use ErrorKind::{Busy, Contended, Io, Offline, OutOfMemory, PermissionDenied, Timeout};
        matches!(self.kind(), Busy | Contended | Io | Offline | OutOfMemory | PermissionDenied | Timeout)
    }

    /// Returns true if another attempt fails as well: what is stored is damaged, gone, or not known
    /// to this program.
    pub fn is_permanent(&self) -> bool {
        matches!(self.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported)
    }

    /// Prefixes the message with `what`, the object or operation one level up.
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Self {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Error(Arc::new(Inner { message: cut(format!("{what}: {}", inner.message)), ..inner })),
            // Other waiters share the error, so its cause cannot be moved: the causes become part
            // of the message.
            Err(shared) => Error(Arc::new(Inner {
                kind: shared.kind,
                message: cut(format!("{what}: {}", shared.one_line())),
                lines: shared.lines.clone(),
                errno: shared.errno,
                source: None,
            })),
        }
    }

    /// Turns [`ErrorKind::NotFound`] for an object that must exist into [`ErrorKind::Corrupt`] with
    /// `message`.
    #[must_use]
    pub fn not_found_as_corrupt(self, message: impl Into<String>) -> Self {
        match self.kind() {
            ErrorKind::NotFound => Error::with_source(ErrorKind::Corrupt, message, self),
            _ => self,
        }
    }

    /// Turns [`ErrorKind::NotFound`] for an object that must exist into [`ErrorKind::Corrupt`] with
    /// `message` alone: it names the object and the remedy, and the store's words would name the
    /// object a second time.
    #[must_use]
    pub fn not_found_as_damage(self, message: impl Into<String>) -> Self {
        match self.kind() {
            ErrorKind::NotFound => Error::corrupt(message),
            _ => self,
        }
    }

    /// Returns the errno that a program at the mount gets.
    pub fn errno(&self) -> i32 {
        if let Some(errno) = self.0.errno {
            return errno;
        }
        match self.0.kind {
            ErrorKind::NotFound | ErrorKind::NotARepository => libc::ENOENT,
            // The errno of a failed system call on a local file is more precise than EIO.
            ErrorKind::Io => self.system_errno().unwrap_or(libc::EIO),
            ErrorKind::Corrupt | ErrorKind::Unsupported => libc::EIO,
            ErrorKind::InvalidInput => libc::EINVAL,
            ErrorKind::AlreadyExists => libc::EEXIST,
            ErrorKind::PermissionDenied | ErrorKind::VirtualNotAllowed => libc::EACCES,
            ErrorKind::NotADirectory => libc::ENOTDIR,
            ErrorKind::IsADirectory => libc::EISDIR,
            ErrorKind::Timeout => libc::ETIMEDOUT,
            ErrorKind::OutOfMemory => libc::ENOMEM,
            // Not EAGAIN: programs repeat the write on it, and each write of a commit message makes
            // a commit.
            ErrorKind::Busy | ErrorKind::Contended | ErrorKind::Migrated => libc::EBUSY,
            ErrorKind::Executed => libc::ETXTBSY,
            ErrorKind::NotEmpty => libc::ENOTEMPTY,
            ErrorKind::Stale => libc::ESTALE,
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::NameTooLong => libc::ENAMETOOLONG,
            ErrorKind::NotPermitted => libc::EPERM,
            ErrorKind::Offline => libc::ENETDOWN,
            ErrorKind::Cancelled => libc::ECANCELED,
        }
    }

    fn system_errno(&self) -> Option<i32> {
        self.0.source.as_ref()?.downcast_ref::<std::io::Error>()?.raw_os_error()
    }

    /// Returns the exit status of a command that failed with this error: 2 for usage errors, 1 for
    /// everything else.
    pub fn exit_code(&self) -> u8 {
        if self.0.kind == ErrorKind::InvalidInput { 2 } else { 1 }
    }
}

impl Inner {
    /// Returns the message and its causes, escaped: they contain names, paths and answers of
    /// stores.
    fn one_line(&self) -> String {
        let mut text = self.message.clone();
        let mut cause: Option<&dyn std::error::Error> =
            self.source.as_deref().map(|e| e as &(dyn std::error::Error + 'static));
        while let Some(error) = cause {
            let said = cut(error.to_string());
            // Some libraries' errors repeat their causes.
            if !text.contains(&said) {
                text += ": ";
                text += &said;
            }
            cause = error.source();
        }
        printable::line(&printable::redact_passwords(&text))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.one_line())?;
        self.0.lines.iter().try_for_each(|line| write!(f, "\n{}", printable::line(line)))
    }
}

impl std::error::Error for Error {}

/// Adds context to an error on its way up.
pub trait Context<T> {
    /// Adds `what`, the object or operation; calls it only on failure.
    fn context<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T> Context<T> for Result<T> {
    fn context<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| error.context(what()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_is_kept_for_shared_errors_too() {
        let first = Error::corrupt("bad magic");
        let second = first.clone();
        assert_eq!(second.context("snapshots/X").to_string(), "snapshots/X: bad magic");
        assert_eq!(first.context("a").context("b").to_string(), "b: a: bad magic");
    }

    #[test]
    fn causes_are_said_once() {
        let cause = Error::new(ErrorKind::Io, "the line broke");
        let repeats = Error::with_source(ErrorKind::Io, "reading X: the line broke", cause);
        assert_eq!(Error::with_source(ErrorKind::Io, "a", repeats).to_string(), "a: reading X: the line broke");
    }

    #[test]
    fn no_text_adds_lines_or_shows_passwords() {
        let cause = std::io::Error::other("http://me:secret@host/\u{1b}[2J");
        let error = Error::with_source(ErrorKind::Io, "a\nb\u{202e}", cause);
        let shown = "a\\nb\\u{202e}: http://***@host/\\u{1b}[2J";
        assert_eq!(error.to_string(), shown);
        let held = error.clone();
        assert_eq!(error.context("c\n").to_string(), format!("c\\n: {shown}"));
        drop(held);
        let error = Error::multi_line(ErrorKind::InvalidInput, "a:\n  b\r\n  c");
        assert_eq!(error.clone().to_string(), "a:\n  b\n  c");
        assert_eq!(error.clone().context("d").to_string(), "d: a:\n  b\n  c");
    }

    #[test]
    fn a_lost_race_is_no_existing_name() {
        assert_eq!(Error::new(ErrorKind::Contended, "others were faster").errno(), libc::EBUSY);
        assert_eq!(Error::new(ErrorKind::AlreadyExists, "there is one").errno(), libc::EEXIST);
    }

    #[test]
    fn failures_of_a_daemon_keep_their_errno() {
        let stale = Error::of_daemon(ErrorKind::Io, libc::ESTALE, "the branch has moved");
        let held = stale.clone();
        assert_eq!((stale.context("a").errno(), held.context("b").exit_code()), (libc::ESTALE, 1));
        assert_eq!(Error::of_daemon(ErrorKind::Io, 0, "an older daemon says none").errno(), libc::EIO);
    }

    #[test]
    fn system_errors_keep_their_meaning() {
        let denied = Error::io("/repo", std::io::Error::from_raw_os_error(libc::EACCES));
        assert_eq!(denied.errno(), libc::EACCES);
        assert!(denied.to_string().starts_with("/repo: Permission denied"), "{denied}");
    }
}
