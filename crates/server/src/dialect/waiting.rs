//! What event streams say while there is nothing to say yet: how far the model is on its way into memory, and how much of
//! the prompt was read. These are comments, which every reader of event streams passes over; a line of the native dialect
//! would be taken for a piece of the answer, so that its streams say nothing.

use std::convert::Infallible;
use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::time::{Duration, Instant};

use axum::body::BodyDataStream;
use axum::response::Response;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use tokio::time::timeout;

use super::{Encoder, begin};
use crate::app::{App, Running};
use crate::canonical::Failure;
use crate::http::room::Held;
use crate::http::stream;
use crate::scheduler::{Key, Phase};

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

/// What a stream waits for; an encoder writes why it does not come.
type Begun<E> = Pin<Box<dyn Future<Output = Result<Response, (Failure, E)>> + Send>>;

/// Where a stream is.
enum Stage<E> {
    /// The request is not being answered yet.
    Waiting(Begun<E>),
    /// It is.
    Answer(BodyDataStream),
}

/// Answers with a stream as soon as its request was started, as [`super::respond`] does; the encoder is told what starting has
/// found out. Where that takes long, because the model of this key is loaded or the prompt read, the stream begins before,
/// and a failure is its end then. Without a key it does not: the answer may not become a stream.
pub(crate) async fn respond_when<R, T, E: Encoder>(
    app: &App,
    key: Option<Key>,
    started: impl Future<Output = Result<(R, T), Failure>> + Send + 'static,
    encoder: impl FnOnce(T) -> E + Send + 'static,
) -> Result<Response, Failure>
where
    R: Into<Vec<Running>> + Send + 'static,
    T: Default + Send + 'static,
{
    let mut begun: Begun<E> = Box::pin(Held::passed_on(async move {
        match started.await {
            Ok((running, found)) => begin(running.into(), encoder(found)).await,
            Err(failure) => Err((failure, encoder(T::default()))),
        }
    }));
    let Some(key) = key else { return begun.await.or_else(refused) };
    if let Ok(answer) = timeout(EVERY, &mut begun).await {
        return answer.or_else(refused);
    }
    let first = comment(app, &key).await;
    let state = (app.clone(), key, Some(first), Some(Stage::Waiting(begun)));
    let pieces = unfold(state, |(app, key, first, stage)| async move {
        if let Some(first) = first {
            return Some((Ok::<_, Infallible>(first), (app, key, None, stage)));
        }
        let (piece, stage) = next(&app, &key, stage?).await?;
        Some((Ok(piece), (app, key, None, stage)))
    });
    Ok(stream(E::WIRE, pieces))
}

/// The answer to a request that fails before its stream begins.
fn refused<E: Encoder>((failure, encoder): (Failure, E)) -> Result<Response, Failure> {
    if !encoder.fails_in_stream(&failure) {
        return Err(failure);
    }
    let piece: Result<Bytes, Infallible> = Ok(encoder.broken(failure).into());
    Ok(stream(E::WIRE, futures_util::stream::iter([piece])))
}

/// The next piece of a stream, and where it is then; nothing is its end.
async fn next<E: Encoder>(app: &App, key: &Key, stage: Stage<E>) -> Option<(Bytes, Option<Stage<E>>)> {
    let mut body = match stage {
        Stage::Answer(body) => body,
        Stage::Waiting(mut begun) => match timeout(EVERY, &mut begun).await {
            Err(_) => return Some((comment(app, key).await, Some(Stage::Waiting(begun)))),
            Ok(Err((failure, encoder))) => return Some((encoder.broken(failure).into(), None)),
            Ok(Ok(response)) => response.into_body().into_data_stream(),
        },
    };
    let piece = body.next().await?.ok()?;
    Some((piece, Some(Stage::Answer(body))))
}

/// How far a model is.
async fn comment(app: &App, key: &Key) -> Bytes {
    let all = app.models().list().await;
    let phase = all.iter().find(|model| model.key == *key).map(|model| model.phase);
    let text = match phase {
        None => "waiting",
        Some(Phase::Ready) => "reading the prompt",
        Some(phase) => phase.name(),
    };
    format!(": {text}\n\n").into()
}
