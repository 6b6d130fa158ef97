//! Shrinks a failure to a listing as short as possible: delta debugging by replaying from an empty
//! state.

use std::time::{Duration, Instant};

use super::ops::Op;
use super::world::Failure;

/// Takes out ever smaller pieces as long as the same kind of failure remains, within a time limit.
pub fn shrink(
    mut ops: Vec<Op>,
    mut failure: Failure,
    time: Duration,
    mut replay: impl FnMut(&[Op]) -> Option<(usize, Failure)>,
) -> (Vec<Op>, Failure) {
    let begin = Instant::now();
    let mut piece = ops.len().div_ceil(2).max(1);
    'smaller: loop {
        let mut at = 0;
        let mut removed = false;
        while at < ops.len() {
            if begin.elapsed() > time {
                break 'smaller;
            }
            let end = (at + piece).min(ops.len());
            let attempt: Vec<Op> = ops[..at].iter().chain(&ops[end..]).cloned().collect();
            match replay(&attempt) {
                Some((step, found)) if found.kind == failure.kind => {
                    // Operations after the failure do not contribute to it.
                    ops = attempt[..(step + 1).min(attempt.len())].to_vec();
                    failure = found;
                    removed = true;
                }
                _ => at = end,
            }
        }
        if piece == 1 && !removed {
            break;
        }
        if !removed || piece > ops.len() {
            piece = piece.div_ceil(2).min(ops.len().max(1));
            if piece == 0 {
                break;
            }
        }
    }
    (ops, failure)
}
