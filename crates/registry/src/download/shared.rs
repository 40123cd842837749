//! Downloads shared by several pulls: each blob is downloaded once at a time, whatever model or
//! registry it belongs to. A pull of a caller that may not know of a stored blob has a private
//! download, so that neither its progress nor its requests tell whether the store has the blob.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use puna_store::{Digest, Store};
use tokio::sync::watch;

use super::active::DownloadState;
use super::run_download;
use crate::client::session::Session;
use crate::download::source::DownloadSpec;
use crate::error::RegistryError;
use crate::lock::lock;

/// How often a pull takes over a failed download that another pull started.
pub(crate) const MAX_TAKE_OVERS: usize = 5;

/// Update on a running download.
pub(crate) enum DownloadUpdate {
    /// Completed bytes.
    Completed(u64),
    /// Description of the other process that the download waits for.
    WaitingFor(String),
}

/// Running downloads by store, blob, and caller of a private download.
#[derive(Default)]
pub(crate) struct SharedDownloads(Mutex<DownloadMap>);

type DownloadMap = HashMap<(PathBuf, Digest, Option<u64>), Weak<watch::Sender<DownloadState>>>;

/// A pull's share of a running download. The download is cancelled when all shares are dropped.
pub(crate) struct SharedDownload {
    pub(crate) state: watch::Receiver<DownloadState>,
    /// Whether this pull started the download.
    pub(crate) is_initiator: bool,
}

impl SharedDownload {
    /// Waits for the end and reports updates at every tick.
    pub(crate) async fn wait(
        mut self,
        tick: std::time::Duration,
        mut on_update: impl FnMut(DownloadUpdate),
    ) -> Result<Digest, RegistryError> {
        let mut ticks = tokio::time::interval(tick);
        let mut reported_wait = None;
        loop {
            let result = self.state.borrow_and_update().result.clone();
            if let Some(result) = result {
                return result;
            }
            tokio::select! {
                ended = self.state.wait_for(|state| state.result.is_some()) => match ended {
                    // The task has ended without a result only if the process is exiting.
                    Ok(state) => {
                        return state.result.clone().unwrap_or(Err(RegistryError::Cancelled));
                    }
                    Err(_) => return Err(RegistryError::Cancelled),
                },
                _ = ticks.tick() => {}
            }
            // Before the start, the result of an earlier run is unknown.
            let (completed, waiting_for) = {
                let state = self.state.borrow();
                let completed =
                    (state.is_at_work() || state.completed > 0).then_some(state.completed);
                (completed, state.waiting_for.clone())
            };
            completed.into_iter().map(DownloadUpdate::Completed).for_each(&mut on_update);
            // The message comes last, since progress of the other process is shown below it.
            if reported_wait != waiting_for {
                waiting_for
                    .clone()
                    .into_iter()
                    .map(DownloadUpdate::WaitingFor)
                    .for_each(&mut on_update);
                reported_wait = waiting_for;
            }
        }
    }
}

impl SharedDownloads {
    /// Completed bytes of a running shared download; 0 if it does not run.
    pub(crate) fn completed(&self, store: &Store, digest: Digest) -> u64 {
        let key = (store.root().to_owned(), digest, None);
        let state = lock(&self.0).get(&key).and_then(Weak::upgrade);
        state.map_or(0, |state| state.borrow().completed)
    }

    /// Joins the download of a blob, or starts it.
    pub(crate) fn join(
        self: &Arc<Self>,
        session: &Arc<Session>,
        store: &Arc<Store>,
        spec: &DownloadSpec,
    ) -> SharedDownload {
        let key = (store.root().to_owned(), spec.key, spec.private_to);
        let mut running = lock(&self.0);
        if let Some(state) = running.get(&key).and_then(Weak::upgrade) {
            return SharedDownload { state: state.subscribe(), is_initiator: false };
        }
        let (sender, state) = watch::channel(DownloadState::default());
        let sender = Arc::new(sender);
        running.insert(key.clone(), Arc::downgrade(&sender));
        let (all, session, store, spec) =
            (self.clone(), session.clone(), store.clone(), spec.clone());
        puna_tasks::spawn(async move {
            let result = run_download(session, store, spec, &sender).await;
            // Later pulls start a new download, or find the blob.
            lock(&all.0).remove(&key);
            sender.send_modify(|state| state.result = Some(result));
        });
        SharedDownload { state, is_initiator: true }
    }

    /// Downloads a blob, together with other pulls that need it. If the download of another pull
    /// fails, this pull tries its own registry.
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        session: &Arc<Session>,
        store: &Arc<Store>,
        spec: &DownloadSpec,
        mut on_update: impl FnMut(DownloadUpdate),
    ) -> Result<Digest, RegistryError> {
        let mut take_overs_left = MAX_TAKE_OVERS;
        loop {
            let download = self.join(session, store, spec);
            let is_initiator = download.is_initiator;
            match download.wait(session.settings().progress_interval, &mut on_update).await {
                Err(_) if !is_initiator && take_overs_left > 0 => take_overs_left -= 1,
                ended => return ended,
            }
        }
    }
}
