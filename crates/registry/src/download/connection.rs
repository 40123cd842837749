//! A connection of a download: claims ranges, requests them with retries, and writes their bytes to
//! the file.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::{Method, Response};
use tokio::time::timeout;

use super::active::{ActiveDownload, IDLE_POLL_INTERVAL};
use crate::blocking::blocking;
use crate::client::session::{stalled_error, transport_error};
use crate::display::display_url;
use crate::download::positioned_io::{CHUNK_BYTES, write_at};
use crate::download::range_table::RangeTable;
use crate::download::source::RangeResponse;
use crate::download::throughput::ThroughputMonitor;
use crate::error::RegistryError;
use crate::lock::lock;

/// Longest time that received bytes stay in memory. Clients of a mirror wait for them, and
/// unwritten bytes are not recorded.
const MAX_WRITE_DELAY: Duration = Duration::from_millis(500);
/// Bytes after which an attempt counts as progress, which resets the retries.
const PROGRESS_BYTES: u64 = 1 << 20;
/// A connection is replaced if it is this many times slower than the average connection,
const SLOW_FACTOR: u64 = 10;
/// after this time,
const SLOW_AFTER: Duration = Duration::from_secs(10);
/// and at most this often for one range.
const MAX_SLOW_RESTARTS: u32 = 3;

/// Result of one request for a range.
enum AttemptOutcome {
    /// The range is complete.
    Done,
    /// The response ended early after enough bytes; another request gets the rest.
    More,
    /// The connection was too slow; another may be faster.
    Slow,
}

impl ActiveDownload {
    /// Fetches ranges until none is left.
    pub(super) async fn run_connection(self: Arc<Self>) -> Result<(), RegistryError> {
        let done = self.fetch_ranges().await;
        self.connections.fetch_sub(1, Ordering::Relaxed);
        done
    }

    async fn fetch_ranges(&self) -> Result<(), RegistryError> {
        loop {
            let (claimed, complete) = {
                let mut table = self.table();
                (table.claim(), table.is_complete())
            };
            match claimed {
                Some(offset) => {
                    let done = self.fetch_range(offset).await;
                    self.table().release(self.current_range(offset));
                    if !done? {
                        return Ok(());
                    }
                }
                None if complete || self.ranges_unsupported.load(Ordering::Relaxed) => {
                    return Ok(());
                }
                // Another connection may release a range, or have enough left to split.
                None => tokio::time::sleep(IDLE_POLL_INTERVAL).await,
            }
        }
    }

    /// Fetches a range with retries. Returns false if the server is busy and this connection should
    /// end.
    async fn fetch_range(&self, offset: u64) -> Result<bool, RegistryError> {
        let (mut retry, mut slow) = (self.source.session().retry(), 0);
        loop {
            let before = *lock(&self.received_bytes);
            let error = match self.attempt_range(offset, slow < MAX_SLOW_RESTARTS).await {
                Ok(AttemptOutcome::Done) => return Ok(true),
                Ok(AttemptOutcome::More) => continue,
                Ok(AttemptOutcome::Slow) => {
                    slow += 1;
                    continue;
                }
                Err(error) if error.is_retryable() => error,
                Err(error) => return Err(error),
            };
            if *lock(&self.received_bytes) - before >= PROGRESS_BYTES {
                retry.reset();
            }
            tracing::debug!(digest = %self.digest, offset, %error, "range request failed");
            let is_busy = matches!(error, RegistryError::Status { code: 429 | 503, .. });
            let pause = retry.record_failure(error)?;
            if is_busy && self.connections.load(Ordering::Relaxed) > 1 {
                return Ok(false);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends one request for the missing bytes of a range. A slow response is aborted only if
    /// `may_abort_slow`.
    async fn attempt_range(
        &self,
        offset: u64,
        may_abort_slow: bool,
    ) -> Result<AttemptOutcome, RegistryError> {
        let offset = self.current_range(offset);
        let (from, end) = self.table().missing_range(offset);
        if from >= end {
            return Ok(AttemptOutcome::Done);
        }
        let (mut response, end, from) = match self.source.open(from, end).await? {
            RangeResponse::Range(response) => (response, end, from),
            RangeResponse::Whole(response) => (response, self.switch_to_single_range(offset)?, 0),
        };
        self.first_response.notify_one();
        let offset = self.current_range(offset);
        let (mut pieces, mut buffered_bytes) = (Vec::new(), 0);
        let (started, mut attempt_bytes) = (Instant::now(), 0u64);
        let (mut written, mut throughput) =
            (started, ThroughputMonitor::new(self.settings().stall_timeout));
        loop {
            let waiting_since = Instant::now();
            let piece = self.next_piece(&mut response).await;
            let waited = waiting_since.elapsed();
            if let Ok(Some(piece)) = &piece {
                buffered_bytes += piece.len();
                attempt_bytes += piece.len() as u64;
                pieces.push(piece.clone());
                self.source.session().throttle(piece.len()).await;
            }
            let ended = !matches!(piece, Ok(Some(_)));
            let piece_bytes = piece.as_ref().ok().and_then(Option::as_ref).map_or(0, Bytes::len);
            let too_slow_bytes = throughput.too_slow(waited, piece_bytes as u64);
            // Another connection may have claimed the end of this range.
            let (front, until) = self.table().missing_range(offset);
            let is_filled = front + buffered_bytes as u64 >= until;
            if buffered_bytes >= CHUNK_BYTES
                || is_filled
                || ended
                || too_slow_bytes.is_some()
                || written.elapsed() >= MAX_WRITE_DELAY
            {
                self.write(offset, std::mem::take(&mut pieces)).await?;
                (buffered_bytes, written) = (0, Instant::now());
            }
            let (at, until) = self.table().missing_range(offset);
            if at >= until {
                return Ok(AttemptOutcome::Done);
            }
            piece?;
            if let Some(got) = too_slow_bytes {
                let (url, seconds) =
                    (display_url(response.url()), self.settings().stall_timeout.as_secs());
                return Err(RegistryError::TooSlow { url, got, seconds });
            }
            // Some servers return fewer bytes than requested.
            if ended && attempt_bytes >= PROGRESS_BYTES {
                return Ok(AttemptOutcome::More);
            }
            if ended {
                let url = display_url(response.url());
                return Err(RegistryError::Truncated { url, got: attempt_bytes, want: end - from });
            }
            if may_abort_slow && self.is_slow(attempt_bytes, started) {
                self.write(offset, std::mem::take(&mut pieces)).await?;
                return Ok(AttemptOutcome::Slow);
            }
        }
    }

    /// The next bytes of a response, within the stall timeout.
    async fn next_piece(&self, response: &mut Response) -> Result<Option<Bytes>, RegistryError> {
        let stall_timeout = self.settings().stall_timeout;
        match timeout(stall_timeout, response.chunk()).await {
            Ok(piece) => piece.map_err(|e| transport_error(&Method::GET, response.url(), &e)),
            Err(_) => Err(stalled_error(&Method::GET, response.url(), stall_timeout)),
        }
    }

    /// The key of a connection's range: 0 after the switch to a single range.
    fn current_range(&self, offset: u64) -> u64 {
        if self.ranges_unsupported.load(Ordering::Relaxed) { 0 } else { offset }
    }

    /// Changes the download to a single range from byte 0, because the server does not support
    /// range requests.
    fn switch_to_single_range(&self, offset: u64) -> Result<u64, RegistryError> {
        let mut table = self.table();
        let total = table.total();
        let is_single = self.connections.load(Ordering::Relaxed) <= 1;
        if !is_single && !self.ranges_unsupported.load(Ordering::Relaxed) {
            return Err(RegistryError::RangeIgnored {
                url: display_url(&self.source.url()),
                offset,
            });
        }
        *table = RangeTable::single(total).restarted_from(&table);
        table.claim();
        self.ranges_unsupported.store(true, Ordering::Relaxed);
        Ok(total)
    }

    /// Whether a connection is much slower than the average of all.
    fn is_slow(&self, attempt_bytes: u64, started: Instant) -> bool {
        let (time, others) = (started.elapsed(), self.connections.load(Ordering::Relaxed) as u128);
        if time < SLOW_AFTER || others < 2 {
            return false;
        }
        let all = u128::from(*lock(&self.received_bytes)) * time.as_millis()
            / self.started.elapsed().as_millis().max(1);
        u128::from(attempt_bytes) * u128::from(SLOW_FACTOR) < all / others
    }

    /// Writes received bytes at the start of a range's missing part, up to the end of the range.
    async fn write(&self, offset: u64, pieces: Vec<Bytes>) -> Result<(), RegistryError> {
        let (mut at, end) = self.table().missing_range(offset);
        let (begin, mut writes) = (at, Vec::new());
        for piece in pieces {
            let room = usize::try_from(end - at).unwrap_or(usize::MAX);
            let piece = if piece.len() > room { piece.slice(..room) } else { piece };
            at += piece.len() as u64;
            writes.push(piece);
        }
        if at == begin {
            return Ok(());
        }
        let (file, lock_guard) =
            (self.file.try_clone().map_err(|e| self.io(&e))?, self.lock.clone());
        let written = blocking(move || {
            let mut at = begin;
            for piece in writes {
                if let Err(e) = write_at(&file, &piece, at) {
                    return Ok(Err(e));
                }
                at += piece.len() as u64;
            }
            drop(lock_guard);
            Ok(Ok(()))
        });
        written.await?.map_err(|e| self.io(&e))?;
        self.table().advance(offset, at - begin);
        *lock(&self.received_bytes) += at - begin;
        self.bytes_written.notify_one();
        self.publish_progress();
        Ok(())
    }
}
