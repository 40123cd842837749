//! Connection to the S3 service. It uses the HTTP clients of the registry client, with their
//! proxies and certificates.

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

use crate::error::{BucketProblem, MirrorError};
use crate::locks::lock;

/// Number of retries after a failed request.
const MAX_RETRIES: usize = 4;
/// Longest time for all attempts.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Location of a bucket, and the credentials for it.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Location {
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of all keys: empty, or words separated by `/`.
    pub prefix: String,
    /// URL of the service; `None` for Amazon's.
    pub endpoint: Option<String>,
    /// Further options by their names in Amazon's tools (`aws_region` …).
    pub options: Vec<(&'static str, String)>,
}

impl fmt::Display for S3Location {
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

impl fmt::Debug for S3Location {
    // The options contain credentials, so their values are not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.options.iter().map(|(name, _)| name).collect();
        f.debug_struct("Storage").field("place", &self.to_string()).field("set", &names).finish()
    }
}

impl S3Location {
    /// Parses `s3://bucket/prefix`.
    ///
    /// # Errors
    /// The text is no such location; the error shows the syntax.
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

    /// Creates the client. It sends no request yet.
    pub(super) fn open(&self, client: &Registry) -> Result<AmazonS3, MirrorError> {
        let fail = |problem| MirrorError::StorageFailed { location: self.to_string(), problem };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&self.bucket)
            .with_http_connector(Connector(client.clone()))
            .with_retry(RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries: MAX_RETRIES,
                retry_timeout: RETRY_TIMEOUT,
            });
        for (name, value) in &self.options {
            let key: AmazonS3ConfigKey = name
                .parse()
                .map_err(|_| fail(BucketProblem::UnknownSetting { name: name.to_string() }))?;
            builder = builder.with_config(key, value);
        }
        if let Some(endpoint) = &self.endpoint {
            builder =
                builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
        }
        builder.build().map_err(|e| fail(BucketProblem::Settings { cause: root_cause(&e) }))
    }
}

/// Creates HTTP clients like those for registries.
struct Connector(Registry);

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(HttpTransport { registry: self.0.clone(), clients: Default::default() }))
    }
}

/// Sends each request with the HTTP client of its host.
struct HttpTransport {
    registry: Registry,
    clients: std::sync::Mutex<std::collections::HashMap<String, reqwest::Client>>,
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

impl HttpTransport {
    fn client(&self, host: &str) -> Result<reqwest::Client, HttpError> {
        let mut clients = lock(&self.clients);
        if let Some(client) = clients.get(host) {
            return Ok(client.clone());
        }
        let client = self
            .registry
            .http_client(host)
            .map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
        clients.insert(host.to_owned(), client.clone());
        Ok(client)
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let host = request.uri().authority().map_or("", |authority| authority.as_str()).to_owned();
        let (parts, body) = request.into_parts();
        let request = axum::http::Request::from_parts(parts, reqwest::Body::wrap(body));
        let request = reqwest::Request::try_from(request).map_err(service_error)?;
        let response = self.client(&host)?.execute(request).await.map_err(service_error)?;
        let (parts, body) = axum::http::Response::<reqwest::Body>::from(response).into_parts();
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body.map_err(service_error))))
    }
}

impl HttpService for HttpTransport {
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

/// Converts an error. Its kind decides whether the request is retried. The URL is removed, because
/// it may be signed.
fn service_error(error: reqwest::Error) -> HttpError {
    let kind = match &error {
        error if error.is_timeout() => HttpErrorKind::Timeout,
        error if error.is_connect() => HttpErrorKind::Connect,
        error if error.is_decode() || error.is_builder() => HttpErrorKind::Decode,
        // A broken connection.
        _ => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, error.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_a_bucket_and_a_prefix() {
        let read =
            |text: &str| S3Location::parse(text).map(|location| (location.bucket, location.prefix));
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
    fn credentials_are_not_shown() {
        let mut location = S3Location::parse("s3://b/p").unwrap();
        location.options.push(("aws_secret_access_key", "hunter2".into()));
        assert!(!format!("{location:?} {location}").contains("hunter2"));
    }
}
