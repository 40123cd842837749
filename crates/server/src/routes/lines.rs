//! Work that reports line by line: create, pull and push.

use std::convert::Infallible;

use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use puna_api::native::Progress;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::canonical::Failure;
use crate::dialect::native::push_line;
use crate::http::{Native, Refused, Wire, error_body, json_plain, stream};

/// Lines of progress that may wait for the client.
pub(super) const WAITING: usize = 64;

/// A line, or why there are no more.
pub(super) type Line = Result<Progress, Failure>;

/// Lines as they come; or, if the client wants one object, the last of them. A failure before the first line is the
/// answer's status, a later one is the last line.
pub(super) async fn answer(
    mut lines: mpsc::Receiver<Line>,
    whole: bool,
) -> Result<Response, Refused<Native>> {
    if whole {
        let mut last = Progress::default();
        while let Some(line) = lines.recv().await {
            last = line?;
        }
        return Ok(json_plain(StatusCode::OK, &last));
    }
    match lines.recv().await {
        Some(Err(failure)) => Err(failure.into()),
        first => {
            let lines = tokio_stream::iter(first).chain(ReceiverStream::new(lines));
            Ok(stream(Wire::Ndjson, lines.map(encode)))
        }
    }
}

fn encode(line: Line) -> Result<Bytes, Infallible> {
    let mut out = Vec::new();
    match line {
        Ok(progress) => push_line(&progress, &mut out),
        Err(failure) => push_line(&error_body(&failure), &mut out),
    }
    Ok(out.into())
}
