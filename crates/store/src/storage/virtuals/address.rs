//! Parsing of the locations of virtual chunks, and of prefixes, into a normal form.
//!
//! A location is untrusted text, and its comparison with a prefix decides whether it may be read.
//! Both therefore go through the same parser, which knows one spelling of each place: scheme and
//! host in lower case, the default port omitted, the path decoded once and split into its
//! components. Reads use these components, never the text. A path with an empty component, `.` or
//! `..` is refused: stores take such names literally, file systems and web servers do not, and the
//! check and the read would have to agree.
//!
//! The part after `?` or `#` does not belong to a location, as in the reference implementation.

use std::fmt;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::super::location::{AZURE_HOSTS, Bucket, StorePlace, azure_account};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_base::store_names::Provider;

/// Maximum length of a location, in bytes: the longest key of a store, with each byte spelled by
/// three.
const MAX_LOCATION: usize = 4096;
/// Maximum number of characters of a location that a message repeats.
const SHOWN: usize = 300;
/// Characters of a component that are percent-encoded in a URL.
const ESCAPED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Scheme of a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Local file.
    File,
    /// Amazon S3 and compatible stores.
    S3,
    /// Tigris, which is compatible with S3.
    Tigris,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage.
    Az,
    /// Web server without encryption.
    Http,
    /// Web server with encryption.
    Https,
    /// Container of the repository's configuration, by name.
    Container,
}

/// Address of one object, or of everything below a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    scheme: Scheme,
    /// Bucket, host with its port, `CONTAINER@ACCOUNT`, or the container's name. Empty for files.
    authority: String,
    components: Vec<String>,
}

impl Scheme {
    fn parse(text: &str) -> Option<Scheme> {
        Some(match text.to_ascii_lowercase().as_str() {
            "file" => Scheme::File,
            "s3" | "s3a" => Scheme::S3,
            "tigris" => Scheme::Tigris,
            "gs" | "gcs" => Scheme::Gs,
            "az" | "azure" | "abfs" | "abfss" => Scheme::Az,
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "vcc" => Scheme::Container,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Scheme::File => "file",
            Scheme::S3 => "s3",
            Scheme::Tigris => "tigris",
            Scheme::Gs => "gs",
            Scheme::Az => "az",
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Container => "vcc",
        }
    }
}

/// Quotes `text` for a message: shortened, and without characters that a terminal or a log would
/// interpret.
pub(super) fn quoted(text: &str) -> String {
    let end = text.char_indices().nth(SHOWN).map(|(at, _)| at);
    let shown = printable::line(end.and_then(|end| text.get(..end)).unwrap_or(text));
    if end.is_some() { format!("`{shown}...`") } else { format!("`{shown}`") }
}

impl Address {
    /// Parses the `location` of a reference, which names an object.
    ///
    /// Errors: [`ErrorKind::Corrupt`] if it is no location, [`ErrorKind::Unsupported`] if it is of
    /// a kind that cannot be read, [`ErrorKind::VirtualNotAllowed`] if no permission can cover it.
    pub fn object(location: &str) -> Result<Self> {
        let address =
            Address::parse(location, false).map_err(|e| e.context(format!("location {}", quoted(location))))?;
        if address.components.is_empty() {
            return Err(Error::corrupt(format!("location {}: it does not name an object", quoted(location))));
        }
        Ok(address)
    }

    /// Parses the URL of a prefix that the user gave. A slash at its end makes no difference.
    pub fn prefix(text: &str) -> Result<Self> {
        // The text before `@` may be a password.
        let shown = if text.contains('@') { "of virtual chunks".to_owned() } else { quoted(text) };
        let wrong = |why: &str| Error::invalid(format!("the prefix {shown}: {why}"));
        if text.contains(['?', '#']) {
            return Err(wrong(
                "a location must not have a part after ? or #: in a name, write %3F for ? and %23 for #",
            ));
        }
        Address::parse(text, true).map_err(|error| wrong(&error.to_string()))
    }

    /// Returns the prefix of the local directory `path`, which is absolute.
    pub fn directory(path: &str) -> Result<Self> {
        let mut components = Vec::new();
        for component in path.split('/') {
            match component {
                "" | "." => {}
                ".." => return Err(Error::invalid(format!("{}: a prefix has no `..`", quoted(path)))),
                component => components.push(component.to_owned()),
            }
        }
        Ok(Address { scheme: Scheme::File, authority: String::new(), components })
    }

    fn parse(text: &str, is_prefix: bool) -> Result<Self> {
        if text.len() > MAX_LOCATION {
            return Err(Error::corrupt(format!("it has {} bytes; at most {MAX_LOCATION} are allowed", text.len())));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| Error::corrupt("it is not a valid URL"))?;
        let unknown = || Error::new(ErrorKind::Unsupported, "only file, s3, gs, az, http, https and vcc can be read");
        let scheme = Scheme::parse(scheme).ok_or_else(unknown)?;
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let authority = authority_of(scheme, authority)?;
        Ok(Address { scheme, authority, components: components_of(path, is_prefix)? })
    }

    /// Returns the scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the components of the path.
    pub fn components(&self) -> &[String] {
        &self.components
    }

    /// Returns the container's name, or the host.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the components of `object` below this prefix; `None` if it is not below.
    pub fn rest_of<'a>(&self, object: &'a Address) -> Option<&'a [String]> {
        let same = self.scheme == object.scheme && self.authority == object.authority;
        if same { object.components.strip_prefix(self.components.as_slice()) } else { None }
    }

    /// Returns the address at `rest` below this prefix.
    #[must_use]
    pub fn join(&self, rest: &[String]) -> Self {
        let components = self.components.iter().chain(rest).cloned().collect();
        Address { components, ..self.clone() }
    }

    /// Returns the prefix of the whole bucket, host or container.
    #[must_use]
    pub fn root(&self) -> Self {
        Address { components: Vec::new(), ..self.clone() }
    }

    /// Returns the prefix that directly contains this address.
    #[must_use]
    pub fn parent(&self) -> Self {
        let kept = self.components.split_last().map_or(&[] as &[String], |(_, kept)| kept);
        Address { components: kept.to_vec(), ..self.clone() }
    }

    /// Returns the key of an object in its bucket, or its path on its server or machine, not
    /// percent-encoded.
    pub(super) fn key(&self) -> String {
        self.components.join("/")
    }

    /// Returns the bucket, if the scheme has buckets.
    pub(super) fn place(&self) -> Option<StorePlace> {
        let bucket = |name: &str| Bucket { name: name.to_owned(), prefix: String::new() };
        match self.scheme {
            Scheme::S3 | Scheme::Tigris => Some(StorePlace::S3(bucket(&self.authority))),
            Scheme::Gs => Some(StorePlace::Gcs(bucket(&self.authority))),
            Scheme::Az => match self.authority.split_once('@') {
                Some((container, account)) => Some(StorePlace::Azure(bucket(container), account.parse().ok())),
                None => Some(StorePlace::Azure(bucket(&self.authority), None)),
            },
            Scheme::File | Scheme::Http | Scheme::Https | Scheme::Container => None,
        }
    }

    /// Returns true if the address is a local file.
    pub fn is_file(&self) -> bool {
        self.scheme == Scheme::File
    }

    /// Returns true if the address is on a web server.
    pub fn is_web(&self) -> bool {
        matches!(self.scheme, Scheme::Http | Scheme::Https)
    }

    /// Returns the spelling of a prefix, with a slash at its end.
    pub fn as_prefix(&self) -> String {
        let shown = self.to_string();
        if shown.ends_with('/') { shown } else { shown + "/" }
    }
}

/// Writes the normal form, which is a URL.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.scheme, self.authority.split_once('@')) {
            (Scheme::Az, Some((container, account))) => {
                write!(f, "abfs://{container}@{account}{}/", AZURE_HOSTS.first().unwrap_or(&""))?;
            }
            (Scheme::Container, _) => write!(f, "vcc://{}/", utf8_percent_encode(&self.authority, ESCAPED))?,
            _ => write!(f, "{}://{}/", self.scheme.name(), self.authority)?,
        }
        for (n, component) in self.components.iter().enumerate() {
            let slash = if n == 0 { "" } else { "/" };
            write!(f, "{slash}{}", utf8_percent_encode(component, ESCAPED))?;
        }
        Ok(())
    }
}

fn authority_of(scheme: Scheme, text: &str) -> Result<String> {
    let no_bucket = || Error::corrupt("it does not name a valid bucket");
    let refused = |why: &str| Error::new(ErrorKind::VirtualNotAllowed, why.to_owned());
    match scheme {
        Scheme::File if text.is_empty() || text.eq_ignore_ascii_case("localhost") => Ok(String::new()),
        Scheme::File => Err(refused("it is a file of another machine")),
        Scheme::S3 | Scheme::Tigris => bucket(Provider::S3, text).ok_or_else(no_bucket),
        Scheme::Gs => bucket(Provider::Gcs, text).ok_or_else(no_bucket),
        Scheme::Az => match text.split_once('@') {
            None => bucket(Provider::Azure, text).ok_or_else(no_bucket),
            Some((container, host)) => match (bucket(Provider::Azure, container), azure_account(host)) {
                (Some(container), Some(account)) => Ok(format!("{container}@{account}")),
                _ => Err(no_bucket()),
            },
        },
        Scheme::Http | Scheme::Https => {
            if text.contains('@') {
                return Err(refused(
                    "it has a name or a password in it: set `header` in ICECHUNKFS_VIRTUAL_OPTION instead",
                ));
            }
            let wrong = || Error::corrupt("it does not name a host");
            if text.contains('\\') {
                return Err(wrong());
            }
            let url = url::Url::parse(&format!("{}://{text}/", scheme.name())).map_err(|_| wrong())?;
            let host = url.host_str().filter(|host| !host.is_empty() && url.path() == "/").ok_or_else(wrong)?;
            Ok(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
        }
        Scheme::Container => {
            let name = percent_decode_str(text).decode_utf8().ok().filter(|name| !name.is_empty());
            name.map(|name| name.into_owned()).ok_or_else(|| Error::corrupt("it does not name a container"))
        }
    }
}

/// Returns `text` if it is the name of a bucket by the provider's rule.
fn bucket(provider: Provider, text: &str) -> Option<String> {
    provider.is_bucket(text).then(|| text.to_owned())
}

fn components_of(path: &str, is_prefix: bool) -> Result<Vec<String>> {
    let path = percent_decode_str(path).decode_utf8();
    let path = path.map_err(|_| Error::new(ErrorKind::Unsupported, "its name is not UTF-8"))?;
    let path = if is_prefix { path.strip_suffix('/').unwrap_or(&path) } else { &path };
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let mut components = Vec::new();
    for component in path.split('/') {
        if component.contains('\0') {
            return Err(Error::corrupt("it has a NUL in it"));
        }
        if matches!(component, "" | "." | "..") {
            let why = "it has an empty component, `.` or `..` in its path, which cannot be allowed";
            return Err(Error::new(ErrorKind::VirtualNotAllowed, why));
        }
        components.push(component.to_owned());
    }
    Ok(components)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use proptest::prelude::*;

    fn object(text: &str) -> Address {
        Address::object(text).unwrap()
    }

    fn covers(prefix: &str, location: &str) -> bool {
        let prefix = Address::prefix(prefix).unwrap();
        Address::object(location).is_ok_and(|address| prefix.rest_of(&address).is_some())
    }

    #[test]
    fn a_place_has_one_spelling() {
        for (text, expected) in [
            ("s3://b/a/x.nc", "s3://b/a/x.nc"),
            ("S3://b/a%2Fx.nc?versionId=3", "s3://b/a/x.nc"),
            ("s3a://b/%61/x.nc#part", "s3://b/a/x.nc"),
            ("gcs://b/x", "gs://b/x"),
            ("azure://c/x", "az://c/x"),
            ("ABFSS://c@Acc.dfs.core.windows.net/x", "abfs://c@acc.dfs.core.windows.net/x"),
            ("HTTPS://Example.ORG:443/a", "https://example.org/a"),
            ("http://0x7f.1:8080/a", "http://127.0.0.1:8080/a"),
            ("http://%65xample.org:443/a", "http://example.org:443/a"),
            ("file://LOCALHOST/a/b", "file:///a/b"),
            ("file:///sub%20dir/pi%C3%A8ce%231%3F.bin", "file:///sub%20dir/pi%C3%A8ce%231%3F.bin"),
            ("vcc://Name/a", "vcc://Name/a"),
            ("s3://b/100%", "s3://b/100%25"),
        ] {
            assert_eq!(object(text).to_string(), expected, "{text}");
            assert_eq!(object(expected), object(text), "{text}");
        }
        assert_eq!(object("file:///sub%20dir/pi%C3%A8ce%231%3F.bin").key(), "sub dir/pièce#1?.bin");
    }

    #[test]
    fn prefixes_cover_whole_components() {
        for (prefix, inside) in [
            ("s3://bucket/data", "s3://bucket/data/x"),
            ("s3://bucket/data/", "S3://bucket/d%61ta/x"),
            ("s3://bucket/data/x", "s3://bucket/data/x"),
            ("s3://bucket", "s3://bucket/data/x"),
            ("s3://bucket/", "s3://bucket/data/x"),
            ("https://host", "https://HOST:443/x"),
            ("file:///", "file:///etc/passwd"),
            ("vcc://n", "vcc://n/x"),
        ] {
            assert!(covers(prefix, inside), "{prefix} {inside}");
        }
        for (prefix, outside) in [
            ("s3://bucket/data", "s3://bucket/database"),
            ("s3://bucket/data", "s3://bucket/database/x"),
            ("s3://bucket/data", "s3://bucket/data/../secret"),
            ("s3://bucket/data", "s3://bucket/data/%2e%2e/secret"),
            ("s3://bucket/data", "s3://bucket/data%2F..%2Fsecret"),
            ("s3://bucket/data", "s3://bucket//data/x"),
            ("s3://bucket/data", "s3://bucket/data//x"),
            ("s3://bucket/data", "s3://bucket2/data/x"),
            ("s3://bucket/data", "s3://bucket/d%2561ta/x"),
            ("s3://bucket", "s3://bucket.evil/x"),
            ("s3://bucket", "s3://BUCKET/x"),
            ("s3://bucket", "gs://bucket/x"),
            ("s3://bucket", "tigris://bucket/x"),
            ("az://c", "abfs://c@acc.dfs.core.windows.net/x"),
            ("abfs://c@acc.dfs.core.windows.net/", "abfs://c@other.dfs.core.windows.net/x"),
            ("https://host/a", "http://host/a/x"),
            ("https://host/a", "https://host:8443/a/x"),
            ("https://host/a", "https://host.evil/a/x"),
            ("https://host/a", "https://host@evil/a/x"),
            ("https://host/a", "https://evil\\@host/a/x"),
            ("https://host/a", "https://host/a/./x"),
            ("file:///data", "file:///data2/x"),
            ("file:///data", "file://server/data/x"),
            ("file:///data", "file:////data/x"),
        ] {
            assert!(!covers(prefix, outside), "{prefix} {outside}");
        }
    }

    #[test]
    fn what_is_wrong_has_its_kind() {
        let kind = |text: &str| Address::object(text).unwrap_err().kind();
        for text in
            ["", "x", "/etc/passwd", "file:/x", "s3://", "s3:///x", "s3://b", "s3://b/", "http:///x", "vcc:///x"]
        {
            assert_eq!(kind(text), ErrorKind::Corrupt, "{text}");
        }
        for text in
            ["s3://b b/x", "s3://../x", "s3://a@b/x", "s3://b%2Fc/x", "az://c@host/x", "http://a b/x", "s3://b/a\0"]
        {
            assert_eq!(kind(text), ErrorKind::Corrupt, "{text}");
        }
        assert_eq!(kind(&format!("s3://b/{}", "x".repeat(MAX_LOCATION))), ErrorKind::Corrupt);
        for text in ["ftp://h/x", "memory:///x", "s3://b/%ff", "javascript://x/y"] {
            assert_eq!(kind(text), ErrorKind::Unsupported, "{text}");
        }
        for text in ["s3://b/a/", "s3://b/../x", "file:///a//b", "http://me:secret@h/x", "file://host/x"] {
            assert_eq!(kind(text), ErrorKind::VirtualNotAllowed, "{text}");
        }
        for text in ["s3://b/a?x", "https://me:secret@h/", "s3://", "b/c", "ftp://h", "s3://b/a//"] {
            let error = Address::prefix(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let hostile = Address::object("s3://b/\u{1b}[31m\n/../x").unwrap_err().to_string();
        assert!(!hostile.contains(['\u{1b}', '\n']), "{hostile}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        /// Checks that a location is refused, or has one spelling with the same meaning.
        #[test]
        fn any_text_is_refused_or_has_one_spelling(
            scheme in "(?i)(file|s3|gs|az|abfs|http|https|vcc|ftp)",
            rest in prop_oneof![".{0,60}", "[a-z@:./%\\\\?#2eEfF0-9 -]{0,40}"],
        ) {
            let text = format!("{scheme}://{rest}");
            if let Ok(address) = Address::object(&text) {
                let spelled = address.to_string();
                prop_assert_eq!(&Address::object(&spelled).unwrap(), &address, "{} {}", text, spelled);
                prop_assert!(address.components().iter().all(|name| !matches!(name.as_str(), "" | "." | "..") && !name.contains('/')));
                prop_assert!(!spelled.contains(char::is_whitespace));
                // The address is below its own prefixes, and below no sibling of them.
                for kept in 0..=address.components().len() {
                    let prefix = Address { components: address.components()[..kept].to_vec(), ..address.clone() };
                    prop_assert_eq!(&Address::prefix(&prefix.as_prefix()).unwrap(), &prefix);
                    prop_assert_eq!(prefix.join(prefix.rest_of(&address).unwrap()), address.clone());
                    if let Some(last) = prefix.components.last() {
                        let longer = prefix.parent().join(&[format!("{last}x")]);
                        prop_assert!(longer.rest_of(&address).is_none());
                    }
                }
            }
            let _ = Address::prefix(&text);
        }

        /// Checks that percent-encoding a path does not change its place.
        #[test]
        fn encodings_are_no_way_round(path in "[a-c./]{1,12}", encoded in proptest::collection::vec(any::<bool>(), 12)) {
            let spelled: String = path.bytes().zip(&encoded).map(|(byte, encode)| {
                if *encode { format!("%{byte:02x}") } else { char::from(byte).to_string() }
            }).collect();
            let plain = Address::object(&format!("s3://b/{path}"));
            let spelled = Address::object(&format!("s3://b/{spelled}"));
            prop_assert_eq!(plain.ok(), spelled.ok());
        }
    }
}
