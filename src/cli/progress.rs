//! How far a long command is, drawn on standard error while somebody looks: nothing is drawn where it is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Between two drawings.
const TICK: Duration = Duration::from_millis(100);

/// A bar of nothing yet that looks as `template` says, in indicatif's words. It draws when it is changed, and by itself.
pub(super) fn bar(template: &str) -> ProgressBar {
    let bar = still(template);
    bar.enable_steady_tick(TICK);
    bar
}

/// As [`bar`], drawing only when it is changed.
pub(super) fn still(template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
