//! Translation of store errors into kinds of error and advice.

use std::error::Error as StdError;
use std::fmt::Display;

use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};

use super::transport::NotSupportedByServer;
use icechunkfs_base::error::{Error, ErrorKind};

/// Error texts of stores, with the kind of error and the advice for the user.
const KNOWN_ERRORS: [(&[&str], ErrorKind, &str); 11] = [
    (&["NoSuchBucket", "The specified bucket does not exist"], ErrorKind::NotARepository, "the bucket does not exist"),
    (&["ContainerNotFound"], ErrorKind::NotARepository, "the container does not exist"),
    (
        &["InvalidAccessKeyId"],
        ErrorKind::PermissionDenied,
        "the store does not know the access key: is it of another account or endpoint?",
    ),
    (&["SignatureDoesNotMatch"], ErrorKind::PermissionDenied, "the secret key does not fit the access key"),
    (&["ExpiredToken"], ErrorKind::PermissionDenied, "the credentials have expired: renew them"),
    (&["RequestTimeTooSkewed"], ErrorKind::PermissionDenied, "this machine's clock is wrong: set it"),
    (&["AuthorizationHeaderMalformed"], ErrorKind::InvalidInput, "the bucket is in another region: pass --region"),
    (
        &["PermanentRedirect", "Received redirect without LOCATION"],
        ErrorKind::InvalidInput,
        "the bucket is in another region or at another endpoint: pass --region or --endpoint-url",
    ),
    (
        &["169.254.169.254"],
        ErrorKind::PermissionDenied,
        "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass --profile, or --anonymous \
         for a public bucket",
    ),
    // As a short answer is: local objects have this kind, too.
    (
        &["<Code>InvalidRange</Code>", "416 Range Not Satisfiable"],
        ErrorKind::Corrupt,
        "the object is shorter than the bytes that were asked for",
    ),
    // Listings report a denied access only by this code.
    (&["<Code>AccessDenied</Code>"], ErrorKind::PermissionDenied, "these credentials do not allow it"),
];

/// Converts the store's error of an operation on `what`.
pub(super) fn from_store(what: impl Display, error: StoreError) -> Error {
    let text: Vec<String> = error_chain(&error).map(ToString::to_string).collect();
    let text = text.join("\n");
    if let Some((_, kind, advice)) =
        KNOWN_ERRORS.iter().find(|(said, ..)| said.iter().any(|words| text.contains(words)))
    {
        return Error::with_source(*kind, format!("{what}: {advice}"), error);
    }
    let (kind, advice) = match &error {
        StoreError::NotFound { .. } => (ErrorKind::NotFound, ""),
        StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } | StoreError::NotModified { .. } => {
            (ErrorKind::Contended, "")
        }
        StoreError::PermissionDenied { .. } => (ErrorKind::PermissionDenied, ": these credentials do not allow it"),
        StoreError::Unauthenticated { .. } => (ErrorKind::PermissionDenied, ": the store wants credentials"),
        StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => (ErrorKind::Unsupported, ""),
        StoreError::InvalidPath { .. } => (ErrorKind::InvalidInput, ""),
        error if is_not_supported(error) => (ErrorKind::Unsupported, ": the server does not support this request"),
        _ => match error_chain(&error).find_map(|cause| cause.downcast_ref::<HttpError>()).map(HttpError::kind) {
            Some(HttpErrorKind::Timeout) => (ErrorKind::Timeout, ": the store did not answer in time"),
            Some(HttpErrorKind::Connect) => (ErrorKind::Io, ": the store cannot be reached"),
            _ => (ErrorKind::Io, ""),
        },
    };
    Error::with_source(kind, format!("{what}{advice}"), error)
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
