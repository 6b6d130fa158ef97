//! Hides what is secret in this process's command line, which every user of the machine can read in `/proc/PID/cmdline`.
//!
//! The words have been read by then; the kernel shows the memory that they were in. It is overwritten through
//! `/proc/self/mem`. Where that cannot be done, they show as long as the process lives, and a warning says so: the environment
//! is the better place for them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::storage::settings::Settings;

/// The option whose value is `PREFIX,KEY=VALUE`.
const VIRTUAL_OPTION: &[u8] = b"virtual-option";
/// What stands in the place of every byte of a secret.
const MASK: u8 = b'x';

/// Overwrites secrets in the command line.
pub fn hide() {
    let Some(range) = arguments_in_memory() else { return };
    let memory = File::options().read(true).write(true).open("/proc/self/mem");
    let Ok(memory) = memory else { return };
    let Ok(length) = usize::try_from(range.end.saturating_sub(range.start)) else { return };
    let mut words = vec![0; length];
    if memory.read_exact_at(&mut words, range.start).is_err() {
        return;
    }
    let Some(masked) = mask(&words) else { return };
    if let Err(error) = memory.write_all_at(&masked, range.start) {
        tracing::warn!("a secret on the command line shows in /proc ({error}): say it in the environment instead");
    }
}

/// Where the kernel takes `/proc/self/cmdline` from.
fn arguments_in_memory() -> Option<std::ops::Range<u64>> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, the program's name in parentheses, may have spaces; `arg_start` and `arg_end` are fields 48 and 49.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(45);
    let (start, end) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(start..end)
}

/// `words`, each ended by NUL, without secrets; none if there are none.
fn mask(words: &[u8]) -> Option<Vec<u8>> {
    let mut masked = words.to_vec();
    let (mut begin, mut expected, mut setting_expected) = (0, false, false);
    let mut options = false;
    for word in words.split(|byte| *byte == 0) {
        let end = begin + word.len();
        if expected {
            cover(&mut masked, begin..end);
            expected = false;
        } else if setting_expected {
            cover_setting(&mut masked, begin, word);
            setting_expected = false;
        } else if let Some(rest) = word.strip_prefix(b"--") {
            let name_end = rest.iter().position(|byte| *byte == b'=').unwrap_or(rest.len());
            if is_secret(rest.get(..name_end)) {
                cover(&mut masked, begin + 2 + name_end + 1..end);
                expected = name_end == rest.len();
            } else if rest.get(..name_end) == Some(VIRTUAL_OPTION) {
                cover_setting(&mut masked, begin + 2 + name_end + 1, rest.get(name_end + 1..).unwrap_or_default());
                setting_expected = name_end == rest.len();
            }
        } else if options || word.starts_with(b"-o") {
            let skip = if options { 0 } else { 2 };
            cover_options(&mut masked, begin + skip, word.get(skip..).unwrap_or_default());
            options = !options && word.len() == 2;
        } else {
            cover_password(&mut masked, begin, word);
        }
        begin = end + 1;
    }
    (masked != words).then_some(masked)
}

fn is_secret(name: Option<&[u8]>) -> bool {
    name.and_then(|name| std::str::from_utf8(name).ok()).is_some_and(Settings::is_secret)
}

fn cover(words: &mut [u8], range: std::ops::Range<usize>) {
    if let Some(part) = words.get_mut(range) {
        part.fill(MASK);
    }
}

fn cover_options(words: &mut [u8], begin: usize, list: &[u8]) {
    let mut at = begin;
    for option in list.split(|byte| *byte == b',') {
        let name_end = option.iter().position(|byte| *byte == b'=').unwrap_or(option.len());
        if is_secret(option.get(..name_end)) {
            cover(words, at + name_end + 1..at + option.len());
        }
        at += option.len() + 1;
    }
}

/// `PREFIX,KEY=VALUE`
fn cover_setting(words: &mut [u8], begin: usize, word: &[u8]) {
    let Some(comma) = word.iter().position(|byte| *byte == b',') else { return };
    let setting = word.get(comma + 1..).unwrap_or_default();
    let Some(name_end) = setting.iter().position(|byte| *byte == b'=') else { return };
    if is_secret(setting.get(..name_end)) {
        cover(words, begin + comma + 1 + name_end + 1..begin + word.len());
    }
}

/// `scheme://user:password@host`
fn cover_password(words: &mut [u8], begin: usize, word: &[u8]) {
    let Some(scheme) = word.windows(3).position(|part| part == b"://") else { return };
    let authority = word.get(scheme + 3..).unwrap_or_default();
    let authority = authority.split(|byte| *byte == b'/').next().unwrap_or_default();
    let Some(at) = authority.iter().rposition(|byte| *byte == b'@') else { return };
    let Some(colon) = authority.get(..at).and_then(|user| user.iter().position(|byte| *byte == b':')) else { return };
    cover(words, begin + scheme + 3 + colon + 1..begin + scheme + 3 + at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_covered_and_nothing_else() {
        let masked = |words: &str| {
            mask(words.replace(' ', "\0").as_bytes()).map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "))
        };
        assert_eq!(masked("icechunkfs mount s3://b/p /m --region eu "), None);
        let words =
            "icechunkfs mount --secret-access-key abc --account-key=def -o ro,sas_token=gh,tag=v -osession_token=i x ";
        let covered =
            "icechunkfs mount --secret-access-key xxx --account-key=xxx -o ro,sas_token=xx,tag=v -osession_token=x x ";
        assert_eq!(masked(words).as_deref(), Some(covered));
        let words = "icechunkfs ls https://me:pass@host/a@b ";
        assert_eq!(masked(words).as_deref(), Some("icechunkfs ls https://me:xxxx@host/a@b "));
        assert_eq!(masked("icechunkfs ls abfs://c@a.dfs/x:y@z "), None);
        assert_eq!(masked("icechunkfs ls r --secret-access-key"), None);
        let words = "icechunkfs cat r --virtual-option s3://b,account_key=ab --virtual-option=s3://b,header=c:d x ";
        let covered = "icechunkfs cat r --virtual-option s3://b,account_key=xx --virtual-option=s3://b,header=xxx x ";
        assert_eq!(masked(words).as_deref(), Some(covered));
        let words = "icechunkfs mount r m -o virtual_option=s3://b\\,sas_token=ab,ro ";
        assert_eq!(masked(words).as_deref(), Some("icechunkfs mount r m -o virtual_option=s3://b\\,sas_token=xx,ro "));
        assert_eq!(masked("icechunkfs cat r --virtual-option s3://b,region=eu "), None);
    }

    #[test]
    fn the_kernel_says_where_the_words_are() {
        let range = arguments_in_memory().unwrap_or_default();
        let length = std::fs::read("/proc/self/cmdline").map(|words| words.len() as u64).unwrap_or_default();
        assert!(length > 0);
        assert_eq!(range.end - range.start, length);
    }
}
