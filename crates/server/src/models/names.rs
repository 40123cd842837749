//! Model names in requests.

use puna_store::{ModelName, ModelRef, ModelSource, NameError};

use crate::canonical::ApiError;

/// Error of requests for models that Ollama's cloud runs.
pub(crate) const REMOTE_UNAVAILABLE: &str = "remote model is unavailable";

/// A valid model name of a request.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    /// As the client wrote it.
    pub(crate) requested: String,
    /// Name in the store.
    pub(crate) stored: ModelName,
    /// Runner that the name selects.
    pub(crate) runner: Option<String>,
}

impl Name {
    /// Parses a name. `cloud` is the error text for cloud models.
    pub(crate) fn parse(requested: &str, cloud: &str) -> Result<Self, ApiError> {
        let ModelRef { name, runner, .. } = reference(requested, cloud)?;
        Ok(Self { requested: requested.to_owned(), stored: name, runner })
    }

    /// Parses the name of a model to run.
    pub(crate) fn parse_runnable(requested: &str) -> Result<Self, ApiError> {
        Self::parse(requested, REMOTE_UNAVAILABLE)
    }
}

/// Parses a name with its source; `cloud` as for [`Name::parse`].
pub(crate) fn reference(requested: &str, cloud: &str) -> Result<ModelRef, ApiError> {
    let reference = ModelRef::parse(requested).map_err(|error| match error {
        error @ NameError::BothSources(_) => ApiError::bad_request(error.to_string()),
        _ => ApiError::bad_request("invalid model name"),
    })?;
    match reference.source {
        ModelSource::Cloud => Err(ApiError::new(403, format!("ollama cloud is disabled: {cloud}"))),
        _ => Ok(reference),
    }
}
