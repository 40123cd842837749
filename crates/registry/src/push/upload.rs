//! Upload of one blob: mounted from another repository, or sent in pieces. An interrupted upload
//! can be resumed by another process, since its position is recorded in the store
//! ([`UploadRecordFile`]).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use md5::{Digest as _, Md5};
use puna_store::{Digest, Layer, ModelName, Store, UploadRecordFile};
use reqwest::header::{
    CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderName, LOCATION, RANGE,
};
use reqwest::{Body, Method, Response, StatusCode, Url};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use crate::blocking::blocking;
use crate::client::rate_limit::RateLimit;
use crate::client::session::{RequestSpec, Session, stalled_error};
use crate::display::display_url;
use crate::error::{RegistryError, SetupProblem};
use crate::lock::lock;

/// Size of a piece in bytes. Each piece is one request.
const PIECE_BYTES: u64 = 100_000_000;
/// Largest piece that a registry may demand, in bytes.
const MAX_PIECE_BYTES: u64 = 1_000_000_000;
/// Largest number of pieces before the pieces grow.
const MAX_PIECES: u64 = 16;
/// Bytes that are read from the disk at once.
const READ_BYTES: usize = 1 << 18;
/// Largest number of requests of one upload.
const MAX_MOVES: usize = 100_000;
/// How often resuming an upload may fail without progress before it is started again.
const MAX_FUTILE_RESUMES: u32 = 2;

const UPLOAD_LOCATION: HeaderName = HeaderName::from_static("docker-upload-location");
const REDIRECT_UPLOADS: HeaderName = HeaderName::from_static("x-redirect-uploads");
const MIN_CHUNK: HeaderName = HeaderName::from_static("oci-chunk-min-length");

/// Upload of a blob.
pub(crate) struct Upload<'a> {
    session: &'a Session,
    digest: Digest,
    size: u64,
    source_model: Option<String>,
    path: PathBuf,
    store: Arc<Store>,
    /// Bytes handed to the network. Never decreases.
    sent: Arc<AtomicU64>,
    /// Bytes that the registry has acknowledged.
    acknowledged: AtomicU64,
    /// Whether an external object store takes the bytes. It needs the checksums of all pieces at
    /// the end.
    uses_external_storage: AtomicBool,
}

/// Position of an upload.
struct UploadPosition {
    url: Url,
    /// First byte that the registry lacks.
    at: u64,
}

/// Record of an upload in the store.
#[derive(Serialize, Deserialize)]
struct UploadRecord {
    url: String,
    /// Size of its pieces in bytes.
    piece: u64,
    /// How often resuming failed without progress because the registry failed.
    #[serde(default)]
    stuck: u32,
}

/// Upload that an earlier run has started.
struct InterruptedUpload {
    position: UploadPosition,
    piece: u64,
    stuck: u32,
}

/// MD5 of each piece.
#[derive(Default)]
struct PieceChecksums {
    pieces: Vec<[u8; 16]>,
    /// A piece was sent in several requests, so its checksum is unknown.
    incomplete: bool,
}

impl PieceChecksums {
    /// The ETag of a multipart upload at an object store.
    fn etag(&self) -> Option<String> {
        let sum: String =
            Md5::digest(self.pieces.concat()).iter().map(|byte| format!("{byte:02x}")).collect();
        (!self.incomplete).then(|| format!("{sum}-{}", self.pieces.len()))
    }
}

impl<'a> Upload<'a> {
    pub(crate) fn new(
        session: &'a Session,
        store: &Arc<Store>,
        layer: &Layer,
        path: PathBuf,
    ) -> Self {
        let (digest, size, source_model) = (layer.digest, layer.size, layer.from.clone());
        let (store, sent, acknowledged) = (store.clone(), Arc::default(), AtomicU64::new(0));
        Self {
            session,
            digest,
            size,
            source_model,
            path,
            store,
            sent,
            acknowledged,
            uses_external_storage: AtomicBool::new(false),
        }
    }

    /// Bytes that were sent, including earlier runs.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed).min(self.size)
    }

    /// Uploads the blob unless the registry has it.
    pub(crate) async fn run(&self) -> Result<(), RegistryError> {
        let mut retry = self.session.retry();
        loop {
            match self.registry_has_blob().await {
                Ok(true) => return Ok(()),
                Ok(false) => break,
                Err(error) => retry.wait_after(error).await?,
            }
        }
        let record_file = self.open_record_file().await;
        if let Some(resumed) = self.find_interrupted(record_file.as_ref()).await? {
            match self.resume(resumed, record_file.as_ref()).await {
                // The upload has expired, or the registry's copy is damaged.
                Err(error) if error.is_refusal() => {
                    tracing::info!(digest = %self.digest, %error, "cannot resume the interrupted upload; starting again");
                }
                result => return result,
            }
        }
        let (url, piece) = loop {
            match self.begin().await {
                Ok(Some(begun)) => break begun,
                Ok(None) => return Ok(()),
                Err(error) => retry.wait_after(error).await?,
            }
        };
        self.send(
            UploadPosition { url, at: 0 },
            piece,
            PieceChecksums::default(),
            record_file.as_ref(),
        )
        .await
    }

    /// Resumes an interrupted upload. Counts failures of the registry without progress.
    async fn resume(
        &self,
        resumed: InterruptedUpload,
        record_file: Option<&Arc<UploadRecordFile>>,
    ) -> Result<(), RegistryError> {
        let InterruptedUpload { position: UploadPosition { url, at }, piece, stuck } = resumed;
        tracing::debug!(digest = %self.digest, at, "resuming an interrupted upload");
        self.sent.fetch_max(at, Ordering::Relaxed);
        // The checksums of an earlier run's pieces are unknown.
        let checksums = PieceChecksums { incomplete: true, ..PieceChecksums::default() };
        let result =
            self.send(UploadPosition { url: url.clone(), at }, piece, checksums, record_file).await;
        let was_futile = result.as_ref().is_err_and(RegistryError::is_server_failure);
        if was_futile && self.acknowledged.load(Ordering::Relaxed) <= at {
            self.write_record(&url, piece, stuck + 1, record_file).await;
        }
        result
    }

    /// Sends the missing bytes piece by piece, and records the position.
    async fn send(
        &self,
        mut position: UploadPosition,
        piece: u64,
        mut checksums: PieceChecksums,
        record_file: Option<&Arc<UploadRecordFile>>,
    ) -> Result<(), RegistryError> {
        for _ in 0..MAX_MOVES {
            self.acknowledged.fetch_max(position.at, Ordering::Relaxed);
            self.write_record(&position.url, piece, 0, record_file).await;
            if position.at >= self.size {
                let result = self.commit(&position.url, &checksums).await;
                if result.as_ref().err().is_none_or(RegistryError::is_refusal) {
                    remove_record_file(record_file).await;
                }
                return result;
            }
            let end = (position.at + piece).min(self.size);
            position = self.send_piece_with_retry(position, end, &mut checksums).await?;
        }
        Err(RegistryError::InvalidResponse {
            url: display_url(&position.url),
            what: "the upload makes no progress".into(),
        })
    }

    /// Opens the record of this upload. `None`: another process has it, or the store fails; then
    /// the upload cannot be resumed.
    async fn open_record_file(&self) -> Option<Arc<UploadRecordFile>> {
        let at = self.session.url(&["blobs", "uploads", &self.digest.to_string()]);
        let (store, key) = (self.store.clone(), Digest::of(at.as_str().as_bytes()));
        let record_file = blocking(move || Ok(store.upload_record_file(&key)?)).await;
        record_file
            .unwrap_or_else(|error| {
                tracing::debug!(%error, "cannot open the record of the upload");
                None
            })
            .map(Arc::new)
    }

    /// Asks the registry for the position of a recorded upload. `None`: there is no upload to
    /// resume, or the registry fails repeatedly to tell.
    ///
    /// # Errors
    /// The registry does not answer.
    async fn find_interrupted(
        &self,
        record_file: Option<&Arc<UploadRecordFile>>,
    ) -> Result<Option<InterruptedUpload>, RegistryError> {
        let Some(UploadRecord { url, piece, stuck }) = self.read_record(record_file).await else {
            return Ok(None);
        };
        let Some(url) = Url::parse(&url).ok().filter(|url| self.session.is_registry_origin(url))
        else {
            return Ok(None);
        };
        let (start, piece) = (UploadPosition { url, at: 0 }, piece.clamp(1, MAX_PIECE_BYTES));
        let mut retry = self.session.retry();
        loop {
            let error = match self.query_position(&start).await {
                Ok(position) => {
                    return Ok(position.map(|position| InterruptedUpload {
                        position,
                        piece,
                        stuck,
                    }));
                }
                Err(error) => error,
            };
            match retry.wait_after(error).await {
                Ok(()) => {}
                Err(error @ RegistryError::RetriesExceeded(_)) if !error.is_server_failure() => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::info!(digest = %self.digest, %error, "cannot query the interrupted upload; starting again");
                    return Ok(None);
                }
            }
        }
    }

    /// Reads the record of an earlier run, unless resuming has failed too often.
    async fn read_record(
        &self,
        record_file: Option<&Arc<UploadRecordFile>>,
    ) -> Option<UploadRecord> {
        let record_file = record_file?.clone();
        let text = blocking(move || Ok(record_file.read())).await.ok()??;
        serde_json::from_slice(&text)
            .ok()
            .filter(|record: &UploadRecord| record.stuck < MAX_FUTILE_RESUMES)
    }

    /// Records the position, if a later run can resume from it without this run's checksums.
    async fn write_record(
        &self,
        url: &Url,
        piece: u64,
        stuck: u32,
        record_file: Option<&Arc<UploadRecordFile>>,
    ) {
        if self.uses_external_storage.load(Ordering::Relaxed)
            || !self.session.is_registry_origin(url)
        {
            return remove_record_file(record_file).await;
        }
        let Some(record_file) = record_file.cloned() else { return };
        let record = UploadRecord { url: url.to_string(), piece, stuck };
        let write = blocking(move || {
            let text = serde_json::to_vec(&record).map_err(SetupProblem::from)?;
            Ok(record_file.write(&text)?)
        });
        if let Err(error) = write.await {
            tracing::debug!(%error, "cannot write the record of the upload");
        }
    }

    async fn registry_has_blob(&self) -> Result<bool, RegistryError> {
        let response = self
            .session
            .send(&RequestSpec::new(Method::HEAD, self.session.blob_url(&self.digest)))
            .await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(false),
            status if status.is_success() => Ok(true),
            // A response to HEAD has no body that gives the reason. The next request's response
            // does, if it is refused too.
            StatusCode::FORBIDDEN => Ok(false),
            _ => Err(self.session.error_from_response(response).await),
        }
    }

    /// Starts an upload. Returns its URL and the size of pieces. `None`: the registry has mounted
    /// the blob from another repository.
    async fn begin(&self) -> Result<Option<(Url, u64)>, RegistryError> {
        let mut url = self.session.url(&["blobs", "uploads", ""]);
        // A blob of the model that this one was made from need not be sent again.
        if let Some(from) =
            self.source_model.as_deref().and_then(|from| ModelName::parse(from).ok())
        {
            let repository = format!("{}/{}", from.namespace(), from.model());
            let pairs = [("from", repository), ("mount", self.digest.to_string())];
            url.query_pairs_mut().extend_pairs(pairs);
        }
        let empty = || Body::from("");
        let request =
            RequestSpec::new(Method::POST, url).header(CONTENT_LENGTH, "0").with_body(&empty);
        let response = self.session.send_with_long_timeout(&request).await?;
        let response = self.session.expect_success(response).await?;
        if response.status() == StatusCode::CREATED {
            return Ok(None);
        }
        let min_chunk =
            response.headers().get(MIN_CHUNK).and_then(|v| v.to_str().ok()?.parse().ok());
        let piece = PIECE_BYTES
            .max(self.size.div_ceil(MAX_PIECES))
            .max(min_chunk.unwrap_or(0))
            .min(MAX_PIECE_BYTES);
        Ok(Some((self.next_url(&response)?, piece)))
    }

    /// Sends a piece with retries, from where the registry stopped.
    async fn send_piece_with_retry(
        &self,
        position: UploadPosition,
        end: u64,
        checksums: &mut PieceChecksums,
    ) -> Result<UploadPosition, RegistryError> {
        let (mut position, mut retry) = (position, self.session.retry());
        loop {
            let error = match self.send_piece(&position, end).await {
                Ok((url, at, sum)) => {
                    checksums.pieces.push(sum);
                    return Ok(UploadPosition { url, at });
                }
                Err(error)
                    if error.is_retryable()
                        || matches!(error, RegistryError::Status { code: 416, .. }) =>
                {
                    error
                }
                Err(error) => return Err(error),
            };
            tracing::debug!(digest = %self.digest, at = position.at, %error, "sending a piece failed");
            tokio::time::sleep(retry.record_failure(error)?).await;
            // Bytes that have arrived in a failed request need not be sent again, if the registry
            // can tell.
            if let Ok(Some(now)) = self.query_position(&position).await {
                if now.at > position.at {
                    checksums.incomplete = true;
                    return Ok(now);
                }
                position = now;
            }
        }
    }

    /// Asks the registry for the position of an upload. `None`: the registry does not know the
    /// upload.
    async fn query_position(
        &self,
        position: &UploadPosition,
    ) -> Result<Option<UploadPosition>, RegistryError> {
        let response =
            self.session.send(&RequestSpec::new(Method::GET, position.url.clone())).await?;
        if response.status() != StatusCode::NO_CONTENT {
            let refused = self.session.expect_success(response).await.err();
            return refused.filter(RegistryError::is_retryable).map_or(Ok(None), Err);
        }
        let at = received_bytes(response.headers()).unwrap_or(position.at).min(self.size);
        let url = self.next_url(&response).unwrap_or_else(|_| position.url.clone());
        Ok(Some(UploadPosition { url, at }))
    }

    /// Sends one request with a piece. Returns the next URL, the first byte that the registry
    /// lacks, and the piece's MD5.
    async fn send_piece(
        &self,
        position: &UploadPosition,
        end: u64,
    ) -> Result<(Url, u64, [u8; 16]), RegistryError> {
        let (from, range) = (position.at, format!("{}-{}", position.at, end - 1));
        let request = RequestSpec::new(Method::PATCH, position.url.clone())
            .header(CONTENT_RANGE, &range)
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(REDIRECT_UPLOADS, "1");
        let (response, sum) = self.send_bytes(request, from, end).await?;
        if response.status() == StatusCode::TEMPORARY_REDIRECT {
            // An external object store takes the bytes. The registry's response names the URL of
            // the next piece.
            self.uses_external_storage.store(true, Ordering::Relaxed);
            let next = self.url_from_headers(&response, &[UPLOAD_LOCATION])?;
            let target = self.url_from_headers(&response, &[LOCATION])?;
            let put = RequestSpec::new(Method::PUT, target);
            let (response, sum) = self.send_bytes(put, from, end).await?;
            self.session.expect_success(response).await?;
            return Ok((next, end, sum));
        }
        let response = self.session.expect_success(response).await?;
        let next = self.next_url(&response)?;
        let at = received_bytes(response.headers()).unwrap_or(end).min(end);
        if at <= from {
            let what = format!("the registry accepted none of the bytes {range}");
            return Err(RegistryError::InvalidResponse { url: display_url(&position.url), what });
        }
        Ok((next, at, sum))
    }

    /// Sends a request with a part of the blob as its body. Fails if no byte is sent for the stall
    /// timeout.
    async fn send_bytes(
        &self,
        request: RequestSpec<'_>,
        from: u64,
        end: u64,
    ) -> Result<(Response, [u8; 16]), RegistryError> {
        let (handed_over, sum) =
            (Arc::new(AtomicU64::new(0)), Arc::new(std::sync::Mutex::new(None)));
        let body = || {
            let pieces = BlobPieceStream::new(self, from, end, handed_over.clone(), sum.clone());
            Body::wrap_stream(futures_util::stream::try_unfold(pieces, BlobPieceStream::next))
        };
        let request = request.header(CONTENT_LENGTH, &(end - from).to_string()).with_body(&body);
        let send = self.session.send(&request);
        tokio::pin!(send);
        let timeout = self.session.settings().stall_timeout;
        let mut before = 0;
        let response = loop {
            tokio::select! {
                response = &mut send => break response?,
                () = tokio::time::sleep(timeout) => {
                    let now = handed_over.load(Ordering::Relaxed);
                    if now == before {
                        return Err(stalled_error(&request.method, &request.url, timeout));
                    }
                    before = now;
                }
            }
        };
        let sum = lock(&sum).unwrap_or_default();
        Ok((response, sum))
    }

    /// Completes the upload. If the response was lost, the blob may exist and the upload may be
    /// gone.
    async fn commit(&self, url: &Url, checksums: &PieceChecksums) -> Result<(), RegistryError> {
        let mut url = url.clone();
        url.query_pairs_mut().append_pair("digest", &self.digest.to_string());
        if let Some(etag) = checksums.etag() {
            url.query_pairs_mut().append_pair("etag", &etag);
        }
        let empty = || Body::from("");
        let request =
            RequestSpec::new(Method::PUT, url).header(CONTENT_LENGTH, "0").with_body(&empty);
        let (mut retry, mut response_lost) = (self.session.retry(), false);
        loop {
            if response_lost && self.registry_has_blob().await == Ok(true) {
                return Ok(());
            }
            let result = match self.session.send_with_long_timeout(&request).await {
                Ok(response) => self.session.expect_success(response).await.map(drop),
                Err(error) => Err(error),
            };
            let Err(error) = result else { return Ok(()) };
            // The registry may still be working on it.
            let is_gone =
                response_lost && matches!(error, RegistryError::Status { code: 404 | 410, .. });
            let pause = match is_gone {
                true => retry.record_failure(error.clone()).map_err(|_| error)?,
                false if error.is_retryable() => retry.record_failure(error)?,
                false => return Err(error),
            };
            response_lost = true;
            tokio::time::sleep(pause).await;
        }
    }

    fn next_url(&self, response: &Response) -> Result<Url, RegistryError> {
        self.url_from_headers(response, &[UPLOAD_LOCATION, LOCATION])
    }

    /// The URL in the first of these headers, absolute or relative.
    fn url_from_headers(
        &self,
        response: &Response,
        headers: &[HeaderName],
    ) -> Result<Url, RegistryError> {
        let find = |name: &HeaderName| response.headers().get(name)?.to_str().ok();
        match headers.iter().find_map(find) {
            Some(text) => self.session.next_hop(response.url(), text),
            None => Err(RegistryError::InvalidResponse {
                url: display_url(response.url()),
                what: "the response lacks the URL of the upload".into(),
            }),
        }
    }
}

/// First byte that a registry lacks, from `Range: 0-99`. `0-0` may mean that it has none.
fn received_bytes(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(RANGE)?.to_str().ok()?;
    let (first, last) = text.strip_prefix("bytes=").unwrap_or(text).split_once('-')?;
    let last: u64 = last.trim().parse().ok()?;
    (first.trim() == "0" && last > 0).then(|| last.saturating_add(1))
}

/// Stream of a piece's bytes for a request body.
struct BlobPieceStream {
    file: Option<tokio::fs::File>,
    path: PathBuf,
    at: u64,
    end: u64,
    handed_over: Arc<AtomicU64>,
    sent: Arc<AtomicU64>,
    limits: Vec<Arc<RateLimit>>,
    md5: Md5,
    sum: Arc<std::sync::Mutex<Option<[u8; 16]>>>,
}

/// Removes the record of a finished upload.
async fn remove_record_file(record_file: Option<&Arc<UploadRecordFile>>) {
    let Some(record_file) = record_file.cloned() else { return };
    if let Err(error) = blocking(move || Ok(record_file.remove()?)).await {
        tracing::debug!(%error, "cannot remove the record of a finished upload");
    }
}

impl BlobPieceStream {
    fn new(
        upload: &Upload<'_>,
        at: u64,
        end: u64,
        handed_over: Arc<AtomicU64>,
        sum: Arc<std::sync::Mutex<Option<[u8; 16]>>>,
    ) -> Self {
        let (path, sent) = (upload.path.clone(), upload.sent.clone());
        let limits = upload.session.limits().to_vec();
        Self { file: None, path, at, end, handed_over, sent, limits, md5: Md5::new(), sum }
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
        let length = usize::try_from(self.end - self.at).unwrap_or(READ_BYTES).min(READ_BYTES);
        let mut block = vec![0; length];
        file.read_exact(&mut block).await?;
        for limit in &self.limits {
            limit.throttle(length as u64).await;
        }
        self.md5.update(&block);
        self.at += length as u64;
        self.handed_over.fetch_add(length as u64, Ordering::Relaxed);
        self.sent.fetch_max(self.at, Ordering::Relaxed);
        if self.at >= self.end {
            // The content length is reached, so this is the last call.
            *lock(&self.sum) = Some(self.md5.finalize_reset().into());
        }
        self.file = Some(file);
        Ok(Some((block.into(), self)))
    }
}

impl Session {
    /// Like [`Session::send`], with a long timeout, for requests with small bodies.
    async fn send_with_long_timeout(
        &self,
        request: &RequestSpec<'_>,
    ) -> Result<Response, RegistryError> {
        // A registry may compute the digest of a large blob before it answers.
        let timeout = self.settings().stall_timeout * 20;
        let sent = tokio::time::timeout(timeout, self.send(request)).await;
        sent.map_err(|_| stalled_error(&request.method, &request.url, timeout))?
    }
}
