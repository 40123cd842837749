//! The public prefix of a prompt: the beginning that every client of the model may know.
//!
//! It is what the prompt has in common with a conversation without messages of the request: the
//! template's own text, the system prompt of the model, and its stored messages. `/api/show` tells
//! all of them to clients that may use the model. Clients share the cached pages of this prefix,
//! and of nothing else, if their models have the same name: the model of another namespace may have
//! the same weights and a guessed system prompt.

use std::sync::{Arc, Mutex};

use puna_engine::{CacheNamespace, PublicPrefix};
use puna_mirror::{SharedTable, TableLimit};
use ring::digest::{SHA256, digest};

use super::preparer::Preparer;
use super::task_handle::TaskHandle;
use crate::auth::owner::first_128_bits;
use crate::canonical::{ApiError, GenerateTask, Input, Overflow};
use crate::util::lock::lock;

/// Maximum number of cached public prompts: several models can share a runner, each with a few
/// levels of thinking.
const MAX_CACHED: usize = 16;

/// Description of [`PublicPrompts`].
pub(crate) static PUBLIC_PROMPTS: SharedTable = SharedTable {
    name: "public prompts of a runner",
    holders: &["puna_server::runner::public_prefix::PublicPrompts"],
    limits: &[TableLimit::Entries(MAX_CACHED)],
    shares: &[TableLimit::Rule("none: what is missing is computed again")],
    when_full: "the oldest is dropped",
    test: "a_client_with_many_public_prompts_does_not_hide_one_of_another",
};

/// Public prompts in tokens by a hash of what they depend on, the newest last.
#[derive(Default)]
pub(super) struct PublicPrompts(Mutex<Vec<(CacheNamespace, Arc<[u32]>)>>);

impl PublicPrompts {
    fn get_or_insert(
        &self,
        key: CacheNamespace,
        make: impl FnOnce() -> Result<Vec<u32>, ApiError>,
    ) -> Option<Arc<[u32]>> {
        if let Some((_, found)) = lock(&self.0).iter().find(|(other, _)| *other == key) {
            return Some(found.clone());
        }
        let made: Arc<[u32]> = make().ok()?.into();
        let mut all = lock(&self.0);
        if all.len() >= MAX_CACHED {
            all.remove(0);
        }
        all.push((key, made.clone()));
        Some(made)
    }
}

impl Preparer {
    /// Public prefix of a prompt.
    pub(super) fn public_prefix(
        &self,
        handle: &TaskHandle,
        task: &GenerateTask,
        prompt: &[u32],
    ) -> PublicPrefix {
        if !matches!(task.input, Input::Chat { .. }) {
            return PublicPrefix::default();
        }
        let namespace = public_prompt_key(task);
        let public = self.public_prompts.get_or_insert(namespace, || {
            let public = GenerateTask {
                input: Input::Chat { messages: Vec::new(), tools: Vec::new() },
                variables: serde_json::Map::new(),
                overflow: Overflow::Refuse,
                ..task.clone()
            };
            // Some templates reject a conversation without messages: then nothing is public.
            let text = self.prompt_text(handle, &public)?;
            self.prompt_tokens(handle, &text, &public)
        });
        let Some(public) = public else { return PublicPrefix::default() };
        let tokens = public.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        PublicPrefix { tokens, namespace }
    }
}

/// Hash of all that a public prompt depends on, including the date, which templates can show.
fn public_prompt_key(task: &GenerateTask) -> CacheNamespace {
    let date = jiff::Zoned::now().date().to_string();
    let text = serde_json::to_vec(&(&task.model, &task.think, date)).unwrap_or_default();
    CacheNamespace(first_128_bits(digest(&SHA256, &text).as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_many_public_prompts_does_not_hide_one_of_another() {
        let prompts = PublicPrompts::default();
        let get = |key: usize, tokens: &[u32]| {
            let key = CacheNamespace(key as u128);
            prompts.get_or_insert(key, || Ok(tokens.to_vec())).unwrap().to_vec()
        };
        assert_eq!(get(0, &[7]), [7]);
        (1..=2 * MAX_CACHED).for_each(|key| assert!(get(key, &[]).is_empty()));
        assert_eq!(lock(&prompts.0).len(), MAX_CACHED);
        // It is computed again, and then found.
        assert_eq!([get(0, &[8]), get(0, &[9])], [[8], [8]]);
    }
}
