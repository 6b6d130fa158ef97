//! Requests of the kernel: how many, how long they took, and how they ended.

use std::time::{Duration, Instant};

use super::Counter;
use super::histogram::Histogram;

macro_rules! operations {
    ($($variant:ident $name:literal,)*) => {
        /// Request of the kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each is the request of its name in fuse(4)")]
        pub enum Operation { $($variant,)* }

        const NAMES: &[&str] = &[$($name,)*];
        /// Figures in the order of [`Operation`].
        static REQUESTS: [Figures; NAMES.len()] = [const { Figures::new() }; NAMES.len()];

        impl Operation {
            /// Returns the operation called `name`.
            pub fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Operation::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

operations! {
    Lookup "lookup",
    Getattr "getattr",
    Setattr "setattr",
    Readlink "readlink",
    Mknod "mknod",
    Mkdir "mkdir",
    Symlink "symlink",
    Unlink "unlink",
    Rmdir "rmdir",
    Rename "rename",
    Link "link",
    Create "create",
    Open "open",
    Read "read",
    Write "write",
    Flush "flush",
    Release "release",
    Fsync "fsync",
    Readdir "readdir",
    Statfs "statfs",
    Getxattr "getxattr",
    Listxattr "listxattr",
    Lseek "lseek",
    Fallocate "fallocate",
    CopyFileRange "copy_file_range",
    Commit "commit",
}

#[derive(Debug)]
pub(super) struct Figures {
    pub(super) times: Histogram,
    pub(super) failures: Counter,
    /// Bytes that were read or written.
    pub(super) bytes: Counter,
}

impl Figures {
    const fn new() -> Self {
        Figures { times: Histogram::new(), failures: Counter::new(), bytes: Counter::new() }
    }
}

/// Returns the figures of all operations, by name.
pub(super) fn all() -> impl Iterator<Item = (&'static str, &'static Figures)> {
    NAMES.iter().copied().zip(&REQUESTS)
}

impl Operation {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        NAMES.get(self as usize).copied().unwrap_or_default()
    }

    fn figures(self) -> Option<&'static Figures> {
        REQUESTS.get(self as usize)
    }
}

/// End of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Errno; 0 if it succeeded.
    pub errno: i32,
    /// Bytes that were read or written.
    pub bytes: u64,
}

/// Request under way. Its end counts it: also if it is dropped without an outcome, as one that
/// panics is.
#[derive(Debug)]
pub struct Timed {
    operation: Operation,
    begin: Instant,
    outcome: Outcome,
}

impl Timed {
    /// Begins to count a request.
    pub fn begin(operation: Operation) -> Self {
        Timed { operation, begin: Instant::now(), outcome: Outcome::default() }
    }

    /// Sets the outcome.
    pub fn end(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Counts the request as another operation.
    pub fn count_as(&mut self, operation: Operation) {
        self.operation = operation;
    }

    /// Returns the operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns the time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let Some(figures) = self.operation.figures() else { return };
        figures.times.record(self.begin.elapsed());
        figures.bytes.add(self.outcome.bytes);
        if self.outcome.errno != 0 {
            figures.failures.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_operations_belong_together() {
        for name in NAMES {
            assert_eq!(Operation::named(name).map(Operation::name), Some(*name));
        }
        assert_eq!(Operation::named("dance"), None);
    }

    #[test]
    fn a_request_is_counted_when_it_ends() {
        let count = || {
            all().find(|(name, _)| *name == "fallocate").map(|(_, figures)| {
                (
                    figures.times.cumulative().last().map(|(_, count)| *count),
                    figures.failures.get(),
                    figures.bytes.get(),
                )
            })
        };
        let mut timed = Timed::begin(Operation::Fallocate);
        assert_eq!(count(), Some((Some(0), 0, 0)));
        timed.end(Outcome { errno: 5, bytes: 7 });
        drop(timed);
        assert_eq!(count(), Some((Some(1), 1, 7)));
    }
}
