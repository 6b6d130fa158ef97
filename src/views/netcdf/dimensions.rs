//! Dimensions of a file: arrays name theirs one by one, a file has each once.

use std::collections::HashMap;

use super::names;
use crate::views::report::Finding;

/// Dimension of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dimension {
    pub(super) name: String,
    pub(super) size: u64,
}

/// Dimensions of a file, in order; a dimension's number is its place.
#[derive(Debug, Default)]
pub(super) struct Dimensions {
    pub(super) list: Vec<Dimension>,
    /// Number by the name that arrays give, and the size.
    by_wish: HashMap<(String, u64), usize>,
    names: HashMap<String, usize>,
}

impl Dimensions {
    /// Returns the number of the dimension that the array at `path` calls `name`: a new one for a new name or size.
    pub(super) fn number(&mut self, name: Option<&str>, size: u64, path: &str, findings: &mut Vec<Finding>) -> usize {
        let asked = name.filter(|name| !name.is_empty());
        let allowed = asked.and_then(names::allowed);
        let wish = allowed.clone().unwrap_or_else(|| format!("dim_{size}"));
        if let Some(number) = self.by_wish.get(&(wish.clone(), size)) {
            return *number;
        }
        let candidates = std::iter::once(wish.clone())
            .chain(std::iter::once(format!("{wish}_{size}")))
            .chain((2..).map(|count: u64| format!("{wish}_{size}_{count}")));
        let free = candidates.into_iter().find(|name| !self.names.contains_key(name)).unwrap_or_else(|| wish.clone());
        if let Some(asked) = asked.filter(|asked| *asked != free) {
            let reason = if allowed.as_deref() == Some(asked) {
                "another dimension of the group has the name, with another size"
            } else {
                "programs do not accept the name"
            };
            findings.push(Finding {
                path: path.to_owned(),
                deed: format!("dimension {asked} renamed to {free}"),
                reason: reason.to_owned(),
            });
        }
        let number = self.list.len();
        self.names.insert(free.clone(), number);
        self.by_wish.insert((wish, size), number);
        self.list.push(Dimension { name: free, size });
        number
    }

    /// Returns the number of the dimension `name`.
    pub(super) fn by_name(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_one_size() {
        let (mut dimensions, mut findings) = (Dimensions::default(), Vec::new());
        let mut number = |name: Option<&str>, size| dimensions.number(name, size, "/a", &mut findings);
        assert_eq!(
            [number(Some("x"), 3), number(Some("x"), 4), number(Some("x"), 3), number(Some("x"), 4)],
            [0, 1, 0, 1]
        );
        assert_eq!([number(None, 4), number(None, 4), number(Some("dim_4"), 5), number(Some("a/b"), 1)], [2, 2, 3, 4]);
        let names: Vec<&str> = dimensions.list.iter().map(|dimension| dimension.name.as_str()).collect();
        assert_eq!(names, ["x", "x_4", "dim_4", "dim_4_5", "a_b"]);
        assert_eq!(findings.len(), 3);
    }
}
