//! Holds a flatbuffer that is verified once and then read in place.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use flatbuffers::{Follow, Verifiable, VerifierOptions};

use super::envelope;
use super::generated::icechunk as fb;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::ReservedBytes;

/// Limit of nested tables. The schemas nest less deeply: repo, update, status, ...
const MAX_DEPTH: usize = 16;
/// Limit of a file's apparent size, as a multiple of its length. Tables may share strings (the
/// reference implementation shares locations), so that a walk sees more bytes than the file has; a
/// larger factor is an attack on the verifier's time.
const MAX_SHARING: usize = 64;

/// Root table, whatever the lifetime of the buffer that holds it.
pub(crate) trait RootTable {
    /// Table in a buffer that lives for `'a`.
    type Table<'a>: Follow<'a, Inner = Self::Table<'a>> + Verifiable + 'a;
}

macro_rules! root_tables {
    ($($name:ident)*) => {
        $(impl RootTable for fb::$name<'static> {
            type Table<'a> = fb::$name<'a>;
        })*
    };
}

root_tables! { Manifest Repo Snapshot TransactionLog }

/// Bytes of a flatbuffer whose root is `R`, verified on creation and unchanged since.
pub(crate) struct VerifiedFlatbuffer<R: RootTable> {
    bytes: ReservedBytes<Bytes>,
    root: PhantomData<fn() -> R>,
}

impl<R: RootTable> VerifiedFlatbuffer<R> {
    /// Verifies `bytes`: every offset within the buffer, every required field present, every string
    /// UTF-8. The length of the buffer bounds the work, whatever its content.
    pub(crate) fn new(bytes: impl Into<ReservedBytes<Bytes>>) -> Result<Self> {
        let verify = |bytes: &[u8], options: &VerifierOptions| {
            let root = flatbuffers::root_with_opts::<R::Table<'_>>(options, bytes);
            root.map(drop).map_err(|error| first_line(&error))
        };
        // SAFETY: the library verifies all of the buffer.
        unsafe { Self::verified_by(bytes.into(), verify) }.map(|(verified, ())| verified)
    }

    /// Creates the value like [`VerifiedFlatbuffer::new`], verified by `verify`; returns also what
    /// it returns.
    ///
    /// # Safety
    ///
    /// `verify` must accept only a valid flatbuffer with root `R`.
    pub(super) unsafe fn verified_by<T>(
        bytes: ReservedBytes<Bytes>,
        verify: impl FnOnce(&[u8], &VerifierOptions) -> std::result::Result<T, String>,
    ) -> Result<(Self, T)> {
        let options = VerifierOptions {
            max_depth: MAX_DEPTH,
            // Each table takes 4 bytes, and so does the offset that leads to it.
            max_tables: bytes.len() / 8 + 1,
            max_apparent_size: bytes.len().saturating_mul(MAX_SHARING).clamp(1 << 20, 1 << 31),
            ignore_missing_null_terminator: false,
        };
        match verify(&bytes, &options) {
            Ok(found) => {
                // The fuzzers run with this.
                let larger = VerifierOptions { max_apparent_size: usize::MAX, ..options };
                debug_assert!(
                    bytes.len() > 1 << 20 || flatbuffers::root_with_opts::<R::Table<'_>>(&larger, &bytes).is_ok()
                );
                Ok((VerifiedFlatbuffer { bytes, root: PhantomData }, found))
            }
            Err(why) => Err(envelope::unverified_error(&bytes, why)),
        }
    }

    /// Creates the value like [`VerifiedFlatbuffer::new`] without verifying, for bytes that this
    /// program has just encoded.
    ///
    /// # Safety
    ///
    /// `bytes` must be a valid flatbuffer with root `R`.
    pub(super) unsafe fn new_unchecked(bytes: Vec<u8>) -> Self {
        let bytes = ReservedBytes::from(Bytes::from(bytes));
        debug_assert!(flatbuffers::root::<R::Table<'_>>(&bytes).is_ok() || bytes.len() > 1 << 20, "laid out wrongly");
        VerifiedFlatbuffer { bytes, root: PhantomData }
    }

    /// Returns the root table, read in place.
    #[inline]
    pub(crate) fn root(&self) -> R::Table<'_> {
        // SAFETY: these bytes were verified as an `R`, or the caller of `new_unchecked` guaranteed
        // it; they cannot change while `self` exists.
        unsafe { flatbuffers::root_unchecked::<R::Table<'_>>(&self.bytes) }
    }

    /// Returns true if the bytes have Icechunk's file identifier.
    pub(crate) fn has_identifier(&self) -> bool {
        envelope::has_identifier(&self.bytes)
    }

    /// Returns the length of the buffer, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the range of `part`, a slice from [`VerifiedFlatbuffer::root`], in the buffer. A
    /// value can keep it without borrowing from the buffer.
    pub(crate) fn range_of(&self, part: &[u8]) -> Option<std::ops::Range<usize>> {
        let start = (part.as_ptr() as usize).checked_sub(self.bytes.as_ptr() as usize)?;
        let end = start.checked_add(part.len())?;
        (end <= self.bytes.len()).then_some(start..end)
    }

    /// Returns the bytes of a range that [`VerifiedFlatbuffer::range_of`] returned; empty if it is
    /// out of bounds.
    pub(crate) fn slice(&self, range: std::ops::Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }
}

impl<R: RootTable> fmt::Debug for VerifiedFlatbuffer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifiedFlatbuffer({} bytes)", self.bytes.len())
    }
}

/// Returns the verifier's message without its trace of many lines.
pub(super) fn first_line(error: &flatbuffers::InvalidFlatbuffer) -> String {
    error.to_string().lines().next().unwrap_or_default().trim_end_matches(['.', ' ']).to_owned()
}
