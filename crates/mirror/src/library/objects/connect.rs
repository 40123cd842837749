//! How a bucket is reached: through the same connections as registries, with their proxies and certificates.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use http_body_util::BodyExt;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{BackoffConfig, RetryConfig};
use puna_registry::{Registry, root_cause};

use crate::error::MirrorError;
use crate::lock::lock;

/// Attempts after a first one that failed.
const RETRIES: usize = 4;
/// How long is tried.
const RETRY_TIME: Duration = Duration::from_secs(30);

/// Where a library lies, and who we are there.
#[derive(Clone, PartialEq, Eq)]
pub struct Storage {
    /// The bucket.
    pub bucket: String,
    /// What all keys begin with; empty, or words with `/` between them.
    pub prefix: String,
    /// The address of the service, where it is not Amazon's.
    pub endpoint: Option<String>,
    /// Further settings, by the names that Amazon's tools have for them (`aws_region` …).
    pub options: Vec<(&'static str, String)>,
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        match &self.endpoint {
            Some(endpoint) => write!(f, " at {endpoint}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Storage {
    // The settings have keys among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.options.iter().map(|(name, _)| name).collect();
        f.debug_struct("Storage").field("place", &self.to_string()).field("set", &names).finish()
    }
}

impl Storage {
    /// Reads `s3://bucket/prefix`.
    ///
    /// # Errors
    /// It is none: what it should be.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fail = || "it must be s3://BUCKET or s3://BUCKET/PREFIX".to_owned();
        let rest = text.strip_prefix("s3://").ok_or_else(fail)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        let plain =
            |text: &str| text.bytes().all(|c| c.is_ascii_alphanumeric() || b"._-".contains(&c));
        let words = |text: &str| {
            text.split('/').all(|word| plain(word) && !word.trim_matches('.').is_empty())
        };
        if bucket.is_empty() || !plain(bucket) || !prefix.is_empty() && !words(prefix) {
            return Err(fail());
        }
        let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
        Ok(Self { bucket, prefix, endpoint: None, options: Vec::new() })
    }

    /// The service. Nothing is asked yet.
    pub(super) fn open(&self, client: &Registry) -> Result<AmazonS3, MirrorError> {
        let fail = |reason: String| MirrorError::Storage { place: self.to_string(), reason };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&self.bucket)
            .with_http_connector(Connector(client.clone()))
            .with_retry(RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries: RETRIES,
                retry_timeout: RETRY_TIME,
            });
        for (name, value) in &self.options {
            let key: AmazonS3ConfigKey =
                name.parse().map_err(|_| fail(format!("{name} is no setting")))?;
            builder = builder.with_config(key, value);
        }
        if let Some(endpoint) = &self.endpoint {
            builder =
                builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
        }
        builder.build().map_err(|e| fail(root_cause(&e)))
    }
}

/// Makes connections as those to registries are made.
struct Connector(Registry);

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service { registry: self.0.clone(), clients: Default::default() }))
    }
}

/// Sends requests, each with the connections of its host.
struct Service {
    registry: Registry,
    clients: std::sync::Mutex<std::collections::HashMap<String, reqwest::Client>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

impl Service {
    fn client(&self, host: &str) -> Result<reqwest::Client, HttpError> {
        let mut clients = lock(&self.clients);
        if let Some(client) = clients.get(host) {
            return Ok(client.clone());
        }
        let client = self
            .registry
            .connections(host)
            .map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
        clients.insert(host.to_owned(), client.clone());
        Ok(client)
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let host = request.uri().authority().map_or("", |authority| authority.as_str()).to_owned();
        let (parts, body) = request.into_parts();
        let request = axum::http::Request::from_parts(parts, reqwest::Body::wrap(body));
        let request = reqwest::Request::try_from(request).map_err(failure)?;
        let response = self.client(&host)?.execute(request).await.map_err(failure)?;
        let (parts, body) = axum::http::Response::<reqwest::Body>::from(response).into_parts();
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body.map_err(failure))))
    }
}

impl HttpService for Service {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(self.send(request))
    }
}

/// A failure, of a kind that says whether it may be tried again. Without the address, which may be signed.
fn failure(error: reqwest::Error) -> HttpError {
    let kind = match &error {
        error if error.is_timeout() => HttpErrorKind::Timeout,
        error if error.is_connect() => HttpErrorKind::Connect,
        error if error.is_decode() || error.is_builder() => HttpErrorKind::Decode,
        // A connection that broke.
        _ => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, error.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_buckets_and_what_keys_begin_with() {
        let read = |text: &str| Storage::parse(text).map(|place| (place.bucket, place.prefix));
        assert_eq!(read("s3://models").unwrap(), ("models".into(), String::new()));
        assert_eq!(read("s3://models/a/b.c/").unwrap(), ("models".into(), "a/b.c".into()));
        for bad in [
            "models",
            "s3://",
            "s3:///a",
            "s3://a/../b",
            "s3://a b",
            "s3://user:key@a",
            "s3://a//b",
            "gs://a",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_shows_a_key() {
        let mut place = Storage::parse("s3://b/p").unwrap();
        place.options.push(("aws_secret_access_key", "hunter2".into()));
        assert!(!format!("{place:?} {place}").contains("hunter2"));
    }
}
