//! Uploads: blobs in the making. What has arrived outlives a restart.

use std::collections::HashMap;
use std::fs::{self, File};
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
            let age = meta.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            let age = age.unwrap_or_default();
            if name.ends_with(".json") {
                if age > MAX_AGE && !path.with_extension("").exists() {
                    folder::remove(&path)?;
                }
                continue;
            }
            let id = UploadId::parse(&name).ok();
            let most = if meta.len() == 0 { EMPTY_AGE } else { MAX_AGE };
            let is_held = id.as_ref().is_some_and(|id| self.is_held(id));
            match id {
                Some(id) if age <= most || is_held => {
                    let owner = self.owner(folder, &id)?;
                    open.push(Open { id, owner, age });
                }
                Some(id) => self.drop_of(folder, &id)?,
                None if age > MAX_AGE => _ = folder::remove(&path)?,
                None => {}
            }
        }
        lock(&self.owners).retain(|id, _| open.iter().any(|one| one.id == *id));
        Ok(open)
    }

    /// Gives one up for somebody who has too many, or of those who have, where there are.
    fn make_room(&self, folder: &Folder, open: Vec<Open>, owner: &str) -> Result<(), MirrorError> {
        let Some(crowd) = crowd(open, owner) else { return Ok(()) };
        for is_empty in [true, false] {
            for one in &crowd.of {
                let len = fs::metadata(paths(folder, &one.id).0).map_or(0, |meta| meta.len());
                if (len == 0) == is_empty && crowd.may_go(one, is_empty) && !self.is_held(&one.id) {
                    tracing::info!(owner = one.owner, "an open upload is given up: there are too many");
                    return self.drop_of(folder, &one.id);
                }
            }
        }
        Err(crowd.refusal())
    }

    /// Whether somebody is at it.
    fn is_held(&self, id: &UploadId) -> bool {
        self.sessions().get(id).is_some_and(|session| session.try_lock().is_err())
    }

    fn drop_of(&self, folder: &Folder, id: &UploadId) -> Result<(), MirrorError> {
        let (data, note) = paths(folder, id);
        if let Some(session) = self.sessions().remove(id)
            && let Ok(mut session) = session.try_lock()
        {
            session.over = true;
        }
        folder::remove(&data)?;
        folder::remove(&note)?;
        Ok(())
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

    /// An upload to a repository. Waits for the disk where it is one of an earlier run.
    fn session(
        &self,
        folder: &Folder,
        name: &Repository,
        id: &UploadId,
    ) -> Result<Arc<tokio::sync::Mutex<Session>>, MirrorError> {
        let unknown = || MirrorError::UploadUnknown(id.to_string());
        if let Some(session) = self.sessions().get(id) {
            return Ok(session.clone());
        }
        let (data, note_path) = paths(folder, id);
        let note = folder::read(&note_path)?.ok_or_else(unknown)?;
        let note: Note = serde_json::from_slice(&note).map_err(|_| unknown())?;
        let len = absent(fs::metadata(&data), "read", &data)?.ok_or_else(unknown)?.len();
        if note.repository != name.as_str() || note.committed > len {
            return Err(unknown());
        }
        let session = Session { data, note_path, note, len, hasher: None, committed: None, over: false };
        let session = Arc::new(tokio::sync::Mutex::new(session));
        Ok(self.sessions().entry(id.clone()).or_insert(session).clone())
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
                let (uploads, folder, name, id) = (self.clone(), folder.clone(), name.clone(), id.clone());
                blocking(move || uploads.session(&folder, &name, &id)).await?
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
async fn forward(mut body: super::Body, pieces: mpsc::Sender<Option<Bytes>>) -> Option<MirrorError> {
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
            Err(_) => MirrorError::Broken(format!("nothing came for {} seconds", PATIENCE.as_secs())),
        };
        return Some(error);
    }
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
    fn commit(&mut self, folder: &Folder, first: u64, wanted: Option<u64>) -> Result<u64, MirrorError> {
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
        let mut file = File::options().read(true).write(true).open(&path).map_err(io("read", &path))?;
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
    match folder.store.free_bytes() {
        Some(free) if free < wanted.saturating_add(LEFT_FREE) => Err(MirrorError::Full(format!(
            "there is not enough space for this upload: {free} bytes are free, {LEFT_FREE} of which are left for others"
        ))),
        _ => Ok(()),
    }
}
