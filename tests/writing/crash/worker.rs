//! A program that works until its file system fails, and records the files that it had closed by
//! then.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use crate::common::random::Random;
use crate::common::writing::{GROUP, array, put};
use crate::common::{Files, has_rings};

/// The arrays, and the length of each one's grid.
const ARRAYS: [(&str, u64); 3] = [("a", 12), ("g/b", 12), ("g/h/d", 6)];

/// Returns true if a name of this workload is a Zarr key.
pub(crate) fn is_key(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    last == "zarr.json" || (name.contains("/c/") && last.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The operation in progress at the failure: after it the files are as before, or as `after`, or in
/// between where `between` names a file.
struct InFlight {
    after: Files,
    /// A file written under its own name, which may have any content until it is closed.
    between: Option<String>,
}

pub(crate) struct Worker {
    root: PathBuf,
    random: Random,
    /// Outside the mount: closed files only.
    files: Files,
    in_flight: Option<InFlight>,
    /// The keys of the last commit that succeeded.
    pub(crate) committed: Files,
    pub(crate) commits: usize,
    /// The content of a commit that was not answered.
    pub(crate) committing: Option<Files>,
    pub(crate) operations: usize,
}

impl Worker {
    pub(crate) fn new(root: PathBuf, seed: u64) -> Worker {
        let mut worker = Worker {
            root,
            random: Random::new(seed),
            files: Files::new(),
            in_flight: None,
            committed: Files::new(),
            commits: 0,
            committing: None,
            operations: 0,
        };
        for (name, length) in ARRAYS {
            worker.document(&format!("{name}/zarr.json"), array(&[length], &[1]));
        }
        worker.document("g/zarr.json", GROUP.to_owned());
        worker
    }

    fn document(&mut self, name: &str, text: String) {
        put(&self.root.join(name), &text).unwrap();
        self.files.insert(name.to_owned(), text.into_bytes());
    }

    /// Works until an error shows that the file system has failed.
    pub(crate) fn run_until_it_fails(&mut self, commit: impl Fn() -> io::Result<()>) {
        loop {
            let done = if self.random.below(25) == 0 { self.commit(&commit) } else { self.operation() };
            match done {
                Ok(()) => self.operations += 1,
                Err(error) if is_death(&error) => return,
                // The write was in progress in the page cache.
                Err(error) if error.raw_os_error() == Some(libc::EIO) && self.is_dead() => return,
                // Seen with rings alone, in one of some hundred kills: presumably the kernel was
                // putting the request into the memory of the process that was being killed.
                Err(error) if error.raw_os_error() == Some(libc::EINTR) && has_rings() && self.is_dead() => {
                    return;
                }
                Err(error) => {
                    let told = std::fs::read_to_string(self.root.join(".icechunk/errors")).unwrap_or_default();
                    panic!("an error that is no death, {}: {error}; the mount says {told}", self.doing())
                }
            }
        }
    }

    /// Returns true if the daemon has died.
    fn is_dead(&self) -> bool {
        std::fs::metadata(self.root.join("a name that nobody has heard of")).is_err_and(|error| is_death(&error))
    }

    /// Describes the operation in progress, for a message.
    fn doing(&self) -> String {
        let Some(flight) = &self.in_flight else { return "committing".to_owned() };
        let names = flight.after.keys().chain(self.files.keys());
        let changed: std::collections::BTreeSet<&String> =
            names.filter(|name| flight.after.get(*name) != self.files.get(*name)).collect();
        format!("changing {changed:?} after {} operations and {} commits", self.operations, self.commits)
    }

    fn commit(&mut self, commit: &impl Fn() -> io::Result<()>) -> io::Result<()> {
        let changed = self.files.iter().filter(|(name, _)| is_key(name)).ne(self.committed.iter());
        self.committing = Some(self.files.clone());
        commit()?;
        self.committing = None;
        self.committed =
            self.files.iter().filter(|(name, _)| is_key(name)).map(|(n, bytes)| (n.clone(), bytes.clone())).collect();
        self.commits += usize::from(changed);
        Ok(())
    }

    fn name(&mut self) -> String {
        let (array, length) = *self.random.pick(&ARRAYS);
        match self.random.below(6) {
            0 => format!("{array}/notes-{}", self.random.below(4)),
            _ => format!("{array}/c/{}", self.random.below(length as usize)),
        }
    }

    fn content(&mut self) -> Vec<u8> {
        let most = [500, 5000, 60_000, 400_000][[0, 0, 0, 1, 1, 1, 2, 3][self.random.below(8)]];
        let length = 1 + self.random.below(most);
        let first = self.random.next() as u8;
        (0..length).map(|n| first.wrapping_add(n as u8)).collect()
    }

    /// Records an operation, does it, and records its end.
    fn step(
        &mut self,
        between: Option<String>,
        change: impl FnOnce(&mut Files),
        act: impl FnOnce(&PathBuf) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut after = self.files.clone();
        change(&mut after);
        self.in_flight = Some(InFlight { after, between });
        act(&self.root)?;
        if let Some(done) = self.in_flight.take() {
            self.files = done.after;
        }
        Ok(())
    }

    fn operation(&mut self) -> io::Result<()> {
        let name = self.name();
        let other = self.name();
        let exists = self.files.contains_key(&name);
        match self.random.below(10) {
            0..3 => self.write_in_place(&name),
            3..6 => self.write_and_rename(&name),
            6 if exists => {
                let content = self.content();
                let appended = [self.files[&name].clone(), content.clone()].concat();
                let key = name.clone();
                self.step(
                    Some(name.clone()),
                    |files| drop(files.insert(key, appended)),
                    |root| {
                        let mut file = OpenOptions::new().append(true).open(root.join(&name))?;
                        file.write_all(&content)?;
                        close(file)
                    },
                )
            }
            7 if exists => {
                let key = name.clone();
                self.step(None, |files| drop(files.remove(&key)), |root| std::fs::remove_file(root.join(&name)))
            }
            8 if exists && name != other => self.rename(&name, &other),
            9 => self.document_again(),
            _ => self.write_in_place(&name),
        }
    }

    /// Writes a file under its name.
    fn write(&mut self, name: &str, content: Vec<u8>) -> io::Result<()> {
        let new = content.clone();
        self.step(
            Some(name.to_owned()),
            |files| drop(files.insert(name.to_owned(), new)),
            |root| {
                make_parent(root, name)?;
                let mut file = File::create(root.join(name))?;
                file.write_all(&content)?;
                close(file)
            },
        )
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.step(
            None,
            |files| {
                let content = files.remove(from).unwrap_or_default();
                files.insert(to.to_owned(), content);
            },
            |root| {
                make_parent(root, to)?;
                std::fs::rename(root.join(from), root.join(to))
            },
        )
    }

    fn write_in_place(&mut self, name: &str) -> io::Result<()> {
        let content = self.content();
        self.write(name, content)
    }

    fn write_and_rename(&mut self, name: &str) -> io::Result<()> {
        let content = self.content();
        let temporary = format!("{name}.partial");
        self.write(&temporary, content)?;
        self.rename(&temporary, name)
    }

    /// Changes attributes, by a rename over the document.
    fn document_again(&mut self) -> io::Result<()> {
        let (name, length) = *self.random.pick(&ARRAYS);
        // Never the same twice: a document equal to the last commit's would be no change.
        let note = format!("\"attributes\":{{\"n\":{}}}", self.operations);
        let text = array(&[length], &[1]).replace("\"attributes\":{}", &note);
        assert!(text.contains(&note));
        let temporary = format!("{name}/zarr.0123.partial");
        self.write(&temporary, text.into_bytes())?;
        self.rename(&temporary, &format!("{name}/zarr.json"))
    }

    /// Compares the next mount with the closed files, and continues from there.
    pub(crate) fn recovered(&mut self, found: &Files) -> Result<(), String> {
        let (after, between) = match self.in_flight.take() {
            Some(flight) => (flight.after, flight.between),
            None => (self.files.clone(), None),
        };
        let settled = |expected: &Files| {
            let unsure = between.as_ref();
            let known = expected.iter().filter(|(name, _)| Some(*name) != unsure);
            let shown = found.iter().filter(|(name, _)| Some(*name) != unsure);
            known.eq(shown)
        };
        if !settled(&self.files) && !settled(&after) {
            let lost: Vec<_> = self
                .files
                .iter()
                .filter(|(name, bytes)| found.get(*name) != Some(bytes))
                .map(|(name, bytes)| (name, bytes.len(), found.get(name).map(Vec::len)))
                .collect();
            let more: Vec<_> = found.keys().filter(|name| !self.files.contains_key(*name)).collect();
            return Err(format!("lost or changed: {lost:?}, too many: {more:?}, in flight: {between:?}"));
        }
        self.files = found.clone();
        // An empty chunk is no chunk: the interrupted writer would write it again. Notes may become
        // chunks later.
        for name in found.iter().filter(|(_, bytes)| bytes.is_empty()).map(|(name, _)| name) {
            std::fs::remove_file(self.root.join(name)).map_err(|error| format!("{name}: {error}"))?;
            self.files.remove(name);
        }
        Ok(())
    }
}

/// Closes a file and returns the error.
fn close(file: File) -> io::Result<()> {
    let file = std::mem::ManuallyDrop::new(file);
    // SAFETY: the descriptor is this file's, and it is closed only here.
    let closed = unsafe { libc::close(std::os::fd::AsRawFd::as_raw_fd(&*file)) };
    if closed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn make_parent(root: &std::path::Path, name: &str) -> io::Result<()> {
    std::fs::create_dir_all(root.join(name).parent().unwrap())
}

/// Returns true for errors of a mount whose daemon has died: aborted if the request was in
/// progress, not connected otherwise.
fn is_death(error: &io::Error) -> bool {
    // Through io_uring, a request that had not been taken is canceled.
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED))
}
