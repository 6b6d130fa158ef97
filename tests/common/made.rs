//! Repositories with virtual references, written by the reference implementation.

use std::path::{Path, PathBuf};

use icechunk::RepositoryConfig;
use icechunk::config::ObjectStoreConfig;
use icechunk::format::ChunkIndices;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::format::manifest::{Checksum, ChunkPayload, SecondsSinceEpoch, VirtualChunkLocation, VirtualChunkRef};
use icechunk::repository::VersionInfo;
use icechunk::virtual_chunks::VirtualChunkContainer;

use crate::common::lab::{array_json, create, reopen};

/// A reference to be written.
#[derive(Clone)]
pub struct Reference {
    pub location: String,
    pub offset: u64,
    pub length: u64,
    pub tag: Option<String>,
    pub not_after: Option<u32>,
}

pub fn reference(location: impl Into<String>, offset: u64, length: u64) -> Reference {
    Reference { location: location.into(), offset, length, tag: None, not_after: None }
}

impl Reference {
    pub fn tagged(self, tag: &str) -> Self {
        Reference { tag: Some(tag.to_owned()), ..self }
    }

    pub fn not_after(self, seconds: u32) -> Self {
        Reference { not_after: Some(seconds), ..self }
    }
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Creates a repository at `place` with array `v`, whose chunks are `references` in their order.
pub fn repository(place: &Path, containers: Vec<VirtualChunkContainer>, references: &[Reference]) -> PathBuf {
    let count = references.len() as u32;
    with_document(place, containers, references, (u64::from(count), array_json(&[count], &[1], "")))
}

/// Creates a repository as [`repository`], with an array of this length and with this `zarr.json`.
pub fn with_document(
    place: &Path,
    containers: Vec<VirtualChunkContainer>,
    references: &[Reference],
    document: (u64, String),
) -> PathBuf {
    of_version(SpecVersionBin::V2, place, containers, references, document)
}

/// Creates a repository as [`with_document`], of another version.
pub fn of_version(
    version: SpecVersionBin,
    place: &Path,
    containers: Vec<VirtualChunkContainer>,
    references: &[Reference],
    (length, document): (u64, String),
) -> PathBuf {
    wait(async {
        let mut config = RepositoryConfig::default();
        for container in containers {
            config.set_virtual_chunk_container(container).unwrap();
        }
        let repository = create(place, version, config).await;
        repository.save_config().await.unwrap();
        let mut session = repository.writable_session("main").await.unwrap();
        let count = u32::try_from(references.len()).unwrap();
        let shape = icechunk::format::snapshot::ArrayShape::new([(length, count)]).unwrap();
        let path: icechunk::format::Path = "/v".try_into().unwrap();
        session.add_array(path.clone(), shape, None, document.into()).await.unwrap();
        for (n, reference) in (0..).zip(references) {
            let location = VirtualChunkLocation::from_url(&reference.location).unwrap();
            let checksum = match (&reference.tag, reference.not_after) {
                (Some(tag), _) => Some(Checksum::ETag(icechunk::storage::ETag(tag.clone()))),
                (None, Some(seconds)) => Some(Checksum::LastModified(SecondsSinceEpoch(seconds))),
                (None, None) => None,
            };
            let chunk = VirtualChunkRef { location, offset: reference.offset, length: reference.length, checksum };
            let payload = Some(ChunkPayload::Virtual(chunk));
            session.set_chunk_ref(path.clone(), ChunkIndices(vec![n]), payload).await.unwrap();
        }
        session.commit("virtual").execute().await.unwrap();
    });
    place.to_owned()
}

pub fn container(name: &str, url_prefix: &str, store: ObjectStoreConfig) -> VirtualChunkContainer {
    VirtualChunkContainer::new_named(name.to_owned(), url_prefix.to_owned(), store).unwrap()
}

/// Returns the location of chunk `n` of `array` by the reference implementation, if it is virtual.
pub fn location_of(place: &Path, array: &str, n: u32) -> Option<String> {
    wait(async {
        let session = reopen(place).await.readonly_session(&VersionInfo::BranchTipRef("main".into())).await.unwrap();
        let path: icechunk::format::Path = array.try_into().unwrap();
        match session.get_chunk_ref(&path, &ChunkIndices(vec![n])).await.unwrap() {
            Some(ChunkPayload::Virtual(chunk)) => Some(chunk.location.url().to_owned()),
            _ => None,
        }
    })
}
