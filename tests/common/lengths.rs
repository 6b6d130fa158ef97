//! Lengths of tests with random steps: short in the ordinary run, long in `scripts/test --full`,
//! and any that the environment names.

/// Variable that `scripts/test --full` sets.
const FULL: &str = "ICECHUNKFS_FULL";

/// Returns a number that the environment may set, as `scripts/soak` does.
pub fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).map_or(otherwise, |value| value.parse().expect(variable))
}

/// Returns the length of a test: that of variable `variable`, or else `full` in a full run and
/// `quick` in others.
pub fn length(variable: &str, quick: usize, full: usize) -> usize {
    number(variable, if is_full() { full } else { quick })
}

/// Returns true in a full run.
pub fn is_full() -> bool {
    std::env::var_os(FULL).is_some()
}
