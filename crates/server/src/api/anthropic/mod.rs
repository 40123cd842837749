//! Anthropic's Messages API (`POST /v1/messages`).

mod answer;
mod documents;
mod predefined_tools;
mod request;
pub(crate) mod routes;
#[cfg(test)]
mod tests;

pub(crate) use answer::MessagesEncoder;
pub(crate) use predefined_tools::left_out;
pub(crate) use request::{SEARCH, to_request, wishes_to_think};
