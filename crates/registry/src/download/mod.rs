//! The download of one blob: connections that each fetch parts, a thread that computes the digest behind them, and notes
//! on disk of what has arrived.

mod hash;
mod part;
#[cfg(test)]
mod tests;
mod theirs;

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use puna_store::{BlobLock, Digest, Partial, Seat, Store, StoreError};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::blocking::blocking;
use crate::error::RegistryError;
use crate::fetch::{Source, What};
use crate::file::file_number;
use crate::growth::{FIRST_STREAMS, Growth};
use crate::http::Session;
use crate::lock::lock;
use crate::parts::Table;
use crate::settings::Settings;
use crate::space::room;
use crate::sum::Saved;
use hash::EndsHashing;
use theirs::{Theirs, copy_of_theirs, right_to_download};

/// Bytes that are written or read at once.
const PIECE: usize = 1 << 20;
/// The first notes are made after this part of the usual pause.
const FIRST_NOTES: u32 = 16;
/// Connections beyond those of a download, for readers who wait for bytes that are far off.
const FOR_READERS: usize = 2;
/// How long somebody without work waits before he looks for some again.
const IDLE: Duration = Duration::from_millis(200);

/// How far a download is.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) completed: u64,
    /// The digest of what arrived, or why it did not.
    pub(crate) end: Option<Result<Digest, RegistryError>>,
    /// How often what had arrived turned out to be wrong, and was thrown away.
    pub(crate) life: u64,
    /// What is being done, as long as it is.
    work: Weak<Work>,
    /// Which other process is waited for, in words.
    pub(crate) waits: Option<String>,
    /// What another process has done, as far as it has noted that.
    theirs: Option<Arc<Theirs>>,
    /// It was named by another process, which may be one that names blobs before it looks whether they are right.
    pub(crate) is_found: bool,
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

    /// The file whose bytes have arrived without a gap from `from` on, and up to where; `None`: not even that one has. It is the file
    /// of this very download, whatever has its name by now.
    pub(crate) fn arrived(&self, from: u64) -> Option<(Arc<File>, u64)> {
        let (file, until) = match (self.work.upgrade(), &self.theirs) {
            (Some(work), _) => (work.file.clone(), work.table().reach(from)),
            (None, Some(theirs)) => theirs.arrived(from),
            (None, None) => return None,
        };
        (until > from).then_some((file, until))
    }

    /// What has arrived before counts no more: whoever reads along has wrong bytes.
    fn begin_anew(&mut self) {
        (self.life, self.work, self.theirs) = (self.life + 1, Weak::new(), None);
    }
}

/// What the connections of a download share.
pub(crate) struct Work {
    source: Source,
    store: Arc<Store>,
    partial: Partial,
    file: Arc<File>,
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
    let (digest, total, min_part) = (what.key, what.total, session.settings().min_part);
    let still = session.settings().still;
    let Some((lock, seat)) = right_to_download(&store, digest, total, still, state).await? else {
        return Ok(digest);
    };
    let lock = Arc::new(lock);
    let mut is_first = true;
    loop {
        let at = store.clone();
        // What another one has is damaged where a copy of it was.
        let copies = std::mem::take(&mut is_first) && seat == Seat::Beside;
        let ground =
            blocking(move || Ground::of(&at, &digest, total, min_part, seat, copies)).await?;
        let (resumed, number) = (ground.table.is_resumed(), ground.number);
        let source = Source::new(session.clone(), &what);
        let work = Arc::new(Work::new(source, &store, &what, lock.clone(), ground, state));
        let completed = work.table().completed();
        state.send_modify(|state| {
            // Of what another process has left: it may have begun anew at its end.
            state.follow_to(number);
            // The copy of what another one has noted is made.
            state.waits = None;
            (state.completed, state.work) = (completed, Arc::downgrade(&work));
        });
        let error = match work.run().await {
            Err(error @ RegistryError::DigestMismatch { .. }) => error,
            Err(error @ RegistryError::Size { .. }) if work.table().completed() == 0 => {
                // Nothing has come, and nothing of this size will.
                let partial = work.partial.clone();
                blocking(move || Ok(partial.discard()?)).await?;
                return Err(error);
            }
            ended => return ended,
        };
        state.send_modify(State::begin_anew);
        let partial = work.partial.clone();
        blocking(move || Ok(partial.discard()?)).await?;
        // Bytes of an earlier run may have been lost with the power. Once more, with all of them fetched now.
        if !resumed {
            return Err(error);
        }
        tracing::warn!(%error, "what an interrupted download left was damaged: downloading anew");
    }
}

/// What a download begins with on the disk.
struct Ground {
    partial: Partial,
    table: Table,
    file: File,
    /// Of the file that readers know, if they know any, whose bytes these are.
    number: Option<u64>,
}

impl Ground {
    fn of(
        store: &Store,
        digest: &Digest,
        total: u64,
        min_part: u64,
        seat: Seat,
        copies: bool,
    ) -> Result<Self, RegistryError> {
        let partial = store.partial_at(digest, seat)?;
        let copied = if copies { copy_of_theirs(store, digest, &partial, total)? } else { None };
        let table = open_table(&partial, total, min_part)?;
        room(store, &digest.to_string(), total - table.completed())?;
        let file = open_data(&partial, total)?;
        let number = copied.or_else(|| file_number(&file));
        Ok(Self { partial, table, file, number })
    }
}

/// The parts, of an earlier run where there was one.
fn open_table(partial: &Partial, total: u64, min_part: u64) -> Result<Table, RegistryError> {
    let Some(table) = Table::load(partial, total)? else {
        partial.discard()?;
        return Ok(Table::plan(total, min_part));
    };
    let ours = table.numbers();
    for n in partial.parts()?.into_iter().filter(|n| !ours.contains(n)) {
        partial.remove_part(n)?;
    }
    Ok(table)
}

fn open_data(partial: &Partial, total: u64) -> Result<File, StoreError> {
    let path = partial.data();
    let open = || {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(total)?;
        Ok(file)
    };
    open().map_err(|e| StoreError::io("write", path, &e))
}

impl Work {
    fn new(
        source: Source,
        store: &Arc<Store>,
        what: &What,
        lock: Arc<BlobLock>,
        ground: Ground,
        state: &watch::Sender<State>,
    ) -> Self {
        let Ground { partial, table, file, .. } = ground;
        Self {
            source,
            store: store.clone(),
            partial,
            file: Arc::new(file),
            digest: what.key,
            verified: what.verified,
            lock,
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
        }
    }

    async fn run(self: &Arc<Self>) -> Result<Digest, RegistryError> {
        self.checkpoint().await?;
        let hashing = {
            let work = self.clone();
            tokio::task::spawn_blocking(move || work.hash())
        };
        // However this ends, also by being dropped with the whole program: nothing waits for a thread that waits.
        let _hashing = EndsHashing(self);
        let fetched = async {
            tokio::select! {
                fetched = self.fetch() => fetched,
                () = self.state.closed() => Err(RegistryError::Cancelled),
            }
        };
        // A disk that cannot be read ends it at once, however much there is to fetch.
        let hashed = async { hashing.await.map_err(|e| RegistryError::Setup(e.to_string()))? };
        let got = match tokio::try_join!(fetched, hashed) {
            Ok(((), got)) => got.unwrap_or_else(|| Digest::of(b"")),
            Err(error) => {
                // What has arrived counts next time, whatever happened.
                self.checkpoint().await?;
                return Err(error);
            }
        };
        if self.verified && got != self.digest {
            return Err(RegistryError::DigestMismatch { want: self.digest, got });
        }
        let work = self.clone();
        blocking(move || Ok(work.store.finish_partial(&work.partial, &got)?)).await?;
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
                let text =
                    serde_json::to_vec(&sum).map_err(|e| RegistryError::Setup(e.to_string()))?;
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
