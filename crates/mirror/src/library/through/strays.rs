//! Blobs that somebody asks for whose manifest is not on its way here: another mirror has handed that out, or this one before it was
//! started anew. The upstream says whether they are of the repository.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use puna_registry::{FoundBlob, Kept, Options};
use puna_store::{Digest, ModelName, ModelRef};

use super::asking::is_absence;
use super::sizes::Said;
use super::tags::Why;
use super::{Inner, broken, of_model};
use crate::error::MirrorError;
use crate::library::arriving::Arriving;
use crate::library::upstreams::{Asker, Permit};
use crate::lock::lock;
use crate::name::Repository;
use crate::via;
use crate::waiting::blocking;

/// Blobs of which something is known.
const MAX_STRAYS: usize = 10_000;
/// How long it counts that an upstream has a blob.
const KNOWN: Duration = Duration::from_secs(60 * 60);
/// How long a blob that belongs elsewhere stays after it was last asked for.
const LINGER: Duration = Duration::from_secs(10 * 60);
/// How often it is looked whether it may go.
const LOOK: Duration = Duration::from_secs(30);
/// The tag under which the model of a repository is called that is known by a blob alone.
const NO_TAG: &str = "latest";

/// What is known of blobs that were asked for by themselves.
#[derive(Default)]
pub(super) struct Strays {
    known: Mutex<HashMap<(ModelName, Digest), Arc<Stray>>>,
    /// What lets the blobs of a repository be fetched: together they count as one model.
    permits: Mutex<HashMap<ModelName, Weak<Permit>>>,
}

/// A blob of a repository.
#[derive(Default)]
struct Stray {
    /// Held by the one who asks; the others wait for what comes of it.
    asking: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Clone, Default)]
enum State {
    /// Nothing is known.
    #[default]
    Unknown,
    /// An upstream has it.
    Found(Instant, Arc<FoundBlob>),
    /// It is being fetched, or has been a short while ago, and was last asked for then.
    Comes(Instant, Arc<FoundBlob>),
    /// Nothing comes of asking, since then.
    Rests(Instant, Why),
}

impl Strays {
    fn of(&self, model: &ModelName, digest: Digest) -> Arc<Stray> {
        let mut known = lock(&self.known);
        if known.len() >= MAX_STRAYS {
            known.retain(|_, stray| Arc::strong_count(stray) > 1);
        }
        known.entry((model.clone(), digest)).or_default().clone()
    }

    /// What the blobs of a repository are being fetched by.
    fn permit(&self, model: &ModelName) -> Option<Arc<Permit>> {
        lock(&self.permits).get(model).and_then(Weak::upgrade)
    }

    fn share(&self, model: &ModelName, permit: Permit) -> Arc<Permit> {
        let mut permits = lock(&self.permits);
        permits.retain(|_, permit| permit.strong_count() > 0);
        let permit = Arc::new(permit);
        permits.insert(model.clone(), Arc::downgrade(&permit));
        permit
    }
}

impl Stray {
    fn state(&self) -> State {
        lock(&self.state).clone()
    }

    fn set(&self, state: State) {
        *lock(&self.state) = state;
    }

    /// Somebody asks for what comes.
    fn used(&self) {
        if let State::Comes(used, _) = &mut *lock(&self.state) {
            *used = Instant::now();
        }
    }
}

impl Inner {
    /// Whether an upstream says that a blob is of a repository.
    pub(super) async fn vouched(
        &self,
        name: &Repository,
        digest: Digest,
    ) -> Result<bool, MirrorError> {
        let Some(model) =
            self.upstreams.model(name, NO_TAG).filter(|_| self.upstreams.may_fetch(name))
        else {
            return Ok(false);
        };
        let stray = self.strays.of(&model, digest);
        let _asking = stray.asking.lock().await;
        Ok(self.look_for(&model, &stray, digest).await?.is_some())
    }

    /// A blob that is not here, and of nothing that is on its way, from the upstream of its repository.
    pub(super) async fn stray(
        self: &Arc<Self>,
        name: &Repository,
        digest: Digest,
        asker: Asker,
    ) -> Result<Option<Arriving>, MirrorError> {
        let Some(model) = self.upstreams.model(name, NO_TAG) else { return Ok(None) };
        if !self.upstreams.may_fetch(name) {
            return Err(self.gate.closed(name));
        }
        let stray = self.strays.of(&model, digest);
        let _asking = stray.asking.lock().await;
        let Some(found) = self.look_for(&model, &stray, digest).await? else { return Ok(None) };
        let comes = matches!(stray.state(), State::Comes(..));
        let held = self.hold(name, digest, found.size()).await;
        if let Err(error @ MirrorError::Upstream(_)) = &held
            && !comes
        {
            // What it says may be right by the time that it is asked again.
            stray.set(State::Rests(Instant::now(), Why::Failed(error.clone())));
        }
        let is_vouched = held?;
        if !comes {
            let permit = self.admit_blob(&model, found.size(), asker)?;
            tracing::info!(%model, %digest, "fetching a blob whose manifest is not on its way here");
            // Before anybody fetches it.
            let first = found.completed(&self.store).await;
            stray.set(State::Comes(Instant::now(), found.clone()));
            let brought = self.clone().bring_blob(
                model,
                stray.clone(),
                digest,
                (found.clone(), first),
                permit,
            );
            puna_tasks::spawn(brought);
        }
        stray.used();
        let size = found.size();
        Ok(found
            .running(&self.store)
            .map(|running| self.arriving_of(digest, size, running, is_vouched)))
    }

    /// Holds an upstream that says how large a blob is to what manifests of the repository say. Whether any does.
    async fn hold(
        &self,
        name: &Repository,
        digest: Digest,
        size: u64,
    ) -> Result<bool, MirrorError> {
        match self.said_of(name, digest).await {
            Some(Said::Bytes(said)) if said != size => Err(MirrorError::Upstream(format!(
                "{name}: the blob {digest} has {size} bytes there, but its manifest says {said}"
            ))),
            said => Ok(matches!(said, Some(Said::Bytes(_)))),
        }
    }

    /// What an upstream has; `None` if it does not.
    async fn look_for(
        &self,
        model: &ModelName,
        stray: &Stray,
        digest: Digest,
    ) -> Result<Option<Arc<FoundBlob>>, MirrorError> {
        match stray.state() {
            State::Comes(_, found) => return Ok(Some(found)),
            State::Found(since, found) if since.elapsed() < KNOWN => return Ok(Some(found)),
            State::Rests(since, Why::Failed(error)) if since.elapsed() < self.rest => {
                return Err(error);
            }
            State::Rests(since, _) if since.elapsed() < self.rest => return Ok(None),
            _ => {}
        }
        let reference = ModelRef::of(model.clone());
        let options = Options { via: via::told(), ..Options::default() };
        let (state, found) = match self.registry.look_blob(&reference, digest, &options).await {
            Ok(found) => {
                let found = Arc::new(found);
                (State::Found(Instant::now(), found.clone()), Ok(Some(found)))
            }
            Err(error) if is_absence(&error) => {
                (State::Rests(Instant::now(), Why::Absent), Ok(None))
            }
            Err(error) => {
                let error = of_model(model, broken(error));
                (State::Rests(Instant::now(), Why::Failed(error.clone())), Err(error))
            }
        };
        stray.set(state);
        found
    }

    /// Whether a blob of so many bytes may be fetched now, for the one who asks.
    fn admit_blob(
        &self,
        model: &ModelName,
        bytes: u64,
        asker: Asker,
    ) -> Result<Arc<Permit>, MirrorError> {
        if self.gate.is_too_large(bytes, asker) {
            return Err(self.gate.too_large(model, bytes));
        }
        if let Some(permit) = self.strays.permit(model) {
            return Ok(permit);
        }
        let permit = self.gate.enter().ok_or_else(|| self.gate.full(model))?;
        Ok(self.strays.share(model, permit))
    }

    /// Fetches a blob, and leaves it where the model that it is of will look for it.
    async fn bring_blob(
        self: Arc<Self>,
        model: ModelName,
        stray: Arc<Stray>,
        digest: Digest,
        (found, first): (Arc<FoundBlob>, u64),
        permit: Arc<Permit>,
    ) {
        let fetched = found.fetch(&self.store).await;
        let arrived = found.completed(&self.store).await.saturating_sub(first);
        {
            let mut fetches = lock(&self.fetches);
            fetches.bytes += arrived;
            fetches.failures += u64::from(fetched.is_err());
        }
        drop(permit);
        let state = match fetched {
            Ok(kept) => {
                tracing::info!(%model, %digest, "fetched");
                if self.library.is_elsewhere() {
                    self.linger(&stray, digest, kept).await;
                }
                State::Found(Instant::now(), found)
            }
            Err(error) => {
                tracing::warn!(%model, %digest, %error, "fetching failed");
                State::Rests(Instant::now(), Why::Failed(of_model(&model, broken(error))))
            }
        };
        stray.set(state);
    }

    /// Keeps a blob that belongs elsewhere as long as somebody asks for it, or until it is there.
    async fn linger(&self, stray: &Stray, digest: Digest, kept: Kept) {
        loop {
            tokio::time::sleep(LOOK).await;
            let is_idle = matches!(stray.state(), State::Comes(used, _) if used.elapsed() > LINGER);
            if is_idle || matches!(self.library.blob(digest).await, Ok(Some(_))) {
                break;
            }
        }
        drop(kept);
        // Those who fetch a model that it is of hold it, too.
        let store = self.store.clone();
        if let Err(error) = blocking(move || Ok(store.discard_blobs(&[digest])?)).await {
            tracing::warn!(%digest, %error, "a blob that passed through cannot be removed");
        }
    }
}
