//! Dialect of OpenAI's Responses API: items of input and output, and stored responses that a later
//! request can continue.

mod answer;
mod items;
mod replay;
mod request;
pub(crate) mod routes;
pub(crate) mod store;
#[cfg(test)]
mod tests;
mod tools;

pub(crate) use answer::{Keep, ResponseEncoder};
pub(crate) use replay::replay;
pub(crate) use request::to_request;
pub(crate) use store::{ResponseStore, StoredResponse};
pub(crate) use tools::{left_out, take_additional_tools};
