//! Progress of long commands, as one line on standard error; nothing is drawn unless it is a
//! terminal.
//!
//! All commands have one layout, of which a part is left out while it is not known:
//! `exporting  1,458/4,002 files  69 MiB  156 MiB/s  5 s left`.

use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;

use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::size;

/// Interval between two drawings.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a rate and a remaining time are more than noise.
const SETTLED: Duration = Duration::from_secs(1);

/// State of a long command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Name of what is done now, such as `exporting`.
    doing: Cow<'static, str>,
    /// Steps that are done, and all that are known.
    steps: (u64, u64),
    /// Plural of what a step is; none if it is a byte.
    noun: Option<&'static str>,
    /// Bytes that were read, written or sent.
    bytes: u64,
}

impl State {
    /// Returns the state after some of `steps`, those that are done and all, each one of `noun`.
    pub(super) fn of(doing: &'static str, steps: (u64, u64), noun: &'static str) -> Self {
        State { doing: doing.into(), steps, noun: Some(noun), bytes: 0 }
    }

    /// Returns the state after some `bytes`, those that are done and all.
    pub(super) fn of_bytes(doing: impl Into<Cow<'static, str>>, bytes: (u64, u64)) -> Self {
        State { doing: doing.into(), steps: bytes, noun: None, bytes: bytes.0 }
    }

    /// Returns this state with the number of bytes.
    pub(super) fn with_bytes(self, bytes: u64) -> Self {
        State { bytes, ..self }
    }

    /// Returns the line that shows this state, `elapsed` after the beginning.
    fn line(&self, elapsed: Duration) -> String {
        let State { doing, steps: (done, all), noun, bytes } = self;
        let mut parts = vec![doing.to_string()];
        match noun {
            Some(noun) if *all > 0 => parts.push(format!("{}/{} {noun}", size::grouped(*done), size::grouped(*all))),
            Some(noun) if *done > 0 => parts.push(format!("{} {noun}", size::grouped(*done))),
            None if *all > 0 => parts.push(format!("{}/{}", size::text(*done), size::text(*all))),
            _ => {}
        }
        if noun.is_some() && *bytes > 0 {
            parts.push(size::text(*bytes));
        }
        let is_settled = elapsed >= SETTLED;
        if is_settled && *bytes > 0 {
            parts.push(format!("{}/s", size::text((*bytes as f64 / elapsed.as_secs_f64()) as u64)));
        }
        // Each remaining step takes as long as those that are done.
        let left = elapsed.as_secs_f64() * all.saturating_sub(*done) as f64 / (*done).max(1) as f64;
        if is_settled && *done > 0 && done < all {
            parts.push(format!("{} left", duration(Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX))));
        } else if is_settled {
            parts.push(duration(elapsed));
        }
        parts.join("  ")
    }
}

/// Formats a duration: `5 s`, `3 min 20 s`, `2 h 5 min`.
fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{} h {minutes} min", size::grouped(hours)),
    }
}

/// Line of a command that knows no number of steps. It is removed when it is dropped.
pub(super) struct Running(ProgressBar);

impl Running {
    /// Sets the number of steps that are done.
    pub(super) fn set_position(&self, done: u64) {
        self.0.set_position(done);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Begins a command whose work cannot be told in advance. Its steps, if there are any, are chunks.
pub(super) fn begin(doing: &'static str) -> Running {
    let line = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        // A line that cannot be written is not drawn.
        let _ = out.write_str(&State::of(doing, (state.pos(), 0), "chunks").line(state.elapsed()));
    };
    let bar = bar("{line}", |style| style.with_key("line", line));
    bar.enable_steady_tick(REDRAW_INTERVAL);
    Running(bar)
}

/// Runs `work`, and meanwhile draws the line of its `state`; nothing while that is none.
pub(super) fn watched<T, S: Into<Option<State>>>(state: impl Fn() -> S + Sync, work: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bar = bar("{wide_msg}", |style| style);
            // Steps are counted from the beginning of what is done now.
            let mut stage = (Cow::Borrowed(""), Instant::now());
            while !ended.load(Ordering::Relaxed) && !bar.is_hidden() {
                std::thread::sleep(REDRAW_INTERVAL);
                let Some(state) = state().into() else { continue };
                if stage.0 != state.doing {
                    stage = (state.doing.clone(), Instant::now());
                }
                bar.set_message(state.line(stage.1.elapsed()));
            }
            bar.finish_and_clear();
        });
        let done = work();
        ended.store(true, Ordering::Relaxed);
        done
    })
}

/// Creates a line that is drawn when it changes, from a `template` of indicatif.
fn bar(template: &str, with: impl FnOnce(ProgressStyle) -> ProgressStyle) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(with(style));
    }
    bar
}

/// Runs `work`, and meanwhile writes what `look` returns to descriptor `number`, as a line of JSON,
/// for another program.
pub(super) fn reported<P: Serialize, T>(
    number: RawFd,
    look: impl Fn() -> Option<P> + Sync,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    std::fs::symlink_metadata(format!("/proc/self/fd/{number}"))
        .map_err(|e| Error::io(format!("--progress-fd {number}"), e))?;
    // SAFETY: the descriptor is open, as was just checked. The command line gives it to this
    // function alone, which is called once and closes it: the other program reads to the end before
    // it reads the result.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(number) });
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(REDRAW_INTERVAL);
                let line = look().and_then(|progress| serde_json::to_string(&progress).ok());
                // A reader that is gone needs nothing.
                let _ = line.map(|line| file.write_all((line + "\n").as_bytes()));
            }
        });
        let done = work();
        ended.store(true, Ordering::Relaxed);
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_commands_have_one_layout() {
        let files = |done, all| State::of("exporting", (done, all), "files");
        let at = |state: State, seconds: f64| state.line(Duration::from_secs_f64(seconds));
        assert_eq!(
            at(files(1458, 4002).with_bytes(69 << 20), 3.0),
            "exporting  1,458/4,002 files  69 MiB  23 MiB/s  5 s left"
        );
        assert_eq!(at(files(1, 4002).with_bytes(100), 0.5), "exporting  1/4,002 files  100 bytes");
        assert_eq!(at(files(0, 4002), 5.0), "exporting  0/4,002 files  5 s");
        assert_eq!(at(files(4002, 4002), 75.0), "exporting  4,002/4,002 files  1 min 15 s");
        assert_eq!(at(files(7, 0), 2.0), "exporting  7 files  2 s");
        assert_eq!(at(files(0, 0), 0.2), "exporting");
        assert!(at(files(1, u64::MAX), 9.0).ends_with(" min left"));
        let sent = |done, all| State::of_bytes("uploading", (done, all));
        assert_eq!(at(sent(1 << 20, 4 << 20), 1.0), "uploading  1.0 MiB/4.0 MiB  1.0 MiB/s  3 s left");
        assert_eq!(at(sent(0, 0), 3700.0), "uploading  1 h 1 min");
    }
}
