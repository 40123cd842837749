//! Wire types of the HTTP dialects, and an asynchronous client.
//!
//! - [`ollama`]: Ollama's dialect.
//! - [`openai`]: OpenAI's chat completions, completions, embeddings and models.
//! - [`anthropic`]: Anthropic's messages and models.
//! - [`responses`]: requests of OpenAI's Responses API.
//! - [`decode`]: decodes request bodies with Ollama's leniency and error messages.
//! - [`Address`]: address of a server, in all forms that users write.
//! - `schema`: JSON Schemas of the types (feature `schema`).
//! - [`Client`]: client of Puna and Ollama servers (feature `client`, on by default).
//!
//! ```no_run
//! # async fn example() -> Result<(), puna_api::ClientError> {
//! use puna_api::Client;
//! use puna_api::ollama::{ChatRequest, Message};
//!
//! let messages = vec![Message::text("user", "Hello!")];
//! let request = ChatRequest { model: "cria".into(), messages, ..ChatRequest::default() };
//! let mut pieces = Client::from_env().chat(&request).await?;
//! while let Some(piece) = pieces.next().await {
//!     print!("{}", piece?.message.content);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The folder `examples` shows conversations, tools, structured output, embeddings, and creating
//! and pulling models.
//!
//! Types serialize their fields in the order of Ollama's server.

#![forbid(unsafe_code)]

mod address;
pub mod anthropic;
mod base64;
#[cfg(feature = "client")]
mod client;
pub mod decode;
mod duration;
pub mod json;
mod json_shape;
pub mod ollama;
pub mod openai;
mod rate;
pub mod responses;
#[cfg(feature = "schema")]
pub mod schema;
#[cfg(feature = "client")]
mod tls;

pub use address::{Address, DEFAULT_PORT, split_port};
pub use base64::{decode as base64_decode, encode as base64_encode};
#[cfg(feature = "client")]
pub use client::{Client, ClientError, Stream};
pub use duration::{DurationError, KeepAlive, format_duration, parse_duration};
pub use rate::{parse_bytes, parse_rate};
