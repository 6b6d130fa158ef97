//! Paths of nodes: which ones a file system can show, and their order.

use std::cmp::Ordering;

use super::nodes::MAX_NAME;

/// Most components of a path: as many as a path that Linux accepts can have. A few kilobytes could
/// otherwise be thousands of directories, whose paths take gigabytes.
const MAX_DEPTH: usize = 2048;

/// Checks that a file system can show `path`. Returns the reason if not.
pub(super) fn check_path(path: &str) -> Result<(), &'static str> {
    let Some(relative) = path.strip_prefix('/') else { return Err("its path does not begin with `/`") };
    if relative.is_empty() {
        return Ok(());
    }
    if relative.split('/').nth(MAX_DEPTH).is_some() {
        return Err("its path has more than 2048 components");
    }
    for part in relative.split('/') {
        match part {
            "" => return Err("a component of its path is empty"),
            "." | ".." => return Err("a component of its path is `.` or `..`"),
            part if part.len() > MAX_NAME => return Err("a component of its path is longer than 255 bytes"),
            part if part.contains('\0') => return Err("a component of its path has a NUL byte"),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the part of `path` below node `root`, a path without a slash at its ends; none if it is
/// elsewhere.
pub(super) fn below<'a>(root: &str, path: &'a str) -> Option<&'a str> {
    if root.is_empty() {
        return Some(path);
    }
    let rest = path.trim_start_matches('/').strip_prefix(root)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

/// Compares paths component by component, each by its bytes. No component has a NUL, so it is
/// enough to let `/` sort first.
pub(super) fn compare_paths(a: &str, b: &str) -> Ordering {
    let order = |byte: u8| if byte == b'/' { 0 } else { byte };
    a.bytes().map(order).cmp(b.bytes().map(order))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_sort_by_component() {
        let mut paths = ["/", "/a-b", "/a", "/a/b", "/a b", "/ab", "/a/b/c", "/a.b", "/A"];
        paths.sort_by(|a, b| compare_paths(a, b));
        assert_eq!(paths, ["/", "/A", "/a", "/a/b", "/a/b/c", "/a b", "/a-b", "/a.b", "/ab"]);
    }

    #[test]
    fn a_root_has_its_own_path_and_those_below() {
        for (root, path, expected) in [
            ("", "/a/b", Some("/a/b")),
            ("a", "/a", Some("")),
            ("a", "/a/b", Some("/b")),
            ("a/b", "/a/b/c", Some("/c")),
            ("a", "/ab", None),
            ("a", "/b/a", None),
        ] {
            assert_eq!(below(root, path), expected, "{root} {path}");
        }
    }

    #[test]
    fn paths_that_no_file_can_have_are_refused() {
        let long = format!("/{}", "x".repeat(256));
        for path in ["", "a", "/a//b", "/a/", "/.", "/a/../b", "/a\0b", &long] {
            assert!(check_path(path).is_err(), "{path:?}");
        }
        let longest = format!("/{}", "x".repeat(255));
        for path in ["/", "/a", "/...", "/a b/c", "/+1/0.0.0", &longest] {
            assert!(check_path(path).is_ok(), "{path:?}");
        }
    }
}
