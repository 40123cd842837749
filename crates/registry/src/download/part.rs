//! One connection's work: parts, each fetched with several attempts, and written where their bytes belong.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::{Method, Response};
use tokio::time::timeout;

use super::{IDLE, PIECE, Work};
use crate::address::shown;
use crate::blocking::blocking;
use crate::error::RegistryError;
use crate::fetch::Opened;
use crate::file::write_at;
use crate::http::{stalled, transport};
use crate::lock::lock;
use crate::pace::Pace;
use crate::parts::Table;

/// Bytes are written after so long a time, too: a mirror's clients wait for them, and what is not written is not noted.
const HELD: Duration = Duration::from_millis(500);
/// Bytes after which an attempt counts as a success, so that the next one is a first one.
const PROGRESS: u64 = 1 << 20;
/// A connection this many times slower than the others together on average is replaced…
const SLOW: u64 = 10;
/// … after this long, …
const SLOW_AFTER: Duration = Duration::from_secs(10);
/// … this often for one part.
const SLOW_TIMES: u32 = 3;

/// What came of a request for a part.
enum Attempt {
    /// The part is complete.
    Done,
    /// Another request brings the rest.
    More,
    /// It was too slow, and another may be faster.
    Slow,
}

impl Work {
    /// One connection's work: part after part, until there is none.
    pub(super) async fn work(self: Arc<Self>) -> Result<(), RegistryError> {
        let done = self.work_parts().await;
        self.workers.fetch_sub(1, Ordering::Relaxed);
        done
    }

    async fn work_parts(&self) -> Result<(), RegistryError> {
        loop {
            let (claimed, complete) = {
                let mut table = self.table();
                (table.claim(), table.is_complete())
            };
            match claimed {
                Some(offset) => {
                    let done = self.part(offset).await;
                    self.table().release(self.place(offset));
                    if !done? {
                        return Ok(());
                    }
                }
                None if complete || self.whole.load(Ordering::Relaxed) => return Ok(()),
                // Somebody may give up a part, or have more left than is worth waiting for.
                None => tokio::time::sleep(IDLE).await,
            }
        }
    }

    /// Fetches a part, with several attempts. False: the server is busy, and one connection less will do.
    async fn part(&self, offset: u64) -> Result<bool, RegistryError> {
        let (mut retry, mut slow) = (self.source.session().retry(), 0);
        loop {
            let before = *lock(&self.fresh);
            let error = match self.attempt(offset, slow < SLOW_TIMES).await {
                Ok(Attempt::Done) => return Ok(true),
                Ok(Attempt::More) => continue,
                Ok(Attempt::Slow) => {
                    slow += 1;
                    continue;
                }
                Err(error) if error.is_passing() => error,
                Err(error) => return Err(error),
            };
            if *lock(&self.fresh) - before >= PROGRESS {
                retry.forget();
            }
            tracing::debug!(digest = %self.digest, offset, %error, "a part failed");
            let is_busy = matches!(error, RegistryError::Status { code: 429 | 503, .. });
            let pause = retry.failed(error)?;
            if is_busy && self.workers.load(Ordering::Relaxed) > 1 {
                return Ok(false);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// One request for what a part lacks, which is broken off for being slow only in a hurry.
    async fn attempt(&self, offset: u64, hurry: bool) -> Result<Attempt, RegistryError> {
        let offset = self.place(offset);
        let (from, end) = self.table().missing(offset);
        if from >= end {
            return Ok(Attempt::Done);
        }
        let (mut response, end, from) = match self.source.open(from, end).await? {
            Opened::Range(response) => (response, end, from),
            Opened::Whole(response) => (response, self.take_whole(offset)?, 0),
        };
        self.answered.notify_one();
        let offset = self.place(offset);
        let (mut pieces, mut held) = (Vec::new(), 0);
        let (begun, mut got) = (Instant::now(), 0u64);
        let (mut written, mut pace) = (begun, Pace::new(self.settings().patience));
        loop {
            let asked = Instant::now();
            let piece = self.next(&mut response).await;
            let waited = asked.elapsed();
            if let Ok(Some(piece)) = &piece {
                held += piece.len();
                got += piece.len() as u64;
                pieces.push(piece.clone());
                self.source.session().pay(piece.len()).await;
            }
            let ended = !matches!(piece, Ok(Some(_)));
            let came = piece.as_ref().ok().and_then(Option::as_ref).map_or(0, Bytes::len);
            let drips = pace.too_slow(waited, came as u64);
            // Others may have taken what comes after these.
            let (front, until) = self.table().missing(offset);
            let enough = front + held as u64 >= until;
            if held >= PIECE || enough || ended || drips.is_some() || written.elapsed() >= HELD {
                self.write(offset, std::mem::take(&mut pieces)).await?;
                (held, written) = (0, Instant::now());
            }
            let (at, until) = self.table().missing(offset);
            if at >= until {
                return Ok(Attempt::Done);
            }
            piece?;
            if let Some(got) = drips {
                let (url, seconds) = (shown(response.url()), self.settings().patience.as_secs());
                return Err(RegistryError::Drips { url, got, seconds });
            }
            // Some servers give less than was asked for at a time.
            if ended && got >= PROGRESS {
                return Ok(Attempt::More);
            }
            if ended {
                let url = shown(response.url());
                return Err(RegistryError::Short { url, got, want: end - from });
            }
            if hurry && self.is_slow(got, begun) {
                self.write(offset, std::mem::take(&mut pieces)).await?;
                return Ok(Attempt::Slow);
            }
        }
    }

    /// The next bytes of an answer, within the patience.
    async fn next(&self, response: &mut Response) -> Result<Option<Bytes>, RegistryError> {
        let patience = self.settings().patience;
        match timeout(patience, response.chunk()).await {
            Ok(piece) => piece.map_err(|e| transport(&Method::GET, response.url(), &e)),
            Err(_) => Err(stalled(&Method::GET, response.url(), patience)),
        }
    }

    /// The part that a worker's part is now.
    fn place(&self, offset: u64) -> u64 {
        if self.whole.load(Ordering::Relaxed) { 0 } else { offset }
    }

    /// Turns the download into one of a single part, from its beginning, for a server that does not know ranges.
    fn take_whole(&self, offset: u64) -> Result<u64, RegistryError> {
        let mut table = self.table();
        let total = table.total();
        let alone = self.workers.load(Ordering::Relaxed) <= 1;
        if !alone && !self.whole.load(Ordering::Relaxed) {
            return Err(RegistryError::NoRange { url: shown(&self.source.url()), offset });
        }
        *table = Table::whole(total).after(&table);
        table.claim();
        self.whole.store(true, Ordering::Relaxed);
        Ok(total)
    }

    /// Whether a connection is much slower than the others are on average.
    fn is_slow(&self, got: u64, begun: Instant) -> bool {
        let (time, others) = (begun.elapsed(), self.workers.load(Ordering::Relaxed) as u128);
        if time < SLOW_AFTER || others < 2 {
            return false;
        }
        let all = u128::from(*lock(&self.fresh)) * time.as_millis()
            / self.begun.elapsed().as_millis().max(1);
        u128::from(got) * u128::from(SLOW) < all / others
    }

    /// Writes bytes where a part's next ones belong, as far as the part reaches.
    async fn write(&self, offset: u64, pieces: Vec<Bytes>) -> Result<(), RegistryError> {
        let (mut at, end) = self.table().missing(offset);
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
        let (file, right) = (self.file.try_clone().map_err(|e| self.io(&e))?, self.lock.clone());
        let written = blocking(move || {
            let mut at = begin;
            for piece in writes {
                if let Err(e) = write_at(&file, &piece, at) {
                    return Ok(Err(e));
                }
                at += piece.len() as u64;
            }
            drop(right);
            Ok(Ok(()))
        });
        written.await?.map_err(|e| self.io(&e))?;
        self.table().advance(offset, at - begin);
        *lock(&self.fresh) += at - begin;
        self.arrived.notify_one();
        self.show();
        Ok(())
    }
}
