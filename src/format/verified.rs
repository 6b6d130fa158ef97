//! Holds a flatbuffer that is verified once and then read in place.

use std::fmt;
use std::marker::PhantomData;

use flatbuffers::{Follow, Verifiable, VerifierOptions};

use super::envelope;
use crate::error::Result;
use crate::memory::ReservedBytes;

/// Limit of nested tables. The schemas nest less deeply: repo, update, status, ...
const MAX_DEPTH: usize = 16;
/// Limit of a file's apparent size, as a multiple of its length. Tables may share strings (the reference implementation shares locations),
/// so that a walk sees more bytes than the file has; a larger factor is an attack on the verifier's time.
const MAX_SHARING: usize = 64;

/// Root table, whatever the lifetime of the buffer that holds it.
pub trait Root {
    /// Table in a buffer that lives for `'a`.
    type Table<'a>: Follow<'a, Inner = Self::Table<'a>> + Verifiable + 'a;
}

/// Bytes of a flatbuffer whose root is `R`, verified on creation and unchanged since.
pub struct Verified<R: Root> {
    bytes: ReservedBytes,
    root: PhantomData<fn() -> R>,
}

impl<R: Root> Verified<R> {
    /// Verifies `bytes`: every offset within the buffer, every required field present, every string UTF-8. The length
    /// of the buffer bounds the work, whatever its content.
    pub fn new(bytes: impl Into<ReservedBytes>) -> Result<Self> {
        let bytes = bytes.into();
        let options = VerifierOptions {
            max_depth: MAX_DEPTH,
            // Each table takes 4 bytes, and so does the offset that leads to it.
            max_tables: bytes.len() / 8 + 1,
            max_apparent_size: bytes.len().saturating_mul(MAX_SHARING).clamp(1 << 20, 1 << 31),
            ignore_missing_null_terminator: false,
        };
        if let Err(error) = flatbuffers::root_with_opts::<R::Table<'_>>(&options, &bytes) {
            return Err(envelope::describe_unverified(&bytes, first_line(&error)));
        }
        Ok(Verified { bytes, root: PhantomData })
    }

    /// Creates the value like [`Verified::new`] without verifying, for bytes that this program has just encoded.
    ///
    /// # Safety
    ///
    /// `bytes` must be a valid flatbuffer with root `R`.
    pub(super) unsafe fn trusted(bytes: Vec<u8>) -> Self {
        let bytes = ReservedBytes::from(bytes);
        debug_assert!(flatbuffers::root::<R::Table<'_>>(&bytes).is_ok() || bytes.len() > 1 << 20, "laid out wrongly");
        Verified { bytes, root: PhantomData }
    }

    /// Returns the root table, read in place.
    #[inline]
    pub fn root(&self) -> R::Table<'_> {
        // SAFETY: `new` verified these bytes as an `R`, or the caller of `trusted` guaranteed it; they cannot change while `self` exists.
        unsafe { flatbuffers::root_unchecked::<R::Table<'_>>(&self.bytes) }
    }

    /// Returns true if the bytes have Icechunk's file identifier.
    pub fn has_identifier(&self) -> bool {
        self.bytes.get(4..8) == Some(envelope::FILE_IDENTIFIER.as_bytes())
    }

    /// Returns the length of the buffer, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if there are no bytes, which no flatbuffer allows.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the range of `part`, a slice from [`Verified::root`], in the buffer. A value can keep it without borrowing from the buffer.
    pub fn range_of(&self, part: &[u8]) -> Option<std::ops::Range<usize>> {
        let start = (part.as_ptr() as usize).checked_sub(self.bytes.as_ptr() as usize)?;
        let end = start.checked_add(part.len())?;
        (end <= self.bytes.len()).then_some(start..end)
    }

    /// Returns the bytes of a range that [`Verified::range_of`] returned; empty if it is out of bounds.
    pub fn slice(&self, range: std::ops::Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }
}

impl<R: Root> fmt::Debug for Verified<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verified({} bytes)", self.bytes.len())
    }
}

/// Returns the verifier's message without its trace of many lines.
fn first_line(error: &flatbuffers::InvalidFlatbuffer) -> String {
    error.to_string().lines().next().unwrap_or_default().trim_end_matches(['.', ' ']).to_owned()
}
