//! Ranges of one blob: found through redirects, each answer checked against what was asked for.

use std::sync::{Arc, Mutex};

use puna_store::Digest;
use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderMap, LOCATION, RANGE};
use reqwest::{Method, Response, StatusCode, Url};

use crate::address::shown;
use crate::error::RegistryError;
use crate::http::{Ask, Session};
use crate::lock::lock;

/// How often a registry is asked how many bytes a blob has.
const SIZE_ATTEMPTS: u32 = 3;

/// What is downloaded.
#[derive(Debug, Clone)]
pub(crate) struct What {
    /// Its digest; of a file whose digest nobody knows, something that only this version of it is called.
    pub(crate) key: Digest,
    /// Whether `key` is the digest.
    pub(crate) verified: bool,
    pub(crate) total: u64,
    pub(crate) url: Url,
}

/// Where a blob comes from.
pub(crate) struct Source {
    session: Arc<Session>,
    digest: Digest,
    total: u64,
    url: Url,
    /// Where the registry's address led to, until that fails.
    direct: Mutex<Option<Url>>,
}

/// An answer whose body is to be read.
pub(crate) enum Opened {
    /// The bytes that were asked for.
    Range(Response),
    /// All bytes: the server does not know ranges.
    Whole(Response),
}

impl Source {
    pub(crate) fn new(session: Arc<Session>, what: &What) -> Self {
        Self {
            session,
            digest: what.key,
            total: what.total,
            url: what.url.clone(),
            direct: Mutex::default(),
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn url(&self) -> Url {
        self.url.clone()
    }

    /// Asks for the bytes from `from` to before `end`.
    pub(crate) async fn open(&self, from: u64, end: u64) -> Result<Opened, RegistryError> {
        if let Some(direct) = self.direct() {
            match self.open_at(direct, from, end).await {
                // Addresses with a signature expire.
                Err(
                    RegistryError::Status { code: 400..=499, .. } | RegistryError::Answer { .. },
                ) => {
                    self.set_direct(None);
                }
                opened => return opened,
            }
        }
        self.open_at(self.url(), from, end).await
    }

    async fn open_at(&self, url: Url, from: u64, end: u64) -> Result<Opened, RegistryError> {
        let range = format!("bytes={from}-{}", end - 1);
        let mut ask = Ask::new(Method::GET, url).header(RANGE, &range);
        let mut moved = false;
        loop {
            let response = self.session.send(&ask).await?;
            let found = response.url().clone();
            match response.status() {
                StatusCode::PARTIAL_CONTENT => {
                    self.check_range(response.headers(), &found, from, end)?;
                    self.set_direct(Some(found).filter(|found| *found != self.url()));
                    return Ok(Opened::Range(response));
                }
                StatusCode::OK => {
                    // Ollama's own registry names the place of a blob beside a success.
                    if let Some(next) = place(&self.session, response.headers(), &found)?
                        && !moved
                    {
                        (ask.url, moved) = (next, true);
                        continue;
                    }
                    self.check_whole(&response, &found)?;
                    return Ok(Opened::Whole(response));
                }
                _ => return Err(self.session.refusal_of(&self.digest, response).await),
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
        let fail = |what: String| Err(RegistryError::Answer { url: shown(url), what });
        let Some((first, last, total)) = content_range(text) else {
            return fail(format!(
                "a part of the blob comes without its place (Content-Range: {text:?})"
            ));
        };
        if total.is_some_and(|total| total != self.total) {
            return Err(self.size(total.unwrap_or(0)));
        }
        if first != from || last < first || last >= end {
            return fail(format!(
                "the answer has the bytes {first}-{last}, but {from}-{} were asked for",
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
                let what = format!("instead of the blob comes a page for browsers{bytes}");
                Err(RegistryError::Answer { url: shown(url), what })
            }
            Some(len) => Err(self.size(len)),
            None => Ok(()),
        }
    }

    fn size(&self, found: u64) -> RegistryError {
        RegistryError::Size { digest: self.digest, expected: self.total, found }
    }

    fn direct(&self) -> Option<Url> {
        lock(&self.direct).clone()
    }

    fn set_direct(&self, url: Option<Url>) {
        *lock(&self.direct) = url;
    }
}

impl Session {
    /// The bytes of a blob that the registry has, which it says beside the first of them.
    pub(crate) async fn blob_size(&self, digest: &Digest) -> Result<u64, RegistryError> {
        let mut retry = self.retry().at_most(SIZE_ATTEMPTS);
        loop {
            match self.ask_size(digest).await {
                // In the words of who was asked.
                Err(error @ RegistryError::Status { .. }) => match retry.after(error).await {
                    Err(RegistryError::Retries(last)) => return Err(*last),
                    waited => waited?,
                },
                asked => return asked,
            }
        }
    }

    async fn ask_size(&self, digest: &Digest) -> Result<u64, RegistryError> {
        let mut ask = Ask::new(Method::GET, self.blob_url(digest)).header(RANGE, "bytes=0-0");
        let mut moved = false;
        loop {
            let response = self.send(&ask).await?;
            let (found, headers) = (response.url().clone(), response.headers());
            let size = match response.status() {
                StatusCode::PARTIAL_CONTENT => {
                    let text = headers.get(CONTENT_RANGE).and_then(|v| v.to_str().ok());
                    text.and_then(content_range).and_then(|(_, _, total)| total)
                }
                StatusCode::OK => {
                    if let Some(next) = place(self, headers, &found)?
                        && !moved
                    {
                        (ask.url, moved) = (next, true);
                        continue;
                    }
                    let kind =
                        headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
                    response.content_length().filter(|_| !kind.starts_with("text/html"))
                }
                StatusCode::NOT_FOUND => return Err(RegistryError::NotFound),
                _ => return Err(self.refusal(response).await),
            };
            let what = "the answer does not say how many bytes the blob has".to_owned();
            return size.ok_or_else(|| RegistryError::Answer { url: shown(&found), what });
        }
    }
}

/// The place that a success names, if it is another one.
fn place(
    session: &Session,
    headers: &HeaderMap,
    found: &Url,
) -> Result<Option<Url>, RegistryError> {
    let Some(text) = headers.get(LOCATION).and_then(|v| v.to_str().ok()) else { return Ok(None) };
    Ok(Some(session.next_hop(found, text)?).filter(|next| next != found))
}

/// `bytes 0-99/1234`, or `*` instead of the total.
pub(crate) fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((first.parse().ok()?, last.parse().ok()?, total))
}
