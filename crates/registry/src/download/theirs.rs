//! Who may download a blob, and following another process that does: what it has noted to be there can be read along.
//!
//! Such a note is written when the bytes that it counts are on the disk, and stays true as long as the file is the same: bytes are only
//! added to it. So those who follow look at notes and file again and again, and have to begin anew where the file is another one.

use std::fs::File;
use std::sync::Arc;

use puna_store::{BlobLock, Digest, Store};
use tokio::sync::watch;

use super::{IDLE, State};
use crate::blocking::blocking;
use crate::error::RegistryError;
use crate::file::file_number;
use crate::parts::Table;

/// How far another process is.
#[derive(Debug)]
pub(super) struct Theirs {
    /// Opened anew with each look: on a network's file system that is when bytes of others are seen.
    file: Arc<File>,
    number: Option<u64>,
    table: Table,
}

impl Theirs {
    fn look(store: &Store, digest: &Digest, total: u64) -> Result<Option<Self>, RegistryError> {
        let partial = store.partial(digest)?;
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
        let is_same = |now: &Theirs| self.theirs.as_ref().is_none_or(|before| before.number == now.number);
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

    /// What was read along is this file by now, or nothing.
    pub(super) fn follow_to(&mut self, file: &File) {
        if self.theirs.take().is_some_and(|theirs| theirs.number != file_number(file)) {
            self.begin_anew();
        }
    }
}

/// The right to download; `None` when another process has finished the blob meanwhile.
pub(super) async fn right_to_download(
    store: &Arc<Store>,
    digest: Digest,
    total: u64,
    state: &watch::Sender<State>,
) -> Result<Option<BlobLock>, RegistryError> {
    loop {
        let at = store.clone();
        match blocking(move || Right::ask(&at, &digest, total)).await? {
            Right::Nobodys(blob) => {
                state.send_modify(|state| match &blob {
                    Some(blob) => state.follow_to(blob),
                    None => state.begin_anew(),
                });
                return Ok(None);
            }
            Right::Ours(lock) => return Ok(Some(lock)),
            Right::Theirs(_) if state.is_closed() => return Err(RegistryError::Cancelled),
            Right::Theirs(theirs) => state.send_modify(|state| state.follow(theirs)),
        }
        tokio::time::sleep(IDLE).await;
    }
}

/// Who may download a blob.
enum Right {
    /// It is there.
    Nobodys(Option<File>),
    Ours(BlobLock),
    /// Another process, which is so far.
    Theirs(Option<Theirs>),
}

impl Right {
    fn ask(store: &Store, digest: &Digest, total: u64) -> Result<Self, RegistryError> {
        let lock = store.lock_download(digest)?;
        if store.hold_blob(digest, total) {
            return Ok(Self::Nobodys(File::open(store.blob_path(digest)).ok()));
        }
        if let Some(lock) = lock {
            return Ok(Self::Ours(lock));
        }
        Ok(Self::Theirs(Theirs::look(store, digest, total)?))
    }
}
