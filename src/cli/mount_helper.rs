//! The helper of mount(8): translates its arguments to those of `icechunkfs mount`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use icechunkfs_base::error::{Error, Result};

/// Translates the arguments if this program was called as mount(8)'s helper:
/// `mount.icechunkfs REPO MOUNTPOINT [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`. Returns none
/// if it was called by its own name.
///
/// The helper's name may also be the first argument: a package format without symbolic links has a
/// script instead.
pub(crate) fn as_mount_helper(words: &[OsString]) -> Option<Result<Vec<OsString>>> {
    let (name, rest) = words.split_first()?;
    if is_helper(Path::new(name).file_name()?) {
        return Some(translate_helper(rest));
    }
    let (first, rest) = rest.split_first()?;
    is_helper(first).then(|| translate_helper(rest))
}

fn is_helper(name: &OsStr) -> bool {
    name == "mount.icechunkfs" || name == "mount.fuse.icechunkfs"
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
    // mount(8) compares the source with its tables: `mount -a` and a user's `umount` rely on it.
    out.extend(places.first().map(|source| {
        let mut option = OsString::from("--source=");
        option.push(source);
        option
    }));
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
        assert_eq!(plain, "icechunkfs mount -o rw,tag=v1 --source=/r -- /r /m");
        let by_script = translated("/usr/bin/icechunkfs mount.icechunkfs /r /m -o ro").unwrap().unwrap();
        assert_eq!(by_script, "icechunkfs mount -o ro --source=/r -- /r /m");
        assert!(translated("mount.fuse.icechunkfs /r").unwrap().is_err());
        assert!(translated("mount.icechunkfs /r /m -x").unwrap().is_err());
    }
}
