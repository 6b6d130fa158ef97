//! Questions to many mounts at a time, with one deadline for all of them.
//!
//! Each mount is asked by one child process, which this process starts and listens to in one
//! thread: a process with a thread for each mount would be slow to fork.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::child::{Child, Deadline, Received, wait_for_any};
use super::health::Health;
use super::mount_table::Mount;
pub use super::probe::Question;
use super::probe::{self, Answers, Identity};
use icechunkfs_base::trust::mounts::mount_id;

/// Longest time for the answers of all mounts together, however many there are and however many of
/// them hang.
const ALL: Duration = Duration::from_secs(12);
/// Longest silence of a daemon that has its replies in memory, or counts uncommitted changes: a
/// second for a million files.
const SILENCE: Duration = Duration::from_secs(4);
/// Mounts that are asked at a time, and at most: the others mostly hang.
const AT_ONCE: usize = 32;
const AT_MOST: usize = 256;
/// Time after which one more mount is asked, though none of the others has answered.
const PATIENCE: Duration = Duration::from_millis(25);
/// Longest accepted answers of one mount, in bytes.
const MAX_ANSWERS: usize = 64 << 20;

/// Knowledge about a mount.
#[derive(Debug)]
pub struct Surveyed {
    /// Its health.
    pub health: Health,
    /// Answers to the questions, in their order, as far as they came in time.
    pub answers: Vec<io::Result<Vec<u8>>>,
}

impl From<Health> for Surveyed {
    fn from(health: Health) -> Self {
        Surveyed { health, answers: Vec::new() }
    }
}

/// Mount that is being asked.
struct Asked<'a> {
    at: usize,
    mount: &'a Mount,
    child: Child,
    /// Moment at which it counts as hanging.
    until: Deadline,
}

/// Asks all `mounts` whether they answer, and those that do what `questions` has for them. Mounts
/// of other users are not asked.
pub fn survey<'a>(mounts: &[Mount], questions: impl Fn(&Mount) -> Vec<Question<'a>>) -> Vec<Surveyed> {
    let deadline = Deadline::after(ALL);
    let mut found: Vec<Surveyed> = mounts.iter().map(|_| Health::Unknown.into()).collect();
    let mut set = |at: usize, surveyed: Surveyed| {
        if let Some(place) = found.get_mut(at) {
            *place = surveyed;
        }
    };
    let mut asked: Vec<Asked<'_>> = Vec::new();
    let mut left = mounts.iter().enumerate().peekable();
    let mut is_quiet = false;
    loop {
        let has_room = asked.len() < AT_ONCE || (is_quiet && asked.len() < AT_MOST);
        if has_room && let Some((at, mount)) = left.next() {
            match begin(mount, &questions(mount)) {
                Ok(child) => asked.push(Asked { at, mount, child, until: deadline.at_most(SILENCE) }),
                Err(health) => set(at, health.into()),
            }
            is_quiet = false;
            continue;
        }
        let Some(next) = asked.iter().map(|asked| asked.until.left()).min() else { break };
        let time = if left.peek().is_some() { next.min(PATIENCE) } else { next };
        let children: Vec<&Child> = asked.iter().map(|asked| &asked.child).collect();
        let Ok(ready) = wait_for_any(&children, time) else { break };
        is_quiet = ready.is_empty();
        let mut positions = 0..;
        asked.retain_mut(|asked| {
            if positions.next().is_some_and(|position| ready.contains(&position)) {
                match asked.child.receive() {
                    Received::Part => asked.until = deadline.at_most(SILENCE),
                    Received::End(answer) => {
                        set(asked.at, end(asked.mount, &mut asked.child, Some(answer)).0);
                        return false;
                    }
                }
            }
            let is_late = asked.until.left().is_zero();
            if is_late {
                set(asked.at, end(asked.mount, &mut asked.child, None).0);
            }
            !is_late
        });
    }
    found
}

/// Starts to ask `mount` for its health, and `questions`. Fails with the health of a mount that is
/// not asked.
pub(super) fn begin(mount: &Mount, questions: &[Question<'_>]) -> Result<Child, Health> {
    if !mount.is_own() {
        return Err(Health::Private);
    }
    let identity = Identity::of(mount).ok_or(Health::Unknown)?;
    let questions = [&[Question::Attributes], questions].concat();
    probe::survey(&mount.mountpoint, identity, &questions, MAX_ANSWERS).map_err(|_| Health::Unknown)
}

/// Returns what a child that [`begin`] has started says about `mount`, and the root of the mount if
/// it has opened it. `answer` is none if it was not complete in time.
pub(super) fn end(
    mount: &Mount,
    child: &mut Child,
    answer: Option<io::Result<Vec<u8>>>,
) -> (Surveyed, Option<OwnedFd>) {
    let is_late = answer.is_none();
    let answer = answer.unwrap_or_else(|| child.take_answer());
    let Some(root) = child.take_descriptor() else {
        let health = match answer.err().filter(|_| !is_late) {
            None => Health::Hanging,
            Some(error) if error.raw_os_error() == Some(libc::EXDEV) => Health::Covered,
            Some(error) => Health::of_error(&error),
        };
        return (health.into(), None);
    };
    if mount_id(&root) != Ok(mount.id) {
        return (Health::Covered.into(), None);
    }
    // Of an answer that is too long, or was cut off, the beginning is used.
    let content = answer.or_else(|_| child.take_answer()).unwrap_or_default();
    let mut answers = Answers::new(&content);
    let health = match answers.next() {
        Some(Ok(_)) => Health::Alive,
        Some(Err(error)) => Health::of_error(&error),
        None if is_late => Health::Hanging,
        None => Health::Unknown,
    };
    (Surveyed { health, answers: answers.collect() }, Some(root))
}
