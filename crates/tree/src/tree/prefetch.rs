//! Prefetch: prediction of the chunks that will be read next.
//!
//! A program that opens one chunk after another waits for each separately, over a network a round
//! trip each. But its access pattern is rarely random: it walks the grid along an axis, and
//! continues in the next row at the end. Reads are followed as *streams*: a stream has an axis and
//! a stride, learned from two chunks and trusted from the third on (a step to the direct neighbor
//! of the last chunk is trusted a little at once), and its prefetch window doubles with every
//! predicted chunk. A chunk that no stream predicted begins a stream. Several readers of one array
//! are several streams.
//!
//! A reader without a pattern begins streams that continue only by chance: in a small grid any two
//! chunks are soon a step apart. So a stream that was idle for a while has to prove itself once
//! more, and only a proven stream may leave chunks out.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use super::nodes::NodeIndex;
use icechunkfs_base::access_pattern::{Stride, is_low};
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::reader::ChunkRange;

/// Streams that are followed in one array. The oldest is dropped.
const STREAMS: usize = 16;
/// Longest step along an axis that may be a stride: strides are small, jumps are not strides.
const MAX_STRIDE: i64 = 64;
/// Chunks that a reader may leave out, because it has them already or they do not exist, without
/// losing its stream.
const MAX_SKIPPED: usize = 4;
/// Most recently used streams: those may be trusted sooner.
const RECENT: usize = 4;
/// Chunks that are prefetched when a stream is first trusted, and when a neighbor makes one likely.
const FIRST_WINDOW: usize = 3;
pub(super) const LIKELY_WINDOW: usize = 1;
/// Bytes of small chunks that are requested at a time. Larger ones are requested one by one as
/// chunks are read: many at a time would share the link and arrive together, and the link would
/// then be idle until the next request.
const BATCH: u64 = 1 << 20;
/// Most chunks prefetched for one stream, whatever their size.
const MAX_CHUNKS: usize = 512;

#[derive(Debug)]
pub(super) struct Prefetcher {
    arrays: Mutex<HashMap<NodeIndex, VecDeque<Stream>>>,
    /// Shard of each array that is read now, and the one before.
    shards: Mutex<HashMap<NodeIndex, (ChunkRange, Option<ChunkRange>)>>,
    /// Most bytes prefetched for one stream.
    most: u64,
}

/// Chunks that a stream will need, in its order.
#[derive(Debug, Default)]
pub(super) struct PrefetchPlan {
    pub(super) chunks: Vec<Coords>,
    /// Front of the stream before.
    before: Coords,
}

#[derive(Debug)]
struct Stream {
    stride: Stride<Coords, Step>,
    window: usize,
    /// Last prefetched chunk, and its distance from the last chunk read, in chunks.
    front: Coords,
    ahead: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    axis: usize,
    stride: i64,
}

impl Step {
    /// Returns the step from `from` to `to`, if it is along one axis and not too long.
    fn between(from: &[u32], to: &[u32]) -> Option<Step> {
        let mut steps = std::iter::zip(from, to).map(|(from, to)| i64::from(*to) - i64::from(*from)).enumerate();
        let (axis, stride) = steps.find(|(_, stride)| *stride != 0)?;
        let alone = steps.all(|(_, stride)| stride == 0);
        (alone && stride.abs() <= MAX_STRIDE).then_some(Step { axis, stride })
    }

    /// Returns the chunk after `from` in `grid`; none at the grid's end.
    fn after(self, from: &[u32], grid: &[u32]) -> Option<Coords> {
        let mut next = Coords::from_slice(from);
        let at = next.get_mut(self.axis)?;
        let length = i64::from(*grid.get(self.axis)?);
        let moved = i64::from(*at) + self.stride;
        if (0..length).contains(&moved) {
            *at = u32::try_from(moved).ok()?;
            return Some(next);
        }
        // The next row begins where the stride has its first chunk, at the side from which the last
        // row came.
        let rest = i64::from(*at).rem_euclid(self.stride.abs());
        let first =
            if self.stride > 0 { rest } else { rest + (length - 1 - rest) / self.stride.abs() * self.stride.abs() };
        *at = u32::try_from(first).ok()?;
        // The fastest axis determines the order: C order for the last one, Fortran order for the
        // first one.
        let rank = grid.len();
        let others: Vec<usize> = match self.axis {
            0 => (1..rank).collect(),
            axis => (0..axis).rev().chain(axis + 1..rank).collect(),
        };
        for other in others {
            let at = next.get_mut(other)?;
            let length = *grid.get(other)?;
            *at += 1;
            if *at < length {
                return Some(next);
            }
            *at = 0;
        }
        None
    }
}

impl Stream {
    fn begin(at: &[u32]) -> Self {
        let at = Coords::from_slice(at);
        Stream { stride: Stride::new(at.clone()), window: 0, front: at, ahead: 0 }
    }

    /// Returns the number of steps to `at`, if it is among the next chunks.
    fn steps_to(&self, at: &Coords, grid: &[u32]) -> Option<usize> {
        self.stride.steps_to(at, MAX_SKIPPED, |from, step| step.after(from, grid))
    }

    /// Moves the stream to `at`, `steps` further. `recent` is true if the stream is one of the most
    /// recently used.
    fn advance(&mut self, at: Coords, steps: usize, most: usize, recent: bool) {
        if steps > self.ahead {
            self.front = at.clone();
        }
        self.stride.follow(at);
        self.ahead = self.ahead.saturating_sub(steps);
        let window = if self.stride.hits() == 1 && !recent { 0 } else { (self.window * 2).max(FIRST_WINDOW) };
        self.window = window.min(most);
    }

    /// Returns the chunks to fetch now, so that the window is full. None before `batch` chunks are
    /// needed or half the window is used up: neighbors that are fetched together may be one
    /// request.
    fn refill(&mut self, grid: &[u32], batch: usize) -> PrefetchPlan {
        let Some(step) = self.stride.step() else { return PrefetchPlan::default() };
        let mut wanted = PrefetchPlan { chunks: Vec::new(), before: self.front.clone() };
        if !is_low(self.ahead as u64, self.window as u64, batch as u64) {
            return wanted;
        }
        while self.ahead < self.window {
            let Some(next) = step.after(&self.front, grid) else { break };
            self.front = next.clone();
            self.ahead += 1;
            wanted.chunks.push(next);
        }
        wanted
    }
}

impl Prefetcher {
    /// Creates the state for at most `most` bytes prefetched per stream.
    pub(super) fn new(most: u64) -> Self {
        Prefetcher { arrays: Mutex::default(), shards: Mutex::default(), most }
    }

    /// Records a read of `shard` of the array at `node`. Returns the shard that was read before it.
    pub(super) fn shard_before(&self, node: NodeIndex, shard: &ChunkRange) -> Option<ChunkRange> {
        let mut shards = self.shards.lock();
        let (now, before) = shards.entry(node).or_insert_with(|| (shard.clone(), None));
        if now != shard {
            *before = Some(std::mem::replace(now, shard.clone()));
        }
        before.clone()
    }

    /// Records a read of chunk `at`, of `bytes`, of the array at `node`, whose grid is `grid`.
    /// Returns the chunks to prefetch: up to `likely` if a stream is no more than likely.
    pub(super) fn record_read(
        &self,
        node: NodeIndex,
        grid: &[u32],
        at: &[u32],
        bytes: u64,
        likely: usize,
    ) -> PrefetchPlan {
        let most = usize::try_from(self.most / bytes.max(1)).unwrap_or(usize::MAX).min(MAX_CHUNKS);
        let batch = usize::try_from((BATCH / bytes.max(1)).max(1)).unwrap_or(usize::MAX);
        let mut arrays = self.arrays.lock();
        let streams = arrays.entry(node).or_default();
        // Most requests are for the same chunk as the last one.
        if streams.iter().any(|stream| stream.stride.last().as_slice() == at) {
            return PrefetchPlan::default();
        }
        let at = Coords::from_slice(at);
        let predicted = streams.iter().enumerate().find_map(|(n, stream)| Some((n, stream.steps_to(&at, grid)?)));
        if let Some((n, steps)) = predicted
            && let Some(mut stream) = streams.remove(n)
        {
            stream.advance(at, steps, most, n < RECENT);
            let wanted = stream.refill(grid, batch);
            streams.push_front(stream);
            return wanted;
        }
        // The nearest stream that is not trusted yet may be the one that this chunk continues.
        let steps = streams.iter().enumerate().filter(|(_, stream)| stream.stride.hits() == 0);
        let steps = steps.filter_map(|(n, stream)| Some((n, Step::between(stream.stride.last(), &at)?)));
        let nearest = steps.min_by_key(|(_, step)| step.stride.abs());
        let mut stream = match nearest {
            Some((n, _)) => streams.remove(n).unwrap_or_else(|| Stream::begin(&at)),
            None => Stream::begin(&at),
        };
        if let Some((_, step)) = nearest {
            stream.stride.turn(at.clone(), step);
        }
        stream.front = at;
        let is_neighbor = nearest.is_some_and(|(n, step)| n == 0 && step.stride.abs() == 1);
        (stream.ahead, stream.window) = (0, if is_neighbor { likely.min(most) } else { 0 });
        let wanted = stream.refill(grid, batch);
        streams.push_front(stream);
        streams.truncate(STREAMS);
        wanted
    }

    /// Returns all but the first `fetched` chunks of `wanted`, for which there was no room. They
    /// are requested again as the reader continues, and the stream has a smaller window until it
    /// has proved itself further.
    pub(super) fn return_unfetched(&self, node: NodeIndex, wanted: &PrefetchPlan, fetched: usize) {
        let mut arrays = self.arrays.lock();
        let streams = arrays.get_mut(&node).into_iter().flatten();
        // A stream that has requested more since has lost these.
        let Some(stream) = streams.into_iter().find(|stream| wanted.chunks.last() == Some(&stream.front)) else {
            return;
        };
        let left = wanted.chunks.len().saturating_sub(fetched);
        stream.ahead = stream.ahead.saturating_sub(left);
        stream.window = (stream.window / 2).max(LIKELY_WINDOW);
        let front = fetched.checked_sub(1).and_then(|last| wanted.chunks.get(last));
        stream.front = front.unwrap_or(&wanted.before).clone();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;

    /// Reads `order` of a grid; returns how many chunks were prefetched before they were read, and
    /// how many were never read.
    fn walk(grid: &[u32], order: &[Vec<u32>]) -> (usize, usize) {
        let prefetcher = Prefetcher::new(16 << 20);
        let mut fetched: Vec<Coords> = Vec::new();
        let mut hits = 0;
        for at in order {
            hits += usize::from(fetched.iter().any(|coords| coords.as_slice() == at.as_slice()));
            // Each chunk is read by several requests.
            for _ in 0..3 {
                for coords in prefetcher.record_read(0, grid, at, 1 << 20, LIKELY_WINDOW).chunks {
                    assert!(!fetched.contains(&coords), "{coords:?} is fetched twice");
                    fetched.push(coords);
                }
            }
        }
        let vain = fetched.iter().filter(|coords| !order.iter().any(|at| at.as_slice() == coords.as_slice())).count();
        (hits, vain)
    }

    fn grid_order(rows: u32, columns: u32, by_columns: bool, stride: usize) -> Vec<Vec<u32>> {
        let all = if by_columns {
            (0..columns).flat_map(|x| (0..rows).map(move |y| vec![y, x])).collect::<Vec<_>>()
        } else {
            (0..rows).flat_map(|y| (0..columns).map(move |x| vec![y, x])).collect()
        };
        all.into_iter().step_by(stride).collect()
    }

    #[test]
    fn walks_in_any_order_are_predicted() {
        let in_space = (0..4).flat_map(|z| (0..5).flat_map(move |y| (0..6).map(move |x| vec![z, y, x])));
        let concurrent = (0..64).flat_map(|n| [vec![n, 0], vec![63 - n, 3], vec![n, 7]]);
        let mut walks: Vec<(&[u32], Vec<_>, usize)> = vec![
            (&[100], (0..100).rev().map(|n| vec![n]).collect(), 3),
            (&[100], (0..100).filter(|n| n % 7 != 3).map(|n| vec![n]).collect(), 4),
            (&[4, 5, 6], in_space.collect(), 4),
            (&[64, 8], concurrent.collect(), 18),
        ];
        for (by_columns, stride) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
            let order = grid_order(16, 32, by_columns, stride);
            assert!(walk(&[16, 32], &order).1 <= 1, "in vain by columns: {by_columns}, stride {stride}");
            walks.push((&[16, 32], order, 4));
        }
        for (grid, order, missed) in walks {
            let (hits, _) = walk(grid, &order);
            assert!(hits + missed >= order.len(), "{hits} of {} in {grid:?}", order.len());
        }
    }

    /// Reads 160 chunks of a small grid, each once, in random order (any two are soon a step
    /// apart), and 400 of a large one.
    #[test]
    fn chance_is_no_pattern() {
        let random = |seed: &mut u64, below: usize| {
            *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            usize::try_from(*seed >> 33).unwrap_or(0) % below
        };
        let mut seed = 3;
        let mut order = grid_order(16, 32, false, 1);
        for n in (1..order.len()).rev() {
            order.swap(n, random(&mut seed, n + 1));
        }
        order.truncate(160);
        assert!(walk(&[16, 32], &order).1 <= 16);
        seed = 7;
        let order: Vec<Vec<u32>> = (0..400).map(|_| vec![random(&mut seed, 4096) as u32]).collect();
        assert!(walk(&[4096], &order).1 <= 20);
    }

    #[test]
    fn unfetched_chunks_are_requested_again() {
        let prefetcher = Prefetcher::new(64 << 20);
        let mut fetched: Vec<Coords> = Vec::new();
        let mut missed = 0;
        for n in 0..200 {
            missed += usize::from(n > 3 && !fetched.iter().any(|coords| coords.as_slice() == [n]));
            let wanted = prefetcher.record_read(0, &[1000], &[n], 1 << 20, LIKELY_WINDOW);
            // There is room for four at a time.
            let room = (n as usize + 5).saturating_sub(fetched.iter().map(|c| c[0] as usize + 1).max().unwrap_or(0));
            let taken = room.min(wanted.chunks.len());
            fetched.extend(wanted.chunks[..taken].iter().cloned());
            if taken < wanted.chunks.len() {
                prefetcher.return_unfetched(0, &wanted, taken);
            }
        }
        assert!(missed <= 2, "{missed}");
    }

    #[test]
    fn the_window_is_bounded_in_bytes() {
        let prefetcher = Prefetcher::new(8 << 20);
        let mut most = 0;
        for n in 0..50 {
            most = most.max(prefetcher.record_read(0, &[1000], &[n], 1 << 20, LIKELY_WINDOW).chunks.len());
        }
        assert!((1..=8).contains(&most), "{most}");
    }
}
