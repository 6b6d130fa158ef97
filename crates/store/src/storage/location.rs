//! Parsing of the name of a repository into its place.
//!
//! | name | place |
//! |---|---|
//! | `/data/repo`, `repo`, `file:///data/repo` | a local directory |
//! | `s3://bucket/prefix` | Amazon S3 and compatible stores |
//! | `gs://bucket/prefix` | Google Cloud Storage |
//! | `az://container/prefix`, `abfs://container@account.dfs.core.windows.net/prefix` | Azure Blob Storage |
//! | `https://host/path` | any web server, read-only |
//!
//! Prefixes are not decoded, since a key may have any characters. Secrets in the name (a password
//! before `@`) are never shown.

use std::path::{Path, PathBuf};

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::store_names::{Account, Provider};

/// Suffixes of the hosts of Azure accounts.
pub(super) const AZURE_HOSTS: [&str; 2] = [".dfs.core.windows.net", ".blob.core.windows.net"];

/// Place of a repository, with its name for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Place of the repository.
    pub place: StorePlace,
    /// Name in messages and `/proc/mounts`: the user's text, made absolute, without secrets.
    pub shown: String,
}

/// Place of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// Local directory.
    Local(PathBuf),
    /// Part of a bucket of Amazon S3 or a compatible store.
    S3(Bucket),
    /// Part of a bucket of Google Cloud Storage.
    Gcs(Bucket),
    /// Part of a container of Azure Blob Storage, with its account if the name contains it.
    Azure(Bucket, Option<Account>),
    /// Everything below a URL.
    Web(url::Url),
}

/// Part of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Name of the bucket.
    pub name: String,
    /// Prefix of every key, without slashes around it; empty for the whole bucket.
    pub prefix: String,
}

impl StorePlace {
    /// Returns true if `other` is the same place in another spelling. Symbolic links are not
    /// followed. A container of Azure without an account, which the settings name, can be that of
    /// any account.
    pub fn is_same(&self, other: &StorePlace) -> bool {
        let is_same_prefix = match (self.bucket(), other.bucket()) {
            (Some(one), Some(another)) => one.prefix == another.prefix,
            _ => true,
        };
        is_same_prefix && self.is_in_same_store(other)
    }

    /// Returns true if `other` is in the same bucket, or is the same directory or URL.
    pub fn is_in_same_store(&self, other: &StorePlace) -> bool {
        match (self, other) {
            (StorePlace::S3(one), StorePlace::S3(another)) | (StorePlace::Gcs(one), StorePlace::Gcs(another)) => {
                one.name == another.name
            }
            (StorePlace::Azure(one, account), StorePlace::Azure(another, other_account)) => {
                let may_be_same = account.is_none() || other_account.is_none() || account == other_account;
                one.name == another.name && may_be_same
            }
            (one, another) => one == another,
        }
    }

    fn bucket(&self) -> Option<&Bucket> {
        match self {
            StorePlace::S3(bucket) | StorePlace::Gcs(bucket) | StorePlace::Azure(bucket, _) => Some(bucket),
            StorePlace::Local(_) | StorePlace::Web(_) => None,
        }
    }

    /// Returns a name that distinguishes the bucket's store from other stores; `None` for a place
    /// without a bucket.
    pub fn store(&self) -> Option<String> {
        match self {
            StorePlace::Local(_) | StorePlace::Web(_) => None,
            StorePlace::S3(bucket) => Some(format!("s3://{}", bucket.name)),
            StorePlace::Gcs(bucket) => Some(format!("gs://{}", bucket.name)),
            StorePlace::Azure(bucket, account) => {
                Some(format!("az://{}@{}", bucket.name, account.as_ref().map(Account::as_str).unwrap_or_default()))
            }
        }
    }
}

impl Location {
    /// Parses `words`, a path or a URL.
    pub fn parse(words: &str) -> Result<Self> {
        let Some((scheme, rest)) = words.split_once("://") else { return local(words) };
        let shown = || words.trim_end_matches('/').to_owned();
        let place = match scheme.to_ascii_lowercase().as_str() {
            "file" => {
                let path = url::Url::parse(words).ok().and_then(|url| url.to_file_path().ok());
                let wrong =
                    || Error::invalid(format!("`{words}` is not a URL of a local directory: write file:///path"));
                return Ok(Location { place: StorePlace::Local(path.ok_or_else(wrong)?), shown: words.to_owned() });
            }
            "s3" | "s3a" => StorePlace::S3(bucket(words, rest, Provider::S3)?),
            "gs" | "gcs" => StorePlace::Gcs(bucket(words, rest, Provider::Gcs)?),
            "az" | "azure" | "abfs" | "abfss" => azure(words, rest)?,
            "http" | "https" => return web(words),
            _ => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "`{words}`: repositories are paths, or URLs that begin with file, s3, gs, az, abfs, http or https"
                    ),
                ));
            }
        };
        Ok(Location { place, shown: shown() })
    }

    /// Returns the URL of a store that `words`, a path, is but for forgotten signs; none if it is
    /// not like one.
    pub fn url_meant_by(words: &str) -> Option<String> {
        let at = words.find([':', '/'])?;
        let (scheme, rest) = words.split_at(at);
        if let Some(path) = words.strip_prefix("file:").filter(|path| !path.starts_with("//")) {
            return url::Url::from_file_path(std::path::absolute(path).ok()?).ok().map(String::from);
        }
        // A directory may have the name of a scheme.
        if !(rest.starts_with(':') || rest.starts_with("//")) || rest.starts_with("://") {
            return None;
        }
        let meant = format!("{scheme}://{}", rest.trim_start_matches([':', '/']));
        let is_of_store = |location: &Location| !matches!(location.place, StorePlace::Local(_));
        Location::parse(&meant).ok().filter(is_of_store).map(|_| meant)
    }
}

fn local(words: &str) -> Result<Location> {
    if words.is_empty() {
        return Err(Error::invalid("the repository's name is empty"));
    }
    let path = std::path::absolute(words).map_err(|e| Error::io(words, e))?;
    let shown = path.to_str().map(str::to_owned).unwrap_or_else(|| Path::new(words).to_string_lossy().into_owned());
    Ok(Location { place: StorePlace::Local(path), shown })
}

fn bucket(words: &str, rest: &str, provider: Provider) -> Result<Bucket> {
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    // The text before `@` may be a password.
    if name.contains('@') {
        return Err(Error::invalid(
            "the repository's URL has an `@` in the place of the bucket: expected SCHEME://BUCKET/PREFIX",
        ));
    }
    if !provider.is_bucket(name) {
        return Err(Error::invalid(format!("`{words}` does not name a bucket: expected SCHEME://BUCKET/PREFIX")));
    }
    Ok(Bucket { name: name.to_owned(), prefix: prefix.trim_matches('/').to_owned() })
}

/// Returns the account whose host is `host`; `None` if the host is not one of Azure's.
pub(super) fn azure_account(host: &str) -> Option<Account> {
    let host = host.to_ascii_lowercase();
    AZURE_HOSTS.iter().find_map(|end| host.strip_suffix(end))?.parse().ok()
}

fn azure(words: &str, rest: &str) -> Result<StorePlace> {
    let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let (container, host) = match authority.split_once('@') {
        Some((container, host)) => (container, Some(host)),
        None => (authority, None),
    };
    let wrong = |expected: &str| Error::invalid(format!("`{words}` does not name a container: expected {expected}"));
    let account = host
        .map(|host| azure_account(host).ok_or_else(|| wrong("abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX")));
    let account = account.transpose()?;
    if !Provider::Azure.is_bucket(container) {
        return Err(wrong("az://CONTAINER/PREFIX"));
    }
    Ok(StorePlace::Azure(Bucket { name: container.to_owned(), prefix: prefix.trim_matches('/').to_owned() }, account))
}

fn web(words: &str) -> Result<Location> {
    // The invalid part may be secret, so the text is not repeated.
    let wrong = |why: &str| Error::invalid(format!("the repository's URL {why}"));
    let mut url = url::Url::parse(words).map_err(|error| wrong(&format!("is not valid ({error})")))?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong(
            "has a part after ? or #, which cannot be added to every object: set ICECHUNKFS_HEADER if the server \
             accepts that",
        ));
    }
    if url.password().is_some() {
        return Err(wrong(
            "has a password in it, which every user of this machine can read. Keep only the name before `@`, and set \
             ICECHUNKFS_PASSWORD, or `password = ...` in the file of --secrets FILE",
        ));
    }
    let path = format!("{}/", url.path().trim_end_matches('/'));
    url.set_path(&path);
    let mut shown = url.clone();
    if shown.set_username("").is_err() || shown.set_password(None).is_err() {
        return Err(wrong("has no host"));
    }
    Ok(Location { place: StorePlace::Web(url), shown: shown.as_str().trim_end_matches('/').to_owned() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn place(words: &str) -> StorePlace {
        Location::parse(words).unwrap().place
    }

    fn in_bucket(name: &str, prefix: &str) -> Bucket {
        Bucket { name: name.into(), prefix: prefix.into() }
    }

    #[test]
    fn directories_are_paths_and_file_urls() {
        assert_eq!(Location::parse("/a/b c").unwrap().shown, "/a/b c");
        assert_eq!(place("file:///a/b%20c"), StorePlace::Local("/a/b c".into()));
        assert!(matches!(place("x"), StorePlace::Local(path) if path.is_absolute()));
        assert_eq!(Location::parse("").unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(Location::parse("ftp://host/x").unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn buckets_have_prefixes_as_they_are_written() {
        assert_eq!(place("s3://b/p/q/"), StorePlace::S3(in_bucket("b", "p/q")));
        assert_eq!(place("s3://b"), StorePlace::S3(in_bucket("b", "")));
        assert_eq!(place("S3://b/a%20b c"), StorePlace::S3(in_bucket("b", "a%20b c")));
        assert_eq!(place("gs://b/p"), StorePlace::Gcs(in_bucket("b", "p")));
        assert_eq!(place("az://c/p"), StorePlace::Azure(in_bucket("c", "p"), None));
        assert_eq!(
            place("abfss://c@acc.dfs.core.windows.net/p"),
            StorePlace::Azure(in_bucket("c", "p"), "acc".parse().ok())
        );
        assert_eq!(Location::parse("s3://b/p/").unwrap().shown, "s3://b/p");
        for wrong in [
            "s3://",
            "s3:///p",
            "gs://",
            "az:///x",
            "abfs://c@/p",
            "abfs://c@acc.evil.example/p",
            "s3://key:secret@b/p",
        ] {
            assert!(Location::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_place_has_several_spellings() {
        for (one, another) in [
            ("s3://b/p", "s3a://b/p"),
            ("s3://b/p", "S3://b//p/"),
            ("gs://b/p", "gcs://b/p"),
            ("az://c/p", "azure://c/p/"),
            ("az://c/p", "abfss://c@acc.dfs.core.windows.net/p"),
            ("abfs://c@acc.dfs.core.windows.net/p", "abfss://c@acc.blob.core.windows.net//p"),
            ("/a/b", "file:///a/b"),
        ] {
            assert!(place(one).is_same(&place(another)) && place(another).is_same(&place(one)), "{one} {another}");
        }
        for (one, another) in [
            ("s3://b/p", "s3://b/p/q"),
            ("s3://b/p", "s3://c/p"),
            ("s3://b/p", "gs://b/p"),
            ("abfs://c@acc.dfs.core.windows.net/p", "abfs://c@other.dfs.core.windows.net/p"),
            ("/a/b", "/a"),
        ] {
            assert!(!place(one).is_same(&place(another)), "{one} {another}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(place("https://host/data/repo"), place("https://host/data/repo//"));
        let location = Location::parse("https://user@host:8080/data/repo").unwrap();
        assert_eq!(location.shown, "https://host:8080/data/repo");
        assert!(
            matches!(location.place, StorePlace::Web(url) if url.username() == "user" && url.path() == "/data/repo/")
        );
        for text in ["https://host/repo?token=hidden", "https://user:hidden@host/repo", "s3://key:hidden@b/p"] {
            let wrong = Location::parse(text).unwrap_err();
            assert!(!wrong.to_string().contains("hidden"), "{wrong}");
        }
    }
}
