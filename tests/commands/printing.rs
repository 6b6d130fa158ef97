//! Printed text: no text of a repository makes a terminal, a log or a shell do something.

mod advice;
mod commands;
mod hostile;
mod long_names;
mod mounts;

/// The line that hostile text tries to add.
pub const FORGED: &str = "FORGED";

/// Text that would control a terminal, or look like a separate line.
pub const HOSTILE: &str = "x\u{1b}[2J\u{7}\r\u{9b}31m\u{202e}\u{2066}\nFORGED y";

/// Fails if a terminal would interpret a part of `text`, or if a name has added a line to it.
#[track_caller]
pub fn assert_harmless(what: &str, text: &[u8]) {
    let text = std::str::from_utf8(text)
        .unwrap_or_else(|_| panic!("{what}: invalid UTF-8: {:?}", String::from_utf8_lossy(text)));
    let obeyed = |c: &char| {
        (c.is_control() && *c != '\n')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
    };
    assert!(!text.chars().any(|c| obeyed(&c)), "{what}: {text:?}");
    // The lines of a message are indented in a log, as in git.
    let is_message = |line: &&str| line.starts_with("    FORGED y message");
    let forged: Vec<&str> =
        text.lines().filter(|line| line.trim_start().starts_with(FORGED) && !is_message(line)).collect();
    assert!(forged.is_empty(), "{what}: {forged:?} in {text:?}");
}
