//! Keys that begin with a slash.
//!
//! Some releases of the reference implementation wrote repositories at the root of a bucket under
//! `/repo`, `/snapshots/...`. The client's paths cannot express that: they drop slashes at their
//! ends. The slash is therefore in the address of the bucket, to which the client adds another
//! slash and the path; it signs the address as it is sent. Only listings name keys elsewhere: there
//! the slash is added to the prefix, and the client drops it from the results.

use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::aws::AmazonS3;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Bucket whose keys begin with a slash; paths are the keys without it. Its address ends with a
/// slash, and it removes objects one by one.
#[derive(Clone, Debug)]
pub(super) struct SlashPrefixed(pub(super) AmazonS3);

impl fmt::Display for SlashPrefixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, keys with a slash before", self.0)
    }
}

fn not_supported(what: &'static str) -> Error {
    Error::NotSupported { source: format!("{what} of keys that begin with a slash").into() }
}

#[async_trait]
impl ObjectStore for SlashPrefixed {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.0.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.0.get_ranges(location, ranges).await
    }

    /// Removes each object by a separate request: the bulk request names keys in its body, where
    /// the address has no effect.
    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = match prefix {
            Some(prefix) if !prefix.as_ref().is_empty() => format!("/{prefix}/"),
            _ => "/".to_owned(),
        };
        // The state contains the options of the next page, with its token unless it is the first.
        let first = Some(PaginatedListOptions::default());
        let pages = stream::try_unfold((self.0.clone(), prefix, first), |(store, prefix, next)| async move {
            let Some(options) = next else { return Ok::<_, Error>(None) };
            let page = store.list_paginated(Some(&prefix), options).await?;
            let next = page
                .page_token
                .map(|token| PaginatedListOptions { page_token: Some(token), ..PaginatedListOptions::default() });
            let objects = stream::iter(page.result.objects.into_iter().map(Ok));
            Ok(Some((objects, (store, prefix, next))))
        });
        pages.try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(not_supported("a listing by directories"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        // A copy names its source in a header, where the address has no effect.
        Err(not_supported("a copy"))
    }
}
