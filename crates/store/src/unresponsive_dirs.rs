//! Queries of read-only folders with a timeout. Such a folder may be a network share of a machine
//! that is gone, where file operations block for ever. Each query runs on its own thread. A folder
//! with an unfinished query is not queried again, so an unreachable folder holds one thread, not
//! one for each request.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest wait for a read-only folder.
pub(crate) const READ_ONLY_DIR_TIMEOUT: Duration =
    if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(3) };

/// Read-only folders whose last query has not finished.
#[derive(Default)]
pub(crate) struct UnresponsiveDirs(Mutex<HashMap<PathBuf, Receiver<Infallible>>>);

/// A query of a folder on its own thread.
pub(crate) struct DirQuery<T> {
    answer: Receiver<T>,
    /// Disconnected when the query has ended.
    end: Receiver<Infallible>,
}

impl<T: Send + 'static> DirQuery<T> {
    /// Starts a query.
    pub(crate) fn at(folder: &Path, work: impl FnOnce() -> T + Send + 'static) -> Self {
        let ((answer_sender, answer), (end_sender, end)) = (mpsc::channel(), mpsc::channel());
        let _folder = folder.to_owned();
        let run = move || {
            #[cfg(test)]
            tests::hang(&_folder);
            let _ = answer_sender.send(work());
            drop(end_sender);
        };
        // If no thread can be started, the query ends without an answer.
        let _ = std::thread::Builder::new().name("puna-look".into()).spawn(run);
        Self { answer, end }
    }

    /// Waits for the answer.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.answer.recv_timeout(timeout)
    }
}

impl UnresponsiveDirs {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Receiver<Infallible>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a query of the folder is still unfinished.
    pub(crate) fn contains(&self, folder: &Path) -> bool {
        let mut dirs = self.lock();
        let is_running =
            |end: &Receiver<Infallible>| matches!(end.try_recv(), Err(TryRecvError::Empty));
        let is_unresponsive = dirs.get(folder).is_some_and(is_running);
        if !is_unresponsive {
            dirs.remove(folder);
        }
        is_unresponsive
    }

    /// Adds a folder with its unfinished query.
    pub(crate) fn insert<T>(&self, folder: &Path, query: DirQuery<T>) {
        self.lock().insert(folder.to_owned(), query.end);
    }

    /// Runs a query of a folder. `None` if the folder does not answer in time.
    pub(crate) fn query<T: Send + 'static>(
        &self,
        folder: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.contains(folder) {
            return None;
        }
        let query = DirQuery::at(folder, work);
        let answer = query.wait(READ_ONLY_DIR_TIMEOUT);
        if matches!(answer, Err(RecvTimeoutError::Timeout)) {
            tracing::warn!(folder = %folder.display(), "read-only folder does not respond; ignoring it until it does");
            self.insert(folder, query);
        }
        answer.ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Folders whose queries block.
    static HUNG: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

    pub(crate) fn hung() -> MutexGuard<'static, Vec<PathBuf>> {
        HUNG.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks while a folder is in [`HUNG`].
    pub(super) fn hang(folder: &Path) {
        while hung().iter().any(|path| path == folder) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
