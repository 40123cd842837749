//! The state of the preparation, and steps that tasks of several types share.

use std::sync::Arc;

use puna_engine::EngineError;

use super::public_prefix::PublicPrompts;
use super::runner_model::RunnerModel;
use super::task_handle::TaskHandle;
use super::templates::TemplateCache;
use crate::canonical::ApiError;

/// Turns tasks into requests to the engine.
pub(crate) struct Preparer {
    pub(crate) model: Arc<dyn RunnerModel>,
    pub(super) templates: TemplateCache,
    pub(super) public_prompts: PublicPrompts,
}

impl Preparer {
    pub(crate) fn new(model: Arc<dyn RunnerModel>) -> Self {
        let (templates, public_prompts) = (TemplateCache::default(), PublicPrompts::default());
        Self { model, templates, public_prompts }
    }

    /// Records a request that the engine has accepted, or returns the engine's error. Cancels the
    /// request if the client has disconnected in between.
    pub(super) fn record_request(
        &self,
        handle: &TaskHandle,
        request: Result<u64, EngineError>,
    ) -> Result<(), ApiError> {
        let request = request.map_err(to_api_error)?;
        if !handle.set_engine_request(request) {
            self.model.cancel(request);
        }
        Ok(())
    }

    /// Size of the context in tokens: the requested size, limited to that of the runner.
    pub(super) fn context(&self, requested: Option<u32>) -> u32 {
        let max = self.model.model_info().num_ctx;
        requested.map_or(max, |tokens| tokens.min(max))
    }

    /// Rejects tokens outside the vocabulary.
    pub(super) fn check_tokens(&self, tokens: &[u32]) -> Result<(), ApiError> {
        let known = self.model.vocab_size();
        match tokens.iter().find(|token| **token as usize >= known) {
            Some(token) => Err(ApiError::bad_request(format!("this model has no token {token}"))),
            None => Ok(()),
        }
    }
}

/// Converts an error of the engine. Most kinds mean that the request asks for something impossible.
pub(super) fn to_api_error(error: EngineError) -> ApiError {
    match error {
        EngineError::Stopped
        | EngineError::Backend(_)
        | EngineError::Model(_)
        | EngineError::Tokenizer(_) => ApiError::internal(error.to_string()),
        _ => ApiError::bad_request(error.to_string()),
    }
}
