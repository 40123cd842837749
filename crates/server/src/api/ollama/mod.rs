//! Ollama's API: routes, conversion of requests, and encoders of answers.

mod answer;
pub(crate) mod blobs;
pub(crate) mod chat;
pub(crate) mod cloud;
pub(crate) mod create;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod library;
pub(crate) mod progress_stream;
pub(crate) mod ps;
mod request;
mod show;
pub(crate) mod tokens;
pub(crate) mod transfer;

pub(crate) use answer::{ChatEncoder, GenerateEncoder, push_line};
pub(crate) use request::{convert_chat, convert_generate};
