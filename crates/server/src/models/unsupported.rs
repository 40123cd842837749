//! Models of unknown architectures, so that the log names each of them once.

use std::collections::VecDeque;
use std::sync::Mutex;

use puna_mirror::{SharedTable, TableLimit};
use puna_store::Digest;

use crate::util::lock::lock;

/// Number of models remembered.
const MAX_MODELS: usize = 64;

/// Description of [`UnsupportedModels`].
pub(crate) static UNSUPPORTED_MODELS: SharedTable = SharedTable {
    name: "models of unknown architectures that the log has named",
    holders: &["puna_server::models::unsupported::UnsupportedModels"],
    limits: &[TableLimit::Entries(MAX_MODELS)],
    shares: &[TableLimit::Rule("none: the log names a forgotten model again")],
    when_full: "the oldest is forgotten",
    test: "each_of_the_last_models_is_new_once",
};

/// Digests of the weights of the models that the log has named, oldest first.
#[derive(Debug, Default)]
pub(crate) struct UnsupportedModels(Mutex<VecDeque<Digest>>);

impl UnsupportedModels {
    /// Adds a model. Returns whether it is new.
    pub(crate) fn insert(&self, weights: &Digest) -> bool {
        let mut models = lock(&self.0);
        if models.contains(weights) {
            return false;
        }
        if models.len() == MAX_MODELS {
            models.pop_front();
        }
        models.push_back(*weights);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_last_models_is_new_once() {
        let models = UnsupportedModels::default();
        let digest = |n: usize| Digest::of(&n.to_le_bytes());
        assert!((0..MAX_MODELS).all(|n| models.insert(&digest(n))));
        assert!((0..MAX_MODELS).all(|n| !models.insert(&digest(n))));
        assert!(models.insert(&digest(MAX_MODELS)));
        assert!(models.insert(&digest(0)), "the oldest model was forgotten");
        assert_eq!(lock(&models.0).len(), MAX_MODELS);
    }
}
