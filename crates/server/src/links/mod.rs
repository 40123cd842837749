//! Images that a request names by address instead of bringing them. They are fetched only where the configuration allows it
//! (`image_urls`) and for a model that sees, with bounds on time, size and redirects, and never from where the server alone
//! can reach: a client must not look into the server's network through the server's eyes.
//!
//! - `places` finds the addresses in the requests of each dialect and puts the images in their stead;
//! - `public` tells addresses that everybody can reach from others.

mod places;
mod public;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, LOCATION};
use reqwest::{Client, Response, Url};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use places::{Author, Content, Place, in_messages, in_openai};

use crate::canonical::Failure;
use crate::config::Config;

/// Bytes of an image at most.
const BYTES: usize = 20 << 20;

/// Bytes of all images of a request together.
const BYTES_TOGETHER: usize = 64 << 20;

/// Images of a request that are named by address.
const COUNT: usize = 16;

/// Redirects that are followed.
const HOPS: usize = 5;

/// How long an image may take, with all redirects and the wait for its turn.
const TIME: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });

/// How long all images of a request may take.
const TIME_TOGETHER: Duration = Duration::from_secs(60);
/// Time in which the images of earlier turns must be there, all together.
const TIME_OF_EARLIER: Duration = Duration::from_secs(5);

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);

/// Images that are fetched at once, of all requests.
const AT_ONCE: usize = 8;

/// Characters of an address that an error shows.
const SHOWN: usize = 100;

/// What is said of an address where none are fetched, behind the dialect's own words.
pub(crate) const OFF: &str = "the server's setting image_urls is off";

/// Whether a text is an address that would have to be fetched.
pub(crate) fn is_link(text: &str) -> bool {
    let begins = |scheme: &str| {
        text.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme))
    };
    begins("http://") || begins("https://")
}

/// Why an image was not fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkError {
    #[error(
        "is no address of the web: it must begin with http:// or https:// and have no user name in it"
    )]
    Address,
    #[error(
        "has no address that everybody can reach, and nothing is fetched from others unless the server's setting image_hosts names {host:?}"
    )]
    Private { host: String },
    #[error("led from https to http, which is not followed")]
    Downgrade,
    #[error("was redirected more than {HOPS} times")]
    Redirects,
    #[error("was answered with status {0}")]
    Status(u16),
    #[error(
        "is not an image that is known here (image/png, image/jpeg, image/webp): its type is {0:?}"
    )]
    Kind(String),
    #[error("says that it is an image, but what came is none (PNG, JPEG, WebP)")]
    Content,
    #[error("is larger than {} MiB", .0 >> 20)]
    TooLarge(usize),
    #[error("took longer than {} seconds, or all images together longer than {}", TIME.as_secs(), TIME_TOGETHER.as_secs())]
    Slow,
    #[error("could not be fetched: {0}")]
    Transport(String),
}

/// Names to addresses; the system's way, but for tests.
type Resolver =
    Arc<dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// Fetches images.
pub(crate) struct Links {
    /// Hosts, with or without a port, that are asked whatever their addresses are.
    hosts: Vec<String>,
    turns: Semaphore,
    tls: rustls::ClientConfig,
    resolver: Resolver,
}

impl Links {
    /// `None` where the configuration does not allow it.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        if !config.image_urls {
            return None;
        }
        match puna_registry::tls_config() {
            Ok(tls) => Some(Self::with(config.image_hosts.clone(), tls, Arc::new(resolve))),
            Err(error) => {
                tracing::error!(%error, "image_urls is on, but no connections can be made; images are not fetched");
                None
            }
        }
    }

    fn with(hosts: Vec<String>, tls: rustls::ClientConfig, resolver: Resolver) -> Self {
        let hosts = hosts.into_iter().map(|host| host.to_ascii_lowercase()).collect();
        Self { hosts, turns: Semaphore::new(AT_ONCE), tls, resolver }
    }

    /// Puts images where their addresses are, one after the other. Addresses of earlier turns stay where they are if their
    /// images cannot be fetched.
    ///
    /// # Errors
    /// An image of the newest turn cannot be fetched, or there are too many.
    pub(crate) async fn fetch_all(&self, places: Vec<Place<'_>>) -> Result<(), Failure> {
        let (newest, earlier): (Vec<_>, Vec<_>) = places.into_iter().partition(Place::is_newest);
        let Some(rest) = COUNT.checked_sub(newest.len()) else {
            return Err(Failure::bad_request(format!(
                "{} image URLs are too many: {COUNT} are fetched for a request",
                newest.len()
            )));
        };
        let (mut left, mut end) = (BYTES_TOGETHER, Instant::now() + TIME_TOGETHER);
        let mut is_earlier = false;
        for place in newest.into_iter().chain(earlier.into_iter().rev().take(rest)) {
            // A dead address of an earlier turn comes again with every turn.
            if !place.is_newest() && !is_earlier {
                (is_earlier, end) = (true, end.min(Instant::now() + TIME_OF_EARLIER));
            }
            let image = timeout_at(end, self.fetch(place.url(), left.min(BYTES))).await;
            match image.unwrap_or(Err(LinkError::Slow)) {
                Ok(image) => {
                    left -= image.len();
                    place.put(&image);
                }
                Err(error) if place.is_newest() => {
                    let shown: String = place.url().chars().take(SHOWN).collect();
                    return Err(Failure::bad_request(format!("image URL {shown:?} {error}")));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The image at an address, of so many bytes at most.
    async fn fetch(&self, text: &str, most: usize) -> Result<Vec<u8>, LinkError> {
        let fetched = timeout(TIME, async {
            let _turn = self.turns.acquire().await;
            self.follow(text, most).await
        });
        fetched.await.unwrap_or(Err(LinkError::Slow))
    }

    async fn follow(&self, text: &str, most: usize) -> Result<Vec<u8>, LinkError> {
        let mut url = Url::parse(text).map_err(|_| LinkError::Address)?;
        for _ in 0..=HOPS {
            let response = self.ask(&url).await?;
            if !response.status().is_redirection() {
                return image(response, most).await;
            }
            let next = response.headers().get(LOCATION).and_then(|next| next.to_str().ok());
            let next = next.and_then(|next| url.join(next).ok()).ok_or(LinkError::Address)?;
            if url.scheme() == "https" && next.scheme() == "http" {
                return Err(LinkError::Downgrade);
            }
            url = next;
        }
        Err(LinkError::Redirects)
    }

    /// Asks the host of an address, at those of its addresses that were looked at: whoever answers for the name cannot give
    /// another one meanwhile.
    async fn ask(&self, url: &Url) -> Result<Response, LinkError> {
        let of_web = matches!(url.scheme(), "http" | "https");
        let anonymous = url.username().is_empty() && url.password().is_none();
        let host = url.host_str().filter(|_| of_web && anonymous).ok_or(LinkError::Address)?;
        let port = url.port_or_known_default().ok_or(LinkError::Address)?;
        let private = || LinkError::Private { host: format!("{host}:{port}") };
        let literal = host.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        let addresses = match literal {
            Some(address) => vec![address],
            // What a name stands for in the server's network, or that it stands for nothing, is told to nobody.
            None => (self.resolver)(host.to_owned(), port).await.map_err(|_| private())?,
        };
        let allowed =
            self.hosts.iter().any(|named| *named == host || *named == format!("{host}:{port}"));
        if addresses.is_empty()
            || !(allowed || addresses.iter().all(|address| public::is_public(*address)))
        {
            return Err(private());
        }
        let sockets: Vec<_> =
            addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect();
        let client = Client::builder()
            .user_agent(concat!("puna/", env!("CARGO_PKG_VERSION")))
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            // A proxy would resolve the name anew, where nobody looks.
            .no_proxy()
            .connect_timeout(CONNECT)
            .tls_backend_preconfigured(self.tls.clone())
            .resolve_to_addrs(host, &sockets)
            .build()
            .map_err(|e| transport(&e))?;
        let request = client.get(url.clone()).header(ACCEPT, "image/png, image/jpeg, image/webp");
        request.header(ACCEPT_ENCODING, "identity").send().await.map_err(|e| transport(&e))
    }
}

fn resolve(host: String, port: u16) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
    Box::pin(async move {
        let found = tokio::net::lookup_host((host, port)).await?;
        Ok(found.map(|socket| socket.ip()).collect())
    })
}

/// Reads an answer that must be an image.
async fn image(mut response: Response, most: usize) -> Result<Vec<u8>, LinkError> {
    if response.status().as_u16() != 200 {
        return Err(LinkError::Status(response.status().as_u16()));
    }
    let kind = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if !matches!(kind.as_str(), "image/png" | "image/jpeg" | "image/jpg" | "image/webp") {
        return Err(LinkError::Kind(kind.chars().take(SHOWN).collect()));
    }
    if response.content_length().is_some_and(|length| length > most as u64) {
        return Err(LinkError::TooLarge(most));
    }
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|e| transport(&e))? {
        if bytes.len() + piece.len() > most {
            return Err(LinkError::TooLarge(most));
        }
        bytes.extend_from_slice(&piece);
    }
    let known = bytes.starts_with(b"\x89PNG\r\n\x1a\n")
        || bytes.starts_with(b"\xff\xd8\xff")
        || (bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP"));
    if known { Ok(bytes) } else { Err(LinkError::Content) }
}

fn transport(error: &reqwest::Error) -> LinkError {
    LinkError::Transport(puna_registry::root_cause(error))
}
