//! Range requests for one blob: follows redirects and checks each response against the request.

use std::sync::{Arc, Mutex};

use puna_store::{Digest, PartialPath};
use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderMap, LOCATION, RANGE};
use reqwest::{Method, Response, StatusCode, Url};

use crate::client::session::{RequestSpec, Session};
use crate::display::display_url;
use crate::error::RegistryError;
use crate::lock::lock;

/// Attempts to ask for the size of a blob.
const SIZE_ATTEMPTS: u32 = 3;

/// Blob to download.
#[derive(Debug, Clone)]
pub(crate) struct DownloadSpec {
    /// Digest of the blob. For a file without a known digest, a digest of its URL and version.
    pub(crate) key: Digest,
    /// Whether `key` is the digest of the content.
    pub(crate) verified: bool,
    pub(crate) total: u64,
    pub(crate) url: Url,
    /// Number of the caller whose download shares no bytes with downloads of others; `None` for a
    /// shared download.
    pub(crate) private_to: Option<u64>,
}

impl DownloadSpec {
    /// The files of the download, unless another process keeps them.
    pub(crate) fn partial_path(&self) -> PartialPath {
        self.private_to.map_or(PartialPath::Primary, PartialPath::Private)
    }
}

/// Source of a blob's bytes at one registry.
pub(crate) struct BlobSource {
    session: Arc<Session>,
    digest: Digest,
    total: u64,
    url: Url,
    /// Where the registry's URL redirected to, until a request there fails.
    resolved_url: Mutex<Option<Url>>,
}

/// Successful response with a body to read.
pub(crate) enum RangeResponse {
    /// The requested bytes.
    Range(Response),
    /// All bytes: the server does not support range requests.
    Whole(Response),
}

impl BlobSource {
    pub(crate) fn new(session: Arc<Session>, spec: &DownloadSpec) -> Self {
        Self {
            session,
            digest: spec.key,
            total: spec.total,
            url: spec.url.clone(),
            resolved_url: Mutex::default(),
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn url(&self) -> Url {
        self.url.clone()
    }

    /// Requests the bytes from `from` to `end` (exclusive).
    pub(crate) async fn open(&self, from: u64, end: u64) -> Result<RangeResponse, RegistryError> {
        if let Some(resolved_url) = self.resolved_url() {
            match self.open_at(resolved_url, from, end).await {
                // A signed URL may have expired.
                Err(
                    RegistryError::Status { code: 400..=499, .. }
                    | RegistryError::InvalidResponse { .. },
                ) => {
                    self.set_resolved_url(None);
                }
                opened => return opened,
            }
        }
        self.open_at(self.url(), from, end).await
    }

    async fn open_at(&self, url: Url, from: u64, end: u64) -> Result<RangeResponse, RegistryError> {
        let range = format!("bytes={from}-{}", end - 1);
        let mut request = RequestSpec::new(Method::GET, url).header(RANGE, &range);
        let mut is_relocated = false;
        loop {
            let response = self.session.send(&request).await?;
            let response_url = response.url().clone();
            match response.status() {
                StatusCode::PARTIAL_CONTENT => {
                    self.check_range(response.headers(), &response_url, from, end)?;
                    self.set_resolved_url(
                        Some(response_url).filter(|response_url| *response_url != self.url()),
                    );
                    return Ok(RangeResponse::Range(response));
                }
                StatusCode::OK => {
                    // Ollama's registry sends the location of a blob in a successful response.
                    if let Some(next) =
                        location_of(&self.session, response.headers(), &response_url)?
                        && !is_relocated
                    {
                        (request.url, is_relocated) = (next, true);
                        continue;
                    }
                    self.check_whole(&response, &response_url)?;
                    return Ok(RangeResponse::Whole(response));
                }
                _ => {
                    return Err(self
                        .session
                        .blob_error_from_response(&self.digest, response)
                        .await);
                }
            }
        }
    }

    fn check_range(
        &self,
        headers: &HeaderMap,
        url: &Url,
        from: u64,
        end: u64,
    ) -> Result<(), RegistryError> {
        let text = headers.get(CONTENT_RANGE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let fail =
            |what: String| Err(RegistryError::InvalidResponse { url: display_url(url), what });
        let Some((first, last, total)) = parse_content_range(text) else {
            return fail(format!("the response has the invalid Content-Range {text:?}"));
        };
        if total.is_some_and(|total| total != self.total) {
            return Err(self.size_mismatch(total.unwrap_or(0)));
        }
        if first != from || last < first || last >= end {
            return fail(format!(
                "the response has the bytes {first}-{last}, but {from}-{} were requested",
                end - 1
            ));
        }
        Ok(())
    }

    fn check_whole(&self, response: &Response, url: &Url) -> Result<(), RegistryError> {
        let kind =
            response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        match response.content_length() {
            Some(len) if len == self.total => Ok(()),
            len if kind.starts_with("text/html") => {
                let bytes = len.map(|len| format!(" of {len} bytes")).unwrap_or_default();
                let what = format!("the response is a web page{bytes} instead of the blob");
                Err(RegistryError::InvalidResponse { url: display_url(url), what })
            }
            Some(len) => Err(self.size_mismatch(len)),
            None => Ok(()),
        }
    }

    fn size_mismatch(&self, found: u64) -> RegistryError {
        RegistryError::SizeMismatch { digest: self.digest, expected: self.total, found }
    }

    fn resolved_url(&self) -> Option<Url> {
        lock(&self.resolved_url).clone()
    }

    fn set_resolved_url(&self, url: Option<Url>) {
        *lock(&self.resolved_url) = url;
    }
}

impl Session {
    /// The size of a blob at the registry, from the response to a request for its first byte.
    pub(crate) async fn blob_size(&self, digest: &Digest) -> Result<u64, RegistryError> {
        let mut retry = self.retry().with_attempts(SIZE_ATTEMPTS);
        loop {
            match self.request_size(digest).await {
                // The registry's own error is more useful than one about retries.
                Err(error @ RegistryError::Status { .. }) => match retry.wait_after(error).await {
                    Err(RegistryError::RetriesExceeded(last)) => return Err(*last),
                    waited => waited?,
                },
                asked => return asked,
            }
        }
    }

    async fn request_size(&self, digest: &Digest) -> Result<u64, RegistryError> {
        let mut request =
            RequestSpec::new(Method::GET, self.blob_url(digest)).header(RANGE, "bytes=0-0");
        let mut is_relocated = false;
        loop {
            let response = self.send(&request).await?;
            let (response_url, headers) = (response.url().clone(), response.headers());
            let size = match response.status() {
                StatusCode::PARTIAL_CONTENT => {
                    let text = headers.get(CONTENT_RANGE).and_then(|v| v.to_str().ok());
                    text.and_then(parse_content_range).and_then(|(_, _, total)| total)
                }
                StatusCode::OK => {
                    if let Some(next) = location_of(self, headers, &response_url)?
                        && !is_relocated
                    {
                        (request.url, is_relocated) = (next, true);
                        continue;
                    }
                    let kind =
                        headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
                    response.content_length().filter(|_| !kind.starts_with("text/html"))
                }
                StatusCode::NOT_FOUND => return Err(RegistryError::NotFound),
                _ => return Err(self.error_from_response(response).await),
            };
            let what = "the response does not state the size of the blob".to_owned();
            return size.ok_or_else(|| RegistryError::InvalidResponse {
                url: display_url(&response_url),
                what,
            });
        }
    }
}

/// The `Location` of a successful response, if it differs from the request's URL.
fn location_of(
    session: &Session,
    headers: &HeaderMap,
    response_url: &Url,
) -> Result<Option<Url>, RegistryError> {
    let Some(text) = headers.get(LOCATION).and_then(|v| v.to_str().ok()) else { return Ok(None) };
    Ok(Some(session.next_hop(response_url, text)?).filter(|next| next != response_url))
}

/// Parses `bytes 0-99/1234`. The total may be `*`.
pub(crate) fn parse_content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((first.parse().ok()?, last.parse().ok()?, total))
}
