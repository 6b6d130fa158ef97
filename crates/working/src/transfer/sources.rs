//! Names of what is imported: paths of this machine, addresses of objects, and patterns of those.

use std::fmt;
use std::path::{Path, PathBuf};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use glob::{MatchOptions, Pattern};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_store::storage::virtuals::VirtualChunks;
use icechunkfs_store::storage::virtuals::address::{Address, Scheme};
use percent_encoding::percent_decode_str;

/// Characters that stand for others in the path of a URL.
const WILD: [char; 3] = ['*', '?', '['];
/// Directories that are listed at the same time.
const LISTED_AT_ONCE: usize = 16;
/// Most objects and directories that a pattern stands for: a list of them takes some 100 MiB.
const MAX_MATCHES: usize = 100_000;
/// A name that begins with a dot is one like others: stores hide nothing.
const MATCHING: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };

/// Name of what is imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceName {
    /// Directory or file of this machine.
    Local(PathBuf),
    /// Object of a store, or file of a web server.
    Object(Address),
    /// Objects whose names below the prefix are as the pattern has them: a pattern of each name.
    Matching(Address, Vec<Pattern>),
}

impl SourceName {
    /// Parses a path or a URL, of which the names may have `*`, `?` and `[...]`.
    ///
    /// Errors: [`ErrorKind::InvalidInput`] if it is no URL of an object.
    pub fn parse(word: &Path) -> Result<Self> {
        let Some((url, (scheme, rest))) = word.to_str().and_then(|url| Some((url, url.split_once("://")?))) else {
            return Ok(SourceName::Local(word.to_owned()));
        };
        let shown = printable::line(url);
        let wrong = |why: &str| Error::invalid(format!("{shown}: {why}"));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains(WILD) {
            return Err(wrong("only names below a bucket may be patterns"));
        }
        if path.is_empty() || path.ends_with('/') {
            return Err(wrong("name files, such as s3://bucket/directory/*.nc"));
        }
        let names: Vec<&str> = path.split('/').collect();
        let is_web = matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https");
        let literal = names.iter().position(|name| name.contains(WILD)).filter(|_| !is_web);
        if url.contains('#') || is_web && url.contains('?') {
            return Err(wrong(
                "a location of chunks must not have a part after ? or #: in a name, write %3F for ? and %23 for #",
            ));
        }
        if literal.is_some() && path.contains("**") {
            return Err(wrong("`**` is not supported: a pattern needs each directory, such as */*.nc"));
        }
        // It names the URL.
        let refused = |error: Error| Error::invalid(error.to_string());
        match literal.and_then(|number| names.split_at_checked(number)) {
            None => {
                let address = Address::object(url).map_err(refused)?;
                match address.scheme() {
                    Scheme::File => Ok(SourceName::Local(Path::new("/").join(address.components().join("/")))),
                    Scheme::Container => Err(wrong("a container is of a repository: name the URL of the file")),
                    _ => Ok(SourceName::Object(address)),
                }
            }
            Some((before, patterns)) => {
                let prefix =
                    Address::prefix(&format!("{scheme}://{authority}/{}", before.join("/"))).map_err(refused)?;
                if prefix.is_file() {
                    return Err(wrong("files of this machine are named by their paths: DIRECTORY/*.nc"));
                }
                let parsed = patterns.iter().map(|name| Pattern::new(&percent_decode_str(name).decode_utf8_lossy()));
                let patterns = parsed.collect::<std::result::Result<_, _>>().map_err(|e| wrong(&e.to_string()))?;
                Ok(SourceName::Matching(prefix, patterns))
            }
        }
    }

    /// Returns the address that has to be allowed for reading it; none for one of this machine.
    pub fn allowed(&self) -> Option<&Address> {
        match self {
            SourceName::Local(_) => None,
            SourceName::Object(address) | SourceName::Matching(address, _) => Some(address),
        }
    }
}

impl From<ImportSource> for SourceName {
    fn from(source: ImportSource) -> Self {
        match source {
            ImportSource::Local(path) => SourceName::Local(path),
            ImportSource::Object(address) => SourceName::Object(address),
        }
    }
}

/// Writes the name as it was given, or the normal form of a URL.
impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceName::Local(path) => path.display().fmt(f),
            SourceName::Object(address) => address.fmt(f),
            SourceName::Matching(prefix, patterns) => {
                let names: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
                write!(f, "{}{}", prefix.as_prefix(), names.join("/"))
            }
        }
    }
}

/// File or directory that is imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ImportSource {
    Local(PathBuf),
    Object(Address),
}

impl ImportSource {
    /// Returns what `names` stand for, in their order.
    ///
    /// Errors: [`ErrorKind::NotFound`] for a pattern that no object has; others as for
    /// [`VirtualChunks::list`].
    pub(super) async fn of(names: &[SourceName], virtuals: &VirtualChunks) -> Result<Vec<Self>> {
        let mut sources = Vec::new();
        for name in names {
            match name {
                SourceName::Local(path) => sources.push(ImportSource::Local(path.clone())),
                SourceName::Object(address) => sources.push(ImportSource::Object(address.clone())),
                SourceName::Matching(prefix, patterns) => {
                    let found = matching(prefix, patterns, virtuals).await?;
                    if found.is_empty() {
                        return Err(Error::new(ErrorKind::NotFound, format!("{name}: no object matches this pattern")));
                    }
                    sources.extend(found.into_iter().map(ImportSource::Object));
                }
            }
        }
        Ok(sources)
    }

    /// Returns the path of one that is on this machine.
    pub(super) fn local(&self) -> Option<&Path> {
        match self {
            ImportSource::Local(path) => Some(path),
            ImportSource::Object(_) => None,
        }
    }
}

impl fmt::Display for ImportSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportSource::Local(path) => path.display().fmt(f),
            ImportSource::Object(address) => address.fmt(f),
        }
    }
}

/// Returns the objects below `prefix` whose names are as `patterns` have them, in the order of
/// their names. Each pattern is looked for among what is directly below those that the one before
/// stands for: nothing else is listed.
async fn matching(prefix: &Address, patterns: &[Pattern], virtuals: &VirtualChunks) -> Result<Vec<Address>> {
    let mut found = vec![prefix.clone()];
    for (number, pattern) in patterns.iter().enumerate() {
        let is_last = number + 1 == patterns.len();
        let look = |above: Address| async move {
            let (directories, objects) = virtuals.list(&above).await?;
            let names = if is_last { objects } else { directories };
            let wanted = names.into_iter().filter(|name| is_match(pattern, name));
            Ok(wanted.map(|name| above.join(&[name])).collect::<Vec<_>>())
        };
        let mut below = Vec::new();
        let mut listings = stream::iter(found.into_iter().map(look)).buffered(LISTED_AT_ONCE);
        while let Some(mut more) = listings.try_next().await? {
            below.append(&mut more);
            if below.len() > MAX_MATCHES {
                let message =
                    format!("{prefix}: the pattern stands for more than {MAX_MATCHES} objects or directories");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        }
        drop(listings);
        found = below;
    }
    found.sort_by(|one, other| one.components().cmp(other.components()));
    Ok(found)
}

fn is_match(pattern: &Pattern, name: &str) -> bool {
    // No location has these.
    !matches!(name, "" | "." | "..") && pattern.matches_with(name, MATCHING)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn parse(word: &str) -> std::result::Result<SourceName, String> {
        SourceName::parse(Path::new(word)).map_err(|error| error.to_string())
    }

    #[test]
    fn names_are_paths_addresses_or_patterns() {
        for (word, shown) in [
            ("a*.nc", "a*.nc"),
            ("file:///data/a%20b.nc", "/data/a b.nc"),
            ("S3://bucket/a b.nc", "s3://bucket/a%20b.nc"),
            ("https://Host/x.nc", "https://host/x.nc"),
            ("https://host/x*.nc", "https://host/x*.nc"),
            ("s3://bucket/x/*.nc", "s3://bucket/x/*.nc"),
            ("gs://bucket/*/[ab]?.nc", "gs://bucket/*/[ab]?.nc"),
        ] {
            assert_eq!(parse(word).unwrap().to_string(), shown);
        }
        assert!(matches!(parse("s3://bucket/x/*.nc"), Ok(SourceName::Matching(..))));
        assert!(matches!(parse("https://host/x*.nc"), Ok(SourceName::Object(_))));
        for (word, why) in [
            ("s3://*/x", "below a bucket"),
            ("s3://bucket", "name files"),
            ("s3://bucket/x/", "name files"),
            ("https://host/x?y=1", "after ?"),
            ("file:///x/*.nc", "by their paths"),
            ("s3://bucket/[a", "[a"),
            ("ftp://host/x", "only file"),
            ("s3://bucket/a/../x", "`..`"),
            ("s3://bucket/a#1.nc", "%23 for #"),
            ("file:///a#1.nc", "%23 for #"),
            ("s3://bucket/**/x.nc", "each directory"),
            ("vcc://name/x.nc", "of a repository"),
        ] {
            assert!(parse(word).unwrap_err().contains(why), "{word}: {:?}", parse(word));
        }
    }

    #[test]
    fn each_name_has_its_own_pattern() {
        let patterns = |word: &str| match parse(word).unwrap() {
            SourceName::Matching(_, patterns) => patterns,
            other => panic!("{other}"),
        };
        let is_one = |pattern: &str, name: &str| {
            let parsed = patterns(&format!("s3://b/x/{pattern}"));
            is_match(parsed.first().unwrap(), name)
        };
        for name in ["d01.nc", "dx9.nc", "d%9.nc"] {
            assert!(is_one("d?[0-9].nc", name), "{name}");
        }
        for name in ["d0a.nc", "D01.nc", "d01.nc4", "."] {
            assert!(!is_one("d?[0-9].nc", name), "{name}");
        }
        // As in the part in front of it, a name may be encoded.
        assert!(is_one("a%20*.nc", "a b.nc") && is_one("*", ".hidden") && !is_one("*", ".."));
        assert_eq!(patterns("s3://b/x/*/y/*.nc").len(), 3);
    }
}
