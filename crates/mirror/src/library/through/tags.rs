//! What is known of the tags of upstreams, and what of them is on its way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use puna_store::ModelName;

use super::coming::Coming;
use crate::error::MirrorError;
use crate::lock::lock;

/// Tags of which something is known.
pub(super) const MAX_TAGS: usize = 100_000;
/// The part of them that is forgotten at once, so that not every new name has all the others looked through.
const FORGOTTEN: usize = 8;

/// Tags, and what of them is being fetched: that is never forgotten.
pub(super) struct Tags {
    most: usize,
    known: Mutex<HashMap<ModelName, Arc<Tag>>>,
    coming: Mutex<HashMap<ModelName, Coming>>,
}

/// A tag. Whoever asks for it or fetches it holds on to it.
#[derive(Default)]
pub(super) struct Tag {
    /// Held by the one who asks; the others wait for what comes of it.
    pub(super) asking: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

/// What is known of a tag that is not on its way.
#[derive(Debug, Clone, Default)]
pub(super) enum State {
    /// Nothing.
    #[default]
    Unknown,
    /// What is here is what the upstream has said that it stands for.
    Said(Said),
    /// Nothing comes of asking, since then.
    Rests(Instant, Why),
}

/// An upstream said what a tag stands for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Said {
    pub(super) at: Instant,
    /// How many blobs had been lost here by then.
    pub(super) lost: u64,
}

/// Why nothing is fetched.
#[derive(Debug, Clone)]
pub(super) enum Why {
    /// The upstream has no such thing.
    Absent,
    /// Nobody answered, or it could not be fetched.
    Failed(MirrorError),
    /// It has so many bytes, which strangers may not have fetched.
    Large(u64),
    /// As many models were being fetched as may be.
    Full,
}

impl Tag {
    pub(super) fn state(&self) -> State {
        lock(&self.state).clone()
    }

    pub(super) fn set(&self, state: State) {
        *lock(&self.state) = state;
    }

    /// In which order tags are forgotten: names that nobody has go before those of something.
    fn rank(&self) -> (bool, Option<Instant>) {
        match *lock(&self.state) {
            State::Unknown => (false, None),
            State::Rests(since, _) => (false, Some(since)),
            State::Said(said) => (true, Some(said.at)),
        }
    }
}

impl Tags {
    /// Room for so many.
    pub(super) fn new(most: usize) -> Self {
        Self { most, known: Mutex::default(), coming: Mutex::default() }
    }

    /// What is known of the tag of a model.
    pub(super) fn of(&self, model: &ModelName) -> Arc<Tag> {
        let mut known = lock(&self.known);
        if let Some(tag) = known.get(model) {
            return tag.clone();
        }
        if known.len() >= self.most {
            forget(&mut known, self.most.div_ceil(FORGOTTEN));
        }
        known.entry(model.clone()).or_default().clone()
    }

    /// A model is on its way from now on.
    pub(super) fn begin(&self, coming: Coming) {
        lock(&self.coming).insert(coming.of().model.clone(), coming);
    }

    /// It is no more.
    pub(super) fn end(&self, model: &ModelName) {
        lock(&self.coming).remove(model);
    }

    /// What is on its way of a model.
    pub(super) fn coming(&self, model: &ModelName) -> Option<Coming> {
        lock(&self.coming).get(model).cloned()
    }

    /// All that is on its way.
    pub(super) fn all_coming(&self) -> Vec<Coming> {
        lock(&self.coming).values().cloned().collect()
    }
}

/// Forgets so many tags, the oldest first. One that is being asked for, or fetched, stays: who comes next has to meet those who wait for it.
fn forget(known: &mut HashMap<ModelName, Arc<Tag>>, count: usize) {
    let is_idle = |tag: &Arc<Tag>| Arc::strong_count(tag) == 1;
    let idle = known.iter().filter(|(_, tag)| is_idle(tag));
    let mut idle: Vec<_> = idle.map(|(model, tag)| (tag.rank(), model.clone())).collect();
    idle.sort_by_key(|(rank, _)| *rank);
    for (_, model) in idle.into_iter().take(count) {
        known.remove(&model);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> ModelName {
        ModelName::parse(name).unwrap()
    }

    #[test]
    fn tags_that_somebody_asks_for_outlive_any_number_of_others() {
        let tags = Tags::new(16);
        let (asked, fetched) = (tags.of(&model("asked")), tags.of(&model("fetched")));
        let here = tags.of(&model("here"));
        here.set(State::Said(Said { at: Instant::now(), lost: 0 }));
        drop(here);
        for n in 0..1000 {
            tags.of(&model(&format!("none-{n}"))).set(State::Rests(Instant::now(), Why::Absent));
        }
        let known = |name: &str| lock(&tags.known).get(&model(name)).cloned();
        assert!(lock(&tags.known).len() <= 16);
        assert!(known("asked").is_some_and(|tag| Arc::ptr_eq(&tag, &asked)));
        assert!(known("fetched").is_some_and(|tag| Arc::ptr_eq(&tag, &fetched)));
        assert!(known("none-999").is_some() && known("none-0").is_none(), "the oldest go first");
        let is_said = |tag: Arc<Tag>| matches!(tag.state(), State::Said(_));
        assert!(known("here").is_some_and(is_said), "names of nothing go first");
        drop(asked);
        for n in 0..1000 {
            tags.of(&model(&format!("there-{n}")))
                .set(State::Said(Said { at: Instant::now(), lost: 0 }));
        }
        assert!(known("asked").is_none() && known("here").is_none() && known("fetched").is_some());
    }
}
