//! The upload of one blob: asked for, taken over from another model, or sent in pieces that are gone on from, also by another
//! process: where the upload is, is noted in the store ([`UploadNote`]).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use md5::{Digest as _, Md5};
use puna_store::{Digest, Layer, ModelName, Store, UploadNote};
use reqwest::header::{
    CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderName, LOCATION, RANGE,
};
use reqwest::{Body, Method, Response, StatusCode, Url};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use crate::address::shown;
use crate::blocking::blocking;
use crate::error::RegistryError;
use crate::http::{Ask, Session, stalled};
use crate::lock::lock;
use crate::rate::Limit;

/// Bytes of a piece, of which each is one request.
const PIECE: u64 = 100_000_000;
/// The largest piece that a registry may demand.
const MAX_PIECE: u64 = 1_000_000_000;
/// Pieces of a blob at most, before they grow.
const PIECES: u64 = 16;
/// Bytes that are read from the disk at once.
const BLOCK: usize = 1 << 18;
/// How often a registry's answer may take us to another place before a blob is there.
const MAX_MOVES: usize = 100_000;
/// How often an upload may be gone on with in vain before it is begun anew.
const MAX_STUCK: u32 = 2;

const UPLOAD_LOCATION: HeaderName = HeaderName::from_static("docker-upload-location");
const REDIRECT_UPLOADS: HeaderName = HeaderName::from_static("x-redirect-uploads");
const MIN_CHUNK: HeaderName = HeaderName::from_static("oci-chunk-min-length");

/// A blob on its way.
pub(crate) struct Upload<'a> {
    session: &'a Session,
    digest: Digest,
    size: u64,
    from: Option<String>,
    path: PathBuf,
    store: Arc<Store>,
    /// Bytes that were handed to the network. Never goes back.
    sent: Arc<AtomicU64>,
    /// Bytes that the registry says it has.
    reached: AtomicU64,
    /// Whether a storage elsewhere takes the bytes, which wants to know the sums of all of them in the end.
    elsewhere: AtomicBool,
}

/// Where an upload goes on.
struct Place {
    url: Url,
    /// The first byte that the registry lacks.
    at: u64,
}

/// Where an upload goes on, as it is noted.
#[derive(Serialize, Deserialize)]
struct Noted {
    url: String,
    /// Bytes of its pieces.
    piece: u64,
    /// How often it was gone on with in vain: the registry failed at it and took nothing more.
    #[serde(default)]
    stuck: u32,
}

/// An upload that an earlier run has begun.
struct Resumed {
    place: Place,
    piece: u64,
    stuck: u32,
}

/// The MD5 of each piece.
#[derive(Default)]
struct Sums {
    pieces: Vec<[u8; 16]>,
    /// A piece arrived in pieces itself.
    broken: bool,
}

impl Sums {
    /// What an object store calls an upload in pieces.
    fn etag(&self) -> Option<String> {
        let sum: String =
            Md5::digest(self.pieces.concat()).iter().map(|byte| format!("{byte:02x}")).collect();
        (!self.broken).then(|| format!("{sum}-{}", self.pieces.len()))
    }
}

impl<'a> Upload<'a> {
    pub(crate) fn new(
        session: &'a Session,
        store: &Arc<Store>,
        layer: &Layer,
        path: PathBuf,
    ) -> Self {
        let (digest, size, from) = (layer.digest, layer.size, layer.from.clone());
        let (store, sent, reached) = (store.clone(), Arc::default(), AtomicU64::new(0));
        Self {
            session,
            digest,
            size,
            from,
            path,
            store,
            sent,
            reached,
            elsewhere: AtomicBool::new(false),
        }
    }

    /// Bytes that were sent, or had been before.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed).min(self.size)
    }

    /// Has the registry have the blob.
    pub(crate) async fn run(&self) -> Result<(), RegistryError> {
        let mut retry = self.session.retry();
        loop {
            match self.is_there().await {
                Ok(true) => return Ok(()),
                Ok(false) => break,
                Err(error) => retry.after(error).await?,
            }
        }
        let note = self.note().await;
        if let Some(resumed) = self.resumed(note.as_ref()).await? {
            match self.go_on(resumed, note.as_ref()).await {
                // It is gone by now, or what the registry has of it is damaged.
                Err(error) if error.is_refusal() => {
                    tracing::info!(digest = %self.digest, %error, "an interrupted upload does not go on: beginning anew");
                }
                done => return done,
            }
        }
        let (url, piece) = loop {
            match self.begin().await {
                Ok(Some(begun)) => break begun,
                Ok(None) => return Ok(()),
                Err(error) => retry.after(error).await?,
            }
        };
        self.send(Place { url, at: 0 }, piece, Sums::default(), note.as_ref()).await
    }

    /// Sends what is missing of an upload that an earlier run has begun. That a registry fails at it is counted.
    async fn go_on(
        &self,
        resumed: Resumed,
        note: Option<&Arc<UploadNote>>,
    ) -> Result<(), RegistryError> {
        let Resumed { place: Place { url, at }, piece, stuck } = resumed;
        tracing::debug!(digest = %self.digest, at, "an interrupted upload goes on");
        self.sent.fetch_max(at, Ordering::Relaxed);
        // Of what an earlier run has sent there are no sums.
        let sums = Sums { broken: true, ..Sums::default() };
        let done = self.send(Place { url: url.clone(), at }, piece, sums, note).await;
        let in_vain = done.as_ref().is_err_and(RegistryError::is_of_the_server);
        if in_vain && self.reached.load(Ordering::Relaxed) <= at {
            self.remember(&url, piece, stuck + 1, note).await;
        }
        done
    }

    /// Sends what is missing, piece by piece, noting where it goes on.
    async fn send(
        &self,
        mut place: Place,
        piece: u64,
        mut sums: Sums,
        note: Option<&Arc<UploadNote>>,
    ) -> Result<(), RegistryError> {
        for _ in 0..MAX_MOVES {
            self.reached.fetch_max(place.at, Ordering::Relaxed);
            self.remember(&place.url, piece, 0, note).await;
            if place.at >= self.size {
                let done = self.commit(&place.url, &sums).await;
                if done.as_ref().err().is_none_or(RegistryError::is_refusal) {
                    forget(note).await;
                }
                return done;
            }
            let end = (place.at + piece).min(self.size);
            place = self.piece(place, end, &mut sums).await?;
        }
        Err(RegistryError::Answer {
            url: shown(&place.url),
            what: "the upload goes round in circles".into(),
        })
    }

    /// What is noted of this upload, unless another process is at it. Without a note it begins anew the next time.
    async fn note(&self) -> Option<Arc<UploadNote>> {
        let at = self.session.url(&["blobs", "uploads", &self.digest.to_string()]);
        let (store, key) = (self.store.clone(), Digest::of(at.as_str().as_bytes()));
        let note = blocking(move || Ok(store.upload_note(&key)?)).await;
        note.unwrap_or_else(|error| {
            tracing::debug!(%error, "where the upload goes on cannot be noted");
            None
        })
        .map(Arc::new)
    }

    /// Where an earlier run stopped, if the registry still knows of it. One that says again and again that it cannot tell, or
    /// has failed at it too often, knows nothing of it.
    ///
    /// # Errors
    /// Nobody answers.
    async fn resumed(
        &self,
        note: Option<&Arc<UploadNote>>,
    ) -> Result<Option<Resumed>, RegistryError> {
        let Some(Noted { url, piece, stuck }) = self.noted(note).await else { return Ok(None) };
        let Some(url) = Url::parse(&url).ok().filter(|url| self.session.is_ours(url)) else {
            return Ok(None);
        };
        let (asked, piece) = (Place { url, at: 0 }, piece.clamp(1, MAX_PIECE));
        let mut retry = self.session.retry();
        loop {
            let error = match self.progress(&asked).await {
                Ok(place) => return Ok(place.map(|place| Resumed { place, piece, stuck })),
                Err(error) => error,
            };
            match retry.after(error).await {
                Ok(()) => {}
                Err(error @ RegistryError::Retries(_)) if !error.is_of_the_server() => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::info!(digest = %self.digest, %error, "what the registry has is not known: beginning anew");
                    return Ok(None);
                }
            }
        }
    }

    /// What an earlier run has noted, unless that was in vain too often.
    async fn noted(&self, note: Option<&Arc<UploadNote>>) -> Option<Noted> {
        let note = note?.clone();
        let text = blocking(move || Ok(note.read())).await.ok()??;
        serde_json::from_slice(&text).ok().filter(|noted: &Noted| noted.stuck < MAX_STUCK)
    }

    /// Notes where the upload goes on, if it could do so without what this run knows.
    async fn remember(&self, url: &Url, piece: u64, stuck: u32, note: Option<&Arc<UploadNote>>) {
        if self.elsewhere.load(Ordering::Relaxed) || !self.session.is_ours(url) {
            return forget(note).await;
        }
        let Some(note) = note.cloned() else { return };
        let noted = Noted { url: url.to_string(), piece, stuck };
        let write = blocking(move || {
            let text =
                serde_json::to_vec(&noted).map_err(|e| RegistryError::Setup(e.to_string()))?;
            Ok(note.write(&text)?)
        });
        if let Err(error) = write.await {
            tracing::debug!(%error, "where the upload goes on is not noted");
        }
    }

    async fn is_there(&self) -> Result<bool, RegistryError> {
        let response =
            self.session.send(&Ask::new(Method::HEAD, self.session.blob_url(&self.digest))).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(false),
            status if status.is_success() => Ok(true),
            // No answer to this kind of request says why. That to the next one does, if it is refused, too.
            StatusCode::FORBIDDEN => Ok(false),
            _ => Err(self.session.refusal(response).await),
        }
    }

    /// Opens an upload: where it is, and the size of pieces. `None`: the registry has taken the blob from another model.
    async fn begin(&self) -> Result<Option<(Url, u64)>, RegistryError> {
        let mut url = self.session.url(&["blobs", "uploads", ""]);
        // Who made the model of one that the registry has need not send it again.
        if let Some(from) = self.from.as_deref().and_then(|from| ModelName::parse(from).ok()) {
            let repository = format!("{}/{}", from.namespace(), from.model());
            let pairs = [("from", repository), ("mount", self.digest.to_string())];
            url.query_pairs_mut().extend_pairs(pairs);
        }
        let empty = || Body::from("");
        let ask = Ask::new(Method::POST, url).header(CONTENT_LENGTH, "0").with_body(&empty);
        let response = self.session.send_patiently(&ask).await?;
        let response = self.session.expect_success(response).await?;
        if response.status() == StatusCode::CREATED {
            return Ok(None);
        }
        let demanded =
            response.headers().get(MIN_CHUNK).and_then(|v| v.to_str().ok()?.parse().ok());
        let piece = PIECE.max(self.size.div_ceil(PIECES)).max(demanded.unwrap_or(0)).min(MAX_PIECE);
        Ok(Some((self.next(&response)?, piece)))
    }

    /// Sends a piece, going on where the registry says that it stopped.
    async fn piece(&self, place: Place, end: u64, sums: &mut Sums) -> Result<Place, RegistryError> {
        let (mut place, mut retry) = (place, self.session.retry());
        loop {
            let error = match self.send_piece(&place, end).await {
                Ok((url, at, sum)) => {
                    sums.pieces.push(sum);
                    return Ok(Place { url, at });
                }
                Err(error)
                    if error.is_passing()
                        || matches!(error, RegistryError::Status { code: 416, .. }) =>
                {
                    error
                }
                Err(error) => return Err(error),
            };
            tracing::debug!(digest = %self.digest, at = place.at, %error, "a piece failed");
            tokio::time::sleep(retry.failed(error)?).await;
            // What arrived all the same need not be sent again, if the registry can say.
            if let Ok(Some(now)) = self.progress(&place).await {
                if now.at > place.at {
                    sums.broken = true;
                    return Ok(now);
                }
                place = now;
            }
        }
    }

    /// How much of an upload the registry has; `None` where it knows of none.
    async fn progress(&self, place: &Place) -> Result<Option<Place>, RegistryError> {
        let response = self.session.send(&Ask::new(Method::GET, place.url.clone())).await?;
        if response.status() != StatusCode::NO_CONTENT {
            let refused = self.session.expect_success(response).await.err();
            return refused.filter(RegistryError::is_passing).map_or(Ok(None), Err);
        }
        let at = received(response.headers()).unwrap_or(place.at).min(self.size);
        let url = self.next(&response).unwrap_or_else(|_| place.url.clone());
        Ok(Some(Place { url, at }))
    }

    /// One request with a piece: the next place, the first byte after what the registry has, and the piece's MD5.
    async fn send_piece(
        &self,
        place: &Place,
        end: u64,
    ) -> Result<(Url, u64, [u8; 16]), RegistryError> {
        let (from, range) = (place.at, format!("{}-{}", place.at, end - 1));
        let ask = Ask::new(Method::PATCH, place.url.clone())
            .header(CONTENT_RANGE, &range)
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(REDIRECT_UPLOADS, "1");
        let (response, sum) = self.send_bytes(ask, from, end).await?;
        if response.status() == StatusCode::TEMPORARY_REDIRECT {
            // A storage elsewhere takes the bytes; the registry has said where the next piece goes.
            self.elsewhere.store(true, Ordering::Relaxed);
            let next = self.next_from(&response, &[UPLOAD_LOCATION])?;
            let target = self.next_from(&response, &[LOCATION])?;
            let put = Ask::new(Method::PUT, target);
            let (response, sum) = self.send_bytes(put, from, end).await?;
            self.session.expect_success(response).await?;
            return Ok((next, end, sum));
        }
        let response = self.session.expect_success(response).await?;
        let next = self.next(&response)?;
        let at = received(response.headers()).unwrap_or(end).min(end);
        if at <= from {
            let what = format!("the registry took nothing of the bytes {range}");
            return Err(RegistryError::Answer { url: shown(&place.url), what });
        }
        Ok((next, at, sum))
    }

    /// A request whose body are bytes of the blob; it is given up when nothing of them leaves for a while.
    async fn send_bytes(
        &self,
        ask: Ask<'_>,
        from: u64,
        end: u64,
    ) -> Result<(Response, [u8; 16]), RegistryError> {
        let (moved, sum) = (Arc::new(AtomicU64::new(0)), Arc::new(std::sync::Mutex::new(None)));
        let body = || {
            let pieces = Reading::new(self, from, end, moved.clone(), sum.clone());
            Body::wrap_stream(futures_util::stream::try_unfold(pieces, Reading::next))
        };
        let ask = ask.header(CONTENT_LENGTH, &(end - from).to_string()).with_body(&body);
        let send = self.session.send(&ask);
        tokio::pin!(send);
        let patience = self.session.settings().patience;
        let mut before = 0;
        let response = loop {
            tokio::select! {
                response = &mut send => break response?,
                () = tokio::time::sleep(patience) => {
                    let now = moved.load(Ordering::Relaxed);
                    if now == before {
                        return Err(stalled(&ask.method, &ask.url, patience));
                    }
                    before = now;
                }
            }
        };
        let sum = lock(&sum).unwrap_or_default();
        Ok((response, sum))
    }

    /// Says that all bytes are there. Where an answer to that was lost, the upload may be gone for having become the blob.
    async fn commit(&self, url: &Url, sums: &Sums) -> Result<(), RegistryError> {
        let mut url = url.clone();
        url.query_pairs_mut().append_pair("digest", &self.digest.to_string());
        if let Some(etag) = sums.etag() {
            url.query_pairs_mut().append_pair("etag", &etag);
        }
        let empty = || Body::from("");
        let ask = Ask::new(Method::PUT, url).header(CONTENT_LENGTH, "0").with_body(&empty);
        let (mut retry, mut is_lost) = (self.session.retry(), false);
        loop {
            if is_lost && self.is_there().await == Ok(true) {
                return Ok(());
            }
            let done = match self.session.send_patiently(&ask).await {
                Ok(response) => self.session.expect_success(response).await.map(drop),
                Err(error) => Err(error),
            };
            let Err(error) = done else { return Ok(()) };
            // It may still be at it.
            let is_gone = is_lost && matches!(error, RegistryError::Status { code: 404 | 410, .. });
            let pause = match is_gone {
                true => retry.failed(error.clone()).map_err(|_| error)?,
                false if error.is_passing() => retry.failed(error)?,
                false => return Err(error),
            };
            is_lost = true;
            tokio::time::sleep(pause).await;
        }
    }

    fn next(&self, response: &Response) -> Result<Url, RegistryError> {
        self.next_from(response, &[UPLOAD_LOCATION, LOCATION])
    }

    /// The address in the first of these headers, absolute or relative.
    fn next_from(&self, response: &Response, headers: &[HeaderName]) -> Result<Url, RegistryError> {
        let find = |name: &HeaderName| response.headers().get(name)?.to_str().ok();
        match headers.iter().find_map(find) {
            Some(text) => self.session.next_hop(response.url(), text),
            None => Err(RegistryError::Answer {
                url: shown(response.url()),
                what: "the registry does not say where the upload goes on".into(),
            }),
        }
    }
}

/// The first byte after those that a registry has, by `Range: 0-99`. `0-0` may mean that it has none.
fn received(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(RANGE)?.to_str().ok()?;
    let (first, last) = text.strip_prefix("bytes=").unwrap_or(text).split_once('-')?;
    let last: u64 = last.trim().parse().ok()?;
    (first.trim() == "0" && last > 0).then(|| last.saturating_add(1))
}

/// Bytes of a file on their way into a request.
struct Reading {
    file: Option<tokio::fs::File>,
    path: PathBuf,
    at: u64,
    end: u64,
    moved: Arc<AtomicU64>,
    sent: Arc<AtomicU64>,
    limits: Vec<Arc<Limit>>,
    md5: Md5,
    sum: Arc<std::sync::Mutex<Option<[u8; 16]>>>,
}

/// Forgets an upload that is over.
async fn forget(note: Option<&Arc<UploadNote>>) {
    let Some(note) = note.cloned() else { return };
    if let Err(error) = blocking(move || Ok(note.forget()?)).await {
        tracing::debug!(%error, "a finished upload is still noted");
    }
}

impl Reading {
    fn new(
        upload: &Upload<'_>,
        at: u64,
        end: u64,
        moved: Arc<AtomicU64>,
        sum: Arc<std::sync::Mutex<Option<[u8; 16]>>>,
    ) -> Self {
        let (path, sent) = (upload.path.clone(), upload.sent.clone());
        let limits = upload.session.limits().to_vec();
        Self { file: None, path, at, end, moved, sent, limits, md5: Md5::new(), sum }
    }

    async fn next(mut self) -> io::Result<Option<(Bytes, Self)>> {
        if self.at >= self.end {
            return Ok(None);
        }
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                let mut file = tokio::fs::File::open(&self.path).await?;
                file.seek(io::SeekFrom::Start(self.at)).await?;
                file
            }
        };
        let want = usize::try_from(self.end - self.at).unwrap_or(BLOCK).min(BLOCK);
        let mut block = vec![0; want];
        file.read_exact(&mut block).await?;
        for limit in &self.limits {
            limit.pay(want as u64).await;
        }
        self.md5.update(&block);
        self.at += want as u64;
        self.moved.fetch_add(want as u64, Ordering::Relaxed);
        self.sent.fetch_max(self.at, Ordering::Relaxed);
        if self.at >= self.end {
            // Nobody asks for more than was announced, so that this is the last call.
            *lock(&self.sum) = Some(self.md5.finalize_reset().into());
        }
        self.file = Some(file);
        Ok(Some((block.into(), self)))
    }
}

impl Session {
    /// As [`Session::send`], for requests whose bodies are small.
    async fn send_patiently(&self, ask: &Ask<'_>) -> Result<Response, RegistryError> {
        // A registry may compute the digest of a large blob before it answers.
        let patience = self.settings().patience * 20;
        let sent = tokio::time::timeout(patience, self.send(ask)).await;
        sent.map_err(|_| stalled(&ask.method, &ask.url, patience))?
    }
}
