//! `ls` and `cat`: inspecting a repository without a mount.

use crate::common::{FixtureSet, run_on, sha256};

#[test]
fn ls_counts_stored_chunks_and_cat_prints_their_bytes() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let id = fixture.expected["branches"]["main"].as_str().unwrap();
    let snapshot = &fixture.expected["snapshots"][id];
    let keys = snapshot["fskeys"].as_object().unwrap();
    let repo = fixture.repository.as_os_str();
    let listed = run_on(repo, &["ls", "--recursive", "--json"]).json();
    let rows: Vec<_> = listed.as_array().unwrap().iter().filter(|row| row["kind"] != "implicit").collect();
    let mut paths: Vec<&str> = rows.iter().map(|row| row["path"].as_str().unwrap()).collect();
    assert!(paths.is_sorted_by_key(|path| path.replace('/', "\0")), "{paths:?}");
    let mut expected: Vec<&str> = snapshot["nodes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
    expected.sort_unstable();
    paths.sort_unstable();
    assert_eq!(paths, expected);
    let mut chunks = 0;
    for row in rows.iter().filter(|row| row["kind"] == "array") {
        let folder = format!("{}/", row["path"].as_str().unwrap().trim_start_matches('/'));
        let stored = keys.iter().filter(|(key, _)| key.starts_with(&folder) && !key.ends_with("zarr.json"));
        let sizes: Vec<u64> = stored.map(|(_, value)| value[0].as_u64().unwrap()).collect();
        assert_eq!(row["chunks"], sizes.len(), "{folder}");
        assert_eq!(row["bytes"], sizes.iter().sum::<u64>(), "{folder}");
        chunks += sizes.len();
    }
    assert!(chunks > 50);
    let below = run_on(repo, &["ls", "a/b", "-r", "--json"]).json();
    assert!(below.as_array().unwrap().iter().all(|row| row["path"].as_str().unwrap().starts_with("/a/b")));
    for (key, value) in keys.iter().step_by(7) {
        let bytes = run_on(repo, &["cat", key]).success();
        assert_eq!(sha256(&bytes), value[1].as_str().unwrap(), "{key}");
    }
    assert!(run_on(repo, &["cat", "a/b"]).failure().contains("is a directory"));
    assert!(run_on(repo, &["cat", "a/nothing"]).failure().contains("no `a/nothing`"));
}
