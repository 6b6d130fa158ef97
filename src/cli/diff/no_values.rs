//! `diff --values` of a program that was built without the decoders of codecs.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use serde_json::Value;

use super::Compared;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_repo::reader::Reader;

/// Result of comparing the values of an array: there is none.
pub(super) struct Outcome(Infallible);

/// Fails.
pub(super) async fn compare(_: &Arc<Reader>, _: &Compared) -> Result<BTreeMap<usize, Outcome>> {
    let message = "this program was built without the feature `netcdf`, which decodes chunks: build it with that";
    Err(Error::new(ErrorKind::Unsupported, message))
}

impl Outcome {
    /// Returns the lines that a person reads about the array at `path`.
    pub(super) fn lines(&self, _path: &str) -> Vec<String> {
        match self.0 {}
    }

    /// Returns what a program reads about the array.
    pub(super) fn json(&self) -> Value {
        match self.0 {}
    }
}
