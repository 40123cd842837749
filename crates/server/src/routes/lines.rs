//! Work that reports line by line: create, pull, push and verify.

use std::convert::Infallible;

use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::unfold;
use puna_api::native::Progress;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;

use crate::app::App;
use crate::canonical::ApiError;
use crate::dialect::native::push_line;
use crate::http::{ErrorResponse, Native, StreamFormat, error_body, json_plain, stream};
use crate::shutdown::ShutdownSignal;

/// Lines of progress that may wait for the client.
pub(super) const WAITING: usize = 64;

/// The last line of work that was done.
const SUCCESS: &str = "success";

/// A line, or why there are no more.
pub(super) type Line = Result<Progress, ApiError>;

/// Lines as they come; or, if the client wants one object, the last of them. A failure before the first line is the
/// answer's status, a later one is the last line.
pub(super) async fn answer(
    app: &App,
    lines: mpsc::Receiver<Line>,
    whole: bool,
) -> Result<Response, ErrorResponse<Native>> {
    let mut lines = Lines { lines, end: app.shutdown_signal().clone(), done: false, over: false };
    if whole {
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

/// The lines of work, and an error in the place of an end that does not come.
struct Lines {
    lines: mpsc::Receiver<Line>,
    end: ShutdownSignal,
    /// The last line said that the work is done.
    done: bool,
    over: bool,
}

impl Lines {
    async fn next(&mut self) -> Option<Line> {
        if self.over {
            return None;
        }
        let line = tokio::select! {
            biased;
            line = self.lines.recv() => line,
            failure = self.end.wait() => Some(Err(failure)),
        };
        let line = match line {
            None if !self.done => {
                let text = "the work broke off; this is an error in Puna, and the log of the server says more";
                Some(Err(ApiError::internal(text)))
            }
            line => line,
        };
        match &line {
            Some(Ok(progress)) => self.done = progress.status == SUCCESS,
            _ => self.over = true,
        }
        line
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(of: &[&str]) -> Lines {
        let (to, lines) = mpsc::channel(8);
        of.iter().for_each(|status| {
            to.try_send(Ok(Progress { status: (*status).into(), ..Progress::default() })).unwrap()
        });
        Lines { lines, end: ShutdownSignal::default(), done: false, over: false }
    }

    #[tokio::test]
    async fn work_that_ends_without_success_has_failed() {
        for broken in [&[][..], &["pulling manifest"], &["success", "and more"]] {
            let mut lines = lines(broken);
            for status in broken {
                assert_eq!(lines.next().await.unwrap().unwrap().status, *status);
            }
            let failure = lines.next().await.unwrap().unwrap_err();
            assert!(failure.status == 500 && failure.message.contains("broke off"), "{failure}");
            assert!(lines.next().await.is_none());
        }
        let mut done = lines(&["success"]);
        assert!(done.next().await.unwrap().is_ok() && done.next().await.is_none());
    }
}
