//! Downloads that several pulls wait for: a blob is fetched once, whoever wants it and from wherever.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use puna_store::{Digest, Store};
use tokio::sync::watch;

use crate::download::{State, download};
use crate::error::RegistryError;
use crate::fetch::What;
use crate::http::Session;
use crate::lock::lock;

/// How often a download that somebody else began is taken over after it failed or was given up.
pub(crate) const TAKE_OVERS: usize = 5;

/// What is told of a download while it goes on.
pub(crate) enum Told {
    /// Bytes that are there.
    Completed(u64),
    /// Which other process is waited for.
    Waits(String),
}

/// Running downloads by store and blob.
#[derive(Default)]
pub(crate) struct Downloads(Mutex<Running>);

type Running = HashMap<(PathBuf, Digest), Weak<watch::Sender<State>>>;

/// A download that goes on while this is held.
pub(crate) struct Share {
    pub(crate) state: watch::Receiver<State>,
    /// Whether it was begun for this pull.
    pub(crate) is_own: bool,
}

impl Share {
    /// Waits for the end, telling how far it is at every tick.
    pub(crate) async fn finished(
        mut self,
        tick: std::time::Duration,
        mut told: impl FnMut(Told),
    ) -> Result<Digest, RegistryError> {
        let mut ticks = tokio::time::interval(tick);
        let mut waited = None;
        loop {
            let end = self.state.borrow_and_update().end.clone();
            if let Some(end) = end {
                return end;
            }
            tokio::select! {
                ended = self.state.wait_for(|state| state.end.is_some()) => match ended {
                    // Without an end, the process ends.
                    Ok(state) => return state.end.clone().unwrap_or(Err(RegistryError::Cancelled)),
                    Err(_) => return Err(RegistryError::Cancelled),
                },
                _ = ticks.tick() => {}
            }
            // Before it has begun nobody knows what an earlier run has left.
            let (known, waits) = {
                let state = self.state.borrow();
                let known = (state.is_at_work() || state.completed > 0).then_some(state.completed);
                (known, state.waits.clone())
            };
            known.into_iter().map(Told::Completed).for_each(&mut told);
            // Last: what comes of theirs stands below it from then on.
            if waited != waits {
                waits.clone().into_iter().map(Told::Waits).for_each(&mut told);
                waited = waits;
            }
        }
    }
}

impl Downloads {
    /// Bytes that have arrived of a blob that is being downloaded; none of another one.
    pub(crate) fn completed(&self, store: &Store, digest: Digest) -> u64 {
        let key = (store.root().to_owned(), digest);
        let state = lock(&self.0).get(&key).and_then(Weak::upgrade);
        state.map_or(0, |state| state.borrow().completed)
    }

    /// Joins the download of a blob, or begins it.
    pub(crate) fn join(
        self: &Arc<Self>,
        session: &Arc<Session>,
        store: &Arc<Store>,
        what: &What,
    ) -> Share {
        let key = (store.root().to_owned(), what.key);
        let mut running = lock(&self.0);
        if let Some(state) = running.get(&key).and_then(Weak::upgrade) {
            return Share { state: state.subscribe(), is_own: false };
        }
        let (sender, state) = watch::channel(State::default());
        let sender = Arc::new(sender);
        running.insert(key.clone(), Arc::downgrade(&sender));
        let (all, session, store, what) =
            (self.clone(), session.clone(), store.clone(), what.clone());
        puna_tasks::spawn(async move {
            let end = download(session, store, what, &sender).await;
            // Whoever comes from now on begins anew, or finds the blob.
            lock(&all.0).remove(&key);
            sender.send_modify(|state| state.end = Some(end));
        });
        Share { state, is_own: true }
    }

    /// Has a blob downloaded, together with whoever else wants it. What another pull's registry failed at is tried with
    /// this one's.
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        session: &Arc<Session>,
        store: &Arc<Store>,
        what: &What,
        mut told: impl FnMut(Told),
    ) -> Result<Digest, RegistryError> {
        let mut left = TAKE_OVERS;
        loop {
            let share = self.join(session, store, what);
            let is_own = share.is_own;
            match share.finished(session.settings().tick, &mut told).await {
                Err(_) if !is_own && left > 0 => left -= 1,
                ended => return ended,
            }
        }
    }
}
