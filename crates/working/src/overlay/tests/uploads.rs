//! [`Uploads`](super::super::uploads::Uploads): a commit names an uploaded object only if it has
//! the bytes that the file has now.

use std::collections::HashSet;

use crate::lab::Lab;
use crate::lab::programs::{Programs, READ, WRITE};
use crate::operations::CommitOptions;
use crate::overlay::handles::OpenOptions;
use crate::overlay::namespace::RenameMode;
use crate::overlay::set_attributes::SetAttrs;
use crate::overlay::uploads::{Document, Ticket, UploadDecision, Uploaded};
use crate::scratch::record::{DataFileId, EntryId};
use icechunkfs_base::error::ErrorKind;
use icechunkfs_format::format::chunk_payload::ChunkPayload;

const PATH: &str = "a/c/2";

async fn with_uploads(lab: &Lab) -> Programs {
    let programs = Programs::with_arrays(lab).await;
    programs.working().uploads().eager().enable();
    programs
}

/// Writes a file, which is queued when it is closed.
async fn queued(programs: &Programs, path: &str, text: &str) -> EntryId {
    programs.put(path, text).await;
    let next = programs.working().uploads().eager().next();
    tokio::time::timeout(std::time::Duration::from_secs(5), next).await.expect("a closed file is queued")
}

fn ticket(programs: &Programs, id: EntryId) -> Option<Ticket> {
    match programs.working().uploads().begin_upload(id, 1).unwrap() {
        UploadDecision::Now(_, ticket) => Some(ticket),
        UploadDecision::Later | UploadDecision::Never => None,
    }
}

fn payload() -> ChunkPayload {
    ChunkPayload::Inline("uploaded".into())
}

/// Returns the uploads that a commit would use now, whichever file it commits.
fn usable(programs: &Programs) -> Vec<Uploaded> {
    let files = programs.working().upper().files();
    let find = |data: DataFileId| programs.working().uploads().eager().find(data, &files.stat(data).unwrap());
    let paths = |data: &DataFileId| !programs.working().upper().paths_of_data(&HashSet::from([*data])).is_empty();
    files.list().unwrap().into_iter().filter(paths).filter_map(find).collect()
}

#[tokio::test]
async fn an_upload_of_a_file_at_rest_is_used_and_one_from_before_a_write_is_not() {
    let lab = Lab::new().await;
    let programs = with_uploads(&lab).await;
    let id = queued(&programs, PATH, "first").await;
    assert!(ticket(&programs, id).unwrap().stored(payload()));
    assert_eq!(usable(&programs).len(), 1, "its bytes are stored");
    assert!(ticket(&programs, id).is_none(), "and need not be stored again");
    programs.patch(PATH, 0, "F").await;
    assert!(usable(&programs).is_empty(), "the object has other bytes");
    assert!(ticket(&programs, id).is_some(), "the file is stored again");
}

#[tokio::test]
async fn a_file_that_is_written_during_its_upload_is_not_taken_from_it() {
    let lab = Lab::new().await;
    let programs = with_uploads(&lab).await;
    let id = queued(&programs, PATH, "first").await;
    let before = ticket(&programs, id).unwrap();
    programs.patch(PATH, 0, "F").await;
    assert!(!before.stored(payload()), "the object may have either byte");
    assert!(usable(&programs).is_empty());
    let during = ticket(&programs, id).unwrap();
    let writer = programs.open(PATH, WRITE).await.unwrap();
    assert!(!during.stored(payload()), "a program may have written by then");
    programs.close(writer).await;
    assert!(usable(&programs).is_empty());
}

#[tokio::test]
async fn a_file_that_was_cut_by_its_path_is_not_taken_from_its_upload() {
    let lab = Lab::new().await;
    let programs = with_uploads(&lab).await;
    let id = queued(&programs, PATH, "first").await;
    let before = ticket(&programs, id).unwrap();
    programs.truncate(PATH, 2).await;
    programs.truncate(PATH, 5).await;
    assert!(!before.stored(payload()), "the file has its old length and other bytes");
    assert!(ticket(&programs, id).unwrap().stored(payload()));
    programs.truncate(PATH, 3).await;
    programs.truncate(PATH, 5).await;
    assert!(usable(&programs).is_empty());
}

#[tokio::test]
async fn a_file_with_its_old_time_and_length_and_other_bytes_is_stored_again() {
    let lab = Lab::new().await;
    let programs = with_uploads(&lab).await;
    let id = queued(&programs, PATH, "first").await;
    let before = programs.stat(PATH).await.unwrap();
    assert!(ticket(&programs, id).unwrap().stored(payload()));
    programs.put(PATH, "other").await;
    programs.set(PATH, SetAttrs { mtime: Some(before.meta.mtime), ..SetAttrs::default() }).await;
    let after = programs.stat(PATH).await.unwrap();
    assert_eq!((after.size, after.meta.mtime), (before.size, before.meta.mtime));
    assert!(usable(&programs).is_empty(), "`cp -p` of other bytes is a write");
}

#[tokio::test]
async fn a_file_open_for_writing_or_without_a_name_is_not_uploaded() {
    let lab = Lab::new().await;
    let programs = with_uploads(&lab).await;
    let id = queued(&programs, PATH, "first").await;
    let reader = programs.open(PATH, READ).await.unwrap();
    let writer = programs.open(PATH, WRITE).await.unwrap();
    assert!(ticket(&programs, id).is_none(), "a program may write to it");
    programs.close(writer).await;
    assert!(ticket(&programs, id).is_some(), "a reader is in nobody's way");
    programs.unlink(PATH).await.unwrap();
    assert!(ticket(&programs, id).is_none(), "no commit has a file without a name");
    programs.close(reader).await;
    assert!(ticket(&programs, id).is_none());
}

#[tokio::test]
async fn a_file_that_the_kernel_may_write_to_waits() {
    let lab = Lab::new().await;
    let programs = with_uploads(&lab).await;
    let id = queued(&programs, PATH, "first").await;
    let number = programs.number(PATH).await.unwrap();
    let options = OpenOptions { passthrough: true, ..WRITE };
    let opened = programs.working().handles().open_file(number, options).await.unwrap();
    let mapping = opened.backing.expect("a file of the scratch directory is passed through");
    let kind = crate::overlay::opens::HandleKind { writes: true, backed: true, executes: false };
    programs.working().handles().release(number, kind).await.unwrap();
    let decided = programs.working().uploads().begin_upload(id, 1).unwrap();
    assert!(matches!(decided, UploadDecision::Later), "a mapping outlives its handle: {decided:?}");
    drop((mapping, decided));
    assert!(ticket(&programs, id).is_some(), "it was unmapped");
}

#[tokio::test]
async fn uploads_follow_the_bytes_and_not_the_names() {
    let lab = Lab::new().await;
    let programs = with_uploads(&lab).await;
    let id = queued(&programs, PATH, "first").await;
    assert!(ticket(&programs, id).unwrap().stored(payload()));
    programs.put("a/c/3", "other").await;
    programs.rename(PATH, "a/c/3", RenameMode::Exchange).await.unwrap();
    assert_eq!(usable(&programs).len(), 1, "a renamed file has its bytes");
    let keys: Vec<String> = programs.working().uploads().names_below(id).into_iter().map(|name| name.key).collect();
    assert_eq!(keys, ["c/3"], "its name is the present one");
    programs.unlink("a/c/3").await.unwrap();
    assert!(usable(&programs).is_empty(), "the upload is not another file's");
}

#[tokio::test]
async fn a_file_has_the_names_below_the_nearest_document() {
    let lab = Lab::new().await;
    Programs::with_arrays(&lab).await;
    let programs = Programs::new(&lab, "second").await;
    programs.working().uploads().eager().enable();
    let id = queued(&programs, PATH, "first").await;
    let uploads = programs.working().uploads();
    let stored = uploads.names_below(id);
    assert!(matches!(stored[0].document, Document::Stored(_)), "the snapshot's document: {stored:?}");
    programs.link(PATH, "m/c/4").await.unwrap();
    programs.put("a/zarr.json", crate::lab::mount::ARRAY).await;
    programs.link(PATH, "free").await.unwrap();
    let mut keys: Vec<(String, bool)> = uploads
        .names_below(id)
        .into_iter()
        .map(|name| (name.key, matches!(name.document, Document::Changed(_))))
        .collect();
    keys.sort();
    let expected = [("c/2", true), ("c/4", false), ("free", false)].map(|(key, changed)| (key.to_owned(), changed));
    assert_eq!(keys, expected, "each by the document above that name");
}

#[tokio::test]
async fn small_files_and_files_without_bytes_of_their_own_are_left_to_the_commit() {
    let lab = Lab::new().await;
    let programs = with_uploads(&lab).await;
    let id = queued(&programs, PATH, "first").await;
    let uploads = programs.working().uploads();
    assert_eq!(uploads.own_size(id).unwrap(), Some(5));
    assert!(matches!(uploads.begin_upload(id, 6).unwrap(), UploadDecision::Never), "smaller than is asked for");
    programs.truncate(PATH, 0).await;
    assert!(matches!(uploads.begin_upload(id, 0).unwrap(), UploadDecision::Never), "an empty file is no chunk");
    programs.put(PATH, "first").await;
    programs.commit().await;
    assert!(matches!(uploads.begin_upload(id, 1).unwrap(), UploadDecision::Never), "the commit has stored it");
    assert_eq!(uploads.own_size(id).unwrap(), None);
}

#[tokio::test]
async fn no_upload_begins_while_a_commit_runs() {
    let lab = Lab::new().await;
    let programs = with_uploads(&lab).await;
    let id = queued(&programs, PATH, "first").await;
    let uploads = programs.working().uploads();
    let pause = uploads.eager().hold();
    assert!(matches!(uploads.begin_upload(id, 1).unwrap(), UploadDecision::Later));
    drop(pause);
    assert!(ticket(&programs, id).unwrap().stored(payload()));
    let writer = programs.open("a/c/1", WRITE).await.unwrap();
    let committed = programs.session.commit(CommitOptions::default()).await;
    assert_eq!(committed.unwrap_err().kind(), ErrorKind::Busy);
    programs.close(writer).await;
    assert_eq!(usable(&programs).len(), 1, "a refused commit leaves the upload");
    programs.session.discard("").await.unwrap();
    programs.put(PATH, "again").await;
    assert!(usable(&programs).is_empty(), "a discarded file is not taken for the next one of its name");
}
