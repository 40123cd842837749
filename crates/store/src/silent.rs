//! Folders that are only read may be on other machines, which may be gone: then whoever looks at one of their files waits for ever. So
//! they are looked at on threads of their own, and waited for no longer than somebody waits for a list. Who has not answered is not
//! asked again until he does, and so one that is gone holds a thread, and not one a request.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::store::Store;

/// How long folders that are only read are waited for.
pub(crate) const PATIENCE: Duration =
    if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(3) };

/// The folders that have been asked, and have not answered.
#[derive(Default)]
pub(crate) struct Silent(Mutex<HashMap<PathBuf, Receiver<Infallible>>>);

/// A look at a folder.
pub(crate) struct Look<T> {
    answer: Receiver<T>,
    /// Hung up when it has ended.
    end: Receiver<Infallible>,
}

impl<T: Send + 'static> Look<T> {
    /// Begins it.
    pub(crate) fn at(folder: &Path, work: impl FnOnce() -> T + Send + 'static) -> Self {
        let ((to, answer), (ending, end)) = (mpsc::channel(), mpsc::channel());
        let _folder = folder.to_owned();
        let look = move || {
            #[cfg(test)]
            tests::hang(&_folder);
            let _ = to.send(work());
            drop(ending);
        };
        // Where no thread can be had, the look has ended without an answer.
        let _ = std::thread::Builder::new().name("puna-look".into()).spawn(look);
        Self { answer, end }
    }

    /// What has come of it.
    pub(crate) fn wait(&self, patience: Duration) -> Result<T, RecvTimeoutError> {
        self.answer.recv_timeout(patience)
    }
}

impl Silent {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Receiver<Infallible>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing has come of a folder yet.
    pub(crate) fn has(&self, folder: &Path) -> bool {
        let mut silent = self.lock();
        let waits = |end: &Receiver<Infallible>| matches!(end.try_recv(), Err(TryRecvError::Empty));
        let is_silent = silent.get(folder).is_some_and(waits);
        if !is_silent {
            silent.remove(folder);
        }
        is_silent
    }

    /// Remembers one that does not answer.
    pub(crate) fn add<T>(&self, folder: &Path, look: Look<T>) {
        self.lock().insert(folder.to_owned(), look.end);
    }
}

impl Store {
    /// Looks for something in a folder that is only read. `None`: it does not answer.
    pub(crate) fn ask_other<T: Send + 'static>(
        &self,
        folder: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.silent.has(folder) {
            return None;
        }
        let look = Look::at(folder, work);
        let answer = look.wait(PATIENCE);
        if matches!(answer, Err(RecvTimeoutError::Timeout)) {
            tracing::warn!(folder = %folder.display(), "does not answer: left out until it does");
            self.silent.add(folder, look);
        }
        answer.ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{Digest, Layer, Manifest, ModelName, StoreError, media};

    /// Folders that do not answer.
    static HUNG: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

    pub(crate) fn hung() -> MutexGuard<'static, Vec<PathBuf>> {
        HUNG.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as a folder does not answer.
    pub(super) fn hang(folder: &Path) {
        while hung().iter().any(|path| path == folder) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_name_and_a_blob_are_looked_for_elsewhere_while_a_folder_does_not_answer() {
        let [own, gone] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let far = ModelName::parse("far").unwrap();
        let there = Store::open(gone.path()).unwrap();
        let blob = there.add_blob(b"far").unwrap();
        let manifest = Manifest {
            config: None,
            layers: vec![Layer::new(media::TEMPLATE, blob.digest, blob.size)],
        };
        there.store_manifest(&far, &manifest.to_bytes(), true, &mut || ()).unwrap();
        let store = Store::open(own.path()).unwrap().with_others([gone.path().to_owned()]);
        let silent = Err(StoreError::Silent { folder: gone.path().to_owned() });
        hung().push(gone.path().to_owned());
        assert!(!store.has_blob(&blob.digest), "the first one waits");
        let begun = Instant::now();
        for _ in 0..20 {
            assert_eq!(store.find(&far), Ok(None));
            assert_eq!(store.get(&far), silent);
            assert!(!store.has_blob(&Digest::of(b"far")));
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        hung().retain(|path| path != gone.path());
        while store.silent.has(gone.path()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(store.get(&far).is_ok() && store.has_blob(&blob.digest));
        // And where the first request is for a name.
        hung().push(gone.path().to_owned());
        assert_eq!(store.get(&far), silent);
        hung().retain(|path| path != gone.path());
    }
}
