//! Properties of stored models, and store errors, in the types of the scheduler and the APIs.

use std::path::PathBuf;

use puna_api::ollama::ModelDetails;
use puna_store::{Details, Model, StoreError, Weights};

use crate::canonical::ApiError;
use crate::model_scheduler::ModelKey;

/// The file of a model's weights. `None` for the embedded model and for remote models.
pub(crate) fn weights(model: &Model) -> Option<PathBuf> {
    match &model.weights {
        Weights::File(path) => Some(path.clone()),
        Weights::Embedded | Weights::Remote => None,
    }
}

/// Key that identifies a model in memory: its weights and adapters.
pub(crate) fn key(model: &Model) -> ModelKey {
    let adapters = model.adapters.iter().map(|path| path.display().to_string());
    ModelKey(
        [model.weights_digest.to_string()]
            .into_iter()
            .chain(adapters)
            .collect::<Vec<_>>()
            .join(" "),
    )
}

/// Details of a model for API responses.
pub(crate) fn details(model: &Model) -> ModelDetails {
    api_details(model.details())
}

/// Converts details from a store listing for API responses.
pub(crate) fn api_details(details: Details) -> ModelDetails {
    ModelDetails {
        parent_model: details.parent_model,
        format: details.format,
        family: details.family,
        families: details.families,
        parameter_size: details.parameter_size,
        quantization_level: details.quantization_level,
        context_length: 0,
        embedding_length: 0,
        runner: details.runner,
    }
}

/// Converts a store error to an API error.
pub(crate) fn store_error(error: &StoreError) -> ApiError {
    let status = match error {
        StoreError::NotFound(_) => 404,
        StoreError::NotAdmitted(_) => 413,
        StoreError::NoSpace { .. } => 507,
        error if error.is_bad_request() => 400,
        _ => 500,
    };
    ApiError::new(status, error.to_string())
}
