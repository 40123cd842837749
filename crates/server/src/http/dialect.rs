//! API dialects. The route table names the dialect of each route.

use axum::response::{IntoResponse, Response};

use super::response::{Anthropic, ErrorResponse, Ollama, OpenAi};
use crate::canonical::ApiError;

/// API dialect of a route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    Ollama,
    OpenAi,
    Anthropic,
    /// Puna's own API with Ollama's error format; also for paths without a route.
    #[default]
    Puna,
}

impl Dialect {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 4] = [Self::Ollama, Self::OpenAi, Self::Anthropic, Self::Puna];

    #[cfg(test)]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ollama => "Ollama",
            Self::OpenAi => "OpenAI",
            Self::Anthropic => "Anthropic",
            Self::Puna => "Puna",
        }
    }

    /// Converts an error to a response in this dialect.
    pub(crate) fn error(self, failure: ApiError) -> Response {
        match self {
            Self::Ollama | Self::Puna => ErrorResponse::<Ollama>::from(failure).into_response(),
            Self::OpenAi => ErrorResponse::<OpenAi>::from(failure).into_response(),
            Self::Anthropic => ErrorResponse::<Anthropic>::from(failure).into_response(),
        }
    }
}
