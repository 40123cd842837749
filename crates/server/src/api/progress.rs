//! Progress messages of event streams before the answer begins: the phase of model loading and the
//! share of the prompt that is processed.
//!
//! The messages are comments, which every event-stream reader skips. Some clients count only events
//! as signs of life, so their dialects add harmless events. Streams of the native dialect send no
//! progress because clients would read a line as a part of the answer.

use std::convert::Infallible;
use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::BodyDataStream;
use axum::response::Response;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use tokio::time::timeout;

use super::{AnswerEncoder, SharedEncoder, respond_with_shared};
use crate::app::{App, RunningTask};
use crate::canonical::ApiError;
use crate::http::body_budget::RequestReservation;
use crate::http::stream;
use crate::model_scheduler::{ModelKey, Phase};
use crate::util::lock::lock;

/// Time to wait for the first piece before the stream begins, and interval of progress messages. A
/// failure within this time has its own HTTP status.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 400 } else { 5_000 });

/// Writes the share of the prompt that is processed, at most once per interval.
pub(super) struct PromptProgress(Instant);

impl Default for PromptProgress {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl PromptProgress {
    /// Appends a comment with the percentage, unless the last one is too recent. `done` and `total`
    /// are token counts.
    pub(super) fn report(&mut self, done: u64, total: u64, out: &mut Vec<u8>) {
        if self.0.elapsed() < PROGRESS_INTERVAL {
            return;
        }
        self.0 = Instant::now();
        // A write to a `Vec` does not fail.
        let _ = write!(out, ": reading the prompt, {} %\n\n", 100 * done.min(total) / total.max(1));
    }
}

/// Future of the response that the stream waits for.
type PendingResponse = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// State of a stream.
enum Stage {
    /// The answer has not begun.
    Pending(PendingResponse),
    /// The stream forwards the body of the answer.
    Streaming(BodyDataStream),
}

/// Responds with a stream after `started` completes, as [`super::respond`] does. `prepare` passes
/// the second result of `started` to the encoder.
///
/// Model loading, a slow remote server or a long prompt can delay the answer. With a `key`, the
/// stream then begins early and sends progress of this model; a later failure ends the stream.
/// Without a `key`, the function waits because the answer may not become a stream.
pub(crate) async fn respond_when<R, T, E: AnswerEncoder>(
    app: &App,
    key: Option<ModelKey>,
    started: impl Future<Output = Result<(R, T), ApiError>> + Send + 'static,
    encoder: E,
    prepare: impl FnOnce(&mut E, T) + Send + 'static,
) -> Result<Response, ApiError>
where
    R: Into<Vec<RunningTask>> + Send + 'static,
    T: Send + 'static,
{
    let encoder = Arc::new(Mutex::new(encoder));
    let answer_encoder = encoder.clone();
    let mut pending: PendingResponse = Box::pin(RequestReservation::scope_continued(async move {
        let (running, start_result) = started.await?;
        prepare(&mut lock(&answer_encoder), start_result);
        respond_with_shared(running.into(), answer_encoder).await
    }));
    let Some(key) = key else {
        return pending.await.or_else(|failure| early_failure(failure, &encoder));
    };
    if let Ok(answer) = timeout(PROGRESS_INTERVAL, &mut pending).await {
        return answer.or_else(|failure| early_failure(failure, &encoder));
    }
    let first_piece = phase_message(app, &key, &encoder).await;
    let state = (app.clone(), key, encoder, Some(first_piece), Some(Stage::Pending(pending)));
    let pieces = unfold(state, |(app, key, encoder, first_piece, stage)| async move {
        if let Some(first_piece) = first_piece {
            return Some((Ok::<_, Infallible>(first_piece), (app, key, encoder, None, stage)));
        }
        let (piece, stage) = next_piece(&app, &key, &encoder, stage?).await?;
        Some((Ok(piece), (app, key, encoder, None, stage)))
    });
    Ok(stream(E::STREAM_FORMAT, pieces))
}

/// Returns the answer to a request that fails before its stream begins.
fn early_failure<E: AnswerEncoder>(
    failure: ApiError,
    encoder: &SharedEncoder<E>,
) -> Result<Response, ApiError> {
    let mut encoder = lock(encoder);
    if !encoder.fails_in_stream(&failure) {
        return Err(failure);
    }
    let piece: Result<Bytes, Infallible> = Ok(encoder.encode_failure(failure).into());
    Ok(stream(E::STREAM_FORMAT, futures_util::stream::iter([piece])))
}

/// Waits for the next piece of a stream. Returns the piece and the next stage, or `None` at the
/// end.
async fn next_piece<E: AnswerEncoder>(
    app: &App,
    key: &ModelKey,
    encoder: &SharedEncoder<E>,
    stage: Stage,
) -> Option<(Bytes, Option<Stage>)> {
    let mut body = match stage {
        Stage::Streaming(body) => body,
        Stage::Pending(mut pending) => match timeout(PROGRESS_INTERVAL, &mut pending).await {
            Err(_) => {
                return Some((
                    phase_message(app, key, encoder).await,
                    Some(Stage::Pending(pending)),
                ));
            }
            Ok(Err(failure)) => return Some((lock(encoder).encode_failure(failure).into(), None)),
            Ok(Ok(response)) => response.into_body().into_data_stream(),
        },
    };
    let piece = body.next().await?.ok()?;
    Some((piece, Some(Stage::Streaming(body))))
}

/// Returns the progress message for the current phase of the model.
async fn phase_message<E: AnswerEncoder>(
    app: &App,
    key: &ModelKey,
    encoder: &SharedEncoder<E>,
) -> Bytes {
    let models = app.models().list().await;
    let phase = models.iter().find(|model| model.key == *key).map(|model| model.phase);
    let phase = match phase {
        None => "waiting",
        Some(Phase::Ready) => "reading the prompt",
        Some(phase) => phase.name(),
    };
    let mut out = Vec::new();
    lock(encoder).announce_phase(phase, &mut out);
    out.into()
}
