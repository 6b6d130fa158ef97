//! Memory of values that are made of untrusted bytes.
//!
//! A few bytes of a file can stand for very many values: lists of one-byte elements, parts that are
//! stored once and referred to often, texts that compress well. The size of the file says nothing
//! about them. So decoders count each value, with its parts as often as they are made, and reserve
//! the memory before they make it. A shared part counts each time.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;

use super::{Reservation, reservable, too_much, unreserved, with_reservation};
use crate::error::Result;

/// Least and most bytes that are reserved ahead, so that not every value costs a reservation.
const MIN_STEP: u64 = 64 << 10;
const MAX_STEP: u64 = 1 << 20;
/// Bytes of brief values that need no reservation: small documents can be looked into while no
/// memory is left.
const BRIEF: u64 = 256 << 10;

/// Counts what a decoder makes, and reserves memory for it first.
#[derive(Debug)]
pub struct Meter {
    what: Cow<'static, str>,
    /// Bytes that need no reservation.
    free: u64,
    /// Bytes that the decoder holds besides, and cannot give back before.
    held: u64,
    counted: u64,
    reservation: Reservation,
}

impl Meter {
    /// Creates a meter for values that are kept. `what` names them in errors, like "the metadata of
    /// a commit".
    pub fn new(what: impl Into<Cow<'static, str>>) -> Self {
        Meter { what: what.into(), free: 0, held: 0, counted: 0, reservation: Reservation::default() }
    }

    /// Creates a meter for values that this thread drops before it makes others. The first ones
    /// need no reservation.
    pub fn brief(what: impl Into<Cow<'static, str>>) -> Self {
        Meter { free: BRIEF, ..Meter::new(what) }
    }

    /// Creates a meter for values that may come to `bytes`, which are reserved. May block the
    /// thread.
    ///
    /// Errors: as for [`Self::count`].
    pub fn prepaid(what: impl Into<Cow<'static, str>>, bytes: u64) -> Result<Self> {
        let mut meter = Meter::brief(what);
        meter.count(bytes)?;
        meter.restart();
        Ok(meter)
    }

    /// Says that the values are made beside `bytes` that are kept meanwhile, like the file that
    /// they are read from: nobody else can release those, so that waiting for them is of no use.
    #[must_use]
    pub fn beside(self, bytes: u64) -> Self {
        Meter { held: self.held.saturating_add(bytes), ..self }
    }

    /// Counts `bytes` that are about to be made. May block the thread.
    ///
    /// Errors: [`crate::error::ErrorKind::OutOfMemory`], which is no property of the bytes that are
    /// decoded.
    #[inline]
    pub fn count(&mut self, bytes: u64) -> Result<()> {
        self.counted = self.counted.saturating_add(bytes);
        match self.counted.saturating_sub(self.free) {
            needed if needed <= self.reservation.bytes() => Ok(()),
            needed => self.reserve(needed),
        }
    }

    /// Counts the bytes of `count` values of type `T`, each with a share of the room by which lists
    /// grow.
    pub fn count_items<T>(&mut self, count: usize) -> Result<()> {
        self.count((count as u64).saturating_mul(2 * size_of::<T>() as u64))
    }

    /// Counts from zero again, on the same reservation: all that was made has been dropped.
    pub fn restart(&mut self) {
        self.counted = 0;
    }

    /// Returns `metered` to be kept with what this meter counts, which takes over its reservation.
    pub fn add<T>(&mut self, metered: Metered<T>) -> T {
        self.counted = self.counted.saturating_add(metered.reserved());
        self.reservation.join(metered.reservation);
        metered.value
    }

    /// Returns the bytes that are reserved.
    pub fn reserved(&self) -> u64 {
        self.reservation.bytes()
    }

    /// Returns the bytes that were counted.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    #[cold]
    fn reserve(&mut self, needed: u64) -> Result<()> {
        let limit = reservable().saturating_sub(self.held);
        if needed > limit {
            return Err(too_much(needed, &self.what, limit));
        }
        let ahead = needed.saturating_add((needed / 8).clamp(MIN_STEP, MAX_STEP)).min(limit);
        // Scarce memory is reserved exactly.
        let reserved = self.reservation.try_grow(ahead) || self.reservation.resize(needed, &self.what).is_ok();
        // Memory that others hold counts for the one who is refused: the bound alone would seem to
        // leave enough.
        let left = || unreserved().saturating_add(self.reservation.bytes()).min(limit);
        if reserved { Ok(()) } else { Err(too_much(needed, &self.what, left())) }
    }

    /// Joins `value`, all of whose memory was counted, with its reservation.
    pub fn finish<T>(self, value: T) -> Metered<T> {
        Metered { value, reservation: self.into_reservation() }
    }

    /// Returns the reservation for what was counted.
    pub fn into_reservation(mut self) -> Reservation {
        let needed = self.counted.saturating_sub(self.free);
        // The room that was reserved ahead is not needed any more.
        drop(self.reservation.split(self.reservation.bytes().saturating_sub(needed)));
        self.reservation
    }
}

/// Reservation of a value of many members, of which clones are made. It says nothing about the
/// value: any two are equal.
#[derive(Clone, Default)]
pub struct SharedReservation(Option<Arc<Reservation>>);

impl SharedReservation {
    /// Returns the bytes that are reserved.
    pub fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |reservation| reservation.bytes())
    }
}

impl From<Meter> for SharedReservation {
    fn from(meter: Meter) -> Self {
        SharedReservation(Some(Arc::new(meter.into_reservation())))
    }
}

impl PartialEq for SharedReservation {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SharedReservation {}

impl fmt::Debug for SharedReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes())
    }
}

/// Value that was made of untrusted bytes, with the reservation of its memory.
#[derive(Default)]
pub struct Metered<T> {
    value: T,
    reservation: Reservation,
}

impl<T> Metered<T> {
    /// Wraps a value that this program has made itself, which needs no reservation.
    pub fn own(value: T) -> Self {
        Metered { value, reservation: Reservation::default() }
    }

    /// Converts the value to one that takes no more memory.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Metered<U> {
        Metered { value: convert(self.value), reservation: self.reservation }
    }

    /// Returns the value, and gives up its reservation.
    pub fn into_inner(self) -> T {
        self.value
    }

    /// Returns the bytes that are reserved.
    pub fn reserved(&self) -> u64 {
        self.reservation.bytes()
    }
}

impl<T> IntoIterator for Metered<Vec<T>> {
    type Item = T;
    type IntoIter = MeteredIter<T>;

    fn into_iter(self) -> MeteredIter<T> {
        MeteredIter { items: self.value.into_iter(), _reservation: self.reservation }
    }
}

impl Metered<String> {
    /// Returns the text as bytes that release the reservation when the last clone is dropped.
    pub fn into_bytes(self) -> Bytes {
        with_reservation(self.value.into(), self.reservation)
    }
}

/// Items of a list, whose reservation stays until the last one is taken.
#[derive(Debug)]
pub struct MeteredIter<T> {
    items: std::vec::IntoIter<T>,
    _reservation: Reservation,
}

impl<T> Iterator for MeteredIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.items.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl<T> Deref for Metered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Metered<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Metered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: PartialEq> PartialEq for Metered<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}
