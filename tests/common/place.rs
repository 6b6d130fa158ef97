//! Places of the tests' repositories: directories, or the store that `scripts/with-server` has
//! started and named in the environment. The same suites run over both.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use icechunk::config::{AzureCredentials, GcsBearerCredential, GcsCredentials, GcsStaticCredentials, S3Options};
use icechunk::storage::{new_azure_blob_storage, new_gcs_storage};
use icechunk::{Repository, new_local_filesystem_storage, new_s3_object_store_storage};
use object_store::{ObjectStore, ObjectStoreExt};

/// Returns the URL of the store, if this run uses one.
fn store() -> Option<String> {
    std::env::var("ICECHUNKFS_TEST_STORE").ok()
}

/// Returns true if repositories are directories of this machine: some properties only hold for
/// those.
pub fn is_local() -> bool {
    store().is_none()
}

/// Returns true if repositories are directories; otherwise the test is reported as skipped.
pub fn needs_directory() -> bool {
    if !is_local() {
        eprintln!("NOT RUN: it needs a repository that is a directory");
    }
    is_local()
}

/// Returns true if the store can hold a fixture. One server makes file names of keys, which may be
/// too long for that.
pub fn takes(fixture: &str) -> bool {
    let too_long = fixture.ends_with("v1-refnames") && std::env::var_os("ICECHUNKFS_TEST_SHORT_KEYS").is_some();
    if too_long {
        eprintln!("NOT RUN: this server cannot hold the long names of {fixture}");
    }
    !too_long
}

/// Returns a place for the repository of the test with this temporary directory.
pub fn place(directory: &Path) -> PathBuf {
    match store() {
        Some(store) => format!("{store}/{}", directory.file_name().unwrap().to_str().unwrap().replace('.', "")).into(),
        None => directory.join("repo"),
    }
}

/// Credentials for Google's emulator, with which no token is requested.
const NOBODY: &str = r#"{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}"#;

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// Returns `repository`, a directory, or a copy of it in the store of this run.
pub fn stored(repository: &Path) -> PathBuf {
    let Some(store) = store() else { return repository.to_owned() };
    let name = format!("fixture-{}-{}", std::process::id(), repository.file_name().unwrap().to_str().unwrap());
    let place = format!("{store}/{name}");
    let url = url::Url::parse(&place).unwrap();
    let settings = std::env::vars().map(|(name, value)| (name.to_ascii_lowercase(), value));
    let settings = settings.chain([("allow_http", "true"), ("google_service_account_key", NOBODY)].map(owned));
    let (store, prefix) = object_store::parse_url_opts(&url, settings).unwrap();
    let store: Arc<dyn ObjectStore> = store.into();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let first = prefix.clone().join("repo");
        let refs = prefix.clone().join("refs/branch.main/ref.json");
        if store.head(&first).await.is_ok() || store.head(&refs).await.is_ok() {
            return;
        }
        for (key, bytes) in super::read_files(repository) {
            let path = object_store::path::Path::parse(format!("{prefix}/{key}")).unwrap();
            store.put(&path, bytes.into()).await.unwrap();
        }
    });
    place.into()
}

/// Opens the repository at `place` with the reference implementation.
pub async fn reference(place: &Path) -> Repository {
    let variable = |name: &str| std::env::var(name).unwrap();
    let storage = match place.to_str().unwrap().split_once("://") {
        None => new_local_filesystem_storage(place).await,
        Some((scheme, rest)) => {
            let (bucket, prefix) = rest.split_once('/').unwrap();
            let bucket = bucket.to_owned();
            let prefix = Some(prefix.to_owned());
            match scheme {
                "s3" => {
                    let options = S3Options::default()
                        .with_region(variable("AWS_REGION"))
                        .with_endpoint_url(variable("AWS_ENDPOINT_URL"))
                        .with_allow_http(true)
                        .with_force_path_style(true);
                    new_s3_object_store_storage(options, bucket, prefix, None, Vec::new(), Vec::new()).await
                }
                "gs" => {
                    let address = variable("GOOGLE_BASE_URL");
                    let config = [("google_base_url", &*address), ("allow_http", "true")].map(owned).into();
                    let anybody = GcsBearerCredential { bearer: "anybody".to_owned(), expires_after: None };
                    let anybody = GcsCredentials::Static(GcsStaticCredentials::BearerToken(anybody));
                    new_gcs_storage(bucket, prefix, Some(anybody), Some(config), Vec::new(), Vec::new())
                }
                "az" => {
                    let config = [owned(("allow_http", "true"))].into();
                    let account = "devstoreaccount1".to_owned();
                    new_azure_blob_storage(account, bucket, prefix, Some(AzureCredentials::FromEnv), Some(config)).await
                }
                _ => panic!("the reference is not asked about {}", place.display()),
            }
        }
    };
    Repository::open(storage.unwrap()).execute().await.unwrap()
}
