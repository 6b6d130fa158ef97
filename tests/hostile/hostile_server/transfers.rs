//! Stalled transfers: large uploads that the server does not read, and credentials that never come.

use std::collections::BTreeMap;
use std::time::Duration;

use super::measure::{Client, TIMEOUT, command, complaint, measure, seed, tree};
use crate::common::hostile::{Lie, Store, To};

/// Chunks of 24 MiB are sent in parts, of 12 MiB at once.
#[test]
fn an_upload_that_the_server_does_not_read_ends() {
    for size in [24 << 20, 12 << 20] {
        let directory = tempfile::tempdir().unwrap();
        tree(directory.path(), size);
        let store = Store::new(BTreeMap::new());
        store.lie(To::Chunks, Lie::SlowReader);
        let source = directory.path().to_str().unwrap();
        let outcome = measure(&mut command(Client::Amazon, &store, &["import", source, "REPO"]));
        assert!(!outcome.success && store.lies() > 0, "{outcome:?}");
        // Some megabytes fit into the buffers of sockets, and count as sent.
        let uploads = complaint(&outcome, Duration::from_millis(500)).filter(|output| !output.contains("MiB:"));
        assert_eq!(uploads, None);
    }
}

#[test]
fn commands_end_when_credentials_never_come() {
    let lies = [Lie::Silent, Lie::HeadDrip, Lie::HugeClaim, Lie::EndlessChunks, Lie::EndlessRefusal];
    for lie in lies {
        let store = Store::new(seed());
        let metadata = Store::new(BTreeMap::new());
        metadata.lie(To::All, lie);
        let mut refs = command(Client::Amazon, &store, &["refs", "REPO"]);
        refs.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
        refs.env("AWS_METADATA_ENDPOINT", format!("http://127.0.0.1:{}", metadata.port));
        let outcome = measure(&mut refs);
        assert!(!outcome.success && metadata.lies() > 0, "{lie:?}: {outcome:?}");
        assert_eq!(complaint(&outcome, Duration::from_millis(200)), None, "{lie:?}");
    }
}

/// 600 kB take twice the timeout.
#[test]
fn a_transfer_at_the_minimum_rate_completes() {
    let directory = tempfile::tempdir().unwrap();
    tree(directory.path(), 600_000);
    let store = Store::new(BTreeMap::new());
    let source = directory.path().to_str().unwrap();
    assert!(measure(&mut command(Client::Amazon, &store, &["import", source, "REPO"])).success);
    store.lie(To::Chunks, Lie::SlowLine);
    let outcome = measure(&mut command(Client::Amazon, &store, &["cat", "REPO", "a/c/1"]));
    assert!(outcome.success && outcome.elapsed > 2 * TIMEOUT, "{outcome:?}");
}
