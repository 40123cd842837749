//! Fetches images that a request names by URL.
//!
//! This needs the setting `image_urls` and a model that accepts images. Time, size and redirects
//! are limited. Addresses that only the server can reach are rejected, so that a client cannot read
//! the server's network through it (SSRF).
//!
//! - `locations` finds the URLs in requests of each dialect and replaces them by images.
//! - The outgoing policy of the registry client checks addresses.

mod locations;
#[cfg(test)]
mod tests;

use std::time::Duration;

use puna_mirror::{SharedTable, TableLimit};
use puna_registry::OutgoingPolicy;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, LOCATION};
use reqwest::{Client, Response, Url};
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use locations::{Author, ImageUrl, MessageContent, in_anthropic, in_openai};

use crate::canonical::ApiError;
use crate::config::Config;
use crate::util::client_slots::ClientSlots;

/// Maximum bytes of an image.
const MAX_IMAGE_BYTES: usize = 20 << 20;

/// Maximum bytes of all images of a request.
const MAX_TOTAL_BYTES: usize = 64 << 20;

/// Maximum image URLs of a request.
const MAX_IMAGES: usize = 16;

/// Maximum redirects to follow.
const MAX_REDIRECTS: usize = 5;

/// Time limit of one image, including redirects and the wait for a fetch slot.
const IMAGE_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });

/// Time limit of all images of a request.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of all images of earlier turns together.
const EARLIER_TURNS_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum concurrent fetches of all requests.
const MAX_CONCURRENT_FETCHES: usize = 8;

/// Maximum concurrent fetches of one client.
const MAX_CLIENT_FETCHES: usize = MAX_CONCURRENT_FETCHES / 2;

/// Description of the fetches of images.
pub(crate) static IMAGE_FETCHES: SharedTable = SharedTable {
    name: "fetches of images by URL",
    holders: &["puna_server::util::client_slots::ClientSlots"],
    limits: &[TableLimit::Entries(MAX_CONCURRENT_FETCHES)],
    shares: &[TableLimit::Entries(MAX_CLIENT_FETCHES)],
    when_full: "waits 30 seconds, then 400",
    test: "a_client_that_holds_its_share_of_slots_does_not_delay_another",
};

/// Maximum characters of a URL in error messages.
const MAX_SHOWN_CHARS: usize = 100;

/// Reason in errors of image URLs when fetching is disabled.
pub(crate) const IMAGE_URLS_OFF: &str = "the server's setting image_urls is off";

/// Whether a text is an HTTP URL.
pub(crate) fn is_http_url(text: &str) -> bool {
    let begins = |scheme: &str| {
        text.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme))
    };
    begins("http://") || begins("https://")
}

/// Why an image was not fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ImageUrlError {
    #[error("is not a valid URL: it must start with http:// or https:// and contain no user name")]
    Address,
    #[error(
        "cannot be fetched: a host does not answer in time, or its address is not public; to allow such a host, add it to the server's setting image_hosts"
    )]
    Unreachable,
    #[error("redirects from https to http, which is not allowed")]
    Downgrade,
    #[error("was redirected more than {MAX_REDIRECTS} times")]
    Redirects,
    #[error("returned status {0}")]
    Status(u16),
    #[error("has type {0:?}: it must be image/png, image/jpeg or image/webp")]
    Kind(String),
    #[error("does not contain a PNG, JPEG or WebP image")]
    Content,
    #[error("is larger than {} MiB", .0 >> 20)]
    TooLarge(usize),
    #[error("cannot be fetched: {0}")]
    Client(String),
}

/// Fetches images.
pub(crate) struct ImageFetcher {
    policy: OutgoingPolicy,
    fetch_slots: ClientSlots,
    tls: rustls::ClientConfig,
}

impl ImageFetcher {
    /// Returns `None` if the configuration disables fetching.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        if !config.image_urls {
            return None;
        }
        match puna_registry::tls_config() {
            Ok(tls) => Some(Self::with(config.image_policy(), tls)),
            Err(error) => {
                tracing::error!(%error, "cannot set up TLS for image_urls; images are not fetched");
                None
            }
        }
    }

    fn with(policy: OutgoingPolicy, tls: rustls::ClientConfig) -> Self {
        Self {
            policy,
            fetch_slots: ClientSlots::new(MAX_CONCURRENT_FETCHES, MAX_CLIENT_FETCHES),
            tls,
        }
    }

    /// Fetches images of a client one after the other and replaces their URLs. URLs of earlier
    /// turns remain if their images cannot be fetched.
    ///
    /// # Errors
    /// An image of the newest turn cannot be fetched, or there are too many.
    pub(crate) async fn fetch_all(
        &self,
        client: u64,
        urls: Vec<ImageUrl<'_>>,
    ) -> Result<(), ApiError> {
        let (newest, earlier): (Vec<_>, Vec<_>) = urls.into_iter().partition(ImageUrl::is_newest);
        let Some(rest) = MAX_IMAGES.checked_sub(newest.len()) else {
            return Err(ApiError::bad_request(format!(
                "{} image URLs are too many: at most {MAX_IMAGES} are allowed in a request",
                newest.len()
            )));
        };
        let (mut left, mut end) = (MAX_TOTAL_BYTES, Instant::now() + TOTAL_TIMEOUT);
        let mut is_earlier = false;
        for url in newest.into_iter().chain(earlier.into_iter().rev().take(rest)) {
            // A dead URL of an earlier turn is sent again with every turn.
            if !url.is_newest() && !is_earlier {
                (is_earlier, end) = (true, end.min(Instant::now() + EARLIER_TURNS_TIMEOUT));
            }
            let image =
                timeout_at(end, self.fetch(client, url.url(), left.min(MAX_IMAGE_BYTES))).await;
            match image.unwrap_or(Err(ImageUrlError::Unreachable)) {
                Ok(image) => {
                    left -= image.len();
                    url.replace_with(&image);
                }
                Err(error) if url.is_newest() => {
                    let shown: String = url.url().chars().take(MAX_SHOWN_CHARS).collect();
                    return Err(ApiError::bad_request(format!("image URL {shown:?} {error}")));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Fetches the image at a URL, of at most `max_bytes`.
    async fn fetch(
        &self,
        client: u64,
        text: &str,
        max_bytes: usize,
    ) -> Result<Vec<u8>, ImageUrlError> {
        let fetched = timeout(IMAGE_TIMEOUT, async {
            let _slot = self.fetch_slots.acquire(client).await;
            self.follow(text, max_bytes).await
        });
        fetched.await.unwrap_or(Err(ImageUrlError::Unreachable))
    }

    async fn follow(&self, text: &str, max_bytes: usize) -> Result<Vec<u8>, ImageUrlError> {
        let mut url = Url::parse(text).map_err(|_| ImageUrlError::Address)?;
        for hop in 0..=MAX_REDIRECTS {
            let response = self.request(&url, hop).await?;
            if !response.status().is_redirection() {
                return read_image(response, max_bytes).await;
            }
            let next = response.headers().get(LOCATION).and_then(|next| next.to_str().ok());
            let next = next.and_then(|next| url.join(next).ok()).ok_or(ImageUrlError::Address)?;
            if url.scheme() == "https" && next.scheme() == "http" {
                return Err(ImageUrlError::Downgrade);
            }
            url = next;
        }
        Err(ImageUrlError::Redirects)
    }

    /// Requests a URL from exactly the addresses that were checked. A DNS server cannot substitute
    /// other ones in between.
    async fn request(&self, url: &Url, hop: usize) -> Result<Response, ImageUrlError> {
        let of_web = matches!(url.scheme(), "http" | "https");
        let anonymous = url.username().is_empty() && url.password().is_none();
        if !of_web || !anonymous {
            return Err(ImageUrlError::Address);
        }
        let checked = match hop {
            0 => self.policy.resolve_requested(url, url).await,
            _ => self.policy.resolve(url).await,
        };
        let destination = checked.map_err(|reason| {
            let host = url.host_str();
            tracing::info!(host, %reason, "refused to fetch an image by its URL");
            ImageUrlError::Unreachable
        })?;
        // Without an address, only a proxy could resolve the name.
        if destination.addresses.is_empty() {
            return Err(ImageUrlError::Unreachable);
        }
        let client = Client::builder()
            .user_agent(concat!("puna/", env!("CARGO_PKG_VERSION")))
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            // A proxy would resolve the name again without this check.
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .tls_backend_preconfigured(self.tls.clone())
            .resolve_to_addrs(&destination.host, &destination.addresses)
            .build()
            .map_err(|e| ImageUrlError::Client(puna_registry::root_cause(&e)))?;
        let request = client.get(url.clone()).header(ACCEPT, "image/png, image/jpeg, image/webp");
        request.header(ACCEPT_ENCODING, "identity").send().await.map_err(|e| unreachable(&e))
    }
}

/// Reads a response that must be an image.
async fn read_image(mut response: Response, max_bytes: usize) -> Result<Vec<u8>, ImageUrlError> {
    if response.status().as_u16() != 200 {
        return Err(ImageUrlError::Status(response.status().as_u16()));
    }
    let kind = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if !matches!(kind.as_str(), "image/png" | "image/jpeg" | "image/jpg" | "image/webp") {
        return Err(ImageUrlError::Kind(kind.chars().take(MAX_SHOWN_CHARS).collect()));
    }
    if response.content_length().is_some_and(|length| length > max_bytes as u64) {
        return Err(ImageUrlError::TooLarge(max_bytes));
    }
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|e| unreachable(&e))? {
        if bytes.len() + piece.len() > max_bytes {
            return Err(ImageUrlError::TooLarge(max_bytes));
        }
        bytes.extend_from_slice(&piece);
    }
    let known = bytes.starts_with(b"\x89PNG\r\n\x1a\n")
        || bytes.starts_with(b"\xff\xd8\xff")
        || (bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP"));
    if known { Ok(bytes) } else { Err(ImageUrlError::Content) }
}

/// Error of a failed connection. Only the log has its cause: the caller must not learn whether a
/// port is open.
fn unreachable(error: &reqwest::Error) -> ImageUrlError {
    tracing::info!(error = puna_registry::root_cause(error), "cannot fetch an image by its URL");
    ImageUrlError::Unreachable
}
