//! Names of variables, dimensions and attributes, as NetCDF allows them.

use icu_normalizer::ComposingNormalizerBorrowed;

/// Longest name in bytes (`NC_MAX_NAME`).
const MAX_NAME: usize = 256;

/// Returns `name` in a form that programs accept: one bad name makes `ncdump` refuse the whole file. None if it is too long, or
/// empty.
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

/// Returns the name of a variable, a dimension or a group: as [`allowed`], and none that NetCDF takes for another.
pub(super) fn allowed_member(name: &str) -> Option<String> {
    let name = allowed(name)?;
    if !name.starts_with(NOT_A_COORDINATE) {
        return Some(name);
    }
    Some(format!("_{name}")).filter(|name| name.len() <= MAX_NAME)
}

#[cfg(test)]
mod tests {
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
        assert_eq!(allowed(&"x".repeat(257)), None);
        assert_eq!(allowed(""), None);
        assert_eq!(allowed_member("_nc4_non_coord_x").as_deref(), Some("__nc4_non_coord_x"));
    }
}
