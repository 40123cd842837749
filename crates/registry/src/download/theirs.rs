//! Who may download a blob, and following another process that does: what it has noted to be there can be read along.
//!
//! Such a note is written when the bytes that it counts are on the disk, and stays true as long as the file is the same: bytes are only
//! added to it. So those who follow look at notes and file again and again, and have to begin anew where the file is another one.
//!
//! Nothing is taken from a process that is stopped: it writes on when it goes on, and what two write of one file is no file. Who has waited
//! for it goes on beside it, in files of his own that begin as a copy of what it has noted, and the blob is that of the one who has it first. The
//! other one brings the same bytes under the same name, if it ever goes on.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_store::{BlobLock, Digest, Holder, Partial, Seat, Store, StoreError};
use tokio::sync::watch;

use super::{IDLE, PIECE, State, open_data};
use crate::blocking::blocking;
use crate::error::RegistryError;
use crate::file::{file_number, read_at, write_at};
use crate::parts::{Note, Table};
use crate::space::room;

/// How far another process is.
#[derive(Debug)]
pub(super) struct Theirs {
    /// Opened anew with each look: on a network's file system that is when bytes of others are seen.
    file: Arc<File>,
    number: Option<u64>,
    table: Table,
}

impl Theirs {
    fn look(
        store: &Store,
        digest: &Digest,
        total: u64,
        seat: Seat,
    ) -> Result<Option<Self>, RegistryError> {
        let partial = store.partial_at(digest, seat)?;
        // Before the notes: those of a file that was begun anew meanwhile count for none.
        let Ok(file) = File::open(partial.data()) else { return Ok(None) };
        let number = file_number(&file);
        let Some(table) = Table::load(&partial, total)? else { return Ok(None) };
        let is_still = File::open(partial.data()).is_ok_and(|now| file_number(&now) == number);
        Ok((is_still && number.is_some()).then(|| Self { file: Arc::new(file), number, table }))
    }

    /// The file, and up to where its bytes have arrived without a gap from `from` on.
    pub(super) fn arrived(&self, from: u64) -> (Arc<File>, u64) {
        (self.file.clone(), self.table.reach(from))
    }
}

impl State {
    /// What another process has noted by now.
    fn follow(&mut self, theirs: Option<Theirs>) {
        let is_same =
            |now: &Theirs| self.theirs.as_ref().is_none_or(|before| before.number == now.number);
        match theirs {
            Some(now) if is_same(&now) => {
                self.completed = now.table.completed();
                self.theirs = Some(Arc::new(now));
            }
            // It is beginning, or about to end: what was seen is held on to, so that no other file can have its number.
            None => {}
            Some(now) => {
                self.begin_anew();
                self.theirs = Some(Arc::new(now));
            }
        }
    }

    /// What was read along is the file of this number by now, or a copy of it, or nothing.
    pub(super) fn follow_to(&mut self, number: Option<u64>) {
        if self.theirs.take().is_some_and(|theirs| theirs.number != number) {
            self.begin_anew();
        }
    }
}

/// Begins a download beside another one with a copy of what that has noted, unless there is one already. Says of which file, if of any.
pub(super) fn copy_of_theirs(
    store: &Store,
    digest: &Digest,
    partial: &Partial,
    total: u64,
) -> Result<Option<u64>, RegistryError> {
    if Table::load(partial, total)?.is_some() {
        return Ok(None);
    }
    let Some(theirs) = Theirs::look(store, digest, total, Seat::Usual)? else { return Ok(None) };
    room(store, &digest.to_string(), total)?;
    partial.discard()?;
    let file = open_data(partial, total)?;
    let mut buffer = vec![0; PIECE];
    for note in theirs.table.notes() {
        let copied = copy_note(&theirs.file, &file, &note, &mut buffer);
        if !copied.map_err(|e| StoreError::io("write", partial.data(), &e))? {
            // Nothing of it counts: what the disk does not give back of theirs comes anew, with the rest.
            partial.discard()?;
            return Ok(None);
        }
    }
    file.sync_data().map_err(|e| StoreError::io("write", partial.data(), &e))?;
    // Behind the bytes that they count.
    theirs.table.notes().try_for_each(|note| partial.write_part(note.n, &note.to_bytes()))?;
    Ok(theirs.number)
}

/// Copies the bytes that a note counts. Whether they could be read.
fn copy_note(theirs: &File, ours: &File, note: &Note, buffer: &mut [u8]) -> io::Result<bool> {
    let shared = || {
        let (mut from, mut to) = (theirs, ours);
        from.seek(SeekFrom::Start(note.offset))?;
        to.seek(SeekFrom::Start(note.offset))?;
        io::copy(&mut from.take(note.completed), &mut to)
    };
    // By the system, which may let two files share their bytes. It does not say whose fault an error is.
    if shared().is_ok_and(|copied| copied == note.completed) {
        return Ok(true);
    }
    let (mut at, end) = (note.offset, note.offset + note.completed);
    while at < end {
        let piece = (end - at).min(buffer.len() as u64) as usize;
        let piece = &mut buffer[..piece];
        if let Err(error) = read_at(theirs, piece, at) {
            tracing::warn!(%error, at, "what a stopped process has noted cannot be read: it is fetched anew");
            return Ok(false);
        }
        write_at(ours, piece, at)?;
        at += piece.len() as u64;
    }
    Ok(true)
}

/// Whether a download beside another one has room on the disk: for all of the blob, but what an earlier one has left there.
async fn has_room_beside(
    store: &Arc<Store>,
    digest: Digest,
    total: u64,
) -> Result<bool, RegistryError> {
    let store = store.clone();
    blocking(move || {
        let left = Table::load(&store.partial_at(&digest, Seat::Beside)?, total)?;
        let left = left.map_or(0, |table| table.completed());
        Ok(room(&store, &digest.to_string(), total - left).is_ok())
    })
    .await
}

/// The right to download, and where; `None` when another process has finished the blob meanwhile. Who is stopped, and has brought nothing for
/// `still`, is not waited for where there is room for another file: else it is said how to go on.
pub(super) async fn right_to_download(
    store: &Arc<Store>,
    digest: Digest,
    total: u64,
    still: Duration,
    state: &watch::Sender<State>,
) -> Result<Option<(BlobLock, Seat)>, RegistryError> {
    let (mut wait, mut seat, mut beside) = (Wait::new(still), Seat::Usual, None);
    loop {
        let at = store.clone();
        let right = blocking(move || Right::ask(&at, &digest, total, seat)).await?;
        if !matches!(right, Right::Theirs(..)) {
            let holder = beside.as_ref().filter(|_| matches!(right, Right::Ours(_)));
            let copying = holder.map(|holder| format!("a copy of what {holder} has noted"));
            state.send_modify(|state| state.waits = copying);
        }
        match right {
            Right::Nobodys(blob) => {
                state.send_modify(|state| {
                    state.is_found = true;
                    match &blob {
                        Some(blob) => state.follow_to(file_number(blob)),
                        None => state.begin_anew(),
                    }
                });
                return Ok(None);
            }
            Right::Ours(lock) => return Ok(Some((lock, seat))),
            Right::Theirs(..) if state.is_closed() => return Err(RegistryError::Cancelled),
            Right::Theirs(holder, theirs) => {
                let now = Instant::now();
                state.send_modify(|state| {
                    state.follow(theirs);
                    state.waits = Some(wait.said(holder.as_ref(), &digest, state.completed, now));
                });
                let stopped = holder.filter(|holder| wait.is_still(now) && holder.is_stopped());
                if let (Seat::Usual, Some(holder)) = (seat, stopped)
                    && has_room_beside(store, digest, total).await?
                {
                    tracing::info!(%holder, %digest, "who fetches it is stopped: it is fetched beside what that has");
                    (wait, seat, beside) = (Wait::new(still), Seat::Beside, Some(holder));
                    continue;
                }
            }
        }
        tokio::time::sleep(IDLE).await;
    }
}

/// A wait for another process.
struct Wait {
    /// What it has brought, and since when no more.
    completed: u64,
    since: Instant,
    /// How long that may be.
    still: Duration,
}

impl Wait {
    fn new(still: Duration) -> Self {
        Self { completed: 0, since: Instant::now(), still }
    }

    /// Whether nothing has come for long.
    fn is_still(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= self.still
    }

    /// Who is waited for; where nothing comes, also how to go on.
    fn said(
        &mut self,
        holder: Option<&Holder>,
        digest: &Digest,
        completed: u64,
        now: Instant,
    ) -> String {
        if completed != self.completed {
            (self.completed, self.since) = (completed, now);
        }
        let who = holder.map_or("another process".into(), Holder::to_string);
        let who = format!("{who}, which fetches {}", digest.short());
        if !self.is_still(now) {
            return who;
        }
        let how = match holder.and_then(Holder::pid) {
            Some(pid) if cfg!(unix) => {
                format!("let it go on (`kill -CONT {pid}`) or end it (`kill -KILL {pid}`)")
            }
            _ => "let it go on or end it".into(),
        };
        format!(
            "{who}: it has brought nothing for {} s; {how}, and this pull goes on with what is there",
            self.still.as_secs()
        )
    }
}

/// Who may download a blob.
enum Right {
    /// It is there.
    Nobodys(Option<File>),
    Ours(BlobLock),
    /// Another process, which is so far.
    Theirs(Option<Holder>, Option<Theirs>),
}

impl Right {
    fn ask(store: &Store, digest: &Digest, total: u64, seat: Seat) -> Result<Self, RegistryError> {
        let lock = store.lock_download_at(digest, seat)?;
        if store.hold_blob(digest, total) {
            return Ok(Self::Nobodys(File::open(store.blob_path(digest)).ok()));
        }
        if let Some(lock) = lock {
            return Ok(Self::Ours(lock));
        }
        let theirs = Theirs::look(store, digest, total, seat)?;
        Ok(Self::Theirs(store.download_holder(digest, seat), theirs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_others_that_cannot_be_read_are_told_from_ours_that_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("theirs"), b"0123456789").unwrap();
        std::fs::write(at("ours"), [0; 10]).unwrap();
        let open = |name: &str, reads: bool| {
            File::options().read(reads).write(!reads).open(at(name)).unwrap()
        };
        let note = |offset, completed| Note { n: 0, offset, size: 10, completed };
        let copy =
            |theirs: &File, ours: &File, note: Note| copy_note(theirs, ours, &note, &mut [0; 3]);
        let (theirs, ours) = (open("theirs", true), open("ours", false));
        assert!(copy(&theirs, &ours, note(1, 7)).unwrap());
        assert_eq!(std::fs::read(at("ours")).unwrap(), b"\x001234567\0\0");
        assert!(!copy(&theirs, &ours, note(5, 6)).unwrap(), "it has become shorter");
        assert!(!copy(&open("theirs", false), &ours, note(0, 1)).unwrap());
        assert!(copy(&theirs, &open("ours", true), note(0, 1)).is_err());
    }

    #[test]
    fn who_brings_nothing_for_long_is_said_to_and_how_to_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let digest = Digest::of(b"abc");
        let _lock = store.lock_download(&digest).unwrap();
        let holder = store.download_holder(&digest, Seat::Usual);
        let begun = Instant::now();
        let mut wait = Wait { completed: 0, since: begun, still: Duration::from_secs(30) };
        let mut said = |completed, seconds| {
            wait.said(holder.as_ref(), &digest, completed, begun + Duration::from_secs(seconds))
        };
        let plain = said(0, 29);
        assert!(plain.ends_with(&format!(", which fetches {}", digest.short())), "{plain}");
        if cfg!(unix) {
            let pid = std::process::id();
            assert!(plain.starts_with(&format!("process {pid},")), "{plain}");
            assert!(said(0, 30).contains(&format!("`kill -CONT {pid}`")));
        }
        assert!(said(0, 31).contains("has brought nothing for 30 s"));
        assert_eq!(said(5, 32), plain, "it goes on");
        assert_eq!(said(5, 61), plain);
        assert!(said(5, 62).contains("has brought nothing for 30 s"));
    }
}
