//! Request bodies: read under a limit, decoded whatever their `Content-Type` says.

use std::io::Read;
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
use puna_api::decode::{DecodeError, from_slice_noting};
use puna_api::json::{MAX_VALUES, SyntaxError};
use ruzstd::decoding::StreamingDecoder;
use serde::de::DeserializeOwned;

use super::header_list::list_value;
use super::room::{ROOM, Room, Share, hold};
use super::{ErrorForm, Refused};
use crate::canonical::Failure;
use crate::lock::lock;

/// Bytes of a JSON body at most: room for a few large images.
const MAX_BODY: usize = 128 << 20;

/// Bytes of a body that is decoded where it was read. A larger one would hold up everybody else for as long.
const LARGE: usize = 256 << 10;

/// Bytes of a decompressed body at most.
const MAX_UNPACKED: usize = 20 << 20;

/// Bytes that are decompressed at a time.
const UNPACKED_PIECE: usize = 64 << 10;

/// Bytes that decompressing may look back at most.
const MAX_WINDOW: u64 = 8 << 20;

/// Frames of a compressed body at most.
const MAX_FRAMES: usize = 1024;

/// How every frame of zstd begins.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Ignored fields that are told at most.
const MAX_IGNORED: usize = 32;

/// Characters of an ignored field's name that are told.
const MAX_NAME: usize = 64;

/// Bytes a second that a body must come with on the whole, once its patience is used up.
const SLOWEST: u64 = 1 << 10;

/// Bytes that a JSON value takes beside its text.
const PER_VALUE: usize = 64;

/// The text of a body in its values, and once more in the request made of them.
const COPIES: usize = 2;

const _: () =
    assert!(MAX_BODY * (1 + COPIES) + MAX_VALUES * PER_VALUE <= ROOM, "the largest body must fit");

/// How long the next piece of a body may take.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 60_000 });

/// A request decoded from a JSON body; what is wrong with it is told in the dialect's form.
pub(crate) struct Json<D, T>(pub(crate) T, pub(crate) PhantomData<D>);

impl<D: ErrorForm, T: DeserializeOwned + Send + 'static, S: Send + Sync> FromRequest<S>
    for Json<D, T>
{
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        let decoded = async {
            let body = read_body(request).await?;
            if body.bytes.len() <= LARGE {
                return body.decode::<D, T>();
            }
            // Nobody waits for it any more if the client leaves, but what it takes is counted until it ends.
            let decoding = puna_tasks::run_blocking(move || body.decode::<D, T>());
            decoding
                .await
                .map_err(|e| Failure::internal(format!("internal error while decoding: {e}")))?
        };
        match decoded.await {
            Ok(Decoded { value, ignored, share }) => {
                ignored.into_iter().for_each(note_ignored);
                hold(share);
                Ok(Self(value, PhantomData))
            }
            Err(failure) => Err(Refused::<D>::from(failure).into_response()),
        }
    }
}

/// A decoded body.
struct Decoded<T> {
    value: T,
    /// Its fields that nobody knows.
    ignored: Vec<String>,
    /// The memory that it has.
    share: Share,
}

tokio::task_local! {
    static IGNORED: Ignored;
}

/// Notes a field of the request that is being answered, for the answer's header to name.
pub(crate) fn note_ignored(field: String) {
    let _ = IGNORED.try_with(|ignored| {
        let mut fields = lock(&ignored.0);
        if fields.len() < MAX_IGNORED && !fields.contains(&field) {
            fields.push(field);
        }
    });
}

/// Notes a change of the conversation for the model's template, for the answer's header to name.
pub(crate) fn note_adapted(kind: String) {
    let _ = IGNORED.try_with(|ignored| {
        let mut kinds = lock(&ignored.1);
        if kinds.len() < MAX_IGNORED && !kinds.contains(&kind) {
            kinds.push(kind);
        }
    });
}

/// Fields of a request that nobody looked at, and changes of its conversation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ignored(Arc<Mutex<Vec<String>>>, Arc<Mutex<Vec<String>>>);

impl Ignored {
    /// Waits for an answer; what is noted meanwhile is in here.
    pub(crate) async fn during<T>(&self, answer: impl Future<Output = T>) -> T {
        IGNORED.scope(self.clone(), answer).await
    }

    /// The fields as a header's value, if there are any.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        Self::value(&self.0)
    }

    /// The changes of the conversation as a header's value, if there are any.
    pub(crate) fn adapted_header(&self) -> Option<HeaderValue> {
        Self::value(&self.1)
    }

    fn value(names: &Mutex<Vec<String>>) -> Option<HeaderValue> {
        list_value(&lock(names), MAX_NAME)
    }
}

fn decode<D: ErrorForm, T: DeserializeOwned>(body: &[u8]) -> Result<(T, Vec<String>), Failure> {
    from_slice_noting(body).map_err(|error| match error {
        DecodeError::Syntax(SyntaxError::Empty) => Failure::bad_request(D::EMPTY_BODY),
        error => Failure::bad_request(error.to_string()),
    })
}

/// Bytes that decoding a body takes at most.
fn cost(body: &[u8]) -> usize {
    // All but the first are behind one of these. Those within texts are counted too: it is a bound.
    let values = body.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
    body.len() * COPIES + values.min(MAX_VALUES) * PER_VALUE
}

/// A body, and the memory that it has.
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    share: Share,
}

impl Received {
    fn decode<D: ErrorForm, T: DeserializeOwned>(mut self) -> Result<Decoded<T>, Failure> {
        self.share.take(cost(&self.bytes))?;
        let (value, ignored) = decode::<D, T>(&self.bytes)?;
        let (bytes, mut share) = (self.bytes.len(), self.share);
        drop(self.bytes);
        share.give_back(bytes);
        Ok(Decoded { value, ignored, share })
    }
}

/// The whole body, unless it is too long or there is no room for it; decompressed, if it says that it is compressed.
pub(crate) async fn read_body(request: Request<Body>) -> Result<Received, Failure> {
    let encoding = request.headers().get(CONTENT_ENCODING).cloned();
    let mut share = request.extensions().get::<Room>().cloned().unwrap_or_default().share();
    let bytes = read_limited(request, MAX_BODY, &mut share).await?;
    match encoding.as_ref().map(|encoding| encoding.to_str().unwrap_or("?")) {
        None | Some("" | "identity") => Ok(Received { bytes, share }),
        Some("zstd") => {
            let unpacking =
                move || unpack(&bytes, &mut share).map(|bytes| Received { bytes, share });
            let decoded = puna_tasks::run_blocking(unpacking).await;
            decoded.map_err(|e| {
                Failure::internal(format!("internal error while decompressing: {e}"))
            })?
        }
        Some(other) => Err(Failure::bad_request(format!(
            "request bodies in Content-Encoding {other} are not understood: send them as they are, or as zstd"
        ))),
    }
}

/// Decompresses a body of one frame or several after each other, of which no more is kept than is allowed whatever it
/// claims.
fn unpack(body: &[u8], share: &mut Share) -> Result<Bytes, Failure> {
    let mismatch = || Failure::bad_request("invalid input: magic number mismatch");
    let (mut unpacked, mut piece) = (Vec::new(), vec![0; UNPACKED_PIECE]);
    let mut rest = body;
    for _ in 0..MAX_FRAMES {
        let is_frame = rest.starts_with(&ZSTD_MAGIC);
        if !is_frame {
            // What a writer says to itself stands in frames of its own.
            rest = skipped(rest).ok_or_else(mismatch)?;
        } else {
            unpack_frame(&mut rest, &mut unpacked, &mut piece, share)?;
        }
        if rest.is_empty() {
            return Ok(unpacked.into());
        }
    }
    Err(Failure::bad_request(format!("invalid zstd body: it has more than {MAX_FRAMES} frames")))
}

/// What is behind a frame that holds nothing for readers.
fn skipped(body: &[u8]) -> Option<&[u8]> {
    let (head, rest) = body.split_first_chunk::<8>()?;
    let [kind, 0x2a, 0x4d, 0x18, length @ ..] = *head else { return None };
    let length = usize::try_from(u32::from_le_bytes(length)).ok()?;
    rest.get(length..).filter(|_| kind & 0xf0 == 0x50)
}

/// Decompresses the first frame of what is left.
fn unpack_frame(
    rest: &mut &[u8],
    unpacked: &mut Vec<u8>,
    piece: &mut [u8],
    share: &mut Share,
) -> Result<(), Failure> {
    let wrong = |what: String| Failure::bad_request(format!("invalid zstd body: {what}"));
    let mut decoder = StreamingDecoder::new_with_max_window_size(rest, MAX_WINDOW)
        .map_err(|e| wrong(e.to_string()))?;
    loop {
        match decoder.read(piece).map_err(|e| wrong(e.to_string()))? {
            0 => return Ok(()),
            n if unpacked.len() + n > MAX_UNPACKED => {
                return Err(Failure::bad_request("http: request body too large"));
            }
            n => {
                share.take(n)?;
                unpacked.extend_from_slice(&piece[..n]);
            }
        }
    }
}

/// The whole body, unless it is longer than `limit` bytes.
async fn read_limited(
    request: Request<Body>,
    limit: usize,
    share: &mut Share,
) -> Result<Bytes, Failure> {
    let too_large =
        || Failure::new(413, format!("request body too large: the limit is {} MiB", limit >> 20));
    let claimed =
        request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if claimed.is_some_and(|n| n > limit as u64) {
        return Err(too_large());
    }
    share.check(claimed.unwrap_or(0))?;
    let mut pieces = Pieces::of(request.into_body());
    let mut bytes = Vec::new();
    while let Some(data) = pieces.next().await? {
        if bytes.len() + data.len() > limit {
            return Err(too_large());
        }
        share.take(data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.into())
}

/// A body that is read piece by piece, which has to come on: what is read holds memory, or a file.
pub(crate) struct Pieces {
    body: Body,
    bytes: u64,
    /// How long the client was waited for so far.
    waited: Duration,
}

impl Pieces {
    pub(crate) fn of(body: Body) -> Self {
        Self { body, bytes: 0, waited: Duration::ZERO }
    }

    /// The next piece, `None` at the proper end. A client that sends nothing for long, or byte by byte, has its request
    /// refused.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        let due = PATIENCE + Duration::from_secs(self.bytes / SLOWEST);
        let (begun, patience) = (Instant::now(), due.saturating_sub(self.waited).min(PATIENCE));
        let piece = piece_within(&mut self.body, patience).await?;
        self.waited += begun.elapsed();
        self.bytes += piece.as_ref().map_or(0, |data| data.len() as u64);
        Ok(piece)
    }
}

async fn piece_within(body: &mut Body, patience: Duration) -> Result<Option<Bytes>, Failure> {
    loop {
        let frame = tokio::time::timeout(patience, body.frame()).await;
        match frame.map_err(|_| Failure::new(408, "the request body did not arrive in time"))? {
            None => return Ok(None),
            Some(Err(e)) => {
                return Err(Failure::bad_request(format!("the request body broke off: {e}")));
            }
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
    use axum::body::Body;
    use futures_util::{StreamExt, stream};

    use super::*;
    use crate::http::Native;

    fn request(body: impl Into<Body>, room: &Room) -> Request {
        Request::post("/").extension(room.clone()).body(body.into()).unwrap()
    }

    #[tokio::test]
    async fn bodies_share_their_memory_and_small_ones_always_have_some() {
        let room = Room::of(1 << 20);
        let large = || request(vec![b'x'; 700 << 10], &room);
        let first = read_body(large()).await.unwrap();
        assert_eq!(read_body(large()).await.err().unwrap().status, 503);
        // Refused before anything comes where the length is told.
        let told = Request::post("/").extension(room.clone()).header(CONTENT_LENGTH, 700 << 10);
        let never = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(read_body(told.body(never).unwrap()).await.err().unwrap().status, 503);
        let small: Vec<_> = stream::iter(0..100)
            .then(|_| read_body(request(vec![b'x'; 10 << 10], &room)))
            .collect()
            .await;
        assert!(small.iter().all(Result::is_ok));
        drop(first);
        // Those that were refused or broke off have left nothing behind.
        let broken = [Ok(Bytes::from(vec![b'x'; 500 << 10])), Err(std::io::Error::other("gone"))];
        assert_eq!(
            read_body(request(Body::from_stream(stream::iter(broken)), &room))
                .await
                .err()
                .unwrap()
                .status,
            400
        );
        assert_eq!(room.share().check((1 << 20) + (64 << 10)), Ok(()));
        read_body(large()).await.unwrap();
    }

    #[tokio::test]
    async fn what_decoding_and_unpacking_take_counts_too() {
        let room = Room::of(1 << 20);
        let decode = async |body: Vec<u8>, packed: bool| {
            let mut request = request(body, &room);
            if packed {
                request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
            }
            let answer = Json::<Native, serde_json::Value>::from_request(request, &()).await;
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
        assert_eq!(decode(pack(300 << 10), true).await, 200);
        assert_eq!(room.share().check((1 << 20) + (64 << 10)), Ok(()));
    }

    #[tokio::test]
    async fn a_body_that_comes_byte_by_byte_is_given_up() {
        let drops = stream::unfold((), async |()| {
            tokio::time::sleep(PATIENCE / 6).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
        });
        let start = Instant::now();
        let failure =
            read_body(request(Body::from_stream(drops), &Room::default())).await.err().unwrap();
        assert_eq!(failure.status, 408);
        assert!(start.elapsed() < 2 * PATIENCE, "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn only_waiting_for_the_client_is_held_against_it() {
        let comes =
            stream::iter((0..20).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"x"))));
        let mut pieces = Pieces::of(Body::from_stream(comes));
        for _ in 0..20 {
            assert!(pieces.next().await.unwrap().is_some());
            // A disk that is slow.
            tokio::time::sleep(PATIENCE / 10).await;
        }
        assert!(pieces.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_compressed_body_may_have_several_frames() {
        let room = Room::default();
        let pack = |text: &str| {
            ruzstd::encoding::compress_to_vec(
                text.as_bytes(),
                ruzstd::encoding::CompressionLevel::Fastest,
            )
        };
        let read = async |body: Vec<u8>| {
            let mut request = request(body, &room);
            request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
            read_body(request).await.map(|body| body.bytes).map_err(|failure| failure.message)
        };
        let note = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"any"].concat();
        let (one, two) = (pack("{\"a\": "), pack("[1]}"));
        let whole = [&one[..], &note, &two, &note].concat();
        assert_eq!(read(whole.clone()).await, Ok(Bytes::from_static(b"{\"a\": [1]}")));
        let mismatch = Err("invalid input: magic number mismatch".to_owned());
        assert_eq!(read([&one[..], b"{}"].concat()).await, mismatch, "what follows is no frame");
        assert_eq!(read(whole[..whole.len() - 1].to_vec()).await, mismatch, "a note is cut");
        assert!(
            read(whole[..one.len() + note.len() + 8].to_vec()).await.is_err(),
            "a frame is cut"
        );
        assert_eq!(read(Vec::new()).await, mismatch);
        let many = read(note.repeat(MAX_FRAMES + 1)).await.unwrap_err();
        assert!(many.contains("more than 1024 frames"), "{many}");
        let half = pack(&" ".repeat(MAX_UNPACKED / 2 + 1));
        assert_eq!(
            read([&half[..], &half].concat()).await,
            Err("http: request body too large".into())
        );
    }
}
