//! Order in which files follow each other, by the values of their coordinate, and what is refused
//! of it.

use std::sync::Arc;

use super::NAMED;
use super::planned::{Original, READ_AT_ONCE, each};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_ingest::coordinate::{self, Between, Coordinate, Order};

/// Rules for files that follow each other.
#[derive(Clone, Debug, Default)]
pub struct Appending {
    /// Dimension along which they do.
    pub dimension: String,
    /// Append also where values of the coordinate are missing.
    pub allow_gaps: bool,
    /// Leave out files whose values of the coordinate the archive has.
    pub skip_existing: bool,
    /// Convert other types, packing and units of time into those of the archive.
    pub reencode: bool,
}

/// Returns the coordinate of each file; none if any has none.
pub(super) async fn coordinates_of(files: &[Arc<Original>], dimension: &str) -> Result<Option<Vec<Coordinate>>> {
    let read = |original: Arc<Original>| {
        let dimension = dimension.to_owned();
        blocking(move || {
            Coordinate::read(&original.plan, &dimension, &original.file).context(|| original.shown.clone())
        })
    };
    let all = each(files, READ_AT_ONCE, read).await?;
    Ok(all.into_iter().collect())
}

pub(super) fn without_coordinate(dimension: &str) -> Error {
    let dimension = printable::line(dimension);
    Error::invalid(format!(
        "not all files have a variable {dimension}({dimension}) of numbers: their order, and what is there already, cannot be known. \
         Nothing was imported: append to the archive with xarray, in a mount"
    ))
}

/// Returns the files in the order of their values, and those that are left out as the archive has
/// them.
///
/// Errors: [`ErrorKind::InvalidInput`] if values are there twice, or missing and that is not
/// allowed.
pub(super) async fn in_order(
    stored: Option<Coordinate>,
    files: Vec<Arc<Original>>,
    values: Vec<Coordinate>,
    how: Appending,
) -> Result<(Vec<Arc<Original>>, Vec<Arc<Original>>)> {
    blocking(move || {
        let is_there = |values: &Coordinate| how.skip_existing && stored.as_ref().is_some_and(|all| values.is_in(all));
        let (there, new): (Vec<_>, Vec<_>) = std::iter::zip(files, values).partition(|(_, values)| is_there(values));
        let skipped = there.into_iter().map(|(original, _)| original).collect();
        let (files, values): (Vec<Arc<Original>>, Vec<Coordinate>) = new.into_iter().unzip();
        let shown = |file: usize| files.get(file).map_or("", |original| original.shown.as_str());
        let order = coordinate::order(stored.as_ref(), &values)
            .map_err(|(file, error)| error.context(file.map_or("the archive", shown)))?;
        let lies_before = |one: &Between| {
            one.after.is_none() && stored.as_ref().zip(values.get(one.file)).is_some_and(|(all, own)| !own.meets(all))
        };
        if let Some(one) = order.overlaps.iter().find(|one| lies_before(one)) {
            return Err(Error::invalid(format!(
                "{}: it begins at {}, and the archive ends at {}: nothing was imported; write values before the end \
                 with xarray, in a mount",
                shown(one.file),
                one.first,
                one.last
            )));
        }
        check_order(&order, &how, shown)?;
        Ok((order.files.iter().filter_map(|file| files.get(*file).cloned()).collect(), skipped))
    })
    .await
}

/// Fails if values are there twice, or missing and that is not allowed.
fn check_order<'a>(order: &Order, how: &Appending, shown: impl Fn(usize) -> &'a str) -> Result<()> {
    let lines = |all: &[Between]| -> String {
        let line = |one: &Between| {
            let before = one.after.map_or("the archive", &shown);
            let text = format!("{} begins at {}, and {before} ends at {}", shown(one.file), one.first, one.last);
            format!("  {}\n", printable::line(&text))
        };
        all.iter().take(NAMED).map(line).collect()
    };
    let dimension = printable::line(&how.dimension);
    if !order.overlaps.is_empty() {
        let is_of_archive = order.overlaps.iter().any(|one| one.after.is_none());
        let next = match (is_of_archive, how.skip_existing) {
            (true, false) => "--skip-existing leaves out files whose values are all in the archive.",
            (true, true) => {
                "Only files whose values are all in the archive are left out: remove the values that it has from the \
                 others."
            }
            (false, _) => "Name each file once, and remove the values that another file has.",
        };
        let text = format!(
            "values of {dimension} do not follow those before: nothing was imported\n{}{next}\n",
            lines(&order.overlaps)
        );
        return Err(Error::multi_line(ErrorKind::InvalidInput, &text));
    }
    if !order.gaps.is_empty() && !how.allow_gaps {
        let text = format!(
            "values of {dimension} are missing: nothing was imported\n{}Name the files between, or add --allow-gaps.\n",
            lines(&order.gaps)
        );
        return Err(Error::multi_line(ErrorKind::InvalidInput, &text));
    }
    Ok(())
}
