//! A flatbuffer that was verified once and is then read in place.

use std::fmt;
use std::marker::PhantomData;

use flatbuffers::{Follow, Verifiable, VerifierOptions};

use super::envelope;
use crate::error::Result;
use crate::memory::ReservedBytes;

/// No table of the schemas is nested deeper than this: repo, update, status, ...
const MAX_DEPTH: usize = 16;
/// Strings may be shared between tables (the reference shares locations), so that walking a file sees more bytes than it
/// has. Beyond this factor it is an attack on the verifier's time.
const MAX_SHARING: usize = 64;

/// Names a root table, whatever the lifetime of the buffer it is read from.
pub trait Root {
    /// The table as it is read from a buffer that lives for `'a`.
    type Table<'a>: Follow<'a, Inner = Self::Table<'a>> + Verifiable + 'a;
}

/// The bytes of a flatbuffer whose root is `R`, verified when this value was made and unchanged since.
pub struct Verified<R: Root> {
    bytes: ReservedBytes,
    root: PhantomData<fn() -> R>,
}

impl<R: Root> Verified<R> {
    /// Verifies `bytes`: every offset within the buffer, every required field present, every string UTF-8.
    ///
    /// The work is bounded by the length of the buffer, whatever is in it.
    pub fn new(bytes: impl Into<ReservedBytes>) -> Result<Self> {
        let bytes = bytes.into();
        let options = VerifierOptions {
            max_depth: MAX_DEPTH,
            // Each table takes 4 bytes and so does the offset that leads to it.
            max_tables: bytes.len() / 8 + 1,
            max_apparent_size: bytes.len().saturating_mul(MAX_SHARING).clamp(1 << 20, 1 << 31),
            ignore_missing_null_terminator: false,
        };
        if let Err(error) = flatbuffers::root_with_opts::<R::Table<'_>>(&options, &bytes) {
            return Err(envelope::describe_unverified(&bytes, first_line(&error)));
        }
        Ok(Verified { bytes, root: PhantomData })
    }

    /// As [`Verified::new`] without verifying, for what this program has just laid out itself.
    ///
    /// # Safety
    ///
    /// `bytes` must be a valid flatbuffer with root `R`.
    pub(super) unsafe fn trusted(bytes: Vec<u8>) -> Self {
        let bytes = ReservedBytes::from(bytes);
        debug_assert!(flatbuffers::root::<R::Table<'_>>(&bytes).is_ok() || bytes.len() > 1 << 20, "laid out wrongly");
        Verified { bytes, root: PhantomData }
    }

    /// The root table, read in place.
    #[inline]
    pub fn root(&self) -> R::Table<'_> {
        // SAFETY: `new` verified these very bytes as an `R`, and nothing can change them while `self` exists.
        unsafe { flatbuffers::root_unchecked::<R::Table<'_>>(&self.bytes) }
    }

    /// Whether the bytes say that they are a flatbuffer of Icechunk's.
    pub fn has_identifier(&self) -> bool {
        self.bytes.get(4..8) == Some(envelope::FILE_IDENTIFIER.as_bytes())
    }

    /// Bytes held.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Never true: an empty buffer is no flatbuffer.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Where `part`, a slice got from [`Verified::root`], lies in the buffer. Lets a value remember a place without
    /// borrowing from the buffer.
    pub fn range_of(&self, part: &[u8]) -> Option<std::ops::Range<usize>> {
        let start = (part.as_ptr() as usize).checked_sub(self.bytes.as_ptr() as usize)?;
        let end = start.checked_add(part.len())?;
        (end <= self.bytes.len()).then_some(start..end)
    }

    /// The bytes at a place that [`Verified::range_of`] gave; empty if it is none.
    pub fn slice(&self, range: std::ops::Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }
}

impl<R: Root> fmt::Debug for Verified<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verified({} bytes)", self.bytes.len())
    }
}

/// The verifier's message goes on with a trace of many lines.
fn first_line(error: &flatbuffers::InvalidFlatbuffer) -> String {
    error.to_string().lines().next().unwrap_or_default().trim_end_matches(['.', ' ']).to_owned()
}
