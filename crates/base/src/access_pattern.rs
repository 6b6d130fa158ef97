//! Access patterns: what a reader has read tells what it will read next.
//!
//! There are two patterns. A [`Sequence`] is of bytes: each read begins near the end of those
//! before, and the longer the sequence, the more of what follows is worth a prefetch. A [`Stride`]
//! is of units, such as chunks: each is the same step away from the one before. A prefetch of
//! either has a window, which is filled again when it [`is_low`].
//!
//! The users have what is theirs: the units, the size of the window, and how far a read may be from
//! the one before.

use std::ops::Range;

/// Bytes that were read in sequence, and those behind them that were prefetched.
#[derive(Clone, Debug)]
pub struct Sequence {
    begin: u64,
    end: u64,
    /// End of the prefetched bytes.
    front: u64,
}

/// Units that were read with the same step between them. A step is learned from two reads, and
/// trusted from the third on.
#[derive(Clone, Debug)]
pub struct Stride<P, S> {
    last: P,
    step: Option<S>,
    /// Units that came as predicted.
    hits: u32,
}

/// Returns true if a window of `window` units is to be filled again, of which `ahead` are not read
/// yet: half of it is used up, or there is room for `batch`. Small steps would each be a request.
pub fn is_low(ahead: u64, window: u64, batch: u64) -> bool {
    ahead <= window / 2 || ahead.saturating_add(batch) <= window
}

impl Sequence {
    /// Begins a sequence with a read at `begin`.
    pub fn new(begin: u64) -> Self {
        Sequence { begin, end: begin, front: begin }
    }

    /// Returns the bytes that were read.
    pub fn range(&self) -> Range<u64> {
        self.begin..self.end
    }

    /// Returns how many bytes were read.
    pub fn length(&self) -> u64 {
        self.end - self.begin
    }

    /// Returns true if `range` is at most `gap` bytes away from the sequence.
    pub fn is_near(&self, range: &Range<u64>, gap: u64) -> bool {
        range.start <= self.end.saturating_add(gap) && range.end.saturating_add(gap) >= self.begin
    }

    /// Records a read of `range`. Returns true if the sequence gets further.
    pub fn extend(&mut self, range: &Range<u64>) -> bool {
        let is_further = range.end > self.end;
        self.begin = self.begin.min(range.start);
        self.end = self.end.max(range.end);
        is_further
    }

    /// Returns the range to prefetch, from `from` on, so that the bytes up to `window` behind the
    /// end are; none if most of them are already.
    pub fn prefetch(&mut self, from: u64, window: u64) -> Option<Range<u64>> {
        let from = self.front.max(from);
        let target = self.end.saturating_add(window);
        if from >= target || !is_low(self.front.saturating_sub(self.end), window, u64::MAX) {
            return None;
        }
        self.front = target;
        Some(from..target)
    }

    /// Records that nothing was prefetched from `end` on.
    pub fn prefetched_until(&mut self, end: u64) {
        self.front = self.front.min(end);
    }
}

impl<P: PartialEq + Clone, S: Copy> Stride<P, S> {
    /// Begins a stride with a read at `at`.
    pub fn new(at: P) -> Self {
        Stride { last: at, step: None, hits: 0 }
    }

    /// Returns the unit that was read last.
    pub fn last(&self) -> &P {
        &self.last
    }

    /// Returns the step between units; none before the second.
    pub fn step(&self) -> Option<S> {
        self.step
    }

    /// Returns how many units came as predicted, one after another: none of a step that is not to
    /// be trusted yet.
    pub fn hits(&self) -> u32 {
        self.hits
    }

    /// Returns the number of steps to `at`: at most `farthest`, and one if the step is not trusted
    /// yet. `after` takes a step, and returns none at the end.
    pub fn steps_to(&self, at: &P, farthest: usize, after: impl Fn(&P, S) -> Option<P>) -> Option<usize> {
        let step = self.step?;
        let mut next = self.last.clone();
        let farthest = if self.hits == 0 { 1 } else { farthest };
        for steps in 1..=farthest {
            next = after(&next, step)?;
            if next == *at {
                return Some(steps);
            }
        }
        None
    }

    /// Records a read at `at`, as predicted.
    pub fn follow(&mut self, at: P) {
        self.last = at;
        self.hits += 1;
    }

    /// Records a read at `at`, which is `step` away and was not predicted.
    pub fn turn(&mut self, at: P, step: S) {
        *self = Stride { last: at, step: Some(step), hits: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_goes_on_near_its_end() {
        let mut sequence = Sequence::new(100);
        assert!(sequence.extend(&(100..200)));
        for (range, gap, is_near) in [
            (200..300, 0, true),
            (201..300, 0, false),
            (250..300, 50, true),
            (0..99, 0, false),
            (0..99, 1, true),
            (u64::MAX - 1..u64::MAX, u64::MAX, true),
        ] {
            assert_eq!(sequence.is_near(&range, gap), is_near, "{range:?} {gap}");
        }
        assert!(!sequence.extend(&(150..200)) && sequence.extend(&(250..300)) && !sequence.extend(&(90..110)));
        assert_eq!((sequence.range(), sequence.length()), (90..300, 210));
    }

    #[test]
    fn a_window_is_filled_when_half_of_it_is_used_up() {
        let mut sequence = Sequence::new(0);
        sequence.extend(&(0..100));
        assert_eq!(sequence.prefetch(100, 0), None);
        assert_eq!(sequence.prefetch(100, 100), Some(100..200));
        sequence.extend(&(100..149));
        assert_eq!(sequence.prefetch(149, 100), None);
        sequence.extend(&(149..150));
        assert_eq!(sequence.prefetch(150, 100), Some(200..250));
        // There was no room for all, and the reader is beyond the rest.
        sequence.prefetched_until(180);
        sequence.extend(&(150..160));
        assert_eq!(sequence.prefetch(160, 100), Some(180..260));
        sequence.extend(&(160..500));
        assert_eq!(sequence.prefetch(510, 100), Some(510..600));
        assert_eq!(sequence.prefetch(u64::MAX, 100), None);
    }

    #[test]
    fn a_batch_fills_a_window_earlier() {
        let is_low = |batch| (0..=8).filter(|ahead| is_low(*ahead, 8, batch)).max();
        assert_eq!([1, 2, 5, u64::MAX].map(is_low), [Some(7), Some(6), Some(4), Some(4)]);
    }

    #[test]
    fn a_step_is_trusted_from_the_third_unit_on() {
        let after = |at: &i32, step| Some(at + step).filter(|at| *at < 100);
        let mut stride = Stride::new(1);
        assert_eq!(stride.steps_to(&1, 4, after), None, "there is no step yet");
        stride.turn(3, 2);
        assert_eq!([5, 7].map(|at| stride.steps_to(&at, 4, after)), [Some(1), None]);
        stride.follow(5);
        assert_eq!([7, 9, 13, 15, 8].map(|at| stride.steps_to(&at, 4, after)), [Some(1), Some(2), Some(4), None, None]);
        stride.turn(98, 1);
        assert_eq!((*stride.last(), stride.step(), stride.hits()), (98, Some(1), 0));
        stride.follow(99);
        assert_eq!(stride.steps_to(&100, 4, after), None, "the end");
    }
}
