//! Reads streams of lines and of server-sent events, with limits on their length, on silence, and
//! on data that gives no output.
//!
//! Servers send comments or empty lines while they read a long prompt, so that no proxy closes the
//! connection. These prove only that the server still runs. A stream of nothing else ends after
//! [`OUTPUT_TIMEOUT_FACTOR`] silence timeouts or [`MAX_IDLE_BYTES`].

use std::time::Duration;

use puna_registry::single_line;
use reqwest::Response;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::remote_error::MAX_SHOWN_ERROR_CHARS;
use crate::canonical::ApiError;

/// Largest line, or response in one piece, in bytes.
const MAX_LINE_BYTES: usize = 64 << 20;
/// Size in bytes up to which an event's data is parsed after every line.
const SHORT_BYTES: usize = 4096;

/// Longest time without output, as a multiple of the longest time without data.
pub(super) const OUTPUT_TIMEOUT_FACTOR: u32 = 6;
/// Largest number of bytes between two outputs that belong to neither: comments, empty lines and
/// events without text. A day of a comment of 15 bytes for each second has 1.3 MB.
const MAX_IDLE_BYTES: usize = 16 << 20;

/// UTF-8 byte order mark, with which some servers begin a stream.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The lines of a response's body.
pub(super) struct ResponseLines {
    response: Response,
    silence_timeout: Option<Duration>,
    /// When the last output arrived, or the response began.
    last_output: Instant,
    /// Bytes without output since then, without those of the buffer.
    idle_bytes: usize,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were returned as lines.
    returned: usize,
    /// Bytes after `returned` that were searched and have no line end.
    searched: usize,
    is_at_end: bool,
}

impl ResponseLines {
    pub(super) fn new(response: Response, silence_timeout: Option<Duration>) -> Self {
        Self {
            response,
            silence_timeout,
            last_output: Instant::now(),
            idle_bytes: 0,
            buffer: Vec::new(),
            returned: 0,
            searched: 0,
            is_at_end: false,
        }
    }

    /// Notes that the last line or event gave output, which restarts the limits on idle data.
    pub(super) fn record_output(&mut self) {
        (self.last_output, self.idle_bytes) = (Instant::now(), 0);
    }

    /// Counts bytes that gave no output so far.
    fn add_idle_bytes(&mut self, count: usize) {
        self.idle_bytes = self.idle_bytes.saturating_add(count);
    }

    /// Refuses a stream that has exceeded [`MAX_IDLE_BYTES`].
    fn check_idle_bytes(&self) -> Result<(), ApiError> {
        if self.idle_bytes <= MAX_IDLE_BYTES {
            return Ok(());
        }
        let text = format!(
            "the remote server sent more than {} MiB without an output",
            MAX_IDLE_BYTES >> 20
        );
        Err(ApiError::new(502, text))
    }

    async fn read_chunk(&mut self) -> Result<bool, ApiError> {
        let chunk = self.response.chunk();
        let chunk = match self.silence_timeout {
            None => chunk.await,
            Some(silence_timeout) => {
                let output_timeout = silence_timeout.saturating_mul(OUTPUT_TIMEOUT_FACTOR);
                let rest = output_timeout.saturating_sub(self.last_output.elapsed());
                let limit = silence_timeout.min(rest);
                timeout(limit, chunk).await.map_err(|_| {
                    if limit < silence_timeout { no_output(silence_timeout) } else { silent(limit) }
                })?
            }
        };
        let Some(chunk) = chunk.map_err(|error| connection_error(&error))? else {
            return Ok(false);
        };
        self.buffer.drain(..self.returned);
        self.returned = 0;
        if self.buffer.len() + chunk.len() > MAX_LINE_BYTES {
            return Err(too_long());
        }
        self.buffer.extend_from_slice(&chunk);
        Ok(true)
    }

    /// Returns the next line without its end; `None` at the end of the stream.
    pub(super) async fn next_line(&mut self) -> Result<Option<&[u8]>, ApiError> {
        loop {
            let from = self.returned + self.searched;
            if let Some(at) = self.buffer[from..].iter().position(|&byte| byte == b'\n') {
                let line = self.returned..from + at;
                (self.returned, self.searched) = (line.end + 1, 0);
                return Ok(Some(self.buffer[line].trim_ascii_end()));
            }
            self.searched = self.buffer.len() - self.returned;
            if !self.is_at_end && self.read_chunk().await? {
                continue;
            }
            self.is_at_end = true;
            let rest = self.returned..self.buffer.len();
            (self.returned, self.searched) = (self.buffer.len(), 0);
            return Ok(Some(self.buffer[rest].trim_ascii()).filter(|line| !line.is_empty()));
        }
    }

    /// Returns the data of the next server-sent event; `None` at the end of the stream and at
    /// `[DONE]`. A response in one piece, from a server that does not stream, counts as one event.
    /// An event ends once its data is complete JSON, because some servers send no empty line.
    pub(super) async fn next_event(&mut self) -> Result<Option<Value>, ApiError> {
        let (mut data, mut is_bare) = (Vec::new(), false);
        // Long data is parsed again only once its length has doubled, which keeps the total cost
        // linear.
        let mut read_from = 0;
        self.check_idle_bytes()?;
        while let Some(line) = self.next_line().await? {
            let line_bytes = line.len() + 1;
            let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
            let part = match line.strip_prefix(b"data:") {
                Some(part) => part.trim_ascii(),
                None if is_bare => line,
                None if line.starts_with(b"{") && data.is_empty() => {
                    is_bare = true;
                    line
                }
                None if line.is_empty() && !data.is_empty() => break,
                // Comments that keep connections open, event names and ends of events are skipped.
                None => &b""[..],
            };
            if part.is_empty() {
                self.add_idle_bytes(line_bytes);
                self.check_idle_bytes()?;
                continue;
            }
            let is_first = data.is_empty();
            if is_first && part == b"[DONE]" {
                return Ok(None);
            }
            if data.len() + part.len() > MAX_LINE_BYTES {
                return Err(too_long());
            }
            data.extend_from_slice(part);
            if is_first || (part.ends_with(b"}") && data.len() >= read_from) {
                match serde_json::from_slice(&data) {
                    Err(error) if error.is_eof() => {
                        read_from = if data.len() < SHORT_BYTES { 0 } else { 2 * data.len() }
                    }
                    other => {
                        self.add_idle_bytes(data.len());
                        return other.map(Some).map_err(|error| invalid_response(&error));
                    }
                }
            }
            data.push(b'\n');
        }
        self.add_idle_bytes(data.len());
        if data.is_empty() { Ok(None) } else { parse_json(&data).map(Some) }
    }

    /// Returns the JSON value of the next line that is not empty.
    pub(super) async fn next_json(&mut self) -> Result<Option<Value>, ApiError> {
        self.check_idle_bytes()?;
        while let Some(line) = self.next_line().await? {
            let line_bytes = line.len() + 1;
            if !line.is_empty() {
                let value = parse_json(line).map(Some);
                self.add_idle_bytes(line_bytes);
                return value;
            }
            self.add_idle_bytes(line_bytes);
            self.check_idle_bytes()?;
        }
        Ok(None)
    }

    /// Reads the whole response as one JSON value.
    pub(super) async fn into_json(mut self) -> Result<Value, ApiError> {
        while self.read_chunk().await? {}
        parse_json(&self.buffer)
    }

    /// Reads the response as text, up to `max` bytes.
    pub(super) async fn into_text(mut self, max: usize) -> String {
        while self.buffer.len() < max && matches!(self.read_chunk().await, Ok(true)) {}
        self.buffer.truncate(max);
        String::from_utf8_lossy(&self.buffer).into_owned()
    }
}

/// Error for a connection that ended before the response was complete.
pub(super) fn connection_error(error: &reqwest::Error) -> ApiError {
    let cause = puna_registry::root_cause(error);
    ApiError::new(502, format!("the connection to the remote server failed: {cause}"))
}

fn parse_json(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| invalid_response(&error))
}

/// Error for a response that does not follow the API. The message may quote the response.
pub(super) fn invalid_response(error: &serde_json::Error) -> ApiError {
    let error = single_line(&error.to_string(), MAX_SHOWN_ERROR_CHARS);
    ApiError::new(502, format!("invalid response from the remote server: {error}"))
}

/// Error for a server that has sent nothing for some time.
fn silent(silence_timeout: Duration) -> ApiError {
    let seconds = silence_timeout.as_secs();
    ApiError::new(504, format!("the remote server has sent nothing for {seconds} s"))
}

/// Error for a server that has kept its response open without an output.
fn no_output(silence_timeout: Duration) -> ApiError {
    let text = format!(
        "the remote server has sent no output for {} s, only data that keeps the connection open: \
         set a longer remote_timeout if it needs more time ({OUTPUT_TIMEOUT_FACTOR} times its value)",
        silence_timeout.saturating_mul(OUTPUT_TIMEOUT_FACTOR).as_secs()
    );
    ApiError::new(504, text)
}

fn too_long() -> ApiError {
    ApiError::new(
        502,
        format!("the remote server sent a line of more than {} MiB", MAX_LINE_BYTES >> 20),
    )
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use serde_json::json;

    use super::*;

    async fn events(text: &'static str) -> Result<Vec<Value>, ApiError> {
        let mut lines = ResponseLines::new(axum::http::Response::new(text).into(), None);
        let mut events = Vec::new();
        while let Some(event) = lines.next_event().await? {
            events.push(event);
        }
        Ok(events)
    }

    #[tokio::test]
    async fn events_may_have_a_byte_order_mark_and_several_lines() {
        let one = [json!({"a": {"b": 1}}), json!({"c": 2})];
        for text in [
            "data: {\"a\":{\"b\":1}}\n\ndata: {\"c\":2}\n\ndata: [DONE]\n\n",
            "\u{feff}data: {\"a\":{\"b\":1}}\n\ndata:{\"c\":2}\n\n",
            "data: {\"a\":\ndata: {\"b\":1}\ndata: }\n\ndata: {\"c\":2}\n",
            "data: {\"a\":\r\ndata: {\"b\":1}}\r\n\r\n: c\r\n\r\ndata: {\"c\":2}",
            "data: {\"a\":{\"b\":1}}\ndata: {\"c\":2}\n",
            "{\"a\":{\"b\":1}}\n{\"c\":2}\n",
        ] {
            assert_eq!(events(text).await.unwrap(), one, "{text}");
        }
        assert_eq!(events("{\n \"a\": {\n  \"b\": 1\n }\n}").await.unwrap(), one[..1]);
        for text in ["data: {oops\n\n", "data: {\"a\":\n\ndata: 1}\n\n", "data: {\"a\":"] {
            assert_eq!(events(text).await.unwrap_err().status, 502, "{text}");
        }
    }

    /// Returns the lines of a response that sends a text again and again, `period` apart.
    fn endless(
        text: &'static str,
        period: Duration,
        silence_timeout: Option<Duration>,
    ) -> ResponseLines {
        let stream = futures_util::stream::repeat(()).then(move |()| async move {
            // Without a pause, other tasks must run too.
            tokio::task::yield_now().await;
            if !period.is_zero() {
                tokio::time::sleep(period).await;
            }
            Ok::<_, std::io::Error>(text)
        });
        let body = reqwest::Body::wrap_stream(stream);
        ResponseLines::new(axum::http::Response::new(body).into(), silence_timeout)
    }

    /// One minute of the paused clock.
    const MINUTE: Duration = Duration::from_secs(60);

    /// Data that gives no output: comments, empty lines, and fields without data.
    const IDLE: [&str; 4] = [": keep-alive\n\n", "\n", "event: ping\ndata:\n\n", "data: \r\n"];

    #[tokio::test(start_paused = true)]
    async fn data_without_output_does_not_keep_a_response_alive() {
        for text in IDLE {
            let began = Instant::now();
            let failure = endless(text, MINUTE, Some(10 * MINUTE)).next_event().await.unwrap_err();
            assert_eq!((failure.status, began.elapsed()), (504, 60 * MINUTE), "{text:?}");
            assert!(failure.message.contains("no output for 3600 s"), "{}", failure.message);
            assert!(failure.message.contains("remote_timeout"), "{}", failure.message);
        }
        let began = Instant::now();
        let failure = endless("\n", MINUTE, Some(10 * MINUTE)).next_json().await.unwrap_err();
        assert_eq!((failure.status, began.elapsed()), (504, 60 * MINUTE));
        let began = Instant::now();
        let failure = endless("[", MINUTE, Some(10 * MINUTE)).into_json().await.unwrap_err();
        assert_eq!((failure.status, began.elapsed()), (504, 60 * MINUTE));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_response_before_the_limit_on_output() {
        let began = Instant::now();
        let lines = &mut endless(": keep-alive\n\n", 11 * MINUTE, Some(10 * MINUTE));
        let failure = lines.next_event().await.unwrap_err();
        assert_eq!((failure.status, began.elapsed()), (504, 10 * MINUTE));
        assert!(failure.message.contains("sent nothing for 600 s"), "{}", failure.message);
    }

    #[tokio::test(start_paused = true)]
    async fn output_restarts_the_limit_on_time() {
        let lines = &mut endless("data: {\"a\":1}\n\n", 9 * MINUTE, Some(10 * MINUTE));
        for _ in 0..20 {
            assert_eq!(lines.next_event().await.unwrap(), Some(json!({"a": 1})));
            lines.record_output();
        }
        // The same events without output.
        let began = Instant::now();
        let failure = loop {
            match lines.next_event().await {
                Ok(event) => assert!(event.is_some()),
                Err(failure) => break failure,
            }
        };
        assert_eq!((failure.status, began.elapsed()), (504, 60 * MINUTE));
    }

    #[tokio::test]
    async fn idle_data_is_bounded_without_a_time_limit() {
        const LINES: &str =
            ": a comment that keeps a connection open while a long prompt is read\n";
        let text: &'static str = String::leak(LINES.repeat(1024));
        let failure = endless(text, Duration::ZERO, None).next_event().await.unwrap_err();
        assert_eq!((failure.status, failure.message.contains("16 MiB")), (502, true));
        let text: &'static str = String::leak("\n".repeat(64 << 10));
        let failure = endless(text, Duration::ZERO, None).next_json().await.unwrap_err();
        assert_eq!((failure.status, failure.message.contains("16 MiB")), (502, true));
        // Events without output count, and events with output do not.
        let event = format!("data: {{\"a\":\"{}\"}}\n\n", "x".repeat(1 << 20));
        let lines = &mut endless(String::leak(event), Duration::ZERO, None);
        for _ in 0..20 {
            assert!(lines.next_event().await.unwrap().is_some());
            lines.record_output();
        }
        for _ in 0..16 {
            assert!(lines.next_event().await.unwrap().is_some());
        }
        assert_eq!(lines.next_event().await.unwrap_err().status, 502);
    }
}
