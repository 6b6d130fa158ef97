//! A repository in which every text is hostile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use icechunk::config::ObjectStoreConfig;
use icechunk::format::ChunkIndices;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::format::snapshot::ArrayShape;
use icechunk::{Repository, RepositoryConfig};

use super::HOSTILE;
use crate::common::block_on;
use crate::common::lab::{GROUP, array_json, create, main_branch};
use crate::common::made::container;

/// Returns the path of its hostile array.
pub fn array_path() -> String {
    format!("/{HOSTILE} group/{HOSTILE} array")
}

async fn fill(repository: &Repository, branch: &str, array: &str, n: u8) {
    let mut session = repository.writable_session(branch).await.unwrap();
    if n == 0 {
        session.add_group("/".try_into().unwrap(), GROUP.to_owned().into()).await.unwrap();
        session
            .add_group(format!("/{HOSTILE} group").as_str().try_into().unwrap(), GROUP.to_owned().into())
            .await
            .unwrap();
    }
    let shape = ArrayShape::new([(4, 4)]).unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&array_json(&[4], &[1], HOSTILE)).unwrap();
    document["dimension_names"] = serde_json::json!([HOSTILE]);
    let path: icechunk::format::Path = array.try_into().unwrap();
    session.add_array(path.clone(), shape, None, document.to_string().into()).await.unwrap();
    let write = session.get_chunk_writer(&path, &ChunkIndices(vec![0])).unwrap();
    let payload = write(vec![n; 1000].into()).await.unwrap();
    session.set_chunk_ref(path, ChunkIndices(vec![0]), Some(payload)).await.unwrap();
    let metadata = BTreeMap::from([(format!("{HOSTILE} key"), serde_json::json!(format!("{HOSTILE} value")))]);
    session.commit(format!("{HOSTILE} message {n}")).properties(metadata).execute().await.unwrap();
}

/// Creates it at `place`.
pub fn repository(place: &Path, version: SpecVersionBin) -> PathBuf {
    block_on(async {
        let mut config = RepositoryConfig::default();
        let store = ObjectStoreConfig::S3(Default::default());
        config
            .set_virtual_chunk_container(container(
                &format!("{HOSTILE} container").replace('/', ""),
                "s3://bucket/",
                store,
            ))
            .unwrap();
        let repository = create(place, version, config).await;
        repository.save_config().await.unwrap();
        fill(&repository, "main", &array_path(), 0).await;
        let tip = repository.resolve_version(&main_branch()).await.unwrap();
        repository.create_tag(&format!("{HOSTILE} tag"), &tip).await.unwrap();
        repository.create_branch(&format!("{HOSTILE} branch"), &tip).await.unwrap();
        fill(&repository, "main", &format!("/{HOSTILE} second"), 1).await;
        fill(&repository, &format!("{HOSTILE} branch"), &format!("/{HOSTILE} third"), 2).await;
    });
    place.to_owned()
}

/// Returns the files of a repository below `folder`.
pub fn objects(repository: &Path, folder: &str) -> Vec<PathBuf> {
    std::fs::read_dir(repository.join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect()
}
