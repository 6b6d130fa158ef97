//! Names of variables, dimensions and attributes, as NetCDF allows them.

use icu_normalizer::ComposingNormalizerBorrowed;

/// Longest name in bytes. netCDF-C reads those of HDF5 links into 256 (`NC_MAX_NAME`), with a NUL;
/// attributes may have as many there, but then `ncdump` prints nothing of the file.
pub(super) const MAX_NAME: usize = 255;

/// Returns `name` in a form that programs accept: one bad name makes `ncdump` refuse the whole
/// file. None if it is too long, or empty.
pub(super) fn allowed(name: &str) -> Option<String> {
    let normal = ComposingNormalizerBorrowed::new_nfc().normalize(name);
    let plain: String =
        normal.chars().map(|c| if c.is_control() || matches!(c, '/' | '\\') { '_' } else { c }).collect();
    let kept = plain.trim_end_matches(' ');
    let mut name = kept.to_owned();
    name.extend(std::iter::repeat_n('_', plain.len() - kept.len()));
    let first = name.chars().next()?;
    if first.is_ascii() && !first.is_ascii_alphanumeric() && first != '_' {
        name.insert(0, '_');
    }
    (name.len() <= MAX_NAME).then_some(name)
}

/// Prefix of the dataset of a variable that has the name of a dimension that is not its first.
pub(super) const NOT_A_COORDINATE: &str = "_nc4_non_coord_";

/// Replacement of the prefix in names of other things. It is shorter, so that replacing ends.
const NOT_THE_PREFIX: &str = "_nc4_noncoord_";

/// Returns the name of a variable, a dimension or a group: as [`allowed`], and none that NetCDF
/// takes for another.
pub(super) fn allowed_member(name: &str) -> Option<String> {
    allowed(name).map(without_prefix)
}

/// Returns the name of a dimension: `name`, which is allowed, followed by `suffix`. A long name is
/// shortened to make room for it.
pub(super) fn with_suffix(name: &str, suffix: &str) -> String {
    let start = name.floor_char_boundary(MAX_NAME.saturating_sub(suffix.len()));
    without_prefix(format!("{}{suffix}", name.get(..start).unwrap_or_default()))
}

/// Changes what programs would remove from `name`, wherever it is: h5netcdf takes the prefix out of
/// the middle of a name, too.
fn without_prefix(mut name: String) -> String {
    while name.contains(NOT_A_COORDINATE) {
        name = name.replace(NOT_A_COORDINATE, NOT_THE_PREFIX);
    }
    name
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn names_become_such_as_every_program_reads() {
        let cases = [
            ("temperature", "temperature"),
            ("a b", "a b"),
            ("a  ", "a__"),
            ("+x", "_+x"),
            ("a/b\\c", "a_b_c"),
            ("tab\there", "tab_here"),
            ("Größe", "Größe"),
            ("e\u{301}", "é"),
            (" x", "_ x"),
            ("9", "9"),
            ("\u{7f}", "_"),
            (" ", "_"),
        ];
        for (name, wanted) in cases {
            assert_eq!(allowed(name).as_deref(), Some(wanted), "{name:?}");
        }
        assert_eq!(allowed(&"x".repeat(256)), None);
        assert_eq!(allowed(""), None);
    }

    #[test]
    fn no_name_has_the_prefix_of_other_variables() {
        for (name, wanted) in [
            ("_nc4_non_coord_x", "_nc4_noncoord_x"),
            ("a_nc4_non_coord_b", "a_nc4_noncoord_b"),
            ("_nc4_non_coord__nc4_non_coord_", "_nc4_noncoord__nc4_noncoord_"),
            ("_nc4_non_coord_nc4_non_coord_", "_nc4_noncoord_nc4_noncoord_"),
            ("nc4_non_coord_", "nc4_non_coord_"),
        ] {
            assert_eq!(allowed_member(name).as_deref(), Some(wanted));
        }
        assert_eq!(with_suffix("x_nc4_non_coord", "_3"), "x_nc4_noncoord_3");
    }

    #[test]
    fn a_suffix_shortens_long_names() {
        assert!(allowed_member(&"x".repeat(256)).is_none() && allowed_member(&"x".repeat(255)).is_some());
        let shortened = with_suffix(&"é".repeat(127), "_12");
        assert_eq!((shortened.len(), shortened.ends_with("é_12")), (255, true));
        assert_eq!(with_suffix("x", "_12"), "x_12");
    }
}
