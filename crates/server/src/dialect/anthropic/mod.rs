//! Anthropic's dialect.

mod answer;
mod defined;
mod documents;
mod request;
#[cfg(test)]
mod tests;

pub(crate) use answer::MessagesEncoder;
pub(crate) use defined::left_out;
pub(crate) use request::{SEARCH, to_request, wishes_to_think};
