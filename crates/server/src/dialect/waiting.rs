//! What event streams say while there is nothing to say yet: how far the model is on its way into memory, and how much of
//! the prompt was read. These are comments, which every reader of event streams passes over, and in the dialects whose clients
//! count only events as signs of life, harmless events too. A line of the native dialect would be taken for a piece of the
//! answer, so that its streams say nothing.

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

use super::{Encoder, SharedEncoder, begin};
use crate::app::{App, RunningTask};
use crate::canonical::ApiError;
use crate::http::body_budget::HeldReservation;
use crate::http::stream;
use crate::lock::lock;
use crate::scheduler::{ModelKey, Phase};

/// How long a request is waited for before its stream begins without it, and how often the stream says something then. What
/// goes wrong before has a status of its own.
const EVERY: Duration = Duration::from_millis(if cfg!(test) { 400 } else { 5_000 });

/// Says now and then how much of a prompt was read.
pub(super) struct Reading(Instant);

impl Default for Reading {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Reading {
    pub(super) fn progress(&mut self, done: u64, total: u64, out: &mut Vec<u8>) {
        if self.0.elapsed() < EVERY {
            return;
        }
        self.0 = Instant::now();
        // Writing to memory does not fail.
        let _ = write!(out, ": reading the prompt, {} %\n\n", 100 * done.min(total) / total.max(1));
    }
}

/// What a stream waits for.
type Begun = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// Where a stream is.
enum Stage {
    /// The request is not being answered yet.
    Waiting(Begun),
    /// It is.
    Answer(BodyDataStream),
}

/// Answers with a stream as soon as its request was started, as [`super::respond`] does; `prepare` tells the encoder what
/// starting has found out. Where that takes long, because the model of this key is loaded, a remote server is silent or the
/// prompt read, the stream begins before, and a failure is its end then. Without a key it does not: the answer may not become a
/// stream.
pub(crate) async fn respond_when<R, T, E: Encoder>(
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
    let of_answer = encoder.clone();
    let mut begun: Begun = Box::pin(HeldReservation::carry_over(async move {
        let (running, found) = started.await?;
        prepare(&mut lock(&of_answer), found);
        begin(running.into(), of_answer).await
    }));
    let Some(key) = key else { return begun.await.or_else(|failure| refused(failure, &encoder)) };
    if let Ok(answer) = timeout(EVERY, &mut begun).await {
        return answer.or_else(|failure| refused(failure, &encoder));
    }
    let first = wait(app, &key, &encoder).await;
    let state = (app.clone(), key, encoder, Some(first), Some(Stage::Waiting(begun)));
    let pieces = unfold(state, |(app, key, encoder, first, stage)| async move {
        if let Some(first) = first {
            return Some((Ok::<_, Infallible>(first), (app, key, encoder, None, stage)));
        }
        let (piece, stage) = next(&app, &key, &encoder, stage?).await?;
        Some((Ok(piece), (app, key, encoder, None, stage)))
    });
    Ok(stream(E::WIRE, pieces))
}

/// The answer to a request that fails before its stream begins.
fn refused<E: Encoder>(
    failure: ApiError,
    encoder: &SharedEncoder<E>,
) -> Result<Response, ApiError> {
    let mut encoder = lock(encoder);
    if !encoder.fails_in_stream(&failure) {
        return Err(failure);
    }
    let piece: Result<Bytes, Infallible> = Ok(encoder.broken(failure).into());
    Ok(stream(E::WIRE, futures_util::stream::iter([piece])))
}

/// The next piece of a stream, and where it is then; nothing is its end.
async fn next<E: Encoder>(
    app: &App,
    key: &ModelKey,
    encoder: &SharedEncoder<E>,
    stage: Stage,
) -> Option<(Bytes, Option<Stage>)> {
    let mut body = match stage {
        Stage::Answer(body) => body,
        Stage::Waiting(mut begun) => match timeout(EVERY, &mut begun).await {
            Err(_) => return Some((wait(app, key, encoder).await, Some(Stage::Waiting(begun)))),
            Ok(Err(failure)) => return Some((lock(encoder).broken(failure).into(), None)),
            Ok(Ok(response)) => response.into_body().into_data_stream(),
        },
    };
    let piece = body.next().await?.ok()?;
    Some((piece, Some(Stage::Answer(body))))
}

/// What is sent while the answer has not begun: how far the model is.
async fn wait<E: Encoder>(app: &App, key: &ModelKey, encoder: &SharedEncoder<E>) -> Bytes {
    let all = app.models().list().await;
    let phase = all.iter().find(|model| model.key == *key).map(|model| model.phase);
    let phase = match phase {
        None => "waiting",
        Some(Phase::Ready) => "reading the prompt",
        Some(phase) => phase.name(),
    };
    let mut out = Vec::new();
    lock(encoder).wait(phase, &mut out);
    out.into()
}
