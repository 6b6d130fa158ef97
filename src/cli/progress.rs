//! Progress bars of long commands, on standard error; nothing is drawn unless it is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Interval between two drawings.
const TICK: Duration = Duration::from_millis(100);

/// Creates an empty bar from a `template` of indicatif. It is drawn when it changes, and periodically.
pub(super) fn bar(template: &str) -> ProgressBar {
    let bar = still(template);
    bar.enable_steady_tick(TICK);
    bar
}

/// Creates a bar that is drawn only when it changes.
pub(super) fn still(template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
