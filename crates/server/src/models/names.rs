//! Model names in requests.

use puna_store::{ModelName, ModelRef, ModelSource, NameError};

use crate::auth::caller::{Action, Caller};
use crate::canonical::ApiError;

/// Error of requests for models that Ollama's cloud runs.
pub(crate) const REMOTE_UNAVAILABLE: &str = "remote model is unavailable";

/// A valid model name of a request.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    /// As the client wrote it.
    pub(crate) requested: String,
    stored: ModelName,
    /// Whether the caller may know of the model.
    is_visible: bool,
    /// Runner that the name selects.
    pub(crate) runner: Option<String>,
}

impl Name {
    /// Parses a name. `cloud` is the error text for cloud models.
    pub(crate) fn parse(requested: &str, cloud: &str) -> Result<Self, ApiError> {
        let ModelRef { name, runner, .. } = reference(requested, cloud)?;
        let is_visible = Caller::current().may(Action::Use, &name);
        Ok(Self { requested: requested.to_owned(), stored: name, is_visible, runner })
    }

    /// Full name, for messages.
    pub(crate) fn full(&self) -> String {
        self.stored.to_string()
    }

    /// Name in the store; `None` if the caller may not know of the model, which is answered like
    /// a model that does not exist.
    pub(crate) fn visible(&self) -> Option<&ModelName> {
        self.is_visible.then_some(&self.stored)
    }

    /// Parses the name of a model to run.
    pub(crate) fn parse_runnable(requested: &str) -> Result<Self, ApiError> {
        Self::parse(requested, REMOTE_UNAVAILABLE)
    }
}

/// Parses the name of a model that the request changes, with its source; `cloud` as for
/// [`Name::parse`].
pub(crate) fn changed_reference(requested: &str, cloud: &str) -> Result<ModelRef, ApiError> {
    let reference = reference(requested, cloud)?;
    Caller::current().check_change(&reference.name)?;
    Ok(reference)
}

/// Parses a name with its source; `cloud` as for [`Name::parse`].
fn reference(requested: &str, cloud: &str) -> Result<ModelRef, ApiError> {
    let reference = ModelRef::parse(requested).map_err(|error| match error {
        error @ NameError::BothSources(_) => ApiError::bad_request(error.to_string()),
        _ => ApiError::bad_request("invalid model name"),
    })?;
    match reference.source {
        ModelSource::Cloud => Err(ApiError::new(403, format!("ollama cloud is disabled: {cloud}"))),
        _ => Ok(reference),
    }
}
