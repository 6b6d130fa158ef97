//! Translation of store errors into kinds of error and advice.

use std::error::Error as StdError;
use std::fmt::Display;

use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};
use tracing::debug;

use super::connect::REDIRECTED_ELSEWHERE;
use super::transport::NotSupportedByServer;
use icechunkfs_base::error::{Error, ErrorKind};

/// Text of an error about an answer that is not one of TLS.
pub(super) const NO_TLS: &str = "InvalidContentType";

/// Error texts of stores, with the kind of error and the advice for the user.
const KNOWN_ERRORS: [(&[&str], ErrorKind, &str); 14] = [
    (&["NoSuchBucket", "The specified bucket does not exist"], ErrorKind::NotARepository, "the bucket does not exist"),
    (&["ContainerNotFound"], ErrorKind::NotARepository, "the container does not exist"),
    (
        &["InvalidAccessKeyId"],
        ErrorKind::PermissionDenied,
        "the store does not know the access key: does it belong to another account or endpoint?",
    ),
    (&["SignatureDoesNotMatch"], ErrorKind::PermissionDenied, "the secret key does not match the access key"),
    (&["ExpiredToken"], ErrorKind::PermissionDenied, "the credentials have expired: renew them"),
    (&["RequestTimeTooSkewed"], ErrorKind::PermissionDenied, "this machine's clock is wrong: set it"),
    (&["AuthorizationHeaderMalformed"], ErrorKind::InvalidInput, "the bucket is in another region: pass --region"),
    (
        &["PermanentRedirect", "Received redirect without LOCATION"],
        ErrorKind::InvalidInput,
        "the bucket is in another region or at another endpoint: pass --region or --endpoint-url",
    ),
    // The metadata services of all clouds have one address, and different paths.
    (
        &["169.254.169.254/computeMetadata", "metadata.google.internal"],
        ErrorKind::PermissionDenied,
        "no credentials: set GOOGLE_APPLICATION_CREDENTIALS, or pass --credentials, or --anonymous for a public bucket",
    ),
    (
        &["169.254.169.254/metadata/identity"],
        ErrorKind::PermissionDenied,
        "no credentials: set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or pass --anonymous for a public \
         container",
    ),
    (
        &["169.254.169.254"],
        ErrorKind::PermissionDenied,
        "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass --profile, or --anonymous \
         for a public bucket",
    ),
    (&[NO_TLS], ErrorKind::Io, "the endpoint does not speak TLS: use http://"),
    // As a short answer is: local objects have this kind, too.
    (
        &["<Code>InvalidRange</Code>", "416 Range Not Satisfiable"],
        ErrorKind::Corrupt,
        "the object is shorter than the bytes that were asked for",
    ),
    // Listings report a denied access only by this code.
    (&["<Code>AccessDenied</Code>"], ErrorKind::PermissionDenied, "these credentials do not allow it"),
];

/// Identity that requests prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// They have the credentials that were found, if any.
    Known,
    /// They have none, as the user wants it.
    Anonymous,
}

/// Converts the store's error of an operation on `what`. Where the cause is known, the message says
/// it in words of this program; the log has those of the store.
pub(super) fn from_store(what: impl Display, error: StoreError, sender: Sender) -> Error {
    let text: Vec<String> = error_chain(&error).map(ToString::to_string).collect();
    let text = text.join("\n");
    // A redirect can name a place that is like a known error.
    let own = text.split_once(REDIRECTED_ELSEWHERE).map_or(&*text, |(before, _)| before);
    let known = |kind, advice: &str| {
        debug!("{what}: {text}");
        Error::new(kind, format!("{what}: {advice}"))
    };
    if let Some((_, kind, advice)) = KNOWN_ERRORS.iter().find(|(said, ..)| said.iter().any(|words| own.contains(words)))
    {
        let is_refused = *kind == ErrorKind::PermissionDenied && sender == Sender::Anonymous;
        return known(*kind, if is_refused { REFUSED_ANONYMOUS } else { advice });
    }
    if let Some(why) = unreachable(&text) {
        return known(ErrorKind::Io, &why);
    }
    let (kind, advice) = match &error {
        StoreError::NotFound { .. } => (ErrorKind::NotFound, ""),
        StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } | StoreError::NotModified { .. } => {
            (ErrorKind::Contended, "")
        }
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } if sender == Sender::Anonymous => {
            return known(ErrorKind::PermissionDenied, REFUSED_ANONYMOUS);
        }
        StoreError::PermissionDenied { .. } => {
            return known(ErrorKind::PermissionDenied, "these credentials do not allow it");
        }
        // The cause may be a sign-on that is to be made again.
        StoreError::Unauthenticated { .. } => (ErrorKind::PermissionDenied, ": the store needs credentials"),
        StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => (ErrorKind::Unsupported, ""),
        StoreError::InvalidPath { .. } => (ErrorKind::InvalidInput, ""),
        error if is_not_supported(error) => {
            return known(ErrorKind::Unsupported, "the server does not support this request");
        }
        // The answers of stores are documents of XML or JSON; a proxy before one says in a page
        // that it does not reach the store.
        _ if is_page(&text) && !PROXY_ERRORS.iter().any(|status| text.contains(status)) => {
            return known(
                ErrorKind::Io,
                "the server answered with a web page, not as a store does: check --endpoint-url and the bucket",
            );
        }
        _ => match error_chain(&error).find_map(|cause| cause.downcast_ref::<HttpError>()).map(HttpError::kind) {
            Some(HttpErrorKind::Timeout) => (ErrorKind::Timeout, ": the store did not answer in time"),
            Some(HttpErrorKind::Connect) => (ErrorKind::Io, ": the store cannot be reached"),
            _ => (ErrorKind::Io, ""),
        },
    };
    Error::with_source(kind, format!("{what}{advice}"), error)
}

/// Statuses of proxies that do not reach a store.
const PROXY_ERRORS: [&str; 4] = ["500 Internal", "502 Bad Gateway", "503 Service", "504 Gateway"];

fn is_page(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("<!doctype html") || text.contains("<html")
}

/// Advice where the store refuses a request that says nothing of its sender.
const REFUSED_ANONYMOUS: &str =
    "the store refuses the request: it was sent without credentials; omit --anonymous if the repository is not public";

/// Says why no connection was made, if `text`, the causes of a failed request, tells: which host,
/// and how long it was tried.
fn unreachable(text: &str) -> Option<String> {
    let host =
        text.split_once("://").and_then(|(_, rest)| rest.split(['/', ' ', '\n', '?']).next()).unwrap_or("the store");
    let after = |mark: &str| text.split_once(mark).and_then(|(_, rest)| rest.split([',', ' ', '\n']).next());
    let seconds = after(" in ").and_then(|time| time.strip_suffix('s')).and_then(|time| time.parse::<f64>().ok());
    let tried = seconds.filter(|time| *time >= 1.0).map(|time| format!(" (tried for {time:.0} s)")).unwrap_or_default();
    let why = if text.contains("Connection refused") {
        "refuses connections"
    } else if text.contains("dns error") || text.contains("failed to lookup address") {
        "is not a known host name"
    } else {
        return None;
    };
    Some(format!("{host} {why}{tried}"))
}

/// Returns true if the store, or a server before it, does not support the request.
pub(super) fn is_not_supported(error: &StoreError) -> bool {
    matches!(error, StoreError::NotSupported { .. } | StoreError::NotImplemented { .. })
        || error_chain(error).any(|cause| cause.is::<NotSupportedByServer>())
}

pub(super) fn error_chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_not_reached_is_named() {
        let text = "Error performing GET http://127.0.0.1:5999/b/x in 10.88s, after 30 retries, retry_timeout: 45s\n\
                    tcp connect error: Connection refused (os error 111)";
        assert_eq!(unreachable(text).as_deref(), Some("127.0.0.1:5999 refuses connections (tried for 11 s)"));
        let text = "Error performing GET https://nowhere.example/x in 9ms\ndns error: failed to lookup address";
        assert_eq!(unreachable(text).as_deref(), Some("nowhere.example is not a known host name"));
        assert_eq!(unreachable("Error performing GET https://h/x: 500"), None);
    }
}
