//! Assigns the parts of an array's chunk grid to manifests (`manifest.splitting` of the
//! configuration).
//!
//! Rules are tried in order. A rule that matches the array gives each of its dimensions a step, if
//! one of the rule's conditions matches the dimension and no rule before has given it one; the grid
//! is cut at multiples of the step. Dimensions without a step are not cut. A rule or condition that
//! cannot be understood matches nothing, as in the reference implementation.

use std::ops::Range;

use regex::Regex;
use serde_json::{Value, json};

use icechunkfs_base::error::Result;
use icechunkfs_format::format::config::RepoConfig;
use icechunkfs_format::format::patterns::Patterns;

/// Condition of a rule on the array, by its path.
type ArrayCondition = Box<dyn Fn(&str) -> bool + Send + Sync>;
/// Condition of a rule on a dimension, by its number and name.
type AxisCondition = Box<dyn Fn(usize, Option<&str>) -> bool + Send + Sync>;
/// Rule: a condition on the array, and steps for the dimensions that meet a condition.
type Rule = (ArrayCondition, Vec<(AxisCondition, u32)>);

#[derive(Default)]
pub(super) struct Splitting {
    rules: Vec<Rule>,
    /// Holds the memory of the rules' patterns.
    _patterns: Patterns,
}

/// Cells of a grid: per dimension, the number of chunks and the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cells {
    axes: Vec<(u32, u32)>,
}

/// Returns the splitting rules of `config` in their configuration format, if it has any.
pub(super) fn rules(config: &RepoConfig) -> Option<&Value> {
    config.members().get("manifest")?.get("splitting").filter(|rules| !rules.is_null())
}

/// Returns rules that cut nothing, as the reference implementation writes them.
pub(super) fn no_splitting() -> Value {
    json!({"split_sizes": [
        [{"path_matches": {"regex": ".*"}}, [{"condition": "Any", "num_chunks": u32::MAX}]]
    ]})
}

impl Splitting {
    /// Parses the rules in `splitting`, which is in the configuration format.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::OutOfMemory`] if its patterns have no room.
    pub(super) fn of(splitting: &Value) -> Result<Self> {
        let mut patterns = Patterns::default();
        let mut rules = Vec::new();
        for value in splitting.get("split_sizes").and_then(Value::as_array).into_iter().flatten() {
            rules.extend(rule(value, &mut patterns)?);
        }
        Ok(Splitting { rules, _patterns: patterns })
    }

    /// Cuts the grid of the array at `path`, which has `grid` chunks per dimension and dimensions
    /// called `names`.
    pub(super) fn cells(&self, path: &str, grid: &[u32], names: Option<&[Option<String>]>) -> Cells {
        let mut steps: Vec<Option<u32>> = vec![None; grid.len()];
        for (_, axes) in self.rules.iter().filter(|(is_met, _)| is_met(path)) {
            for (number, step) in steps.iter_mut().enumerate().filter(|(_, step)| step.is_none()) {
                let name = names.and_then(|names| names.get(number)?.as_deref());
                *step = axes.iter().find(|(is_met, _)| is_met(number, name)).map(|(_, step)| *step);
            }
        }
        let axes = std::iter::zip(grid, steps).map(|(&chunks, step)| (chunks, step.unwrap_or(u32::MAX).max(1)));
        Cells { axes: axes.collect() }
    }
}

impl Cells {
    /// Returns true if the grid has no chunk at all.
    pub(super) fn is_empty(&self) -> bool {
        self.axes.iter().any(|(chunks, _)| *chunks == 0)
    }

    /// Returns the cell that a chunk is in; none outside the grid.
    pub(super) fn find(&self, coords: &[u32]) -> Option<Vec<u32>> {
        if coords.len() != self.axes.len() {
            return None;
        }
        std::iter::zip(coords, &self.axes).map(|(c, (chunks, step))| (c < chunks).then_some(c / step)).collect()
    }

    /// Returns the chunks of `cell`, as a box.
    pub(super) fn extents(&self, cell: &[u32]) -> Vec<(u32, u32)> {
        std::iter::zip(cell, &self.axes)
            .map(|(number, &(chunks, step))| {
                let from = number.saturating_mul(step).min(chunks);
                (from, from.saturating_add(step).min(chunks))
            })
            .collect()
    }

    /// Returns the numbers of the cells that a box of chunks touches, by dimension. A box of
    /// another rank than the grid's touches all cells.
    fn touched_by_axis(&self, extents: &[(u32, u32)]) -> impl Iterator<Item = Range<u32>> {
        let known = extents.len() == self.axes.len();
        self.axes.iter().enumerate().map(move |(axis, &(chunks, step))| {
            let (from, to) = extents.get(axis).copied().filter(|_| known).unwrap_or((0, chunks));
            let to = to.min(chunks);
            if from >= to { 0..0 } else { from / step..(to - 1) / step + 1 }
        })
    }

    /// Returns the number of cells that a box of chunks touches: as many as [`Cells::touched`]
    /// lists.
    pub(super) fn count_touched(&self, extents: &[(u32, u32)]) -> u64 {
        self.touched_by_axis(extents).map(|numbers| u64::from(numbers.end - numbers.start)).fold(1, u64::saturating_mul)
    }

    /// Returns the cells that a box of chunks touches, in order, and true if the box lies in the
    /// grid. A box of another rank than the grid's touches all cells and lies outside.
    pub(super) fn touched(&self, extents: &[(u32, u32)]) -> (Vec<Vec<u32>>, bool) {
        let is_inside = extents.len() == self.axes.len()
            && std::iter::zip(extents, &self.axes).all(|((_, to), (chunks, _))| to <= chunks);
        let mut found: Vec<Vec<u32>> = vec![Vec::new()];
        for numbers in self.touched_by_axis(extents) {
            found = found
                .into_iter()
                .flat_map(|cell| {
                    numbers.clone().map(move |number| {
                        let mut cell = cell.clone();
                        cell.push(number);
                        cell
                    })
                })
                .collect();
        }
        (found, is_inside)
    }
}

/// Parses a condition; none if it cannot be understood.
fn array_condition(value: &Value, patterns: &mut Patterns) -> Result<Option<ArrayCondition>> {
    let Some((name, content)) = variant(value) else { return Ok(None) };
    let mut all = |list: &Value| -> Result<Vec<Option<ArrayCondition>>> {
        list.as_array().into_iter().flatten().map(|value| array_condition(value, patterns)).collect()
    };
    Ok(match name {
        "any_array" => Some(Box::new(|_| true)),
        "or" => {
            let any: Vec<_> = all(content)?.into_iter().flatten().collect();
            Some(Box::new(move |path| any.iter().any(|is_met| is_met(path))))
        }
        "and" => {
            let Some(all) = all(content)?.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
            Some(Box::new(move |path| all.iter().all(|is_met| is_met(path))))
        }
        "path_matches" => {
            let Some(regex) = regex(content.get("regex"), patterns)? else { return Ok(None) };
            Some(Box::new(move |path| regex.is_match(path)))
        }
        "name_matches" => {
            let Some(regex) = regex(content.get("regex"), patterns)? else { return Ok(None) };
            let is_met =
                move |path: &str| path.rsplit('/').next().is_some_and(|name| !name.is_empty() && regex.is_match(name));
            Some(Box::new(is_met))
        }
        _ => None,
    })
}

/// Parses a condition; none if it cannot be understood.
fn axis_condition(value: &Value, patterns: &mut Patterns) -> Result<Option<AxisCondition>> {
    Ok(match variant(value) {
        Some(("Any", _)) => Some(Box::new(|_, _| true)),
        Some(("Axis", number)) => {
            number.as_u64().map(|wanted| -> AxisCondition { Box::new(move |number, _| wanted == number as u64) })
        }
        Some(("DimensionName", pattern)) => regex(Some(pattern), patterns)?
            .map(|regex| -> AxisCondition { Box::new(move |_, name| name.is_some_and(|name| regex.is_match(name))) }),
        _ => None,
    })
}

/// Returns the variant and the content of an enum in JSON: a string, or a map of one member.
fn variant(value: &Value) -> Option<(&str, &Value)> {
    match value {
        Value::String(name) => Some((name, &Value::Null)),
        Value::Object(members) => members.iter().next().map(|(name, content)| (name.as_str(), content)),
        _ => None,
    }
}

fn regex(pattern: Option<&Value>, patterns: &mut Patterns) -> Result<Option<Regex>> {
    let Some(text) = pattern.and_then(Value::as_str) else { return Ok(None) };
    Ok(patterns.compile(text)?.ok())
}

/// Parses a rule; none if it cannot be understood.
fn rule(value: &Value, patterns: &mut Patterns) -> Result<Option<Rule>> {
    let Some([condition, axes]) = value.as_array().map(Vec::as_slice) else { return Ok(None) };
    let (Some(condition), Some(list)) = (array_condition(condition, patterns)?, axes.as_array()) else {
        return Ok(None);
    };
    let mut axes = Vec::new();
    for axis in list {
        let step = axis.get("num_chunks").and_then(Value::as_u64).and_then(|step| u32::try_from(step).ok());
        let (Some(step), Some(of)) = (step, axis.get("condition")) else { continue };
        axes.extend(axis_condition(of, patterns)?.map(|is_met| (is_met, step)));
    }
    Ok(Some((condition, axes)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn splitting(rules: Value) -> Splitting {
        Splitting::of(&json!({"split_sizes": rules})).unwrap()
    }

    fn steps(splitting: &Splitting, path: &str, names: &[Option<&str>]) -> Vec<u32> {
        let names: Vec<Option<String>> = names.iter().map(|name| name.map(str::to_owned)).collect();
        let cells = splitting.cells(path, &vec![100; names.len()], Some(&names));
        cells.axes.iter().map(|(_, step)| if *step == u32::MAX { 0 } else { *step }).collect()
    }

    #[test]
    fn the_first_rule_that_gives_a_step_wins() {
        let rules = splitting(json!([
            [{"path_matches": {"regex": "^/a"}}, [{"condition": {"DimensionName": "^t"}, "num_chunks": 10}]],
            [{"and": [{"name_matches": {"regex": "b$"}}, "any_array"]}, [{"condition": {"Axis": 1}, "num_chunks": 3}]],
            [{"or": [{"path_matches": {"regex": "c"}}]}, [{"condition": "Any", "num_chunks": 7}]],
            ["nonsense", [{"condition": "Any", "num_chunks": 1}]],
            [{"and": ["nonsense", "any_array"]}, [{"condition": "Any", "num_chunks": 1}]],
            [{"or": ["nonsense", {"name_matches": {"regex": "^e$"}}]}, [{"condition": "Any", "num_chunks": 5}]],
            ["any_array", [{"condition": "nonsense", "num_chunks": 1}]],
            [{"name_matches": {"regex": "("}}, [{"condition": "Any", "num_chunks": 1}]],
        ]));
        assert_eq!(steps(&rules, "/a/x", &[Some("time"), Some("x")]), [10, 0]);
        assert_eq!(steps(&rules, "/a/b", &[Some("time"), None]), [10, 3]);
        assert_eq!(steps(&rules, "/ac", &[Some("x"), Some("t")]), [7, 10]);
        assert_eq!(steps(&rules, "/d", &[Some("t"), None]), [0, 0]);
        assert_eq!(steps(&rules, "/e", &[None]), [5]);
    }

    #[test]
    fn cells_cover_the_grid_once() {
        let cells = Cells { axes: vec![(10, 4), (3, u32::MAX)] };
        assert_eq!(cells.find(&[9, 2]), Some(vec![2, 0]));
        assert_eq!((cells.find(&[10, 0]), cells.find(&[0]), cells.find(&[0, 3])), (None, None, None));
        assert_eq!(cells.extents(&[2, 0]), [(8, 10), (0, 3)]);
        assert_eq!(cells.touched(&[(3, 5), (0, 1)]), (vec![vec![0, 0], vec![1, 0]], true));
        assert_eq!(cells.touched(&[(8, 12), (0, 3)]), (vec![vec![2, 0]], false));
        for extents in
            [vec![(3, 5), (0, 1)], vec![(8, 12), (0, 3)], vec![], vec![(10, 12), (0, 1)], vec![(0, 10), (2, 3)]]
        {
            assert_eq!(cells.count_touched(&extents), cells.touched(&extents).0.len() as u64, "{extents:?}");
        }
        assert_eq!(cells.touched(&[]), (vec![vec![0, 0], vec![1, 0], vec![2, 0]], false));
        assert_eq!(cells.touched(&[(10, 12), (0, 1)]).0, Vec::<Vec<u32>>::new());
        let scalar = Cells { axes: vec![] };
        assert_eq!((scalar.find(&[]), scalar.touched(&[])), (Some(vec![]), (vec![vec![]], true)));
        assert!(Cells { axes: vec![(0, 4)] }.is_empty() && !scalar.is_empty());
    }
}
