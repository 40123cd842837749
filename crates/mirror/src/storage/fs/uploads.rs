//! Uploads of the file system driver. Received bytes survive a restart.

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

use super::registry_dir::{self, RegistryDir, io_error, none_if_absent};
use crate::blocking::{StorageFuture, blocking};
use crate::error::{InternalError, MirrorError};
use crate::locks::lock;
use crate::storage::{InventoryScope, UploadPart, UploadStore};
use crate::types::name_error::NameError;
use crate::types::repository::Repository;
use crate::types::storage_usage::StoredUpload;
use crate::types::upload_id::UploadId;
use crate::uploads::PIECE_TIMEOUT;
use crate::uploads::admission::{
    MAX_EMPTY_IDLE_TIME, MAX_IDLE_TIME, OpenUpload, UploadKind, drop_candidates,
};

/// Bytes of the disk that uploads leave free.
const MIN_FREE_BYTES: u64 = 256 << 20;
/// Number of received pieces that may wait for the disk.
const QUEUED_PIECES: usize = 8;
/// Bytes between two checks of the free space.
const FREE_SPACE_CHECK_BYTES: u64 = 64 << 20;

/// Open uploads, and the sessions that this process has used. Cheap to clone.
#[derive(Clone)]
pub(crate) struct UploadSessions {
    registry: RegistryDir,
    sessions: Arc<Mutex<SessionMap>>,
    /// Repositories and owners of open uploads. They never change.
    origins: Arc<Mutex<HashMap<UploadId, UploadOrigin>>>,
    /// Held from counting the open uploads until the new one exists.
    begin_lock: Arc<Mutex<()>>,
}

type SessionMap = HashMap<UploadId, Arc<tokio::sync::Mutex<UploadSession>>>;

/// Repository and owner of an open upload.
#[derive(Clone)]
struct UploadOrigin {
    repository: String,
    owner: String,
}

/// Record of an upload, in a file next to its bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct UploadRecord {
    repository: String,
    /// Key or address that opened the upload.
    #[serde(default)]
    owner: String,
    /// Bytes of all complete parts.
    committed: u64,
}

/// An open upload.
struct UploadSession {
    data: PathBuf,
    record_path: PathBuf,
    record: UploadRecord,
    /// Received bytes, including an interrupted part.
    len: u64,
    /// Hasher of the first `len` bytes; `None` after a restart.
    hasher: Option<Hasher>,
    /// Hasher of the committed bytes.
    committed: Option<Hasher>,
    is_finished: bool,
}

impl UploadSessions {
    pub(crate) fn new(registry: RegistryDir) -> Self {
        let (sessions, origins, begin_lock) = (Arc::default(), Arc::default(), Arc::default());
        Self { registry, sessions, origins, begin_lock }
    }

    /// Creates an upload with its session. Blocks on the disk.
    fn create(&self, name: &Repository, owner: &str) -> Result<UploadId, MirrorError> {
        let dir = self.registry.uploads();
        fs::create_dir_all(&dir).map_err(io_error("create the folder", &dir))?;
        let _beginning = lock(&self.begin_lock);
        self.drop_one_if_full(self.list_open()?, owner)?;
        let id = UploadId::random()?;
        let record =
            UploadRecord { repository: name.to_string(), owner: owner.to_owned(), committed: 0 };
        let (data, record_path) = paths(&self.registry, &id);
        File::create_new(&data).map_err(io_error("create", &data))?;
        self.registry.write(&record_path, &to_bytes(&record)?)?;
        let hasher = || Some(Hasher::default());
        let (hasher, committed) = (hasher(), hasher());
        let session = UploadSession {
            data,
            record_path,
            record,
            len: 0,
            hasher,
            committed,
            is_finished: false,
        };
        self.sessions().insert(id.clone(), Arc::new(tokio::sync::Mutex::new(session)));
        Ok(id)
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, SessionMap> {
        lock(&self.sessions)
    }

    /// Removes expired uploads. Blocks on the disk.
    pub(crate) fn remove_expired(&self) -> Result<(), MirrorError> {
        self.list_open().map(drop)
    }

    /// Removes expired uploads and returns the others.
    fn list_open(&self) -> Result<Vec<OpenUpload>, MirrorError> {
        let mut open = Vec::new();
        for name in registry_dir::file_names(&self.registry.uploads())? {
            let path = self.registry.uploads().join(&name);
            // The upload may have ended meanwhile.
            let Some(meta) = none_if_absent(fs::metadata(&path), "read", &path)? else { continue };
            let age = age(&meta);
            if name.ends_with(".json") {
                if age > MAX_IDLE_TIME && !path.with_extension("").exists() {
                    registry_dir::remove_file(&path)?;
                }
                continue;
            }
            let Ok(id) = UploadId::parse(&name) else {
                if age > MAX_IDLE_TIME {
                    registry_dir::remove_file(&path)?;
                }
                continue;
            };
            let is_expired = |len: u64, age: Duration| {
                age > if len == 0 { MAX_EMPTY_IDLE_TIME } else { MAX_IDLE_TIME }
            };
            if !is_expired(meta.len(), age) || !self.drop_upload_if(&id, is_expired)? {
                // The upload is just being opened, or its record is invalid, so that no client can
                // resume it.
                let owner = self.origin(&id)?.map(|origin| origin.owner).unwrap_or_default();
                open.push(OpenUpload { id, owner, idle: age, has_bytes: meta.len() > 0 });
            }
        }
        let ids: HashSet<&UploadId> = open.iter().map(|upload| &upload.id).collect();
        lock(&self.origins).retain(|id, _| ids.contains(id));
        Ok(open)
    }

    /// Returns the open uploads in a scope. Blocks on the disk.
    fn stored_in(&self, scope: &InventoryScope) -> Result<Vec<StoredUpload>, MirrorError> {
        let mut stored = Vec::new();
        for file_name in registry_dir::file_names(&self.registry.uploads())? {
            let Ok(id) = UploadId::parse(&file_name) else { continue };
            let Some(origin) = self.origin(&id)? else { continue };
            let Ok(name) = Repository::parse(&origin.repository) else { continue };
            if !scope.contains(&name) {
                continue;
            }
            let (data, record) = paths(&self.registry, &id);
            // The upload may end at any time.
            let data = none_if_absent(fs::metadata(&data), "read", &data)?;
            let record = none_if_absent(fs::metadata(&record), "read", &record)?;
            if let (Some(data), Some(record)) = (data, record) {
                let (bytes, record_bytes, idle) = (data.len(), record.len(), age(&data));
                stored.push(StoredUpload { name, id, bytes, record_bytes, idle });
            }
        }
        Ok(stored)
    }

    /// Drops an upload if a limit on open uploads is reached.
    fn drop_one_if_full(&self, open: Vec<OpenUpload>, owner: &str) -> Result<(), MirrorError> {
        let Some(drop_candidates) = drop_candidates(open, owner) else { return Ok(()) };
        for kind in UploadKind::DROP_ORDER {
            for (upload, min_idle) in drop_candidates.droppable(kind) {
                let may_drop =
                    |len: u64, age: Duration| UploadKind::of(len > 0) == kind && age >= min_idle;
                if self.drop_upload_if(&upload.id, may_drop)? {
                    tracing::info!(
                        owner = upload.owner,
                        "dropped an open upload: too many open uploads"
                    );
                    return Ok(());
                }
            }
        }
        Err(drop_candidates.limit_error().into())
    }

    /// Removes an upload unless a request uses it. `may_drop` decides by its current bytes and idle
    /// time. Returns whether it was removed.
    fn drop_upload_if(
        &self,
        id: &UploadId,
        may_drop: impl Fn(u64, Duration) -> bool,
    ) -> Result<bool, MirrorError> {
        let (data, record) = paths(&self.registry, id);
        // The lock is held until nothing of the upload is left. A part that arrived meanwhile would
        // be accepted and lost.
        let session = self.session(id)?;
        let held = session.as_ref().map(|session| session.try_lock());
        let mut held = match held.transpose() {
            Ok(held) => held,
            Err(_) => return Ok(false),
        };
        if let Some(meta) = none_if_absent(fs::metadata(&data), "read", &data)?
            && !may_drop(meta.len(), age(&meta))
        {
            return Ok(false);
        }
        registry_dir::remove_file(&data)?;
        if let Some(held) = &mut held {
            held.is_finished = true;
        }
        self.sessions().remove(id);
        registry_dir::remove_file(&record)?;
        Ok(true)
    }

    /// Returns repository and owner of an open upload; `None` if its record cannot be used.
    fn origin(&self, id: &UploadId) -> Result<Option<UploadOrigin>, MirrorError> {
        if let Some(origin) = lock(&self.origins).get(id) {
            return Ok(Some(origin.clone()));
        }
        let record = registry_dir::read_small_file(&paths(&self.registry, id).1)?;
        let record = record.and_then(|record| serde_json::from_slice::<UploadRecord>(&record).ok());
        let Some(UploadRecord { repository, owner, .. }) = record else { return Ok(None) };
        let origin = UploadOrigin { repository, owner };
        lock(&self.origins).insert(id.clone(), origin.clone());
        Ok(Some(origin))
    }

    /// Returns a session; `None` if the upload cannot be resumed. Blocks on the disk for an upload
    /// of an earlier run.
    fn session(
        &self,
        id: &UploadId,
    ) -> Result<Option<Arc<tokio::sync::Mutex<UploadSession>>>, MirrorError> {
        if let Some(session) = self.sessions().get(id) {
            return Ok(Some(session.clone()));
        }
        let (data, record_path) = paths(&self.registry, id);
        let record = registry_dir::read_small_file(&record_path)?
            .and_then(|record| serde_json::from_slice::<UploadRecord>(&record).ok());
        let meta = none_if_absent(fs::metadata(&data), "read", &data)?;
        let (Some(record), Some(len)) = (record, meta.map(|meta| meta.len())) else {
            return Ok(None);
        };
        if record.committed > len {
            return Ok(None);
        }
        let data_path = data.clone();
        let session = UploadSession {
            data,
            record_path,
            record,
            len,
            hasher: None,
            committed: None,
            is_finished: false,
        };
        let session = Arc::new(tokio::sync::Mutex::new(session));
        let session = self.sessions().entry(id.clone()).or_insert(session).clone();
        // A thread that removed the upload in between did not see that this session uses it.
        if !data_path.exists() {
            self.sessions().remove(id);
            return Ok(None);
        }
        Ok(Some(session))
    }

    /// Locks a session of a repository.
    async fn lock_session(
        &self,
        name: &Repository,
        id: &UploadId,
    ) -> Result<tokio::sync::OwnedMutexGuard<UploadSession>, MirrorError> {
        let touched = self.sessions().get(id).cloned();
        let session = match touched {
            Some(session) => session,
            None => {
                let (uploads, of) = (self.clone(), id.clone());
                let session = blocking(move || uploads.session(&of)).await?;
                session.ok_or_else(|| MirrorError::UploadUnknown(id.to_string()))?
            }
        };
        let session = session.lock_owned().await;
        match session.is_finished || session.record.repository != name.as_str() {
            true => Err(MirrorError::UploadUnknown(id.to_string())),
            false => Ok(session),
        }
    }
}

impl UploadStore for UploadSessions {
    fn begin<'a>(&'a self, name: &'a Repository, owner: &'a str) -> StorageFuture<'a, UploadId> {
        let (uploads, name, owner) = (self.clone(), name.clone(), owner.to_owned());
        Box::pin(blocking(move || uploads.create(&name, &owner)))
    }

    fn append<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        part: UploadPart,
    ) -> StorageFuture<'a, u64> {
        Box::pin(async move {
            let mut session = self.lock_session(name, id).await?;
            let (first, len) = (part.at.unwrap_or(session.len), part.len);
            // An interrupted part may be sent again from its beginning or continued.
            if first != session.len && first != session.record.committed {
                return Err(MirrorError::OutOfOrder { first, at: session.len });
            }
            let (pieces, arriving) = mpsc::channel(QUEUED_PIECES);
            let registry = self.registry.clone();
            let writing =
                tokio::task::spawn_blocking(move || session.write(&registry, first, len, arriving));
            let broken = forward(part.body, pieces).await;
            match writing.await {
                Ok(Ok(_)) if broken.is_some() => Err(broken.unwrap_or(MirrorError::NoRoute)),
                Ok(written) => written,
                Err(e) => Err(InternalError::from(e).into()),
            }
        })
    }

    fn size<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> StorageFuture<'a, u64> {
        Box::pin(async move { Ok(self.lock_session(name, id).await?.len) })
    }

    fn finish<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        digest: Digest,
    ) -> StorageFuture<'a, ()> {
        Box::pin(async move {
            let mut session = self.lock_session(name, id).await?;
            let registry = self.registry.clone();
            let (is_finished, result) = blocking(move || {
                let result = session.finish(&registry, digest);
                Ok((session.is_finished, result))
            })
            .await?;
            if is_finished {
                self.sessions().remove(id);
            }
            result
        })
    }

    fn cancel<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> StorageFuture<'a, ()> {
        Box::pin(async move {
            let mut session = self.lock_session(name, id).await?;
            self.sessions().remove(id);
            session.is_finished = true;
            blocking(move || session.discard()).await
        })
    }

    fn stored_uploads(&self, scope: InventoryScope) -> StorageFuture<'_, Vec<StoredUpload>> {
        let uploads = self.clone();
        Box::pin(blocking(move || uploads.stored_in(&scope)))
    }
}

/// Passes received pieces to the writing thread. Returns the error that ended the body early.
async fn forward(
    mut body: crate::storage::ByteStream,
    pieces: mpsc::Sender<Option<Bytes>>,
) -> Option<MirrorError> {
    loop {
        let error = match timeout(PIECE_TIMEOUT, body.next()).await {
            Ok(Some(Ok(bytes))) => match pieces.send(Some(bytes)).await {
                Ok(()) => continue,
                // The writing thread reports its own error.
                Err(_) => return None,
            },
            Ok(None) => {
                let _ = pieces.send(None).await;
                return None;
            }
            Ok(Some(Err(error))) => error,
            Err(_) => MirrorError::BodyStalled { seconds: PIECE_TIMEOUT.as_secs() },
        };
        return Some(error);
    }
}

/// Time since the bytes of an upload changed.
fn age(data: &Metadata) -> Duration {
    let age = data.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
    age.unwrap_or_default()
}

fn paths(registry: &RegistryDir, id: &UploadId) -> (PathBuf, PathBuf) {
    let data = registry.uploads().join(id.as_str());
    (data.clone(), data.with_extension("json"))
}

fn to_bytes(record: &UploadRecord) -> Result<Vec<u8>, InternalError> {
    Ok(serde_json::to_vec(record)?)
}

impl UploadSession {
    /// Writes pieces at offset `first` until `None` marks the part as complete.
    fn write(
        &mut self,
        registry: &RegistryDir,
        first: u64,
        expected_len: Option<u64>,
        mut arriving: mpsc::Receiver<Option<Bytes>>,
    ) -> Result<u64, MirrorError> {
        let path = self.data.clone();
        let mut file = File::options().write(true).open(&path).map_err(io_error("write", &path))?;
        if first < self.len {
            file.set_len(first).map_err(io_error("write", &path))?;
            (self.len, self.hasher) = (first, self.committed.clone());
        }
        file.seek(SeekFrom::Start(first)).map_err(io_error("write", &path))?;
        let mut checked_at = first;
        check_free_space(registry, expected_len.unwrap_or(0))?;
        while let Some(piece) = arriving.blocking_recv() {
            let Some(bytes) = piece else { return self.commit(registry, first, expected_len) };
            let after = self.len + bytes.len() as u64;
            if expected_len.is_some_and(|expected_len| after - first > expected_len) {
                let (received, announced) = (after - first, expected_len.unwrap_or(0));
                return Err(MirrorError::SizeMismatch { received, announced });
            }
            if after - checked_at >= FREE_SPACE_CHECK_BYTES {
                checked_at = after;
                check_free_space(registry, 0)?;
            }
            if let Err(e) = file.write_all(&bytes) {
                // It is unknown how much was written.
                (self.len, self.hasher) = (self.record.committed, self.committed.clone());
                return Err(io_error("write", &path)(e));
            }
            self.hasher.iter_mut().for_each(|hasher| hasher.update(&bytes));
            self.len = after;
        }
        Ok(self.len)
    }

    /// Commits a complete part.
    fn commit(
        &mut self,
        registry: &RegistryDir,
        first: u64,
        expected_len: Option<u64>,
    ) -> Result<u64, MirrorError> {
        let received = self.len - first;
        if let Some(expected_len) = expected_len
            && expected_len != received
        {
            return Err(MirrorError::SizeMismatch { received, announced: expected_len });
        }
        self.record.committed = self.len;
        self.committed = self.hasher.clone();
        registry.write(&self.record_path, &to_bytes(&self.record)?)?;
        Ok(self.len)
    }

    fn finish(&mut self, registry: &RegistryDir, digest: Digest) -> Result<(), MirrorError> {
        let result = self.make_blob(registry, digest);
        // A failure such as a full disk may be retried; a wrong digest stays wrong.
        self.is_finished = matches!(result, Ok(()) | Err(MirrorError::DigestMismatch { .. }));
        let gone = if self.is_finished { self.discard() } else { Ok(()) };
        result.and(gone)
    }

    fn make_blob(&mut self, registry: &RegistryDir, digest: Digest) -> Result<(), MirrorError> {
        let path = self.data.clone();
        let mut file =
            File::options().read(true).write(true).open(&path).map_err(io_error("read", &path))?;
        if self.len > self.record.committed {
            self.hasher = self.committed.take();
        }
        // Removes an interrupted part, and what was written of a part when the disk was full.
        file.set_len(self.record.committed).map_err(io_error("write", &path))?;
        let found = match self.hasher.take() {
            Some(hasher) => hasher.finish(),
            None => Digest::of_reader(&mut file).map_err(io_error("read", &path))?.0,
        };
        if found != digest {
            return Err(MirrorError::DigestMismatch { expected: digest, found });
        }
        // The client that pushed the bytes may name them in a manifest within the grace period.
        registry.mark_pushed(&self.repository()?, &digest, self.record.committed)?;
        let dir = registry.blobs();
        fs::create_dir_all(&dir).map_err(io_error("create the folder", &dir))?;
        // The blob becomes a model file by a hard link.
        registry.store.apply_mode(&file).map_err(io_error("set the permissions of", &path))?;
        file.sync_all().map_err(io_error("write", &path))?;
        let target = registry.blob(&digest);
        // An existing blob may have a hard link in the store; replacing it would use the space
        // twice.
        if !blob_exists(registry, &digest, self.record.committed)? {
            fs::rename(&path, &target).map_err(io_error("write", &target))?;
            sync_dir(&dir);
        }
        Ok(())
    }

    fn repository(&self) -> Result<Repository, NameError> {
        Repository::parse(&self.record.repository)
    }

    fn discard(&self) -> Result<(), MirrorError> {
        registry_dir::remove_file(&self.data)?;
        registry_dir::remove_file(&self.record_path)?;
        Ok(())
    }
}

/// Whether a pushed blob exists with the right content. Its push mark keeps it.
fn blob_exists(registry: &RegistryDir, digest: &Digest, size: u64) -> Result<bool, MirrorError> {
    let path = registry.blob(digest);
    {
        // A running garbage collection may not have seen the push mark yet.
        let _lock = registry.lock_writes()?;
        if !fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() == size) {
            return Ok(false);
        }
    }
    // A blob that the disk does not return is written again.
    Ok(File::open(&path)
        .and_then(|mut file| Digest::of_reader(&mut file))
        .is_ok_and(|(found, _)| found == *digest))
}

/// Fails if the disk would become full.
fn check_free_space(registry: &RegistryDir, expected_len: u64) -> Result<(), MirrorError> {
    registry.store.empty_trash_until_free(expected_len.saturating_add(MIN_FREE_BYTES));
    match registry.store.free_bytes() {
        Some(free) if free < expected_len.saturating_add(MIN_FREE_BYTES) => {
            Err(MirrorError::NoSpace { free, reserved: MIN_FREE_BYTES })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use puna_store::Store;

    use super::*;

    fn registry() -> (tempfile::TempDir, RegistryDir) {
        let dir = tempfile::tempdir().unwrap();
        let registry = RegistryDir::new(Arc::new(Store::open(dir.path()).unwrap()));
        (dir, registry)
    }

    #[tokio::test]
    async fn an_upload_in_use_is_not_dropped() {
        let ((_dir, registry), name) = (registry(), Repository::parse("a/b").unwrap());
        // An upload of this run, and one of an earlier run.
        for is_earlier in [false, true] {
            let uploads = UploadSessions::new(registry.clone());
            let id = uploads.create(&name, "k").unwrap();
            let held = uploads.lock_session(&name, &id).await.unwrap();
            assert_eq!(uploads.drop_upload_if(&id, |_, _| true), Ok(false), "somebody is at it");
            drop(held);
            if is_earlier {
                uploads.sessions().clear();
            }
            assert_eq!(uploads.drop_upload_if(&id, |_, _| false), Ok(false));
            let is_held = |uploads: &UploadSessions| uploads.sessions()[&id].try_lock().is_err();
            assert_eq!(uploads.drop_upload_if(&id, |_, _| is_held(&uploads)), Ok(true));
            let gone = uploads.lock_session(&name, &id).await;
            assert!(matches!(gone, Err(MirrorError::UploadUnknown(_))));
            assert_eq!(registry_dir::file_names(&registry.uploads()).unwrap(), [""; 0]);
        }
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_pushed_blob_has_the_mode_of_model_files() {
        use std::os::unix::fs::PermissionsExt;
        let (dir, name) = (tempfile::tempdir().unwrap(), Repository::parse("a/b").unwrap());
        for mode in [0o600, 0o640, 0o664] {
            let parsed = format!("{mode:o}").parse().ok();
            let store = Store::open(dir.path()).unwrap().with_mode(parsed);
            let registry = RegistryDir::new(Arc::new(store));
            let uploads = UploadSessions::new(registry.clone());
            let id = uploads.create(&name, "k").unwrap();
            let digest = Digest::of(format!("{mode}").as_bytes());
            fs::write(registry.uploads().join(id.as_str()), format!("{mode}")).unwrap();
            let mut upload = uploads.lock_session(&name, &id).await.unwrap();
            upload.record.committed = format!("{mode}").len() as u64;
            upload.hasher = None;
            upload.finish(&registry, digest).unwrap();
            let meta = fs::metadata(registry.blob(&digest)).unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, mode);
        }
    }
}
