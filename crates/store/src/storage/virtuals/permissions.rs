//! Options of the user for virtual chunks: which may be read, from where instead, and how their
//! stores are reached.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::address::{Address, Scheme, quoted};
use super::files::path_of;
use crate::storage::secrets::Secrets;
use crate::storage::settings::{Settings, Source};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};

/// Settings that do not apply to virtual chunks, since they are about the repository as a whole.
const NOT_FOR_VIRTUAL: [&str; 5] = ["cache", "cache-size", "offline", "upload-limit", "unsafe-single-writer"];
/// Option that disables checksums. It is no setting of a store.
const UNCHECKED: &str = "unchecked";

/// Options of the user for virtual chunks.
#[derive(Clone, Debug, Default)]
pub struct Permissions {
    allowed: Vec<ReadablePrefix>,
    /// Prefixes of locations, and where they are read instead.
    maps: Vec<(Address, ReadablePrefix)>,
    options: Vec<PrefixOption>,
}

/// Prefix below which objects may be read.
#[derive(Clone, Debug)]
struct ReadablePrefix {
    prefix: Address,
    /// Directory, for a local prefix.
    root: Option<Arc<Path>>,
}

#[derive(Clone, Debug)]
struct PrefixOption {
    prefix: Address,
    settings: Settings,
    unchecked: bool,
}

/// ReadablePrefix from which an allowed location is read.
#[derive(Clone, Debug)]
pub(super) struct ReadTarget {
    /// Address of the place, which is the location itself unless it was mapped.
    pub(super) address: Address,
    /// Directory and the path below it, for a local file.
    pub(super) file: Option<(Arc<Path>, Vec<String>)>,
    /// True if the user mapped the location to another place.
    pub(super) is_mapped: bool,
}

impl Permissions {
    /// Parses the options of the command line: prefixes, `FROM=TO`, and `PREFIX,KEY=VALUE`.
    /// `environment` is more `option`s, over which the command line takes precedence, and which may
    /// contain secrets.
    pub fn parse(allow: &[String], map: &[String], option: &[String], environment: &[String]) -> Result<Self> {
        let allowed = allow.iter().map(|word| parse_allowed(word).context(|| "--allow-virtual"));
        let maps = map.iter().map(|word| parse_map(word).context(|| "--virtual-map"));
        let mut options = parse_options(option, Source::CommandLine).context(|| "--virtual-option")?;
        options.extend(parse_options(environment, Source::Environment).context(|| "ICECHUNKFS_VIRTUAL_OPTION")?);
        // The sort is stable: of two options with the same prefix, the command line's comes first.
        options.sort_by_key(|option| Reverse(option.prefix.components().len()));
        Ok(Permissions { allowed: allowed.collect::<Result<_>>()?, maps: maps.collect::<Result<_>>()?, options })
    }

    /// Allows also what lies at `address` or below, which the user has named; not on this machine.
    #[must_use]
    pub fn allowing(mut self, address: &Address) -> Self {
        if !address.is_file() {
            self.allowed.push(ReadablePrefix { prefix: address.clone(), root: None });
        }
        self
    }

    /// Returns the place from which `address` is read, if it may be read. The longest prefix
    /// decides.
    pub(super) fn find(&self, address: &Address) -> Option<ReadTarget> {
        let rest = |prefix: &Address| prefix.rest_of(address).map(<[String]>::to_vec);
        let maps = self.maps.iter().filter_map(|(from, to)| Some((to, rest(from)?, true)));
        let allowed = self.allowed.iter().filter_map(|allowed| Some((allowed, rest(&allowed.prefix)?, false)));
        // Of two equal prefixes, that of a map counts.
        let best = maps.chain(allowed).max_by_key(|(_, rest, is_mapped)| (Reverse(rest.len()), *is_mapped));
        best.map(|(place, rest, is_mapped)| {
            let address = if is_mapped { place.prefix.join(&rest) } else { address.clone() };
            ReadTarget { address, file: place.root.clone().map(|root| (root, rest)), is_mapped }
        })
    }

    fn places(&self) -> impl Iterator<Item = &ReadablePrefix> {
        self.allowed.iter().chain(self.maps.iter().map(|(_, to)| to))
    }

    /// Returns true if a server may redirect to `address`.
    pub(super) fn allows_redirect(&self, address: &Address) -> bool {
        self.places().any(|place| place.root.is_none() && place.prefix.rest_of(address).is_some())
    }

    /// Returns the directories into which a link in another directory may lead. Targets of maps are
    /// not among them.
    pub(super) fn roots(&self) -> Vec<Arc<Path>> {
        self.allowed.iter().filter_map(|allowed| allowed.root.clone()).collect()
    }

    /// Returns the user's settings for `address`; those of a longer prefix take precedence.
    pub(super) fn settings(&self, address: &Address) -> Settings {
        self.options_for(address).fold(Settings::default(), |said, option| said.or(option.settings.clone()))
    }

    /// Returns the prefixes of the options for `address`: two places with the same ones are reached
    /// the same way.
    pub(super) fn options_of(&self, address: &Address) -> Vec<String> {
        self.options_for(address).map(|option| option.prefix.to_string()).collect()
    }

    /// Returns true if the checksums of references to `address` are ignored.
    pub(super) fn is_unchecked(&self, address: &Address) -> bool {
        self.options_for(address).any(|option| option.unchecked)
    }

    fn options_for(&self, address: &Address) -> impl Iterator<Item = &PrefixOption> {
        self.options.iter().filter(|option| option.prefix.rest_of(address).is_some())
    }

    /// Returns true if anything may be read that is not on this machine.
    pub(super) fn has_remote(&self) -> bool {
        self.places().any(|place| place.root.is_none())
    }

    /// Returns true if nothing may be read.
    pub fn is_empty(&self) -> bool {
        self.allowed.is_empty() && self.maps.is_empty()
    }
}

impl ReadablePrefix {
    /// Parses the place `word`; none if it is a container, which has no place of its own.
    fn parse(word: &str) -> Result<Option<Self>> {
        let prefix = prefix_or_path(word)?;
        let root = prefix.is_file().then(|| Arc::from(path_of(prefix.components())));
        Ok(Some(ReadablePrefix { prefix, root }).filter(|place| place.prefix.scheme() != Scheme::Container))
    }
}

fn parse_allowed(word: &str) -> Result<ReadablePrefix> {
    let why = "the repository states where a container is: allow that location, or replace it with --virtual-map";
    ReadablePrefix::parse(word)?.ok_or_else(|| Error::invalid(format!("{}: {why}", quoted(word))))
}

fn parse_map(word: &str) -> Result<(Address, ReadablePrefix)> {
    let shape = || {
        let why = "expected FROM=TO: the prefix of locations, and the path or URL where they are to be read";
        Error::invalid(format!("{}: {why}", quoted(word)))
    };
    // An `=` in FROM is written %3D, so that the first `=` ends FROM.
    let (from, to) = word.split_once('=').filter(|(from, to)| !from.is_empty() && !to.is_empty()).ok_or_else(shape)?;
    let to = ReadablePrefix::parse(to)?.ok_or_else(shape)?;
    Ok((prefix_or_path(from)?, to))
}

/// Parses a prefix of the user: a URL, or a local path.
///
/// Errors: [`ErrorKind::InvalidInput`] if it is neither.
pub fn prefix_or_path(word: &str) -> Result<Address> {
    if word.contains("://") {
        return Address::prefix(word);
    }
    if word.is_empty() {
        return Err(Error::invalid("the prefix is empty"));
    }
    let path: PathBuf = std::path::absolute(word).map_err(|e| Error::io(word, e))?;
    let path = path.to_str().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "the path is not UTF-8"))?;
    Address::directory(path)
}

fn parse_options(words: &[String], source: Source) -> Result<Vec<PrefixOption>> {
    let mut options: Vec<(Address, Vec<String>)> = Vec::new();
    for word in words {
        // The text after the comma may be a secret. A comma in PREFIX is written %2C.
        let (prefix, setting) = word.split_once(',').filter(|(_, setting)| !setting.is_empty()).ok_or_else(|| {
            Error::invalid(
                "expected PREFIX,KEY=VALUE, where KEY is as in --region or --endpoint-url, or PREFIX,unchecked",
            )
        })?;
        let prefix = prefix_or_path(prefix)?;
        match options.iter_mut().find(|(known, _)| *known == prefix) {
            Some((_, settings)) => settings.push(setting.to_owned()),
            None => options.push((prefix, vec![setting.to_owned()])),
        }
    }
    let mut parsed = Vec::new();
    for (prefix, mut words) in options {
        for name in words.iter().filter_map(|word| word.split('=').next()) {
            let name = name.replace('_', "-");
            if source == Source::CommandLine && Secrets::is_secret(&name) {
                return Err(Error::invalid(format!(
                    "{}: {name}: a secret on a command line can be read by every user of this machine. Set \
                     ICECHUNKFS_VIRTUAL_OPTION, or name a file like that of --secrets with --virtual-option \
                     PREFIX,secrets=FILE",
                    prefix.as_prefix(),
                )));
            }
            if name != UNCHECKED && (!Settings::is_setting(&name) || NOT_FOR_VIRTUAL.contains(&name.as_str())) {
                return Err(Error::invalid(format!(
                    "{}: object stores do not have the setting {}",
                    prefix.as_prefix(),
                    quoted(&name)
                )));
            }
        }
        let all = words.len();
        words.retain(|word| word != UNCHECKED);
        let unchecked = words.len() < all;
        let settings = Settings::parse(&words, source).and_then(Settings::with_secrets_of_file);
        let settings = settings.context(|| prefix.as_prefix())?;
        parsed.push(PrefixOption { prefix, settings, unchecked });
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    fn permissions(allow: &[&str], map: &[&str], option: &[&str]) -> Result<Permissions> {
        Permissions::parse(&words(allow), &words(map), &words(option), &[])
    }

    fn found(permissions: &Permissions, location: &str) -> Option<String> {
        permissions.find(&Address::object(location).unwrap()).map(|found| found.address.to_string())
    }

    #[test]
    fn nothing_is_allowed_that_nobody_allowed() {
        let none = Permissions::default();
        assert!(none.is_empty() && !none.has_remote());
        assert_eq!(found(&none, "s3://b/x"), None);
        let some = permissions(&["s3://b/data", "/srv/nc"], &[], &[]).unwrap();
        assert_eq!(found(&some, "s3://b/data/x").as_deref(), Some("s3://b/data/x"));
        assert_eq!(found(&some, "file:///srv/nc/x").as_deref(), Some("file:///srv/nc/x"));
        for location in ["s3://b/x", "s3://b/database/x", "file:///srv/ncx/y", "gs://b/data/x", "vcc://b/data/x"] {
            assert_eq!(found(&some, location), None, "{location}");
        }
        assert!(some.has_remote() && !permissions(&["/srv"], &["s3://b=/d"], &[]).unwrap().has_remote());
    }

    #[test]
    fn the_longest_prefix_decides() {
        let all = permissions(
            &["s3://b", "s3://b/data/new"],
            &["s3://b/data=/copy", "s3://b/data/old/=gs://archive/p", "vcc://c=/copy/c", "file:///a%3Db=https://h/p"],
            &[],
        )
        .unwrap();
        for (location, expected) in [
            ("s3://b/x", "s3://b/x"),
            ("s3://b/data/x", "file:///copy/x"),
            ("s3://b/data/old/x", "gs://archive/p/x"),
            ("s3://b/data/new/x", "s3://b/data/new/x"),
            ("vcc://c/x/y", "file:///copy/c/x/y"),
            ("file:///a=b/x", "https://h/p/x"),
        ] {
            assert_eq!(found(&all, location).as_deref(), Some(expected), "{location}");
        }
        // The target of a map may be read by its own name only if it is allowed.
        assert_eq!(found(&all, "file:///copy/x"), None);
        let redirect = |location: &str| all.allows_redirect(&Address::object(location).unwrap());
        assert!(redirect("https://h/p/y") && !redirect("https://h/q") && !redirect("file:///copy/x"));
    }

    #[test]
    fn settings_go_by_prefix() {
        let all = permissions(
            &[],
            &[],
            &[
                "s3://b,region=eu",
                "s3://b/x,region=us",
                "s3://b,access_key_id=k",
                "s3://b/x/y,unchecked",
                "/d,unchecked",
            ],
        )
        .unwrap();
        let settings = |location: &str| all.settings(&Address::object(location).unwrap());
        assert_eq!(settings("s3://b/a").region, "eu".parse().ok());
        let inner = settings("s3://b/x/a");
        assert_eq!((inner.region, inner.access_key_id.as_deref()), ("us".parse().ok(), Some("k")));
        assert_eq!(settings("s3://c/x").region, None);
        let unchecked = |location: &str| all.is_unchecked(&Address::object(location).unwrap());
        assert!(unchecked("s3://b/x/y/z") && unchecked("file:///d/e") && !unchecked("s3://b/x/z"));
        assert_eq!(all.options_of(&Address::object("s3://b/x/a").unwrap()), ["s3://b/x", "s3://b/"]);
    }

    #[test]
    fn wrong_words_are_told_and_no_secret_is() {
        for (allow, map, option) in [
            ("vcc://x/", "", ""),
            ("s3://", "", ""),
            ("s3://b/../c", "", ""),
            ("", "s3://b", ""),
            ("", "s3://b=", ""),
            ("", "=/x", ""),
            ("", "s3://b=vcc://x/", ""),
            ("", "", "s3://b"),
            ("", "", "s3://b,"),
            ("", "", "s3://b,colour=hidden"),
            ("", "", "s3://b,cache=hidden"),
            ("", "", "s3://b,offline"),
            ("", "", "s3://b,timeout=hidden"),
            ("", "", "secret_access_key=hidden"),
        ] {
            let given = |word: &'static str| if word.is_empty() { vec![] } else { vec![word] };
            let error = permissions(&given(allow), &given(map), &given(option)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{allow} {map} {option}: {error}");
            assert!(!error.to_string().contains("hidden"), "{error}");
        }
    }
}
