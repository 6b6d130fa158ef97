//! Progress bars of long commands, on standard error; nothing is drawn unless it is a terminal.

use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use icechunkfs_base::error::{Error, Result};

/// Interval between two drawings.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Creates an empty bar from a `template` of indicatif. It is drawn when it changes, and
/// periodically.
pub(super) fn bar(template: &str) -> ProgressBar {
    let bar = manual_bar(template);
    bar.enable_steady_tick(REDRAW_INTERVAL);
    bar
}

/// Runs `work`, and meanwhile draws a bar, whose state `update` sets.
pub(super) fn watched<T>(template: &str, update: impl Fn(&ProgressBar) + Sync, work: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bar = manual_bar(template);
            while !ended.load(Ordering::Relaxed) && !bar.is_hidden() {
                std::thread::sleep(REDRAW_INTERVAL);
                update(&bar);
            }
            bar.finish_and_clear();
        });
        let done = work();
        ended.store(true, Ordering::Relaxed);
        done
    })
}

/// Runs `work`, and meanwhile writes what `look` returns to descriptor `number`, as a line of JSON,
/// for another program.
pub(super) fn reported<P: Serialize, T>(
    number: RawFd,
    look: impl Fn() -> Option<P> + Sync,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    // SAFETY: the descriptor is only looked at; a closed one gives an error.
    let given = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(given).map_err(|errno| Error::io(format!("--progress-fd {number}"), errno.into()))?;
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

/// Sets the number of steps that are done, and that of all.
pub(super) fn show(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all);
    bar.set_position(done);
}

/// Creates a bar that is drawn only when it changes.
fn manual_bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
