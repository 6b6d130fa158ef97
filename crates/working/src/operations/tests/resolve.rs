//! Conflicts that the user settles: as a whole by an option of the commit, or one by one.

use crate::lab::Lab;
use crate::lab::mount::ARRAY;
use crate::lab::programs::{Programs, committed, refused};
use crate::operations::CommitOptions;
use icechunkfs_base::error::ErrorKind;
use icechunkfs_format::zarr::three_way::Side;
use icechunkfs_repo::commit::engine::OnConflict;

/// Returns the document of the arrays with attributes.
fn document(of: &str, more: &str) -> String {
    ARRAY.replace("\"shape\"", &format!("\"attributes\":{{\"of\":\"{of}\"{more}}},\"shape\""))
}

async fn resolve(programs: &Programs, paths: &[&str], side: Side) {
    let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
    programs.session.resolve(&paths, side).await.unwrap();
}

async fn is_refused(programs: &Programs, paths: &[&str], side: Side) -> ErrorKind {
    let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
    refused(programs.session.resolve(&paths, side).await)
}

async fn conflicts(programs: &Programs) {
    assert_eq!(refused(programs.session.commit(CommitOptions::default()).await), ErrorKind::Stale);
}

#[tokio::test]
async fn members_of_documents_are_resolved_as_the_user_says() {
    for (how, expected) in [(OnConflict::Ours, "mine"), (OnConflict::Theirs, "theirs")] {
        let lab = Lab::new().await;
        let [programs, other] = Programs::two(&lab).await;
        programs.put("a/zarr.json", &document("mine", ",\"x\":1")).await;
        programs.put("a/c/0", "mine").await;
        other.put("a/zarr.json", &document("theirs", ",\"y\":2")).await;
        other.put("a/c/0", "theirs").await;
        other.commit().await;
        conflicts(&programs).await;
        let options = CommitOptions { on_conflict: Some(how), ..CommitOptions::default() };
        programs.session.commit(options).await.unwrap();
        let found = committed(&lab, "third").await;
        assert_eq!(found["a/zarr.json"], document(expected, ",\"y\":2,\"x\":1"), "{how:?}: the rest is merged");
        assert_eq!(found["a/c/0"], expected);
        assert_eq!(programs.tree().await, found, "{how:?}: the mount shows what was committed");
        assert!(programs.session.status().await.unwrap().clean, "{how:?}");
    }
}

#[tokio::test]
async fn each_conflict_is_settled_by_itself() {
    let lab = Lab::new().await;
    let [programs, other] = Programs::two(&lab).await;
    for (mount, text) in [(&programs, "mine"), (&other, "theirs")] {
        mount.put("a/zarr.json", &document(text, "")).await;
        for chunk in ["a/c/0", "a/c/1", "a/c/2"] {
            mount.put(chunk, text).await;
        }
        mount.put("m/zarr.json", &document(text, "")).await;
    }
    other.commit().await;
    conflicts(&programs).await;
    let before = programs.tree().await;
    resolve(&programs, &["a/c/0", "/a/zarr.json"], Side::Ours).await;
    let open = programs.session.conflicts_text();
    assert!(!open.contains("[0]") && open.contains("[1]") && open.contains("[2]"), "{open}");
    assert!(!open.contains("/a: Zarr") && open.contains("/m: Zarr"), "{open}");
    // The others are still conflicts, and nothing is committed.
    conflicts(&programs).await;
    assert_eq!(programs.tree().await, before);
    resolve(&programs, &["m"], Side::Ours).await;
    resolve(&programs, &["/a"], Side::Theirs).await;
    assert_eq!(programs.session.conflicts_text(), "no conflicts\n");
    programs.commit().await;
    let found = committed(&lab, "third").await;
    assert_eq!([&*found["a/c/0"], &*found["a/c/1"], &*found["a/c/2"]], ["mine", "theirs", "theirs"]);
    assert_eq!([&found["a/zarr.json"], &found["m/zarr.json"]], [&document("mine", ""), &document("mine", "")]);
    assert_eq!(programs.tree().await, found, "the mount shows what was committed");
    assert!(programs.session.status().await.unwrap().clean);
}

#[tokio::test]
async fn a_later_commit_makes_another_conflict() {
    let lab = Lab::new().await;
    let [programs, other] = Programs::two(&lab).await;
    programs.put("a/c/0", "mine").await;
    programs.put("a/zarr.json", &document("mine", "")).await;
    other.put("a/c/0", "theirs").await;
    other.put("a/zarr.json", &document("theirs", "")).await;
    other.commit().await;
    conflicts(&programs).await;
    resolve(&programs, &["/"], Side::Ours).await;
    other.put("a/c/0", "later").await;
    other.commit().await;
    conflicts(&programs).await;
    let open = programs.session.conflicts_text();
    assert!(open.contains("ChunkDoubleUpdate") && !open.contains("Zarr"), "{open}");
    other.put("a/zarr.json", &document("later", "")).await;
    other.commit().await;
    conflicts(&programs).await;
    assert!(programs.session.conflicts_text().contains("ZarrMetadataDoubleUpdate"));
    assert_eq!(committed(&lab, "third").await["a/c/0"], "later", "nothing was overwritten");
    resolve(&programs, &["a"], Side::Ours).await;
    programs.commit().await;
    let found = committed(&lab, "fourth").await;
    assert_eq!((&*found["a/c/0"], &found["a/zarr.json"]), ("mine", &document("mine", "")));
}

#[tokio::test]
async fn settlements_end_with_the_changes_that_they_are_for() {
    let lab = Lab::new().await;
    let [programs, other] = Programs::two(&lab).await;
    programs.put("a/c/0", "mine").await;
    other.put("a/c/0", "theirs").await;
    other.commit().await;
    conflicts(&programs).await;
    resolve(&programs, &["a"], Side::Ours).await;
    programs.session.discard("/a/c/0").await.unwrap();
    programs.put("a/c/0", "by mistake").await;
    conflicts(&programs).await;
    assert_eq!(committed(&lab, "third").await["a/c/0"], "theirs");
}

#[tokio::test]
async fn a_refresh_takes_what_is_settled() {
    let lab = Lab::new().await;
    let [programs, other] = Programs::two(&lab).await;
    programs.put("a/c/0", "mine").await;
    programs.put("a/zarr.json", &document("mine", ",\"x\":1")).await;
    other.put("a/c/0", "theirs").await;
    other.put("a/c/3", "theirs too").await;
    other.put("a/zarr.json", &document("theirs", ",\"y\":1")).await;
    other.commit().await;
    assert_eq!(refused(programs.session.refresh().await), ErrorKind::Stale);
    resolve(&programs, &["a/zarr.json"], Side::Theirs).await;
    resolve(&programs, &["a/c/0"], Side::Theirs).await;
    let before = programs.tree().await;
    let why = programs.session.refresh().await.unwrap_err().to_string();
    assert!(why.contains("in favor of concurrent commits") && programs.tree().await == before, "{why}");
    // The last word counts.
    resolve(&programs, &["a/c/0"], Side::Ours).await;
    programs.session.refresh().await.unwrap();
    let merged = document("theirs", ",\"y\":1,\"x\":1");
    assert_eq!([programs.get("a/c/0").await, programs.get("a/c/3").await], ["mine", "theirs too"]);
    assert_eq!(programs.get("a/zarr.json").await, merged);
    let found = committed(&lab, "third").await;
    assert_eq!((&*found["a/c/0"], &found["a/zarr.json"]), ("theirs", &document("theirs", ",\"y\":1")));
    programs.commit().await;
    let found = committed(&lab, "fourth").await;
    assert_eq!((&*found["a/c/0"], &found["a/zarr.json"]), ("mine", &merged));
}

#[tokio::test]
async fn where_no_side_can_be_taken_the_command_that_helps_is_named() {
    let lab = Lab::new().await;
    let [programs, other] = Programs::two(&lab).await;
    assert_eq!(is_refused(&programs, &["a"], Side::Ours).await, ErrorKind::NotFound, "there are no conflicts");
    programs.put("a/c/0", "mine").await;
    programs.put("m/c/0", "mine").await;
    other.put("m/c/0", "theirs").await;
    other.remove_all("a").await;
    other.commit().await;
    conflicts(&programs).await;
    let text = programs.session.conflicts_text();
    assert!(text.contains("icechunkfs discard") && text.contains("icechunkfs resolve"), "{text}");
    for paths in [&["a"][..], &["m", "a"], &["/"]] {
        assert_eq!(is_refused(&programs, paths, Side::Theirs).await, ErrorKind::Stale, "{paths:?}");
    }
    assert_eq!(is_refused(&programs, &["m", "nowhere"], Side::Ours).await, ErrorKind::NotFound);
    assert_eq!(programs.session.conflicts_text(), text, "nothing was settled");
    programs.session.discard("/a").await.unwrap();
    conflicts(&programs).await;
    resolve(&programs, &["m"], Side::Ours).await;
    programs.commit().await;
    let found = committed(&lab, "third").await;
    assert!(!found.contains_key("a/zarr.json") && found["m/c/0"] == "mine");
}

#[tokio::test]
async fn a_discard_of_a_part_leaves_the_other_conflicts_and_settlements() {
    let lab = Lab::new().await;
    let [programs, other] = Programs::two(&lab).await;
    for path in ["a/c/0", "a/c/1", "m/c/0"] {
        programs.put(path, "mine").await;
        other.put(path, "theirs").await;
    }
    other.commit().await;
    conflicts(&programs).await;
    resolve(&programs, &["a/c/1"], Side::Ours).await;
    resolve(&programs, &["m"], Side::Ours).await;
    programs.session.discard("/a/c/0").await.unwrap();
    // Settlements of the same array are asked again.
    let text = programs.session.conflicts_text();
    assert!(text.contains("/a:") && !text.contains("/m:"), "{text}");
    resolve(&programs, &["a/c/1"], Side::Ours).await;
    assert_eq!(programs.session.conflicts_text(), "no conflicts\n");
    programs.commit().await;
    let found = committed(&lab, "third").await;
    assert_eq!([&*found["a/c/0"], &*found["a/c/1"], &*found["m/c/0"]], ["theirs", "mine", "mine"]);
    programs.put("a/c/0", "mine").await;
    programs.session.discard("").await.unwrap();
    assert_eq!(programs.session.conflicts_text(), "no conflicts\n");
}

/// Nobody has given up what is written after it was settled that the rest gives way.
#[tokio::test]
async fn what_is_written_later_does_not_give_way() {
    let lab = Lab::new().await;
    let [programs, other] = Programs::two(&lab).await;
    for (mount, text) in [(&programs, "mine"), (&other, "their")] {
        mount.put("a/c/0", text).await;
        mount.put("m/zarr.json", &document(text, "")).await;
    }
    other.commit().await;
    conflicts(&programs).await;
    resolve(&programs, &["/"], Side::Theirs).await;
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    programs.put("a/c/0", "both").await;
    programs.put("m/zarr.json", &document("both", "")).await;
    conflicts(&programs).await;
    assert_eq!(programs.get("a/c/0").await, "both");
    resolve(&programs, &["/"], Side::Ours).await;
    // Our side is taken as it is at the commit.
    programs.put("a/c/0", "last").await;
    programs.commit().await;
    let found = committed(&lab, "third").await;
    assert_eq!((&*found["a/c/0"], &found["m/zarr.json"]), ("last", &document("both", "")));
}

#[tokio::test]
async fn settling_one_chunk_gives_up_nothing_of_another() {
    let lab = Lab::new().await;
    let [programs, other] = Programs::two(&lab).await;
    for (mount, text) in [(&programs, "mine"), (&other, "their")] {
        mount.put("a/c/0", text).await;
        mount.put("a/c/1", text).await;
    }
    other.commit().await;
    conflicts(&programs).await;
    resolve(&programs, &["a/c/0"], Side::Theirs).await;
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    programs.put("a/c/0", "both").await;
    resolve(&programs, &["a/c/1"], Side::Theirs).await;
    conflicts(&programs).await;
    let text = programs.session.conflicts_text();
    assert!(text.contains("[0]") && !text.contains("[1]"), "{text}");
    assert_eq!(programs.get("a/c/0").await, "both");
}

/// The deletions of a smaller shape must not remain in a larger one.
#[tokio::test]
async fn a_smaller_and_a_larger_shape_are_not_settled() {
    let shape = |length: u32| ARRAY.replace("\"shape\":[8]", &format!("\"shape\":[{length}]"));
    for (mine, theirs) in [(4, 10), (10, 4)] {
        for side in [Side::Ours, Side::Theirs] {
            let lab = Lab::new().await;
            let [programs, other] = Programs::two(&lab).await;
            for (mount, length) in [(&programs, mine), (&other, theirs)] {
                if length < 8 {
                    mount.unlink("a/c/7").await.unwrap();
                }
                mount.put("a/zarr.json", &shape(length)).await;
            }
            other.commit().await;
            let before = committed(&lab, "third").await;
            conflicts(&programs).await;
            resolve(&programs, &["a"], side).await;
            conflicts(&programs).await;
            let text = programs.session.conflicts_text();
            assert!(text.contains("icechunkfs discard"), "{mine} {theirs} {side:?}: {text}");
            assert_eq!(committed(&lab, "fourth").await, before);
        }
    }
}
