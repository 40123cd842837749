//! Uploads: blobs in the making. What has arrived outlives a restart.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::StreamExt;
use puna_store::{Digest, Hasher, sync_dir};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Part;
use super::crowd::{EMPTY_AGE, MAX_AGE, Open, crowd};
use super::folder::{self, Folder, absent, io};
use crate::error::MirrorError;
use crate::id::UploadId;
use crate::lock::lock;
use crate::name::Repository;
use crate::waiting::blocking;

/// Bytes of the disk that uploads leave free.
const LEFT_FREE: u64 = 256 << 20;
/// How long the next piece may take.
pub(crate) const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 60_000 });
/// Pieces that wait for the disk.
const WAITING: usize = 8;
/// Bytes between looks at the free space.
const LOOK: u64 = 64 << 20;

/// Uploads that this process has touched. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Uploads {
    sessions: Arc<Mutex<Sessions>>,
    /// Whose the open ones are, which never changes.
    owners: Arc<Mutex<HashMap<UploadId, String>>>,
    /// Held by the one who begins one, from the look at how many there are until it is one of them.
    beginning: Arc<Mutex<()>>,
}

type Sessions = HashMap<UploadId, Arc<tokio::sync::Mutex<Session>>>;

/// What is written beside the bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Note {
    repository: String,
    /// Whose it is.
    #[serde(default)]
    owner: String,
    /// Bytes of all parts that came whole.
    committed: u64,
}

/// An upload in progress.
struct Session {
    data: PathBuf,
    note_path: PathBuf,
    note: Note,
    /// Bytes that are there, also of a part that broke off.
    len: u64,
    /// Of the first `len` bytes; unknown after a restart.
    hasher: Option<Hasher>,
    /// Of the committed bytes.
    committed: Option<Hasher>,
    over: bool,
}

impl Uploads {
    /// Begins one for somebody. Waits for the disk.
    pub(crate) fn begin(
        &self,
        folder: &Folder,
        name: &Repository,
        owner: &str,
    ) -> Result<UploadId, MirrorError> {
        let dir = folder.uploads();
        fs::create_dir_all(&dir).map_err(io("create the folder", &dir))?;
        let _beginning = lock(&self.beginning);
        let open = self.look(folder)?;
        self.make_room(folder, open, owner)?;
        let id = UploadId::random()?;
        let note = Note { repository: name.to_string(), owner: owner.to_owned(), committed: 0 };
        let (data, note_path) = paths(folder, &id);
        File::create_new(&data).map_err(io("create", &data))?;
        folder.write(&note_path, &to_bytes(&note)?)?;
        let hasher = || Some(Hasher::default());
        let (hasher, committed) = (hasher(), hasher());
        let session = Session { data, note_path, note, len: 0, hasher, committed, over: false };
        self.sessions().insert(id.clone(), Arc::new(tokio::sync::Mutex::new(session)));
        Ok(id)
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, Sessions> {
        lock(&self.sessions)
    }

    /// Removes uploads that were left alone for too long. Waits for the disk.
    pub(crate) fn clear(&self, folder: &Folder) -> Result<(), MirrorError> {
        self.look(folder).map(drop)
    }

    /// The same, and what is left.
    fn look(&self, folder: &Folder) -> Result<Vec<Open>, MirrorError> {
        let mut open = Vec::new();
        for name in folder::names(&folder.uploads())? {
            let path = folder.uploads().join(&name);
            // It may have been finished meanwhile.
            let Some(meta) = absent(fs::metadata(&path), "read", &path)? else { continue };
            let age = age(&meta);
            if name.ends_with(".json") {
                if age > MAX_AGE && !path.with_extension("").exists() {
                    folder::remove(&path)?;
                }
                continue;
            }
            let Ok(id) = UploadId::parse(&name) else {
                if age > MAX_AGE {
                    folder::remove(&path)?;
                }
                continue;
            };
            let is_over =
                |len: u64, age: Duration| age > if len == 0 { EMPTY_AGE } else { MAX_AGE };
            if !is_over(meta.len(), age) || !self.give_up(folder, &id, is_over)? {
                let owner = self.owner(folder, &id)?;
                open.push(Open { id, owner, age, has_bytes: meta.len() > 0 });
            }
        }
        let ids: HashSet<&UploadId> = open.iter().map(|one| &one.id).collect();
        lock(&self.owners).retain(|id, _| ids.contains(id));
        Ok(open)
    }

    /// Gives one up for somebody who has too many, or of those who have, where there are.
    fn make_room(&self, folder: &Folder, open: Vec<Open>, owner: &str) -> Result<(), MirrorError> {
        let Some(crowd) = crowd(open, owner) else { return Ok(()) };
        for is_empty in [true, false] {
            for (one, rest) in crowd.going(is_empty) {
                if self
                    .give_up(folder, &one.id, |len, age| (len == 0) == is_empty && age >= rest)?
                {
                    tracing::info!(
                        owner = one.owner,
                        "an open upload is given up: there are too many"
                    );
                    return Ok(());
                }
            }
        }
        Err(crowd.refusal())
    }

    /// Removes one, unless somebody is at it, or it is by now none that goes: by its bytes, and how long ago somebody was at it. Says
    /// whether it is gone.
    fn give_up(
        &self,
        folder: &Folder,
        id: &UploadId,
        goes: impl Fn(u64, Duration) -> bool,
    ) -> Result<bool, MirrorError> {
        let (data, note) = paths(folder, id);
        // Held until nothing is left of it: a part that came meanwhile would be taken, and lost.
        let session = self.session(folder, id)?;
        let held = session.as_ref().map(|session| session.try_lock());
        let mut held = match held.transpose() {
            Ok(held) => held,
            Err(_) => return Ok(false),
        };
        if let Some(meta) = absent(fs::metadata(&data), "read", &data)?
            && !goes(meta.len(), age(&meta))
        {
            return Ok(false);
        }
        folder::remove(&data)?;
        if let Some(held) = &mut held {
            held.over = true;
        }
        self.sessions().remove(id);
        folder::remove(&note)?;
        Ok(true)
    }

    /// Whose an open upload is.
    fn owner(&self, folder: &Folder, id: &UploadId) -> Result<String, MirrorError> {
        if let Some(owner) = lock(&self.owners).get(id) {
            return Ok(owner.clone());
        }
        let note = folder::read(&paths(folder, id).1)?;
        // It is just beginning, or its note is none: then nobody can go on with it.
        let Some(note) = note.and_then(|note| serde_json::from_slice::<Note>(&note).ok()) else {
            return Ok(String::new());
        };
        lock(&self.owners).insert(id.clone(), note.owner.clone());
        Ok(note.owner)
    }

    /// An upload; `None`: it is none that anybody can go on with. Waits for the disk where it is one of an earlier run.
    fn session(
        &self,
        folder: &Folder,
        id: &UploadId,
    ) -> Result<Option<Arc<tokio::sync::Mutex<Session>>>, MirrorError> {
        if let Some(session) = self.sessions().get(id) {
            return Ok(Some(session.clone()));
        }
        let (data, note_path) = paths(folder, id);
        let note =
            folder::read(&note_path)?.and_then(|note| serde_json::from_slice::<Note>(&note).ok());
        let meta = absent(fs::metadata(&data), "read", &data)?;
        let (Some(note), Some(len)) = (note, meta.map(|meta| meta.len())) else { return Ok(None) };
        if note.committed > len {
            return Ok(None);
        }
        let there = data.clone();
        let session =
            Session { data, note_path, note, len, hasher: None, committed: None, over: false };
        let session = Arc::new(tokio::sync::Mutex::new(session));
        let session = self.sessions().entry(id.clone()).or_insert(session).clone();
        // Whoever removed it between the look at it and this has not seen that somebody has it.
        if !there.exists() {
            self.sessions().remove(id);
            return Ok(None);
        }
        Ok(Some(session))
    }

    /// The same, for nobody else as long as it is held.
    async fn hold(
        &self,
        folder: &Folder,
        name: &Repository,
        id: &UploadId,
    ) -> Result<tokio::sync::OwnedMutexGuard<Session>, MirrorError> {
        let touched = self.sessions().get(id).cloned();
        let session = match touched {
            Some(session) => session,
            None => {
                let (uploads, folder, of) = (self.clone(), folder.clone(), id.clone());
                let session = blocking(move || uploads.session(&folder, &of)).await?;
                session.ok_or_else(|| MirrorError::UploadUnknown(id.to_string()))?
            }
        };
        let session = session.lock_owned().await;
        match session.over || session.note.repository != name.as_str() {
            true => Err(MirrorError::UploadUnknown(id.to_string())),
            false => Ok(session),
        }
    }

    /// How many bytes it has.
    pub(crate) async fn uploaded(
        &self,
        folder: &Folder,
        name: &Repository,
        id: &UploadId,
    ) -> Result<u64, MirrorError> {
        Ok(self.hold(folder, name, id).await?.len)
    }

    /// Appends a part.
    pub(crate) async fn append(
        &self,
        folder: &Folder,
        name: &Repository,
        id: &UploadId,
        part: Part,
    ) -> Result<u64, MirrorError> {
        let mut session = self.hold(folder, name, id).await?;
        let (first, len) = (part.at.unwrap_or(session.len), part.len);
        // What broke off may come again from its beginning, or from where it broke off.
        if first != session.len && first != session.note.committed {
            return Err(MirrorError::OutOfOrder { first, at: session.len });
        }
        let (pieces, arriving) = mpsc::channel(WAITING);
        let at = folder.clone();
        let writing = tokio::task::spawn_blocking(move || session.write(&at, first, len, arriving));
        let broken = forward(part.body, pieces).await;
        match writing.await {
            Ok(Ok(_)) if broken.is_some() => Err(broken.unwrap_or(MirrorError::Route)),
            Ok(written) => written,
            Err(e) => Err(MirrorError::Internal(e.to_string())),
        }
    }

    /// Makes the blob.
    pub(crate) async fn finish(
        &self,
        folder: &Folder,
        name: &Repository,
        id: &UploadId,
        digest: Digest,
    ) -> Result<(), MirrorError> {
        let mut session = self.hold(folder, name, id).await?;
        let folder = folder.clone();
        let (over, made) = blocking(move || {
            let made = session.finish(&folder, digest);
            Ok((session.over, made))
        })
        .await?;
        if over {
            self.sessions().remove(id);
        }
        made
    }

    /// Gives it up.
    pub(crate) async fn cancel(
        &self,
        folder: &Folder,
        name: &Repository,
        id: &UploadId,
    ) -> Result<(), MirrorError> {
        let mut session = self.hold(folder, name, id).await?;
        self.sessions().remove(id);
        session.over = true;
        blocking(move || session.discard()).await
    }
}

/// Passes what arrives on to the thread that writes; the error that ended it before its end.
async fn forward(
    mut body: super::Body,
    pieces: mpsc::Sender<Option<Bytes>>,
) -> Option<MirrorError> {
    loop {
        let error = match timeout(PATIENCE, body.next()).await {
            Ok(Some(Ok(bytes))) => match pieces.send(Some(bytes)).await {
                Ok(()) => continue,
                // It says itself why it has stopped.
                Err(_) => return None,
            },
            Ok(None) => {
                let _ = pieces.send(None).await;
                return None;
            }
            Ok(Some(Err(error))) => error,
            Err(_) => {
                MirrorError::Broken(format!("nothing came for {} seconds", PATIENCE.as_secs()))
            }
        };
        return Some(error);
    }
}

/// How long ago somebody was at an upload whose bytes these are.
fn age(data: &Metadata) -> Duration {
    let age = data.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
    age.unwrap_or_default()
}

fn paths(folder: &Folder, id: &UploadId) -> (PathBuf, PathBuf) {
    let data = folder.uploads().join(id.as_str());
    (data.clone(), data.with_extension("json"))
}

fn to_bytes(note: &Note) -> Result<Vec<u8>, MirrorError> {
    serde_json::to_vec(note).map_err(|e| MirrorError::Internal(e.to_string()))
}

impl Session {
    /// Writes what arrives from byte `first` on, until `None` says that the part is whole.
    fn write(
        &mut self,
        folder: &Folder,
        first: u64,
        wanted: Option<u64>,
        mut arriving: mpsc::Receiver<Option<Bytes>>,
    ) -> Result<u64, MirrorError> {
        let path = self.data.clone();
        let mut file = File::options().write(true).open(&path).map_err(io("write", &path))?;
        if first < self.len {
            file.set_len(first).map_err(io("write", &path))?;
            (self.len, self.hasher) = (first, self.committed.clone());
        }
        file.seek(SeekFrom::Start(first)).map_err(io("write", &path))?;
        let mut looked = first;
        check_room(folder, wanted.unwrap_or(0))?;
        while let Some(piece) = arriving.blocking_recv() {
            let Some(bytes) = piece else { return self.commit(folder, first, wanted) };
            let after = self.len + bytes.len() as u64;
            if wanted.is_some_and(|wanted| after - first > wanted) {
                return Err(MirrorError::Size(after - first, wanted.unwrap_or(0)));
            }
            if after - looked >= LOOK {
                looked = after;
                check_room(folder, 0)?;
            }
            if let Err(e) = file.write_all(&bytes) {
                // How much of it was written is not known.
                (self.len, self.hasher) = (self.note.committed, self.committed.clone());
                return Err(io("write", &path)(e));
            }
            self.hasher.iter_mut().for_each(|hasher| hasher.update(&bytes));
            self.len = after;
        }
        Ok(self.len)
    }

    /// The part is whole.
    fn commit(
        &mut self,
        folder: &Folder,
        first: u64,
        wanted: Option<u64>,
    ) -> Result<u64, MirrorError> {
        let came = self.len - first;
        if let Some(wanted) = wanted
            && wanted != came
        {
            return Err(MirrorError::Size(came, wanted));
        }
        self.note.committed = self.len;
        self.committed = self.hasher.clone();
        folder.write(&self.note_path, &to_bytes(&self.note)?)?;
        Ok(self.len)
    }

    fn finish(&mut self, folder: &Folder, digest: Digest) -> Result<(), MirrorError> {
        let made = self.make(folder, digest);
        // What a full disk kept from being made can be made later; what is wrong stays wrong.
        self.over = matches!(made, Ok(()) | Err(MirrorError::DigestMismatch { .. }));
        let gone = if self.over { self.discard() } else { Ok(()) };
        made.and(gone)
    }

    fn make(&mut self, folder: &Folder, digest: Digest) -> Result<(), MirrorError> {
        let path = self.data.clone();
        let mut file =
            File::options().read(true).write(true).open(&path).map_err(io("read", &path))?;
        if self.len > self.note.committed {
            self.hasher = self.committed.take();
        }
        // A part that broke off belongs to nothing, nor does what was written of one when the disk was full.
        file.set_len(self.note.committed).map_err(io("write", &path))?;
        let found = match self.hasher.take() {
            Some(hasher) => hasher.finish(),
            None => Digest::of_reader(&mut file).map_err(io("read", &path))?.0,
        };
        if found != digest {
            return Err(MirrorError::DigestMismatch { expected: digest, found });
        }
        // Who brought the bytes may name them in a manifest, until when they stay.
        folder.mark_brought(&self.repository()?, &digest, self.note.committed)?;
        let dir = folder.blobs();
        fs::create_dir_all(&dir).map_err(io("create the folder", &dir))?;
        file.sync_all().map_err(io("write", &path))?;
        let target = folder.blob(&digest);
        // One that is there may have a second name in the store: a file in its place would take the space twice.
        if !is_there(folder, &digest, self.note.committed)? {
            fs::rename(&path, &target).map_err(io("write", &target))?;
            sync_dir(&dir);
        }
        Ok(())
    }

    fn repository(&self) -> Result<Repository, MirrorError> {
        Repository::parse(&self.note.repository)
    }

    fn discard(&self) -> Result<(), MirrorError> {
        folder::remove(&self.data)?;
        folder::remove(&self.note_path)?;
        Ok(())
    }
}

/// Whether a pushed blob is there already, with the bytes that it should have. What says that it was brought keeps it there.
fn is_there(folder: &Folder, digest: &Digest, size: u64) -> Result<bool, MirrorError> {
    let path = folder.blob(digest);
    {
        // Whoever just clears away may not have seen yet that it was brought.
        let _changes = folder.changes()?;
        if !fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() == size) {
            return Ok(false);
        }
    }
    // On a disk that does not give it back it is made anew.
    Ok(File::open(&path)
        .and_then(|mut file| Digest::of_reader(&mut file))
        .is_ok_and(|(found, _)| found == *digest))
}

/// Refuses what would fill the disk.
fn check_room(folder: &Folder, wanted: u64) -> Result<(), MirrorError> {
    folder.store.make_room(wanted.saturating_add(LEFT_FREE));
    match folder.store.free_bytes() {
        Some(free) if free < wanted.saturating_add(LEFT_FREE) => Err(MirrorError::Full(format!(
            "there is not enough space for this upload: {free} bytes are free, {LEFT_FREE} of which are left for others"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use puna_store::Store;

    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(Arc::new(Store::open(dir.path()).unwrap()));
        (dir, folder)
    }

    #[test]
    fn as_many_as_begin_at_a_time_are_no_more_than_may_be() {
        let ((_dir, folder), uploads) = (folder(), Uploads::default());
        let name = Repository::parse("a/b").unwrap();
        let begun: usize = std::thread::scope(|scope| {
            let begin = || (0..8).filter(|_| uploads.begin(&folder, &name, "k").is_ok()).count();
            let all: Vec<_> = (0..8).map(|_| scope.spawn(begin)).collect();
            all.into_iter().map(|one| one.join().unwrap()).sum()
        });
        assert_eq!(begun, crate::library::MAX_EACH);
        assert_eq!(folder::names(&folder.uploads()).unwrap().len(), 2 * begun);
    }

    #[tokio::test]
    async fn nobody_is_at_an_upload_while_it_is_given_up() {
        let ((_dir, folder), name) = (folder(), Repository::parse("a/b").unwrap());
        // One of this run, and one of an earlier one.
        for is_earlier in [false, true] {
            let uploads = Uploads::default();
            let id = uploads.begin(&folder, &name, "k").unwrap();
            let held = uploads.hold(&folder, &name, &id).await.unwrap();
            assert_eq!(uploads.give_up(&folder, &id, |_, _| true), Ok(false), "somebody is at it");
            drop(held);
            if is_earlier {
                uploads.sessions().clear();
            }
            assert_eq!(uploads.give_up(&folder, &id, |_, _| false), Ok(false));
            let is_held = |uploads: &Uploads| uploads.sessions()[&id].try_lock().is_err();
            assert_eq!(uploads.give_up(&folder, &id, |_, _| is_held(&uploads)), Ok(true));
            let gone = uploads.hold(&folder, &name, &id).await;
            assert!(matches!(gone, Err(MirrorError::UploadUnknown(_))));
            assert_eq!(folder::names(&folder.uploads()).unwrap(), [""; 0]);
        }
    }
}
