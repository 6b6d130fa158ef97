//! A writable mount of a new repository, and the reference implementation's view of that
//! repository.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use futures_util::TryStreamExt;
use icechunk::format::ByteRange;
use icechunk::repository::VersionInfo;
use icechunk::{Repository, Store};
use tokio::sync::RwLock;

use crate::common::{
    Files, Mount, Output, place, program, project, read_files, run, run_on, signal, wait_for, wait_for_end,
};

/// A repository, a scratch directory and a mount; all of it is removed when it is dropped.
pub struct Writable {
    mount: Mount,
    scratch: PathBuf,
    repository: PathBuf,
    words: Vec<String>,
    _directory: tempfile::TempDir,
}

impl Writable {
    /// A new repository.
    #[track_caller]
    pub fn new(words: &[&str]) -> Writable {
        let directory = tempfile::tempdir().unwrap();
        let repository = place::place(directory.path());
        create(&repository);
        Writable::with(directory, repository, words)
    }

    /// Adds a mount of an existing repository, with a new scratch directory.
    #[track_caller]
    pub fn of(repository: &Path, words: &[&str]) -> Writable {
        Writable::with(tempfile::tempdir().unwrap(), repository.to_owned(), words)
    }

    /// Mounts as [`Writable::of`], with the scratch directory at `scratch`.
    #[track_caller]
    pub fn placed(repository: &Path, scratch: &Path, words: &[&str]) -> Writable {
        Writable::at(tempfile::tempdir().unwrap(), repository.to_owned(), scratch.to_owned(), words)
    }

    #[track_caller]
    fn with(directory: tempfile::TempDir, repository: PathBuf, words: &[&str]) -> Writable {
        let scratch = directory.path().join("scratch");
        Writable::at(directory, repository, scratch, words)
    }

    #[track_caller]
    fn at(directory: tempfile::TempDir, repository: PathBuf, scratch: PathBuf, words: &[&str]) -> Writable {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        let writable = Writable { mount: Mount::prepare(), scratch, repository, words, _directory: directory };
        writable.mount_again(None).success();
        writable
    }

    /// Mounts again with the same scratch directory, with a fault if one is given.
    pub fn mount_again(&self, fault: Option<&str>) -> Output {
        self.mount_with(fault, &[])
    }

    /// Mounts as [`Writable::mount_again`], with more arguments.
    pub fn mount_with(&self, fault: Option<&str>, more: &[&str]) -> Output {
        let mut command = Command::new(program());
        command.arg("mount").arg(&self.repository).arg(self.root()).arg("--scratch").arg(&self.scratch);
        command.arg("--log-file").arg(self.root().with_file_name("log")).args(&self.words).args(more);
        if let Some(fault) = fault {
            command.env("ICECHUNKFS_FAULT", fault);
        }
        run(&mut command)
    }

    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    pub fn root(&self) -> PathBuf {
        self.mount.path()
    }

    pub fn repository(&self) -> &Path {
        &self.repository
    }

    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    pub fn log(&self) -> String {
        self.mount.log()
    }

    pub fn daemon(&self) -> i32 {
        self.mount.daemon()
    }

    pub fn control(&self, name: &str) -> PathBuf {
        self.mount.control(name)
    }

    #[track_caller]
    pub fn read_control(&self, name: &str) -> String {
        self.mount.read_control(name)
    }

    #[track_caller]
    pub fn control_json(&self, name: &str) -> serde_json::Value {
        self.mount.control_json(name)
    }

    /// Commits as `echo message > .icechunk/commit` does.
    pub fn commit(&self, message: &str) -> std::io::Result<()> {
        echo(&self.control("commit"), message)
    }

    pub fn touch(&self, name: &str) -> std::io::Result<()> {
        touch(&self.control(name))
    }

    /// Unmounts; the kernel notifies the daemon of the last close a moment after the program's
    /// `close` has returned.
    #[track_caller]
    pub fn unmount(&self) {
        wait_for("the mount is in use", || {
            let output = run_on(self.root(), &["unmount"]);
            assert!(output.status.success() || output.stderr.contains("in use"), "{}", output.stderr);
            output.status.success().then_some(())
        });
    }

    /// Unmounts, and mounts again with the same scratch directory.
    #[track_caller]
    pub fn remount(&self) {
        self.unmount();
        self.mount_again(None).success();
    }

    /// Kills the daemon as the kernel would when memory is short. The dead mount stays.
    #[track_caller]
    pub fn kill(&self, daemon: i32) {
        signal(daemon, "-9");
        wait_for_end(daemon);
    }

    /// Kills the daemon, and mounts again with the same scratch directory.
    #[track_caller]
    pub fn kill_and_remount(&self) {
        self.kill(self.daemon());
        self.remove_dead_mount();
        self.mount_again(None).success();
    }

    /// Removes a dead mount.
    #[track_caller]
    pub fn remove_dead_mount(&self) {
        if self.mount.mounted_as().is_some() {
            run(Command::new("umount").arg("-l").arg(self.root())).success();
        }
    }

    /// Returns the files of a new mount.
    #[track_caller]
    pub fn fresh(&self) -> Files {
        read_files(&Mount::new(&self.repository, &["-o", "ro"]).path())
    }
}

pub fn create(repository: &Path) {
    run_on(repository, &["init"]).success();
}

/// Writes as `echo message > path`: the program gets the error of the write.
pub fn echo(path: &Path, message: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(format!("{message}\n").as_bytes())
}

/// Sets times as `touch path`.
pub fn touch(path: &Path) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    rustix::fs::futimens(&file, &rustix::fs::Timestamps { last_access: now, last_modification: now })?;
    Ok(())
}

/// A repository, opened with the reference implementation.
pub struct Reference {
    runtime: tokio::runtime::Runtime,
    repository: Repository,
    /// Branch that is read and changed.
    branch: String,
}

impl Reference {
    pub fn open(place: &Path) -> Reference {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let repository = runtime.block_on(place::reference(place));
        Reference { runtime, repository, branch: "main".to_owned() }
    }

    /// Reads and changes another branch from now on.
    pub fn on(&mut self, branch: &str) -> &Reference {
        self.branch = branch.to_owned();
        self
    }

    /// Returns ids and messages of the branch, newest first.
    pub fn history(&self) -> Vec<(String, String)> {
        self.runtime.block_on(async {
            let history = self.repository.ancestry(&VersionInfo::BranchTipRef(self.branch.clone())).await.unwrap();
            history.map_ok(|info| (info.id.to_string(), info.message)).try_collect().await.unwrap()
        })
    }

    /// Returns all keys and bytes of the branch.
    pub fn keys(&self) -> Files {
        self.runtime.block_on(async {
            let main = VersionInfo::BranchTipRef(self.branch.clone());
            let session = self.repository.readonly_session(&main).await.unwrap();
            let store = Store::from_session(Arc::new(RwLock::new(session))).await;
            let names: Vec<String> = store.list().await.unwrap().try_collect().await.unwrap();
            let mut keys = BTreeMap::new();
            for name in names {
                let bytes = store.get(&name, &ByteRange::ALL).await.unwrap_or_else(|e| panic!("{name}: {e}"));
                keys.insert(name, bytes.to_vec());
            }
            keys
        })
    }

    /// Returns the ids of the nodes of the branch, by path; the root's is empty.
    pub fn node_ids(&self) -> BTreeMap<String, String> {
        self.runtime.block_on(async {
            let session =
                self.repository.readonly_session(&VersionInfo::BranchTipRef(self.branch.clone())).await.unwrap();
            let nodes = session.list_nodes(&icechunk::format::Path::root()).await.unwrap();
            let nodes = nodes.map(|node| node.unwrap());
            nodes.map(|node| (node.path.to_string().trim_start_matches('/').to_owned(), node.id.to_string())).collect()
        })
    }

    /// Creates branch `name` at the newest commit of `main`.
    pub fn create_branch(&self, name: &str) {
        self.runtime.block_on(async {
            let tip = self.repository.lookup_branch("main").await.unwrap();
            self.repository.create_branch(name, &tip).await.unwrap();
        });
    }

    /// Creates tag `name` at the newest commit of `main`.
    pub fn create_tag(&self, name: &str) {
        self.runtime.block_on(async {
            let tip = self.repository.lookup_branch("main").await.unwrap();
            self.repository.create_tag(name, &tip).await.unwrap();
        });
    }

    pub fn create_branch_at(&self, name: &str, snapshot: &str) {
        let id = snapshot.try_into().unwrap();
        self.runtime.block_on(self.repository.create_branch(name, &id)).unwrap();
    }

    pub fn delete_branch(&self, name: &str) {
        self.runtime.block_on(self.repository.delete_branch(name)).unwrap();
    }

    /// Makes branch `name` point to the commit below its newest.
    pub fn reset_branch(&self, name: &str) {
        self.runtime.block_on(async {
            let version = VersionInfo::BranchTipRef(name.into());
            let history: Vec<_> = self.repository.ancestry(&version).await.unwrap().try_collect().await.unwrap();
            self.repository.reset_branch(name, &history[1].id, None).await.unwrap();
        });
    }

    /// Makes a commit that turns `from`, the content of the branch, into `to`.
    pub fn change(&self, from: &Files, to: &Files) {
        self.runtime.block_on(async {
            let session = Arc::new(RwLock::new(self.repository.writable_session(&self.branch).await.unwrap()));
            let store = Store::from_session(Arc::clone(&session)).await;
            let is_document = |key: &String| key.ends_with("zarr.json");
            // Chunks are removed before their array, and added after it.
            for key in from.keys().filter(|key| !to.contains_key(*key) && !is_document(key)) {
                store.delete(key).await.unwrap();
            }
            for key in from.keys().rev().filter(|key| !to.contains_key(*key) && is_document(key)) {
                store.delete(key).await.unwrap();
            }
            let changed = |(key, bytes): &(&String, &Vec<u8>)| from.get(*key) != Some(*bytes);
            let (documents, chunks): (Vec<_>, Vec<_>) =
                to.iter().filter(changed).partition(|(key, _)| is_document(key));
            for (key, bytes) in documents.into_iter().chain(chunks) {
                store.set(key, bytes.clone().into()).await.unwrap();
            }
            session.write().await.commit("by the reference").execute().await.unwrap();
        });
    }

    /// Makes a commit that moves a node, which version 2 supports.
    pub fn rename(&self, from: &str, to: &str) {
        let path = |path: &str| icechunk::format::Path::try_from(format!("/{path}").as_str()).unwrap();
        self.runtime.block_on(async {
            let mut session = self.repository.rearrange_session(&self.branch).await.unwrap();
            session.move_node(path(from), path(to)).await.unwrap();
            session.commit("moved by the reference").execute().await.unwrap();
        });
    }

    /// Makes a commit with the reference.
    pub fn commit(&self, keys: &[(&str, &[u8])], message: &str) {
        self.commit_with(keys, message, BTreeMap::new());
    }

    /// Makes a commit with metadata.
    pub fn commit_with(&self, keys: &[(&str, &[u8])], message: &str, metadata: BTreeMap<String, serde_json::Value>) {
        self.runtime.block_on(async {
            let session = Arc::new(RwLock::new(self.repository.writable_session(&self.branch).await.unwrap()));
            let store = Store::from_session(Arc::clone(&session)).await;
            for (name, content) in keys {
                store.set(name, content.to_vec().into()).await.unwrap();
            }
            session.write().await.commit(message).properties(metadata).execute().await.unwrap();
        });
    }
}

/// The document of a group.
pub const GROUP: &str = r#"{"zarr_format":3,"node_type":"group"}"#;

/// The document of an array of bytes. Its chunks are compressed: any length can be right.
pub fn array(shape: &[u64], chunks: &[u64]) -> String {
    array_with(shape, chunks, serde_json::json!([{"name": "bytes"}, {"name": "zstd"}]))
}

/// The document of an array of bytes whose chunks are stored as they are.
pub fn raw_array(shape: &[u64], chunks: &[u64]) -> String {
    array_with(shape, chunks, serde_json::json!([{"name": "bytes"}]))
}

fn array_with(shape: &[u64], chunks: &[u64], codecs: serde_json::Value) -> String {
    serde_json::json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0, "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": codecs
    })
    .to_string()
}

/// Makes an array whose `c/0` is committed, and whose `c/1`, `c/2` and an untracked file are
/// uncommitted; `sizes` are those of the chunks.
pub fn with_waiting_work(mount: &Writable, [committed, large, small]: [usize; 3]) {
    let root = mount.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("a/zarr.json"), array(&[8], &[1])).unwrap();
    put(&root.join("a/c/0"), vec![1; committed]).unwrap();
    mount.commit("first").unwrap();
    put(&root.join("a/c/1"), vec![2; large]).unwrap();
    put(&root.join("a/c/2"), vec![3; small]).unwrap();
    put(&root.join("notes"), "mine").unwrap();
}

/// Writes a file and the directories above it.
pub fn put(path: &Path, content: impl AsRef<[u8]>) -> std::io::Result<()> {
    std::fs::create_dir_all(path.parent().unwrap())?;
    std::fs::write(path, content)
}

/// Returns bytes that are unique for each writer and commit; a few sizes, so that some are inline,
/// some packed, some separate objects.
pub fn content_of(writer: usize, n: usize) -> Vec<u8> {
    let length = [40, 3000, 300_000][(writer + n) % 3];
    format!("writer {writer}, commit {n}. ").into_bytes().into_iter().cycle().take(length).collect()
}

/// Returns a program that `scripts/setup --posix` builds.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = project("target/tools/bin").join(name);
    needed(path.exists(), &format!("{}: scripts/setup --posix makes it", path.display())).then_some(path)
}

/// Prints that a test does not run; in CI every test has to run.
pub fn needed(there: bool, what: &str) -> bool {
    assert!(there || std::env::var_os("CI").is_none(), "CI must have {what}");
    if !there {
        eprintln!("NOT RUN: it needs {what}");
    }
    there
}
