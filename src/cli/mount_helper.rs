//! The helper of mount(8): translates its arguments to those of `icechunkfs mount`.

use std::ffi::OsString;
use std::path::Path;

use crate::error::{Error, Result};

/// Translates the arguments if this program was called as mount(8)'s helper: `mount.icechunkfs REPO MOUNTPOINT
/// [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`. Returns none if it was called by its own name.
pub(crate) fn as_mount_helper(words: &[OsString]) -> Option<Result<Vec<OsString>>> {
    let (name, rest) = words.split_first()?;
    let name = Path::new(name).file_name()?.to_str()?;
    matches!(name, "mount.icechunkfs" | "mount.fuse.icechunkfs").then(|| translate_helper(rest))
}

fn translate_helper(words: &[OsString]) -> Result<Vec<OsString>> {
    let mut out: Vec<OsString> = vec!["icechunkfs".into(), "mount".into()];
    let mut places = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = |words: &mut std::slice::Iter<'_, OsString>| {
            words.next().cloned().ok_or_else(|| Error::invalid(format!("{} needs a value", word.to_string_lossy())))
        };
        match word.to_str() {
            Some("-o") => {
                out.push("-o".into());
                out.push(value(&mut words)?);
            }
            // The type is known, and mount(8) has entered the namespace already.
            Some("-t" | "-N") => drop(value(&mut words)?),
            // "Sloppy" means to ignore unknown options; mount_options implements it.
            Some("-s") => out.extend(["-o".into(), "sloppy".into()]),
            Some("-n") => {}
            Some("-v") => out.push("-v".into()),
            Some("-f") => out.extend(["-o".into(), "fake".into()]),
            Some(option) if option.starts_with('-') && option != "-" => {
                return Err(Error::invalid(format!("unknown option {option} of the mount helper")));
            }
            _ => places.push(word.clone()),
        }
    }
    if places.len() != 2 {
        return Err(Error::invalid("usage: mount.icechunkfs REPO MOUNTPOINT [-o OPTIONS]"));
    }
    // A path that begins with a dash is no option.
    out.push("--".into());
    out.extend(places);
    Ok(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn mount_helpers_words_are_translated() {
        let translated = |text: &str| {
            let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            as_mount_helper(&words).map(|translated| translated.map(|words| words.join(" ".as_ref())))
        };
        assert!(translated("/usr/bin/icechunkfs mount a b").is_none());
        let plain = translated("/sbin/mount.icechunkfs /r /m -n -o rw,tag=v1 -t fuse.icechunkfs").unwrap().unwrap();
        assert_eq!(plain, "icechunkfs mount -o rw,tag=v1 -- /r /m");
        assert!(translated("mount.fuse.icechunkfs /r").unwrap().is_err());
        assert!(translated("mount.icechunkfs /r /m -x").unwrap().is_err());
    }
}
