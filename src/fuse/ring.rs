//! Requests through io_uring (`icechunkfs-ring`), in builds with the feature `io-uring`. Nothing
//! else here asks whether there are any: without the feature nothing can be prepared, and no slot
//! exists.

#[cfg(not(feature = "io-uring"))]
pub use absent::{Handler, MAX_REQUEST, Message, Prepared, Rings, Slot, obstacle};
#[cfg(feature = "io-uring")]
pub use icechunkfs_ring::{Handler, MAX_REQUEST, Message, Prepared, Rings, Slot, obstacle};

/// The same names, of which nothing can be made.
#[cfg(not(feature = "io-uring"))]
mod absent {
    use std::convert::Infallible;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    /// Largest read or write, in bytes.
    pub const MAX_REQUEST: u32 = 128 << 10;

    /// Answers a request through its slot.
    pub type Handler = Arc<dyn Fn(&Message<'_>, Slot) + Send + Sync>;

    /// Returns why requests cannot come through rings, with what to do.
    pub fn obstacle() -> Option<String> {
        Some("this program was built without it: packages have it, and `cargo build --features io-uring`".to_owned())
    }

    /// Request of the kernel.
    #[derive(Debug)]
    pub struct Message<'a> {
        /// Number of the operation.
        pub opcode: u32,
        /// Inode that it is about.
        pub inode: u64,
        /// User and group of the program.
        pub caller: (u32, u32),
        /// Header of the operation.
        pub operation: &'a [u8],
        /// Names, or bytes to be written.
        pub payload: &'a [u8],
    }

    /// Request that is to be answered: there is none.
    #[derive(Debug)]
    pub struct Slot(Infallible);

    impl Slot {
        /// Answers with an error.
        pub fn error(self, _: i32) {
            match self.0 {}
        }

        /// Answers with a few bytes.
        pub fn short(self, _: &[u8]) {
            match self.0 {}
        }

        /// Answers with bytes of the payload.
        pub fn filled(self, _: usize) {
            match self.0 {}
        }

        /// Answers with bytes.
        pub fn data(self, _: &[u8]) {
            match self.0 {}
        }

        /// Returns the memory for a long answer.
        pub fn payload(&mut self) -> &mut [u8] {
            match self.0 {}
        }
    }

    /// Queues that are not made.
    #[derive(Debug, Default)]
    pub struct Prepared;

    impl Prepared {
        /// Fails.
        pub fn make(&self) -> io::Result<()> {
            Err(io::Error::other(obstacle().unwrap_or_default()))
        }

        /// Starts no thread.
        pub fn start(&self, _: &Arc<OwnedFd>, _: &Handler) -> io::Result<Option<Rings>> {
            Ok(None)
        }
    }

    /// Threads that answer requests: there are none.
    #[derive(Debug)]
    pub struct Rings(Infallible);

    impl Rings {
        /// Waits until the threads have seen the end of the mount.
        pub fn wait(&self) {
            match self.0 {}
        }
    }
}
