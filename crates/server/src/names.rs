//! Model names in requests.

use puna_store::{ModelName, ModelRef, NameError, Source};

use crate::canonical::Failure;

/// What is said of models that somebody else's servers execute to who wants them.
pub(crate) const REMOTE: &str = "remote model is unavailable";

/// A valid name of a request.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    /// As the client wrote it.
    pub(crate) given: String,
    /// As the store understands it.
    pub(crate) stored: ModelName,
    /// The runner that it names.
    pub(crate) runner: Option<String>,
}

impl Name {
    /// Reads a name; `cloud` is what is said of models that somebody else's servers execute.
    pub(crate) fn parse(given: &str, cloud: &str) -> Result<Self, Failure> {
        let ModelRef { name, runner, .. } = reference(given, cloud)?;
        Ok(Self { given: given.to_owned(), stored: name, runner })
    }

    /// Reads the name of a model to run.
    pub(crate) fn to_run(given: &str) -> Result<Self, Failure> {
        Self::parse(given, REMOTE)
    }
}

/// Reads a name and where the model is from; `cloud` as for [`Name::parse`].
pub(crate) fn reference(given: &str, cloud: &str) -> Result<ModelRef, Failure> {
    let reference = ModelRef::parse(given).map_err(|error| match error {
        error @ NameError::BothSources(_) => Failure::bad_request(error.to_string()),
        _ => Failure::bad_request("invalid model name"),
    })?;
    match reference.source {
        Source::Cloud => Err(Failure::new(403, format!("ollama cloud is disabled: {cloud}"))),
        _ => Ok(reference),
    }
}
