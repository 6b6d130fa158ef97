//! Read-only access to a web server: objects lie below a URL. The user name in the URL is sent with
//! the password.

use std::sync::Arc;

use base64::Engine;
use object_store::http::HttpBuilder;
use object_store::{HeaderValue, ObjectStore};

use super::{StoreParameters, build_error};
use icechunkfs_base::error::{Error, Result};

pub(super) fn connect(url: &url::Url, parameters: &StoreParameters) -> Result<Arc<dyn ObjectStore>> {
    // Errors contain the URL, so that its secret parts go into a header.
    let mut plain = url.clone();
    let mut options = parameters.client(url.scheme() == "http")?;
    let password = parameters.settings.secrets.password.as_deref();
    if let Some(password) = password.or_else(|| (!url.username().is_empty()).then_some("")) {
        let name = percent_encoding::percent_decode_str(url.username()).decode_utf8_lossy();
        let words = format!("{name}:{password}");
        let value = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(words));
        let mut headers = options.get_default_headers().cloned().unwrap_or_default();
        let mut value = HeaderValue::from_str(&value).map_err(|_| Error::invalid("the password cannot be sent"))?;
        value.set_sensitive(true);
        headers.insert(http::header::AUTHORIZATION, value);
        options = options.with_default_headers(headers);
        let host = || Error::invalid("the repository's URL has no host");
        plain.set_username("").and_then(|()| plain.set_password(None)).map_err(|()| host())?;
    }
    // The client adds a slash and the key.
    let base = plain.as_str().trim_end_matches('/');
    let builder = HttpBuilder::new()
        .with_url(base)
        .with_client_options(options)
        .with_retry(parameters.retry())
        .with_http_connector(parameters.connector(Some(plain.origin()))?);
    Ok(Arc::new(builder.build().map_err(|e| build_error("the repository's URL", e))?))
}
