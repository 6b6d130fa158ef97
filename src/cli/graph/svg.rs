//! Draws the graph as SVG, for light and dark pages, without external resources.
//!
//! All text from the repository is untrusted: it is escaped, and characters that XML forbids become
//! replacement characters. Long names and messages are truncated; the tooltip has them whole.

use std::fmt::Write;

use unicode_width::UnicodeWidthStr;

use super::layout::Row;
use super::{Commit, truncate};
use icechunkfs_base::printable;

/// Distances in user units, which are pixels if the picture is not scaled.
const ROW: usize = 30;
const LANE: usize = 20;
const MARGIN: usize = 20;
const RADIUS: usize = 6;
/// Width of a character of the fixed font, and padding in a label.
const CHARACTER: f64 = 7.9;
const PADDING: usize = 8;
/// Columns of text shown of a message, and of a name.
const MESSAGE: usize = 80;
const NAME: usize = 36;
/// Colors of lanes, in turn: distinguishable with color blindness, and visible on both backgrounds.
const LANES: [&str; 7] = ["#2f81f7", "#e3752f", "#2da44e", "#bf5fd0", "#c99700", "#1b9e9e", "#e0557c"];

const STYLE: &str = "\
.back{fill:#ffffff}.text{fill:#1f2328}.quiet{fill:#656d76}.ring{stroke:#ffffff}\
.branch{fill:#dafbe1;stroke:#2da44e}.branch-name{fill:#116329}.tag{fill:#ddf4ff;stroke:#2f81f7}.tag-name{fill:#0a3069}\
.line{fill:none;stroke-width:2.5;stroke-linecap:round}\
text{font:13px monospace}\
.text{font-family:sans-serif}\
@media(prefers-color-scheme:dark){\
.back{fill:#0d1117}.text{fill:#e6edf3}.quiet{fill:#8b949e}.ring{stroke:#0d1117}\
.branch{fill:#12261e}.branch-name{fill:#7ee787}.tag{fill:#0c2d6b}.tag-name{fill:#a5d6ff}}";

/// Draws the picture; `title` names its subject.
pub(crate) fn draw(commits: &[Commit], rows: &[Row], title: &str) -> String {
    let lanes =
        rows.iter().map(|row| row.lane.max(row.passing.last().copied().max(row.opening).unwrap_or_default()) + 1).max();
    let text_at = MARGIN + lanes.unwrap_or(1) * LANE + PADDING;
    let mut texts = String::new();
    let mut width = text_at + 400;
    for (n, row) in rows.iter().enumerate() {
        let Some(commit) = commits.get(row.commit) else { continue };
        width = width.max(commit_text(&mut texts, commit, text_at, y(n)));
    }
    width += MARGIN;
    let height = MARGIN * 2 + rows.len().max(1) * ROW;
    let title = escaped(title);
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" \
         height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n<rect class=\"back\" width=\"{width}\" height=\"{height}\"/>\n"
    );
    out += &lines(rows, commits);
    for (n, row) in rows.iter().enumerate() {
        let x = x(row.lane);
        let y = y(n);
        let color = color(row.lane);
        // Writing into a string cannot fail.
        let _ = if row.has_parent_line {
            writeln!(
                out,
                "<circle class=\"ring\" cx=\"{x}\" cy=\"{y}\" r=\"{RADIUS}\" fill=\"{color}\" stroke-width=\"2\"/>"
            )
        } else {
            // The beginning of the history.
            writeln!(
                out,
                "<circle class=\"back\" cx=\"{x}\" cy=\"{y}\" r=\"{}\" stroke=\"{color}\" stroke-width=\"3\"/>",
                RADIUS - 1
            )
        };
    }
    out += &texts;
    out += "</svg>\n";
    out
}

fn x(lane: usize) -> usize {
    MARGIN + lane * LANE
}

fn y(row: usize) -> usize {
    MARGIN + row * ROW + ROW / 2
}

fn color(lane: usize) -> &'static str {
    LANES.get(lane % LANES.len()).copied().unwrap_or("#808080")
}

/// Draws a line from each commit to its parent, and one to what it has merged: down a lane, and
/// into the other's just above it.
fn lines(rows: &[Row], commits: &[Commit]) -> String {
    let place: std::collections::HashMap<_, _> = rows
        .iter()
        .enumerate()
        .filter_map(|(n, row)| commits.get(row.commit).map(|commit| (commit.id, (n, row.lane))))
        .collect();
    let mut out = String::new();
    for (n, row) in rows.iter().enumerate().filter(|(_, row)| row.has_parent_line) {
        let Some(commit) = commits.get(row.commit) else { continue };
        let x0 = x(row.lane);
        let y0 = y(n);
        let path = match commit.parent.and_then(|parent| place.get(&parent)) {
            Some((parent, lane)) if *lane == row.lane => format!("M{x0} {y0}V{}", y(*parent)),
            Some((parent, lane)) => {
                let x1 = x(*lane);
                let y1 = y(*parent);
                format!("M{x0} {y0}{}", descent(x0, y1 - ROW, x1, y1))
            }
            // The parent is not drawn: the line leaves the picture.
            None => format!("M{x0} {y0}V{}", y(rows.len())),
        };
        let _ = writeln!(out, "<path class=\"line\" stroke=\"{}\" d=\"{path}\"/>", color(row.lane));
    }
    for (n, row) in rows.iter().enumerate() {
        let Some(opening) = row.opening else { continue };
        let Some(commit) = commits.get(row.commit) else { continue };
        let x0 = x(row.lane);
        let y0 = y(n);
        let at = x(opening);
        let below = y0 + ROW;
        let mut path = format!("M{x0} {y0}C{x0} {} {at} {} {at} {below}", y0 + ROW * 2 / 3, y0 + ROW / 3);
        let place = commit.merged.and_then(|merged| place.get(&merged));
        let end = place.map_or(y(rows.len()), |(merged, _)| y(*merged));
        if let Some((_, lane)) = place.filter(|(_, lane)| *lane != opening) {
            path += &descent(at, below.max(end - ROW), x(*lane), end);
        } else {
            path += &format!("V{end}");
        }
        let _ = writeln!(out, "<path class=\"line\" stroke=\"{}\" d=\"{path}\"/>", color(opening));
    }
    out
}

/// Continues a line down lane `from`, and from `bend` on into `to`, which it reaches at `end`.
fn descent(from: usize, bend: usize, to: usize, end: usize) -> String {
    format!("V{bend}C{from} {} {to} {} {to} {end}", end - ROW / 3, end - ROW * 2 / 3)
}

/// Draws the text beside a commit. Returns the position at which it ends.
fn commit_text(out: &mut String, commit: &Commit, text_at: usize, y: usize) -> usize {
    let base = y + 4;
    let mut at = text_at;
    let _ = writeln!(
        out,
        "<g><title>{} {}\n{}</title>",
        commit.id,
        escaped(&icechunkfs_base::times::format_time(commit.time)),
        escaped(&commit.message)
    );
    for text in [commit.minute(), commit.id.to_string()] {
        let width = text_width(&text, CHARACTER);
        let _ =
            writeln!(out, "<text class=\"quiet\" x=\"{at}\" y=\"{base}\"{}>{}</text>", fitted(width), escaped(&text));
        at += width + 2 * PADDING;
    }
    for label in &commit.labels {
        let kind = if label.is_tag { "tag" } else { "branch" };
        let text = truncate(&label.name, NAME, "…");
        let name_width = text_width(&text, CHARACTER);
        let width = name_width + 2 * PADDING;
        let _ = writeln!(
            out,
            "<g><title>{kind} {}</title><rect class=\"{kind}\" x=\"{at}\" y=\"{}\" width=\"{width}\" height=\"20\" \
             rx=\"{}\"/><text class=\"{kind}-name\" x=\"{}\" y=\"{base}\"{}>{}</text></g>",
            escaped(&label.name),
            y - 10,
            // Tags have corners, for users who cannot distinguish the colors.
            if label.is_tag { 3 } else { 10 },
            at + PADDING,
            fitted(name_width),
            escaped(&text)
        );
        at += width + PADDING;
    }
    let text = truncate(commit.title(), MESSAGE, "…");
    let _ = writeln!(out, "<text class=\"text\" x=\"{at}\" y=\"{base}\">{}</text></g>", escaped(&text));
    // A proportional font is usually narrower; capitals are not.
    at + text_width(&text, CHARACTER)
}

/// Returns the attributes that give a text its width in any font.
fn fitted(width: usize) -> String {
    format!(" textLength=\"{width}\" lengthAdjust=\"spacingAndGlyphs\"")
}

fn text_width(text: &str, character: f64) -> usize {
    (text.width() as f64 * character).ceil() as usize
}

/// Escapes `text` for XML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(c),
            // XML 1.0 forbids these, even as references.
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if printable::is_special(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Label;
    use super::super::layout::rows;
    use super::super::layout::tests::commits;
    use super::*;

    #[test]
    fn text_from_the_repository_is_escaped() {
        let nasty = "</title><script>alert(\"&'\")</script>\u{0}\u{1b}\u{ffff}\u{202e}";
        let mut commits = commits(&[(1, 0), (2, 1), (3, 1)]);
        for commit in &mut commits {
            commit.message = nasty.to_owned();
            commit.labels = vec![Label { name: nasty.to_owned(), is_tag: commit.parent.is_some() }];
        }
        let drawn = draw(&commits, &rows(&commits, None, usize::MAX).unwrap(), nasty);
        assert!(!drawn.contains("<script") && !drawn.contains(['\u{0}', '\u{1b}', '\u{ffff}', '\u{202e}']));
        assert_eq!(drawn.matches("</title>").count(), drawn.matches("<title>").count());
        assert_eq!(drawn.matches("<circle").count(), 3);
        assert_eq!(drawn.matches("<path").count(), 2);
    }

    #[test]
    fn commits_beyond_the_limit_are_hinted_at() {
        let commits = commits(&[(1, 0), (2, 1), (3, 2)]);
        let drawn = draw(&commits, &rows(&commits, None, 2).unwrap(), "a");
        assert_eq!((drawn.matches("<circle").count(), drawn.matches("<path").count()), (2, 2));
        assert!(draw(&[], &[], "nothing").ends_with("</svg>\n"));
        assert_eq!((truncate("äöü", 3, "…"), truncate("äöüß", 3, "…")), ("äöü".to_owned(), "äö…".to_owned()));
    }
}
