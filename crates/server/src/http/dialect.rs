//! The dialects that routes speak: the table of routes names one for each.

use axum::response::{IntoResponse, Response};

use super::reply::{Anthropic, Native, OpenAi, Refused};
use crate::canonical::Failure;

/// Whose words a route speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    Ollama,
    OpenAi,
    Anthropic,
    /// Of its own, with Ollama's errors; also what has no route.
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

    /// The answer to a failed request.
    pub(crate) fn error(self, failure: Failure) -> Response {
        match self {
            Self::Ollama | Self::Puna => Refused::<Native>::from(failure).into_response(),
            Self::OpenAi => Refused::<OpenAi>::from(failure).into_response(),
            Self::Anthropic => Refused::<Anthropic>::from(failure).into_response(),
        }
    }
}
