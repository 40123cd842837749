//! The download of one blob: connections that each fetch parts, a thread that computes the digest behind them, and notes
//! on disk of what has arrived.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use puna_store::{BlobLock, Digest, Partial, Store, StoreError};
use reqwest::{Method, Response, Url};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::address::shown;
use crate::blocking::blocking;
use crate::error::RegistryError;
use crate::fetch::{Opened, Source};
use crate::file::{file_number, read_at, write_at};
use crate::growth::{FIRST_STREAMS, Growth};
use crate::http::{Session, stalled, transport};
use crate::lock::lock;
use crate::pace::Pace;
use crate::parts::Table;
use crate::settings::Settings;
use crate::space::room;
use crate::sum::{Saved, Sum};

/// Bytes that are written at once…
const PIECE: usize = 1 << 20;
/// … or those of so long a time: a mirror's clients wait for them, and what is not written is not noted.
const HELD: Duration = Duration::from_millis(500);
/// Bytes after which an attempt counts as a success, so that the next one is a first one.
const PROGRESS: u64 = 1 << 20;
/// The first notes are made after this part of the usual pause.
const FIRST_NOTES: u32 = 16;
/// Connections beyond those of a download, for readers who wait for bytes that are far off.
const FOR_READERS: usize = 2;
/// How long somebody without work waits before he looks for some again.
const IDLE: Duration = Duration::from_millis(200);
/// A connection this many times slower than the others together on average is replaced…
const SLOW: u64 = 10;
/// … after this long, …
const SLOW_AFTER: Duration = Duration::from_secs(10);
/// … this often for one part.
const SLOW_TIMES: u32 = 3;

/// What is downloaded.
#[derive(Debug, Clone)]
pub(crate) struct What {
    /// Its digest; of a file whose digest nobody knows, something that only this version of it is called.
    pub(crate) key: Digest,
    /// Whether `key` is the digest.
    pub(crate) verified: bool,
    pub(crate) total: u64,
    pub(crate) url: Url,
}

/// What came of a request for a part.
enum Attempt {
    /// The part is complete.
    Done,
    /// Another request brings the rest.
    More,
    /// It was too slow, and another may be faster.
    Slow,
}

/// How far a download is.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) completed: u64,
    /// The digest of what arrived, or why it did not.
    pub(crate) end: Option<Result<Digest, RegistryError>>,
    /// What is being done, as long as it is.
    work: Weak<Work>,
}

impl State {
    /// Whether it has begun.
    pub(crate) fn is_at_work(&self) -> bool {
        self.work.strong_count() > 0
    }

    /// Has a byte fetched before those that nobody waits for.
    pub(crate) fn want(&self, at: u64) {
        if let Some(work) = self.work.upgrade()
            && work.table().want(at)
        {
            work.wanted.notify_one();
        }
    }

    /// Up to where bytes have arrived without a gap from `from` on.
    pub(crate) fn reach(&self, from: u64) -> u64 {
        self.work.upgrade().map_or(from, |work| work.table().reach(from))
    }
}

/// What the connections of a download share.
struct Work {
    source: Source,
    store: Arc<Store>,
    partial: Partial,
    file: File,
    digest: Digest,
    verified: bool,
    /// Held until the last byte is written, also where nobody waits for that any more.
    lock: Arc<BlobLock>,
    table: Mutex<Table>,
    /// How far the digest is computed.
    sum: Mutex<Option<Saved>>,
    /// How far that is on disk.
    saved: AtomicU64,
    /// Bytes were written.
    arrived: Condvar,
    /// The first answer is there, so that it is known whether parts can be had.
    answered: Notify,
    /// The server does not know ranges.
    whole: AtomicBool,
    /// Nobody wants it any more.
    over: AtomicBool,
    workers: AtomicUsize,
    begun: Instant,
    fresh: Mutex<u64>,
    state: watch::Sender<State>,
    /// A reader waits for bytes that are far off.
    wanted: Notify,
}

/// Downloads a blob of a size into the store, going on from what is there. Ends when nobody looks at `state` any more.
pub(crate) async fn download(
    session: Arc<Session>,
    store: Arc<Store>,
    what: What,
    state: &watch::Sender<State>,
) -> Result<Digest, RegistryError> {
    let (digest, total) = (what.key, what.total);
    let Some(lock) = right_to_download(&store, digest, total, state).await? else { return Ok(digest) };
    let lock = Arc::new(lock);
    loop {
        let partial = store.partial(&digest)?;
        let (table, resumed) = open_table(&partial, total, session.settings().min_part)?;
        room(&store, &digest.to_string(), total - table.completed())?;
        let file = open_data(&partial, total)?;
        let work = Arc::new(Work {
            source: Source::new(session.clone(), &what),
            store: store.clone(),
            partial,
            file,
            digest,
            verified: what.verified,
            lock: lock.clone(),
            table: Mutex::new(table),
            sum: Mutex::new(None),
            saved: AtomicU64::new(0),
            arrived: Condvar::new(),
            answered: Notify::new(),
            whole: AtomicBool::new(false),
            over: AtomicBool::new(false),
            workers: AtomicUsize::new(0),
            begun: Instant::now(),
            fresh: Mutex::new(0),
            state: state.clone(),
            wanted: Notify::new(),
        });
        state.send_modify(|state| state.work = Arc::downgrade(&work));
        match work.run().await {
            // Bytes of an earlier run may have been lost with the power. Once more, with all of them fetched now.
            Err(RegistryError::DigestMismatch { want, got }) if resumed => {
                tracing::warn!(%want, %got, "what an interrupted download left was damaged: downloading anew");
                work.partial.discard()?;
            }
            Err(error @ RegistryError::DigestMismatch { .. }) => {
                work.partial.discard()?;
                return Err(error);
            }
            ended => return ended,
        }
    }
}

/// The right to download; `None` when another process has finished the blob meanwhile.
async fn right_to_download(
    store: &Store,
    digest: Digest,
    total: u64,
    state: &watch::Sender<State>,
) -> Result<Option<BlobLock>, RegistryError> {
    loop {
        let lock = store.lock_download(&digest)?;
        if store.hold_blob(&digest, total) {
            return Ok(None);
        }
        if lock.is_some() {
            return Ok(lock);
        }
        if state.is_closed() {
            return Err(RegistryError::Cancelled);
        }
        if let Some(table) = Table::load(&store.partial(&digest)?, total)? {
            state.send_modify(|state| state.completed = table.completed());
        }
        tokio::time::sleep(IDLE).await;
    }
}

/// The parts, and whether bytes of an earlier run count.
fn open_table(partial: &Partial, total: u64, min_part: u64) -> Result<(Table, bool), RegistryError> {
    if let Some(table) = Table::load(partial, total)? {
        let ours = table.numbers();
        for n in partial.parts()?.into_iter().filter(|n| !ours.contains(n)) {
            partial.remove_part(n)?;
        }
        let resumed = table.is_resumed();
        return Ok((table, resumed));
    }
    partial.discard()?;
    Ok((Table::plan(total, min_part), false))
}

fn open_data(partial: &Partial, total: u64) -> Result<File, StoreError> {
    let path = partial.data();
    let open = || {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(total)?;
        Ok(file)
    };
    open().map_err(|e| StoreError::io("write", path, &e))
}

impl Work {
    async fn run(self: &Arc<Self>) -> Result<Digest, RegistryError> {
        self.show();
        self.checkpoint().await?;
        let hashing = {
            let work = self.clone();
            tokio::task::spawn_blocking(move || work.hash())
        };
        // However this ends, also by being dropped with the whole program: nothing waits for a thread that waits.
        let _hashing = EndsHashing(self);
        let fetched = tokio::select! {
            fetched = self.fetch() => fetched,
            () = self.state.closed() => Err(RegistryError::Cancelled),
        };
        if let Err(error) = fetched {
            // What has arrived counts next time, whatever happened.
            self.checkpoint().await?;
            return Err(error);
        }
        let got = hashing.await.map_err(|e| RegistryError::Setup(e.to_string()))??;
        let got = got.unwrap_or_else(|| Digest::of(b""));
        if self.verified && got != self.digest {
            return Err(RegistryError::DigestMismatch { want: self.digest, got });
        }
        let work = self.clone();
        blocking(move || Ok(work.store.finish_partial(&work.digest, &got)?)).await?;
        Ok(got)
    }

    /// Has connections fetch all parts, noting what arrives.
    async fn fetch(self: &Arc<Self>) -> Result<(), RegistryError> {
        let mut workers = JoinSet::new();
        let spawn = |workers: &mut JoinSet<_>| {
            self.workers.fetch_add(1, Ordering::Relaxed);
            workers.spawn(self.clone().work());
        };
        if !self.table().is_complete() {
            spawn(&mut workers);
        }
        // What comes first is noted soon, so that short downloads go on too; then as often as is told.
        let mut pause = self.settings().checkpoint / FIRST_NOTES;
        let mut tick = Instant::now() + pause;
        let (mut alone, mut growth) = (true, Growth::new(1));
        loop {
            tokio::select! {
                done = workers.join_next() => match done {
                    None if self.table().is_complete() => return Ok(()),
                    // The last one gave a part back that it could not fetch.
                    None => spawn(&mut workers),
                    Some(done) => done.map_err(|e| RegistryError::Setup(e.to_string()))??,
                },
                () = self.answered.notified(), if alone => {
                    alone = false;
                    let most = if self.whole.load(Ordering::Relaxed) { 1 } else { self.source.session().streams() };
                    growth = Growth::new(most);
                    (1..most.min(FIRST_STREAMS)).for_each(|_| spawn(&mut workers));
                }
                // Those who fetch go on with what they have: one more begins with what is waited for.
                () = self.wanted.notified(), if !alone => {
                    let most = self.source.session().streams() + FOR_READERS;
                    let whole = self.whole.load(Ordering::Relaxed);
                    if !whole && self.workers.load(Ordering::Relaxed) < most {
                        spawn(&mut workers);
                    }
                }
                () = tokio::time::sleep_until(growth.at.into()), if growth.goes_on() => {
                    let more = growth.more(*lock(&self.fresh), self.workers.load(Ordering::Relaxed));
                    (0..more).for_each(|_| spawn(&mut workers));
                }
                () = tokio::time::sleep_until(tick.into()) => {
                    self.checkpoint().await?;
                    pause = (pause * 2).min(self.settings().checkpoint);
                    tick = Instant::now() + pause;
                }
            }
        }
    }

    /// One connection's work: part after part, until there is none.
    async fn work(self: Arc<Self>) -> Result<(), RegistryError> {
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
            if held >= PIECE || ended || drips.is_some() || written.elapsed() >= HELD {
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
        let all = u128::from(*lock(&self.fresh)) * time.as_millis() / self.begun.elapsed().as_millis().max(1);
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

    /// Notes on disk what is there, after it is there for good.
    async fn checkpoint(self: &Arc<Self>) -> Result<(), RegistryError> {
        // Before the notes, so that what is verified is among what they say is there.
        let sum = lock(&self.sum).clone();
        let notes = self.table().unwritten();
        if notes.is_empty() {
            return Ok(());
        }
        let work = self.clone();
        blocking(move || {
            work.file.sync_data().map_err(|e| work.io(&e))?;
            // On a full disk there may be room for some of them, and each is bytes that need not come again.
            let mut failed = None;
            for note in notes {
                match work.partial.write_part(note.n, &note.to_bytes()) {
                    Ok(()) => work.table().written(note),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            if let Some(error) = failed {
                return Err(error.into());
            }
            if let Some(sum) = sum.filter(|sum| sum.at > work.saved.load(Ordering::Relaxed)) {
                let text = serde_json::to_vec(&sum).map_err(|e| RegistryError::Setup(e.to_string()))?;
                work.partial.write_sum(&text)?;
                work.saved.store(sum.at, Ordering::Relaxed);
            }
            // Last: what has arrived is noted on a disk that is full, too.
            let left = {
                let table = work.table();
                table.total() - table.completed()
            };
            room(&work.store, &work.digest.to_string(), left)
        })
        .await
    }

    /// Computes the digest of the file behind those who write it. `None`: it ends without having been completed.
    fn hash(&self) -> Result<Option<Digest>, RegistryError> {
        let file = file_number(&self.file).unwrap_or(0);
        let (mut hasher, mut at) = self.kept_sum(file);
        let mut life = 0;
        let mut buffer = vec![0; PIECE];
        loop {
            let until = {
                let mut table = self.table();
                loop {
                    if self.over.load(Ordering::Relaxed) {
                        return Ok(None);
                    }
                    // A server without ranges makes a download begin anew.
                    if table.life() != life {
                        (hasher, at, life) = (Sum::default(), 0, table.life());
                        *lock(&self.sum) = None;
                    }
                    if table.frontier() > at || table.is_complete() {
                        break;
                    }
                    let wait = self.arrived.wait_timeout(table, IDLE);
                    table = wait.unwrap_or_else(PoisonError::into_inner).0;
                }
                if at == table.total() {
                    return Ok(Some(hasher.finish()));
                }
                table.frontier()
            };
            let want = usize::try_from(until - at).unwrap_or(PIECE).min(PIECE);
            read_at(&self.file, &mut buffer[..want], at).map_err(|e| self.io(&e))?;
            hasher.update(&buffer[..want]);
            at += want as u64;
            if let Some(saved) = hasher.save(file).filter(|_| file > 0) {
                *lock(&self.sum) = Some(saved);
            }
        }
    }

    /// How far an interrupted download computed the digest of this very file, as far as its bytes count.
    fn kept_sum(&self, file: u64) -> (Sum, u64) {
        if !self.verified {
            // Nothing would find out that it is not of these bytes.
            return (Sum::default(), 0);
        }
        let saved = self.partial.read_sum().and_then(|text| serde_json::from_slice::<Saved>(&text).ok());
        let frontier = self.table().frontier();
        match saved
            .filter(|saved| saved.file == file && file > 0 && saved.at <= frontier && saved.at % 64 == 0)
        {
            Some(saved) => (Sum::resume(&saved), saved.at),
            None => (Sum::default(), 0),
        }
    }

    fn show(&self) {
        let completed = self.table().completed();
        self.state.send_modify(|state| state.completed = completed);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    fn settings(&self) -> &Settings {
        self.source.session().settings()
    }

    fn io(&self, error: &io::Error) -> RegistryError {
        StoreError::io("write", self.partial.data(), error).into()
    }
}

/// Ends the thread that computes the digest when this is dropped.
struct EndsHashing<'a>(&'a Work);

impl Drop for EndsHashing<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
        self.0.arrived.notify_one();
    }
}
