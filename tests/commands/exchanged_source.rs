//! Pulls from a repository that another person changes meanwhile, or that has other files under the names of the user's.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::error::{Error, ErrorKind, Result};
use icechunkfs::repo::Repository;
use icechunkfs::storage::{
    self, Capabilities, Content, ListMode, ObjectSource, ReadMode, Removal, Storage, StoredObject, Visitor,
};
use icechunkfs::sync::{self, push};
use icechunkfs::times::system_clock;

use super::merge::{Setup, setup};
use crate::common::writing::Reference;
use crate::common::{block_on, copy_tree, entries, run_on};

/// Commits of the stranger: more than are read at the same time.
const COMMITS: usize = 20;

/// A storage that calls a hook before each read. The hook may fail it.
struct Watched<H> {
    inner: Arc<dyn Storage>,
    capabilities: Capabilities,
    hook: Mutex<H>,
}

impl<H> std::fmt::Debug for Watched<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watched")
    }
}

#[async_trait]
impl<H: FnMut(&str) -> Result<()> + Send> Storage for Watched<H> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<StoredObject>> {
        (self.hook.lock().unwrap())(key)?;
        self.inner.read(key, limit, mode).await
    }

    async fn store(&self, key: &str, content: Content<'_>) -> Result<()> {
        self.inner.store(key, content).await
    }

    async fn sync(&self, folders: &[&str]) -> Result<()> {
        self.inner.sync(folders).await
    }

    async fn walk(&self, prefix: &str, mode: ListMode, visit: Visitor<'_>) -> Result<()> {
        self.inner.walk(prefix, mode, visit).await
    }

    async fn remove(&self, removal: Removal<'_>) -> Result<()> {
        self.inner.remove(removal).await
    }

    async fn locate(&self, _key: &str) -> Result<Option<ObjectSource>> {
        Ok(None)
    }

    async fn check_conditions(&self, _key: &str, _limit: u64) -> Result<()> {
        Ok(())
    }
}

/// Pulls `main` of the repository at `from` into that at `to`, while `hook` is called before each read of the source.
fn pull(from: &Path, to: &Path, hook: impl FnMut(&str) -> Result<()> + Send + 'static) -> Result<push::Pushed> {
    let inner = storage::open_directory(from).unwrap();
    let capabilities = Capabilities::new(from.to_str().unwrap());
    let watched: Arc<dyn Storage> = Arc::new(Watched { inner, capabilities, hook: Mutex::new(hook) });
    block_on(async {
        let destination = Repository::open(storage::open_directory(to).unwrap()).await.unwrap();
        let source = Repository::open(watched).await.unwrap();
        let options = push::PushOptions { refs: vec!["main".to_owned()], memory: 64 << 20, ..Default::default() };
        push::push(source, destination, &options, &sync::Counters::default(), system_clock).await
    })
}

/// The user's repository of version 1 with a commit on `main`, and a stranger's copy with more. Returns it with the place of the copy.
fn family() -> (Setup, PathBuf, tempfile::TempDir) {
    let mine = setup(SpecVersionBin::V1);
    mine.commit("main", &[("a/c/2", b"mine")]);
    let directory = tempfile::tempdir().unwrap();
    let theirs = directory.path().join("theirs");
    copy_tree(&mine.place, &theirs);
    for n in 0..COMMITS {
        Reference::open(&theirs).commit(&[("a/c/3", format!("{n}").as_bytes())], "theirs");
    }
    (mine, theirs, directory)
}

fn tip(place: &Path, branch: &str) -> String {
    Reference::open(place).on(branch).history()[0].0.clone()
}

/// Returns a copy of the repository at `place` in which the newest commit follows no other any more.
fn expired(place: &Path) -> PathBuf {
    let copy = place.with_file_name("expired");
    copy_tree(place, &copy);
    run_on(&copy, &["expire", "--older-than", "0s", "--yes"]).success();
    copy
}

#[test]
fn what_is_copied_has_the_parents_by_which_a_branch_goes_forward() {
    let (mine, theirs, _directory) = family();
    let kept = tip(&mine.place, "main");
    let snapshot = PathBuf::from("snapshots").join(tip(&theirs, "main"));
    let forged = expired(&theirs).join(&snapshot);
    assert_ne!(std::fs::read(&forged).unwrap(), std::fs::read(theirs.join(&snapshot)).unwrap());
    let (there, exchanged) = (mine.place.join("snapshots"), theirs.join(&snapshot));
    let before = entries(&there).len();
    // The first object that is stored says that the history was read.
    let pulled = pull(&theirs, &mine.place, move |_| {
        if entries(&there).len() > before {
            std::fs::copy(&forged, &exchanged).unwrap();
        }
        Ok(())
    });
    let history = mine.history("main");
    assert!(history.iter().any(|(id, _)| *id == kept), "{history:?}");
    let moved = pulled.is_ok_and(|pulled| pulled.refs.iter().any(|found| found.change == push::Change::Forward));
    assert!(!moved, "{history:?}");
}

#[test]
fn a_source_that_gets_another_version_meanwhile_is_refused() {
    let (mine, theirs, _directory) = family();
    let kept = tip(&mine.place, "main");
    let migrated = theirs.with_file_name("migrated");
    copy_tree(&theirs, &migrated);
    run_on(&migrated, &["migrate", "--yes"]).success();
    let (new, place) = (migrated.join("repo"), theirs.join("repo"));
    let error = pull(&theirs, &mine.place, move |key| match key.starts_with("manifests/") && !place.exists() {
        true => {
            std::fs::copy(&new, &place).unwrap();
            Err(Error::new(ErrorKind::NotFound, "it is gone"))
        }
        false => Ok(()),
    });
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(tip(&mine.place, "main"), kept);
}

#[test]
fn a_snapshot_that_no_ref_reaches_is_not_replaced() {
    let (mine, theirs, _directory) = family();
    run_on(&mine.place, &["branch", "create", "work", "--at", "main"]).success();
    mine.commit("work", &[("a/c/4", b"work")]);
    let work = tip(&mine.place, "work");
    std::fs::remove_dir_all(&theirs).unwrap();
    copy_tree(&mine.place, &theirs);
    let theirs = expired(&theirs);
    run_on(&mine.place, &["branch", "delete", "work", "--yes"]).success();
    let snapshot = mine.place.join("snapshots").join(&work);
    let before = std::fs::read(&snapshot).unwrap();
    let refused = run_on(&mine.place, &["pull", theirs.to_str().unwrap(), "work"]).failure();
    assert!(refused.contains(&work) && refused.contains("icechunkfs gc"), "{refused}");
    assert_eq!(std::fs::read(&snapshot).unwrap(), before);
    run_on(&mine.place, &["branch", "create", "work", "--at", &work]).success();
    assert!(mine.history("work").len() > 2);
}

#[test]
fn commits_that_are_here_get_no_logs() {
    let (mine, theirs, _directory) = family();
    let lost = mine.place.join("transactions").join(tip(&mine.place, "main"));
    std::fs::remove_file(&lost).unwrap();
    run_on(&mine.place, &["pull", theirs.to_str().unwrap(), "main"]).success();
    assert_eq!(mine.history("main").len(), Reference::open(&theirs).history().len());
    assert!(!lost.exists());
}

#[test]
fn names_that_are_revisions_of_other_commits_are_not_taken_over() {
    let mine = setup(SpecVersionBin::V2);
    mine.commit("main", &[("a/c/2", b"mine")]);
    let kept = tip(&mine.place, "main");
    let directory = tempfile::tempdir().unwrap();
    let theirs = directory.path().join("theirs");
    copy_tree(&mine.place, &theirs);
    Reference::open(&theirs).commit(&[("a/c/3", b"theirs")], "theirs");
    let said = format!("snapshot/{kept}");
    for name in ["main~1", &kept, &said, "branch/main", "good"] {
        run_on(&theirs, &["tag", "create", name, "--at", "main"]).success();
    }
    let pulled = run_on(&mine.place, &["pull", theirs.to_str().unwrap()]);
    assert_eq!(pulled.status.code(), Some(1), "{}", pulled.all());
    let tags = run_on(&mine.place, &["tag", "list"]).text();
    assert!(tags.contains("good") && !tags.contains("main~1"), "{tags}");
    run_on(&mine.place, &["branch", "reset", "main", "--to", &said, "--yes"]).success();
    assert_eq!(tip(&mine.place, "main"), kept);
}
