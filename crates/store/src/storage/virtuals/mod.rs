//! Virtual chunks: their locations, the permission to read them, and their bytes.
//!
//! A reference may name any URL, so that an untrusted repository could have this machine read any
//! file, and send requests to any server of its network. Nothing is therefore read that the user
//! did not allow ([`permissions`]) by a prefix on the command line ([`address`]); the repository's
//! own configuration describes at most how a store is reached, and gets no credentials of this
//! machine for it. [`files`] stays within directories, [`web`] follows no redirect out of the
//! allowed prefixes, and [`remote`] reads from buckets. Each read proves by [`checksum`] that the
//! object is the one that the reference was made to, if the reference has a checksum. [`named`]
//! opens objects that the user names, so that references to them can be made.

pub mod address;
mod checksum;
mod files;
pub mod named;
pub mod permissions;
mod range;
mod reach;
mod remote;
mod web;

pub use files::{check_file, target_of};

use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use futures_util::future::BoxFuture;
use lru::LruCache;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tracing::warn;

use self::address::{Address, Scheme, quoted};
use self::permissions::{Permissions, ReadTarget};
use self::range::{Part, RangeRequest};
use self::reach::StoreSettings;
use self::remote::Remote;
use self::web::{Web, WebResponse};
use super::DEADLINE;
use super::connect;
use super::deadline::run_blocking;
use super::settings::Settings;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::shell;
use icechunkfs_format::format::chunk_payload::Checksum;
use icechunkfs_format::format::config::Container;

/// Maximum number of connected buckets and servers. Beyond it the least recently used one is
/// disconnected.
const MAX_CONNECTED: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Maximum number of redirects of one read.
const MAX_REDIRECTS: usize = 5;

/// Virtual chunks of a repository, as far as the user allows them.
#[derive(Debug, Default)]
pub struct VirtualChunks {
    permissions: Permissions,
    containers: Vec<(Option<Address>, Container)>,
    /// Settings that apply to all stores.
    common: Settings,
    connected: Mutex<Option<LruCache<String, Arc<OnceCell<Connection>>>>>,
    /// Directories into which a link in another directory may lead.
    roots: Vec<Arc<Path>>,
}

/// Object with virtual chunks that may be read.
#[derive(Debug)]
pub struct VirtualObject {
    /// Normal form of the location from which the object is read.
    location: String,
    checksum: Option<Checksum>,
    target: Target,
}

#[derive(Debug)]
enum Target {
    File(Arc<Path>, Vec<String>),
    /// Remote object, with the index of the container that describes its store.
    Distant(Address, Option<usize>),
}

#[derive(Debug)]
enum Connection {
    /// Bucket, with the advice for the user if it refuses.
    Bucket(Remote, Option<String>),
    Web(Web),
}

impl VirtualObject {
    /// Returns the location from which the object is read.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Returns true if the object is a local file.
    pub fn is_local(&self) -> bool {
        matches!(self.target, Target::File(..))
    }

    /// Returns a key that identifies the object and its state in a persistent cache. `None` if the
    /// object may change undetected.
    pub fn fingerprint(&self) -> Option<String> {
        let checksum = match self.checksum.as_ref().filter(|_| !self.is_local())? {
            Checksum::Etag(tag) => format!("tag {tag}"),
            Checksum::LastModified(seconds) => format!("time {seconds}"),
        };
        let digest = Sha256::new().chain_update(&self.location).chain_update([0]).chain_update(checksum).finalize();
        Some(HEXLOWER.encode(&digest))
    }
}

/// Compares location and checksum: equal objects have the same bytes.
impl PartialEq for VirtualObject {
    fn eq(&self, other: &Self) -> bool {
        self.location == other.location && self.checksum == other.checksum
    }
}

impl Eq for VirtualObject {}

impl Hash for VirtualObject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.location.hash(state);
        self.checksum.hash(state);
    }
}

impl VirtualChunks {
    /// Creates the virtual chunks that `permissions` cover, in stores as `containers` of the
    /// repository's configuration describe them. Only those of the repository's own `settings`
    /// apply that are not specific to a store.
    pub fn new(permissions: Permissions, containers: Vec<Container>, settings: &Settings) -> Self {
        let containers = containers.into_iter().map(|container| match Address::prefix(&container.url_prefix) {
            Ok(prefix) => (Some(prefix), container),
            Err(error) => {
                warn!("the container {} of virtual chunks cannot be used: {error}", quoted(&container.name));
                (None, container)
            }
        });
        let common = Settings {
            timeout: settings.timeout,
            min_rate: settings.min_rate,
            max_requests: settings.max_requests,
            ca_bundle: settings.ca_bundle.clone(),
            offline: settings.offline,
            ..Settings::default()
        };
        let roots = permissions.roots();
        VirtualChunks { containers: containers.collect(), permissions, common, connected: Mutex::default(), roots }
    }

    /// Returns true if any virtual chunk may be on another machine.
    pub fn has_remote(&self) -> bool {
        self.permissions.has_remote()
    }

    /// Finds the object that a reference names by `location`, if it may be read. Sends no request.
    ///
    /// Errors: [`ErrorKind::VirtualNotAllowed`] if it may not be read; the message names the option
    /// that would allow it.
    pub fn find(&self, location: &str, checksum: Option<Checksum>) -> Result<VirtualObject> {
        let asked = Address::object(location)?;
        let (address, found) = match self.permissions.find(&asked) {
            Some(found) => (asked, Some(found)),
            None if asked.scheme() == Scheme::Container => {
                let address = self.in_container(location, &asked)?;
                let found = self.permissions.find(&address);
                (address, found)
            }
            None => (asked, None),
        };
        let container = self.container_of(&address);
        let Some(found) = found else { return Err(self.not_allowed(&address, container)) };
        let unchecked = self.permissions.is_unchecked(&address) || self.permissions.is_unchecked(&found.address);
        let ReadTarget { address, file, is_mapped } = found;
        Ok(VirtualObject {
            location: address.to_string(),
            checksum: checksum.filter(|_| !unchecked),
            target: match file {
                Some((root, rest)) => Target::File(root, rest),
                // The configuration applies only to the place that it names.
                None => Target::Distant(address, container.filter(|_| !is_mapped)),
            },
        })
    }

    /// Resolves `vcc://NAME/REST`.
    fn in_container(&self, location: &str, asked: &Address) -> Result<Address> {
        let name = asked.authority();
        let known = self.containers.iter().find(|(_, container)| container.name == name);
        let Some((_, container)) = known else {
            return Err(Error::new(
                ErrorKind::VirtualNotAllowed,
                format!(
                    "location {}: the repository's configuration has no container of this name: pass its place with \
                     --virtual-map {}",
                    quoted(location),
                    map_from(&asked.root())
                ),
            ));
        };
        // The rest is taken undecoded, so that it is decoded only once.
        let rest = location.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, rest)| rest);
        Address::object(&format!("{}{rest}", container.url_prefix))
            .map_err(|error| error.context(format!("container {}", quoted(name))))
    }

    /// Returns the index of the innermost container of `address`.
    fn container_of(&self, address: &Address) -> Option<usize> {
        let inside = self.containers.iter().enumerate().filter_map(|(number, (prefix, _))| {
            let prefix = prefix.as_ref()?;
            prefix.rest_of(address).map(|_| (number, prefix.components().len()))
        });
        inside.max_by_key(|(_, depth)| *depth).map(|(number, _)| number)
    }

    /// Returns true if the user allows the file of this machine at `address`.
    pub fn allows_file(&self, address: &Address) -> bool {
        self.permissions.find(address).is_some_and(|found| found.file.is_some() && !found.is_mapped)
    }

    fn not_allowed(&self, address: &Address, container: Option<usize>) -> Error {
        let container = container.and_then(|number| self.containers.get(number));
        let prefix = container.and_then(|(prefix, _)| prefix.clone()).unwrap_or_else(|| address.parent());
        let endpoint = container.and_then(|(_, container)| container.store.endpoint_url.as_deref());
        let at =
            endpoint.map(|endpoint| format!(", at {} as the repository has it,", quoted(endpoint))).unwrap_or_default();
        Error::new(
            ErrorKind::VirtualNotAllowed,
            format!(
                "the chunk is virtual, in {address}{at} and no such location is allowed: add --allow-virtual {}, or \
                 --virtual-map {} to read it from another place",
                shell::quote(&prefix.as_prefix()),
                map_from(&prefix)
            ),
        )
    }

    /// Reads exactly `length` bytes at `offset` of `object`, from the state that the reference was
    /// made to.
    pub fn read<'a>(&'a self, object: &'a VirtualObject, offset: u64, length: u64) -> BoxFuture<'a, Result<Bytes>> {
        // The box hides the type of the future from callers.
        Box::pin(self.read_object(object, offset, length))
    }

    async fn read_object(&self, object: &VirtualObject, offset: u64, length: u64) -> Result<Bytes> {
        let read = match &object.target {
            Target::File(root, rest) => self.read_file(object, Arc::clone(root), rest.clone(), offset, length).await,
            Target::Distant(address, container) => {
                let checksum = object.checksum.as_ref();
                let wanted = RangeRequest { address, query: None, offset, length, checksum, may_be_shorter: false };
                self.read_remote(&wanted, *container).await.map(|part| part.bytes)
            }
        };
        read.map_err(|error| match error.kind() {
            // The file exists for the reading program, so that the error must not be a missing
            // file.
            ErrorKind::NotFound | ErrorKind::NotARepository | ErrorKind::NotADirectory => {
                let message = "the object that contains the chunk is gone, or was never where the reference points";
                Error::with_source(ErrorKind::Corrupt, message, error)
            }
            _ => error.context("virtual chunk"),
        })
    }

    async fn read_file(
        &self,
        object: &VirtualObject,
        root: Arc<Path>,
        rest: Vec<String>,
        offset: u64,
        length: u64,
    ) -> Result<Bytes> {
        let roots = self.roots.clone();
        let checksum = object.checksum.clone();
        let read = move || files::read(&root, &rest, &roots, offset, length, checksum.as_ref());
        run_blocking(&object.location, DEADLINE, read).await
    }

    async fn read_remote(&self, wanted: &RangeRequest<'_>, container: Option<usize>) -> Result<Part> {
        let address = wanted.address;
        if self.common.offline {
            let message =
                format!("{address}: not in the cache, and --offline forbids asking the store: mount without it");
            return Err(Error::new(ErrorKind::Offline, message));
        }
        if address.is_web() {
            return self.read_web(wanted).await;
        }
        let connection = self.connection(address, container).await?;
        let connection = connection.get();
        let Some(Connection::Bucket(bucket, advice)) = connection else { return Err(no_store(address)) };
        bucket.read(wanted).await.map_err(|error| advised(address, advice.as_deref(), error))
    }

    /// Reads from a web server, and follows redirects to allowed locations.
    async fn read_web(&self, wanted: &RangeRequest<'_>) -> Result<Part> {
        let mut address = wanted.address.clone();
        let mut query = None::<String>;
        for _ in 0..=MAX_REDIRECTS {
            let connection = self.connection(&address, None).await?;
            let Some(Connection::Web(server)) = connection.get() else { return Err(no_store(&address)) };
            let asked = RangeRequest { address: &address, query: query.as_deref(), ..*wanted };
            let given = server.get(&asked).await.map_err(|error| match error.kind() {
                ErrorKind::PermissionDenied => settings_wanted(&address, None, error),
                _ => error,
            })?;
            let url = match given {
                WebResponse::Part(part) => return Ok(part),
                WebResponse::Redirect(url) => url,
            };
            let next = Address::object(&url)
                .map_err(|e| e.context(format!("{address}: the server redirects to a URL that cannot be read")))?;
            if !next.is_web() || !self.permissions.allows_redirect(&next) {
                return Err(Error::new(
                    ErrorKind::VirtualNotAllowed,
                    format!(
                        "{address}: the server redirects to {next}, which is not allowed: add --allow-virtual {}",
                        shell::quote(&next.parent().as_prefix())
                    ),
                ));
            }
            let signed = url::Url::parse(&url).ok().and_then(|url| url.query().map(str::to_owned));
            (address, query) = (next, signed);
        }
        let message = format!("{}: the server redirects more than {MAX_REDIRECTS} times", wanted.address);
        Err(Error::new(ErrorKind::Io, message))
    }

    async fn connection(&self, address: &Address, container: Option<usize>) -> Result<Arc<OnceCell<Connection>>> {
        let options = self.options_of(address);
        let scheme = address.scheme();
        let key = format!("{scheme:?} {} {container:?} {options}", address.authority());
        let cell = {
            let mut connected = self.connected.lock();
            let connected = connected.get_or_insert_with(|| LruCache::new(MAX_CONNECTED));
            Arc::clone(connected.get_or_insert(key, Arc::default))
        };
        cell.get_or_try_init(|| self.connect(address, container)).await?;
        Ok(cell)
    }

    async fn connect(&self, address: &Address, container: Option<usize>) -> Result<Connection> {
        let StoreSettings { settings, advice, trusted } = self.settings(address, container)?;
        let Some(place) = address.place() else { return Ok(Connection::Web(Web::new(&settings)?)) };
        let connected = connect::connect_without_redirects(&place, &settings, trusted).await;
        let connected = connected.map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::InvalidInput => settings_wanted(address, advice.as_deref(), error),
            _ => error.context(address),
        })?;
        Ok(Connection::Bucket(Remote::new(connected, &settings), advice))
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        let connected = self.connected.lock();
        let all = connected.iter().flat_map(|connected| connected.iter());
        all.filter_map(|(_, cell)| {
            Some(match cell.get()? {
                Connection::Bucket(bucket, _) => bucket.transport.in_flight(),
                Connection::Web(server) => server.transport.in_flight(),
            })
        })
        .sum()
    }
}

/// Returns `FROM=PLACE`, quoted for a shell.
fn map_from(prefix: &Address) -> String {
    shell::quote(&format!("{}=PLACE", prefix.as_prefix().replace('=', "%3D")))
}

fn no_store(address: &Address) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{address}: this kind of store is not known"))
}

/// Returns `error` of a bucket; one that other settings may mend with the advice for the user.
fn advised(address: &Address, advice: Option<&str>, error: Error) -> Error {
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::InvalidInput => settings_wanted(address, advice, error),
        _ => error,
    }
}

/// Returns the error of a store that needs other settings.
fn settings_wanted(address: &Address, advice: Option<&str>, error: Error) -> Error {
    let general = format!(
        "settings for virtual chunks are passed as --virtual-option {}",
        reach::option_text(address, "KEY=VALUE")
    );
    let message = format!("{address} ({})", advice.unwrap_or(&general));
    Error::with_source(ErrorKind::PermissionDenied, message, error)
}

#[cfg(test)]
mod tests;
