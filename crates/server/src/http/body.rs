//! Request bodies: read within limits and decoded regardless of their `Content-Type`.

use std::error::Error;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::BodyExt;
use memchr::memchr2_iter;
use puna_api::decode::{DecodeError, from_slice_with_ignored};
use puna_api::json::{MAX_VALUES, SyntaxError};
use ruzstd::decoding::StreamingDecoder;
use serde::de::DeserializeOwned;

use super::body_budget::{BodyBudget, BodyReservation, SINGLE_REQUEST_BYTES, hold_reservation};
use super::body_workers::{BATCH_BYTES, ClientWorkers, INLINE_BODY_BYTES};
use super::client::Client;
use super::header_list::list_value;
use super::{ErrorFormat, ErrorResponse};
use crate::canonical::ApiError;
use crate::util::lock::lock;

/// Maximum bytes of a JSON body, enough for a few large images.
const MAX_BODY_BYTES: usize = 128 << 20;

/// Maximum bytes of the body of a request that contains names and settings only.
pub(crate) const MAX_SETTINGS_BODY_BYTES: usize = 1 << 20;

/// Maximum bytes of a decompressed body.
const MAX_DECOMPRESSED_BYTES: usize = 20 << 20;

/// Typical bytes of text for a compressed byte.
const DECOMPRESSION_RATIO: usize = 4;

/// Bytes decompressed at a time.
const DECOMPRESS_CHUNK_BYTES: usize = 64 << 10;

/// Maximum zstd window in bytes.
const MAX_ZSTD_WINDOW_BYTES: u64 = 8 << 20;

/// Maximum frames of a compressed body.
const MAX_FRAMES: usize = 1024;

/// First bytes of every zstd frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Maximum ignored fields that the response header names.
const MAX_IGNORED: usize = 32;

/// Maximum characters of an ignored field's name in the header.
const MAX_NAME_CHARS: usize = 64;

/// Maximum chunks of a batch. Chunks may be as small as a byte, and each takes memory.
const MAX_BATCH_CHUNKS: usize = 64;

/// Minimum average rate of a body in bytes per second, after the first [`CHUNK_TIMEOUT`].
const MIN_BYTES_PER_SECOND: u64 = 1 << 10;

/// Bytes of a JSON value in memory besides its text.
const JSON_VALUE_BYTES: usize = 64;

/// Copies of the text in memory: one in the JSON values, one in the decoded request.
const TEXT_COPIES: usize = 2;

const _: () = assert!(
    MAX_BODY_BYTES * (1 + TEXT_COPIES) + MAX_VALUES * JSON_VALUE_BYTES <= SINGLE_REQUEST_BYTES,
    "the largest body must fit"
);

/// Maximum wait for the next chunk of a body.
const CHUNK_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 60_000 });

/// A request decoded from a JSON body of at most `MAX_BYTES` bytes. Errors have the dialect's
/// format.
pub(crate) struct Json<D, T, const MAX_BYTES: usize = MAX_BODY_BYTES>(
    pub(crate) T,
    pub(crate) PhantomData<D>,
);

impl<D: ErrorFormat, T: DeserializeOwned + Send + 'static, S: Send + Sync, const MAX_BYTES: usize>
    FromRequest<S> for Json<D, T, MAX_BYTES>
{
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        let decoded = async {
            let body = read_body_within(request, MAX_BYTES).await?;
            if body.bytes.len() <= INLINE_BODY_BYTES {
                return body.decode::<D, T>();
            }
            // If the client disconnects, decoding continues, and its memory stays reserved until it
            // ends.
            let (bytes, workers) = (body.bytes.len(), body.reservation.workers());
            workers.run(bytes, move || body.decode::<D, T>()).await?
        };
        match decoded.await {
            Ok(Decoded { value, ignored, reservation }) => {
                ignored.into_iter().for_each(record_ignored_field);
                hold_reservation(reservation);
                Ok(Self(value, PhantomData))
            }
            Err(failure) => Err(ErrorResponse::<D>::from(failure).into_response()),
        }
    }
}

/// A decoded body.
struct Decoded<T> {
    value: T,
    /// Unknown fields.
    ignored: Vec<String>,
    /// Memory reserved for it.
    reservation: BodyReservation,
}

tokio::task_local! {
    static REPORT: CompatibilityReport;
}

/// Records an ignored field of the current request for the response header.
pub(crate) fn record_ignored_field(field: String) {
    let _ = REPORT.try_with(|report| {
        let mut fields = lock(&report.ignored);
        if fields.len() < MAX_IGNORED && !fields.contains(&field) {
            fields.push(field);
        }
    });
}

/// Records an adaptation of the conversation for the response header.
pub(crate) fn record_adaptation(kind: String) {
    let _ = REPORT.try_with(|report| {
        let mut kinds = lock(&report.adapted);
        if kinds.len() < MAX_IGNORED && !kinds.contains(&kind) {
            kinds.push(kind);
        }
    });
}

/// Ignored fields of a request, and adaptations of its conversation.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompatibilityReport {
    ignored: Arc<Mutex<Vec<String>>>,
    adapted: Arc<Mutex<Vec<String>>>,
}

impl CompatibilityReport {
    /// Awaits a response and collects the records that are made until then.
    pub(crate) async fn scope<T>(&self, answer: impl Future<Output = T>) -> T {
        REPORT.scope(self.clone(), answer).await
    }

    /// Header value that lists the ignored fields, if there are any.
    pub(crate) fn ignored_header(&self) -> Option<HeaderValue> {
        Self::value(&self.ignored)
    }

    /// Header value that lists the adaptations, if there are any.
    pub(crate) fn adapted_header(&self) -> Option<HeaderValue> {
        Self::value(&self.adapted)
    }

    fn value(names: &Mutex<Vec<String>>) -> Option<HeaderValue> {
        list_value(&lock(names), MAX_NAME_CHARS)
    }
}

fn decode<D: ErrorFormat, T: DeserializeOwned>(body: &[u8]) -> Result<(T, Vec<String>), ApiError> {
    from_slice_with_ignored(body).map_err(|error| match error {
        DecodeError::Syntax(SyntaxError::Empty) => ApiError::bad_request(D::EMPTY_BODY),
        error => ApiError::bad_request(error.to_string()),
    })
}

/// Maximum bytes that decoding a body allocates.
fn decode_cost(body: &[u8]) -> usize {
    // Every value but the first follows one of these bytes. Occurrences in strings count too, so
    // this is an upper bound.
    let separators = memchr2_iter(b',', b':', body).chain(memchr2_iter(b'[', b'{', body));
    body.len() * TEXT_COPIES + separators.take(MAX_VALUES).count() * JSON_VALUE_BYTES
}

/// A received body with its memory reservation.
pub(crate) struct RequestBody {
    pub(crate) bytes: Bytes,
    reservation: BodyReservation,
}

impl RequestBody {
    fn decode<D: ErrorFormat, T: DeserializeOwned>(mut self) -> Result<Decoded<T>, ApiError> {
        self.reservation.reserve(decode_cost(&self.bytes))?;
        let (value, ignored) = decode::<D, T>(&self.bytes)?;
        let (bytes, mut reservation) = (self.bytes.len(), self.reservation);
        drop(self.bytes);
        reservation.release(bytes);
        Ok(Decoded { value, ignored, reservation })
    }
}

/// Reads the whole body within the limits, and decompresses it according to `Content-Encoding`.
pub(crate) async fn read_body(request: Request<Body>) -> Result<RequestBody, ApiError> {
    read_body_within(request, MAX_BODY_BYTES).await
}

/// Like [`read_body`], for a body of at most `limit` bytes, also after decompression.
async fn read_body_within(request: Request<Body>, limit: usize) -> Result<RequestBody, ApiError> {
    let encoding = request.headers().get(CONTENT_ENCODING).cloned();
    let budget = request.extensions().get::<BodyBudget>().cloned().unwrap_or_default();
    let client = request.extensions().get::<Client>().copied().unwrap_or_default();
    let mut reservation = budget.reservation(client.number);
    let bytes = read_limited(request, limit, &mut reservation).await?;
    match encoding.as_ref().map(|encoding| encoding.to_str().unwrap_or("?")) {
        None | Some("" | "identity") => Ok(RequestBody { bytes, reservation }),
        Some("zstd") => {
            let workers = reservation.workers();
            let cost = bytes.len().saturating_mul(DECOMPRESSION_RATIO);
            let work = move || {
                let limit = limit.min(MAX_DECOMPRESSED_BYTES);
                decompress(&bytes, limit, &mut reservation)
                    .map(|bytes| RequestBody { bytes, reservation })
            };
            workers.run(cost, work).await?
        }
        Some(other) => Err(ApiError::bad_request(format!(
            "Content-Encoding {other} is not supported: use zstd, or send the body uncompressed"
        ))),
    }
}

/// Decompresses a body of one or more consecutive frames. The limit applies to the actual output,
/// whatever size the frames claim.
fn decompress(
    body: &[u8],
    limit: usize,
    reservation: &mut BodyReservation,
) -> Result<Bytes, ApiError> {
    let mismatch =
        || ApiError::bad_request("invalid zstd body: it has bytes outside of zstd frames");
    let (mut decompressed, mut piece) = (Vec::new(), vec![0; DECOMPRESS_CHUNK_BYTES]);
    let mut rest = body;
    for _ in 0..MAX_FRAMES {
        let is_frame = rest.starts_with(&ZSTD_MAGIC);
        if !is_frame {
            // Skippable frames hold application data without content.
            rest = skip_frame(rest).ok_or_else(mismatch)?;
        } else {
            decompress_frame(&mut rest, limit, &mut decompressed, &mut piece, reservation)?;
        }
        if rest.is_empty() {
            return Ok(decompressed.into());
        }
    }
    Err(ApiError::bad_request(format!("invalid zstd body: it has more than {MAX_FRAMES} frames")))
}

/// Returns the bytes after a skippable frame.
fn skip_frame(body: &[u8]) -> Option<&[u8]> {
    let (head, rest) = body.split_first_chunk::<8>()?;
    let [kind, 0x2a, 0x4d, 0x18, length @ ..] = *head else { return None };
    let length = usize::try_from(u32::from_le_bytes(length)).ok()?;
    rest.get(length..).filter(|_| kind & 0xf0 == 0x50)
}

/// Decompresses the first frame of the remaining input.
fn decompress_frame(
    rest: &mut &[u8],
    limit: usize,
    decompressed: &mut Vec<u8>,
    piece: &mut [u8],
    reservation: &mut BodyReservation,
) -> Result<(), ApiError> {
    let wrong = |what: String| ApiError::bad_request(format!("invalid zstd body: {what}"));
    let mut decoder = StreamingDecoder::new_with_max_window_size(rest, MAX_ZSTD_WINDOW_BYTES)
        .map_err(|e| wrong(e.to_string()))?;
    loop {
        match decoder.read(piece).map_err(|e| wrong(e.to_string()))? {
            0 => return Ok(()),
            n if decompressed.len() + n > limit => {
                return Err(ApiError::bad_request("http: request body too large"));
            }
            n => {
                reservation.reserve(n)?;
                decompressed.extend_from_slice(&piece[..n]);
            }
        }
    }
}

/// Reads the whole body, up to `limit` bytes.
async fn read_limited(
    request: Request<Body>,
    limit: usize,
    reservation: &mut BodyReservation,
) -> Result<Bytes, ApiError> {
    let too_large =
        || ApiError::new(413, format!("request body too large: the limit is {} MiB", limit >> 20));
    let claimed =
        request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if claimed.is_some_and(|n| n > limit as u64) {
        return Err(too_large());
    }
    reservation.check_available(claimed.unwrap_or(0))?;
    let workers = reservation.workers();
    let mut pieces = BodyReader::new(request.into_body());
    let mut buffer = BodyBuffer::default();
    while let Some(data) = pieces.next().await? {
        if buffer.len() + data.len() > limit {
            return Err(too_large());
        }
        reservation.reserve(data.len())?;
        buffer.push(data);
        if buffer.is_batch_full() {
            // The connection is not read until a thread has taken the batch. So a busy server reads
            // large bodies at the speed that it has left for their client.
            buffer = buffer.append_batch(&workers).await?;
        }
    }
    Ok(buffer.append_batch(&workers).await?.bytes.into())
}

/// Received bytes of a body. Small bodies are appended at once, large ones in batches.
#[derive(Default)]
struct BodyBuffer {
    bytes: Vec<u8>,
    /// Chunks that are not appended yet, and their length.
    batch: Vec<Bytes>,
    batch_bytes: usize,
}

impl BodyBuffer {
    fn len(&self) -> usize {
        self.bytes.len() + self.batch_bytes
    }

    fn push(&mut self, data: Bytes) {
        if self.batch.is_empty() && self.bytes.len() + data.len() <= INLINE_BODY_BYTES {
            self.bytes.extend_from_slice(&data);
        } else {
            self.batch_bytes += data.len();
            self.batch.push(data);
        }
    }

    fn is_batch_full(&self) -> bool {
        self.batch_bytes >= BATCH_BYTES || self.batch.len() >= MAX_BATCH_CHUNKS
    }

    /// Appends the chunks on a thread for large bodies.
    async fn append_batch(mut self, workers: &ClientWorkers) -> Result<Self, ApiError> {
        if self.batch.is_empty() {
            return Ok(self);
        }
        let batch_bytes = self.batch_bytes;
        let append = move || {
            self.bytes.reserve(self.batch_bytes);
            self.batch.drain(..).for_each(|data| self.bytes.extend_from_slice(&data));
            self.batch_bytes = 0;
            self
        };
        workers.run(batch_bytes, append).await
    }
}

/// Reads a body chunk by chunk with timeouts, because a partial body holds memory or a file.
pub(crate) struct BodyReader {
    body: Body,
    bytes: u64,
    /// Total time spent waiting for the client.
    waited: Duration,
}

impl BodyReader {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, bytes: 0, waited: Duration::ZERO }
    }

    /// Returns the next chunk, or `None` at the end. A client that sends nothing for too long, or
    /// too slowly on average, gets status 408.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let allowed = CHUNK_TIMEOUT + Duration::from_secs(self.bytes / MIN_BYTES_PER_SECOND);
        let (begun, timeout) =
            (Instant::now(), allowed.saturating_sub(self.waited).min(CHUNK_TIMEOUT));
        let piece = next_chunk(&mut self.body, timeout).await?;
        self.waited += begun.elapsed();
        self.bytes += piece.as_ref().map_or(0, |data| data.len() as u64);
        Ok(piece)
    }
}

/// Error of a body that cannot be read: its chunks are invalid, or the client sent too little.
fn unreadable_error(error: &axum::Error) -> ApiError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)) {
            let text = "the request body has an invalid chunk: check its Transfer-Encoding";
            return ApiError::bad_request(text);
        }
        cause = error.source();
    }
    ApiError::bad_request("the request body ended early")
}

async fn next_chunk(body: &mut Body, timeout: Duration) -> Result<Option<Bytes>, ApiError> {
    loop {
        let frame = tokio::time::timeout(timeout, body.frame()).await;
        match frame.map_err(|_| ApiError::new(408, "the request body did not arrive in time"))? {
            None => return Ok(None),
            Some(Err(e)) => return Err(unreadable_error(&e)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;

    use axum::body::Body;
    use futures_util::{StreamExt, stream};
    use serde::{Deserialize, Deserializer};

    use super::*;
    use crate::http::Ollama;

    fn request(body: impl Into<Body>, budget: &BodyBudget) -> Request {
        Request::post("/").extension(budget.clone()).body(body.into()).unwrap()
    }

    #[tokio::test]
    async fn bodies_share_a_budget_that_small_ones_do_not_need() {
        let budget = BodyBudget::new(1 << 20);
        let large = || request(vec![b'x'; 700 << 10], &budget);
        let first = read_body(large()).await.unwrap();
        assert_eq!(read_body(large()).await.err().unwrap().status, 503);
        // Rejected before any data arrives, because the length is declared.
        let declared =
            Request::post("/").extension(budget.clone()).header(CONTENT_LENGTH, 700 << 10);
        let never = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(read_body(declared.body(never).unwrap()).await.err().unwrap().status, 503);
        let small: Vec<_> = stream::iter(0..100)
            .then(|_| read_body(request(vec![b'x'; 10 << 10], &budget)))
            .collect()
            .await;
        assert!(small.iter().all(Result::is_ok));
        drop(first);
        // Rejected and aborted bodies have released their memory.
        let broken = [Ok(Bytes::from(vec![b'x'; 500 << 10])), Err(std::io::Error::other("gone"))];
        assert_eq!(
            read_body(request(Body::from_stream(stream::iter(broken)), &budget))
                .await
                .err()
                .unwrap()
                .status,
            400
        );
        assert_eq!(budget.free_bytes(), 1 << 20);
        read_body(large()).await.unwrap();
    }

    /// Bodies that are being decoded, and whether large ones may end.
    #[derive(Default)]
    struct DecodingGate {
        state: Mutex<GateState>,
        changed: Condvar,
    }

    #[derive(Default)]
    struct GateState {
        is_open: bool,
        /// Clients of the large bodies that are being decoded.
        running: Vec<u64>,
        /// Clients of all large bodies, in the order in which decoding began.
        begun: Vec<u64>,
        /// Whether two bodies of one client were decoded at a time.
        overlapped: bool,
    }

    static GATE: std::sync::LazyLock<DecodingGate> =
        std::sync::LazyLock::new(DecodingGate::default);

    /// A request that waits at [`GATE`] while it is decoded, if it is large.
    #[derive(Debug)]
    struct GatedRequest;

    impl<'de> Deserialize<'de> for GatedRequest {
        fn deserialize<D: Deserializer<'de>>(body: D) -> Result<Self, D::Error> {
            #[derive(Deserialize)]
            struct Fields {
                client: u64,
                text: String,
            }
            let Fields { client, text } = Fields::deserialize(body)?;
            if text.len() <= INLINE_BODY_BYTES {
                return Ok(Self);
            }
            let mut state = lock(&GATE.state);
            state.overlapped |= state.running.contains(&client);
            state.running.push(client);
            state.begun.push(client);
            while !state.is_open {
                state = GATE.changed.wait(state).unwrap();
            }
            state.running.retain(|running| *running != client);
            Ok(Self)
        }
    }

    #[tokio::test]
    async fn large_bodies_of_a_client_are_decoded_one_at_a_time_and_delay_no_other_client() {
        let budget = BodyBudget::default();
        let decode = |number: u64, bytes: usize| {
            let body = format!(r#"{{"client": {number}, "text": "{}"}}"#, "x".repeat(bytes));
            let mut request = request(body.into_bytes(), &budget);
            request.extensions_mut().insert(Client { number, ..Client::default() });
            tokio::spawn(async move {
                Json::<Ollama, GatedRequest>::from_request(request, &()).await.is_ok()
            })
        };
        let begun = || lock(&GATE.state).begun.clone();
        let mut large: Vec<_> = (0..3).map(|_| decode(1, 200_000)).collect();
        crate::runner::tests::wait_until(|| begun() == [1]).await;
        // Small bodies of both clients do not wait.
        assert!(decode(2, 1000).await.unwrap() && decode(1, 1000).await.unwrap());
        large.push(decode(2, 200_000));
        crate::runner::tests::wait_until(|| begun().len() > 1).await;
        assert_eq!(begun(), [1, 2], "the first client has its share");
        lock(&GATE.state).is_open = true;
        GATE.changed.notify_all();
        for decoding in large {
            assert!(decoding.await.unwrap());
        }
        assert_eq!(begun(), [1, 2, 1, 1]);
        assert!(!lock(&GATE.state).overlapped);
    }

    #[tokio::test]
    async fn memory_for_decoding_and_decompressing_counts() {
        let budget = BodyBudget::new(1 << 20);
        let decode = async |body: Vec<u8>, packed: bool| {
            let mut request = request(body, &budget);
            if packed {
                request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
            }
            let answer = Json::<Ollama, serde_json::Value>::from_request(request, &()).await;
            answer.map_or_else(|refused| refused.status().as_u16(), |_| 200)
        };
        let many = format!("[{}0]", "0,".repeat(30_000)).into_bytes();
        assert_eq!(many.len() / 1000, 60);
        assert_eq!(decode(many, false).await, 503);
        let pack = |length| {
            let text = format!("\"{}\"", " ".repeat(length));
            ruzstd::encoding::compress_to_vec(
                text.as_bytes(),
                ruzstd::encoding::CompressionLevel::Fastest,
            )
        };
        assert_eq!(decode(pack(2 << 20), true).await, 503);
        assert_eq!(decode(pack(200 << 10), true).await, 200);
        assert_eq!(budget.free_bytes(), 1 << 20);
    }

    #[tokio::test]
    async fn a_body_that_arrives_byte_by_byte_times_out() {
        let drips = stream::unfold((), async |()| {
            tokio::time::sleep(CHUNK_TIMEOUT / 6).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
        });
        let start = Instant::now();
        let failure = read_body(request(Body::from_stream(drips), &BodyBudget::default()))
            .await
            .err()
            .unwrap();
        assert_eq!(failure.status, 408);
        assert!(start.elapsed() < 2 * CHUNK_TIMEOUT, "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn only_time_spent_waiting_for_the_client_counts() {
        let comes =
            stream::iter((0..20).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"x"))));
        let mut pieces = BodyReader::new(Body::from_stream(comes));
        for _ in 0..20 {
            assert!(pieces.next().await.unwrap().is_some());
            // A slow disk.
            tokio::time::sleep(CHUNK_TIMEOUT / 10).await;
        }
        assert!(pieces.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_compressed_body_may_have_several_frames() {
        let budget = BodyBudget::default();
        let pack = |text: &str| {
            ruzstd::encoding::compress_to_vec(
                text.as_bytes(),
                ruzstd::encoding::CompressionLevel::Fastest,
            )
        };
        let read = async |body: Vec<u8>| {
            let mut request = request(body, &budget);
            request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
            read_body(request).await.map(|body| body.bytes).map_err(|failure| failure.message)
        };
        let note = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"any"].concat();
        let (one, two) = (pack("{\"a\": "), pack("[1]}"));
        let whole = [&one[..], &note, &two, &note].concat();
        assert_eq!(read(whole.clone()).await, Ok(Bytes::from_static(b"{\"a\": [1]}")));
        let mismatch = Err("invalid zstd body: it has bytes outside of zstd frames".to_owned());
        assert_eq!(read([&one[..], b"{}"].concat()).await, mismatch, "what follows is no frame");
        assert_eq!(read(whole[..whole.len() - 1].to_vec()).await, mismatch, "a note is cut");
        assert!(
            read(whole[..one.len() + note.len() + 8].to_vec()).await.is_err(),
            "a frame is cut"
        );
        assert_eq!(read(Vec::new()).await, mismatch);
        let many = read(note.repeat(MAX_FRAMES + 1)).await.unwrap_err();
        assert!(many.contains("more than 1024 frames"), "{many}");
        let half = pack(&" ".repeat(MAX_DECOMPRESSED_BYTES / 2 + 1));
        assert_eq!(
            read([&half[..], &half].concat()).await,
            Err("http: request body too large".into())
        );
    }
}
