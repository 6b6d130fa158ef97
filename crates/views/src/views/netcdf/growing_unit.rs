//! Unit that is decoded from its beginning, as far as programs read it.
//!
//! A program that reads one time step of a chunk of twelve needs a twelfth of it, or what lies
//! before its end, as a decoder can only begin at the beginning. And a program that reads all of it
//! need not wait for the end to get the beginning.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::decode::Steps;
use super::rows::Runs;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::Reservation;
use icechunkfs_base::memory::growing::{Grower, GrowingBytes};

/// Unit of which the first bytes are decoded.
#[derive(Debug)]
pub(super) struct GrowingUnit {
    /// Bytes as the file shows them.
    bytes: Arc<GrowingBytes>,
    /// Decoder of the rest; none once all is decoded, or after a failure.
    work: Mutex<Option<UnitDecoder>>,
    /// Description of the stored chunk, for errors.
    name: String,
}

/// Decoder of a unit, and the places where its bytes go.
pub(super) struct UnitDecoder {
    steps: Steps,
    decoded: Grower,
    /// Bytes of the file, if these are not the decoded ones.
    shown: Option<Shown>,
    /// Of the stored bytes, and of the decoded ones that are not shown.
    _reservation: Reservation,
}

impl std::fmt::Debug for UnitDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnitDecoder")
            .field("decoded", &self.decoded)
            .field("shown", &self.shown)
            .finish_non_exhaustive()
    }
}

/// Bytes of the file that are copied from decoded ones: of the part of a chunk that lies within the
/// array, little-endian.
#[derive(Debug)]
pub(super) struct Shown {
    grower: Grower,
    /// Runs of elements that are shown, and what is left of the first of them: where it begins and
    /// its length, in bytes.
    runs: Runs,
    run: (usize, usize),
    /// Bytes of an element.
    size: usize,
    /// Bytes of the numbers to reverse.
    number: Option<usize>,
}

impl Shown {
    /// Prepares to copy `runs` of elements of `size` bytes, whose numbers of `number` bytes are
    /// reversed, if given.
    pub(super) fn new(grower: Grower, runs: Runs, size: usize, number: Option<usize>) -> Self {
        Shown { grower, runs, run: (0, 0), size: size.max(1), number }
    }

    /// Copies what is there of `decoded`.
    fn copy(&mut self, decoded: &[u8]) {
        loop {
            let (from, length) = self.run;
            let there = decoded.len().saturating_sub(from).min(length) / self.size * self.size;
            let part = decoded.get(from..from + there).unwrap_or_default();
            match self.number {
                Some(number) => {
                    let mut part = part.to_vec();
                    part.chunks_exact_mut(number).for_each(<[u8]>::reverse);
                    self.grower.append(&part);
                }
                None => self.grower.append(part),
            }
            self.run = (from + there, length - there);
            if there < length {
                return;
            }
            let Some((_, from, length)) = self.runs.next() else { return };
            self.run = (from * self.size, length * self.size);
        }
    }
}

impl UnitDecoder {
    /// Joins a decoder with where its bytes go. `reservation` is for the stored bytes, and for the
    /// decoded ones if these are not shown.
    pub(super) fn new(steps: Steps, decoded: Grower, shown: Option<Shown>, reservation: Reservation) -> Self {
        UnitDecoder { steps, decoded, shown, _reservation: reservation }
    }

    /// Returns the bytes that the file shows.
    fn made(&self) -> usize {
        self.shown.as_ref().map_or(&self.decoded, |shown| &shown.grower).made().len()
    }

    fn step(&mut self) -> Result<()> {
        self.steps.step(&mut self.decoded)?;
        if let Some(shown) = &mut self.shown {
            shown.copy(self.decoded.made());
        }
        Ok(())
    }
}

impl GrowingUnit {
    /// Creates a unit of `bytes`, which `work` makes. `name` describes the stored chunk.
    pub(super) fn new(bytes: Arc<GrowingBytes>, work: UnitDecoder, name: String) -> Arc<Self> {
        Arc::new(GrowingUnit { bytes, work: Mutex::new(Some(work)), name })
    }

    /// Returns the bytes of the whole unit.
    pub(super) fn length(&self) -> usize {
        self.bytes.length()
    }

    /// Returns the bytes that are decoded.
    pub(super) fn made(&self) -> usize {
        self.bytes.made()
    }

    /// Returns true if no more bytes will be decoded: all are, or the rest is damaged.
    pub(super) fn is_over(&self) -> bool {
        // A thread that decodes has the lock.
        self.work.try_lock().is_some_and(|work| work.is_none())
    }

    /// Decodes until the first `until` bytes are there, or about `batch` more. On a thread that may
    /// block.
    pub(super) fn decode(&self, until: usize, batch: usize) {
        let mut slot = self.work.lock();
        let Some(mut work) = slot.take() else { return };
        let end = work.made().saturating_add(batch).min(until).min(self.length());
        while work.made() < end {
            if let Err(error) = work.step() {
                let error = error.context(&self.name);
                return work.shown.map_or(work.decoded, |shown| shown.grower).fail(error);
            }
        }
        if work.made() < self.length() {
            *slot = Some(work);
        }
    }

    /// Returns bytes `from..end`: waits until they are decoded, or the first `enough`, which must
    /// have been requested.
    pub(super) async fn get(&self, from: usize, end: usize, enough: usize) -> Result<Bytes> {
        self.bytes.get(from..end, enough).await
    }
}
