//! What can go wrong, said once.
//!
//! Every floor returns [`Error`]: a [`ErrorKind`] that programs act on, a message that names the thing (path, ref, object,
//! offset) and says what is wrong, and the places it passed on its way up. [`Error::errno`] is the only place where a kind
//! becomes an errno, and [`Error::exit_code`] the only one where it becomes an exit status.
//!
//! Errors are cheap to clone: one failed load may have many waiters, and each of them gets it.

use std::fmt;
use std::sync::Arc;

use crate::printable;

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure this is: what a caller can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No such path, ref, snapshot or object.
    NotFound,
    /// The place holds no Icechunk repository.
    NotARepository,
    /// Stored bytes break the format's rules: damaged or hostile.
    Corrupt,
    /// Well formed, but of a version, generation or kind that this program does not handle.
    Unsupported,
    /// The caller's words are wrong: an option, a name, a time.
    InvalidInput,
    /// There is something by that name already.
    AlreadyExists,
    /// Another writer was faster: what a conditional write relied on has changed. Doing it again may succeed.
    Contended,
    /// The operating system or the store refuses access.
    PermissionDenied,
    /// A virtual chunk's location is not among those that the user allowed.
    VirtualNotAllowed,
    /// Not a directory, where one is needed.
    NotADirectory,
    /// A directory, where a file is needed.
    IsADirectory,
    /// The storage did not answer before the deadline.
    Timeout,
    /// It would need more memory than the mount may use.
    OutOfMemory,
    /// In use: a mountpoint, a scratch directory, a file that is open for writing.
    Busy,
    /// A directory that must be empty is not.
    NotEmpty,
    /// The branch has moved on in a way that the changes do not fit.
    Stale,
    /// The disk is full, or a quota is.
    NoSpace,
    /// The place takes no writes.
    ReadOnly,
    /// A name is longer than can be stored.
    NameTooLong,
    /// The operation is not for this kind of file.
    NotPermitted,
    /// It is not on this machine, and the store may not be asked.
    Offline,
    /// Any other failure of storage or of the system.
    Io,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    /// Lines that follow the message and its causes.
    lines: Vec<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// A failure: its kind, a message a person can act on, and what caused it.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

impl Error {
    /// An error of `kind`; `message` names the thing and says what is wrong.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Arc::new(Inner { kind, message: message.into(), lines: Vec::new(), source: None }))
    }

    /// As [`Error::new`], with the error that caused it.
    pub fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Error(Arc::new(Inner { kind, message: message.into(), lines: Vec::new(), source: Some(source.into()) }))
    }

    /// An error whose message has several lines: those of `text`. What was put into it and may have ends of lines went through
    /// [`crate::printable::line`]; any other message is displayed as one line, whatever is in it.
    pub fn of_lines(kind: ErrorKind, text: &str) -> Self {
        let mut lines = text.lines().map(str::to_owned);
        let message = lines.next().unwrap_or_default();
        Error(Arc::new(Inner { kind, message, lines: lines.collect(), source: None }))
    }

    /// Stored bytes that break the format's rules.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Corrupt, message)
    }

    /// Words of the caller's that are wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidInput, message)
    }

    /// A failed system call on `thing`; the kind follows from the system's own errno.
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
            Std::DirectoryNotEmpty => ErrorKind::NotEmpty,
            Std::StorageFull | Std::QuotaExceeded => ErrorKind::NoSpace,
            Std::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            _ => ErrorKind::Io,
        };
        Error::with_source(kind, thing.to_string(), source)
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The same failure, seen from one place further up: `what` names that place.
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Self {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Error(Arc::new(Inner { message: format!("{what}: {}", inner.message), ..inner })),
            // Others wait for the same error: the cause stays reachable through the source.
            Err(shared) => Error(Arc::new(Inner {
                kind: shared.kind,
                message: format!("{what}: {}", shared.in_one_line()),
                lines: shared.lines.clone(),
                source: None,
            })),
        }
    }

    /// As it is, unless it says that something is absent that must exist: then that is damage, described by `message`.
    #[must_use]
    pub fn absence_is_damage(self, message: impl Into<String>) -> Self {
        match self.kind() {
            ErrorKind::NotFound => Error::with_source(ErrorKind::Corrupt, message, self),
            _ => self,
        }
    }

    /// The errno that a program at the mount gets.
    pub fn errno(&self) -> i32 {
        match self.0.kind {
            ErrorKind::NotFound | ErrorKind::NotARepository => libc::ENOENT,
            // What the system said of a file of this machine is more than we could.
            ErrorKind::Io => self.system_errno().unwrap_or(libc::EIO),
            ErrorKind::Corrupt | ErrorKind::Unsupported => libc::EIO,
            ErrorKind::InvalidInput => libc::EINVAL,
            ErrorKind::AlreadyExists => libc::EEXIST,
            ErrorKind::PermissionDenied | ErrorKind::VirtualNotAllowed => libc::EACCES,
            ErrorKind::NotADirectory => libc::ENOTDIR,
            ErrorKind::IsADirectory => libc::EISDIR,
            ErrorKind::Timeout => libc::ETIMEDOUT,
            ErrorKind::OutOfMemory => libc::ENOMEM,
            // Not EAGAIN: programs that see it write again by themselves, and each write of a message is a commit.
            ErrorKind::Busy | ErrorKind::Contended => libc::EBUSY,
            ErrorKind::NotEmpty => libc::ENOTEMPTY,
            ErrorKind::Stale => libc::ESTALE,
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::NameTooLong => libc::ENAMETOOLONG,
            ErrorKind::NotPermitted => libc::EPERM,
            ErrorKind::Offline => libc::ENETDOWN,
        }
    }

    fn system_errno(&self) -> Option<i32> {
        self.0.source.as_ref()?.downcast_ref::<std::io::Error>()?.raw_os_error()
    }

    /// The exit status of a command that failed so: 2 for wrong words on the command line, 1 for everything else.
    pub fn exit_code(&self) -> u8 {
        if self.0.kind == ErrorKind::InvalidInput { 2 } else { 1 }
    }
}

impl Inner {
    /// The message and its causes. Names, paths and what stores said are in it: this is where all of it is escaped.
    fn in_one_line(&self) -> String {
        let mut text = self.message.clone();
        let mut cause: Option<&dyn std::error::Error> =
            self.source.as_deref().map(|e| e as &(dyn std::error::Error + 'static));
        while let Some(error) = cause {
            let said = error.to_string();
            // Some libraries' errors repeat their causes.
            if !text.contains(&said) {
                text += ": ";
                text += &said;
            }
            cause = error.source();
        }
        printable::line(&printable::without_passwords(&text))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.in_one_line())?;
        self.0.lines.iter().try_for_each(|line| write!(f, "\n{}", printable::line(line)))
    }
}

impl std::error::Error for Error {}

/// Adds the place to a failure that passes by.
pub trait Context<T> {
    /// Names the thing that was being worked on; called only on failure.
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
        let error = Error::of_lines(ErrorKind::InvalidInput, "a:\n  b\r\n  c");
        assert_eq!(error.clone().to_string(), "a:\n  b\n  c");
        assert_eq!(error.clone().context("d").to_string(), "d: a:\n  b\n  c");
    }

    #[test]
    fn a_lost_race_is_no_existing_name() {
        assert_eq!(Error::new(ErrorKind::Contended, "others were faster").errno(), libc::EBUSY);
        assert_eq!(Error::new(ErrorKind::AlreadyExists, "there is one").errno(), libc::EEXIST);
    }

    #[test]
    fn system_errors_keep_their_meaning() {
        let denied = Error::io("/repo", std::io::Error::from_raw_os_error(libc::EACCES));
        assert_eq!(denied.errno(), libc::EACCES);
        assert!(denied.to_string().starts_with("/repo: Permission denied"), "{denied}");
    }
}
