//! Values that determine how an array shows: the lengths of texts, and the times of which the
//! longest unit is sought.
//!
//! They are read when the header of a file is made. A chunk that is damaged, or that nobody may
//! read, takes no others with it: what the rest says counts, and reading the chunk fails. One that
//! cannot be read for now makes the look fail, as the header would be another one later.

use std::sync::Arc;

use super::chunks::Units;
use super::data_type::Shown;
use super::decode::Chain;
use super::file_chunks::FilePlace;
use super::rows;
use super::stored::StoredPlace;
use super::times::{Common, Form, NOT_A_TIME, Times};
use super::variable::{Source, Variable, product};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory;
use icechunkfs_format::zarr::shard::coords_in;
use icechunkfs_tree::tree::Tree;

/// Limits of an array of texts of any length: elements, and stored bytes.
const MAX_TEXTS: u64 = 64 << 10;
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// Most decoded bytes of the texts of a chunk, and the bytes for which memory is reserved first:
/// few chunks of names have more.
const MAX_DECODED_TEXTS: u64 = 64 << 20;
const FIRST_DECODED_TEXTS: u64 = 256 << 10;
/// Part of the memory that the process may take which the texts of a chunk may have.
const TEXTS_PART: u64 = 8;
/// Limits of an array whose times are looked at: elements, and units that are read one after
/// another.
const MAX_TIMES: u64 = 1 << 20;
const MAX_TIME_UNITS: u64 = 256;

/// Reason why an array is no variable.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// The array cannot be one: the file is made without it.
    OfArray(String),
    /// Nothing is known of it, as it cannot be read now. A file without it would look complete.
    OfAccess(Error),
}

impl<T: Into<String>> From<T> for Obstacle {
    fn from(reason: T) -> Self {
        Obstacle::OfArray(reason.into())
    }
}

impl Obstacle {
    /// Returns the obstacle that a failure to read what is stored of an array is.
    fn of_reading(error: Error) -> Self {
        if error.is_of_access() { Obstacle::OfAccess(error) } else { Obstacle::OfArray(error.to_string()) }
    }
}

/// Difference of a variable from its array, for the report.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) deed: &'static str,
    pub(super) reason: String,
}

/// Looks at the values of `variable` as far as they determine how it shows. What differs from the
/// array is added to `notes`.
pub(super) async fn look(tree: &Arc<Tree>, variable: Variable, notes: &mut Vec<Note>) -> Result<Variable, Obstacle> {
    match variable.element.shown {
        Shown::Texts => at_texts(tree, variable, notes).await,
        Shown::Time(times) if times.form != Form::Plain => at_times(tree, variable, times, notes).await,
        _ => Ok(variable),
    }
}

/// Checks that an array does not have more texts than are looked at.
pub(super) fn check(variable: &Variable) -> Result<(), String> {
    let count = product(&variable.grid, 1).zip(product(&variable.unit, 1));
    let count = count.and_then(|(units, each)| units.checked_mul(each));
    let is_small = product(&variable.shape, 1).is_some_and(|count| count <= MAX_TEXTS)
        && count.is_some_and(|count| count <= 4 * MAX_TEXTS);
    if variable.element.shown == Shown::Texts && !is_small {
        return Err(format!("more than {MAX_TEXTS} texts of any length"));
    }
    Ok(())
}

/// Finds the longest text of an array: it determines the size of the variable.
async fn at_texts(tree: &Arc<Tree>, mut variable: Variable, notes: &mut Vec<Note>) -> Result<Variable, Obstacle> {
    check(&variable)?;
    let units: u64 = variable.grid.iter().product();
    let each: u64 = variable.unit.iter().product();
    let chunks = tree.chunks(variable.node).ok_or("no chunks")?;
    let (_, stored) = chunks.totals().await.map_err(Obstacle::of_reading)?;
    if stored > MAX_TEXT_BYTES {
        return Err(format!("texts of any length in more than {MAX_TEXT_BYTES} bytes").into());
    }
    let mut longest = variable.fill.len() as u64;
    let mut fault = None;
    let mut has_read = false;
    for number in 0..units {
        let place = StoredPlace::chunk(tree, variable.node, &coords_in(&variable.grid, number));
        match longest_of_chunk(tree, &place, &variable.chain, each as usize).await {
            Ok(None) => {}
            Ok(Some(length)) => {
                has_read = true;
                longest = longest.max(length);
            }
            Err(error) if is_fault(tree, &variable, number, &error).await => fault = Some(error),
            Err(error) => return Err(Obstacle::OfAccess(error)),
        }
    }
    if let Some(fault) = fault {
        if !has_read {
            return Err(fault.to_string().into());
        }
        notes.push(Note { deed: "shown without some texts", reason: fault.to_string() });
    }
    if longest > u64::from(u16::MAX) {
        return Err(format!("a text of {longest} bytes").into());
    }
    variable.longest = longest.max(1);
    variable.fill.resize(variable.longest as usize, 0);
    variable.shown_fill.clone_from(&variable.fill);
    variable.check_length()?;
    Ok(variable)
}

/// Returns the bytes of the longest text of a chunk of `count`; none if it is not stored.
async fn longest_of_chunk(
    tree: &Arc<Tree>,
    place: &StoredPlace<'_>,
    chain: &Chain,
    count: usize,
) -> Result<Option<u64>> {
    let Some(found) = place.find(tree).await? else { return Ok(None) };
    let name = place.describe(tree);
    // A chunk that claims to be large, and one that is, must not take the memory of others.
    let most = MAX_DECODED_TEXTS.min(memory::reservable() / TEXTS_PART);
    let mut limit = FIRST_DECODED_TEXTS.min(most);
    loop {
        // All at once: others may hold what the rest would wait for.
        let needed = found.len().saturating_add(chain.variable_memory(count, limit as usize));
        let held = memory::reserve(needed, &name).await?;
        // Once more if the answer is too short: it may be whole then.
        let stored = match found.read(tree).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => found.read(tree).await,
            stored => stored,
        };
        let stored = stored?;
        let chain = chain.clone();
        let decode = move || {
            let texts = chain.decode_variable(stored, count, limit as usize)?;
            Ok::<_, Error>(texts.iter().map(<[u8]>::len).max().unwrap_or(0))
        };
        let decoded = blocking(decode).await;
        drop(held);
        match decoded {
            Ok(longest) => return Ok(Some(longest as u64)),
            Err(_) if limit < most => limit = most,
            Err(error) => return Err(error.context(&name)),
        }
    }
}

/// Finds the longest unit in which all times of an array are whole numbers, and whether any is
/// missing.
async fn at_times(
    tree: &Arc<Tree>,
    mut variable: Variable,
    times: Times,
    notes: &mut Vec<Note>,
) -> Result<Variable, Obstacle> {
    let is_small = product(&variable.grid, 1).is_some_and(|units| units <= MAX_TIME_UNITS)
        && product(&variable.shape, 1).is_some_and(|count| count <= MAX_TIMES);
    let common = if is_small { common_of_times(tree, &variable, times).await? } else { None };
    if let Some(common) = &common {
        variable.element.shown = Shown::Time(times.with_form(times.form_of(common)));
        variable.has_missing_times = common.has_missing;
        let fill = variable.element.convert(variable.fill.clone());
        // A fill value that is no whole number is used nowhere.
        let missing = || variable.element.convert(NOT_A_TIME.to_le_bytes().to_vec());
        variable.shown_fill = fill.or_else(|_| missing()).map_err(|error| error.to_string())?;
    }
    if let Shown::Time(Times { form: Form::DoubleSeconds, .. }) = variable.element.shown {
        let by =
            common.map_or("to 53 bits".to_owned(), |common| format!("by up to {:.0e} seconds", times.error(&common)));
        let reason = format!("few programs know units below the second; the times are rounded {by}");
        notes.push(Note { deed: "shown as double seconds", reason });
    }
    Ok(variable)
}

/// Reads all times of `variable`; none if no chunk can be read.
async fn common_of_times(tree: &Arc<Tree>, variable: &Variable, times: Times) -> Result<Option<Common>, Obstacle> {
    let mut plain = variable.clone();
    plain.element.classic = false;
    plain.element.shown = Shown::Time(times.with_form(Form::Plain));
    let units = Units::new(plain);
    let mut common = Common::default();
    let mut has_read = false;
    let mut has_fault = false;
    for number in 0..variable.grid.iter().product() {
        let place = FilePlace { position: number, from: 0 };
        match units.read(tree, &place, variable.shown_bytes()).await {
            Ok(Some(stored)) => {
                has_read = true;
                common.add(&stored);
                let within: Vec<u64> = coords_in(&variable.grid, number)
                    .iter()
                    .zip(&variable.unit)
                    .zip(std::iter::zip(&variable.kept, &variable.shape))
                    .map(|((coord, unit), (kept, length))| length.saturating_sub(coord * unit).min(*kept))
                    .collect();
                common.look_for_missing(&rows::crop(stored.into(), &variable.kept, &within, variable.element.size));
            }
            Ok(None) => {
                has_read = true;
                common.add(&variable.fill);
                common.look_for_missing(&variable.fill);
            }
            Err(error) if is_fault(tree, variable, number, &error).await => has_fault = true,
            Err(error) => return Err(Obstacle::OfAccess(error)),
        }
    }
    // What cannot be read may be missing.
    common.has_missing |= has_fault;
    Ok(Some(common).filter(|_| has_read))
}

/// Returns true if `error` is one of unit `number` itself, and stays: damage, or a virtual chunk
/// that may not be read.
async fn is_fault(tree: &Arc<Tree>, variable: &Variable, number: u64, error: &Error) -> bool {
    if !error.is_of_access() {
        return true;
    }
    if error.kind() != ErrorKind::PermissionDenied || variable.source != Source::Chunk {
        return false;
    }
    let place = StoredPlace::chunk(tree, variable.node, &coords_in(&variable.grid, number));
    matches!(place.find(tree).await.map(|found| found.map(|range| range.is_virtual())), Ok(Some(true)))
}
