//! Progress bars of long commands, on standard error; nothing is drawn unless it is a terminal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Interval between two drawings.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Creates an empty bar from a `template` of indicatif. It is drawn when it changes, and periodically.
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

/// Sets the number of steps that are done, and that of all.
pub(super) fn show(bar: &ProgressBar, (done, all): (u64, u64)) {
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
