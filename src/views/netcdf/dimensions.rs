//! Dimensions of a file: arrays name theirs one by one, a group has each once.
//!
//! A group shares the dimensions of the groups above it, by name and size, as NetCDF programs expect: they look for coordinates
//! where the dimension is. A group with a coordinate variable of its own has a dimension of its own.

use std::collections::{HashMap, HashSet};

use super::names;
use crate::views::report::Finding;

/// Dimension of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dimension {
    pub(super) name: String,
    pub(super) size: u64,
    /// Group that has it.
    pub(super) group: usize,
}

/// Dimension that an array names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) size: u64,
    /// Group of the array.
    pub(super) group: usize,
    /// True if the array is the dimension's coordinate variable.
    pub(super) is_coordinate: bool,
}

/// Dimensions of a file, in order; a dimension's number is its place.
#[derive(Debug, Default)]
pub(super) struct Dimensions {
    pub(super) list: Vec<Dimension>,
    /// Parent of each group.
    parents: Vec<usize>,
    /// Number by group, the name that arrays give, and the size.
    by_wish: HashMap<(usize, String, u64), usize>,
    /// Number by group and name, of shared ones too.
    names: HashMap<(usize, String), usize>,
    /// Names that dimensions of groups cannot have: those of groups in them.
    reserved: HashSet<(usize, String)>,
}

impl Dimensions {
    /// Creates the dimensions of a file with groups: the parent and the name of each, the root first.
    pub(super) fn new<'a>(groups: impl Iterator<Item = (usize, &'a str)>) -> Self {
        let mut dimensions = Dimensions::default();
        for (parent, name) in groups {
            dimensions.parents.push(parent);
            dimensions.reserved.insert((parent, name.to_owned()));
        }
        dimensions
    }

    /// Returns the number of the dimension that the array at `path` asks for: a new one for a new name or size.
    pub(super) fn number(&mut self, asked: Asked<'_>, path: &str, findings: &mut Vec<Finding>) -> usize {
        let Asked { size, group, .. } = asked;
        let name = asked.name.filter(|name| !name.is_empty());
        let allowed = name.and_then(names::allowed_member);
        let wish = allowed.clone().unwrap_or_else(|| format!("dim_{size}"));
        if let Some(number) = self.by_wish.get(&(group, wish.clone(), size)) {
            return *number;
        }
        let is_new = !self.names.contains_key(&(group, wish.clone()));
        if let Some(number) = self.inherited(&wish, size, group).filter(|_| is_new && !asked.is_coordinate) {
            self.names.insert((group, wish.clone()), number);
            self.by_wish.insert((group, wish, size), number);
            return number;
        }
        let candidates = std::iter::once(wish.clone())
            .chain(std::iter::once(format!("{wish}_{size}")))
            .chain((2..).map(|count: u64| format!("{wish}_{size}_{count}")));
        let is_free = |name: &String| {
            let key = (group, name.clone());
            !self.names.contains_key(&key) && !self.reserved.contains(&key)
        };
        let free = candidates.into_iter().find(is_free).unwrap_or_else(|| wish.clone());
        if let Some(name) = name.filter(|name| *name != free) {
            let reason = if allowed.as_deref() == Some(name) {
                "another dimension of the group has the name, with another size, or a group has it"
            } else {
                "programs do not accept the name"
            };
            findings.push(Finding {
                path: path.to_owned(),
                deed: format!("dimension {name} renamed to {free}"),
                reason: reason.to_owned(),
            });
        }
        let number = self.list.len();
        self.names.insert((group, free.clone()), number);
        self.by_wish.insert((group, wish, size), number);
        self.list.push(Dimension { name: free, size, group });
        number
    }

    /// Returns the dimension that arrays of the nearest group above `group` call `wish`.
    fn inherited(&self, wish: &str, size: u64, group: usize) -> Option<usize> {
        let mut at = group;
        while at > 0 {
            // Each group comes after its parent.
            at = self.parents.get(at).copied().filter(|parent| *parent < at)?;
            if let Some(number) = self.by_wish.get(&(at, wish.to_owned(), size)) {
                return Some(*number);
            }
        }
        None
    }

    /// Returns true if `group` itself has a dimension called `name`.
    pub(super) fn has_own(&self, group: usize, name: &str) -> bool {
        let number = self.names.get(&(group, name.to_owned()));
        number.and_then(|number| self.list.get(*number)).is_some_and(|dimension| dimension.group == group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(name: Option<&str>, size: u64, group: usize) -> Asked<'_> {
        Asked { name, size, group, is_coordinate: false }
    }

    #[test]
    fn a_name_means_one_size() {
        let (mut dimensions, mut findings) = (Dimensions::new([(0, "")].into_iter()), Vec::new());
        let mut number = |name: Option<&str>, size| dimensions.number(asked(name, size, 0), "/a", &mut findings);
        assert_eq!(
            [number(Some("x"), 3), number(Some("x"), 4), number(Some("x"), 3), number(Some("x"), 4)],
            [0, 1, 0, 1]
        );
        assert_eq!([number(None, 4), number(None, 4), number(Some("dim_4"), 5), number(Some("a/b"), 1)], [2, 2, 3, 4]);
        let names: Vec<&str> = dimensions.list.iter().map(|dimension| dimension.name.as_str()).collect();
        assert_eq!(names, ["x", "x_4", "dim_4", "dim_4_5", "a_b"]);
        assert_eq!(findings.len(), 3);
    }

    #[test]
    fn groups_share_the_dimensions_above_them() {
        // The root, /a, /a/b and /c.
        let groups = [(0, ""), (0, "a"), (1, "b"), (0, "c")];
        let (mut dimensions, mut findings) = (Dimensions::new(groups.into_iter()), Vec::new());
        let mut number = |asked: Asked<'_>| dimensions.number(asked, "/v", &mut findings);
        assert_eq!(number(asked(Some("x"), 3, 0)), 0);
        assert_eq!([number(asked(Some("x"), 3, 2)), number(asked(Some("x"), 3, 1))], [0, 0]);
        // Another size, and a coordinate variable, are dimensions of their own.
        assert_eq!(number(asked(Some("x"), 4, 3)), 1);
        assert_eq!(number(asked(Some("x"), 3, 3)), 2);
        assert_eq!(number(Asked { is_coordinate: true, ..asked(Some("y"), 3, 1) }), 3);
        assert_eq!([number(asked(Some("y"), 3, 2)), number(asked(Some("y"), 3, 0))], [3, 4]);
        // A link of the root is called `a` already.
        assert_eq!(number(asked(Some("a"), 7, 0)), 5);
        let names: Vec<(&str, usize)> = dimensions.list.iter().map(|it| (it.name.as_str(), it.group)).collect();
        assert_eq!(names, [("x", 0), ("x", 3), ("x_3", 3), ("y", 1), ("y", 0), ("a_7", 0)]);
        assert!(dimensions.has_own(3, "x") && !dimensions.has_own(2, "x"));
        assert_eq!(findings.len(), 2);
    }
}
