//! Draws the graph in characters: one line per commit, and one where lanes join.

use std::fmt::Write;

use unicode_width::UnicodeWidthStr;

use super::layout::Row;
use super::{Commit, truncate};
use icechunkfs_base::printable;

/// Colors of lanes, in turn: red, green, yellow, blue, magenta, cyan of the terminal.
const LANES: [u8; 6] = [31, 32, 33, 34, 35, 36];
const ID: &str = "33";
const BRANCH: &str = "1;32";
const TAG: &str = "1;36";
const TIME: &str = "2";

/// Capabilities of the terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TerminalStyle {
    /// True if line-drawing characters can be used, false if only ASCII.
    pub(crate) unicode: bool,
    /// True if colors can be used.
    pub(crate) colors: bool,
    /// Columns, if lines must end there.
    pub(crate) width: Option<usize>,
}

struct Glyphs {
    commit: char,
    root: char,
    lane: char,
    /// A lane that others join from its right, and one that begins so.
    joined: char,
    begun: char,
    /// The end of a lane from which another begins, and that one.
    ended: char,
    opened: char,
    across: char,
    /// A lane that a horizontal line crosses.
    crossing: char,
    /// The last joining lane, and any other.
    last: char,
    other: char,
}

const UNICODE: Glyphs = Glyphs {
    commit: '●',
    root: '○',
    lane: '│',
    joined: '├',
    begun: '╭',
    ended: '╰',
    opened: '╮',
    across: '─',
    crossing: '┼',
    last: '╯',
    other: '┴',
};
const ASCII: Glyphs = Glyphs {
    commit: '*',
    root: 'o',
    lane: '|',
    joined: '|',
    begun: '.',
    ended: '\'',
    opened: '.',
    across: '-',
    crossing: '+',
    last: '\'',
    other: '\'',
};

/// Draws the graph.
pub(crate) fn draw(commits: &[Commit], rows: &[Row], look: TerminalStyle) -> String {
    let glyphs = if look.unicode { &UNICODE } else { &ASCII };
    let mut out = String::new();
    for row in rows {
        let Some(commit) = commits.get(row.commit) else { continue };
        let last_passing = row.passing.last().copied();
        if !row.joining.is_empty() {
            let lanes = row.joining.last().copied().max(last_passing).unwrap_or_default() + 1;
            out += &(joining_line(lanes, row, glyphs, look) + "\n");
        }
        let lanes = last_passing.unwrap_or_default().max(row.lane) + 1;
        out += &(commit_line(lanes, row, glyphs, look) + &commit_text(commit, look, 2 * lanes + 1) + "\n");
        if let Some(opening) = row.opening {
            out += &(opening_line(opening, row, glyphs, look) + "\n");
        }
    }
    out
}

/// Draws the lanes, each of them two columns wide, beside a commit.
fn commit_line(lanes: usize, row: &Row, glyphs: &Glyphs, look: TerminalStyle) -> String {
    let mut out = String::new();
    for lane in 0..lanes {
        let glyph = match lane == row.lane {
            true if row.has_parent_line => glyphs.commit,
            true => glyphs.root,
            false if has(&row.passing, lane) => glyphs.lane,
            false => ' ',
        };
        put(&mut out, glyph, lane, look);
        out.push(' ');
    }
    out
}

/// Draws lanes that join just above a commit.
fn joining_line(lanes: usize, row: &Row, glyphs: &Glyphs, look: TerminalStyle) -> String {
    let last = row.joining.iter().copied().max().unwrap_or_default();
    // Lanes that join from the left, which happens if the leftmost lane is reserved, are drawn like
    // those from the right.
    let first = row.joining.iter().copied().min().unwrap_or_default().min(row.lane);
    let end = last.max(row.lane);
    // A horizontal line has the color of the joining lane.
    let next = |lane: usize| row.joining.partition_point(|joining| *joining <= lane);
    let across = |lane: usize| row.joining.get(next(lane)).copied().unwrap_or(last);
    let mut out = String::new();
    for lane in 0..lanes {
        let is_across = lane > first && lane < end;
        let (glyph, color) = match lane {
            _ if lane == row.lane && row.has_child_line => (glyphs.joined, lane),
            _ if lane == row.lane => (glyphs.begun, lane),
            _ if lane == last => (glyphs.last, lane),
            _ if has(&row.joining, lane) => (glyphs.other, lane),
            _ if has(&row.passing, lane) && is_across => (glyphs.crossing, lane),
            _ if has(&row.passing, lane) => (glyphs.lane, lane),
            _ if is_across => (glyphs.across, across(lane)),
            _ => (' ', lane),
        };
        put(&mut out, glyph, color, look);
        let gap = if lane >= first && lane < end { glyphs.across } else { ' ' };
        put(&mut out, gap, across(lane), look);
    }
    out.truncate(out.trim_end().len());
    out
}

/// Draws the lane `opening`, which begins just below a commit.
fn opening_line(opening: usize, row: &Row, glyphs: &Glyphs, look: TerminalStyle) -> String {
    let lanes = row.passing.last().copied().max(Some(opening)).unwrap_or_default() + 1;
    let mut out = String::new();
    for lane in 0..lanes {
        let is_across = lane > row.lane && lane < opening;
        let (glyph, color) = match lane {
            _ if lane == row.lane && row.has_parent_line => (glyphs.joined, lane),
            _ if lane == row.lane => (glyphs.ended, opening),
            _ if lane == opening => (glyphs.opened, lane),
            _ if has(&row.passing, lane) && is_across => (glyphs.crossing, lane),
            _ if has(&row.passing, lane) => (glyphs.lane, lane),
            _ if is_across => (glyphs.across, opening),
            _ => (' ', lane),
        };
        put(&mut out, glyph, color, look);
        let gap = if lane >= row.lane && lane < opening { glyphs.across } else { ' ' };
        put(&mut out, gap, opening, look);
    }
    out.truncate(out.trim_end().len());
    out
}

/// Returns true if `lane` is one of `lanes`, which are in order.
fn has(lanes: &[usize], lane: usize) -> bool {
    lanes.binary_search(&lane).is_ok()
}

fn put(out: &mut String, glyph: char, lane: usize, look: TerminalStyle) {
    if glyph == ' ' || !look.colors {
        out.push(glyph);
        return;
    }
    let color = LANES.get(lane % LANES.len()).copied().unwrap_or(0);
    // Writing into a string cannot fail.
    let _ = write!(out, "\x1b[{color}m{glyph}\x1b[0m");
}

/// Formats the text beside a commit, after `used` columns.
fn commit_text(commit: &Commit, look: TerminalStyle, used: usize) -> String {
    let painted =
        |text: &str, style: &str| if look.colors { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() };
    let id = commit.id.to_string();
    let time = commit.minute();
    let mut width = used + id.len() + 1 + time.len() + 1;
    let mut out = format!(" {} {}", painted(&id, ID), painted(&time, TIME));
    if !commit.labels.is_empty() {
        let mut names = Vec::new();
        for label in &commit.labels {
            let text = if label.is_tag { format!("tag {}", label.name) } else { label.name.clone() };
            width += text.width() + 2;
            names.push(painted(&text, if label.is_tag { TAG } else { BRANCH }));
        }
        width += 1;
        out += &format!(" ({})", names.join(", "));
    }
    let title = printable::line(commit.title());
    let room = look.width.map(|all| all.saturating_sub(width + 1));
    let dots = if look.unicode { "…" } else { "..." };
    let title = room.map_or_else(|| title.clone(), |room| truncate(&title, room, dots));
    if !title.is_empty() {
        out += &format!(" {title}");
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::super::Label;
    use super::super::layout::rows;
    use super::super::layout::tests::{commits, id};
    use super::*;

    const PLAIN: TerminalStyle = TerminalStyle { unicode: true, colors: false, width: None };

    /// Draws only the graph, without text.
    fn lines(commits: &[Commit], first: Option<u8>, look: TerminalStyle) -> Vec<String> {
        let drawn = draw(commits, &rows(commits, first.map(id), usize::MAX).unwrap(), look);
        let is_graph = |c: &char| !c.is_ascii_alphanumeric() || *c == 'o';
        drawn.lines().map(|line| line.chars().take_while(is_graph).collect::<String>().trim_end().to_owned()).collect()
    }

    fn graph(all: &[(u8, u8)], first: Option<u8>, look: TerminalStyle) -> Vec<String> {
        lines(&commits(all), first, look)
    }

    /// A tree as (commit, parent), the commit of the reserved lane, and the lines.
    type Case = (&'static [(u8, u8)], Option<u8>, &'static [&'static str]);

    #[test]
    fn lanes_fork_and_join() {
        // 1 - 2 - 5 and 2 - 3 - 4 - 6, and 7 from 1.
        let tree = &[(1, 0), (2, 1), (3, 2), (4, 3), (5, 2), (6, 4), (7, 1)];
        let cases: [Case; 9] = [
            (&[(1, 0), (2, 1), (3, 2)], None, &["●", "●", "○"]),
            (tree, None, &["●", "│ ●", "│ ●", "│ ●", "│ │ ●", "│ ├─╯", "│ ●", "├─╯", "○"]),
            (tree, Some(5), &["  ●", "  │ ●", "  │ ●", "  │ ●", "● │ │", "├─┼─╯", "● │", "├─╯", "○"]),
            // Several lanes join at once and cross others.
            (
                &[(1, 0), (2, 1), (3, 1), (4, 2), (5, 1), (6, 2), (7, 1), (8, 2)],
                None,
                &["●", "│ ●", "│ │ ●", "│ │ │ ●", "│ │ │ │ ●", "├─┼─┴─┼─╯", "● │   │", "│ │ ● │", "├─┴─┴─╯", "○"],
            ),
            // The reserved leftmost lane is empty until its commit.
            (&[(1, 0), (2, 1), (3, 2), (4, 2)], Some(2), &["  ●", "  │ ●", "╭─┴─╯", "●", "○"]),
            // Separate trees stand beside one another.
            (&[(1, 0), (2, 0), (3, 1), (4, 2)], None, &["●", "○", "●", "○"]),
            // Damaged histories end.
            (&[(1, 2), (2, 1)], None, &[]),
            (&[(1, 1), (2, 9)], None, &["○"]),
            (&[], Some(1), &[]),
        ];
        for (tree, first, expected) in cases {
            assert_eq!(graph(tree, first, PLAIN), expected, "{tree:?}");
        }
        let ascii = TerminalStyle { unicode: false, ..PLAIN };
        let expected = ["*", "| *", "| *", "| *", "| | *", "| |-'", "| *", "|-'", "o"];
        assert_eq!(graph(tree, None, ascii), expected);
    }

    #[test]
    fn a_merge_has_a_second_line() {
        let drawn = |tree: &[(u8, u8)], merges: &[(u8, u8)], look: TerminalStyle| {
            let mut commits = commits(tree);
            for (commit, merged) in merges {
                commits.iter_mut().filter(|one| one.id == id(*commit)).for_each(|one| one.merged = Some(id(*merged)));
            }
            lines(&commits, None, look)
        };
        // 1 - 2 - 4, and 3 from 1, which 4 has merged.
        let tree = &[(1, 0), (2, 1), (3, 1), (4, 2)];
        assert_eq!(drawn(tree, &[(4, 3)], PLAIN), ["●", "├─╮", "● │", "│ ●", "├─╯", "○"]);
        let ascii = TerminalStyle { unicode: false, ..PLAIN };
        assert_eq!(drawn(tree, &[(4, 3)], ascii), ["*", "|-.", "* |", "| *", "|-'", "o"]);
        // The branch goes on, and is merged again.
        let tree = &[(1, 0), (2, 1), (3, 1), (4, 2), (5, 3), (6, 4), (7, 5)];
        let first = ["●", "│ ●", "│ ├─╮", "│ ● │", "│ ├─┼─╮", "│ ● │ │"];
        let then = ["├─┼─╯ │", "● │   │", "├─┼───╯", "● │", "├─╯", "○"];
        let expected: Vec<&str> = first.into_iter().chain(then).collect();
        assert_eq!(drawn(tree, &[(4, 3), (6, 5)], PLAIN), expected);
        // A merged commit that is not in the list has no line; nor has a record that contradicts
        // the history.
        assert_eq!(drawn(&[(1, 0), (2, 1)], &[(2, 9)], PLAIN), ["●", "○"]);
        assert_eq!(drawn(&[(1, 0), (2, 1), (3, 2)], &[(1, 3)], PLAIN), ["●", "●", "○"]);
        assert_eq!(drawn(&[(1, 0), (2, 1)], &[(1, 1)], PLAIN), ["●", "○"]);
    }

    #[test]
    fn a_record_that_contradicts_the_history_hides_nothing_from_a_short_picture() {
        let mut commits = commits(&[(1, 0), (2, 1), (3, 1), (4, 3), (5, 2)]);
        commits[1].merged = Some(id(5));
        let first = rows(&commits, None, 2).unwrap().first().map(|row| row.commit);
        assert_eq!(first, Some(4), "the newest commit, which commit 2 claims to have merged");
    }

    #[test]
    fn names_and_messages_stand_commit_text() {
        let mut commits = commits(&[(1, 0)]);
        if let Some(commit) = commits.first_mut() {
            commit.message = "первый \u{1b}[31mcommit\nand more".to_owned();
            commit.labels =
                vec![Label { name: "main".into(), is_tag: false }, Label { name: "v1".into(), is_tag: true }];
        }
        let rows = rows(&commits, None, usize::MAX).unwrap();
        let id = id(1).to_string();
        let whole = format!("○  {id} 1970-01-01 00:01 (main, tag v1) первый \\u{{1b}}[31mcommit\n");
        assert_eq!(draw(&commits, &rows, PLAIN), whole);
        let narrow = draw(&commits, &rows, TerminalStyle { width: Some(66), ..PLAIN });
        assert!(narrow.ends_with("…\n") && narrow.trim_end().width() <= 66, "{narrow}");
        let tiny = draw(&commits, &rows, TerminalStyle { width: Some(10), ..PLAIN });
        assert_eq!(tiny, format!("○  {id} 1970-01-01 00:01 (main, tag v1)\n"));
        let colored = draw(&commits, &rows, TerminalStyle { colors: true, ..PLAIN });
        assert!(colored.contains("\x1b[1;32mmain\x1b[0m, \x1b[1;36mtag v1\x1b[0m"), "{colored}");
    }
}
