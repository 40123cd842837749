//! Checks of files before they are loaded, and the memory that a model will take.

use puna_gguf::View;
use puna_graph::Backend;
use puna_models::{Adapter, LoadOptions, Model, check_architecture, check_companion, is_companion};
use puna_tokenizer::Tokenizer;

use crate::cache_plan::context;
use crate::config::{EngineOptions, MemoryReport, ModelInfo};
use crate::diffusion;
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::speculate::model::{
    DraftModel, ModelDrafter, check_companion_vocabulary, check_vocabulary, model_name,
};

/// Checks that a file can be loaded with these adapters, or as a companion draft model: its
/// metadata, vocabulary, and tensor names and shapes. Reads no weights.
///
/// # Errors
///
/// The error that loading the file would return.
pub fn check_model(view: &View, adapters: &[Adapter]) -> Result<(), EngineError> {
    if is_companion(view.metadata()) {
        return Ok(check_companion(view)?);
    }
    // Checked first, so that an unknown architecture is not reported as an unknown vocabulary.
    check_architecture(view.metadata())?;
    Tokenizer::from_metadata(view.metadata())?;
    Model::load_with_adapters(view, adapters, LoadOptions::default())?;
    Ok(())
}

/// Checks that a draft model fits its target model: it can be loaded, has the same vocabulary, and
/// a companion finds the tensors of the target that it uses. For a target that cannot verify
/// drafts, any separate model passes, since it is ignored.
///
/// # Errors
///
/// As [`check_model`] for the draft model; and [`EngineError::DraftVocabulary`], or
/// [`ModelError::Companion`](puna_models::ModelError::Companion).
pub fn check_draft(model: &View, draft: &View) -> Result<(), EngineError> {
    let (name, tokenizer) = (model_name(model), Tokenizer::from_metadata(model.metadata())?);
    if is_companion(draft.metadata()) {
        check_companion_vocabulary(draft, &name, &tokenizer)?;
        return Ok(
            Model::load_with_draft(model, &[], LoadOptions::default(), Some(draft)).map(drop)?
        );
    }
    check_model(draft, &[])?;
    let loaded = Model::load(model, LoadOptions::default())?;
    let n_ctx = context(&loaded, &EngineOptions::default());
    match ModelInfo::of(&loaded, model, n_ctx).takes_drafts() {
        true => check_vocabulary(draft, &name, &tokenizer),
        false => Ok(()),
    }
}

/// Memory that a model takes with these options. `backend` is a fresh backend of the kind that will
/// run the model: it compiles the largest step, which reserves addresses but no memory, and is
/// dropped.
pub fn plan_memory(
    view: &View,
    backend: Box<dyn Backend>,
    options: &EngineOptions,
) -> Result<MemoryReport, EngineError> {
    ModelExecutor::load_weights(view, backend, options, None)?.memory(options)
}

/// Like [`plan_memory`], with a draft model. A separate draft model has a KV cache for as many and
/// as long sequences.
pub fn plan_memory_with_draft(
    view: &View,
    backend: Box<dyn Backend>,
    options: &EngineOptions,
    draft: DraftModel,
) -> Result<MemoryReport, EngineError> {
    let companion = draft.is_companion().then_some(&draft.view);
    let mut executor = ModelExecutor::load_weights(view, backend, options, companion)?;
    diffusion::check_draft_support(&executor.info)?;
    let alone = executor.memory(options)?;
    if companion.is_some() {
        return Ok(alone);
    }
    let draft =
        if executor.info.takes_drafts() { ModelDrafter::plan(draft, options)?.total() } else { 0 };
    Ok(MemoryReport { draft, ..alone })
}
