//! Progress streams of create, pull, push and verify: one JSON object per line.

use std::convert::Infallible;

use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::unfold;
use puna_api::ollama::Progress;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;

use super::push_line;
use crate::app::App;
use crate::canonical::ApiError;
use crate::http::{ErrorResponse, Ollama, StreamFormat, error_body, json_plain, stream};
use crate::util::shutdown::ShutdownSignal;

/// Capacity, in lines, of the channel to the client.
pub(crate) const CHANNEL_LINES: usize = 64;

/// Status of the last line of successful work.
const SUCCESS: &str = "success";

/// A progress line, or the error that ends the work.
pub(crate) type ProgressLine = Result<Progress, ApiError>;

/// Streams the lines, or returns the last one if `last_only` is set. An error before the first line
/// becomes the response's status; a later error is the last line.
pub(crate) async fn respond(
    app: &App,
    lines: mpsc::Receiver<ProgressLine>,
    last_only: bool,
) -> Result<Response, ErrorResponse<Ollama>> {
    let mut lines = ProgressStream {
        lines,
        shutdown: app.shutdown_signal().clone(),
        has_succeeded: false,
        is_over: false,
    };
    if last_only {
        let mut last = Progress::default();
        while let Some(line) = lines.next().await {
            last = line?;
        }
        return Ok(json_plain(StatusCode::OK, &last));
    }
    match lines.next().await {
        Some(Err(failure)) => Err(failure.into()),
        first => {
            let rest =
                unfold(lines, async |mut lines| lines.next().await.map(|line| (line, lines)));
            Ok(stream(StreamFormat::Ndjson, tokio_stream::iter(first).chain(rest).map(encode)))
        }
    }
}

/// The lines of the work. Adds an error at the end if the work ends without success.
struct ProgressStream {
    lines: mpsc::Receiver<ProgressLine>,
    shutdown: ShutdownSignal,
    /// Whether the last line reported success.
    has_succeeded: bool,
    is_over: bool,
}

impl ProgressStream {
    async fn next(&mut self) -> Option<ProgressLine> {
        if self.is_over {
            return None;
        }
        let line = tokio::select! {
            biased;
            line = self.lines.recv() => line,
            failure = self.shutdown.wait() => Some(Err(failure)),
        };
        let line = match line {
            None if !self.has_succeeded => {
                let text = "the operation ended without a result: see the server log; this is a bug in Puna";
                Some(Err(ApiError::internal(text)))
            }
            line => line,
        };
        match &line {
            Some(Ok(progress)) => self.has_succeeded = progress.status == SUCCESS,
            _ => self.is_over = true,
        }
        line
    }
}

fn encode(line: ProgressLine) -> Result<Bytes, Infallible> {
    let mut out = Vec::new();
    match line {
        Ok(progress) => push_line(&progress, &mut out),
        Err(failure) => push_line(&error_body(&failure), &mut out),
    }
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(of: &[&str]) -> ProgressStream {
        let (to, lines) = mpsc::channel(8);
        of.iter().for_each(|status| {
            to.try_send(Ok(Progress { status: (*status).into(), ..Progress::default() })).unwrap()
        });
        ProgressStream {
            lines,
            shutdown: ShutdownSignal::default(),
            has_succeeded: false,
            is_over: false,
        }
    }

    #[tokio::test]
    async fn progress_that_ends_without_success_is_a_failure() {
        for broken in [&[][..], &["pulling manifest"], &["success", "and more"]] {
            let mut lines = lines(broken);
            for status in broken {
                assert_eq!(lines.next().await.unwrap().unwrap().status, *status);
            }
            let failure = lines.next().await.unwrap().unwrap_err();
            assert!(
                failure.status == 500 && failure.message.contains("without a result"),
                "{failure}"
            );
            assert!(lines.next().await.is_none());
        }
        let mut has_succeeded = lines(&["success"]);
        assert!(
            has_succeeded.next().await.unwrap().is_ok() && has_succeeded.next().await.is_none()
        );
    }
}
