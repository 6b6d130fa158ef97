//! Dimensions of a file: arrays name theirs one by one, a group has each once.
//!
//! Different names stay different dimensions. One that must be changed takes no name that arrays
//! give to another dimension, nor that of a variable that bears another name in the repository:
//! programs would take this for its coordinates.
//!
//! A group shares the dimensions of the groups above it, by name and size, as NetCDF programs
//! expect: they look for coordinates where the dimension is. A group with a coordinate variable of
//! its own has a dimension of its own.

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
    /// Number by group, the name that arrays give, if any, and the size.
    by_wish: HashMap<(usize, Option<String>, u64), usize>,
    /// Number by group and name, of shared ones too.
    names: HashMap<(usize, String), usize>,
    /// Names that dimensions of groups cannot have: those of groups in them.
    reserved: HashSet<(usize, String)>,
    given: GivenNames,
    /// Numbers that are taken behind a name and a size, so that the next of many dimensions with
    /// one name does not try them all.
    tried: HashMap<(usize, String, u64), u64>,
}

/// Names that the arrays of a file give, by group.
#[derive(Debug, Default)]
pub(super) struct GivenNames {
    /// Those of dimensions that need no change.
    dimensions: HashSet<(usize, String)>,
    /// Those of arrays, by the names of their variables.
    arrays: HashMap<(usize, String), String>,
}

impl GivenNames {
    /// Adds the names that an array of `group` gives: its own, which its variable shows as `shown`,
    /// and those of its dimensions.
    pub(super) fn add<'a>(
        &mut self,
        group: usize,
        stored: &str,
        shown: &str,
        dimensions: impl Iterator<Item = &'a str>,
    ) {
        self.arrays.insert((group, shown.to_owned()), stored.to_owned());
        let plain = dimensions.filter(|name| names::allowed_member(name).as_deref() == Some(*name));
        self.dimensions.extend(plain.map(|name| (group, name.to_owned())));
    }

    /// Returns true if a dimension of `group` that arrays call `original`, or nothing, can have the
    /// name `shown`.
    fn allow(&self, group: usize, original: Option<&str>, shown: &str) -> bool {
        if original == Some(shown) {
            return true;
        }
        let key = (group, shown.to_owned());
        let is_of_other = |stored: &String| original != Some(stored.as_str());
        !self.dimensions.contains(&key) && !self.arrays.get(&key).is_some_and(is_of_other)
    }
}

impl Dimensions {
    /// Creates the dimensions of a file with groups: the parent and the name of each, the root
    /// first. `given` has the names of all arrays.
    pub(super) fn new<'a>(groups: impl Iterator<Item = (usize, &'a str)>, given: GivenNames) -> Self {
        let mut dimensions = Dimensions { given, ..Dimensions::default() };
        for (parent, name) in groups {
            dimensions.parents.push(parent);
            dimensions.reserved.insert((parent, name.to_owned()));
        }
        dimensions
    }

    /// Returns the number of the dimension that the array at `path` asks for: a new one for a new
    /// name or size. A dimension with another name is added to `findings`, for each array that has
    /// it.
    pub(super) fn number(&mut self, asked: Asked<'_>, path: &str, findings: &mut Vec<Finding>) -> usize {
        let name = asked.name.filter(|name| !name.is_empty());
        let allowed = name.and_then(names::allowed_member);
        let is_allowed = allowed.as_deref() == name;
        let number = self.number_of(allowed.unwrap_or_else(|| format!("dim_{}", asked.size)), Asked { name, ..asked });
        let shown = self.list.get(number).map(|dimension| &dimension.name);
        if let (Some(name), Some(shown)) = (name, shown)
            && name != shown
        {
            let reason = if is_allowed {
                "another dimension of the group has the name, with another size, or a group has it"
            } else {
                "programs do not accept the name"
            };
            findings.push(Finding {
                path: path.to_owned(),
                deed: format!("dimension {name} renamed to {shown}"),
                reason: reason.to_owned(),
            });
        }
        number
    }

    /// Returns the number of the dimension that is asked for, and that is called `wish` if
    /// possible.
    fn number_of(&mut self, wish: String, asked: Asked<'_>) -> usize {
        let Asked { size, group, .. } = asked;
        let original = asked.name.map(str::to_owned);
        let key = (group, original, size);
        if let Some(number) = self.by_wish.get(&key) {
            return *number;
        }
        let may_share = !asked.is_coordinate
            && !self.names.contains_key(&(group, wish.clone()))
            && self.given.allow(group, asked.name, &wish);
        if let Some(number) = self.inherited(&wish, &key).filter(|_| may_share) {
            self.names.insert((group, wish), number);
            self.by_wish.insert(key, number);
            return number;
        }
        let is_free = |name: &String| {
            let key = (group, name.clone());
            !self.names.contains_key(&key) && !self.reserved.contains(&key) && self.given.allow(group, asked.name, name)
        };
        let wished = (group, wish, size);
        let suffixed = |suffix: String| names::with_suffix(&wished.1, &suffix);
        let first = self.tried.get(&wished).copied().unwrap_or(2);
        let (free, tried) = [(wished.1.clone(), first), (suffixed(format!("_{size}")), first)]
            .into_iter()
            .chain((first..).map(|count| (suffixed(format!("_{size}_{count}")), count)))
            .find(|(name, _)| is_free(name))
            .unwrap_or_else(|| (wished.1.clone(), first));
        let number = self.list.len();
        self.tried.insert(wished, tried);
        self.names.insert((group, free.clone()), number);
        self.by_wish.insert(key, number);
        self.list.push(Dimension { name: free, size, group });
        number
    }

    /// Returns the dimension of the nearest group above that of `key` whose arrays have it, too;
    /// none if it is not called `wish` there, as the group below can have one of that name, or if a
    /// group on the way has another dimension of that name: programs look for dimensions by name,
    /// and find that one.
    fn inherited(&self, wish: &str, key: &(usize, Option<String>, u64)) -> Option<usize> {
        let (mut at, original, size) = key.clone();
        while at > 0 {
            // Each group comes after its parent.
            at = self.parents.get(at).copied().filter(|parent| *parent < at)?;
            if let Some(number) = self.by_wish.get(&(at, original.clone(), size)) {
                return Some(*number).filter(|number| self.list.get(*number).is_some_and(|it| it.name == wish));
            }
            if self.names.contains_key(&(at, wish.to_owned())) {
                return None;
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
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn asked(name: Option<&str>, size: u64, group: usize) -> Asked<'_> {
        Asked { name, size, group, is_coordinate: false }
    }

    /// A second of time is far more than thousands of them need, and far less than trying all names
    /// that are taken for each.
    #[test]
    fn many_names_that_become_one_take_numbers_in_turn() {
        let (mut dimensions, mut findings) =
            (Dimensions::new([(0, "")].into_iter(), GivenNames::default()), Vec::new());
        for at in 0..20_000_u32 {
            let name: String = (0..3).map(|place| char::from(0x80 + (at >> (5 * place) & 31) as u8)).collect();
            dimensions.number(asked(Some(&name), 1, 0), "/a", &mut findings);
        }
        let shown: HashSet<&str> = dimensions.list.iter().map(|dimension| dimension.name.as_str()).collect();
        assert_eq!(shown.len(), 20_000);
        assert_eq!(dimensions.list[19_999].name, "____1_19999");
    }

    #[test]
    fn a_name_means_one_size() {
        let (mut dimensions, mut findings) =
            (Dimensions::new([(0, "")].into_iter(), GivenNames::default()), Vec::new());
        let mut number = |name: Option<&str>, size| dimensions.number(asked(name, size, 0), "/a", &mut findings);
        assert_eq!(
            [number(Some("x"), 3), number(Some("x"), 4), number(Some("x"), 3), number(Some("x"), 4)],
            [0, 1, 0, 1]
        );
        assert_eq!([number(None, 4), number(None, 4), number(Some("dim_4"), 5), number(Some("a/b"), 1)], [2, 2, 3, 4]);
        let names: Vec<&str> = dimensions.list.iter().map(|dimension| dimension.name.as_str()).collect();
        assert_eq!(names, ["x", "x_4", "dim_4", "dim_4_5", "a_b"]);
        // Each array has its line: those with `x_4`, `dim_4_5` and `a_b`.
        assert_eq!(findings.len(), 4);
        let mut findings = Vec::new();
        assert_eq!(dimensions.number(asked(Some("a/b"), 1, 0), "/a", &mut findings), 4);
        // Another name is another dimension.
        assert_eq!(dimensions.number(asked(Some("a\\b"), 1, 0), "/c", &mut findings), 5);
        assert_eq!(findings[1].deed, "dimension a\\b renamed to a_b_1");
    }

    #[test]
    fn a_changed_name_is_none_that_arrays_give_to_others() {
        let mut given = GivenNames::default();
        given.add(0, "m", "m", ["a/b", "a_b", "e\u{301}"].into_iter());
        given.add(0, "é", "é", ["e\u{301}"].into_iter());
        given.add(0, "dim_2", "dim_2", std::iter::empty());
        given.add(0, "t\u{7}", "t_", ["t\u{7}"].into_iter());
        given.add(1, "n", "n", ["a_b"].into_iter());
        let mut dimensions = Dimensions::new([(0, ""), (0, "g")].into_iter(), given);
        let mut findings = Vec::new();
        let mut number = |name, group| dimensions.number(asked(name, 2, group), "/v", &mut findings);
        assert_eq!([number(Some("a/b"), 0), number(Some("a_b"), 0), number(Some("e\u{301}"), 0)], [0, 1, 2]);
        // Of an array with the same name, whose coordinates it is, and none.
        assert_eq!([number(Some("t\u{7}"), 0), number(None, 0)], [3, 4]);
        // Below, the first one has another name than above, and so it is a dimension of its own.
        assert_eq!([number(Some("a/b"), 1), number(Some("a_b"), 1), number(None, 1)], [5, 1, 6]);
        let names: Vec<&str> = dimensions.list.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["a_b_2", "a_b", "é_2", "t_", "dim_2_2", "a_b_2", "dim_2"]);
    }

    #[test]
    fn a_dimension_that_another_one_hides_is_not_inherited() {
        // The root, /a, /a/b and /a/b/c.
        let groups = [(0, ""), (0, "a"), (1, "b"), (2, "c")];
        let mut dimensions = Dimensions::new(groups.into_iter(), GivenNames::default());
        let mut findings = Vec::new();
        let mut number = |size, group| dimensions.number(asked(Some("z"), size, group), "/v", &mut findings);
        assert_eq!([number(3, 0), number(2, 1)], [0, 1]);
        // Programs that look for `z` from /a/b find that of /a.
        assert_eq!([number(3, 2), number(2, 3), number(3, 3)], [2, 3, 4]);
        let found: Vec<(&str, usize)> = dimensions.list.iter().map(|it| (it.name.as_str(), it.group)).collect();
        assert_eq!(found, [("z", 0), ("z", 1), ("z", 2), ("z", 3), ("z_3", 3)]);
    }

    #[test]
    fn inherited_dimensions_that_are_renamed_have_a_line_for_each_array() {
        let (mut dimensions, mut findings) =
            (Dimensions::new([(0, ""), (0, "g")].into_iter(), GivenNames::default()), Vec::new());
        assert_eq!(dimensions.number(asked(Some("a/b"), 2, 0), "/v", &mut findings), 0);
        assert_eq!(dimensions.number(asked(Some("a/b"), 2, 1), "/g/v", &mut findings), 0);
        assert_eq!(findings.iter().map(|finding| finding.path.as_str()).collect::<Vec<_>>(), ["/v", "/g/v"]);
    }

    #[test]
    fn long_names_have_room_for_a_suffix() {
        let (mut dimensions, mut findings) =
            (Dimensions::new([(0, "")].into_iter(), GivenNames::default()), Vec::new());
        let long = "x".repeat(255);
        let longer = "x".repeat(256);
        for (name, size) in [(&long, 3), (&long, 77), (&longer, 4)] {
            dimensions.number(asked(Some(name), size, 0), "/v", &mut findings);
        }
        let names: Vec<&str> = dimensions.list.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, [long.as_str(), &format!("{}_77", "x".repeat(252)), "dim_4"]);
    }

    #[test]
    fn groups_share_the_dimensions_above_them() {
        // The root, /a, /a/b, /c and /c/d.
        let groups = [(0, ""), (0, "a"), (1, "b"), (0, "c"), (3, "d")];
        let mut dimensions = Dimensions::new(groups.into_iter(), GivenNames::default());
        let mut findings = Vec::new();
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
        // One that has another name above is none of this group.
        assert_eq!([number(asked(Some("x"), 4, 4)), number(asked(Some("x"), 3, 4))], [1, 6]);
        let names: Vec<(&str, usize)> = dimensions.list.iter().map(|it| (it.name.as_str(), it.group)).collect();
        assert_eq!(names, [("x", 0), ("x", 3), ("x_3", 3), ("y", 1), ("y", 0), ("a_7", 0), ("x_3", 4)]);
        assert!(dimensions.has_own(3, "x") && !dimensions.has_own(2, "x"));
        assert_eq!(findings.len(), 3);
        let mut number = |asked: Asked<'_>| dimensions.number(asked, "/v", &mut findings);
        assert_eq!(number(asked(Some("a"), 7, 2)), 7);
        assert_eq!(dimensions.list[7], Dimension { name: "a".to_owned(), size: 7, group: 2 });
    }
}
